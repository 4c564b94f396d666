//! The messages of `retake matrix` for the events of its driver.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use retake_matrix::bisect::{BisectError, BisectStep, PointResult};
use retake_matrix::browsers::Progress;
use retake_matrix::driver::{
    CellWithoutResult, MatrixError, MatrixEvent, MatrixObserver, MatrixProject, Unavailable,
    short_sha,
};
use retake_matrix::git::GitError;
use retake_matrix::plan::{
    CellResult, CellStep, CellStepKind, FailedHook, MatrixProgress, PlanKind,
};
use retake_runner::file_lock::LockError;
use retake_runner::loop_driver::remote::{EarlierRuns, RemoteStatus};
use retake_runner::notice::Notify;
use retake_runner::screen::{Screen, time_left};
use retake_types::RunId;
use retake_types::loop_record::matrix::CellHook;

use super::redacted_output::RedactedOutput;
use super::words as matrix_words;
use crate::{Failure, term, words};

/// How many cells without a result are named.
const MOST_NAMED: usize = 20;

/// Shows events on stderr: permanent lines, and a live line below them.
pub(super) struct EventScreen {
    screen: Arc<Screen>,
    quiet: bool,
    shown: RedactedOutput,
    /// Finished iterations, and the planned number, if known.
    finished: AtomicUsize,
    planned: AtomicUsize,
    /// The final number of iterations of every cell, if all have the same; 0 otherwise.
    size: AtomicU64,
    failures: Mutex<SeenFailures>,
    /// The time limit of a run.
    timeout: Option<Duration>,
}

/// Failed runs of a measurement, of which the end shows the first.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenFailures {
    pub(super) first: Option<SeenFailure>,
    /// Failed warmups and hooks, by cell.
    pub(super) around: HashMap<usize, RunId>,
    /// Whether a command did not report a metric.
    missing: bool,
}

#[derive(Clone, Debug)]
pub(super) struct SeenFailure {
    pub(super) name: String,
    pub(super) run: RunId,
    pub(super) exit_code: i32,
    /// The time after which it was terminated.
    pub(super) timed_out: Option<Duration>,
}

/// In the note about a metric that a run did not report.
const NO_NUMBER: &str = "there is no number for ";

/// How to continue after an interruption.
pub(super) fn run_again(command: &str) -> String {
    format!(" To continue, run the same command (`{command} …`) again.")
}

impl EventScreen {
    pub(super) fn new(quiet: bool, project: &MatrixProject) -> Self {
        let (finished, planned) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (screen, shown) = (Arc::new(Screen::new(quiet)), RedactedOutput::of(project));
        let (size, failures) = (AtomicU64::new(0), Mutex::default());
        let timeout = project.config.timeout;
        Self { screen, quiet, shown, finished, planned, size, failures, timeout }
    }

    /// The time after which a run was terminated: the limit, or less if a budget was exhausted.
    fn timed_out(&self, result: &CellResult) -> Option<Duration> {
        let ran = Duration::from_millis(result.duration_ms);
        result.timed_out.then(|| self.timeout.filter(|limit| *limit <= ran).unwrap_or(ran))
    }

    /// How a run ended.
    fn ended(&self, result: &CellResult) -> String {
        match self.timed_out(result) {
            Some(time) => format!("timed out after {}", term::duration(time)),
            None => format!("exit:{}", result.exit_code),
        }
    }

    /// Prints a permanent line.
    fn line(&self, text: &str) {
        self.screen.line(&self.shown.text(text));
    }

    fn notice(&self, text: &str) {
        self.screen.notice(&self.shown.text(text));
    }

    /// Replaces the live line.
    fn live(&self, text: &str) {
        self.screen.live(&self.shown.text(text));
    }

    /// The failed runs so far.
    pub(super) fn failures(&self) -> SeenFailures {
        self.seen().clone()
    }

    fn seen(&self) -> MutexGuard<'_, SeenFailures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The final number of iterations of every cell, if all have the same.
    pub(super) fn size(&self) -> Option<u64> {
        Some(self.size.load(Ordering::Relaxed)).filter(|size| *size > 0)
    }

    pub(super) fn screen(&self) -> &Screen {
        &self.screen
    }

    /// Prints how much is done after a signal, and how to continue, if possible.
    pub(super) fn interrupted(&self, continuation: &str) {
        let finished = self.finished.load(Ordering::Relaxed);
        let done = match self.planned.load(Ordering::Relaxed) {
            0 => term::count(finished as u64, "run"),
            planned => format!("{finished} of {}", term::count(planned as u64, "run")),
        };
        self.screen.line(&format!("Interrupted: {done} done and recorded.{continuation}"));
    }

    /// Prints notices above the live line.
    pub(super) fn notify(&self) -> Notify {
        let screen = self.screen.clone();
        Arc::new(move |notice| screen.notice(&words::notice(&notice)))
    }

    fn step_finished(
        &self,
        name: &str,
        step: &CellStep,
        total: Option<usize>,
        result: &CellResult,
    ) {
        if result.failed_hook.is_none_or(|failed| failed.hook != CellHook::Prepare) {
            self.line(&step_line(name, step, total, (result, &self.ended(result))));
        }
        if let Some(failed) = &result.failed_hook {
            self.notice(&format!("{name}: {}; this cell is skipped", failed_hook(failed)));
        }
        self.remember(name, step, result);
        for note in &result.notes {
            let first =
                note.contains(NO_NUMBER) && !std::mem::replace(&mut self.seen().missing, true);
            let choice = match first {
                true => {
                    let known = result.metrics.keys().map(|name| name.as_ref());
                    format!("; it reported {}", known.collect::<Vec<&str>>().join(", "))
                }
                false => String::new(),
            };
            self.notice(&format!("{name} #{}: {note}{choice}", step.iteration));
        }
    }

    fn remember(&self, name: &str, step: &CellStep, result: &CellResult) {
        let mut seen = self.seen();
        if let Some(failed) = &result.failed_hook {
            seen.around.insert(step.cell, failed.run);
        } else if step.kind == CellStepKind::Warmup && !result.ok {
            seen.around.insert(step.cell, result.id);
        } else if !result.ok && seen.first.is_none() {
            let (name, run) = (name.to_owned(), result.id);
            let timed_out = self.timed_out(result);
            seen.first = Some(SeenFailure { name, run, exit_code: result.exit_code, timed_out });
        }
    }

    fn progress(&self, progress: MatrixProgress, started: Instant, remote: Option<&RemoteStatus>) {
        let finished = progress.ok + progress.failed;
        self.finished.store(finished, Ordering::Relaxed);
        let failed = match progress.failed {
            0 => String::new(),
            count => format!("  {count} failed"),
        };
        let remote = remote.and_then(words::remote_status);
        let remote = remote.map_or_else(String::new, |status| format!("  {status}"));
        match progress.kind {
            PlanKind::Fixed { total } => {
                self.planned.store(total, Ordering::Relaxed);
                let left = time_left(started.elapsed(), finished, total);
                let left = left.filter(|left| !left.is_zero());
                let left =
                    left.map_or_else(String::new, |left| format!("  ETA {}", term::duration(left)));
                let text = format!("{finished}/{total}{failed}{left}{remote}");
                self.screen.progress("", finished as u64, total as u64, &text);
            }
            PlanKind::UntilSure { decided, comparisons, deadline } => {
                let left = deadline.map_or_else(String::new, |deadline| {
                    let left = deadline.saturating_duration_since(Instant::now()).as_secs();
                    format!("  {} left", term::duration(Duration::from_secs(left)))
                });
                let text = format!(
                    "{decided}/{comparisons} decided, {}{failed}{left}{remote}",
                    term::count(finished as u64, "run")
                );
                self.screen.progress("", decided as u64, comparisons as u64, &text);
            }
        }
    }

    fn browser_progress(&self, version: &str, progress: Progress) {
        let screen = &self.screen;
        let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        match progress {
            Progress::Waiting => {
                screen.live(&format!("chrome {version}: another process is downloading it"))
            }
            Progress::Downloading { done, total: Some(total) } => {
                let text = format!("{} of {}", megabytes(done), megabytes(total));
                screen.progress(&format!("chrome {version}: "), done, total, &text);
            }
            Progress::Downloading { done, total: None } => {
                screen.live(&format!("chrome {version}: {}", megabytes(done)));
            }
            Progress::Unpacking { done, total } => {
                screen.progress(&format!("chrome {version}: "), done, total, "unpacking");
            }
        }
    }
}

impl MatrixObserver for EventScreen {
    fn event(&self, event: MatrixEvent<'_>) {
        let screen = &self.screen;
        match event {
            MatrixEvent::EarlierRuns(EarlierRuns::Found) => {
                self.notice("waiting for cells of an earlier run on other machines");
            }
            MatrixEvent::EarlierRuns(EarlierRuns::Left(left)) => {
                self.live(&format!("waiting for {left} of an earlier run"));
            }
            MatrixEvent::EarlierRuns(EarlierRuns::Collected)
            | MatrixEvent::BrowserEnded
            | MatrixEvent::SetupCancelled
            | MatrixEvent::Idle => screen.clear(),
            MatrixEvent::Continued => {
                self.notice("an earlier run was interrupted; this one continues it");
            }
            MatrixEvent::Planned { sizes } => {
                let same = sizes.first().filter(|first| sizes.iter().all(|size| size == *first));
                self.size.store(same.copied().unwrap_or(0), Ordering::Relaxed);
            }
            MatrixEvent::Disturbed(disturbances) => {
                for disturbance in disturbances.iter().filter(|_| !self.quiet) {
                    self.notice(&matrix_words::disturbance(disturbance));
                }
            }
            MatrixEvent::SameCommit { sha, refs } => self.notice(&same_commit(sha, refs)),
            MatrixEvent::BrowserIndexUnavailable(error) => {
                self.notice(&format!("only configured browsers are searched: {error}"));
            }
            MatrixEvent::BrowserProgress { version, progress } => {
                self.browser_progress(version, progress);
            }
            MatrixEvent::WorktreeRecreated { name, why } => {
                self.notice(&format!("the worktree of {name} is created again: {why}"));
            }
            MatrixEvent::SetupStarted { name } => self.live(&format!("  [setup] {name}")),
            MatrixEvent::SetupEnded { name, exit_code } => {
                screen.clear();
                self.line(&match exit_code {
                    None => format!("  [setup] {name}  ✓"),
                    Some(code) => format!("  [setup] {name}  ✗  exit:{code}"),
                });
            }
            MatrixEvent::CountersUnavailable { metric, error } => {
                let why = no_counters(metric, error);
                self.notice(&format!("{why}; it is not measured"));
            }
            MatrixEvent::CleanupFailed { name, failed } => {
                self.notice(&format!("{name}: {}", failed_hook(&failed)));
            }
            MatrixEvent::StepFinished { name, step, total, result } => {
                self.step_finished(name, step, total, result);
            }
            MatrixEvent::NotErased { run, error } => {
                self.notice(&format!("run {run} is replaced but still there: {error}"));
            }
            MatrixEvent::Progress { progress, started, remote } => {
                self.progress(progress, started, remote);
            }
            MatrixEvent::PointStarted { name, step } => {
                self.live(&format!("  [{:>3}] {name}", step.number));
            }
            MatrixEvent::PointFinished { name, step, result, point_result, metric } => {
                screen.clear();
                self.finished.fetch_add(1, Ordering::Relaxed);
                let ended = self.ended(result);
                self.line(&point_line(name, step, (result, &ended), point_result, metric));
            }
            MatrixEvent::PointUnavailable(why) => self.notice(&unavailable(why)),
        }
    }
}

/// The line of one run of a cell.
fn step_line(
    name: &str,
    step: &CellStep,
    total: Option<usize>,
    (result, ended): (&CellResult, &str),
) -> String {
    if step.kind == CellStepKind::Warmup {
        return match result.ok {
            true => format!("  [warmup] {name}"),
            false => format!(
                "  [warmup] {name}  {ended}; this cell is skipped, see `retake runs logs {}`",
                result.id.short()
            ),
        };
    }
    let place = match total.map(|total| total.to_string()) {
        Some(total) => format!("[{:>width$}/{total}]", step.number, width = total.len()),
        // The total is unknown.
        None => format!("[{:>3}]", step.number),
    };
    let node = result.node.as_ref().map_or_else(String::new, |node| format!("  {node}"));
    format!("  {place} {name} #{}    {}ms  {ended}{node}", step.iteration, result.duration_ms)
}

/// Why the processor's counters cannot be read.
pub(super) fn no_counters(metric: &str, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "reading them is not permitted; set kernel.perf_event_paranoid to 2 or less".to_owned()
        }
        io::ErrorKind::NotFound => "this machine has none, like most virtual machines".to_owned(),
        _ => term::plain(error),
    };
    format!("{metric} needs counters of the processor: {why}")
}

/// What failed around an iteration, and where its output is.
fn failed_hook(failed: &FailedHook) -> String {
    let FailedHook { hook, exit_code, run } = failed;
    let hook = hook.as_str();
    format!("its {hook} failed with exit code {exit_code}, see `retake runs logs {}`", run.short())
}

/// The line of one run of a bisection.
fn point_line(
    name: &str,
    step: &BisectStep,
    (result, ended): (&CellResult, &str),
    point_result: PointResult,
    metric: Option<&str>,
) -> String {
    let judged = match (point_result, metric) {
        (PointResult::Value(value), metric) => {
            format!("  {}={value:.3}", metric.unwrap_or_default())
        }
        (PointResult::Exit(125), _) => "  (skipped)".to_owned(),
        (PointResult::Exit(0), Some(metric)) => format!("  (reported no {metric})"),
        _ => String::new(),
    };
    format!(
        "  [{:>3}] {name} #{}    {}ms  {ended}{judged}",
        step.number, step.iteration, result.duration_ms
    )
}

/// Refs that name the same commit.
pub(super) fn same_commit(sha: &str, refs: &[String]) -> String {
    format!("{} are one commit, {}, and share their runs", refs.join(" and "), short_sha(sha))
}

/// Why a value is not available, and where the output is.
pub(super) fn unavailable(unavailable: &Unavailable) -> String {
    match unavailable {
        Unavailable::Setup { run, .. } => {
            format!("{unavailable}; see `retake runs logs {}`", run.short())
        }
        Unavailable::LfsPointers { .. } => format!(
            "{unavailable}; install git-lfs, run `git lfs fetch --all` in the repository, and run again"
        ),
        other => other.to_string(),
    }
}

/// Why the lock of the project's matrices could not be taken.
pub(super) fn lock_error(error: &LockError) -> String {
    match error {
        LockError::Held { holder } => format!(
            "another `retake matrix` runs in this project: {holder}; wait for it, or stop it"
        ),
        error => error.to_string(),
    }
}

fn without_result(cells: &[CellWithoutResult]) -> String {
    let line = |cell: &CellWithoutResult| {
        let why = cell.why.as_deref().unwrap_or("interrupted");
        format!("  {} #{}: {why}", cell.name, cell.iteration)
    };
    let mut lines: Vec<String> = cells.iter().take(MOST_NAMED).map(line).collect();
    if cells.len() > MOST_NAMED {
        lines.push(format!("  and {} more", cells.len() - MOST_NAMED));
    }
    format!(
        "{} without a result; run it again for the rest:\n{}",
        term::count(cells.len() as u64, "cell"),
        lines.join("\n")
    )
}

/// Messages about failures of a matrix, with the options that help.
impl From<MatrixError> for Failure {
    fn from(error: MatrixError) -> Self {
        match error {
            MatrixError::Store(error) => Self::Store(error),
            MatrixError::Lock(error) => Self::Refused(lock_error(&error)),
            MatrixError::Unavailable(why) => Self::Refused(unavailable(&why)),
            MatrixError::Refused(reasons) => {
                let reasons: Vec<String> = reasons.iter().map(words::refusal).collect();
                Self::Refused(reasons.join("; "))
            }
            MatrixError::WithoutResult(cells) => Self::Refused(without_result(&cells)),
            MatrixError::Bisect(error @ BisectError::Unknown(_)) => {
                Self::Usage(format!("{error}; see them with `retake matrix status`"))
            }
            MatrixError::Git(error @ GitError::BadRef { .. }) => Self::Usage(format!(
                "{error}; list them with `git log --oneline` or `git branch -a`"
            )),
            MatrixError::NoCode => Self::Usage(format!("{error}; add code.refs")),
            MatrixError::SeveralValues { .. } => {
                Self::Usage(format!("{error}; choose one with --axis, --refs or --chrome"))
            }
            MatrixError::ShellNeeded { .. } => {
                Self::Usage(format!("{error}; allow one with --shell auto (shell: auto)"))
            }
            MatrixError::NothingToCompare => Self::Usage(
                "--until-sure compares cells, and there are no two that differ in one value; \
                 add a ref to code.refs, or an axis"
                    .into(),
            ),
            MatrixError::Filter(error) => Self::Usage(matrix_words::filter(&error)),
            MatrixError::Bisect(_) | MatrixError::Version(_) => Self::Usage(error.to_string()),
            error => Self::Refused(error.to_string()),
        }
    }
}
