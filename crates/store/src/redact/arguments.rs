//! Secrets that a command line names: `--password X`, `--token=X`, `API_KEY=X`, `X-Api-Key: X`.
//!
//! Only arguments are read this way. In output the same words stand in help texts and in messages
//! about options, so there only the values that were seen here are looked for.

use std::borrow::Cow;
use std::ops::Range;

use retake_types::Redactions;

use super::names::{is_secret_name, is_secret_option};

/// A secret in one of the arguments of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundSecret {
    pub(crate) argument: usize,
    /// Where the value is in the argument.
    pub(crate) value: Range<usize>,
    pub(crate) name: String,
}

/// The secrets in the arguments of a command, a line for a shell among them included: name and value.
pub fn argument_secrets<'a>(arguments: &[&'a [u8]]) -> Vec<(String, &'a [u8])> {
    let found = in_arguments(arguments).into_iter();
    found.map(|found| (found.name, &arguments[found.argument][found.value])).collect()
}

pub(crate) fn in_arguments(arguments: &[&[u8]]) -> Vec<FoundSecret> {
    let mut found = Vec::new();
    let mut awaited: Option<String> = None;
    for (at, argument) in arguments.iter().enumerate() {
        let whole = 0..argument.len();
        if let Some(name) = awaited.take()
            && is_value(argument)
        {
            found.push(FoundSecret { argument: at, value: whole, name });
            continue;
        }
        match read_word(argument) {
            Word::Value { name, value } => {
                found.push(FoundSecret { argument: at, value, name });
            }
            Word::Option(name) => awaited = Some(name),
            Word::Other if argument.iter().any(u8::is_ascii_whitespace) => {
                let inner = in_line(argument).into_iter();
                found.extend(inner.map(|inner| FoundSecret { argument: at, ..inner }));
            }
            Word::Other => {}
        }
    }
    found
}

/// The secrets in a command line; `argument` means nothing then.
pub(crate) fn in_line(line: &[u8]) -> Vec<FoundSecret> {
    let mut found = Vec::new();
    let mut awaited: Option<String> = None;
    for word in words(line) {
        let text = &line[word.clone()];
        if let Some(name) = awaited.take()
            && is_value(text)
        {
            found.push(FoundSecret { argument: 0, value: word, name });
            continue;
        }
        match read_word(text) {
            Word::Value { name, value } => {
                let mut value = value.start + word.start..value.end + word.start;
                if let [b'"' | b'\'', .., b'"' | b'\''] = line[value.clone()] {
                    value = value.start + 1..value.end - 1;
                }
                if is_value(&line[value.clone()]) {
                    found.push(FoundSecret { argument: 0, value, name });
                }
            }
            Word::Option(name) => awaited = Some(name),
            Word::Other => {}
        }
    }
    found
}

/// The text with marks in place of what was found, and whether there was anything.
pub(crate) fn mark<'a>(
    text: &'a [u8],
    found: &[&FoundSecret],
    redactions: &mut Redactions,
) -> (Cow<'a, [u8]>, bool) {
    if found.is_empty() {
        return (Cow::Borrowed(text), false);
    }
    let (mut marked, mut from) = (Vec::new(), 0);
    for secret in found {
        if secret.value.start < from {
            continue;
        }
        marked.extend_from_slice(&text[from..secret.value.start]);
        marked.extend_from_slice(&super::marker_of(&secret.name));
        redactions.add(&secret.name, 1);
        from = secret.value.end;
    }
    marked.extend_from_slice(&text[from..]);
    (Cow::Owned(marked), true)
}

enum Word {
    /// It names a secret and has its value.
    Value {
        name: String,
        value: Range<usize>,
    },
    /// The next word is the value.
    Option(String),
    Other,
}

fn read_word(word: &[u8]) -> Word {
    let length = word.len();
    if let Some(option) = word.strip_prefix(b"--") {
        let end = option.iter().position(|&byte| byte == b'=');
        let Ok(name) = std::str::from_utf8(&option[..end.unwrap_or(option.len())]) else {
            return Word::Other;
        };
        if !is_secret_option(name) {
            return Word::Other;
        }
        let shown = format!("--{name}");
        return match end {
            None => Word::Option(shown),
            Some(end) if is_value(&option[end + 1..]) => {
                Word::Value { name: shown, value: end + 3..length }
            }
            Some(_) => Word::Other,
        };
    }
    let separator =
        word.iter().position(|&byte| !(byte.is_ascii_alphanumeric() || b"_-".contains(&byte)));
    let Some(end) = separator.filter(|&end| end > 0) else { return Word::Other };
    let Ok(name) = std::str::from_utf8(&word[..end]) else { return Word::Other };
    let value = match &word[end..] {
        [b'=', ..] => end + 1,
        [b':', b' ', ..] => end + 2,
        _ => return Word::Other,
    };
    // `make PASS=1` says nothing secret.
    let long_enough = length - value.min(length) >= super::SHORTEST;
    if long_enough && is_secret_name(name) && is_value(&word[value..]) {
        return Word::Value { name: name.to_owned(), value: value..length };
    }
    Word::Other
}

/// Whether a word can be a secret: not the next option, not what a shell has yet to fill in, not
/// replaced already.
fn is_value(word: &[u8]) -> bool {
    !matches!(word, [] | [b'-' | b'$' | b'<' | b'*', ..] | [b'"', b'$', ..])
        && !word.starts_with(b"[redacted:")
        // `docker build --secret id=...`
        && !word.starts_with(b"id=")
        && !word.starts_with(b"type=")
}

/// The words of a line; quotes around a whole word are left out.
fn words(line: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let between = |byte: u8| byte.is_ascii_whitespace() || b";|&()".contains(&byte);
        while at < line.len() && between(line[at]) {
            at += 1;
        }
        if at == line.len() {
            return None;
        }
        let (start, mut quote) = (at, None);
        while at < line.len() {
            match (quote, line[at]) {
                (Some(open), byte) if byte == open => quote = None,
                (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
                (None | Some(b'"'), b'\\') => at += 1,
                (None, byte) if between(byte) => break,
                _ => {}
            }
            at += 1;
        }
        at = at.min(line.len());
        match &line[start..at] {
            [open @ (b'"' | b'\''), inner @ .., close]
                if open == close && !inner.contains(open) =>
            {
                Some(start + 1..at - 1)
            }
            _ => Some(start..at),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(arguments: &[&str]) -> Vec<(String, String)> {
        let arguments: Vec<_> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        argument_secrets(&arguments).into_iter().map(|(name, value)| (name, text(value))).collect()
    }

    fn found(arguments: &[&str]) -> Vec<String> {
        secrets(arguments).into_iter().map(|(name, value)| format!("{name} {value}")).collect()
    }

    #[test]
    fn options_variables_and_headers_name_secrets() {
        assert_eq!(found(&["mysql", "--password", "hunter2", "db"]), ["--password hunter2"]);
        assert_eq!(
            found(&["x", "--token=abc=def", "--api-key", "k1"]),
            ["--token abc=def", "--api-key k1"]
        );
        assert_eq!(found(&["env", "API_KEY=abcdef", "x"]), ["API_KEY abcdef"]);
        assert_eq!(found(&["curl", "-H", "X-Api-Key: abc def"]), ["X-Api-Key abc def"]);
        let line = "cd x && API_KEY='ab cdef' mysql --password=\"p w\" --db-password  'q'; true";
        assert_eq!(
            found(&["sh", "-c", line]),
            ["API_KEY ab cdef", "--password p w", "--db-password q"]
        );
    }

    #[test]
    fn other_arguments_are_left_alone() {
        for arguments in [
            &["docker", "login", "--password-stdin", "registry.example.org"][..],
            &["x", "--password", "--verbose"],
            &["make", "PASS=1", "TOKEN=2"],
            &["x", "--token-file", "path", "--no-password", "y", "--sort-key", "name"],
            &["x", "--password=$PASSWORD", "--token", "$TOKEN"],
            &["sh", "-c", "mysql --password=\"$PASSWORD\" --token \"$TOKEN\""],
            &["docker", "build", "--secret", "id=npm,src=x"],
            &["x", "--private-key", "/etc/key.pem", "--key", "value", "--tokens", "--", "KEY=v"],
        ] {
            assert_eq!(found(arguments), [""; 0]);
        }
    }
}
