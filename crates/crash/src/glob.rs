//! Patterns for labels: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a literal character.
//!
//! Labels are not paths, so `*` matches everything, including `/`.

/// A pattern for labels: `*` and `?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    One(char),
    AnyOne,
    Many,
    Class { ranges: Vec<(char, char)>, negated: bool },
}

impl Glob {
    /// The pattern, or why it is invalid.
    pub fn parse(pattern: &str) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        let mut rest = pattern.chars();
        while let Some(c) = rest.next() {
            parts.push(match c {
                '*' => Part::Many,
                '?' => Part::AnyOne,
                '[' => class(&mut rest)?,
                '\\' => Part::One(rest.next().ok_or("it ends in a lone backslash")?),
                c => Part::One(c),
            });
        }
        Ok(Self { parts })
    }

    /// Whether the whole label matches.
    pub fn matches(&self, label: &str) -> bool {
        let label: Vec<char> = label.chars().collect();
        let (mut part, mut at) = (0, 0);
        // Where to retry if the part after the last `*` does not match: that `*` then covers one character more.
        let mut retry = None;
        while at < label.len() {
            match self.parts.get(part) {
                Some(Part::Many) => {
                    retry = Some((part + 1, at));
                    part += 1;
                }
                Some(one) if one.fits(label[at]) => {
                    part += 1;
                    at += 1;
                }
                _ => match retry {
                    Some((after, taken)) => {
                        (part, at) = (after, taken + 1);
                        retry = Some((after, taken + 1));
                    }
                    None => return false,
                },
            }
        }
        self.parts[part..].iter().all(|part| *part == Part::Many)
    }
}

impl Part {
    fn fits(&self, c: char) -> bool {
        match self {
            Self::One(one) => *one == c,
            Self::AnyOne => true,
            Self::Many => false,
            Self::Class { ranges, negated } => {
                ranges.iter().any(|(low, high)| (low..=high).contains(&&c)) != *negated
            }
        }
    }
}

fn class(rest: &mut std::str::Chars<'_>) -> Result<Part, &'static str> {
    const OPEN: &str = "a `[` is not closed";
    let mut ranges = Vec::new();
    let mut c = rest.next().ok_or(OPEN)?;
    let negated = c == '!' || c == '^';
    if negated {
        c = rest.next().ok_or(OPEN)?;
    }
    loop {
        // A `]` in first position is a member, as in every shell.
        if c == ']' && !ranges.is_empty() {
            return Ok(Part::Class { ranges, negated });
        }
        let low = if c == '\\' { rest.next().ok_or(OPEN)? } else { c };
        let mut ahead = rest.clone();
        match (ahead.next(), ahead.next()) {
            (Some('-'), Some(high)) if high != ']' => {
                *rest = ahead;
                let high = if high == '\\' { rest.next().ok_or(OPEN)? } else { high };
                if high < low {
                    return Err("a range in `[…]` runs backwards");
                }
                ranges.push((low, high));
            }
            _ => ranges.push((low, low)),
        }
        c = rest.next().ok_or(OPEN)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Glob;

    fn matches(pattern: &str, label: &str) -> bool {
        Glob::parse(pattern).unwrap().matches(label)
    }

    #[test]
    fn each_kind_of_part() {
        for (pattern, yes, no) in [
            ("commit", "commit", "commits"),
            ("*", "", "-"),
            ("wal:*", "wal:", "wal"),
            ("*:sync", "a/b:sync", "a:sync "),
            ("a*b*c", "a-b-b-c", "a-c-b"),
            ("?", "é", "ab"),
            ("[a-c]x", "bx", "dx"),
            ("[!a-c]x", "dx", "bx"),
            ("[]-]", "]", "a"),
            ("[a\\]]", "]", "b"),
            (r"\*", "*", "x"),
            ("*🦀*", "a 🦀 b", "a b"),
        ] {
            assert!(matches(pattern, yes), "{pattern} {yes}");
            assert!(no == "-" || !matches(pattern, no), "{pattern} {no}");
        }
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for pattern in ["[", "[a", "[!", "[]", "[z-a]", "\\", "[a-\\"] {
            assert!(Glob::parse(pattern).is_err(), "{pattern}");
        }
    }

    /// The definition, directly implemented, at exponential cost.
    fn naive(pattern: &[char], label: &[char]) -> bool {
        match pattern {
            [] => label.is_empty(),
            ['*', rest @ ..] => (0..=label.len()).any(|n| naive(rest, &label[n..])),
            ['?', rest @ ..] => !label.is_empty() && naive(rest, &label[1..]),
            [c, rest @ ..] => label.first() == Some(c) && naive(rest, &label[1..]),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab*?]{0,8}", label in "[ab]{0,8}") {
            let (p, l): (Vec<char>, Vec<char>) = (pattern.chars().collect(), label.chars().collect());
            prop_assert_eq!(matches(&pattern, &label), naive(&p, &l));
        }
    }
}
