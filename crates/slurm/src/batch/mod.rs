//! A batch as its submitter sees it: submitted, its results imported into the record once each, and
//! results made for cells that will have none.
//!
//! Everything is written to the directory of the batch and to the record before it is acted on, so
//! that another process can continue from any point where this one was killed.

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

/// The time between two looks into the shared directory: this while results come, whatever the number
/// of batches, and longer when none do.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_AT_MOST: Duration = Duration::from_secs(1);
/// The longest time between two looks at one of many batches.
const LOOK_AT_MOST_OF_MANY: Duration = Duration::from_secs(2);
/// How often it is looked which cells have started. Only the live line depends on it.
const STARTS_EVERY: Duration = Duration::from_secs(1);
/// The shortest pause between two steps.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// How often in a row something in a directory that is there may fail.
const DIR_TRIES: u32 = 5;
/// Where a cell is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellState {
    Queued,
    Running { node: Option<String> },
    Done,
}

pub(super) struct Cell {
    pub(super) run: RunId,
    pub(super) state: CellState,
    /// The submission and the task it was last part of.
    pub(super) task: Option<(usize, usize)>,
    losses: u32,
    releases: u32,
    started: bool,
    seen_queued: bool,
    since: Option<Instant>,
    /// When its result was found.
    done_at: Option<Instant>,
    /// When its result could first not be understood.
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
    /// What the site allows, once it was asked.
    site: Option<SiteLimits>,
    pub(super) cells: Vec<Cell>,
    cell_of_run: HashMap<RunId, usize>,
    /// Cells that are to be submitted and are not part of a submission yet.
    unlisted: Vec<usize>,
    submissions: Vec<Submission>,
    /// Results that the submitter made and the shared directory did not take.
    own_results: Vec<(usize, Vec<u8>)>,
    cancelled: bool,
    /// The scheduler knows that the batch is cancelled.
    cancel_sent: bool,
    ask_at: Instant,
    ask_pause: Duration,
    look_pause: Duration,
    /// The shortest time between two looks.
    look_every: Duration,
    look_at: Instant,
    look_for_starts_at: Instant,
    /// Cells whose result was found by its name, which a listing may not have yet.
    found_by_name: BTreeSet<usize>,
    /// Submitting is not tried before this.
    submit_at: Instant,
    /// The queue was full when something was last submitted.
    queue_full: bool,
    dir_state: DirState,
    told_full: bool,
    /// How often in a row something in the directory could not be used although it is there.
    dir_failures: u32,
    notices: Vec<RemoteNotice>,
    left: usize,
}

/// What is known of the directory of a batch under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirState {
    Usable,
    NotReachable,
    Full,
}

/// What an earlier process left of a batch.
pub(crate) enum Attached {
    Batch(Box<Batch>),
    /// All of it is recorded, or the submitter died before anything was submitted.
    Nothing(OwnedBatch),
    /// Runs of it have no outcome in the record, and its directory cannot be used.
    Missing(MissingBatch),
}

/// A batch whose results cannot be looked for.
pub(crate) struct MissingBatch {
    pub owned: OwnedBatch,
    /// The runs that have no outcome.
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

/// What a batch is made of.
pub(crate) struct BatchRequest {
    pub key: String,
    pub kind: Kind,
    pub files: Vec<RequestFile>,
    pub repeatable: bool,
    pub target: SlurmTarget,
    /// What its runs answer, if that may be asked again.
    pub question: Option<BatchQuestion>,
    /// What every cell may read, as [`BatchDir::input`].
    pub input: Option<Vec<u8>>,
    pub site: SiteLimits,
}

/// Names a batch that is about to be made.
pub(crate) fn new_key() -> String {
    format!("retake-{}", RunId::new())
}

impl Batch {
    /// Writes everything down, here and there, and the intents into the record. Nothing is
    /// submitted yet.
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

    /// Continues a batch whose submitter is gone. The scheduler is not asked yet.
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
            // Which runs an entry of an earlier release is about is not known without its directory.
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

    /// Only these runs are still to come; sorted.
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

    /// Asks the scheduler with the next step, whenever it was last asked.
    pub(crate) fn ask_now(&mut self) {
        self.ask_at = Instant::now();
        self.look_at = self.ask_at;
    }

    /// Tells it how many batches are looked at, this one included.
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

    /// Whether its results may be asked for again.
    pub(crate) fn has_question(&self) -> bool {
        self.owned.entry.question.is_some()
    }

    pub(crate) fn runs(&self) -> &[RunId] {
        &self.manifest.runs
    }

    /// What a person should know, each once.
    pub(crate) fn take_notices(&mut self) -> Vec<RemoteNotice> {
        std::mem::take(&mut self.notices)
    }

    /// How long to wait before the next step.
    pub(crate) fn pause(&self) -> Duration {
        self.look_at.saturating_duration_since(Instant::now()).max(SHORTEST_PAUSE)
    }

    /// Cancels the batch. That is recorded before the scheduler is asked.
    pub(crate) fn cancel(&mut self) -> Result<(), Error> {
        if !self.cancelled {
            self.batch_dir.mark_cancelled(signals::received())?;
            self.cancelled = true;
            self.ask_now();
            self.look_pause = LOOK_EVERY;
        }
        Ok(())
    }

    /// Submits what is not submitted yet, imports new results, asks the scheduler when it is time to,
    /// and gives the cells whose results are now in the record. While the directory of the batch is
    /// not reachable or full nothing is decided: that is reported once, and waited for.
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

    /// Reports that the directory cannot be used, once for as long as that lasts.
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

    /// The cells that a step which failed later has finished, newest results last. The caller has
    /// not been told of them.
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

    /// Ends what may still run of it, and removes its directory and its entry.
    pub(crate) fn finish(self, programs: &mut SlurmPrograms<'_>) -> Result<(), Error> {
        self.close(programs)?.remove()
    }

    /// Ends what may still run of it, and removes its directory, except where an attempt left
    /// something that came too late. The entry is left to the caller.
    pub(crate) fn close(self, programs: &mut SlurmPrograms<'_>) -> Result<OwnedBatch, Error> {
        let submissions: Vec<usize> = (0..self.submissions.len()).collect();
        // A scheduler that cannot be reached now finds no directory later, and starts nothing.
        if let Ok(rows) = slurm_commands::query_tasks(programs, &self.manifest.key, &submissions)
            && rows.iter().any(|(task, row)| self.lingers(*task, row))
        {
            _ = slurm_commands::cancel(programs, &self.manifest.key, &submissions);
        }
        self.clear()
    }

    /// Whether there may be results of cells in the directory.
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

/// Removes the directory of a batch, except where an attempt left something that came too late.
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
