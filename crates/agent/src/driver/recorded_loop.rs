//! Recorded loops of a workspace: read as iterations, and written by a running loop.
//!
//! Each invocation of `run` is one loop, unless it continues the loop of a dead runner.

use std::io::Read;
use std::time::Duration;

use jiff::Timestamp;
use retake_runner::git_dir::Repository;
use retake_store::redact::Redactor;
use retake_store::{Liveness, LoopRecording, RecordReader, Store, StoredLoop};
use retake_types::loop_record::agent::{
    AgentEntry, AgentLoopPlan, Checkpoint, Iteration, IterationStatus, Spent, WaitCause,
};
use retake_types::{Kind, LoopId, Redacted, RunId, StopReason, Stream, TestResults};
use serde::{Deserialize, Serialize};

use super::iterations_backwards::{IterationsBackwards, PastEvent};
use crate::adapters::{AgentKind, Reader, Reading};
use crate::checkpoint::CheckpointOwner;
use crate::history::{CountedEntry, LoopTotals, RunningTotals, written_with};
use crate::plan::AgentStopReason;
use crate::workspace::{Metadata, Name, Workspace, WorkspaceDirectories, WorkspaceLock};

/// More loops than any workspace has.
const MOST_LOOPS: usize = 100_000;
const PAGE: usize = 1000;

/// One loop with its iterations, oldest first.
#[derive(Clone, Debug)]
pub struct RecordedLoop {
    pub record: StoredLoop,
    pub iterations: Vec<Iteration>,
    /// Failed verifications since the last passed one.
    pub refusals: u32,
    /// The output of the failed verification, until the next iteration ends.
    pub gate_output: Option<String>,
    /// Attempts at the next iteration, which has no number yet.
    pub attempts: u32,
    /// A verification started without a result; with the agent's run and kind.
    pub unanswered: Option<Option<(RunId, Option<String>)>>,
    /// Whether the last iteration reports the task as complete, and no verification has failed
    /// since.
    pub complete: bool,
    /// Whether verification has passed.
    pub passed: bool,
    /// Cost of attempts and verifications, outside of iterations.
    pub spent_otherwise: Spent,
    pub checkpoints: Vec<KeptCheckpoint>,
    /// The totals of its iterations.
    totals: RunningTotals,
}

/// A checkpoint, and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCheckpoint {
    pub at: Timestamp,
    #[serde(flatten)]
    pub checkpoint: Checkpoint,
}

/// The owner of a workspace's checkpoints.
pub fn checkpoint_owner(workspace: &Workspace, metadata: &Metadata) -> CheckpointOwner {
    CheckpointOwner {
        worktree: worktree(workspace),
        workspace: workspace.name().clone(),
        created: metadata.created,
    }
}

/// The owner of an archived workspace's checkpoints; `None` if it cannot be determined.
pub fn archived_checkpoint_owner(
    directories: &WorkspaceDirectories,
    archive: &Name,
) -> Option<CheckpointOwner> {
    let metadata = directories.archived_metadata(archive).ok()?;
    let name = Name::new(&directories.archived(archive).ok()?.original_name).ok()?;
    Some(checkpoint_owner(&directories.workspace(&name), &metadata))
}

/// Whether a workspace, or an archived one, still has these checkpoints.
pub fn has_checkpoint_owner(directories: &WorkspaceDirectories, owner: &CheckpointOwner) -> bool {
    let workspace = directories.open(&owner.workspace);
    let metadata = workspace.and_then(|workspace| workspace.metadata());
    if metadata.is_ok_and(|metadata| metadata.created == owner.created) {
        return true;
    }
    let archives = directories.archives().unwrap_or_default();
    archives.iter().any(|archived| {
        let name = Name::new(&archived.archive_name).ok();
        let of_archive = name.and_then(|name| archived_checkpoint_owner(directories, &name));
        of_archive.as_ref() == Some(owner)
    })
}

/// The worktree of a workspace, as git names it; empty for the main one, and outside git.
pub(crate) fn worktree(workspace: &Workspace) -> String {
    worktree_at(workspace.dir())
}

/// The same for any directory.
pub(crate) fn worktree_at(directory: &std::path::Path) -> String {
    let repository = Repository::find(directory);
    let inside = repository.and_then(|repository| {
        let inside = repository.git_dir.strip_prefix(&repository.common).ok()?;
        Some(inside.to_string_lossy().into_owned())
    });
    inside.unwrap_or_default()
}

/// All loops of a workspace since it was last reset, oldest first.
pub fn read(
    store: &Store,
    workspace: &Workspace,
    metadata: &Metadata,
) -> retake_store::Result<Vec<RecordedLoop>> {
    let all = store.list_loops(Some(Kind::Agent), MOST_LOOPS)?;
    let ours = of_workspace(&all, workspace, metadata);
    ours.into_iter().rev().map(|record| read_one(store, record.clone())).collect()
}

/// The loops of a workspace like [`read`], without their entries.
pub fn list(
    store: &Store,
    workspace: &Workspace,
    metadata: &Metadata,
) -> retake_store::Result<Vec<StoredLoop>> {
    let all = store.list_loops(Some(Kind::Agent), MOST_LOOPS)?;
    Ok(of_workspace(&all, workspace, metadata).into_iter().rev().cloned().collect())
}

/// The totals of a loop's iterations: from its last entry, or, in a loop of an earlier release, from
/// all entries.
pub fn totals(store: &dyn RecordReader, id: LoopId) -> retake_store::Result<LoopTotals> {
    let last = store.last_loop_entry(id)?;
    let entries = store.loop_entries(id, last.saturating_sub(1), 1)?;
    match entries.last().and_then(|last| written_with(&last.body)) {
        Some(totals) => Ok(totals),
        None => Ok(read_loop(store, id)?.totals.now().clone()),
    }
}

/// The iteration with this number in any of these loops, the most recent loop last.
pub fn find_iteration(
    store: &dyn RecordReader,
    loops: &[StoredLoop],
    number: u32,
) -> retake_store::Result<Option<Iteration>> {
    for record in loops.iter().rev() {
        let found = IterationsBackwards::up_to(store, record.id, number)?.next_iteration()?;
        if let Some(found) = found.filter(|found| found.number == number) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// What the gate printed when it refused the completion that this iteration reported.
pub fn find_refusal(
    store: &dyn RecordReader,
    loops: &[StoredLoop],
    wanted: u32,
) -> retake_store::Result<Option<String>> {
    for record in loops.iter().rev() {
        let mut past = IterationsBackwards::up_to(store, record.id, wanted)?;
        while let Some(event) = past.next_event()? {
            match event {
                PastEvent::Iteration(iteration) if iteration.number == wanted => return Ok(None),
                PastEvent::Iteration(_) => break,
                PastEvent::Other(_, AgentEntry::Verified { number, passed: false, said, .. })
                    if number == wanted =>
                {
                    return Ok(Some(said.unwrap_or_default()));
                }
                PastEvent::Other(..) => {}
            }
        }
    }
    Ok(None)
}

/// The last loop of each workspace, without its entries; in the order of the workspaces.
pub fn last_loops<'a>(
    store: &Store,
    workspaces: impl IntoIterator<Item = (&'a Workspace, &'a Metadata)>,
) -> retake_store::Result<Vec<Option<StoredLoop>>> {
    let all = store.list_loops(Some(Kind::Agent), MOST_LOOPS)?;
    let last = |(workspace, metadata)| of_workspace(&all, workspace, metadata).first().copied();
    Ok(workspaces.into_iter().map(|pair| last(pair).cloned()).collect())
}

/// The loops that belong to a workspace, since it was last reset.
fn of_workspace<'a>(
    loops: &'a [StoredLoop],
    workspace: &Workspace,
    metadata: &Metadata,
) -> Vec<&'a StoredLoop> {
    let worktree = worktree(workspace);
    let ours = |record: &&StoredLoop| {
        AgentLoopPlan::parse(&record.plan).is_some_and(|plan| {
            plan.workspace == workspace.name().as_str()
                && plan.created == metadata.created
                && plan.worktree.is_none_or(|of_plan| of_plan == worktree)
                && metadata.reset_at.is_none_or(|reset| record.start_time >= reset)
        })
    };
    loops.iter().filter(ours).collect()
}

/// The total cost of the loops of one run of the queue. Open loops of `continued` workspaces count
/// when they continue.
pub(crate) fn spent_by_queue(
    store: &Store,
    queue: &str,
    continued: &[String],
) -> retake_store::Result<Spent> {
    let mut spent = Spent::default();
    for record in store.list_loops(Some(Kind::Agent), MOST_LOOPS)? {
        let Some(plan) = AgentLoopPlan::parse(&record.plan) else { continue };
        let goes_on = record.stop_reason.is_none() && continued.contains(&plan.workspace);
        if plan.queue.as_deref() == Some(queue) && !goes_on {
            spent.add(totals(store, record.id)?.spent_in_all());
        }
    }
    Ok(spent)
}

/// The loops of one run of the queue with their workspaces, oldest first.
pub(crate) fn loops_in_queue(
    store: &Store,
    queue: &str,
) -> retake_store::Result<Vec<(String, LoopId)>> {
    let in_queue = |record: &StoredLoop| {
        let plan = AgentLoopPlan::parse(&record.plan)?;
        (plan.queue.as_deref() == Some(queue)).then_some((plan.workspace, record.id))
    };
    let all = store.list_loops(Some(Kind::Agent), MOST_LOOPS)?;
    Ok(all.iter().rev().filter_map(in_queue).collect())
}

/// The last loop of a workspace in one run of the queue.
fn last_in_queue(
    store: &Store,
    queue: &str,
    workspace: &str,
) -> retake_store::Result<Option<StoredLoop>> {
    let in_queue = |record: &StoredLoop| {
        AgentLoopPlan::parse(&record.plan)
            .is_some_and(|plan| plan.queue.as_deref() == Some(queue) && plan.workspace == workspace)
    };
    Ok(store.list_loops(Some(Kind::Agent), MOST_LOOPS)?.into_iter().find(in_queue))
}

/// How the last loop of a workspace in one run of the queue ended; `None` if it did not end, or
/// never began.
pub(crate) fn ended_in_queue(
    store: &Store,
    queue: &str,
    workspace: &str,
) -> retake_store::Result<Option<(LoopId, AgentStopReason)>> {
    let last = last_in_queue(store, queue, workspace)?;
    Ok(last.and_then(|last| Some((last.id, last.stop_reason?.as_str().parse().ok()?))))
}

/// Ends and returns the last loop of a workspace in one run of the queue, if its runner died.
pub(crate) fn end_open_in_queue(
    store: &mut Store,
    queue: &str,
    workspace: &str,
) -> retake_store::Result<Option<RecordedLoop>> {
    let last = last_in_queue(store, queue, workspace)?;
    let Some(open) = last.filter(|last| last.stop_reason.is_none()) else { return Ok(None) };
    let mut open = read_one(store, open)?;
    end_open(store, &mut open)?;
    Ok(Some(open))
}

/// One loop with its iterations.
pub fn read_loop(store: &dyn RecordReader, id: LoopId) -> retake_store::Result<RecordedLoop> {
    read_one(store, store.get_loop(id)?)
}

/// The current activity of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopActivity {
    Running,
    Waiting {
        cause: WaitCause,
        until: Timestamp,
    },
    Paused,
    Stopped(StopReason),
    /// Its runner died.
    Died,
}

/// The activity of a loop according to its last entry.
pub fn activity(
    store: &Store,
    record: &StoredLoop,
    workspace: &Workspace,
) -> retake_store::Result<LoopActivity> {
    if let Some(reason) = &record.stop_reason {
        return Ok(LoopActivity::Stopped(reason.clone()));
    }
    if !is_alive(store, record.id, workspace) {
        return Ok(LoopActivity::Died);
    }
    let last = store.last_loop_entry(record.id)?;
    let entries = store.loop_entries(record.id, last.saturating_sub(1), 1)?;
    let Some(stored) = entries.last() else { return Ok(LoopActivity::Running) };
    Ok(match AgentEntry::parse(&stored.body) {
        Some(AgentEntry::Paused) => LoopActivity::Paused,
        Some(AgentEntry::Waiting { cause, remaining_ms }) => {
            let until = stored.at.checked_add(Duration::from_millis(remaining_ms));
            LoopActivity::Waiting { cause, until: until.unwrap_or(stored.at) }
        }
        _ => LoopActivity::Running,
    })
}

fn read_one(store: &dyn RecordReader, record: StoredLoop) -> retake_store::Result<RecordedLoop> {
    let mut recorded = RecordedLoop {
        record,
        iterations: Vec::new(),
        refusals: 0,
        gate_output: None,
        attempts: 0,
        unanswered: None,
        complete: false,
        passed: false,
        spent_otherwise: Spent::default(),
        checkpoints: Vec::new(),
        totals: RunningTotals::default(),
    };
    let mut after = 0;
    loop {
        let events = store.loop_entries(recorded.record.id, after, PAGE)?;
        let Some(last) = events.last() else { return Ok(recorded) };
        after = last.seq;
        for event in &events {
            // Skips entries of later versions.
            if let Some(entry) = AgentEntry::parse(&event.body) {
                if let AgentEntry::Checkpoint { checkpoint } = &entry {
                    let checkpoint = checkpoint.clone();
                    recorded.checkpoints.push(KeptCheckpoint { at: event.at, checkpoint });
                }
                recorded.take(entry);
            }
        }
    }
}

impl RecordedLoop {
    fn take(&mut self, entry: AgentEntry) {
        self.totals.take(&entry);
        match entry {
            AgentEntry::Iteration { iteration } => {
                self.unanswered = None;
                self.complete = iteration.facts.complete == Some(true);
                if iteration.status.is_final() {
                    self.attempts = 0;
                }
                // An interrupted iteration did not use the verification's output.
                if iteration.status.is_final() && iteration.status != IterationStatus::Interrupted {
                    self.gate_output = None;
                }
                // Only the last iteration can have this number: numbers never decrease.
                let known = self.iterations.iter_mut().rev();
                let mut known = known.take_while(|known| known.number >= iteration.number);
                match known.find(|known| known.number == iteration.number) {
                    Some(known) => *known = *iteration,
                    None => self.iterations.push(*iteration),
                }
            }
            AgentEntry::Attempt { number, spent, .. } => {
                // Its number is not assigned yet.
                self.iterations.retain(|i| i.number != number || i.status.is_final());
                self.attempts += 1;
                self.spent_otherwise.add(spent);
            }
            AgentEntry::Verifying { run_id, agent, .. } => {
                self.unanswered = Some(run_id.map(|id| (id, agent)));
            }
            AgentEntry::Verified { passed, said, spent, .. } => {
                self.unanswered = None;
                (self.complete, self.passed) = (passed, passed);
                self.refusals = if passed { 0 } else { self.refusals + 1 };
                self.gate_output = said;
                self.spent_otherwise.add(spent);
            }
            AgentEntry::Unverified { spent, .. } => {
                // It has not started yet.
                self.unanswered = Some(None);
                self.spent_otherwise.add(spent);
            }
            AgentEntry::VerificationStarted { .. }
            | AgentEntry::AgentChanged { .. }
            | AgentEntry::Checkpoint { .. }
            | AgentEntry::Paused
            | AgentEntry::Resumed
            | AgentEntry::Waiting { .. }
            | AgentEntry::HookFailed { .. }
            | AgentEntry::Note { .. } => {}
        }
    }

    pub fn plan(&self) -> Option<AgentLoopPlan> {
        AgentLoopPlan::parse(&self.record.plan)
    }

    /// The total cost, of iterations and otherwise.
    pub fn spent(&self) -> Spent {
        let mut total = self.spent_otherwise;
        self.iterations.iter().for_each(|iteration| total.add(iteration.spent()));
        total
    }

    /// Whether it has not ended: it runs, or its runner died.
    pub fn is_open(&self) -> bool {
        self.record.stop_reason.is_none()
    }
}

/// Whether the runner of a workspace's loop is alive. A loop recorded by an earlier release has no
/// live file: then the holder of the workspace decides.
pub fn is_alive(store: &Store, id: LoopId, workspace: &Workspace) -> bool {
    match store.loop_liveness(id) {
        Liveness::Alive => true,
        Liveness::Dead => false,
        Liveness::Unknown => WorkspaceLock::holder(workspace).is_some(),
    }
}

/// All iterations of all loops, oldest first.
pub fn iterations(loops: &[RecordedLoop]) -> Vec<Iteration> {
    loops.iter().flat_map(|recorded| recorded.iterations.iter().cloned()).collect()
}

/// The latest test results of any iteration.
pub(super) fn last_tests(iterations: &[Iteration]) -> Option<&TestResults> {
    iterations.iter().rev().find_map(|i| i.result.as_ref()?.test_results.as_ref())
}

/// Ends the last loop of a workspace if its runner died, so that no later run continues it.
pub fn end_open_loop(
    store: &mut Store,
    workspace: &Workspace,
    metadata: &Metadata,
) -> retake_store::Result<()> {
    let mut loops = read(store, workspace, metadata)?;
    match loops.last_mut().filter(|last| last.is_open()) {
        Some(last) => end_open(store, last),
        None => Ok(()),
    }
}

fn end_open(store: &mut Store, open: &mut RecordedLoop) -> retake_store::Result<()> {
    // The added entries contain no secrets of the run.
    let mut recorder = AgentRecorder::resume(store, open, &Redactor::shapes())?;
    recorder.end(store, AgentStopReason::Interrupted)
}

/// Ends an iteration whose runner died, with the data from its recorded run: when it was last seen
/// alive, and its usage by then.
fn end_interrupted(store: &dyn RecordReader, agent: AgentKind, iteration: &mut Iteration) {
    let id = iteration.facts.run_id;
    let run = id.and_then(|id| store.get(id).ok());
    let ended = run.and_then(|run| run.outcome).map_or(iteration.started_at, |e| e.end_time);
    // It has a result if only the work after the agent was cut off.
    let result = iteration.result.take();
    iteration.end(IterationStatus::Interrupted, ended.max(iteration.started_at), result);
    let Some(reading) = id.and_then(|id| reread(store, agent, id)) else { return };
    let facts = &mut iteration.facts;
    facts.cost_usd = reading.cost_usd.or(facts.cost_usd);
    facts.tokens = Some(reading.tokens.total()).filter(|tokens| *tokens > 0).or(facts.tokens);
    facts.session_id = reading.session.or(facts.session_id.take());
}

/// The recorded kind; otherwise that of the loop's first agent.
fn kind_of(agent: Option<&str>, recorded: &RecordedLoop) -> AgentKind {
    let of_plan = || recorded.plan().and_then(|plan| plan.agent.parse().ok());
    agent.and_then(|word| word.parse().ok()).or_else(of_plan).unwrap_or_default()
}

/// The agent's stream up to its interruption, parsed from its recorded output.
fn reread(store: &dyn RecordReader, agent: AgentKind, id: RunId) -> Option<Reading> {
    let mut output = store.read_output(id, Stream::Stdout).ok()?;
    let mut reader = Reader::new(agent);
    let mut buffer = vec![0; 64 << 10];
    // Unreadable output is not counted.
    while let Ok(length @ 1..) = output.read(&mut buffer) {
        reader.push(&buffer[..length], &mut |_| {});
    }
    reader.finish(&mut |_| {});
    Some(reader.into_reading())
}

/// Writes the record of the running loop.
pub struct AgentRecorder {
    /// `None` without a record.
    id: Option<LoopId>,
    totals: RunningTotals,
    /// `None` once the loop has ended.
    recording: Option<LoopRecording>,
    redactor: Redactor,
}

impl AgentRecorder {
    pub fn begin(
        store: &mut Store,
        plan: &AgentLoopPlan,
        redactor: &Redactor,
    ) -> retake_store::Result<Self> {
        let plan = Redacted::json(plan, &mut redactor.clone()).expect("plain data");
        Ok(Self::new(store.begin_loop(Kind::Agent, &plan)?, RunningTotals::default(), redactor))
    }

    /// Continues a loop whose runner died, and marks unfinished entries.
    pub fn resume(
        store: &mut Store,
        recorded: &mut RecordedLoop,
        redactor: &Redactor,
    ) -> retake_store::Result<Self> {
        let adopted = store.adopt_loop(recorded.record.id)?;
        let mut recorder = Self::new(adopted, recorded.totals.clone(), redactor);
        let first = kind_of(None, recorded);
        for iteration in &mut recorded.iterations {
            if !iteration.status.is_final() {
                let agent = iteration.facts.agent.as_deref().and_then(|word| word.parse().ok());
                end_interrupted(store, agent.unwrap_or(first), iteration);
                recorded.attempts = 0;
                let iteration = Box::new(iteration.clone());
                recorder.add(store, &AgentEntry::Iteration { iteration })?;
            }
        }
        if let Some(Some((id, agent))) = recorded.unanswered.clone() {
            let agent = kind_of(agent.as_deref(), recorded);
            let spent = reread(store, agent, id).map(|reading| reading.spent()).unwrap_or_default();
            let number = recorded.iterations.last().map_or(0, |last| last.number);
            let entry = AgentEntry::Unverified { number, why: "interrupted".to_owned(), spent };
            recorder.add(store, &entry)?;
            recorded.take(entry);
        }
        Ok(recorder)
    }

    fn new(recording: LoopRecording, totals: RunningTotals, redactor: &Redactor) -> Self {
        let id = Some(recording.id());
        Self { id, totals, recording: Some(recording), redactor: redactor.clone() }
    }

    /// For a loop whose record could not be opened.
    pub fn unrecorded() -> Self {
        let totals = RunningTotals::default();
        Self { id: None, totals, recording: None, redactor: Redactor::off() }
    }

    pub fn id(&self) -> Option<LoopId> {
        self.id
    }

    pub fn add(&mut self, store: &mut Store, entry: &AgentEntry) -> retake_store::Result<()> {
        let Some(recording) = &mut self.recording else { return Ok(()) };
        let mut totals = self.totals.clone();
        totals.take(entry);
        let counted = CountedEntry { entry, so_far: totals.now() };
        recording.append(store, &[counted], &mut self.redactor)?;
        // An entry that could not be written does not count.
        self.totals = totals;
        Ok(())
    }

    pub fn end(&mut self, store: &mut Store, reason: AgentStopReason) -> retake_store::Result<()> {
        let Some(recording) = self.recording.take() else { return Ok(()) };
        recording.finish(store, &reason.as_str().into())
    }
}
