//! Executes the cells of a task on the machine that the scheduler chose, and leaves one complete
//! result for each.
//!
//! Does not access the record. A run that is asked to stop has the result `cancelled` only if
//! its submitter cancelled it: a scheduler also stops tasks that it will start again on another
//! machine, and then the later attempt must be able to count.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_engine::{Cancel, Keeper, KeeperSession, KeeperSettings};
use retake_runner::disturbance::MachineWatch;
use retake_runner::effects_watch::EffectsWatch;
use retake_runner::metrics::MetricsObserver;
use retake_runner::notice::{Notice, Notify, RemoteNotice};
use retake_runner::run::{self, ExecutedRun, Observer, OutputUse};
use retake_runner::scratch_dir;
use retake_runner::{machine, signals};
use retake_store::ResultFile;
use retake_store::redact::{RedactedBytes, Redactor};
use retake_types::loop_record::matrix::MatrixLoopPlan;
use retake_types::{
    Disturbance, Intent, Outcome, RanOn, Redacted, RefusalReason, RunId, RunOutcome, StartFailure,
};

use crate::batch_dir::BatchDir;
use crate::cancellation;
use crate::cancelled_by::CancelledBy;
use crate::error::Error;
use crate::pending_results::{self, PendingResults};
use crate::request_file::{PROCESSORS_VARIABLE, RequestFile};
use crate::result_file::{self, bare_ending};
use crate::shared_dir;
use crate::slurm_commands::SHARED_DIR_FULL;
use crate::watched_work::cancelled_when;

/// How often an attempt checks whether its result is still wanted.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A command is not started if there is less free space than this for its result.
const ROOM_FOR_RESULT: u64 = 256 * 1024;
/// How long to wait for an unavailable shared directory when a result is ready.
const AWAY_AT_MOST: Duration = Duration::from_secs(600);

/// The messages of the front end.
pub struct NodeWords<'a> {
    /// A reason of a refusal, as it is recorded.
    pub refusal: &'a dyn Fn(&RefusalReason) -> String,
    /// Reports that a cell has no result because of this error.
    pub failed: &'a dyn Fn(usize, &Error),
    pub notify: Notify,
}

/// The outcome of a task's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// Each has a result.
    AllHaveResults,
    /// Some have none: the runner failed.
    Failed,
    /// The shared directory has no space for results.
    DirectoryFull,
}

impl NodeEnd {
    /// The exit code for the scheduler, and through it for the submitter.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::AllHaveResults => 0,
            Self::Failed => 1,
            Self::DirectoryFull => SHARED_DIR_FULL,
        }
    }
}

/// The cells of a task: a part of the list of a batch.
#[derive(Clone, Debug)]
pub struct NodeTask {
    batch_dir: BatchDir,
    cells: Vec<usize>,
}

impl NodeTask {
    /// Task `number` of a list, with `pack` cells in each task.
    pub fn read(list: &Path, number: usize, pack: usize) -> Result<Self, Error> {
        let path = std::path::absolute(list).map_err(Error::io("find", list))?;
        let (batch_dir, submission) =
            BatchDir::of_list(&path).ok_or_else(|| Error::NotInBatch(path.clone()))?;
        let cells = batch_dir.read_list(submission)?;
        let cells = cells.into_iter().skip(number.saturating_mul(pack)).take(pack).collect();
        Ok(Self { batch_dir, cells })
    }
}

/// Executes the cells of a task one after the other.
pub fn execute(task: &NodeTask, words: &NodeWords<'_>) -> io::Result<NodeEnd> {
    let mut keeper = Keeper::start(KeeperSettings {
        session: KeeperSession::Own,
        dispositions: signals::original(),
        owns_children: true,
        own_mounts: false,
    })?;
    let cancels = signals::install(1)?;
    cancellation::watch_for_announcements();
    let watched = WatchedMachine::default();
    let batch_dir = &task.batch_dir;
    let ran_on = ran_on();
    let pending = Mutex::new(PendingResults::new(batch_dir, &ran_on.attempt));
    // A task that is started again has results of its first start.
    let published = match task.cells.len() {
        0 | 1 => HashSet::new(),
        _ => pending_results::published_runs(batch_dir, &task.cells),
    };
    let mut end = NodeEnd::AllHaveResults;
    let mut note = |cell: usize, error: &Error| {
        (words.failed)(cell, error);
        end = if error.is_full() { NodeEnd::DirectoryFull } else { NodeEnd::Failed };
        end
    };
    for cell in &task.cells {
        let start_time = Some(Timestamp::now());
        let mut attempt = Attempt {
            batch_dir,
            cell: *cell,
            ran_on: RanOn { start_time, ..ran_on.clone() },
            pending: &pending,
        };
        let parts = (&mut keeper, &cancels[0], &watched);
        let executed = execute_one(&mut attempt, &published, parts, words);
        let continued = executed.and_then(|next| lock(&pending).publish_if_due().map(|()| next));
        match continued {
            Ok(Continue::WithNext) => {}
            Ok(Continue::No) => break,
            // Without space, running the next ones is pointless.
            Err(error) if note(*cell, &error) == NodeEnd::DirectoryFull => break,
            Err(_) => {}
        }
    }
    if let Err(error) = lock(&pending).publish() {
        note(task.cells.last().copied().unwrap_or_default(), &error);
    }
    drop(keeper);
    Ok(end)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the next cell is executed.
#[derive(PartialEq, Eq)]
enum Continue {
    WithNext,
    /// The scheduler is ending this task.
    No,
}

/// Watches this machine, starting with the first cell of the task that measures something.
#[derive(Default)]
struct WatchedMachine {
    watch: OnceCell<MachineWatch>,
}

impl WatchedMachine {
    /// Starts a watch for a run.
    fn watch(&self, keepers: &[i32]) -> MachineWatch {
        let mut first = None;
        self.watch.get_or_init(|| first.insert(MachineWatch::start(keepers)).clone());
        first.unwrap_or_else(|| MachineWatch::start(keepers))
    }

    /// The disturbances of a run. A short run cannot judge the load by itself, so for one the period
    /// since the first run of the task counts.
    fn disturbances(&self, run: &MachineWatch, keepers: &[i32]) -> Vec<Disturbance> {
        let long_enough = run.is_long_enough();
        let watch = if long_enough { run } else { self.watch.get().unwrap_or(run) };
        let mut found = watch.so_far(keepers, 1);
        if !watch.is_long_enough() {
            let loads = run.at_start(1).into_iter();
            found.extend(loads.filter(|one| matches!(one, Disturbance::OtherLoad { .. })));
        }
        found
    }
}

/// One attempt at a cell.
struct Attempt<'a> {
    batch_dir: &'a BatchDir,
    cell: usize,
    ran_on: RanOn,
    /// Results of this task that are not published yet.
    pending: &'a Mutex<PendingResults>,
}

impl Attempt<'_> {
    fn name(&self) -> &str {
        &self.ran_on.attempt
    }

    fn new_result(&self) -> ResultFile {
        ResultFile::new(&self.batch_dir.temporary(self.cell, self.name()))
    }

    /// Adds the result of a run, which may be repeatable; it is published soon.
    fn add(
        &self,
        result: ResultFile,
        of: (&Redacted<Intent>, bool),
        outcome: Redacted<RunOutcome>,
    ) -> Result<Continue, Error> {
        lock(self.pending).add(self.cell, result, of, outcome)?;
        Ok(Continue::WithNext)
    }

    /// A result without any output.
    fn leave(&self, of: (&Redacted<Intent>, bool), outcome: RunOutcome) -> Result<Continue, Error> {
        // Nothing ran, so it contains no value of this machine.
        let outcome = Redacted::new(outcome, &mut Redactor::shapes());
        self.add(self.new_result(), of, outcome)
    }
}

/// Files for the command of an attempt: an empty directory, and beside it a name for its metrics. Not
/// shared, because another attempt at the same cell may still be running.
struct Scratch {
    directory: PathBuf,
    metrics: PathBuf,
}

impl Scratch {
    fn new(attempt: &Attempt<'_>) -> Result<Self, Error> {
        let parent = attempt.batch_dir.scratch_dirs();
        let name = format!("{}.{}", attempt.cell, attempt.name());
        let metrics = parent.join(format!("{name}.json"));
        let directory = parent.join(name);
        std::fs::create_dir(&directory).map_err(Error::io("make", &directory))?;
        Ok(Self { directory, metrics })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Most commands leave nothing. The batch removes later what cannot be removed now.
        if std::fs::remove_dir(&self.directory).is_err() {
            _ = scratch_dir::remove(&self.directory);
        }
        _ = std::fs::remove_file(&self.metrics);
    }
}

fn execute_one(
    attempt: &mut Attempt<'_>,
    published: &HashSet<RunId>,
    (keeper, cancel, watched): (&mut Keeper, &Cancel, &WatchedMachine),
    words: &NodeWords<'_>,
) -> Result<Continue, Error> {
    let (batch_dir, cell) = (attempt.batch_dir, attempt.cell);
    if batch_dir.has_result(cell) {
        return Ok(Continue::WithNext);
    }
    let file = match batch_dir.read_request(cell) {
        Err(error @ Error::Version { .. }) => {
            let ran_on = attempt.ran_on.clone();
            let intent = batch_dir.read_intent(cell)?;
            return attempt.leave((&intent, false), not_started(vec![error.to_string()], ran_on));
        }
        other => other?,
    };
    let of = (&file.intent, file.repeatable);
    if published.contains(&file.intent.id()) {
        return Ok(Continue::WithNext);
    }
    if let Some(by) = batch_dir.cancelled_by() {
        let mut outcome = bare_ending(&Outcome::Cancelled(libc::SIGTERM), attempt.ran_on.clone());
        by.apply(&mut outcome);
        return attempt.leave(of, outcome);
    }
    if cancel.requested().is_some() {
        return Ok(Continue::No);
    }
    if batch_dir.free_bytes()? < ROOM_FOR_RESULT {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        return Err(Error::io("write", batch_dir.path())(full));
    }
    let metrics = file.request.effects.metrics.clone();
    let measure_machine = metrics.is_some();
    let cwd = file.request.cwd.as_path().to_owned();
    let scratch = metrics.as_ref().map(|_| Scratch::new(attempt)).transpose()?;
    let own = own_variables(&file, scratch.as_ref());
    let (prepared, context) = match file.prepare(&own, words.notify.clone()) {
        Ok(ready) => ready,
        Err(reasons) => {
            let outcome = refused(&reasons, attempt.ran_on.clone(), words);
            return attempt.leave(of, outcome);
        }
    };
    let node = attempt.ran_on.node.clone().unwrap_or_default();
    batch_dir.mark_started(cell, attempt.name(), &node)?;
    let metrics_file = scratch.as_ref().map(|scratch| scratch.metrics.as_path());
    let measured = metrics_file.zip(metrics.as_ref());
    let mut measure = measured.map(|(file, metrics)| MetricsObserver::new(file, metrics, &cwd));
    let context = Arc::new(context);
    let watches = measure.is_none() && prepared.request.effects.watches();
    let mut watch =
        watches.then(|| EffectsWatch::begin(&prepared.request, &prepared.redactor, &context));
    let mut nobody = ();
    let observer: &mut dyn Observer = match (&mut measure, &mut watch) {
        (Some(measure), _) => measure,
        (None, Some(watch)) => watch,
        (None, None) => &mut nobody,
    };
    let mut result = attempt.new_result();
    let mut keep = |stream, bytes: RedactedBytes<'_>| result.append(stream, bytes);
    let keepers = [keeper.pid()];
    let watch = measure_machine.then(|| watched.watch(&keepers));
    let parts = (Ok(keeper.into()), cancel);
    let executed = while_wanted(attempt, cancel, || {
        run::execute(prepared, &context, parts, &mut keep, OutputUse::NONE, observer, None)
    });
    if let Some(watch) = watch {
        attempt.ran_on.environment = machine::environment();
        // The name that the scheduler uses, which people know.
        let host = MatrixLoopPlan::HOST.to_owned();
        attempt.ran_on.environment.insert(host, node);
        attempt.ran_on.disturbances = watched.disturbances(&watch, &keepers);
    }
    if let Some((bytes, error)) = result.lost_bytes() {
        let why = error.to_string();
        (words.notify)(Notice::Remote(RemoteNotice::OutputNotKept { bytes, why }));
    }
    let continued = finish(attempt, &file, result, executed, cancel);
    drop(scratch);
    continued
}

/// Adds the result of a run that has ended.
fn finish(
    attempt: &Attempt<'_>,
    file: &RequestFile,
    written: ResultFile,
    mut executed: ExecutedRun,
    cancel: &Cancel,
) -> Result<Continue, Error> {
    let Attempt { batch_dir, cell, ran_on, .. } = attempt;
    // Without a scheduler it will not be started again: its outcome is final.
    let cancelled = cancellation::cancelled_by(&executed.result.outcome, cancel, batch_dir)
        .filter(|by| *by != CancelledBy::SomeoneElse || is_scheduled());
    let outcome = &mut executed.outcome;
    if let Some(by) = &cancelled {
        by.apply(outcome);
    }
    // The intent's time is that of the submission.
    outcome.end_time = Timestamp::now();
    outcome.ran_on = Some(ran_on.clone());
    wait_until_seen(batch_dir, cancel);
    let outcome = executed.redacted_outcome();
    if cancelled == Some(CancelledBy::SomeoneElse) {
        let name = format!("{}.stopped", attempt.name());
        result_file::write(batch_dir, *cell, &name, written, &file.intent, outcome)?;
        let to = batch_dir.stopped(*cell, attempt.name());
        let from = batch_dir.temporary(*cell, &name);
        std::fs::rename(from, &to).map_err(Error::io("keep", &to))?;
        return Ok(Continue::No);
    }
    // If the submitter cancelled it, the next cells are recorded as cancelled, too.
    attempt.add(written, (&file.intent, file.repeatable), outcome)
}

/// Variables whose values only this machine knows.
fn own_variables<'a>(file: &RequestFile, scratch: Option<&Scratch>) -> Vec<(&'a str, OsString)> {
    let mut own: Vec<(&str, OsString)> = Vec::new();
    if let Some(scratch) = scratch {
        own.push(("RETAKE_TMP", scratch.directory.clone().into()));
        own.push(("RETAKE_METRICS", scratch.metrics.clone().into()));
    }
    if file.processors {
        let processors = std::env::var_os("SLURM_CPUS_ON_NODE").unwrap_or_default();
        own.push((PROCESSORS_VARIABLE, processors));
    }
    own
}

/// Whether a scheduler started this process, which may stop it for its own reasons.
fn is_scheduled() -> bool {
    std::env::var_os("SLURM_JOB_ID").is_some()
}

/// The machine, the scheduler's name of this task, and the number of the attempt.
fn ran_on() -> RanOn {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let job = match (variable("SLURM_ARRAY_JOB_ID"), variable("SLURM_ARRAY_TASK_ID")) {
        (Some(job), Some(task)) => Some(format!("{job}_{task}")),
        _ => variable("SLURM_JOB_ID"),
    };
    let node = variable("SLURMD_NODENAME").unwrap_or_else(machine::host);
    let attempt = format!(
        "{}-{}-{}-{}",
        job.as_deref().unwrap_or("0"),
        variable("SLURM_RESTART_COUNT").as_deref().unwrap_or("0"),
        node.replace(['/', '.'], "_"),
        std::process::id()
    );
    RanOn {
        executor: if is_scheduled() { "slurm" } else { "local" }.to_owned(),
        node: Some(node),
        job,
        attempt,
        start_time: Some(Timestamp::now()),
        ..RanOn::default()
    }
}

/// Runs `work`, and cancels it once its result is no longer wanted: a scheduler that lost
/// contact with a machine cannot stop its processes.
fn while_wanted<T>(attempt: &Attempt<'_>, cancel: &Cancel, work: impl FnOnce() -> T) -> T {
    let Attempt { batch_dir, cell, pending, .. } = attempt;
    let unwanted = || {
        // Results of short cells do not wait for a long one. An error is retried, and reported, when the task
        // ends.
        _ = lock(pending).publish_if_due();
        batch_dir.cancelled() || batch_dir.has_result(*cell) || is_removed(batch_dir)
    };
    cancelled_when(unwanted, LOOK_EVERY, cancel, work)
}

/// Whether the batch was removed: its shared directory is visible without it. A missing shared directory
/// may be unavailable for a moment.
fn is_removed(batch_dir: &BatchDir) -> bool {
    let shared = batch_dir.path().parent().and_then(Path::parent);
    !batch_dir.results().exists()
        && shared.is_some_and(|dir| matches!(shared_dir::read_id(dir), Ok(Some(_))))
}

/// Waits until the batch is visible, or was removed, or its results are no longer wanted.
fn wait_until_seen(batch_dir: &BatchDir, cancel: &Cancel) {
    let until = Instant::now() + AWAY_AT_MOST;
    while !batch_dir.results().exists()
        && !is_removed(batch_dir)
        && cancel.requested().is_none()
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn refused(reasons: &[RefusalReason], ran_on: RanOn, words: &NodeWords<'_>) -> RunOutcome {
    let texts: Vec<String> = reasons.iter().map(words.refusal).collect();
    if !reasons.iter().all(RefusalReason::is_directory) {
        return not_started(texts, ran_on);
    }
    let texts = on_node(texts, &ran_on);
    start_failure(StartFailure::WorkingDirectory(texts.join("; ")), ran_on)
}

fn not_started(texts: Vec<String>, ran_on: RanOn) -> RunOutcome {
    let texts = on_node(texts, &ran_on);
    start_failure(StartFailure::Refused(texts), ran_on)
}

fn on_node(texts: Vec<String>, ran_on: &RanOn) -> Vec<String> {
    let node = ran_on.node.as_deref().unwrap_or_default();
    texts.iter().map(|text| format!("on {node}: {text}")).collect()
}

fn start_failure(failure: StartFailure, ran_on: RanOn) -> RunOutcome {
    let mut outcome = bare_ending(&Outcome::NotStarted(failure.clone()), ran_on);
    outcome.error = Some(run::start_error(&failure));
    outcome
}
