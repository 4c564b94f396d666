//! stdout for data, stderr for everything else. The only module that writes to either.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use retake_types::text::{steers, visible};

use crate::signals;

/// Prints a message to stderr, each line with the prefix `retake: `.
pub fn say(message: &str) {
    let mut text = String::new();
    for line in message.lines() {
        text.push_str("retake: ");
        text.push_str(&visible(line));
        text.push('\n');
    }
    // Nobody reads a closed stderr.
    _ = io::stderr().write_all(text.as_bytes());
}

/// Writes data to stdout.
pub fn data(bytes: &[u8]) -> io::Result<()> {
    if signals::stdout_closed() {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// stdout for large data; the caller flushes it.
pub fn writer() -> impl Write {
    io::BufWriter::with_capacity(64 * 1024, io::stdout().lock())
}

/// Writes one JSON document to stdout: indented for people, on one line for programs.
pub fn document(value: &impl serde::Serialize) -> io::Result<()> {
    let mut text = if io::stdout().is_terminal() {
        serde_json::to_vec_pretty(value)
    } else {
        serde_json::to_vec(value)
    }
    .map_err(io::Error::other)?;
    text.push(b'\n');
    data(&harmless_json(text))
}

/// One JSON value on one line.
pub fn json_line(value: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(harmless_json(text))
}

const DELETE: u8 = 0x7f;

/// Escapes characters that JSON allows but that could steer a terminal. They occur only in strings,
/// where an escape has the same meaning.
fn harmless_json(text: Vec<u8>) -> Vec<u8> {
    // The only harmful ASCII character that JSON does not escape is DEL.
    if text.is_ascii() && !text.contains(&DELETE) {
        return text;
    }
    let text = match String::from_utf8(text) {
        Ok(text) => text,
        Err(error) => return error.into_bytes(),
    };
    let steers = |c: char| steers(c) && c != '\n';
    if !text.contains(steers) {
        return text.into_bytes();
    }
    let escape = |c: char| format!("\\u{:04x}", u32::from(c));
    text.chars()
        .map(|c| if steers(c) { escape(c) } else { c.to_string() })
        .collect::<String>()
        .into_bytes()
}

/// The width of stdout in columns; `None` if it is unlimited, as it is without a terminal: COLUMNS
/// describes the terminal, not a pipe.
pub fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    told.filter(|columns| *columns > 0).or_else(|| Some(window(io::stdout())?.0))
}

/// The width of the terminal at stderr in columns.
pub fn stderr_width() -> Option<usize> {
    window(io::stderr()).map(|(columns, _)| columns)
}

/// The height of the terminal at stdout in lines.
pub fn height() -> usize {
    window(io::stdout()).map_or(usize::MAX, |(_, lines)| lines)
}

/// Columns and lines of a terminal; `None` without a terminal or a width. A terminal with only a
/// width gets the usual height.
fn window(terminal: impl AsFd) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    let lines = if size.ws_row == 0 { 24 } else { size.ws_row };
    (size.ws_col > 0).then(|| (size.ws_col.into(), lines.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_without_steering_a_terminal() {
        let line = json_line(&"a\u{9b}\u{7f}\u{202e}\x1b\n\"ä").unwrap();
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line, "\"a\\u009b\\u007f\\u202e\\u001b\\n\\\"ä\"\n");
        assert_eq!(json_line(&"\x7f").unwrap(), b"\"\\u007f\"\n");
        let back: String = serde_json::from_str(&line).unwrap();
        assert_eq!(back, "a\u{9b}\u{7f}\u{202e}\x1b\n\"ä");
    }
}
