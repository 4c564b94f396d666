//! A batch from its submitter's point of view: submits it, imports each result into the record once, and
//! publishes results for cells that will have none.
//!
//! Every step is written to the batch's directory and to the record before it is taken, so
//! that another process can continue from any point at which this one was killed.

mod collected_results;
mod missing_result;
mod scheduler_poll;
mod submission;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use retake_runner::notice::RemoteNotice;
use retake_runner::signals;
use retake_store::Store;
use retake_types::{Kind, RunId};

use crate::batch_dir::{self, BatchDir, BatchManifest};
use crate::batch_entry::{BatchEntry, BatchQuestion, OwnedBatch};
use crate::batch_presence::{self, BatchPresence};
use crate::error::Error;
use crate::request_file::{RequestFile, task_minutes};
use crate::shared_dir::SharedDir;
use crate::slurm_commands::{self, SiteLimits, SlurmTarget};
use crate::slurm_programs::SlurmPrograms;
pub(crate) use scheduler_poll::ASK_EVERY;
use submission::Submission;

/// The interval for checking the shared directory: this one while results arrive, divided among all
/// batches, and a longer one otherwise.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_AT_MOST: Duration = Duration::from_secs(1);
/// The longest interval for checking one of many batches.
const LOOK_AT_MOST_OF_MANY: Duration = Duration::from_secs(2);
/// How often to search for cells that have started. Only the live line depends on it.
const STARTS_EVERY: Duration = Duration::from_secs(1);
/// The shortest pause between two steps.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// How often in a row access to an existing directory may fail.
const DIR_TRIES: u32 = 5;
/// The state of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellState {
    Queued,
    Running { node: Option<String> },
    Done,
}

pub(super) struct Cell {
    pub(super) run: RunId,
    pub(super) state: CellState,
    /// Its last submission and task.
    pub(super) task: Option<(usize, usize)>,
    losses: u32,
    releases: u32,
    started: bool,
    seen_queued: bool,
    since: Option<Instant>,
    /// When its result was found.
    done_at: Option<Instant>,
    /// When its result was first found damaged.
    damaged_at: Option<Instant>,
    /// Its result was recorded and removed: another one comes too late.
    settled: bool,
}

impl Cell {
    fn new(run: RunId) -> Self {
        Self {
            run,
            state: CellState::Queued,
            task: None,
            losses: 0,
            releases: 0,
            started: false,
            seen_queued: false,
            since: None,
            done_at: None,
            damaged_at: None,
            settled: false,
        }
    }
}

/// A batch under way.
pub(crate) struct Batch {
    owned: OwnedBatch,
    pub(super) batch_dir: BatchDir,
    manifest: BatchManifest,
    /// The limits of the site, once known.
    site: Option<SiteLimits>,
    pub(super) cells: Vec<Cell>,
    cell_of_run: HashMap<RunId, usize>,
    /// Cells that are not part of a submission yet.
    unlisted: Vec<usize>,
    submissions: Vec<Submission>,
    /// Results of the submitter for which the shared directory had no space.
    own_results: Vec<(usize, Vec<u8>)>,
    cancelled: bool,
    /// The scheduler has been told to cancel the batch.
    cancel_sent: bool,
    ask_at: Instant,
    ask_pause: Duration,
    look_pause: Duration,
    /// The shortest interval for checking the directory.
    look_every: Duration,
    look_at: Instant,
    look_for_starts_at: Instant,
    /// Cells whose result was found by name, which a listing may not contain yet.
    found_by_name: BTreeSet<usize>,
    /// Earliest time of the next submission.
    submit_at: Instant,
    /// The queue was full at the last submission.
    queue_full: bool,
    dir_state: DirState,
    told_full: bool,
    /// How often in a row access failed although the directory exists.
    dir_failures: u32,
    notices: Vec<RemoteNotice>,
    left: usize,
}

/// The state of the directory of an active batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirState {
    Usable,
    NotReachable,
    Full,
}

/// The remains of a batch of an earlier process.
pub(crate) enum Attached {
    Batch(Box<Batch>),
    /// All of it is recorded, or the submitter died before anything was submitted.
    Nothing(OwnedBatch),
    /// Some runs have no outcome in the record, and its directory cannot be used.
    Missing(MissingBatch),
}

/// A batch whose results cannot be reached.
pub(crate) struct MissingBatch {
    pub owned: OwnedBatch,
    /// The runs without an outcome.
    pub awaited: Vec<RunId>,
    pub presence: BatchPresence,
}

impl MissingBatch {
    pub(crate) fn error(&self) -> Error {
        missing_error(&self.owned, self.awaited.len(), &self.presence)
    }
}

fn missing_error(owned: &OwnedBatch, runs: usize, presence: &BatchPresence) -> Error {
    let (dir, runs) = (owned.entry.dir.clone(), runs as u64);
    match presence {
        BatchPresence::NotReachable(why) => {
            Error::BatchNotReachable { dir, runs, why: why.clone() }
        }
        BatchPresence::Removed | BatchPresence::There => Error::BatchRemoved { dir, runs },
    }
}

/// The content of a new batch.
pub(crate) struct BatchRequest {
    pub key: String,
    pub kind: Kind,
    pub files: Vec<RequestFile>,
    pub repeatable: bool,
    pub target: SlurmTarget,
    /// The question that its runs answer, if it may be asked again.
    pub question: Option<BatchQuestion>,
    /// Input that every cell may read, as [`BatchDir::input`].
    pub input: Option<Vec<u8>>,
    pub site: SiteLimits,
}

/// A key for a new batch.
pub(crate) fn new_key() -> String {
    format!("retake-{}", RunId::new())
}

impl Batch {
    /// Writes the batch to its directory and entry, and the intents to the record. Submits
    /// nothing yet.
    pub(crate) fn prepare(
        shared: &SharedDir,
        store: &mut Store,
        request: BatchRequest,
    ) -> Result<Self, Error> {
        let BatchRequest { key, kind, mut files, repeatable, target, question, input, site } =
            request;
        let program = shared.program()?;
        let batch_dir = shared.batch(&key);
        let runs: Vec<RunId> = files.iter().map(|file| file.intent.id()).collect();
        let entry = BatchEntry {
            key: key.clone(),
            kind,
            dir: batch_dir.path().to_owned(),
            shared: Some(shared.id()?),
            runs: runs.clone(),
            question,
        };
        let owned = OwnedBatch::begin(store.path(), entry)?;
        let pack = target.pack.max(1);
        let manifest = BatchManifest {
            pack,
            at_once: target.max_in_flight.div_ceil(pack),
            repeatable,
            minutes: task_minutes(&files, pack),
            visible_after_ms: u64::try_from(target.visible_after.as_millis()).unwrap_or(u64::MAX),
            options: target.options,
            ..BatchManifest::new(key, kind, runs)
        };
        batch_dir.create()?;
        batch_dir.write_requests(&mut files)?;
        if let Some(input) = input {
            batch_dir::write(&batch_dir.input(), &input)?;
        }
        let script = slurm_commands::script(&batch_dir, &program, pack);
        batch_dir::write_new(&batch_dir.script(), script.as_bytes())?;
        let path = batch_dir.manifest();
        batch_dir::write(&path, &batch_dir::to_json(&manifest, &path)?)?;
        let intents: Vec<_> = files.into_iter().map(|file| file.intent).collect();
        store.begin_remote_runs(&intents)?;
        let mut prepared = Self::new(owned, batch_dir, manifest);
        prepared.site = Some(site);
        prepared.unlisted = (0..prepared.cells.len()).collect();
        Ok(prepared)
    }

    /// Continues a batch whose submitter is gone. Does not query the scheduler yet.
    pub(crate) fn attach(store: &mut Store, owned: OwnedBatch) -> Result<Attached, Error> {
        let batch_dir = BatchDir::at(&owned.entry.dir);
        let remote = store.remote_runs()?;
        let presence = batch_presence::of(&owned.entry);
        let manifest = match presence {
            BatchPresence::There => Some(batch_dir.read_manifest()?),
            _ => None,
        };
        let runs = match &manifest {
            Some(manifest) => &manifest.runs,
            // The runs of an entry of an earlier release are unknown without its directory.
            None if owned.entry.runs.is_empty() => &remote,
            None => &owned.entry.runs,
        };
        let awaited = runs.iter().filter(|run| remote.binary_search(run).is_ok());
        let awaited: Vec<RunId> = awaited.copied().collect();
        let Some(manifest) = manifest.filter(|_| !awaited.is_empty()) else {
            if !awaited.is_empty() {
                return Ok(Attached::Missing(MissingBatch { owned, awaited, presence }));
            }
            clear(&batch_dir)?;
            return Ok(Attached::Nothing(owned));
        };
        let mut attached = Self::new(owned, batch_dir, manifest);
        attached.expect(&remote);
        attached.cancelled = attached.batch_dir.cancelled();
        attached.read_submissions()?;
        Ok(Attached::Batch(Box::new(attached)))
    }

    pub(crate) fn new(owned: OwnedBatch, batch_dir: BatchDir, manifest: BatchManifest) -> Self {
        let cells: Vec<Cell> = manifest.runs.iter().copied().map(Cell::new).collect();
        let cell_of_run = manifest.runs.iter().enumerate().map(|(at, run)| (*run, at)).collect();
        let now = Instant::now();
        Self {
            owned,
            batch_dir,
            left: cells.len(),
            cells,
            cell_of_run,
            manifest,
            site: None,
            unlisted: Vec::new(),
            submissions: Vec::new(),
            own_results: Vec::new(),
            cancelled: false,
            cancel_sent: false,
            ask_at: now + ASK_EVERY,
            ask_pause: ASK_EVERY,
            look_pause: LOOK_EVERY,
            look_every: LOOK_EVERY,
            look_at: now,
            look_for_starts_at: now,
            found_by_name: BTreeSet::new(),
            submit_at: now,
            queue_full: false,
            dir_state: DirState::Usable,
            told_full: false,
            dir_failures: 0,
            notices: Vec::new(),
        }
    }

    /// Limits the batch to these runs, which must be sorted.
    pub(crate) fn expect(&mut self, remote: &[RunId]) {
        let done = self.batch_dir.done_bytes();
        for (at, cell) in self.cells.iter_mut().enumerate() {
            if remote.binary_search(&cell.run).is_err() {
                cell.state = CellState::Done;
                cell.settled = done.get(at) == Some(&1);
                self.left -= 1;
            }
        }
    }

    /// Makes the next step query the scheduler, whenever it was last queried.
    pub(crate) fn ask_now(&mut self) {
        self.ask_at = Instant::now();
        self.look_at = self.ask_at;
    }

    /// Sets how many batches are checked in turn, including this one.
    pub(crate) fn share_looks(&mut self, batches: usize) {
        let count = u32::try_from(batches.max(1)).unwrap_or(u32::MAX);
        self.look_every = LOOK_EVERY.saturating_mul(count).min(LOOK_AT_MOST_OF_MANY);
    }

    /// Whether every cell has its result in the record.
    pub(crate) fn done(&self) -> bool {
        self.left == 0
    }

    /// How many cells have no result in the record.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = &CellState> {
        self.cells.iter().map(|cell| &cell.state)
    }

    /// Whether its question may be asked again.
    pub(crate) fn has_question(&self) -> bool {
        self.owned.entry.question.is_some()
    }

    pub(crate) fn runs(&self) -> &[RunId] {
        &self.manifest.runs
    }

    /// Notices for the user, each returned once.
    pub(crate) fn take_notices(&mut self) -> Vec<RemoteNotice> {
        std::mem::take(&mut self.notices)
    }

    /// How long to wait before the next step.
    pub(crate) fn pause(&self) -> Duration {
        self.look_at.saturating_duration_since(Instant::now()).max(SHORTEST_PAUSE)
    }

    /// Cancels the batch. Records that before it calls the scheduler.
    pub(crate) fn cancel(&mut self) -> Result<(), Error> {
        if !self.cancelled {
            self.batch_dir.mark_cancelled(signals::received())?;
            self.cancelled = true;
            self.ask_now();
            self.look_pause = LOOK_EVERY;
        }
        Ok(())
    }

    /// Submits unsubmitted cells, imports new results, queries the scheduler if it is time,
    /// and returns the cells whose results are now recorded. While the batch's directory is
    /// unreachable or full nothing is decided: that is reported once, and the batch waits.
    pub(crate) fn step(
        &mut self,
        programs: &mut SlurmPrograms<'_>,
        store: &mut Store,
    ) -> Result<Vec<usize>, Error> {
        if Instant::now() < self.look_at {
            return Ok(Vec::new());
        }
        let before = self.left;
        let stepped = self.step_now(programs, store);
        self.look_at = Instant::now() + self.look_pause;
        let error = match stepped {
            Ok(new) => {
                self.dir_failures = 0;
                if std::mem::replace(&mut self.dir_state, DirState::Usable) != DirState::Usable {
                    let dir = self.batch_dir.path().to_owned();
                    self.notices.push(RemoteNotice::DirectoryUsable(dir));
                }
                return Ok(new);
            }
            Err(error) if error.is_below(self.batch_dir.path()) => error,
            Err(error) => return Err(error),
        };
        self.look_pause = LOOK_AT_MOST;
        self.look_at = Instant::now() + self.look_pause;
        let state = match batch_presence::of(&self.owned.entry) {
            _ if error.is_full() => DirState::Full,
            BatchPresence::NotReachable(_) => DirState::NotReachable,
            presence @ BatchPresence::Removed => {
                return Err(missing_error(&self.owned, self.left, &presence));
            }
            BatchPresence::There => {
                self.dir_failures += 1;
                if self.dir_failures > DIR_TRIES {
                    return Err(error);
                }
                return Ok(self.finished_since(before));
            }
        };
        self.note_dir(state, &error);
        Ok(self.finished_since(before))
    }

    /// Reports once that the directory cannot be used.
    fn note_dir(&mut self, state: DirState, error: &Error) {
        if std::mem::replace(&mut self.dir_state, state) == state {
            return;
        }
        if state == DirState::Full {
            self.note_full();
        } else {
            let dir = self.batch_dir.path().to_owned();
            let why = error.to_string();
            self.notices.push(RemoteNotice::DirectoryNotReachable { dir, why });
        }
    }

    /// A node reported that the directory is full.
    pub(super) fn note_full(&mut self) {
        if !std::mem::replace(&mut self.told_full, true) {
            let dir = self.batch_dir.path().to_owned();
            self.notices.push(RemoteNotice::DirectoryFull(dir));
        }
    }

    /// The cells that a step finished before it failed, newest results last. The caller does not
    /// know of them yet.
    fn finished_since(&mut self, left_before: usize) -> Vec<usize> {
        let count = left_before - self.left;
        let mut done: Vec<(Instant, usize)> = self
            .cells
            .iter()
            .enumerate()
            .filter_map(|(at, cell)| Some((cell.done_at?, at)))
            .collect();
        done.sort_unstable();
        done.split_off(done.len() - count.min(done.len())).into_iter().map(|(_, at)| at).collect()
    }

    fn step_now(
        &mut self,
        programs: &mut SlurmPrograms<'_>,
        store: &mut Store,
    ) -> Result<Vec<usize>, Error> {
        if !self.cancelled {
            self.submit_listed(programs)?;
        }
        let new = self.import_results(store)?;
        if Instant::now() >= self.look_for_starts_at {
            self.look_for_starts()?;
            self.look_for_starts_at = Instant::now() + STARTS_EVERY;
        }
        self.look_pause = match new.is_empty() {
            true => {
                (self.look_pause * 5 / 4).clamp(self.look_every, LOOK_AT_MOST.max(self.look_every))
            }
            false => self.look_every,
        };
        if !self.done() && Instant::now() >= self.ask_at {
            self.ask(programs)?;
        }
        Ok(new)
    }

    /// Cancels remaining tasks, and removes the directory and the entry.
    pub(crate) fn finish(self, programs: &mut SlurmPrograms<'_>) -> Result<(), Error> {
        self.close(programs)?.remove()
    }

    /// Cancels remaining tasks, and removes the directory, unless an attempt left a result
    /// that came too late. The entry is left to the caller.
    pub(crate) fn close(self, programs: &mut SlurmPrograms<'_>) -> Result<OwnedBatch, Error> {
        let submissions: Vec<usize> = (0..self.submissions.len()).collect();
        // If the scheduler cannot be reached now, its tasks find no directory later, and start nothing.
        if let Ok(rows) = slurm_commands::query_tasks(programs, &self.manifest.key, &submissions)
            && rows.iter().any(|(task, row)| self.lingers(*task, row))
        {
            _ = slurm_commands::cancel(programs, &self.manifest.key, &submissions);
        }
        self.clear()
    }

    /// Whether the directory may contain results of cells.
    pub(crate) fn has_results(&self) -> bool {
        self.batch_dir.results().exists()
    }

    pub(crate) fn into_owned(self) -> OwnedBatch {
        self.owned
    }

    pub(crate) fn clear(self) -> Result<OwnedBatch, Error> {
        clear(&self.batch_dir)?;
        Ok(self.owned)
    }
}

/// Removes the directory of a batch, unless an attempt left a result that came too late.
fn clear(batch_dir: &BatchDir) -> Result<(), Error> {
    let dir = batch_dir.path();
    let done = batch_dir.done_bytes();
    let is_late = |cell: usize| done.get(cell) == Some(&1);
    let late = dir.join("late").read_dir().is_ok_and(|mut late| late.next().is_some())
        || batch_dir.finished().is_ok_and(|names| names.into_iter().any(is_late));
    if !late {
        match fs::remove_dir_all(dir) {
            // A task that is just ending may still write its log.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(Error::io("remove", dir))?,
        }
    }
    Ok(())
}
