//! Executes the runs of a loop, or a single run, on a Slurm cluster.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use retake_runner::loop_driver::remote::{
    EarlierRuns, Question, RemoteExecutor, RemoteStatus, ResumableExecutor,
};
use retake_runner::notice::{Notice, Notify, RemoteNotice};
use retake_runner::prepare::PreparedRun;
use retake_runner::signals;
use retake_runner::worker::Worker;
use retake_types::config::SlurmConfig;
use retake_types::{Kind, LoopId, Run};

use crate::batch::{Attached, Batch, BatchRequest, CellState, new_key};
use crate::batch_entry::{self, OwnedBatch};
use crate::error::Error;
use crate::request_file::RequestFile;
use crate::scheduler_outage::SchedulerOutage;
use crate::shared_dir::SharedDir;
use crate::slurm_commands::{self, SiteLimits, SlurmTarget};
use crate::slurm_programs::SlurmPrograms;

/// Maximum number of runs in a batch: while it is written nothing is collected, and nodes may be idle.
const LARGEST_BATCH: usize = 1000;
/// Maximum number of active runs.
const MOST_UNDER_WAY: usize = 10_000;
/// The pause without an active batch.
const IDLE: Duration = Duration::from_millis(10);

/// Submits runs in batches, and imports their results.
pub struct SlurmExecutor {
    shared: SharedDir,
    target: SlurmTarget,
    notify: Notify,
    repeatable: bool,
    processors: bool,
    /// The question and loop of the next submission.
    asked: Option<Asked>,
    batches: Vec<SubmittedBatch>,
    /// The entries of batches whose results may still be asked for again.
    collected: Vec<OwnedBatch>,
    /// The limits of the site, once known.
    site: Option<SiteLimits>,
    /// A signal arrived, and Slurm does not answer.
    unanswered: bool,
    outage: SchedulerOutage,
}

struct Asked {
    question: Question,
    /// The key of the batch that will get the input.
    key: String,
    input: Vec<u8>,
}

struct SubmittedBatch {
    batch: Batch,
    /// The caller's number of each cell; empty for a batch that was taken over.
    numbers: Vec<usize>,
}

impl SlurmExecutor {
    /// `target` as the user gives it: `slurm`, or `slurm:PARTITION`.
    pub fn new(target: &str, config: &SlurmConfig, notify: Notify) -> Result<Self, Error> {
        Ok(Self {
            target: SlurmTarget::parse(target, config)?,
            shared: SharedDir::new(config.shared_dir.as_deref())?,
            notify,
            repeatable: true,
            processors: false,
            asked: None,
            batches: Vec::new(),
            collected: Vec::new(),
            site: None,
            unanswered: false,
            outage: SchedulerOutage::default(),
        })
    }

    /// A run that has started is not started again if its machine is lost.
    #[must_use]
    pub fn not_repeatable(mut self) -> Self {
        self.repeatable = false;
        self
    }

    /// Makes each run a separate task with this many processors; the run gets their actual number
    /// in [`PROCESSORS_VARIABLE`](crate::request_file::PROCESSORS_VARIABLE).
    #[must_use]
    pub fn with_processors(mut self, count: Option<u16>) -> Self {
        self.target.pack = 1;
        let option = count.map(|count| format!("--cpus-per-task={count}"));
        self.target.options.splice(0..0, option);
        self.processors = true;
        self
    }

    pub fn shared_dir(&self) -> &SharedDir {
        &self.shared
    }

    pub fn target(&self) -> &SlurmTarget {
        &self.target
    }

    /// The state of the single active run.
    pub fn state(&self) -> Option<&CellState> {
        self.batches.first().and_then(|submitted| submitted.batch.states().next())
    }

    /// The limits of the site. Queried once: later a controller that is unavailable is waited for.
    fn site_limits(&mut self, worker: &mut Worker) -> Result<SiteLimits, Error> {
        match self.site {
            Some(site) => Ok(site),
            None => {
                let (keeper, _) = worker.keeper_and_store()?;
                let site = slurm_commands::site_limits(&mut SlurmPrograms::new(keeper))?;
                Ok(*self.site.insert(site))
            }
        }
    }

    fn request_files(
        &self,
        worker: &Worker,
        runs: &[(usize, PreparedRun)],
    ) -> Result<Vec<RequestFile>, Error> {
        runs.iter()
            .map(|(_, prepared)| {
                let file = RequestFile::new(prepared, worker.context()).map_err(Error::Refused)?;
                let Self { processors, repeatable, .. } = *self;
                Ok(RequestFile { processors, repeatable, ..file })
            })
            .collect()
    }
}

impl RemoteExecutor for SlurmExecutor {
    type Error = Error;

    fn begin(&mut self, worker: &mut Worker) -> Result<(), Error> {
        self.site_limits(worker).map(drop)
    }

    fn capacity(&self) -> usize {
        // The input of a question is part of one batch.
        if self.asked.is_some() {
            return usize::MAX;
        }
        let pack = self.target.pack.max(1);
        // Leave room for others who use the controller.
        let jobs = self.site.and_then(|site| site.jobs).map(|jobs| (jobs / 2).max(1));
        let at_once = Some(self.target.max_in_flight).filter(|limit| *limit > 0);
        let limits = [jobs.map(|jobs| jobs.saturating_mul(pack)), at_once];
        limits.into_iter().flatten().fold(MOST_UNDER_WAY, usize::min)
    }

    fn batch_size(&self) -> usize {
        if self.asked.is_some() { usize::MAX } else { LARGEST_BATCH }
    }

    fn submit(
        &mut self,
        worker: &mut Worker,
        runs: Vec<(usize, PreparedRun)>,
    ) -> Result<(), Error> {
        let Some(kind) = runs.first().map(|(_, prepared)| prepared.intent.kind()) else {
            return Ok(());
        };
        let files = self.request_files(worker, &runs)?;
        let (key, question, input) = match self.asked.take() {
            Some(Asked { question, key, input }) => (key, Some(question.into()), Some(input)),
            None => (new_key(), None, None),
        };
        let site = self.site_limits(worker)?;
        let (_, store) = worker.keeper_and_store()?;
        let request = BatchRequest {
            key,
            kind,
            files,
            repeatable: self.repeatable,
            target: self.target.clone(),
            question,
            input,
            site,
        };
        let batch = Batch::prepare(&self.shared, store, request)?;
        let numbers = runs.iter().map(|(number, _)| *number).collect();
        self.batches.push(SubmittedBatch { batch, numbers });
        Ok(())
    }

    fn poll(&mut self, worker: &mut Worker) -> Result<Vec<(usize, Run)>, Error> {
        let (keeper, store) = worker.keeper_and_store()?;
        let mut programs = SlurmPrograms::new(keeper);
        let mut finished = Vec::new();
        let count = self.batches.len();
        for SubmittedBatch { batch, numbers } in &mut self.batches {
            batch.share_looks(count);
            let stepped = batch.step(&mut programs, store);
            for notice in batch.take_notices() {
                if self.outage.is_news(&notice) {
                    (self.notify)(Notice::Remote(notice));
                }
            }
            for cell in stepped? {
                if let Some(number) = numbers.get(cell) {
                    finished.push((*number, store.get(batch.runs()[cell])?));
                }
            }
        }
        if programs.unanswered && !std::mem::replace(&mut self.unanswered, true) {
            let runs = self.batches.iter().map(|submitted| submitted.batch.left() as u64).sum();
            if runs > 0 {
                (self.notify)(Notice::Remote(RemoteNotice::LeftRunning { runs }));
            }
        }
        for SubmittedBatch { batch, .. } in
            self.batches.extract_if(.., |submitted| submitted.batch.done())
        {
            if batch.has_question() {
                self.collected.push(batch.close(&mut programs)?);
            } else if let Err(error) = batch.finish(&mut programs) {
                (self.notify)(Notice::Remote(RemoteNotice::NotRemoved(error.to_string())));
            }
        }
        if let Some(notice) = self.outage.end(&programs) {
            (self.notify)(Notice::Remote(notice));
        }
        Ok(finished)
    }

    fn cancel(&mut self) -> Result<(), Error> {
        self.batches.iter_mut().try_for_each(|submitted| submitted.batch.cancel())
    }

    fn is_left(&self) -> bool {
        self.unanswered
    }

    fn refresh_status(&mut self) {
        self.batches.iter_mut().for_each(|submitted| submitted.batch.ask_now());
    }

    fn pause(&self) -> Duration {
        self.batches.iter().map(|submitted| submitted.batch.pause()).min().unwrap_or(IDLE)
    }

    fn status(&self) -> RemoteStatus {
        status(self.batches.iter().flat_map(|submitted| submitted.batch.states()))
    }

    fn finish(&mut self, _worker: &mut Worker) -> Result<(), Error> {
        self.collected.drain(..).try_for_each(OwnedBatch::remove)
    }

    fn runs_setup(&self) -> bool {
        self.target.setup_on_node
    }

    fn lock_shared(&self) -> Result<Option<File>, Error> {
        // Copied before the lock is taken, which the submission would need for it.
        self.shared.program()?;
        self.shared.id()?;
        self.shared.lock().map(Some)
    }

    fn collect_earlier(
        worker: &mut Worker,
        kind: Kind,
        progress: &mut dyn FnMut(EarlierRuns),
    ) -> Result<(), Error> {
        let notify = worker.context().notify.clone();
        let (keeper, store) = worker.keeper_and_store()?;
        let mut programs = SlurmPrograms::new(keeper);
        let mut outage = SchedulerOutage::default();
        let abandoned = batch_entry::take_abandoned(store.path())?;
        for owned in abandoned.into_iter().filter(|owned| owned.entry.kind == kind) {
            let mut batch = match Batch::attach(store, owned)? {
                Attached::Batch(batch) => batch,
                Attached::Nothing(owned) => {
                    owned.remove()?;
                    continue;
                }
                // Its cells must not run a second time while their results may exist.
                Attached::Missing(missing) => return Err(missing.error()),
            };
            progress(EarlierRuns::Found);
            while !batch.done() {
                signals::stop_if_asked();
                if signals::received().is_some() {
                    batch.cancel()?;
                }
                batch.step(&mut programs, store)?;
                let news = batch.take_notices().into_iter().filter(|notice| outage.is_news(notice));
                let news: Vec<_> = news.collect();
                for notice in news.into_iter().chain(outage.end(&programs)) {
                    notify(Notice::Remote(notice));
                }
                let left = batch.states().filter(|state| **state != CellState::Done).count();
                progress(EarlierRuns::Left(left));
                if programs.unanswered {
                    notify(Notice::Remote(RemoteNotice::LeftRunning { runs: left as u64 }));
                    return Ok(());
                }
                if !batch.done() {
                    std::thread::sleep(batch.pause());
                }
            }
            progress(EarlierRuns::Collected);
            batch.finish(&mut programs)?;
        }
        Ok(())
    }
}

impl ResumableExecutor for SlurmExecutor {
    fn program(&self) -> Result<PathBuf, Error> {
        self.shared.program()
    }

    fn ask(&mut self, question: Question, input: Vec<u8>) -> Result<PathBuf, Error> {
        let key = new_key();
        let path = self.shared.batch(&key).input();
        self.asked = Some(Asked { question, key, input });
        Ok(path)
    }

    fn take_over(&mut self, worker: &mut Worker, hash: &str) -> Result<Vec<LoopId>, Error> {
        let store = worker.store()?;
        let mut loops = Vec::new();
        for owned in batch_entry::take_abandoned(store.path())? {
            let question = owned.entry.question.as_ref().filter(|known| known.hash == hash);
            let Some(loop_id) = question.map(|question| question.loop_id) else { continue };
            match Batch::attach(store, owned)? {
                Attached::Batch(batch) => {
                    self.batches.push(SubmittedBatch { batch: *batch, numbers: Vec::new() });
                }
                Attached::Nothing(owned) => self.collected.push(owned),
                Attached::Missing(missing) => return Err(missing.error()),
            }
            loops.push(loop_id);
        }
        Ok(loops)
    }
}

fn status<'a>(states: impl Iterator<Item = &'a CellState>) -> RemoteStatus {
    let mut status = RemoteStatus::default();
    let mut nodes = BTreeSet::new();
    for state in states {
        match state {
            CellState::Queued => status.queued += 1,
            CellState::Running { node } => {
                status.running += 1;
                nodes.extend(node.as_deref());
            }
            CellState::Done => {}
        }
    }
    status.nodes = nodes.into_iter().map(str::to_owned).collect();
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_under_way_than_the_user_and_the_site_allow() {
        let dir = tempfile::tempdir().unwrap();
        let shared_dir = Some(dir.path().to_str().unwrap().to_owned());
        let executor = |max_in_flight: u64, pack: u64, jobs: Option<usize>| {
            let shared_dir = shared_dir.clone();
            let config = SlurmConfig { shared_dir, max_in_flight, pack, ..SlurmConfig::default() };
            let notify = retake_runner::notice::ignore();
            let mut executor = SlurmExecutor::new("slurm", &config, notify).unwrap();
            executor.site = Some(SiteLimits { array: 1000, jobs });
            executor.capacity()
        };
        assert_eq!(executor(0, 1, None), MOST_UNDER_WAY);
        assert_eq!(executor(64, 1, Some(10_000)), 64);
        assert_eq!(executor(64, 10, Some(10_000)), 64);
        assert_eq!(executor(0, 10, Some(100)), 500);
        assert_eq!(executor(0, 1, Some(1)), 1);
    }

    #[test]
    fn each_node_is_listed_once_and_done_cells_are_not_counted() {
        let running = |node: &str| CellState::Running { node: Some(node.to_owned()) };
        assert_eq!(status([CellState::Done].iter()), RemoteStatus::default());
        let states =
            [CellState::Queued, CellState::Done, running("n2"), running("n1"), running("n2")];
        let nodes = vec!["n1".to_owned(), "n2".to_owned()];
        assert_eq!(status(states.iter()), RemoteStatus { queued: 1, running: 3, nodes });
    }
}
