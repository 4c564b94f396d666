//! Talking to people on stderr and giving data on stdout. The only place that prints.

mod browser;
mod colour;
mod pager;
mod table;
mod time;

use std::io::{self, IsTerminal, Write};

pub(crate) use browser::browse;
pub(crate) use colour::{Palette, Shade};
pub(crate) use pager::page;
pub(crate) use table::{Cell, Column, Table};
pub(crate) use time::{ago, count, moment, size};

use crate::signals;

/// Says something to the person at the terminal: each line begins with `retake: `.
pub(crate) fn say(message: &str) {
    let mut text = String::new();
    for line in message.lines() {
        text.push_str("retake: ");
        text.push_str(&visible(line));
        text.push('\n');
    }
    // A closed stderr means that nobody listens.
    _ = io::stderr().write_all(text.as_bytes());
}

/// An error's text without the number that means nothing to most people.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Writes data to stdout.
pub(crate) fn data(bytes: &[u8]) -> io::Result<()> {
    if signals::stdout_closed() {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Stdout for much data; whoever uses it flushes it.
pub(crate) fn writer() -> impl Write {
    io::BufWriter::with_capacity(64 * 1024, io::stdout().lock())
}

/// Writes one JSON document to stdout: indented for people, on one line for programs.
pub(crate) fn document(value: &impl serde::Serialize) -> io::Result<()> {
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
pub(crate) fn json_line(value: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(harmless_json(text))
}

/// JSON need not escape all that can steer a terminal. Such characters stand only in strings, where
/// an escape means the same.
fn harmless_json(text: Vec<u8>) -> Vec<u8> {
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

/// Text with control characters made visible, so that what a run printed cannot steer a terminal.
pub(crate) fn visible(text: &str) -> std::borrow::Cow<'_, str> {
    let harmless = |c: char| !steers(c) || c == '\t';
    if text.chars().all(harmless) {
        return text.into();
    }
    text.chars()
        .map(|c| if harmless(c) { c.to_string() } else { c.escape_default().to_string() })
        .collect::<String>()
        .into()
}

/// Whether a character does something to a terminal instead of appearing on it: controls, line
/// separators, and those that turn the direction of writing so that text reads as another.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Many lines with control characters made visible in each.
pub(crate) fn visible_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", visible(line))).collect()
}

/// How many columns stdout has; `None` where nothing limits a line.
pub(crate) fn width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    told.filter(|columns| *columns > 0).or_else(|| Some(window(libc::STDOUT_FILENO)?.0))
}

/// How many columns the terminal at stderr has.
pub(crate) fn stderr_width() -> Option<usize> {
    window(libc::STDERR_FILENO).map(|(columns, _)| columns)
}

/// How many lines the terminal at stdout has.
fn height() -> usize {
    window(libc::STDOUT_FILENO).map_or(usize::MAX, |(_, lines)| lines)
}

/// Columns and lines of a terminal; `None` where there is none, or one that has no width. One that
/// was given only a width has the usual height.
fn window(descriptor: i32) -> Option<(usize, usize)> {
    // SAFETY: zero is a valid window size, filled by the query.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(descriptor, libc::TIOCGWINSZ, &raw mut size) == 0).then_some(size)
    }?;
    let lines = if size.ws_row == 0 { 24 } else { size.ws_row };
    (size.ws_col > 0).then(|| (size.ws_col.into(), lines.into()))
}

/// A length of time as people say it.
pub(crate) fn duration(duration: std::time::Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        1_000..60_000 => format!("{:.1}s", duration.as_secs_f64()),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms / 1000 % 60),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn control_characters_are_shown_not_obeyed() {
        assert_eq!(visible("plain ä\ttext"), "plain ä\ttext");
        assert_eq!(visible("a\x1b[31mb\r"), "a\\u{1b}[31mb\\r");
        assert_eq!(visible("a\u{9b}31m\u{202e}b"), "a\\u{9b}31m\\u{202e}b");
    }

    #[test]
    fn json_says_the_same_without_steering_a_terminal() {
        let line = json_line(&"a\u{9b}\u{7f}\u{202e}\x1b\n\"ä").unwrap();
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line, "\"a\\u009b\\u007f\\u202e\\u001b\\n\\\"ä\"\n");
        let back: String = serde_json::from_str(&line).unwrap();
        assert_eq!(back, "a\u{9b}\u{7f}\u{202e}\x1b\n\"ä");
    }

    #[test]
    fn durations_read_naturally() {
        let say = |ms| duration(Duration::from_millis(ms));
        assert_eq!(say(7), "7ms");
        assert_eq!(say(2000), "2s");
        assert_eq!(say(1550), "1.6s");
        assert_eq!(say(61_000), "1m01s");
        assert_eq!(say(3_660_000), "1h01m");
    }
}
