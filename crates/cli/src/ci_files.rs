//! Results of a CI job for people: Markdown appended to a summary file, and lines that GitHub shows
//! beside the code.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::Failure;

/// Appends to a file: several steps of a job write to one summary.
pub(crate) fn append(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |source| Failure::File { action: "write", path: path.to_owned(), source };
    let mut file = OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(failed)
}

/// Escapes all Markdown in a text and joins it into one line.
pub(crate) fn markdown(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => plain.push(' '),
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '<' | '>' | '#' | '|' | '&' | '~' => {
                plain.push('\\');
                plain.push(character);
            }
            other if other.is_control() => plain.push('\u{fffd}'),
            other => plain.push(other),
        }
    }
    plain
}

/// A line that GitHub shows as an error of the job. Escaped, so that no text can begin another command.
pub(crate) fn github_error(file: Option<(&str, u64)>, title: &str, message: &str) -> String {
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let place = file
        .map_or_else(String::new, |(file, line)| format!("file={},line={line},", property(file)));
    format!("::error {place}title={}::{}\n", property(title), data(message))
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_tests_are_neither_markdown_nor_commands() {
        assert_eq!(markdown("a|b\n<img> `x`"), "a\\|b \\<img\\> \\`x\\`");
        let line = github_error(Some(("src/a,b.rs", 7)), "t: x", "first\n::error::second 100%");
        assert_eq!(
            line,
            "::error file=src/a%2Cb.rs,line=7,title=t%3A x::first%0A::error::second 100%25\n"
        );
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(github_error(None, "t", "m"), "::error title=t::m\n");
    }
}
