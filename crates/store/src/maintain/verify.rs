//! Verification: walks the ledger, derives the projection again, and reports the first break.
//!
//! Unkeyed hashes show an edit unless everything after it was rewritten too. Against someone who
//! did, only a head that was kept elsewhere proves anything: pass it as `expect`.

use std::fmt;

use retake_types::{Intent, RunId, RunOutcome, Stream};
use rusqlite::Connection;

use crate::base::effect_rows::EffectRows;
use crate::base::ledger::{self, Entry, Head, hash_column};
use crate::base::projection::{End, Row, seq_of};
use crate::base::schema;
use crate::read::output::{self, Storage, output_key};
use crate::{Error, Result, Store};

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    Intact(Intact),
    Broken(Break),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intact {
    pub head: Head,
    pub runs: u64,
    /// Entries whose bodies were erased by a delete or a prune, as their markers say.
    pub erased: u64,
}

/// The first place where the record is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// The ledger entry at or before which it shows.
    pub seq: u64,
    pub run: Option<RunId>,
    pub kind: BreakKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakKind {
    /// The body does not have the hash it was recorded with.
    EditedBody,
    /// The entry does not follow from the one before it: edited, inserted or reordered.
    EditedEntry,
    /// The entry is missing.
    DeletedEntry,
    /// The body was erased and no marker says so.
    UnmarkedErasure,
    /// The chain is whole, but the body says nothing that a retake writes.
    Unreadable(String),
    /// The searchable columns say something else than the ledger.
    Projection(&'static str),
    /// The stored output is not the one that the outcome names.
    Output(Stream),
    /// The expected head lies beyond the end: the tail was cut off.
    CutTail { expected: u64 },
    /// The entry with the expected number has another hash: the chain was rewritten.
    Rewritten,
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seq = self.seq;
        match &self.kind {
            BreakKind::EditedBody => write!(f, "entry {seq}: its body was edited"),
            BreakKind::EditedEntry => write!(f, "entry {seq}: it was edited or reordered"),
            BreakKind::DeletedEntry => write!(f, "entry {seq}: it was deleted"),
            BreakKind::UnmarkedErasure => {
                write!(f, "entry {seq}: its body was erased without a marker")
            }
            BreakKind::Unreadable(detail) => write!(f, "entry {seq}: it cannot be read: {detail}"),
            BreakKind::Projection(what) => {
                write!(f, "entry {seq}: {what} differs from the ledger")
            }
            BreakKind::Output(stream) => {
                write!(f, "entry {seq}: the stored {} is not the recorded one", stream.as_str())
            }
            BreakKind::CutTail { expected } => {
                write!(
                    f,
                    "the ledger ends at entry {seq}, but {expected} were expected: the tail was cut off"
                )
            }
            BreakKind::Rewritten => {
                write!(
                    f,
                    "entry {seq} has another hash than the expected head: the chain was rewritten"
                )
            }
        }?;
        match self.run {
            Some(run) => write!(f, " (run {run})"),
            None => Ok(()),
        }
    }
}

/// Why the walk ended early.
enum Stop {
    Break(Break),
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

#[derive(Default)]
struct Walk {
    runs: u64,
    endings: u64,
    labels: u64,
    outputs: u64,
    effects: u64,
    changes: u64,
    tests: u64,
    missing: Vec<i64>,
    marked: Vec<(i64, i64)>,
}

impl Store {
    /// Checks the whole chain, the projection and the inline outputs.
    pub fn verify(&self, expect: Option<Head>) -> Result<Verification> {
        // One snapshot, however many writers go on meanwhile.
        let snapshot = self
            .connection
            .unchecked_transaction()
            .map_err(|error| self.failed("verify", error))?;
        match walk(&snapshot, expect) {
            Ok(intact) => Ok(Verification::Intact(intact)),
            Err(Stop::Break(found)) => Ok(Verification::Broken(found)),
            Err(Stop::Failed(error)) => Err(self.failed("verify", error)),
        }
    }
}

fn broken<T>(seq: i64, run: Option<RunId>, kind: BreakKind) -> Result<T, Stop> {
    Err(Stop::Break(Break { seq: seq.unsigned_abs(), run, kind }))
}

fn walk(connection: &Connection, expect: Option<Head>) -> Result<Intact, Stop> {
    let mut statement =
        connection.prepare("SELECT seq, body, body_hash, hash FROM ledger ORDER BY seq")?;
    let mut rows = statement.query([])?;
    let (mut head, mut walk, mut next) = (Head::genesis(), Walk::default(), 1);
    while let Some(row) = rows.next()? {
        let seq: i64 = row.get(0)?;
        let (Ok(body_hash), Ok(hash)) = (hash_column(row, 2), hash_column(row, 3)) else {
            return broken(seq, None, BreakKind::EditedEntry);
        };
        if seq != next {
            return broken(next, None, BreakKind::DeletedEntry);
        }
        let body: Option<Vec<u8>> = row.get(1)?;
        if body.as_ref().is_some_and(|body| blake3::hash(body) != body_hash) {
            return broken(seq, None, BreakKind::EditedBody);
        }
        if ledger::chain(&head.hash, seq, &body_hash) != hash {
            return broken(seq, None, BreakKind::EditedEntry);
        }
        head = Head { count: seq.unsigned_abs(), hash };
        if expect.is_some_and(|expect| expect.count == head.count && expect.hash != hash) {
            return broken(seq, None, BreakKind::Rewritten);
        }
        match body.map(|body| ledger::parse(seq, &body)) {
            None => walk.missing.push(seq),
            Some(Ok(entry)) => walk.entry(connection, seq, &entry)?,
            Some(Err(error)) => {
                return broken(seq, None, BreakKind::Unreadable(detail(error)));
            }
        }
        next = seq + 1;
    }
    let last = next - 1;
    if let Some(expect) = expect.filter(|expect| expect.count > head.count) {
        return broken(last, None, BreakKind::CutTail { expected: expect.count });
    }
    walk.finish(connection, head, last)
}

fn detail(error: Error) -> String {
    match error {
        Error::BadEntry { detail, .. } => detail,
        other => other.to_string(),
    }
}

impl Walk {
    fn entry(&mut self, connection: &Connection, seq: i64, entry: &Entry) -> Result<(), Stop> {
        match entry {
            Entry::Intent(intent) => self.intent(connection, seq, intent),
            Entry::Outcome { run, outcome } => self.outcome(connection, seq, *run, outcome),
            Entry::Marker(marker) => {
                self.marked.extend_from_slice(&marker.erased);
                Ok(())
            }
            Entry::Repair(_) | Entry::Import(_) => Ok(()),
        }
    }

    fn intent(&mut self, connection: &Connection, seq: i64, intent: &Intent) -> Result<(), Stop> {
        let differs = |what| broken(seq, Some(intent.id()), BreakKind::Projection(what));
        match Row::load(connection, seq)? {
            None => return differs("a run that is missing from the list"),
            Some((row, _)) if row != Row::of(seq, intent) => {
                return differs("what the list says of the run");
            }
            Some(_) => self.runs += 1,
        }
        for (key, value) in &intent.request.labels {
            let labelled: bool = connection
                .prepare_cached(
                    "SELECT EXISTS (SELECT 1 FROM labels WHERE key = ?1 AND value = ?2
                       AND start_us = ?3 AND run = ?4)",
                )?
                .query_row((key, value, intent.start_time.as_microsecond(), seq), |row| {
                    row.get(0)
                })?;
            if !labelled {
                return differs("a label");
            }
            self.labels += 1;
        }
        Ok(())
    }

    fn outcome(
        &mut self,
        connection: &Connection,
        seq: i64,
        run: RunId,
        outcome: &RunOutcome,
    ) -> Result<(), Stop> {
        let differs = |what| broken(seq, Some(run), BreakKind::Projection(what));
        let Some(intent_seq) = seq_of(connection, run)? else {
            return differs("an outcome whose run is missing from the list");
        };
        match Row::load(connection, intent_seq)? {
            Some((_, Some(end))) if end == End::of(seq, outcome) => self.endings += 1,
            _ => return differs("what the list says of the outcome"),
        }
        if let Some(footprint) = EffectRows::of(outcome) {
            if !footprint.is_stored(connection, intent_seq)? {
                return differs("what the list says of the run's effects");
            }
            let (changes, tests) = footprint.counts();
            self.effects += 1;
            self.changes += changes;
            self.tests += tests;
        }
        let recorded = [
            (Stream::Stdout, outcome.stdout_bytes, &outcome.stdout_blake3),
            (Stream::Stderr, outcome.stderr_bytes, &outcome.stderr_blake3),
        ];
        for (stream, bytes, hash) in recorded {
            let stored = output::load(connection, output_key(intent_seq, stream))?;
            let same = match (&stored, hash) {
                (None, None) => true,
                (Some(stored), Some(hash)) => {
                    let inline = stored.storage == Storage::Inline;
                    let content = stored.content.as_deref().unwrap_or_default();
                    stored.bytes == bytes
                        && stored.hash.to_hex().as_str() == hash
                        && (!inline || blake3::hash(content) == stored.hash)
                }
                _ => false,
            };
            if !same {
                return broken(seq, Some(run), BreakKind::Output(stream));
            }
            self.outputs += u64::from(stored.is_some());
        }
        Ok(())
    }

    /// What no single entry shows: rows that no entry explains, and erasures without a marker.
    fn finish(mut self, connection: &Connection, head: Head, last: i64) -> Result<Intact, Stop> {
        self.marked.sort_unstable();
        for &seq in &self.missing {
            let after = self.marked.partition_point(|&(from, _)| from <= seq);
            let covered = after.checked_sub(1).is_some_and(|index| self.marked[index].1 >= seq);
            if !covered {
                return broken(seq, None, BreakKind::UnmarkedErasure);
            }
        }
        let mut counts = vec![
            ("a run that the ledger does not have", "SELECT count(*) FROM runs", self.runs),
            (
                "an outcome that the ledger does not have",
                "SELECT count(*) FROM runs WHERE outcome_seq IS NOT NULL",
                self.endings,
            ),
            ("a label that the ledger does not have", "SELECT count(*) FROM labels", self.labels),
            (
                "an output that the ledger does not have",
                "SELECT count(*) FROM outputs",
                self.outputs,
            ),
        ];
        // A store that is only read may still have the schema of an earlier release.
        if schema::of(connection)? >= schema::WITH_EFFECTS {
            counts.extend([
                ("effects", "SELECT count(*) FROM effects", self.effects),
                ("a changed path", "SELECT count(*) FROM changes", self.changes),
                ("a test", "SELECT count(*) FROM tests", self.tests),
            ]);
        }
        for (what, sql, expected) in counts {
            let counted: i64 = connection.query_row(sql, [], |row| row.get(0))?;
            if counted.unsigned_abs() != expected {
                return broken(last, None, BreakKind::Projection(what));
            }
        }
        Ok(Intact { head, runs: self.runs, erased: self.missing.len() as u64 })
    }
}
