//! Finds a text in the output of a run as displayed: escape sequences may occur between any two
//! letters. Finds lines that report an error in the same way.

use std::io::{self, Read, Seek};
use std::ops::{ControlFlow, Range};
use std::sync::LazyLock;

use regex::bytes::{Regex, RegexBuilder};
use retake_runner::error_lines::{self, ErrorKind, REPORTED};
use retake_types::RunId;
use serde::Serialize;

use crate::ansi::{self, Span, Style};
use crate::error::RequestError;
use crate::output_source::OutputSource;
use crate::output_window::read;
use crate::store_pool::Store;

/// Bytes that one search reads.
const MAX_SCANNED: u64 = 64 << 20;
const BLOCK: usize = 1 << 20;
const MAX_NEEDLE: usize = 200;
/// A match may continue in the next block, with this much between its letters.
const MAX_BETWEEN: usize = 4096;
/// An error in a longer line may be missed at the edge of a block.
const MAX_LINE: usize = 64 << 10;
/// Bytes before a match in which earlier matches are counted.
const MAX_BEFORE: u64 = 256 << 10;
/// Escape sequences: those with parameters, strings for the terminal, and short ones.
const ESCAPE: &str =
    r"(?:\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~]))";

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SearchResult {
    /// The range of the match; `None` if the searched part has none.
    pub(crate) found: Option<[u64; 2]>,
    /// The end of the searched part (its beginning, in a backward search); the next search
    /// continues here.
    pub(crate) looked_to: u64,
    pub(crate) length: u64,
    /// The number of matches between `since` and this one; `None` unless requested.
    pub(crate) before: Option<usize>,
}

/// The number of matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MatchCount {
    pub(crate) matches: u64,
    /// The end of the searched part; the next count continues here.
    pub(crate) looked_to: u64,
    pub(crate) length: u64,
}

/// What to search for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// ASCII letters match in both cases.
    Text(String),
    /// Lines in which a tool reports an error.
    Errors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The first match at or after the offset.
    Forwards,
    /// The last match that begins before the offset.
    Backwards,
}

/// What to search for, and where.
#[derive(Clone, Debug)]
pub(crate) struct OutputSearch {
    pub(crate) wanted: Wanted,
    pub(crate) from: u64,
    pub(crate) direction: Direction,
    /// Matches between this offset and the found one are counted.
    pub(crate) since: Option<u64>,
}

/// Finds one match.
pub(crate) fn find(
    store: &Store,
    id: RunId,
    source: OutputSource,
    search: &OutputSearch,
) -> Result<SearchResult, RequestError> {
    match source {
        OutputSource::One(stream) => {
            let mut output = store.read_output(id, stream)?;
            let length = output.length();
            find_in(id, &mut output, length, search)
        }
        OutputSource::Interleaved => {
            let mut output = store.read_interleaved(id)?;
            let length = output.length();
            find_in(id, &mut output, length, search)
        }
    }
}

/// Counts the matches that begin in a range, as far as one search reads.
pub(crate) fn count(
    store: &Store,
    id: RunId,
    source: OutputSource,
    (wanted, range): (&Wanted, Range<u64>),
) -> Result<MatchCount, RequestError> {
    match source {
        OutputSource::One(stream) => {
            let mut output = store.read_output(id, stream)?;
            let length = output.length();
            count_in(id, &mut output, length, (wanted, range))
        }
        OutputSource::Interleaved => {
            let mut output = store.read_interleaved(id)?;
            let length = output.length();
            count_in(id, &mut output, length, (wanted, range))
        }
    }
}

/// A pattern for the text, as it is and with escape sequences in it.
enum Needle {
    Text { plain: Regex, coloured: Regex, length: usize },
    Errors,
}

/// How tools report errors, for many lines at once.
static ERRORS: LazyLock<Regex> = LazyLock::new(|| {
    let mut pattern = RegexBuilder::new(REPORTED);
    pattern.multi_line(true).build().expect("a valid pattern")
});

impl Needle {
    fn of(wanted: &Wanted) -> Result<Self, RequestError> {
        match wanted {
            Wanted::Text(text) => Self::text(text),
            Wanted::Errors => Ok(Self::Errors),
        }
    }

    fn text(text: &str) -> Result<Self, RequestError> {
        if text.is_empty() || text.len() > MAX_NEEDLE {
            return Err(RequestError::bad_request(format!(
                "the text to find has 1 to {MAX_NEEDLE} bytes"
            )));
        }
        let ascii = text.is_ascii();
        let build = |pattern: &str| {
            RegexBuilder::new(pattern)
                // Without Unicode tables only ASCII letters are matched in both cases.
                .case_insensitive(ascii)
                .unicode(!ascii)
                .build()
                .map_err(|_| RequestError::bad_request("this text cannot be used in a search"))
        };
        let letters: Vec<String> =
            text.chars().map(|letter| regex::escape(letter.encode_utf8(&mut [0; 4]))).collect();
        let letters = letters.join(&format!("{ESCAPE}*"));
        Ok(Self::Text {
            plain: build(&regex::escape(text))?,
            // An escape sequence matches as a whole, so its letters are not part of a match.
            coloured: build(&format!("{ESCAPE}|{letters}"))?,
            length: text.len(),
        })
    }

    /// Maximum length of a match: one that begins in a block may end in the next.
    fn reach(&self) -> u64 {
        match self {
            Self::Text { length, .. } => (length + MAX_BETWEEN) as u64,
            Self::Errors => MAX_LINE as u64,
        }
    }

    /// All matches in a block, in order. Most output has no escape sequences, which is faster to search.
    fn all(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        match self {
            Self::Text { plain, coloured, .. } => {
                let needle = if bytes.contains(&0x1b) { coloured } else { plain };
                let found = needle.find_iter(bytes);
                let found = found.filter(|found| !found.as_bytes().starts_with(b"\x1b"));
                found.map(|found| found.range()).collect()
            }
            Self::Errors => errors(bytes),
        }
    }
}

/// The lines of a block that report an error, without their line feeds.
fn errors(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        // Lines up to the next escape sequence are searched together.
        let escape = bytes[at..].iter().position(|byte| *byte == 0x1b).map(|escape| at + escape);
        let line = escape.map_or(bytes.len(), |escape| {
            bytes[at..escape]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(at, |feed| at + feed + 1)
        });
        let mut last = None;
        for hit in ERRORS.find_iter(&bytes[at..line]) {
            let range = line_around(&bytes[at..line], hit.start());
            if last != Some(range.start) {
                last = Some(range.start);
                found.push(at + range.start..at + range.end);
            }
        }
        if line == bytes.len() {
            break;
        }
        let range = line_around(bytes, line);
        let spans = ansi::spans(&bytes[range.clone()], &mut Style::default());
        let text: String = spans.into_iter().map(|Span(_, text)| text).collect();
        if error_lines::kind(&text) == Some(ErrorKind::Reported) {
            found.push(range.clone());
        }
        at = range.end + 1;
    }
    found
}

/// The line around a position, without its line feed.
fn line_around(bytes: &[u8], at: usize) -> Range<usize> {
    let start = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |feed| feed + 1);
    let end =
        bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| at + end);
    start..end
}

/// Calls `found` for every match that begins in a range, in order and once. Returns how far it searched.
fn scan(
    output: &mut (impl Read + Seek),
    (length, range): (u64, Range<u64>),
    needle: &Needle,
    take: &mut dyn FnMut([u64; 2]) -> ControlFlow<()>,
) -> io::Result<u64> {
    let mut at = range.start.min(length);
    let limit = range.end.min(length).min(at.saturating_add(MAX_SCANNED));
    let by_lines = matches!(needle, Needle::Errors);
    if by_lines {
        at = next_line(output, at, length)?;
    }
    while at < limit {
        let end = at.saturating_add(BLOCK as u64).min(length);
        let bytes = read(output, &(at..end))?;
        // A match near the end of a block may continue after it: it is searched with the next block.
        let sure = match bytes.iter().rposition(|byte| *byte == b'\n') {
            _ if end == length => length,
            Some(feed) if by_lines => at + feed as u64 + 1,
            _ => end - needle.reach(),
        };
        let mut next = sure;
        for found in needle.all(&bytes) {
            let found = [at + found.start as u64, at + found.end as u64];
            if found[0] >= sure.min(limit) {
                break;
            }
            next = next.max(found[1]);
            if take(found).is_break() {
                return Ok(found[1]);
            }
        }
        at = next.min(length);
    }
    Ok(at.max(limit.min(length)))
}

/// The beginning of the first line at or after an offset: a partial line may look like an error.
fn next_line(output: &mut (impl Read + Seek), at: u64, length: u64) -> io::Result<u64> {
    if at == 0 {
        return Ok(0);
    }
    let bytes = read(output, &(at - 1..at.saturating_add(MAX_LINE as u64).min(length)))?;
    let feed = bytes.iter().position(|byte| *byte == b'\n');
    Ok(feed.map_or(at, |feed| at + feed as u64))
}

fn find_in(
    id: RunId,
    output: &mut (impl Read + Seek),
    length: u64,
    search: &OutputSearch,
) -> Result<SearchResult, RequestError> {
    let needle = Needle::of(&search.wanted)?;
    let lost = |error: io::Error| RequestError::from(retake_store::Error::reading(id, error));
    let mut found = None;
    let looked_to = match search.direction {
        Direction::Forwards => {
            let range = search.from..length;
            scan(output, (length, range), &needle, &mut |first| {
                found = Some(first);
                ControlFlow::Break(())
            })
        }
        Direction::Backwards => backwards(output, (length, search.from), &needle, &mut found),
    };
    let looked_to = looked_to.map_err(lost)?;
    let mut before = None;
    if let (Some(found), Some(since)) = (found, search.since) {
        let since = since.max(found[1].saturating_sub(MAX_BEFORE));
        let mut count = 0;
        scan(output, (length, since..found[0]), &needle, &mut |_| {
            count += 1;
            ControlFlow::Continue(())
        })
        .map_err(lost)?;
        before = Some(count);
    }
    Ok(SearchResult { found, looked_to, length, before })
}

/// The last match that begins before an offset. Also returns the beginning of the searched part.
fn backwards(
    output: &mut (impl Read + Seek),
    (length, from): (u64, u64),
    needle: &Needle,
    found: &mut Option<[u64; 2]>,
) -> io::Result<u64> {
    let mut end = from.min(length);
    let limit = end.saturating_sub(MAX_SCANNED);
    while end > limit && found.is_none() {
        let start = end.saturating_sub(BLOCK as u64).max(limit);
        scan(output, (length, start..end), needle, &mut |one| {
            *found = Some(one);
            ControlFlow::Continue(())
        })?;
        end = start;
    }
    Ok(found.map_or(end, |found| found[0]))
}

fn count_in(
    id: RunId,
    output: &mut (impl Read + Seek),
    length: u64,
    (wanted, range): (&Wanted, Range<u64>),
) -> Result<MatchCount, RequestError> {
    let needle = Needle::of(wanted)?;
    let lost = |error: io::Error| RequestError::from(retake_store::Error::reading(id, error));
    let mut matches = 0;
    let looked_to = scan(output, (length, range), &needle, &mut |_| {
        matches += 1;
        ControlFlow::Continue(())
    })
    .map_err(lost)?;
    Ok(MatchCount { matches, looked_to, length })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn ask(output: &[u8], text: &str, from: u64, since: Option<u64>) -> SearchResult {
        let wanted = Wanted::Text(text.to_owned());
        search(output, OutputSearch { wanted, from, direction: Direction::Forwards, since })
    }

    fn search(output: &[u8], search: OutputSearch) -> SearchResult {
        find_in(RunId::new(), &mut Cursor::new(output), output.len() as u64, &search).unwrap()
    }

    fn back(output: &[u8], wanted: &Wanted, from: u64) -> SearchResult {
        let (wanted, direction) = (wanted.clone(), Direction::Backwards);
        search(output, OutputSearch { wanted, from, direction, since: None })
    }

    fn count(output: &[u8], wanted: &Wanted, range: Range<u64>) -> MatchCount {
        let length = output.len() as u64;
        count_in(RunId::new(), &mut Cursor::new(output), length, (wanted, range)).unwrap()
    }

    #[test]
    fn every_occurrence_is_counted_once_and_found_from_both_sides() {
        let mut text: Vec<u8> = Vec::new();
        let mut places = Vec::new();
        for n in 0..40_000 {
            // Also across the edges of blocks, and with escape sequences inside.
            if n % 7 == 0 {
                places.push(text.len() as u64);
                text.extend(if n % 14 == 0 { &b"Needle"[..] } else { b"nee\x1b[1mdle" });
            }
            text.extend(
                format!(" filler number {n} of the haystack, which is not what is sought\n")
                    .as_bytes(),
            );
        }
        assert!(text.len() > 2 * BLOCK);
        let (length, wanted) = (text.len() as u64, Wanted::Text("needle".to_owned()));
        let all = count(&text, &wanted, 0..length);
        assert_eq!((all.matches, all.looked_to), (places.len() as u64, length));
        for at in [1, 2000, places.len() - 1] {
            let before = count(&text, &wanted, 0..places[at]);
            assert_eq!(before.matches, at as u64);
            let found = back(&text, &wanted, places[at]).found.unwrap();
            assert_eq!(found[0], places[at - 1]);
            let next = ask(&text, "needle", places[at - 1] + 1, None).found.unwrap();
            assert_eq!(next[0], places[at]);
        }
        assert_eq!(back(&text, &wanted, 0).found, None);
        assert_eq!(count(&text, &wanted, length..length).matches, 0);
    }

    #[test]
    fn lines_that_report_an_error_are_found_whatever_colours_they_have() {
        let text = b"fine\n\x1b[1;31merror\x1b[0m: one\n0 errors\nerror: two\nE  x\n\x1b[2mplain\x1b[0m\nlast: error: no\n";
        let mut found = Vec::new();
        let mut from = 0;
        let errors =
            |from, direction| OutputSearch { wanted: Wanted::Errors, from, direction, since: None };
        while let Some([start, end]) = search(text, errors(from, Direction::Forwards)).found {
            found.push(String::from_utf8_lossy(&text[start as usize..end as usize]).into_owned());
            from = end;
        }
        assert_eq!(found, ["\u{1b}[1;31merror\u{1b}[0m: one", "error: two", "E  x"]);
        let all = count(text, &Wanted::Errors, 0..text.len() as u64);
        assert_eq!(all.matches, 3);
        let last = search(text, errors(text.len() as u64, Direction::Backwards)).found.unwrap();
        assert!(text[last[0] as usize..].starts_with(b"E  x\n"));
        let first = search(text, errors(last[0], Direction::Backwards)).found.unwrap();
        assert!(text[first[0] as usize..].starts_with(b"error: two"));
    }

    #[test]
    fn a_text_is_found_across_blocks_in_any_case() {
        let mut text = vec![b'x'; BLOCK - 3];
        text.extend(b"NeeDle and needle");
        let length = text.len() as u64;
        let first = ask(&text, "needle", 0, None);
        let at = BLOCK as u64 - 3;
        assert_eq!(first.found, Some([at, at + 6]));
        let next = ask(&text, "needle", first.looked_to, Some(0));
        assert_eq!((next.found, next.before), (Some([at + 11, at + 17]), Some(1)));
        assert_eq!(ask(&text, "needle", 0, Some(at)).before, Some(0));
        let none = ask(&text, "(", next.looked_to, None);
        assert_eq!((none.found, none.looked_to), (None, length));
        let empty = Wanted::Text(String::new());
        assert!(count_in(RunId::new(), &mut Cursor::new(&text), length, (&empty, 0..1)).is_err());
    }

    #[test]
    fn a_text_is_found_as_it_is_shown_whatever_colours_it_has() {
        for shown in [
            "\u{1b}[1;32mserver\u{1b}[0m ready",
            "\u{1b}[32mserver \u{1b}[0m\u{1b}[1mre\u{1b}[22mady",
            "server\u{1b}]8;;http://x\u{1b}\\ \u{1b}]8;;\u{7}ready",
            "SERVER \u{1b}(Bready",
            "server\u{1b}[38;5;196m ready",
        ] {
            let found = ask(shown.as_bytes(), "server ready", 0, None).found;
            assert!(found.is_some(), "{shown:?}");
        }
        assert_eq!(ask(b"\x1b[31mse\x1b[0m rver ready", "server ready", 0, None).found, None);
        // The letters of an escape sequence are not part of a match.
        assert_eq!(ask(b"\x1b[31mred", "31m", 0, None).found, None);
    }
}
