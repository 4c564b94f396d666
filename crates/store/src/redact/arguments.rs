//! Secrets in a command line: `--password X`, `--token=X`, `API_KEY=X`, `X-Api-Key: X`.
//!
//! Only arguments are parsed this way. In output the same words occur in help texts and messages
//! about options, so output is only searched for the values found here.

use std::borrow::Cow;
use std::ops::Range;

use retake_types::Redactions;

use super::names::{is_secret_name, is_secret_option};

/// A secret in one of the arguments of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundSecret {
    pub(crate) argument: usize,
    /// The range of the value in the argument.
    pub(crate) value: Range<usize>,
    pub(crate) name: String,
}

/// The secrets in the arguments of a command, including those in a line for a shell: name and
/// value.
pub fn argument_secrets<'a>(arguments: &[&'a [u8]]) -> Vec<(String, &'a [u8])> {
    let found = in_arguments(arguments).into_iter();
    found.map(|found| (found.name, &arguments[found.argument][found.value])).collect()
}

pub(crate) fn in_arguments(arguments: &[&[u8]]) -> Vec<FoundSecret> {
    let mut found = Vec::new();
    let mut reader = WordReader::default();
    for (at, argument) in arguments.iter().enumerate() {
        match reader.read(argument) {
            Some((name, value)) => found.push(FoundSecret { argument: at, value, name }),
            None if !reader.waits() && argument.iter().any(u8::is_ascii_whitespace) => {
                let inner = in_line(argument).into_iter();
                found.extend(inner.map(|inner| FoundSecret { argument: at, ..inner }));
            }
            None => {}
        }
    }
    found
}

/// The secrets in a command line; their `argument` is meaningless.
pub(crate) fn in_line(line: &[u8]) -> Vec<FoundSecret> {
    let mut found = Vec::new();
    let mut reader = WordReader::default();
    for word in words(line) {
        let Some((name, value)) = reader.read(&line[word.clone()]) else { continue };
        let mut value = value.start + word.start..value.end + word.start;
        if let [b'"' | b'\'', .., b'"' | b'\''] = line[value.clone()] {
            value = value.start + 1..value.end - 1;
        }
        if is_value(&line[value.clone()]) {
            found.push(FoundSecret { argument: 0, value, name });
        }
    }
    found
}

/// The text with secrets replaced by marks, and whether there were any.
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

/// Parses the words of a command in order.
#[derive(Default)]
struct WordReader {
    /// What the previous word says about the next one.
    awaited: Option<Awaited>,
    /// Whether the command is curl, whose `-u` takes a password.
    curl: bool,
}

enum Awaited {
    /// The whole word is the value of this option.
    Value(String),
    /// `user:password`, for this option.
    User(String),
}

impl WordReader {
    fn waits(&self) -> bool {
        self.awaited.is_some()
    }

    /// The name and the range of the secret in this word.
    fn read(&mut self, word: &[u8]) -> Option<(String, Range<usize>)> {
        match self.awaited.take() {
            Some(Awaited::Value(name)) if is_value(word) => return Some((name, 0..word.len())),
            Some(Awaited::User(name)) => return Some((name, password(word, 0)?)),
            _ => {}
        }
        self.curl |= word == b"curl" || word.ends_with(b"/curl");
        if self.curl {
            match word {
                b"-u" | b"--user" | b"-U" | b"--proxy-user" => {
                    let name = String::from_utf8_lossy(word).into_owned();
                    self.awaited = Some(Awaited::User(name));
                    return None;
                }
                [b'-', b'u' | b'U', ..] => {
                    let name = String::from_utf8_lossy(&word[..2]).into_owned();
                    return Some((name, password(word, 2)?));
                }
                _ => {}
            }
        }
        match read_word(word) {
            Word::Value { name, value } => Some((name, value)),
            Word::Option(name) => {
                self.awaited = Some(Awaited::Value(name));
                None
            }
            Word::Other => None,
        }
    }
}

/// The range of the password in `user:password`.
fn password(word: &[u8], from: usize) -> Option<Range<usize>> {
    let colon = from + memchr::memchr(b':', &word[from..])?;
    is_value(&word[colon + 1..]).then_some(colon + 1..word.len())
}

enum Word {
    /// It names a secret and contains its value.
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
            // `--header=X-Api-Key: X`, `--env=API_KEY=X`
            return end.map_or(Word::Other, |end| within(word, end + 3));
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
    if word.starts_with(b"-H") {
        return within(word, 2);
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
    // `make PASS=1` contains no secret.
    let long_enough = length - value.min(length) >= super::SHORTEST;
    if long_enough && is_secret_name(name) && is_value(&word[value..]) {
        return Word::Value { name: name.to_owned(), value: value..length };
    }
    Word::Other
}

/// The variable or header that the rest of a word sets, if any.
fn within(word: &[u8], from: usize) -> Word {
    match read_word(&word[from..]) {
        Word::Value { name, value } if !name.starts_with('-') => {
            Word::Value { name, value: value.start + from..value.end + from }
        }
        _ => Word::Other,
    }
}

/// Whether a word can be a secret: not an option, not a shell expansion, not replaced already.
fn is_value(word: &[u8]) -> bool {
    !matches!(word, [] | [b'-' | b'$' | b'<' | b'*', ..] | [b'"', b'$', ..])
        && !word.starts_with(b"[redacted:")
        // `docker build --secret id=...`
        && !word.starts_with(b"id=")
        && !word.starts_with(b"type=")
}

/// The words of a line; quotes around a whole word are removed.
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
        assert_eq!(found(&["wget", "--header=X-Api-Key: abcdef"]), ["X-Api-Key abcdef"]);
        assert_eq!(found(&["curl", "-HX-Auth-Token: abcdef"]), ["X-Auth-Token abcdef"]);
        assert_eq!(found(&["docker", "run", "--env=API_KEY=abcdef"]), ["API_KEY abcdef"]);
        assert_eq!(found(&["curl", "-u", "joe:s3:cret", "x"]), ["-u s3:cret"]);
        assert_eq!(found(&["/usr/bin/curl", "-ujoe:pw"]), ["-u pw"]);
        assert_eq!(found(&["sh", "-c", "x; curl --user 'joe:pw' y"]), ["--user pw"]);
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
            &["x", "--header=Accept: text/html", "--define=MODE=fast", "--env=TOKEN=$TOKEN"],
            &["docker", "run", "-u", "1000:1000", "curl", "-u", "joe", "-uann"],
            &["x", "--private-key", "/etc/key.pem", "--key", "value", "--tokens", "--", "KEY=v"],
        ] {
            assert_eq!(found(arguments), [""; 0]);
        }
    }
}
