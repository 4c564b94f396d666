//! A batch as its submitter sees it: submitted, its results imported into the record once each, and
//! results made for cells that will have none.
//!
//! Everything is written to the directory of the batch and to the record before it is acted on, so
//! that another process can continue from any point where this one was killed.

mod missing_result;
mod scheduler_poll;
mod submission;

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::time::{Duration, Instant};

use retake_runner::notice::RemoteNotice;
use retake_runner::signals;
use retake_store::Store;
use retake_types::{Kind, RunId};

use crate::batch_dir::{self, BatchDir, BatchManifest};
use crate::batch_entry::{BatchEntry, BatchQuestion, OwnedBatch};
use crate::error::Error;
use crate::request_file::{RequestFile, task_minutes};
use crate::shared_dir::SharedDir;
use crate::slurm_commands::{self, SiteLimits, SlurmTarget};
use crate::slurm_programs::SlurmPrograms;
pub(crate) use scheduler_poll::ASK_EVERY;
use submission::Submission;

/// How often the shared directory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_AT_MOST: Duration = Duration::from_millis(500);
/// Results imported with one commit.
const PER_COMMIT: usize = 200;

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
        }
    }
}

/// A batch under way.
pub(crate) struct Batch {
    owned: OwnedBatch,
    pub(super) batch_dir: BatchDir,
    manifest: BatchManifest,
    site: SiteLimits,
    pub(super) cells: Vec<Cell>,
    submissions: Vec<Submission>,
    cancelled: bool,
    /// The scheduler knows that the batch is cancelled.
    cancel_sent: bool,
    ask_at: Instant,
    ask_pause: Duration,
    look_pause: Duration,
    /// The scheduler failed when it was last asked.
    scheduler_fails: bool,
    notices: Vec<RemoteNotice>,
    left: usize,
}

/// What an earlier process left of a batch.
pub(crate) enum Attached {
    Batch(Box<Batch>),
    /// All of it is recorded, or the submitter died before anything was submitted.
    Nothing(OwnedBatch),
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
}

/// Names a batch that is about to be made.
pub(crate) fn new_key() -> String {
    format!("retake-{}", RunId::new())
}

impl Batch {
    /// Writes everything down, here and there, and the intents into the record. Nothing is
    /// submitted yet.
    pub(crate) fn prepare(
        programs: &mut SlurmPrograms<'_>,
        shared: &SharedDir,
        store: &mut Store,
        request: BatchRequest,
    ) -> Result<Self, Error> {
        let BatchRequest { key, kind, files, repeatable, target, question, input } = request;
        let site = slurm_commands::site_limits(programs)?;
        let program = shared.program()?;
        let batch_dir = shared.batch(&key);
        let entry =
            BatchEntry { key: key.clone(), kind, dir: batch_dir.path().to_owned(), question };
        let owned = OwnedBatch::begin(store.path(), entry)?;
        let pack = target.pack.max(1);
        let runs = files.iter().map(|file| file.intent.id()).collect();
        let manifest = BatchManifest {
            pack,
            at_once: target.max_in_flight.div_ceil(pack),
            repeatable,
            minutes: task_minutes(&files, pack),
            options: target.options,
            ..BatchManifest::new(key, kind, runs)
        };
        batch_dir.create()?;
        for (cell, file) in files.iter().enumerate() {
            let path = batch_dir.request_file(cell);
            batch_dir::write_new(&path, &batch_dir::to_json(file, &path)?)?;
        }
        if let Some(input) = input {
            batch_dir::write(&batch_dir.input(), &input)?;
        }
        let script = slurm_commands::script(&batch_dir, &program, pack);
        batch_dir::write_new(&batch_dir.script(), script.as_bytes())?;
        let path = batch_dir.manifest();
        batch_dir::write(&path, &batch_dir::to_json(&manifest, &path)?)?;
        let intents: Vec<_> = files.into_iter().map(|file| file.intent).collect();
        store.begin_remote_runs(&intents)?;
        let mut prepared = Self::new(owned, batch_dir, manifest, site);
        prepared.list_for_submission((0..prepared.cells.len()).collect())?;
        Ok(prepared)
    }

    /// Continues a batch whose submitter is gone.
    pub(crate) fn attach(
        programs: &mut SlurmPrograms<'_>,
        store: &mut Store,
        owned: OwnedBatch,
    ) -> Result<Attached, Error> {
        let batch_dir = BatchDir::at(&owned.entry.dir);
        let complete = batch_dir.manifest().exists();
        let remote = store.remote_runs()?;
        let awaited = |run: &RunId| remote.binary_search(run).is_ok();
        let manifest = match complete {
            true => batch_dir.read_manifest()?,
            false => BatchManifest::new(owned.entry.key.clone(), owned.entry.kind, Vec::new()),
        };
        if !manifest.runs.iter().any(awaited) {
            clear(&batch_dir)?;
            return Ok(Attached::Nothing(owned));
        }
        let site = slurm_commands::site_limits(programs)?;
        let mut attached = Self::new(owned, batch_dir, manifest, site);
        attached.expect(&remote);
        attached.cancelled = attached.batch_dir.cancelled();
        attached.read_submissions()?;
        Ok(Attached::Batch(Box::new(attached)))
    }

    pub(crate) fn new(
        owned: OwnedBatch,
        batch_dir: BatchDir,
        manifest: BatchManifest,
        site: SiteLimits,
    ) -> Self {
        let cells: Vec<Cell> = manifest.runs.iter().copied().map(Cell::new).collect();
        Self {
            owned,
            batch_dir,
            left: cells.len(),
            cells,
            manifest,
            site,
            submissions: Vec::new(),
            cancelled: false,
            cancel_sent: false,
            ask_at: Instant::now() + ASK_EVERY,
            ask_pause: ASK_EVERY,
            look_pause: LOOK_EVERY,
            scheduler_fails: false,
            notices: Vec::new(),
        }
    }

    /// Only these runs are still to come; sorted.
    pub(crate) fn expect(&mut self, remote: &[RunId]) {
        for cell in &mut self.cells {
            if remote.binary_search(&cell.run).is_err() {
                cell.state = CellState::Done;
                self.left -= 1;
            }
        }
    }

    /// Asks the scheduler with the next step, whenever it was last asked.
    pub(crate) fn ask_now(&mut self) {
        self.ask_at = Instant::now();
    }

    /// Whether every cell has its result in the record.
    pub(crate) fn done(&self) -> bool {
        self.left == 0
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
        self.look_pause
    }

    /// Cancels the batch. That is written down before the scheduler is told.
    pub(crate) fn cancel(&mut self) -> Result<(), Error> {
        if !self.cancelled {
            self.batch_dir.mark_cancelled(signals::received())?;
            self.cancelled = true;
            self.ask_at = Instant::now();
            self.look_pause = LOOK_EVERY;
        }
        Ok(())
    }

    /// Submits what is not submitted yet, imports new results, asks the scheduler when it is time to,
    /// and gives the cells whose results are now in the record.
    pub(crate) fn step(
        &mut self,
        programs: &mut SlurmPrograms<'_>,
        store: &mut Store,
    ) -> Result<Vec<usize>, Error> {
        if !self.cancelled {
            self.submit_listed(programs)?;
        }
        let new = self.import_results(store)?;
        self.look_for_starts()?;
        self.look_pause = match new.is_empty() {
            true => (self.look_pause * 5 / 4).min(LOOK_AT_MOST),
            false => LOOK_EVERY,
        };
        if !self.done() && Instant::now() >= self.ask_at {
            self.ask(programs)?;
        }
        Ok(new)
    }

    /// Looks which cells have started. The scheduler is asked too seldom for short ones.
    fn look_for_starts(&mut self) -> Result<(), Error> {
        for (cell, path) in self.batch_dir.attempts("started")? {
            if let Some(cell) = self.cells.get_mut(cell).filter(|cell| !cell.started) {
                cell.started = true;
                if cell.state == CellState::Queued {
                    let node = fs::read_to_string(&path).ok().filter(|node| !node.is_empty());
                    cell.state = CellState::Running { node };
                }
            }
        }
        Ok(())
    }

    /// Imports new results into the record, many with one commit.
    pub(crate) fn import_results(&mut self, store: &mut Store) -> Result<Vec<usize>, Error> {
        let finished = self.batch_dir.finished()?;
        let open = |cell: &usize| self.cells.get(*cell).is_some_and(|c| c.state != CellState::Done);
        let mut new: Vec<usize> = finished.into_iter().filter(open).collect();
        new.sort_unstable();
        let mut taken = Vec::with_capacity(new.len());
        for part in new.chunks(PER_COMMIT) {
            if self.import(store, part).is_ok() {
                taken.extend_from_slice(part);
                continue;
            }
            for cell in part {
                match self.import(store, &[*cell]) {
                    Ok(()) => taken.push(*cell),
                    Err(Error::Store(retake_store::Error::BadImport { detail, .. })) => {
                        self.set_aside(*cell, &detail)?;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        for cell in &taken {
            self.cells[*cell].state = CellState::Done;
            self.cells[*cell].done_at = Some(Instant::now());
            self.left -= 1;
        }
        Ok(taken)
    }

    fn import(&self, store: &mut Store, cells: &[usize]) -> Result<(), Error> {
        let mut all: Box<dyn Read> = Box::new(io::empty());
        for cell in cells {
            let path = self.batch_dir.result(*cell);
            let file = File::open(&path).map_err(Error::io("read", &path))?;
            all = Box::new(all.chain(file));
        }
        store.import(&mut BufReader::with_capacity(256 * 1024, all))?;
        Ok(())
    }

    /// A result that cannot be read does not count.
    fn set_aside(&mut self, cell: usize, why: &str) -> Result<(), Error> {
        let (from, to) = (self.batch_dir.result(cell), self.batch_dir.late(cell, "damaged"));
        fs::rename(&from, &to).map_err(Error::io("set aside", &from))?;
        self.notices.push(RemoteNotice::ResultDamaged { path: to, why: why.to_owned() });
        Ok(())
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

    pub(crate) fn clear(self) -> Result<OwnedBatch, Error> {
        clear(&self.batch_dir)?;
        Ok(self.owned)
    }
}

/// Removes the directory of a batch, except where an attempt left something that came too late.
fn clear(batch_dir: &BatchDir) -> Result<(), Error> {
    let dir = batch_dir.path();
    let late = dir.join("late").read_dir().is_ok_and(|mut late| late.next().is_some());
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
