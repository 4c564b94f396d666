//! How a check fails, without what differs between two states that fail for the same reason.

/// Equal for checks that fail in the same way: the same outcome, and the same words.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FailureKind {
    /// Such as `exited with 3`.
    pub(super) outcome: String,
    words: String,
}

/// Words beyond this many bytes are details.
const WORDS: usize = 200;

impl FailureKind {
    /// From how the check ended and what it printed. Of that the first line counts, without numbers
    /// and without what is quoted: names of keys and files.
    pub fn new(outcome: &str, output: &str) -> Self {
        let line = output.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let mut words = String::new();
        let mut quote = None;
        for c in line.chars() {
            match quote {
                Some(end) if c == end => quote = None,
                Some(_) => continue,
                None if matches!(c, '"' | '`') => quote = Some(c),
                None if c.is_ascii_digit() => {
                    if !words.ends_with('#') {
                        words.push('#');
                    }
                    continue;
                }
                None => {}
            }
            if words.len() >= WORDS {
                break;
            }
            words.push(c);
        }
        Self { outcome: outcome.to_owned(), words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_quoted_names_do_not_make_a_kind() {
        let kind = |output: &str| FailureKind::new("exited with 1", output);
        assert_eq!(kind("round 3 of \"a\" is lost"), kind("\nround 17 of \"bc\" is lost\nmore"));
        assert_ne!(kind("round 3 is lost"), kind("NUL bytes in round 3"));
        assert_ne!(kind("x"), FailureKind::new("exited with 2", "x"));
    }
}
