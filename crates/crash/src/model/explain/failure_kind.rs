//! How a check fails, without details that differ between states that fail for the same reason.

/// Equal for checks that fail in the same way: with the same outcome, and the same words.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FailureKind {
    /// Such as `exited with 3`.
    pub(super) outcome: String,
    words: String,
}

/// Words beyond this many bytes are details.
const WORDS: usize = 200;

impl FailureKind {
    /// From the outcome of the check and its output. Of the output only the first line counts, without numbers,
    /// hashes and random names, and without quotations: names of keys and files.
    pub fn new(outcome: &str, output: &str) -> Self {
        let line = output.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let mut words = String::new();
        let mut quote = None;
        let mut rest = line;
        while let Some(c) = rest.chars().next()
            && words.len() < WORDS
        {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end.max(c.len_utf8()));
            rest = after;
            match quote {
                Some(end) if c == end => quote = None,
                Some(_) => continue,
                None if matches!(c, '"' | '`') => quote = Some(c),
                None => {}
            }
            if is_made_up(word) { words.push('#') } else { push_without_numbers(&mut words, word) }
        }
        Self { outcome: outcome.to_owned(), words }
    }
}

/// Whether a word is a hash, a part of a UUID or a random name.
fn is_made_up(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex && word.len() >= 4 && digits > 0) || (word.len() >= 16 && digits > 1)
}

fn push_without_numbers(words: &mut String, word: &str) {
    for c in word.chars() {
        match c.is_ascii_digit() {
            false => words.push(c),
            true if words.ends_with('#') => {}
            true => words.push('#'),
        }
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
        assert_ne!(kind("record 3 is lost"), kind("cache 3 is lost"));
        let hash = |hash: &str| kind(&format!("missing object {hash}"));
        assert_eq!(
            hash("14c5dfbb52be37e2a55e6e72326332d730f9ac2a"),
            hash("e95099edcd40fa85863725a8")
        );
        assert_eq!(
            hash("01a1f06b-c14b-72f7-bc43-710781aa9ec4"),
            hash("7e51c0de-0b1f-4c22-9a3e-d7f0a1b2c3d4")
        );
        assert_ne!(hash("14c5dfbb"), kind("bad object 14c5dfbb"));
        assert_ne!(kind("x"), FailureKind::new("exited with 2", "x"));
    }
}
