//! Full-text search over output, newest first, with the place of each match.
//!
//! The index holds both ends of each stream. What it does not hold (output not indexed yet, the
//! middle of large output) is scanned, up to a limit, and what was not looked at is reported.

use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use retake_types::{Run, RunId, Stream};

use crate::read::output::run_and_stream;
use crate::read::runs::{RunFilter, Sieve};
use crate::read::search_index::{WINDOW, plain, text_of};
use crate::{Error, Result, Store};

/// Bytes of context on either side of a match.
const CONTEXT: usize = 60;
const BLOCK: usize = 1024 * 1024;
/// Places that have the words are asked about in batches.
const BATCH: usize = 250;

#[derive(Clone, Debug)]
pub struct SearchHit {
    pub run: Run,
    pub stream: Stream,
    /// Text around the first match, on one line where the output has lines.
    pub snippet: String,
    /// Where the matches are in the snippet, in bytes.
    pub matches: Vec<Range<usize>>,
}

#[derive(Clone, Debug, Default)]
pub struct SearchResults {
    pub hits: Vec<SearchHit>,
    /// Bytes of output that are not indexed and were not looked at.
    pub skipped_bytes: u64,
    /// There are older hits than those returned.
    pub more: bool,
    /// Where they begin: for `search_from`.
    pub next: Option<u64>,
    /// Too many outputs have the words and do not pass the filter: the search ended before the page
    /// was full, and continues at `next`.
    pub cut_short: bool,
    /// Outputs that may have the words and are not what was recorded: nothing of them is shown.
    pub damaged: Vec<(RunId, Stream)>,
}

impl SearchResults {
    /// A damaged output is noted; it must not hide what other runs have.
    fn unless_damaged<T>(
        &mut self,
        output: (RunId, Stream),
        found: Result<Option<T>>,
    ) -> Result<Option<T>> {
        match found {
            Err(Error::OutputDamaged { .. } | Error::Reading { .. } | Error::BadEntry { .. }) => {
                if !self.damaged.contains(&output) {
                    self.damaged.push(output);
                }
                Ok(None)
            }
            // Erased since it was found.
            Err(Error::NotFound { .. }) => Ok(None),
            found => found,
        }
    }
}

/// How much is done for one page of hits.
#[derive(Clone, Copy, Debug)]
pub struct SearchEffort {
    /// Bytes of what is not indexed that are read.
    pub scanned_bytes: u64,
    /// Outputs with the words that are held against the filter.
    pub sifted: usize,
}

/// What to look for: words in this order, whole, in any case; a `*` at the end completes the last.
#[derive(Clone, Debug)]
struct Phrase {
    words: Vec<String>,
    prefix: bool,
}

impl Phrase {
    fn parse(text: &str) -> Self {
        let words = tokens(text).map(|(_, word)| word).collect();
        Self { words, prefix: text.trim_end().ends_with('*') }
    }

    fn query(&self) -> String {
        let star = if self.prefix { " *" } else { "" };
        format!("\"{}\"{star}", self.words.join(" "))
    }

    /// Where the phrase occurs in a text.
    fn find(&self, text: &str) -> Vec<Range<usize>> {
        let last = self.words.len() - 1;
        let mut window: Vec<(Range<usize>, String)> = Vec::new();
        let mut found = Vec::new();
        for token in tokens(text) {
            window.push(token);
            if window.len() > self.words.len() {
                window.remove(0);
            }
            let same = window.len() == self.words.len()
                && window.iter().zip(&self.words).enumerate().all(|(index, ((_, a), b))| {
                    if index == last && self.prefix { a.starts_with(b.as_str()) } else { a == b }
                });
            if same {
                found.push(window[0].0.start..window[last].0.end);
            }
        }
        found
    }
}

/// Words as the index sees them: runs of letters and digits, folded.
fn tokens(text: &str) -> impl Iterator<Item = (Range<usize>, String)> + '_ {
    let mut rest = text.char_indices().peekable();
    std::iter::from_fn(move || {
        while rest.next_if(|(_, letter)| !letter.is_alphanumeric()).is_some() {}
        let &(start, _) = rest.peek()?;
        let (mut end, mut word) = (start, String::new());
        while let Some((at, letter)) = rest.next_if(|(_, letter)| letter.is_alphanumeric()) {
            end = at + letter.len_utf8();
            word.extend(letter.to_lowercase());
        }
        Some((start..end, word))
    })
}

impl Store {
    /// Runs whose output has the words of `text`, newest first. At most `scan_bytes` of what is
    /// not indexed are read.
    pub fn search(&self, text: &str, limit: usize, scan_bytes: u64) -> Result<SearchResults> {
        let effort = SearchEffort { scanned_bytes: scan_bytes, sifted: usize::MAX };
        self.search_from(text, &RunFilter::default(), None, limit, effort)
    }

    /// Like `search`, among the runs that a filter lets through, from where an earlier one ended.
    pub fn search_from(
        &self,
        text: &str,
        filter: &RunFilter,
        from: Option<u64>,
        limit: usize,
        effort: SearchEffort,
    ) -> Result<SearchResults> {
        let newest =
            from.map_or(i64::MAX, |output_key| i64::try_from(output_key).unwrap_or(i64::MAX));
        let phrase = Phrase::parse(text);
        if phrase.words.is_empty() || limit == 0 {
            return Ok(SearchResults::default());
        }
        let sieve = Sieve::new(self, filter)?;
        let mut found = SearchResults::default();
        let (mut places, unlooked) =
            self.indexed(&phrase, &sieve, newest, (limit + 1, effort.sifted))?;
        let scanned = effort.scanned_bytes;
        places.extend(self.scan(&phrase, &sieve, newest, scanned, &mut found)?);
        places.sort_unstable_by(|a, b| b.cmp(a));
        places.dedup();
        // What lies beyond is met again from there, in its order.
        places.retain(|output_key| unlooked.is_none_or(|unlooked| *output_key > unlooked));
        found.more = places.len() > limit || unlooked.is_some();
        found.next = places.get(limit).copied().or(unlooked).map(i64::unsigned_abs);
        found.cut_short = unlooked.is_some() && places.len() <= limit;
        for output_key in places.into_iter().take(limit) {
            let Some(at) = self.run_at(output_key)? else { continue };
            let hit = found.unless_damaged(at, self.hit(&phrase, at).map(Some))?;
            found.hits.extend(hit);
        }
        Ok(found)
    }

    /// The newest places that have the words and pass; and where to go on if too many did not.
    fn indexed(
        &self,
        phrase: &Phrase,
        sieve: &Sieve<'_>,
        newest: i64,
        (limit, sifted): (usize, usize),
    ) -> Result<(Vec<i64>, Option<i64>)> {
        let most = if sieve.is_open() { limit } else { sifted.saturating_add(1) };
        let failed = |error| self.failed("search", error);
        let mut statement = self
            .connection
            .prepare_cached(
                "SELECT rowid FROM search WHERE search MATCH ?1 AND rowid <= ?2
                 ORDER BY rowid DESC LIMIT ?3",
            )
            .map_err(failed)?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut rows = statement
            .query_map((phrase.query(), newest, most), |row| row.get::<_, i64>(0))
            .map_err(failed)?;
        let (mut places, mut looked) = (Vec::new(), 0);
        while places.len() < limit {
            let batch: Vec<i64> =
                rows.by_ref().take(BATCH).collect::<rusqlite::Result<_>>().map_err(failed)?;
            if batch.is_empty() {
                break;
            }
            if !sieve.is_open() && looked + batch.len() > sifted {
                // The one beyond the last that may be looked at.
                let last = batch.len() - 1;
                places.extend(self.passing(sieve, &batch[..last])?);
                return Ok((places, Some(batch[last])));
            }
            looked += batch.len();
            places.extend(self.passing(sieve, &batch)?);
        }
        places.truncate(limit);
        Ok((places, None))
    }

    /// Those of the places whose runs pass.
    fn passing(&self, sieve: &Sieve<'_>, places: &[i64]) -> Result<Vec<i64>> {
        let numbers: Vec<i64> =
            places.iter().map(|output_key| run_and_stream(*output_key).0).collect();
        let passed = sieve.pass(&numbers)?;
        Ok(places
            .iter()
            .copied()
            .filter(|output_key| passed.contains(&run_and_stream(*output_key).0))
            .collect())
    }

    /// Looks through what the index does not hold, newest first.
    fn scan(
        &self,
        phrase: &Phrase,
        sieve: &Sieve<'_>,
        newest: i64,
        budget: u64,
        result: &mut SearchResults,
    ) -> Result<Vec<i64>> {
        let mut places = Vec::new();
        let mut left = budget;
        let unindexed = [
            "SELECT place, bytes, 0 FROM outputs WHERE pending = 1 AND place <= ?1
               ORDER BY place DESC",
            "SELECT place, bytes, 1 FROM outputs WHERE bytes > 131072 AND place <= ?1
               ORDER BY place DESC",
        ];
        for sql in unindexed {
            let rows: Vec<(i64, i64, i64)> = self
                .connection
                .prepare(sql)
                .and_then(|mut statement| {
                    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
                    statement.query_map([newest], row)?.collect()
                })
                .map_err(|error| self.failed("search", error))?;
            let all: Vec<i64> = rows.iter().map(|row| row.0).collect();
            let passing: HashSet<i64> = self.passing(sieve, &all)?.into_iter().collect();
            for (output_key, bytes, middle) in rows {
                if !passing.contains(&output_key) {
                    continue;
                }
                let range = match (middle, bytes.unsigned_abs()) {
                    (0, bytes) => 0..bytes,
                    // A little more than the middle: a phrase may begin in an indexed part.
                    (_, bytes) => WINDOW - 1024..bytes - WINDOW + 1024,
                };
                let length = range.end - range.start;
                if length > left {
                    result.skipped_bytes += length;
                    continue;
                }
                left -= length;
                let Some(at) = self.run_at(output_key)? else { continue };
                let found = result.unless_damaged(at, self.snippet(phrase, at, range))?;
                places.extend(found.map(|_| output_key));
            }
        }
        Ok(places)
    }

    fn hit(&self, phrase: &Phrase, (id, stream): (RunId, Stream)) -> Result<SearchHit> {
        let run = self.get(id)?;
        let mut output = self.read_output(id, stream)?;
        let length = output.length();
        let text = text_of(&mut output).map_err(|error| Error::reading(id, error))?;
        let indexed = phrase.find(&text);
        let (snippet, matches) = if indexed.is_empty() {
            // In the middle; or found by folding that this text does not show (accents).
            let middle = self.snippet(phrase, (id, stream), 0..length)?;
            middle.unwrap_or_else(|| around(&text, &[]))
        } else {
            around(&text, &indexed)
        };
        Ok(SearchHit { run, stream, snippet, matches })
    }

    fn run_at(&self, output_key: i64) -> Result<Option<(RunId, Stream)>> {
        use rusqlite::OptionalExtension;
        let (seq, stream) = run_and_stream(output_key);
        let id = self
            .connection
            .prepare_cached("SELECT id FROM runs WHERE seq = ?1")
            .and_then(|mut statement| {
                statement.query_row([seq], |row| row.get::<_, [u8; 16]>(0)).optional()
            })
            .map_err(|error| self.failed("search", error))?;
        Ok(id.map(|id| (RunId::from_bytes(id), stream)))
    }

    /// The first match within a range of an output.
    fn snippet(
        &self,
        phrase: &Phrase,
        (id, stream): (RunId, Stream),
        range: Range<u64>,
    ) -> Result<Option<(String, Vec<Range<usize>>)>> {
        let mut output = self.read_output(id, stream)?;
        let failed = |error| Error::reading(id, error);
        output.seek(SeekFrom::Start(range.start)).map_err(failed)?;
        let mut input = output.take(range.end - range.start);
        let mut block = Vec::new();
        loop {
            let kept = block.len();
            let read = Read::by_ref(&mut input)
                .take(BLOCK as u64)
                .read_to_end(&mut block)
                .map_err(failed)?;
            let text = plain(&block);
            let found = phrase.find(&text);
            if !found.is_empty() {
                return Ok(Some(around(&text, &found)));
            }
            if read == 0 || block.len() == kept {
                return Ok(None);
            }
            block.drain(..block.len().saturating_sub(1024));
        }
    }
}

/// The line of the first match, shortened to its surroundings.
fn around(text: &str, found: &[Range<usize>]) -> (String, Vec<Range<usize>>) {
    let first = found.first().cloned().unwrap_or(0..0);
    let line_start = text[..first.start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[first.end..].find('\n').map_or(text.len(), |at| first.end + at);
    let floor = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = floor(line_start.max(first.start.saturating_sub(CONTEXT)));
    let end = floor(line_end.min(first.end + CONTEXT)).max(first.end);
    let matches = found
        .iter()
        .filter(|range| range.start >= start && range.end <= end && !range.is_empty())
        .map(|range| range.start - start..range.end - start)
        .collect();
    (text[start..end].to_owned(), matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_matches_whole_words_in_order() {
        let text =
            "Connection REFUSED: connection-refused, refused connection, connections refused";
        let found = Phrase::parse("connection refused").find(text);
        assert_eq!(found, vec![0..18, 20..38]);
        assert_eq!(Phrase::parse("connect*").find("a Connected b"), vec![2..11]);
    }

    #[test]
    fn a_snippet_is_the_surroundings_on_one_line() {
        let text = format!("before\n{} needle {}\nafter", "é".repeat(80), "y".repeat(100));
        let found = Phrase::parse("needle").find(&text);
        let (snippet, matches) = around(&text, &found);
        assert!(!snippet.contains('\n') && snippet.len() < 140);
        assert_eq!(&snippet[matches[0].clone()], "needle");
    }
}
