//! Lines of pytest's output: each function reads one kind of line, or a part of one.

use retake_types::TestStatus;

use crate::test_results::framework_results::TestCounts;
use crate::test_results::token_parsing::{
    duration, find, number, parts, split, split_last, thousandths,
};

pub(super) fn status(word: &[u8]) -> Option<TestStatus> {
    match word {
        b"PASSED" | b"XPASS" => Some(TestStatus::Passed),
        b"FAILED" => Some(TestStatus::Failed),
        b"ERROR" => Some(TestStatus::Error),
        b"SKIPPED" | b"XFAIL" => Some(TestStatus::Skipped),
        _ => None,
    }
}

/// `PASSED`, `FAILED [ 50%]`, `SKIPPED (why)   1.2ms`: the rest of an interrupted row.
pub(super) fn lone_status(text: &[u8]) -> Option<(TestStatus, Option<u64>)> {
    let (row, time) = without_progress(text);
    let (word, note) = split(row, b" ").unwrap_or((row, b""));
    let note = note.trim_ascii();
    let status = status(word).filter(|_| note.is_empty() || note.starts_with(b"("))?;
    Some((status, time))
}

/// A row without its final `[ 25%]`, `[1/4]` or `12.3ms`, and the last of these.
pub(super) fn without_progress(text: &[u8]) -> (&[u8], Option<u64>) {
    if let Some((row, progress)) = split_last(text, b" [")
        && progress.ends_with(b"]")
        && number(progress.trim_ascii_start()).is_some()
    {
        return (row.trim_ascii_end(), None);
    }
    match split_last(text, b"  ") {
        Some((row, time)) if duration(time).is_some() => (row.trim_ascii_end(), duration(time)),
        _ => (text, None),
    }
}

/// The status after output without a newline.
pub(super) fn ending_status(text: &[u8]) -> Option<TestStatus> {
    let words = [&b"PASSED"[..], b"FAILED", b"ERROR", b"SKIPPED", b"XFAIL", b"XPASS"];
    words.iter().find(|word| text.ends_with(word)).and_then(|word| status(word))
}

/// `file.py::name[a b]` at the beginning of a row, and the rest.
pub(super) fn node_id(text: &[u8]) -> (&[u8], &[u8]) {
    let mut depth = 0usize;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            b' ' if depth == 0 => return (&text[..at], &text[at + 1..]),
            _ => {}
        }
    }
    (text, b"")
}

pub(super) fn outcomes(letters: &[u8]) -> Option<TestCounts> {
    let mut tally = TestCounts::default();
    for letter in letters {
        match letter {
            b'.' | b'X' => tally.passed += 1,
            b'F' | b'E' => tally.failed += 1,
            b's' | b'x' => tally.skipped += 1,
            b'R' => {}
            _ => return None,
        }
    }
    Some(tally)
}

/// `=== title ===`
pub(super) fn between_bars(text: &[u8], bar: u8) -> Option<&[u8]> {
    let left = text.iter().take_while(|byte| **byte == bar).count();
    let right = text.iter().rev().take_while(|byte| **byte == bar).count();
    if left == 0 || right == 0 || left + right + 3 > text.len() {
        return None;
    }
    text[left..text.len() - right].strip_prefix(b" ")?.strip_suffix(b" ")
}

/// `13 items / 1 error / 1 deselected / 12 selected`
pub(super) fn collected(text: &[u8]) -> Option<u64> {
    let mut items = None;
    for part in parts(text, b'/') {
        let (count, what) = number(part)?;
        match what {
            b" items" | b" item" => items = items.or(Some(count)),
            b" selected" => items = Some(count),
            _ => {}
        }
    }
    items
}

/// `2 failed, 7 passed, 1 error in 0.06s (0:02:05)`, up to the end.
pub(super) fn summary(text: &[u8]) -> Option<TestCounts> {
    if !text.starts_with(b"no tests ran") {
        let (_, rest) = number(text)?;
        rest.strip_prefix(b" ").filter(|rest| rest.first().is_some_and(u8::is_ascii_lowercase))?;
    }
    let (counts, time) = split_last(text, b" in ")?;
    let time = time.strip_suffix(b")").and_then(|t| split(t, b" (")).map_or(time, |(t, _)| t);
    if duration(time).is_none() && thousandths(time).is_none_or(|(_, rest)| rest != b" seconds") {
        return None;
    }
    let mut tally = TestCounts::default();
    if counts == b"no tests ran" {
        return Some(tally);
    }
    for part in parts(counts, b',') {
        let (count, what) = number(part)?;
        match what {
            b" passed" | b" xpassed" => tally.passed += count,
            b" failed" | b" error" | b" errors" => tally.failed += count,
            b" skipped" | b" xfailed" => tally.skipped += count,
            b" deselected" | b" warning" | b" warnings" | b" rerun" | b" subtests passed"
            | b" subtests failed" | b" subtests skipped" => {}
            _ => return None,
        }
    }
    Some(tally)
}

/// Splits `file.py::name[a - b] - why` at the beginning of the reason.
pub(super) fn before_reason(text: &[u8]) -> (&[u8], &[u8]) {
    let last_shut = memchr::memrchr(b']', text);
    let mut depth = 0usize;
    let mut from = 0;
    while let Some(at) = find(&text[from..], b" - ") {
        let at = from + at;
        for byte in &text[from..at] {
            match byte {
                b'[' => depth += 1,
                b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        if depth == 0 || last_shut.is_none_or(|shut| shut < at) {
            return (&text[..at], &text[at + 3..]);
        }
        from = at + 3;
    }
    (text, b"")
}

/// A section's title without the phase that failed.
pub(super) fn bare_title(title: &[u8]) -> &[u8] {
    [&b"ERROR at setup of "[..], b"ERROR at teardown of ", b"ERROR collecting "]
        .iter()
        .find_map(|prefix| title.strip_prefix(*prefix))
        .unwrap_or(title)
}

/// A test's name in the failure sections: `Class.name` for `file.py::Class::name`.
pub(super) fn title_of(name: &[u8]) -> Vec<u8> {
    let Some((_, inner)) = split(name, b"::") else { return name.to_vec() };
    let (path, parameters) = match memchr::memchr(b'[', inner) {
        Some(at) => inner.split_at(at),
        None => (inner, &b""[..]),
    };
    let mut title = Vec::with_capacity(inner.len());
    let mut rest = path;
    while let Some((part, after)) = split(rest, b"::") {
        title.extend_from_slice(part);
        title.push(b'.');
        rest = after;
    }
    title.extend_from_slice(rest);
    title.extend_from_slice(parameters);
    title
}
