//! Full-text search over output, newest first, with the place of each match.
//!
//! The index holds both ends of each stream. What it does not hold (output not indexed yet, the
//! middle of large output) is scanned, all of it unless a limit is given; what was not looked at is
//! reported.

use std::collections::{BTreeMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use retake_types::{Run, RunId, Stream};

use crate::read::output::run_and_stream;
use crate::read::phrase::{Phrase, Snippet};
use crate::read::runs::{RunDetail, RunFilter, Sieve};
use crate::read::scan::{scan_parts, scan_threads};
use crate::read::search_index::{WINDOW, plain, text_of};
use crate::{Error, Result, Store};

/// A phrase that lies in two parts of an output is found if it is not longer than this.
const EDGE: usize = 1024;
/// What it costs to open an output, in bytes that could be read instead.
const OPENING: u64 = 4 * 1024;
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

/// What is searched for, held against an output that is no part of the index.
#[derive(Clone, Debug)]
pub struct SearchText(Phrase);

impl SearchText {
    pub fn parse(text: &str) -> Self {
        Self(Phrase::parse(text))
    }

    /// It has no word.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text around the first match, and where the matches are in it.
    pub fn snippet(&self, output: &[u8]) -> Option<(String, Vec<Range<usize>>)> {
        self.0.snippet(&plain(output)).map(|found| (found.text, found.matches))
    }
}

/// How much is done for one page of hits.
#[derive(Clone, Copy, Debug)]
pub struct SearchEffort {
    /// Bytes of what is not indexed that are read at most.
    pub scanned_bytes: u64,
    /// How long that may take.
    pub time: Duration,
    /// Outputs with the words that are held against the filter.
    pub sifted: usize,
    /// How much is read of the run of each hit.
    pub detail: RunDetail,
}

impl SearchEffort {
    /// Whatever it takes.
    pub const UNLIMITED: Self = Self {
        scanned_bytes: u64::MAX,
        time: Duration::MAX,
        sifted: usize::MAX,
        detail: RunDetail::Whole,
    };

    /// At most this many bytes of output that is not indexed.
    pub fn reading(scanned_bytes: u64) -> Self {
        Self { scanned_bytes, ..Self::UNLIMITED }
    }

    /// As much as can be done in a time.
    pub const fn within(time: Duration) -> Self {
        Self { time, ..Self::UNLIMITED }
    }
}

/// What may still be read.
struct ScanBudget {
    bytes: u64,
    until: Option<Instant>,
}

impl ScanBudget {
    fn new(effort: SearchEffort) -> Self {
        Self { bytes: effort.scanned_bytes, until: Instant::now().checked_add(effort.time) }
    }

    fn is_spent(&self) -> bool {
        self.bytes == 0 || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// What one part of an output has.
struct PartFound {
    snippet: Option<Snippet>,
    length: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Store {
    /// Runs whose output has the words of `text`, newest first.
    pub fn search(&self, text: &str, limit: usize, effort: SearchEffort) -> Result<SearchResults> {
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
        if phrase.is_empty() || limit == 0 {
            return Ok(SearchResults::default());
        }
        let sieve = Sieve::new(self, filter)?;
        let mut found = SearchResults::default();
        let (mut places, unlooked) =
            self.indexed(&phrase, &sieve, newest, (limit + 1, effort.sifted))?;
        let mut budget = ScanBudget::new(effort);
        let snippets =
            self.scan(&phrase, &sieve, (newest, limit + 1), &places, &mut budget, &mut found)?;
        places.extend(snippets.keys());
        places.sort_unstable_by(|a, b| b.cmp(a));
        places.dedup();
        // What lies beyond is met again from there, in its order.
        places.retain(|output_key| unlooked.is_none_or(|unlooked| *output_key > unlooked));
        found.more = places.len() > limit || unlooked.is_some();
        found.next = places.get(limit).copied().or(unlooked).map(i64::unsigned_abs);
        found.cut_short = unlooked.is_some() && places.len() <= limit;
        for output_key in places.into_iter().take(limit) {
            let Some(at) = self.run_at(output_key)? else { continue };
            let hit = self.hit(&phrase, at, effort.detail, snippets.get(&output_key).cloned());
            let hit = found.unless_damaged(at, hit.map(Some))?;
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

    /// Looks through what the index does not hold, newest first, until there are enough that are
    /// newer than anything else. `indexed` are the places that the index has.
    fn scan(
        &self,
        phrase: &Phrase,
        sieve: &Sieve<'_>,
        (newest, enough): (i64, usize),
        indexed: &[i64],
        budget: &mut ScanBudget,
        result: &mut SearchResults,
    ) -> Result<BTreeMap<i64, Snippet>> {
        let mut snippets = BTreeMap::new();
        let rows: Vec<(i64, i64, bool)> = self
            .connection
            .prepare_cached(
                // Each half has an index; with OR every row would be looked at.
                "SELECT place, bytes, 1 FROM outputs WHERE pending = 1 AND place <= ?1
                 UNION ALL
                 SELECT place, bytes, 0 FROM outputs
                   WHERE bytes > 131072 AND pending <> 1 AND place <= ?1
                 ORDER BY place DESC",
            )
            .and_then(|mut statement| {
                let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
                statement.query_map([newest], row)?.collect()
            })
            .map_err(|error| self.failed("search", error))?;
        let all: Vec<i64> = rows.iter().map(|row| row.0).collect();
        let passing: HashSet<i64> = self.passing(sieve, &all)?.into_iter().collect();
        for (output_key, bytes, pending) in rows {
            let newer = indexed.iter().filter(|place| **place > output_key);
            if newer.count() + snippets.len() >= enough {
                break;
            }
            // What the index has is no news.
            if !passing.contains(&output_key) || indexed.contains(&output_key) {
                continue;
            }
            let range = match (pending, bytes.unsigned_abs()) {
                (true, bytes) => 0..bytes,
                // A little more than the middle: a phrase may begin in an indexed part.
                (false, bytes) => WINDOW - EDGE as u64..bytes - WINDOW + EDGE as u64,
            };
            // Reading a part of it would use up what smaller ones need, and prove nothing.
            if budget.is_spent() || budget.bytes < range.end - range.start {
                result.skipped_bytes += range.end - range.start;
                continue;
            }
            let Some(at) = self.run_at(output_key)? else { continue };
            let found = self.first_match(phrase, at, range, budget);
            budget.bytes = budget.bytes.saturating_sub(OPENING);
            if let Some((snippet, skipped)) = result.unless_damaged(at, found.map(Some))? {
                result.skipped_bytes += skipped;
                snippets.extend(snippet.map(|snippet| (output_key, snippet)));
            }
        }
        Ok(snippets)
    }

    fn hit(
        &self,
        phrase: &Phrase,
        (id, stream): (RunId, Stream),
        detail: RunDetail,
        known: Option<Snippet>,
    ) -> Result<SearchHit> {
        let run = self.get_with(detail, id)?;
        let snippet = match known {
            Some(snippet) => snippet,
            None => {
                let mut output = self.read_output(id, stream)?;
                let length = output.length();
                let text = text_of(&mut output).map_err(|error| Error::reading(id, error))?;
                let indexed = phrase.snippet(&text);
                match indexed {
                    Some(snippet) => snippet,
                    // In the middle; or found by folding that this text does not show (accents).
                    None => {
                        let mut budget = ScanBudget::new(SearchEffort::UNLIMITED);
                        let at = (id, stream);
                        let (found, _) = self.first_match(phrase, at, 0..length, &mut budget)?;
                        found.unwrap_or_else(|| Snippet::beginning(&text))
                    }
                }
            }
        };
        let Snippet { text, matches } = snippet;
        Ok(SearchHit { run, stream, snippet: text, matches })
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

    /// The first match within a range of an output, and how much of it was not looked at because
    /// the budget was spent.
    fn first_match(
        &self,
        phrase: &Phrase,
        (id, stream): (RunId, Stream),
        range: Range<u64>,
        budget: &mut ScanBudget,
    ) -> Result<(Option<Snippet>, u64)> {
        let whole = range.end.saturating_sub(range.start);
        let length = whole.min(budget.bytes);
        let readers: Result<Vec<_>> =
            (0..scan_threads(length)).map(|_| self.read_output(id, stream)).collect();
        let look = |_: u64, bytes: &[u8]| PartFound {
            snippet: phrase.snippet(&plain(bytes)),
            length: bytes.len() as u64,
            head: bytes[..bytes.len().min(EDGE)].to_vec(),
            tail: bytes[bytes.len().saturating_sub(EDGE)..].to_vec(),
        };
        let (mut found, mut looked, mut edge) = (None, 0, Vec::new());
        let mut take = |part: PartFound| {
            let joined = [std::mem::replace(&mut edge, part.tail), part.head].concat();
            // Before what lies in this part alone.
            found = match looked {
                0 => part.snippet,
                _ => phrase.snippet(&plain(&joined)).or(part.snippet),
            };
            looked += part.length;
            budget.bytes -= part.length;
            match found.is_some() || (looked < length && budget.is_spent()) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        scan_parts(readers?, range.start..range.start + length, &look, &mut take)
            .map_err(|error| Error::reading(id, error))?;
        let skipped = if found.is_some() { 0 } else { whole - looked };
        Ok((found, skipped))
    }
}
