//! Full-text search over output, newest first, with the place of each match.
//!
//! The index holds both ends of each stream. Everything else (output not indexed yet, the middle of
//! large output) is scanned, completely unless a limit is given; the result reports what was not
//! searched.

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

/// A phrase that spans two parts of an output is found up to this length.
const EDGE: usize = 1024;
/// The cost of opening an output, in bytes that could be read instead.
const OPENING: u64 = 4 * 1024;
/// Matching places per query.
const BATCH: usize = 250;

#[derive(Clone, Debug)]
pub struct SearchHit {
    pub run: Run,
    pub stream: Stream,
    /// Text around the first match, on one line if the output has lines.
    pub snippet: String,
    /// Byte ranges of the matches in the snippet.
    pub matches: Vec<Range<usize>>,
}

#[derive(Clone, Debug, Default)]
pub struct SearchResults {
    pub hits: Vec<SearchHit>,
    /// Bytes of unindexed output that were not searched.
    pub skipped_bytes: u64,
    /// Whether older hits remain.
    pub more: bool,
    /// Where the older hits begin: for `search_from`.
    pub next: Option<u64>,
    /// Whether too many matching outputs failed the filter: the search ended before the page was
    /// full, and continues at `next`.
    pub cut_short: bool,
    /// Outputs that may match but are damaged: nothing of them is shown.
    pub damaged: Vec<(RunId, Stream)>,
}

impl SearchResults {
    /// Records a damaged output, so that it does not hide hits in other runs.
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

/// A search text, applied to output outside the index.
#[derive(Clone, Debug)]
pub struct SearchText(Phrase);

impl SearchText {
    pub fn parse(text: &str) -> Self {
        Self(Phrase::parse(text))
    }

    /// Whether it has no words.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text around the first match, and the ranges of the matches in it.
    pub fn snippet(&self, output: &[u8]) -> Option<(String, Vec<Range<usize>>)> {
        self.0.snippet(&plain(output)).map(|found| (found.text, found.matches))
    }
}

/// Limits on the work for one page of hits.
#[derive(Clone, Copy, Debug)]
pub struct SearchEffort {
    /// Maximum bytes of unindexed output to read.
    pub scanned_bytes: u64,
    /// Maximum time for that.
    pub time: Duration,
    /// Maximum matching outputs to check against the filter.
    pub sifted: usize,
    /// The detail of each hit's run.
    pub detail: RunDetail,
}

impl SearchEffort {
    /// Without limits.
    pub const UNLIMITED: Self = Self {
        scanned_bytes: u64::MAX,
        time: Duration::MAX,
        sifted: usize::MAX,
        detail: RunDetail::Whole,
    };

    /// Limits the bytes of unindexed output.
    pub fn reading(scanned_bytes: u64) -> Self {
        Self { scanned_bytes, ..Self::UNLIMITED }
    }

    /// Limits the time.
    pub const fn within(time: Duration) -> Self {
        Self { time, ..Self::UNLIMITED }
    }
}

/// The remaining budget of a scan.
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

/// The result for one part of an output.
struct PartFound {
    snippet: Option<Snippet>,
    length: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Store {
    /// Runs whose output contains the phrase `text`, newest first.
    pub fn search(&self, text: &str, limit: usize, effort: SearchEffort) -> Result<SearchResults> {
        self.search_from(text, &RunFilter::default(), None, limit, effort)
    }

    /// Like `search`, among the runs that match a filter, continuing where an earlier search ended.
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
        // Hits beyond that point are found again from there, in order.
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

    /// The newest matching places that pass the filter, and where to continue if too many did not.
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
                // The first place beyond the limit.
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

    /// The places whose runs match the filter.
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

    /// Searches unindexed output, newest first, until enough hits are newer than the rest.
    /// `indexed` are the places found in the index.
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
                // Each half has an index; OR would scan every row.
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
            // Found in the index already.
            if !passing.contains(&output_key) || indexed.contains(&output_key) {
                continue;
            }
            let range = match (pending, bytes.unsigned_abs()) {
                (true, bytes) => 0..bytes,
                // Slightly more than the middle: a phrase may begin in an indexed part.
                (false, bytes) => WINDOW - EDGE as u64..bytes - WINDOW + EDGE as u64,
            };
            // Reading a part of it would use the budget of smaller outputs without a conclusive
            // result.
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
                    // In the unindexed middle; or matched by folding (accents) that this text does not show.
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

    /// The first match within a range of an output, and how many bytes the budget left unsearched.
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
            // A match across the boundary comes before matches in this part.
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
