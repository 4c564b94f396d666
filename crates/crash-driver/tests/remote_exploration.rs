//! An exploration on other machines, with an executor that answers from a script.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use retake_crash::model::{CrashStates, ExploreOptions, Model};
use retake_crash::operation::{
    Action, DirEntry, Entry, Kind as FileKind, Node, Operation, Recording, WriteSync,
};
use retake_crash_driver::check::Check;
use retake_crash_driver::check_worker::CheckWorkers;
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::exploration::{Exploration, Explored};
use retake_crash_driver::remote_exploration::{RemoteExploration, RemoteExplorer, ShareCommand};
use retake_crash_driver::share_answers::{ShareAnswer, ShareError};
use retake_crash_driver::share_failure::ShareFailure;
use retake_crash_driver::state_range::StateRange;
use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::loop_driver::remote::{
    Question, RemoteExecutor, RemoteStatus, ResumableExecutor,
};
use retake_runner::notice;
use retake_runner::prepare::PreparedRun;
use retake_runner::project::Project;
use retake_runner::worker::Worker;
use retake_store::redact::{RedactedBytes, Redactor};
use retake_types::{Kind, LoopId, Outcome, Redacted, Run, RunOutcome, StopReason, Stream};

/// Shares are at least this large.
const SHARE: u64 = 16;

/// What a scripted machine does with its share.
#[derive(Clone, Copy)]
enum Machine {
    /// Every state whose number is a multiple of ten fails.
    Checks,
    CannotTest,
    IsCancelled,
    /// Time is up before the states are counted.
    IsTooLate,
}

/// Executes at once, as the script says for the share that begins with a state; others check.
struct ScriptedExecutor {
    total: u64,
    script: BTreeMap<u64, Machine>,
    /// The loops of submitters that died.
    abandoned: Vec<LoopId>,
    submitted: Vec<StateRange>,
    finished: Vec<(usize, Run)>,
    ended: bool,
}

impl ScriptedExecutor {
    fn new(total: u64) -> Self {
        let (script, abandoned) = (BTreeMap::new(), Vec::new());
        let (submitted, finished) = (Vec::new(), Vec::new());
        Self { total, script, abandoned, submitted, finished, ended: false }
    }

    fn execute(&mut self, worker: &mut Worker, prepared: &PreparedRun) -> Run {
        let range: StateRange = prepared.request.labels["crash.share"].parse().unwrap();
        let machine = self.script.get(&range.from).copied().unwrap_or(Machine::Checks);
        let answer = ShareAnswer {
            distinct: Some(self.total),
            verified: range.states(),
            complete: true,
            failing: (range.from..=range.to).filter(|number| number.is_multiple_of(10)).collect(),
            failing_recovery: Vec::new(),
            during_recovery: 0,
            recovery_changes_nothing: false,
            other_path: None,
        };
        let too_late = ShareAnswer {
            distinct: None,
            verified: 0,
            complete: false,
            failing: Vec::new(),
            ..answer.clone()
        };
        let error = ShareError { error: "no check\nthere".to_owned() };
        let (output, outcome) = match machine {
            Machine::Checks => (serde_json::to_vec(&answer), Outcome::Exited(0)),
            Machine::CannotTest => (serde_json::to_vec(&error), Outcome::Exited(125)),
            Machine::IsTooLate => (serde_json::to_vec(&too_late), Outcome::Exited(0)),
            Machine::IsCancelled => (Ok(Vec::new()), Outcome::Cancelled(15)),
        };
        let store = worker.store().unwrap();
        let mut recording = store.begin(&prepared.intent).unwrap();
        let mut redactor = prepared.redactor.clone();
        let mut output_stream = redactor.stream();
        let mut keep = |bytes: RedactedBytes<'_>| recording.append(Stream::Stdout, bytes);
        output_stream.push(&output.unwrap(), &mut keep);
        output_stream.finish(&mut keep);
        let outcome = RunOutcome::bare(&outcome, Timestamp::now());
        let outcome = Redacted::new(outcome, &mut redactor);
        recording.finish(store, outcome).unwrap();
        store.get(prepared.intent.id()).unwrap()
    }
}

impl RemoteExecutor for ScriptedExecutor {
    type Error = String;

    fn capacity(&self) -> usize {
        1000
    }

    fn submit(
        &mut self,
        worker: &mut Worker,
        runs: Vec<(usize, PreparedRun)>,
    ) -> Result<(), String> {
        for (number, prepared) in &runs {
            let range = prepared.request.labels["crash.share"].parse().unwrap();
            self.submitted.push(range);
            let run = self.execute(worker, prepared);
            self.finished.push((*number, run));
        }
        Ok(())
    }

    fn poll(&mut self, _worker: &mut Worker) -> Result<Vec<(usize, Run)>, String> {
        Ok(std::mem::take(&mut self.finished))
    }

    fn cancel(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    fn status(&self) -> RemoteStatus {
        RemoteStatus { queued: self.finished.len(), ..RemoteStatus::default() }
    }

    fn finish(&mut self, _worker: &mut Worker) -> Result<(), String> {
        self.ended = true;
        Ok(())
    }
}

impl ResumableExecutor for ScriptedExecutor {
    fn program(&self) -> Result<PathBuf, String> {
        Ok("/bin/true".into())
    }

    fn ask(&mut self, _question: Question, _input: Vec<u8>) -> Result<PathBuf, String> {
        Ok("/shared/log".into())
    }

    fn take_over(&mut self, _worker: &mut Worker, _hash: &str) -> Result<Vec<LoopId>, String> {
        Ok(self.abandoned.clone())
    }
}

/// A file that is written in many parts; its directory does not exist any more.
fn recording() -> Recording {
    let node = Node(1);
    let operation =
        |call: &str, action| Entry::Operation(Operation { task: 1, call: call.to_owned(), action });
    let dir_entry = DirEntry { directory: Node::ROOT, name: "a".into() };
    let (mode, dir_entry) = (0o644, Some(dir_entry));
    let mut entries =
        vec![operation("openat", Action::Create { node, mode, kind: FileKind::File, dir_entry })];
    for part in 0..60u8 {
        let (offset, data) = (part.into(), [part].as_slice().into());
        let write = Action::Write { node, offset, data, sync: WriteSync::None, mapped: false };
        entries.push(operation("write", write));
    }
    Recording {
        root: "/nonexistent/root".into(),
        initial: Vec::new(),
        entries,
        stacks: Default::default(),
        left_running: Default::default(),
        outside: Default::default(),
        initial_is_copy: false,
    }
}

struct Site {
    _dir: tempfile::TempDir,
    context: Arc<RunContext>,
    recording: Recording,
    total: u64,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let project = Project::with_store(None, dir.path().join("store"));
        let config = Config::load(None).unwrap();
        let context = RunContext::new(&project, &config, notice::ignore(), |_, _| {});
        let recording = recording();
        let options = ExploreOptions::default();
        let total = CrashStates::new(&recording, Model::Kill, options)
            .unwrap()
            .coverage()
            .distinct_states();
        assert!(total > 3 * SHARE, "{total} states are too few shares");
        Self { _dir: dir, context, recording, total }
    }

    /// Explores as this loop, and gives what was submitted.
    fn explore(
        &self,
        executor: ScriptedExecutor,
        loop_id: LoopId,
    ) -> (Result<Explored, CrashTestError>, Vec<StateRange>) {
        let request = Check::request("true", "/", Duration::from_secs(30));
        let check = Check::with(request, Vec::new());
        let exploration = Exploration {
            recording: &self.recording,
            model: Model::Kill,
            options: ExploreOptions::default(),
            check: &check,
            deadline: None,
            recovery: None,
            observer: &(),
            range: None,
        };
        let mut workers = CheckWorkers::start(1, &self.recording, true).unwrap();
        let arguments = |command: &ShareCommand<'_>| vec![command.range.to_string()];
        let mut remote = RemoteExploration {
            executor,
            worker: Worker::independent(&self.context).unwrap(),
            context: &self.context,
            jobs: None,
            arguments,
        };
        let took = Duration::from_secs(1);
        let worker = &mut workers.workers[0];
        let explored = remote.explore(&exploration, loop_id, worker, took);
        assert!(remote.executor.ended, "what is shared is not removed");
        (explored, remote.executor.submitted)
    }
}

#[test]
fn shares_are_put_together_as_if_all_was_checked_here() {
    let site = Site::new();
    let (explored, submitted) = site.explore(ScriptedExecutor::new(site.total), LoopId::new());
    let explored = explored.unwrap();
    assert_eq!((explored.verified, explored.complete), (site.total, true));
    let failing: Vec<u64> = (1..=site.total).filter(|number| number.is_multiple_of(10)).collect();
    let numbers: Vec<u64> = explored.failing.iter().map(|found| found.number).collect();
    assert_eq!(numbers, failing);
    assert_eq!(submitted.len() as u64, site.total.div_ceil(SHARE));
}

#[test]
fn a_share_without_an_answer_is_lost_and_is_no_finding() {
    let site = Site::new();
    let mut executor = ScriptedExecutor::new(site.total);
    executor.script = BTreeMap::from([(1, Machine::CannotTest), (17, Machine::IsCancelled)]);
    let (explored, _) = site.explore(executor, LoopId::new());
    let explored = explored.unwrap();
    assert_eq!((explored.verified, explored.complete), (site.total - 2 * SHARE, false));
    assert!(explored.failing.iter().all(|found| found.number > 32), "{:?}", explored.failing);
    let lost: Vec<String> =
        explored.lost.iter().map(|(range, why)| format!("{range}: {why}")).collect();
    let expected =
        ["1-16: on another machine: no check", "17-32: cancelled in Slurm by someone else"];
    assert_eq!(lost, expected);
    assert_eq!(explored.lost[1].1, ShareFailure::CancelledByOthers);
}

#[test]
fn a_share_whose_time_is_up_is_not_complete_and_not_lost() {
    let site = Site::new();
    let mut executor = ScriptedExecutor::new(site.total);
    executor.script = BTreeMap::from([(1, Machine::IsTooLate)]);
    let explored = site.explore(executor, LoopId::new()).0.unwrap();
    assert_eq!((explored.verified, explored.complete), (site.total - SHARE, false));
    assert_eq!(explored.lost, []);
}

#[test]
fn an_exploration_without_any_answer_is_an_error() {
    let site = Site::new();
    let mut executor = ScriptedExecutor::new(site.total);
    executor.script = (0..site.total)
        .step_by(SHARE as usize)
        .map(|before| (before + 1, Machine::CannotTest))
        .collect();
    let (explored, _) = site.explore(executor, LoopId::new());
    let error = explored.err().unwrap().to_string();
    assert_eq!(error, "no state could be checked; 1-16: on another machine: no check");
}

#[test]
fn answers_requested_by_a_dead_submitter_are_reused() {
    let site = Site::new();
    let mut worker = Worker::independent(&site.context).unwrap();
    let plan = Redacted::json(&(), &mut Redactor::off()).unwrap();
    let dead = worker.store().unwrap().begin_loop(Kind::Crash, &plan).unwrap().id();
    // Of the first submission one share has no answer.
    let mut executor = ScriptedExecutor::new(site.total);
    executor.script = BTreeMap::from([(17, Machine::IsCancelled)]);
    site.explore(executor, dead).0.unwrap();
    let mut executor = ScriptedExecutor::new(site.total);
    executor.abandoned = vec![dead];
    let (explored, submitted) = site.explore(executor, LoopId::new());
    let explored = explored.unwrap();
    assert_eq!((explored.verified, explored.complete), (site.total, true));
    assert_eq!(submitted, [StateRange { from: 17, to: 32 }]);
    let stored = worker.store().unwrap().get_loop(dead).unwrap();
    assert_eq!(stored.stop_reason, Some(StopReason::Interrupted));
}
