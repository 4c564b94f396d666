//! Verification: walks the ledger, derives the projection again, reads every output, and reports
//! the first break of the chain and every damaged output.
//!
//! Unkeyed hashes reveal an edit unless everything after it was rewritten too. To detect such a
//! rewrite, pass a head that was kept elsewhere as `expect`.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use retake_types::{Intent, RunId, RunOutcome, Stream};
use rusqlite::Connection;

use crate::base::block_hashes::{BLOCK, BlockHashes};
use crate::base::dir::StoreDir;
use crate::base::effect_rows::EffectRows;
use crate::base::ledger::{self, Entry, Head, hash_column};
use crate::base::output_damage::OutputDamage;
use crate::base::projection::{End, Row, seq_of};
use crate::base::schema;
use crate::read::output::{self, Storage, Stored, is_recorded_order, output_key, recorded_output};
use crate::read::output_reader::{RecordedOutput, small_damage};
use crate::{Error, Result, Store};

const BLOCK_LIST: &str = "the list of an output's block hashes";

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    Intact(Intact),
    /// The first break of the chain or of derived data, if any, then every damaged output. Not
    /// empty.
    Broken(Vec<Break>),
}

/// How much is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyDepth {
    /// Chain and projection, and that every output exists with its length.
    Quick,
    /// Also the contents of outputs.
    Full,
}

/// The progress of reading outputs, in bytes as the runs wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    pub read: u64,
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intact {
    pub head: Head,
    pub runs: u64,
    /// Entries whose bodies were erased by a delete or a prune, as their markers say.
    pub erased: u64,
    /// Bytes of outputs that were read and match the record.
    pub output_bytes: u64,
    /// Runs that wrote to both streams in an order that is unknown by now, or that the ledger of an
    /// earlier release does not cover.
    pub unproven_orders: u64,
}

/// A place where the record differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// The ledger entry at or before which the damage shows.
    pub seq: u64,
    pub run: Option<RunId>,
    pub kind: BreakKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakKind {
    /// The body does not match its recorded hash.
    EditedBody,
    /// The entry does not follow from the one before it: edited, inserted or reordered.
    EditedEntry,
    /// The entry is missing.
    DeletedEntry,
    /// The body was erased without a marker.
    UnmarkedErasure,
    /// The chain is intact, but the body is not one that retake writes.
    Unreadable(String),
    /// The searchable columns contradict the ledger.
    Projection(&'static str),
    /// The stored output does not match its outcome.
    Output { stream: Stream, damage: OutputDamage },
    /// The arrival order of both streams does not match the outcome.
    Order,
    /// The expected head is beyond the end: the tail was cut off.
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
            BreakKind::Output { stream, damage } => {
                write!(f, "entry {seq}: the {} {damage}", stream.as_str())
            }
            BreakKind::Order => {
                write!(f, "entry {seq}: the order in which the output arrived was altered")
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

struct Walk<'a> {
    dir: &'a StoreDir,
    depth: VerifyDepth,
    runs: u64,
    endings: u64,
    labels: u64,
    outputs: u64,
    effects: u64,
    changes: u64,
    tests: u64,
    missing: Vec<i64>,
    marked: Vec<(i64, i64)>,
    output_bytes: u64,
    unproven_orders: u64,
    /// The first break of the chain or the projection.
    first: Option<Break>,
    damaged: Vec<Break>,
    /// Outputs in files, which are read after the walk.
    files: Vec<FileOutput>,
}

struct FileOutput {
    outcome_seq: i64,
    run: RunId,
    stream: Stream,
    recorded: RecordedOutput,
}

impl Store {
    /// Verifies everything.
    pub fn verify(&self, expect: Option<Head>) -> Result<Verification> {
        self.verify_with(expect, VerifyDepth::Full, &mut |_| {})
    }

    /// Checks the whole chain, the projection and the outputs.
    pub fn verify_with(
        &self,
        expect: Option<Head>,
        depth: VerifyDepth,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<Verification> {
        let failed = |error| self.failed("verify", error);
        // One snapshot, unaffected by concurrent writers. It ends before the files are read: that
        // can take long, and the WAL cannot be emptied while a reader uses an old state.
        let snapshot = self.connection.unchecked_transaction().map_err(failed)?;
        let mut walk = Walk::new(&self.dir, depth);
        let head = walk.chain(&snapshot, expect).map_err(failed)?;
        drop(snapshot);
        let mut found: Vec<Break> = walk.first.take().into_iter().collect();
        found.append(&mut walk.damaged);
        walk.output_bytes += self.verify_files(&walk.files, &mut found, progress)?;
        if !found.is_empty() {
            return Ok(Verification::Broken(found));
        }
        Ok(Verification::Intact(Intact {
            head,
            runs: walk.runs,
            erased: walk.missing.len() as u64,
            output_bytes: walk.output_bytes,
            unproven_orders: walk.unproven_orders,
        }))
    }

    /// Reads outputs in files and returns how many bytes match the record.
    fn verify_files(
        &self,
        files: &[FileOutput],
        found: &mut Vec<Break>,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<u64> {
        // Runs with the same output share a compressed file.
        let mut intact_files: HashSet<PathBuf> = HashSet::new();
        let total = files.iter().map(|file| file.recorded.bytes).sum();
        let (mut before, mut intact) = (0, 0);
        for file in files {
            let FileOutput { outcome_seq, run, stream, recorded } = *file;
            let checked = self.read_output(run, stream).and_then(|mut output| {
                let path = output.path().map(Path::to_owned);
                if path.as_ref().is_some_and(|path| intact_files.contains(path)) {
                    return Ok(());
                }
                let mut read = before;
                output.check(&mut |bytes| {
                    read += bytes;
                    progress(VerifyProgress { read, total });
                })?;
                intact_files.extend(path);
                Ok(())
            });
            before += recorded.bytes;
            progress(VerifyProgress { read: before, total });
            match checked {
                Ok(()) => intact += recorded.bytes,
                Err(Error::OutputDamaged { id, stream, damage }) => found.push(Break {
                    seq: outcome_seq.unsigned_abs(),
                    run: Some(id),
                    kind: BreakKind::Output { stream, damage },
                }),
                // Erased since the walk.
                Err(Error::NotFound { .. }) => {}
                // The walk has reported the entry already.
                Err(Error::BadEntry { .. }) if !found.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(intact)
    }
}

fn broken<T>(seq: i64, run: Option<RunId>, kind: BreakKind) -> Result<T, Stop> {
    Err(Stop::Break(Break { seq: seq.unsigned_abs(), run, kind }))
}

/// Checks that an entry follows from the one before it.
fn link(
    head: &mut Head,
    next: i64,
    expect: Option<Head>,
    (seq, body, row): (i64, Option<&[u8]>, &rusqlite::Row<'_>),
) -> Result<(), Stop> {
    let (Ok(body_hash), Ok(hash)) = (hash_column(row, 2), hash_column(row, 3)) else {
        return broken(seq, None, BreakKind::EditedEntry);
    };
    let before = std::mem::replace(head, Head { count: seq.unsigned_abs(), hash });
    if seq != next {
        return broken(next, None, BreakKind::DeletedEntry);
    }
    if body.is_some_and(|body| blake3::hash(body) != body_hash) {
        return broken(seq, None, BreakKind::EditedBody);
    }
    if ledger::chain(&before.hash, seq, &body_hash) != hash {
        return broken(seq, None, BreakKind::EditedEntry);
    }
    if expect.is_some_and(|expect| expect.count == head.count && expect.hash != hash) {
        return broken(seq, None, BreakKind::Rewritten);
    }
    Ok(())
}

fn detail(error: Error) -> String {
    match error {
        Error::BadEntry { detail, .. } => detail,
        other => other.to_string(),
    }
}

impl<'a> Walk<'a> {
    fn new(dir: &'a StoreDir, depth: VerifyDepth) -> Self {
        Self {
            dir,
            depth,
            runs: 0,
            endings: 0,
            labels: 0,
            outputs: 0,
            effects: 0,
            changes: 0,
            tests: 0,
            missing: Vec::new(),
            marked: Vec::new(),
            output_bytes: 0,
            unproven_orders: 0,
            first: None,
            damaged: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Keeps the first break and continues, because later entries still have outputs to check.
    fn note(&mut self, checked: Result<(), Stop>) -> rusqlite::Result<()> {
        match checked {
            Ok(()) => Ok(()),
            Err(Stop::Break(found)) => {
                self.first.get_or_insert(found);
                Ok(())
            }
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn chain(&mut self, connection: &Connection, expect: Option<Head>) -> rusqlite::Result<Head> {
        let mut statement =
            connection.prepare("SELECT seq, body, body_hash, hash FROM ledger ORDER BY seq")?;
        let mut rows = statement.query([])?;
        let (mut head, mut next) = (Head::genesis(), 1);
        while let Some(row) = rows.next()? {
            let (seq, body): (i64, Option<Vec<u8>>) = (row.get(0)?, row.get(1)?);
            let linked = link(&mut head, next, expect, (seq, body.as_deref(), row));
            self.note(linked)?;
            next = seq + 1;
            let checked = match body.map(|body| ledger::parse(seq, &body)) {
                None => {
                    self.missing.push(seq);
                    Ok(())
                }
                Some(Ok(entry)) => self.entry(connection, seq, &entry),
                Some(Err(error)) => broken(seq, None, BreakKind::Unreadable(detail(error))),
            };
            self.note(checked)?;
        }
        let last = next - 1;
        if let Some(expect) = expect.filter(|expect| expect.count > head.count) {
            self.note(broken(last, None, BreakKind::CutTail { expected: expect.count }))?;
        }
        let finished = self.finish(connection, last);
        self.note(finished)?;
        Ok(head)
    }

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
                return differs("the stored run");
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
            _ => return differs("the stored outcome"),
        }
        if let Some(footprint) = EffectRows::of(outcome) {
            if !footprint.is_stored(connection, intent_seq)? {
                return differs("the stored effects of the run");
            }
            let (changes, tests) = footprint.row_counts();
            self.effects += 1;
            self.changes += changes;
            self.tests += tests;
        }
        let captured = Stream::BOTH.map(|stream| recorded_output(outcome, stream).is_some());
        for stream in Stream::BOTH {
            self.output(connection, (seq, run, intent_seq), outcome, stream)?;
        }
        let order = output::load_order(connection, intent_seq)?;
        if !is_recorded_order(outcome, order.as_deref()) {
            return broken(seq, Some(run), BreakKind::Order);
        }
        let proven = outcome.order_blake3.is_some() && order.is_some();
        self.unproven_orders += u64::from(captured == [true, true] && !proven);
        Ok(())
    }

    /// Compares a row of `outputs` with the outcome, and the bytes if they are in the database.
    fn output(
        &mut self,
        connection: &Connection,
        (outcome_seq, run, intent_seq): (i64, RunId, i64),
        outcome: &RunOutcome,
        stream: Stream,
    ) -> Result<(), Stop> {
        let key = output_key(intent_seq, stream);
        let stored = match output::load(connection, key) {
            // A row with another type of value is reported as damaged below.
            Err(rusqlite::Error::IntegralValueOutOfRange(..)) => None,
            Err(rusqlite::Error::FromSqlConversionFailure(..)) => None,
            stored => stored?,
        };
        let Some(recorded) = recorded_output(outcome, stream) else { return Ok(()) };
        self.outputs += u64::from(stored.is_some());
        let stored = stored.filter(|stored| stored.output == recorded);
        let damage = match &stored {
            None => Some(OutputDamage::WrongRow),
            Some(stored) if stored.storage != Storage::Inline => match self.depth {
                VerifyDepth::Full => {
                    self.files.push(FileOutput { outcome_seq, run, stream, recorded });
                    None
                }
                VerifyDepth::Quick => file_damage(self.dir, run, stream, stored),
            },
            Some(_) if self.depth == VerifyDepth::Quick => None,
            Some(_) => small_damage(&output::load_content(connection, key)?, recorded),
        };
        match damage {
            Some(damage) => self.damaged.push(Break {
                seq: outcome_seq.unsigned_abs(),
                run: Some(run),
                kind: BreakKind::Output { stream, damage },
            }),
            None if stored.as_ref().is_some_and(|stored| stored.storage == Storage::Inline) => {
                self.output_bytes += recorded.bytes;
            }
            None => {}
        }
        if stored.is_some()
            && recorded.bytes > BLOCK
            && let Some(list) = output::load_blocks(connection, key)?
            && !list.is_empty()
            && BlockHashes::of_output(&list, recorded.bytes, &recorded.hash).is_none()
        {
            return broken(outcome_seq, Some(run), BreakKind::Projection(BLOCK_LIST));
        }
        Ok(())
    }

    /// Checks what no single entry shows: rows without an entry, and erasures without a marker.
    fn finish(&mut self, connection: &Connection, last: i64) -> Result<(), Stop> {
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
        // A read-only store may still have the schema of an earlier release.
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
        Ok(())
    }
}

/// The damage of a file, without reading its content.
fn file_damage(
    dir: &StoreDir,
    run: RunId,
    stream: Stream,
    stored: &Stored,
) -> Option<OutputDamage> {
    let path = output::file_of(dir, run, stream, stored);
    let recorded = stored.output.bytes;
    match std::fs::metadata(&path) {
        Ok(file) if stored.storage == Storage::Raw && file.len() != recorded => {
            Some(OutputDamage::WrongLength { recorded, found: file.len() })
        }
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some(OutputDamage::Missing { path })
        }
        Err(error) => Some(OutputDamage::Unreadable { path, error: error.to_string() }),
    }
}
