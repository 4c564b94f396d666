//! Runs that a retake inside a sandbox recorded, in a record that is deleted with the sandbox: a
//! program inside writes them out, and they are imported into the record outside.
//!
//! The input was under the control of the confined program and is untrusted. It is bounded, parsed
//! only as lines of an export, redacted by the redactor of the reporting run, and cannot change
//! existing runs. Host, user and confinement are those known outside; every such run is marked as
//! reported.

use std::collections::HashMap;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::{SignedDuration, Timestamp};
use retake_types::request::{LoopPosition, StdinSource};
use retake_types::{
    Intent, Redacted, Redactions, ReportedRuns, RunId, RunOutcome, SandboxRequest, Stream, Usage,
};

use super::export::ExportLine;
use super::import::{ArrivingRun, Imported, Origin};
use super::ledger_copy::LedgerContent;
use crate::base::arrival_order::{ChunkReader, order_hash};
use crate::base::projection::seq_of;
use crate::redact::{CountingRedactor, Redactor, StreamRedactor};
use crate::{Error, Result, Store};

/// Maximum runs that a confined run can report.
const MOST_RUNS: u64 = 1000;
/// Maximum reported bytes of each stream.
const MOST_OUTPUT: u64 = 1 << 20;
/// Maximum bytes of lines in total, and of one line.
const MOST_BYTES: u64 = 128 << 20;
const LONGEST_LINE: usize = 4 << 20;
/// Runs imported per commit, and bytes of lines that may wait for it.
const BATCH: usize = 64;
const WAITING: u64 = 8 << 20;
/// Maximum nesting of runs.
const DEEPEST: usize = 16;
/// Clocks can be set during a run.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(60);
/// Ledger entries read together.
const PAGE: usize = 256;

impl Store {
    /// Writes the finished runs of this record as lines, ordered by start so that a parent precedes
    /// its children; skips the first `skipped`, and stops when the other side closes.
    pub fn report_runs(&self, skipped: u64, to: &mut impl Write) -> Result<()> {
        let mut to = Counted { to, bytes: 0 };
        let (mut after, mut number, mut reported) = (0, 0, 0);
        loop {
            let rows = self.ledger_after(after, PAGE)?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.seq;
            for row in rows {
                let LedgerContent::Intent(intent) = row.content else { continue };
                let run = match self.get(intent.id()) {
                    // Erased inside the sandbox.
                    Err(Error::NotFound { .. }) => continue,
                    run => run?,
                };
                if run.outcome.is_none() {
                    continue;
                }
                number += 1;
                if number <= skipped {
                    continue;
                }
                if reported > MOST_RUNS || to.bytes > MOST_BYTES {
                    return Ok(());
                }
                self.export_up_to(&run, MOST_OUTPUT, &mut to)?;
                reported += 1;
            }
        }
    }
}

struct Counted<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Imports the output of [`Store::report_runs`] inside a sandbox, as it arrives.
pub struct ReportedImport<'a> {
    /// The confined run.
    reporter: &'a Intent,
    redactor: &'a Redactor,
    /// An incomplete line.
    line: Vec<u8>,
    bytes: u64,
    /// Bytes read at the last commit.
    committed: u64,
    arriving: Option<ReportedRun>,
    complete: Vec<ArrivingRun>,
    /// The nesting depth of the imported runs.
    depths: HashMap<RunId, usize>,
    report: TakenReport,
    /// Whether unreadable or excessive input ended the import: the rest is ignored.
    over: bool,
}

/// The result of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenReport {
    pub reported: ReportedRuns,
    /// How many runs were read, including refused ones: a later report can skip them.
    pub seen: u64,
}

/// A run whose output is arriving.
struct ReportedRun {
    run: ArrivingRun,
    redactors: [StreamRedactor; 2],
    /// Received bytes of each stream, before redaction.
    came: [u64; 2],
    /// The size of each stream according to the run.
    claimed: [u64; 2],
    found: Redactions,
}

impl<'a> ReportedImport<'a> {
    /// `reporter` is the confined run, and `redactor` knows its secrets.
    pub fn new(reporter: &'a Intent, redactor: &'a Redactor) -> Self {
        Self {
            reporter,
            redactor,
            line: Vec::new(),
            bytes: 0,
            committed: 0,
            arriving: None,
            complete: Vec::new(),
            depths: HashMap::new(),
            report: TakenReport::default(),
            over: false,
        }
    }

    /// Processes the next bytes. Fails only if the record cannot be written.
    pub fn push(&mut self, store: &mut Store, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !self.over && !rest.is_empty() {
            let end = rest.iter().position(|&byte| byte == b'\n');
            let (part, after) = match end {
                Some(end) => (&rest[..end], &rest[end + 1..]),
                None => (rest, &[][..]),
            };
            self.bytes = self.bytes.saturating_add(part.len() as u64 + 1);
            if self.bytes > MOST_BYTES || self.line.len() + part.len() > LONGEST_LINE {
                self.over = true;
                break;
            }
            self.line.extend_from_slice(part);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                self.line(store, &line)?;
            }
            rest = after;
        }
        Ok(())
    }

    /// Imports the rest. `whole` says whether the program inside finished; an incomplete run is
    /// left out.
    pub fn finish(mut self, store: &mut Store, whole: bool) -> Result<TakenReport> {
        self.over |= !whole || !self.line.is_empty();
        if self.over {
            self.arriving = self.arriving.take().filter(|run| run.came == run.claimed);
        }
        self.end_run(store)?;
        self.commit(store)?;
        self.report.reported.incomplete = self.over;
        Ok(self.report)
    }

    fn line(&mut self, store: &mut Store, line: &[u8]) -> Result<()> {
        if line.is_empty() {
            return Ok(());
        }
        let Ok(line) = serde_json::from_slice::<ExportLine>(line) else {
            self.over = true;
            return Ok(());
        };
        match line {
            ExportLine::Run { intent, outcome, chunks } => {
                self.end_run(store)?;
                if self.report.seen >= MOST_RUNS {
                    self.over = true;
                    return Ok(());
                }
                self.report.seen += 1;
                self.begin_run(store, &intent, &outcome, &chunks)?;
            }
            ExportLine::Output { run, stream, offset, base64 } => {
                let Some(arriving) = &mut self.arriving else { return Ok(()) };
                let contiguous =
                    arriving.run.intent.id() == run && arriving.came[stream.index()] == offset;
                match BASE64.decode(base64).ok().filter(|_| contiguous) {
                    Some(bytes) => arriving.take(store, stream, &bytes)?,
                    None => self.over = true,
                }
            }
            // A shortfall is detected by the size that the run claims.
            ExportLine::Lost { .. } => {}
        }
        Ok(())
    }

    fn begin_run(
        &mut self,
        store: &Store,
        intent: &Intent,
        outcome: &RunOutcome,
        chunks: &str,
    ) -> Result<()> {
        let plausible = is_plausible(self.reporter, intent, outcome);
        let chunks = BASE64.decode(chunks).ok();
        let refused = !plausible || self.is_taken(store, intent.id())?;
        let Some(chunks) = chunks.filter(|_| !refused) else {
            // The output of a refused run is skipped.
            self.report.reported.refused += 1;
            return Ok(());
        };
        let claimed = [outcome.stdout_bytes, outcome.stderr_bytes];
        let mut redactor = CountingRedactor::new(self.redactor.clone());
        let intent = Redacted::new(self.as_reported(intent.clone()), &mut redactor);
        let outcome = Redacted::new(outcome_as_reported(outcome.clone()), &mut redactor);
        let mut found = outcome.redactions_by_name.clone();
        found.add_all(redactor.redactions());
        self.arriving = Some(ReportedRun {
            run: ArrivingRun::new(intent, outcome, chunks),
            redactors: [self.redactor.stream(), self.redactor.stream()],
            came: [0; 2],
            claimed,
            found,
        });
        Ok(())
    }

    /// Whether a run has this id already. Such a run is not accepted as a parent either.
    fn is_taken(&self, store: &Store, id: RunId) -> Result<bool> {
        let known = seq_of(&store.connection, id);
        let known = known.map_err(|error| store.failed("look up an id", error))?;
        Ok(known.is_some() || self.depths.contains_key(&id))
    }

    /// The intent, with facts known outside replacing claims from inside.
    fn as_reported(&mut self, intent: Intent) -> Intent {
        let Intent { mut request, redacted, parent_id, start_time, version, program, .. } = intent;
        let reporter = self.reporter;
        // Only an earlier reported run can be its parent.
        let parent = parent_id
            .filter(|parent| self.depths.get(parent).is_some_and(|depth| *depth < DEEPEST));
        let depth = parent.and_then(|parent| self.depths.get(&parent)).map_or(1, |depth| depth + 1);
        self.depths.insert(request.id, depth);
        // A loop outside contains only runs that it started.
        request.position = LoopPosition::exec();
        request.sandbox = SandboxRequest { quarantine: false, ..reporter.request.sandbox.clone() };
        request.redaction.enabled = reporter.request.redaction.enabled;
        // The path is inside the sandbox, where it names another file.
        if matches!(request.stdin, StdinSource::File(_)) {
            request.stdin = StdinSource::Provided;
        }
        Intent {
            request,
            redacted,
            parent_id: Some(parent.unwrap_or(reporter.id())),
            reported_by: Some(reporter.id()),
            start_time,
            host: reporter.host.clone(),
            user: reporter.user.clone(),
            version,
            program,
            variables: None,
            inherited_secrets: Vec::new(),
        }
    }

    /// Completes the run that is arriving.
    fn end_run(&mut self, store: &mut Store) -> Result<()> {
        let Some(arrived) = self.arriving.take() else { return Ok(()) };
        self.complete.push(arrived.end(store)?);
        if self.complete.len() >= BATCH || self.bytes - self.committed > WAITING {
            self.commit(store)?;
        }
        Ok(())
    }

    fn commit(&mut self, store: &mut Store) -> Result<()> {
        self.committed = self.bytes;
        let mut imported = Imported::default();
        let committed = store.commit_imported(Origin::Sandbox, &mut self.complete, &mut imported);
        self.report.reported.runs += imported.imported.len() as u64;
        self.report.reported.refused += imported.known;
        committed
    }
}

impl ReportedRun {
    fn take(&mut self, store: &Store, stream: Stream, bytes: &[u8]) -> Result<()> {
        let came = &mut self.came[stream.index()];
        *came += bytes.len() as u64;
        let (run, mut result) = (&mut self.run, Ok(()));
        self.redactors[stream.index()].push(bytes, &mut |clean| {
            if result.is_ok() {
                result = run.append(&store.dir, stream, &clean);
            }
        });
        result
    }

    /// Flushes the redactors, and computes what is known about the received output.
    fn end(mut self, store: &Store) -> Result<ArrivingRun> {
        for stream in Stream::BOTH {
            let (run, mut result) = (&mut self.run, Ok(()));
            self.redactors[stream.index()].finish(&mut |clean| {
                if result.is_ok() {
                    result = run.append(&store.dir, stream, &clean);
                }
            });
            result?;
            self.found.add_all(&self.redactors[stream.index()].redactions());
        }
        let Self { mut run, redactors, came, claimed, found } = self;
        let redacted = redactors.iter().any(|redactor| redactor.count() > 0);
        let stored = run.stored();
        // Redaction shifts offsets in the output.
        let ordered = !redacted
            && came == claimed
            && ChunkReader::read_all(&run.chunks)
                .iter()
                .all(|chunk| chunk.offset <= stored[chunk.stream.index()].0);
        if !ordered {
            run.chunks.clear();
        }
        let order = (!run.chunks.is_empty()).then(|| order_hash(&run.chunks));
        run.outcome.set_stored(stored, order);
        if came != claimed {
            run.outcome.set_truncated();
        }
        run.outcome.set_redactions(found);
        Ok(run)
    }
}

/// The outcome without facts that only a runner outside can know.
fn outcome_as_reported(mut outcome: RunOutcome) -> RunOutcome {
    outcome.sandbox = None;
    outcome.ran_on = None;
    outcome.left_processes.truncate(RunOutcome::LEFT_LISTED);
    if let Some(error) = &mut outcome.error {
        error.hint = None;
    }
    outcome
}

/// Whether the run can have taken place inside the reporter.
fn is_plausible(reporter: &Intent, intent: &Intent, outcome: &RunOutcome) -> bool {
    let now = Timestamp::now();
    let (Ok(earliest), Ok(latest)) =
        (reporter.start_time.checked_sub(TOLERANCE), now.checked_add(TOLERANCE))
    else {
        return false;
    };
    let within = earliest..=latest;
    let longest = latest.duration_since(earliest).as_millis().unsigned_abs();
    let Usage { user_cpu_us, system_cpu_us, .. } = outcome.usage;
    within.contains(&intent.start_time)
        && within.contains(&outcome.end_time)
        && u128::from(outcome.duration_ms) <= longest
        && user_cpu_us.checked_add(system_cpu_us).is_some_and(|us| i64::try_from(us).is_ok())
        && intent.request.cwd.as_path().is_absolute()
}
