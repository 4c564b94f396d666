//! Finds a text in the output of a run as it is shown: escape sequences may stand between any two
//! letters.

use std::io::{self, Read, Seek};

use regex::bytes::{Match, Regex, RegexBuilder};
use retake_store::Store;
use retake_types::RunId;
use serde::Serialize;

use crate::error::RequestError;
use crate::output_window::{OutputSource, read};

/// Bytes that one search reads.
const MAX_SCANNED: u64 = 64 << 20;
const BLOCK: usize = 1 << 20;
const MAX_NEEDLE: usize = 200;
/// A match may continue in the next block, with this much between its letters.
const MAX_BETWEEN: usize = 4096;
/// Bytes before a match in which earlier matches are counted.
const MAX_BEFORE: u64 = 256 << 10;
/// Escape sequences: those with parameters, strings for the terminal, and short ones.
const ESCAPE: &str =
    r"(?:\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~]))";

/// Where a text was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SearchResult {
    /// Where it begins and ends; `None` where it is not in the part that was searched.
    pub(crate) found: Option<[u64; 2]>,
    /// The end of the part that was searched; the next search begins here.
    pub(crate) looked_to: u64,
    pub(crate) length: u64,
    /// How often it occurs between `since` and here; `None` unless asked for.
    pub(crate) before: Option<usize>,
}

/// What to search for.
#[derive(Clone, Debug)]
pub(crate) struct TextSearch {
    pub(crate) text: String,
    /// The first occurrence at or after this offset.
    pub(crate) from: u64,
    /// Occurrences between this offset and the first are counted.
    pub(crate) since: Option<u64>,
}

/// The first occurrence of a text; ASCII letters match in both cases.
pub(crate) fn find_text(
    store: &Store,
    id: RunId,
    source: OutputSource,
    search: &TextSearch,
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

/// A text as it is, and with escape sequences in it.
struct Needle {
    plain: Regex,
    coloured: Regex,
}

impl Needle {
    fn of(text: &str) -> Result<Self, RequestError> {
        if text.is_empty() || text.len() > MAX_NEEDLE {
            return Err(RequestError::bad_request(format!(
                "the text to find has 1 to {MAX_NEEDLE} bytes"
            )));
        }
        let ascii = text.is_ascii();
        let build = |pattern: &str| {
            RegexBuilder::new(pattern)
                // Without the Unicode tables only ASCII letters have two cases.
                .case_insensitive(ascii)
                .unicode(!ascii)
                .build()
                .map_err(|_| RequestError::bad_request("this text cannot be searched for"))
        };
        let letters: Vec<String> =
            text.chars().map(|letter| regex::escape(letter.encode_utf8(&mut [0; 4]))).collect();
        let letters = letters.join(&format!("{ESCAPE}*"));
        Ok(Self {
            plain: build(&regex::escape(text))?,
            // An escape sequence matches as a whole, so its letters are not part of a match.
            coloured: build(&format!("{ESCAPE}|{letters}"))?,
        })
    }

    /// All occurrences. Most output has no escape sequences, and is searched faster without.
    fn all<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = Match<'a>> {
        let needle = if bytes.contains(&0x1b) { &self.coloured } else { &self.plain };
        needle.find_iter(bytes).filter(|found| !found.as_bytes().starts_with(b"\x1b"))
    }
}

fn find_in(
    id: RunId,
    output: &mut (impl Read + Seek),
    length: u64,
    search: &TextSearch,
) -> Result<SearchResult, RequestError> {
    let needle = Needle::of(&search.text)?;
    let lost = |error: io::Error| RequestError::from(retake_store::Error::reading(id, error));
    let mut at = search.from.min(length);
    let limit = at.saturating_add(MAX_SCANNED).min(length);
    while at < limit {
        let end = at.saturating_add(BLOCK as u64).min(length);
        let bytes = read(output, &(at..end)).map_err(lost)?;
        if let Some(found) = needle.all(&bytes).next() {
            let found = [at + found.start() as u64, at + found.end() as u64];
            let since = search.since.map(|since| since.max(found[1].saturating_sub(MAX_BEFORE)));
            let before = match since {
                Some(since) if since < found[0] => {
                    let bytes = read(output, &(since..found[1])).map_err(lost)?;
                    let before =
                        needle.all(&bytes).filter(|one| since + (one.start() as u64) < found[0]);
                    Some(before.count())
                }
                Some(_) => Some(0),
                None => None,
            };
            return Ok(SearchResult { found: Some(found), looked_to: found[1], length, before });
        }
        if end == length {
            return Ok(SearchResult { found: None, looked_to: length, length, before: None });
        }
        at = end - (search.text.len() + MAX_BETWEEN) as u64;
    }
    Ok(SearchResult { found: None, looked_to: at, length, before: None })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn ask(output: &[u8], text: &str, from: u64, since: Option<u64>) -> SearchResult {
        let search = TextSearch { text: text.to_owned(), from, since };
        find_in(RunId::new(), &mut Cursor::new(output), output.len() as u64, &search).unwrap()
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
        let empty = TextSearch { text: String::new(), from: 0, since: None };
        assert!(find_in(RunId::new(), &mut Cursor::new(&text), length, &empty).is_err());
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
