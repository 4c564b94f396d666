//! Patterns of rules: `*` is any text, `?` any one character.

/// Whether the whole text matches.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last `*` was, and what it covers so far.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p).is_some_and(|&c| c == '?' || c == text[t]) {
            p += 1;
            t += 1;
        } else if let Some((at, covered)) = star {
            star = Some((at, covered + 1));
            p = at + 1;
            t = covered + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text) in [
            ("a", "a"),
            ("*", ""),
            ("*", "abc"),
            ("a*c", "abbc"),
            ("?b*", "ab"),
            ("*a*b", "xxaxxb"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("a", "b"), ("a", "aa"), ("?", ""), ("a*c", "ab"), ("", "a"), ("*a", "ab")]
        {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
