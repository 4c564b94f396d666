//! Patterns of rules: `*` is any text, `?` any one character.

/// Whether the whole text matches.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    // Fast path: most patterns are plain names, and every rule is compared with every command.
    if !is_pattern(pattern) {
        return pattern == text;
    }
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The position of the last `*`, and how far it matches.
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

/// Whether the pattern matches more than one text.
pub(super) fn is_pattern(pattern: &str) -> bool {
    pattern.bytes().any(|byte| matches!(byte, b'*' | b'?'))
}

/// Whether some text matches both the pattern and the shape, in which `None` is any text.
pub(super) fn overlaps(pattern: &str, shape: &[Option<char>]) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    // Which prefixes of the pattern match the shape so far.
    let mut fits = vec![false; pattern.len() + 1];
    fits[0] = true;
    let stars = |fits: &mut Vec<bool>| {
        for p in 0..pattern.len() {
            fits[p + 1] |= fits[p] && pattern[p] == '*';
        }
    };
    stars(&mut fits);
    for piece in shape {
        let mut next = vec![false; pattern.len() + 1];
        match piece {
            None => {
                let first = fits.iter().position(|fit| *fit).unwrap_or(next.len());
                next[first..].fill(true);
            }
            Some(c) => {
                for p in (0..pattern.len()).filter(|&p| fits[p]) {
                    next[p] |= pattern[p] == '*';
                    next[p + 1] |= pattern[p] == '?' || pattern[p] == *c;
                }
                next[pattern.len()] |= fits[pattern.len()] && pattern.last() == Some(&'*');
            }
        }
        stars(&mut next);
        fits = next;
    }
    fits[pattern.len()]
}

#[cfg(test)]
mod tests {
    use super::{matches, overlaps};

    #[test]
    fn a_pattern_overlaps_a_word_with_unknown_parts() {
        let shape = |text: &str| -> Vec<Option<char>> {
            text.chars().map(|c| (c != '_').then_some(c)).collect()
        };
        for (pattern, text) in [
            ("push", "_"),
            ("push", "p_h"),
            ("p*", "_x"),
            ("*evil*", "https://_"),
            ("a?c", "a_"),
            ("*", ""),
            ("a*", "ab"),
            ("push", "push"),
        ] {
            assert!(overlaps(pattern, &shape(text)), "{pattern} {text}");
        }
        for (pattern, text) in
            [("push", "_.rs"), ("push", "x_"), ("a?c", "a_d"), ("", "a"), ("a", ""), ("ab", "abc")]
        {
            assert!(!overlaps(pattern, &shape(text)), "{pattern} {text}");
        }
    }

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
