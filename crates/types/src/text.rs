//! Values formatted for people: durations, sizes, times, counts, and text that cannot steer a
//! terminal. Nothing here is parsed back.

use std::borrow::Cow;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

/// A length of time: `7ms`, `1.6s`, `1m01s`, `1h01m`.
pub fn duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        1_000..60_000 => format!("{:.1}s", duration.as_secs_f64()),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms / 1000 % 60),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms / 60_000 % 60),
    }
}

/// An error's text without its number.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => text.trim_end_matches(&format!(" (os error {number})")).to_owned(),
        None => text,
    }
}

/// Text with control characters made visible, so that a run's output cannot steer a terminal.
pub fn visible(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !steers(c) || c == '\t';
    if text.chars().all(harmless) {
        return text.into();
    }
    text.chars()
        .map(|c| if harmless(c) { c.to_string() } else { c.escape_default().to_string() })
        .collect::<String>()
        .into()
}

/// A path as text. If it is not UTF-8, each invalid byte becomes `\xff` and each backslash is
/// doubled, so that different paths stay different.
pub fn path(path: &Path) -> Cow<'_, str> {
    if let Some(text) = path.to_str() {
        return text.into();
    }
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text.into()
}

/// Many lines with control characters made visible in each.
pub fn visible_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", visible(line))).collect()
}

/// Whether a character affects a terminal instead of appearing on it: controls, line separators,
/// and direction overrides that make text read as another.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How long ago something was: `3m ago`.
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs();
    match seconds {
        // After a clock was set back, a run must not come from the future.
        ..1 => "just now".to_owned(),
        1..60 => format!("{seconds}s ago"),
        60..3_600 => format!("{}m ago", seconds / 60),
        3_600..86_400 => format!("{}h ago", seconds / 3_600),
        86_400..5_184_000 => format!("{}d ago", seconds / 86_400),
        _ => moment(then).chars().take(10).collect(),
    }
}

/// In UTC, to the second.
pub fn moment(at: Timestamp) -> String {
    let whole = Timestamp::from_second(at.as_second()).unwrap_or(at);
    whole.to_string()
}

/// A size in bytes, to three digits.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 999.5 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    let digits = if amount < 9.995 { 2 } else { usize::from(amount < 99.95) };
    format!("{amount:.digits$} {}", UNITS[unit])
}

/// `1 run`, `2 runs`, `2 entries`, `30 days`, `2 matches`.
pub fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {}", plural(noun)),
    }
}

/// The regular plural of a noun; of several words, the last one changes.
pub fn plural(noun: &str) -> String {
    let vowel = |stem: &str| stem.ends_with(['a', 'e', 'i', 'o', 'u']);
    match noun.strip_suffix('y') {
        Some(stem) if !vowel(stem) => format!("{stem}ies"),
        _ if noun.ends_with(['s', 'x', 'z']) || noun.ends_with("ch") || noun.ends_with("sh") => {
            format!("{noun}es")
        }
        _ => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded_down_to_one_unit() {
        let now: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        let say = |then: &str| ago(then.parse().unwrap(), now);
        assert_eq!(say("2026-05-01T12:00:30Z"), "just now");
        assert_eq!(say("2026-05-01T11:59:59Z"), "1s ago");
        assert_eq!(say("2026-05-01T11:56:01Z"), "3m ago");
        assert_eq!(say("2026-04-30T13:00:00Z"), "23h ago");
        assert_eq!(say("2026-04-29T12:00:00Z"), "2d ago");
        assert_eq!(say("2025-04-29T12:00:00Z"), "2025-04-29");
    }

    #[test]
    fn control_characters_are_shown_not_obeyed() {
        assert_eq!(visible("plain ä\ttext"), "plain ä\ttext");
        assert_eq!(visible("a\x1b[31mb\r"), "a\\u{1b}[31mb\\r");
        assert_eq!(visible("a\u{9b}31m\u{202e}b"), "a\\u{9b}31m\\u{202e}b");
    }

    #[test]
    fn an_error_has_no_number() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(plain(&error), "No such file or directory");
        assert_eq!(plain(&io::Error::other("x (os error 2)")), "x (os error 2)");
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

    #[test]
    fn nouns_follow_their_number() {
        assert_eq!(count(1, "entry"), "1 entry");
        assert_eq!(count(0, "entry"), "0 entries");
        assert_eq!(count(2, "run"), "2 runs");
        assert_eq!(count(30, "day"), "30 days");
        assert_eq!(count(2, "match"), "2 matches");
        assert_eq!(count(3, "process"), "3 processes");
        assert_eq!(count(1, "match"), "1 match");
        assert_eq!(count(2, "failing state"), "2 failing states");
    }

    #[test]
    fn paths_that_are_no_text_stay_different() {
        use std::ffi::OsStr;
        let text = |bytes: &[u8]| path(Path::new(OsStr::from_bytes(bytes))).into_owned();
        assert_eq!(text(b"a/\xc3\xa4\\b"), "a/\u{e4}\\b");
        assert_eq!(text(b"x\xff"), "x\\xff");
        assert_eq!(text(b"x\xfe\\"), "x\\xfe\\\\");
        assert_ne!(text(b"x\\xff\xfe"), text(b"x\xff\xfe"));
    }

    #[test]
    fn sizes_have_three_digits() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.50 KiB");
        assert_eq!(size(64 << 20), "64.0 MiB");
        assert_eq!(size(200 << 30), "200 GiB");
        assert_eq!(size(1023 << 20), "1.00 GiB");
    }
}
