//! Executes a fleet's plan on the loop driver: trees, agents, the merge queue, and the record.
//!
//! Every action is recorded before it happens. If a runner dies at any point, a branch is in its
//! old or new state, and the next runner finds the trees through the record.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use retake_engine::Cancel;
use retake_runner::context::RunContext;
use retake_runner::loop_driver::{self, LoopObserver, LoopPlan, Next, StepError, StepRunner};
use retake_runner::signals;
use retake_runner::worker::Worker;
use retake_types::LoopId;
use retake_types::loop_record::agent::Spent;
use retake_types::loop_record::fleet::{CollectedWork, FleetAgent, FleetEntry, FleetOutcome};

use super::event::{
    FinishedAgent, FinishedFleet, FleetEvent, FleetFrontEnd, StandIn, TargetCheckout,
};
use super::git::{FleetGit, FleetGitError, MainRepository};
use super::overlap::Overlaps;
use super::plan::{AgentPhase, AgentReport, FleetNext, FleetPlan, FleetReport, FleetStep};
use super::record::{FleetRecorder, RecordedAgent, RecordedFleet};
use super::result::prefix;
use super::setup::{FleetError, FleetState, PreparedFleet, workspace_of};
use super::slot::Slots;
use super::stale_lock::remove_stale_locks;
use super::tree::{TreeMark, remove_tree};
use super::trees::Trees;
use crate::clock::Clock;
use crate::control::Mailbox;
use crate::driver::recorded_loop;
use crate::group::Group;
use crate::plan::AgentStopReason;
use crate::queue::{QueueStopReason, TaskAllowance};
use crate::ticker::Ticker;
use crate::workspace::{Workspace, WorkspaceDirectories};

/// How often signals are checked.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// The maximum length of a message about a conflict.
const MESSAGE: usize = 12 << 10;

/// The place of an agent to open.
pub struct AgentPlace<'a> {
    pub agent: &'a FleetAgent,
    pub workspace: Workspace,
    /// Its working directory inside its tree.
    pub root: PathBuf,
    /// The directory from which its clone borrows objects.
    pub borrows: PathBuf,
    /// Its tree, and the path of the user's own checkout at which a sandbox shows it.
    pub shown: Option<(PathBuf, PathBuf)>,
    /// Whether to run even if its task is complete.
    pub again: bool,
    pub allowance: TaskAllowance,
}

/// State shared by all threads of a fleet.
pub(super) struct Fleet<'a> {
    pub(super) id: LoopId,
    pub(super) prepared: &'a PreparedFleet,
    pub(super) main: &'a MainRepository,
    pub(super) context: &'a Arc<RunContext>,
    pub(super) front: &'a FleetFrontEnd<'a>,
    pub(super) recorder: FleetRecorder,
    pub(super) workspaces: Vec<Workspace>,
    pub(super) group: Arc<Group>,
    pub(super) slots: Slots,
    pub(super) agents: Mutex<Vec<AgentState>>,
    pub(super) overlaps: Mutex<Overlaps>,
    /// Trees are created one at a time.
    pub(super) making: Mutex<()>,
    pub(super) cancels: Arc<Mutex<Vec<(Cancel, bool)>>>,
}

/// State of an agent, from the record or this run.
#[derive(Clone, Debug, Default)]
pub(super) struct AgentState {
    pub(super) mark: Option<TreeMark>,
    /// Its state in the record of a dead runner, until it continues.
    pub(super) recorded: Option<RecordedAgent>,
    /// The work collected last.
    pub(super) work: Option<CollectedWork>,
    /// Whether its tree contains something that exists nowhere else.
    pub(super) uncollected: bool,
    pub(super) settled: bool,
    pub(super) branch: Option<String>,
    pub(super) why: Option<String>,
    /// Whether the user knows `why` already.
    pub(super) why_told: bool,
    pub(super) tree_kept: Option<String>,
    /// A conflict for it, or for a person.
    pub(super) conflict: Option<Conflict>,
    /// The stop request to it, if any.
    pub(super) stop_asked: Option<StopRequest>,
}

/// When an agent must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum StopRequest {
    AfterIteration,
    Now,
}

/// A merge conflict.
#[derive(Clone, Debug)]
pub(super) struct Conflict {
    pub(super) onto: String,
    pub(super) paths: Vec<String>,
    pub(super) text: String,
}

/// The worker of one thread, for git and gates. Agents have separate workers, which can be stopped
/// individually.
struct FleetWorker(Worker);

/// The plan with the clock and the requests of one invocation.
struct SteeredFleet<'a> {
    plan: FleetPlan,
    begun: Instant,
    before: Duration,
    state: &'a FleetState,
    fleet: &'a Fleet<'a>,
    stop_passed_on: bool,
}

enum StepReport {
    Ran(Box<AgentReport>),
    Other(FleetReport),
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a fleet to its end, or continues one.
pub fn run(
    prepared: &PreparedFleet,
    directories: &WorkspaceDirectories,
    context: &Arc<RunContext>,
    front: &FleetFrontEnd<'_>,
) -> Result<FinishedFleet, FleetError> {
    drop(signals::asked());
    signals::end_descriptor().map_err(FleetError::NoProcess)?;
    let _lock = prepared.state.lock()?;
    let failed = |error| FleetError::Io { path: prepared.state.dir().to_owned(), error };
    prepared.state.forget_stop().and_then(|()| prepared.state.note_process()).map_err(failed)?;
    if let Some(recorded) = &prepared.recorded {
        remove_stale_locks(recorded, &prepared.main);
    }
    let rules = prepared.plan.rules;
    let count = (rules.jobs as usize).clamp(1, prepared.plan.agents.len()) + 1;
    let mut workers = Vec::new();
    for _ in 0..count {
        workers.push(FleetWorker(Worker::independent(context).map_err(FleetError::NoProcess)?));
    }
    let recorder = match &prepared.recorded {
        Some(recorded) => FleetRecorder::resume(context, recorded.record.id)?,
        None => FleetRecorder::begin(context, prepared.id, &prepared.plan)?,
    };
    // Workspaces are copied only after their place is recorded.
    let directory = prepared.plan.directory.as_path();
    let agents = prepared.plan.agents.iter();
    let workspaces = agents
        .map(|agent| workspace_of(agent, directory, directories))
        .collect::<Result<Vec<_>, _>>()?;
    let spent = spent_before(&recorder, prepared);
    let budget = TaskAllowance {
        cost_usd: rules.max_cost_usd,
        tokens: rules.max_tokens,
        time: rules.max_time,
    };
    let cancels: Vec<(Cancel, bool)> =
        workers.iter().map(|worker| (worker.0.cancel().clone(), false)).collect();
    let fleet = Fleet {
        id: recorder.id(),
        prepared,
        main: &prepared.main,
        context,
        front,
        recorder,
        group: Group::new(budget, spent),
        agents: Mutex::new(agent_states(prepared)),
        workspaces,
        slots: Slots::default(),
        overlaps: Mutex::default(),
        making: Mutex::default(),
        cancels: Arc::new(Mutex::new(cancels)),
    };
    fleet.keep_base(&mut workers[0].0)?;
    let id = fleet.id.to_string();
    let before = Clock::used(prepared.state.dir(), &id).unwrap_or_default();
    let clock = Clock::start(prepared.state.dir(), &id, before);
    if let (Err(error), Some(_)) = (&clock, rules.max_time) {
        (front.event)(FleetEvent::TimeNotKept(error));
    }
    let watch = fleet.watch_signals();
    let plan = match &prepared.recorded {
        Some(recorded) => {
            (front.event)(FleetEvent::Continued {
                interrupted: recorded.interrupted,
                spent,
                time: before,
            });
            recorded.resume(spent)
        }
        None => FleetPlan::new(rules, prepared.plan.best_of, prepared.plan.agents.len(), spent),
    };
    // Decisions of a dead runner that were not recorded for all agents.
    for agent in 0..plan.agents() {
        if let Some(outcome) = plan.outcome(agent) {
            fleet.settle(agent, outcome);
        }
    }
    let plan = SteeredFleet {
        plan,
        begun: Instant::now(),
        before,
        state: &prepared.state,
        fleet: &fleet,
        stop_passed_on: false,
    };
    let driven = loop_driver::drive_steps(plan, &mut workers, &Ticks(&fleet), &fleet);
    let plan = driven.plan.plan;
    drop((clock, watch));
    if let Some(error) = driven.failure {
        return Err(error);
    }
    fleet.finish(&plan, workers)
}

/// The cost of a fleet's loops before a restart. Continued loops count when they have ended.
fn spent_before(recorder: &FleetRecorder, prepared: &PreparedFleet) -> Spent {
    let Some(recorded) = &prepared.recorded else { return Spent::default() };
    let going_on = recorded.plan.agents.iter().map(|agent| agent.name.clone());
    let going_on: Vec<String> = going_on.collect();
    let id = recorder.id().to_string();
    // Without a record the amount spent is unknown.
    recorder.read(|store| recorded_loop::spent_by_queue(store, &id, &going_on)).unwrap_or_default()
}

fn agent_states(prepared: &PreparedFleet) -> Vec<AgentState> {
    let count = prepared.plan.agents.len();
    let Some(RecordedFleet { agents, .. }) = &prepared.recorded else {
        return vec![AgentState::default(); count];
    };
    let state = |agent: &RecordedAgent| AgentState {
        mark: agent.mark,
        work: agent.work.clone(),
        uncollected: agent.collected.is_none() && agent.has_tree(),
        settled: agent.outcome.is_some(),
        branch: agent.branch.clone(),
        why: agent.why.clone(),
        tree_kept: agent.tree_kept.clone(),
        recorded: Some(agent.clone()),
        ..AgentState::default()
    };
    agents.iter().map(state).collect()
}

impl LoopPlan for SteeredFleet<'_> {
    type Step = FleetStep;
    type Report = (FleetStep, StepReport);

    fn next(&mut self, _now: Instant) -> Next<FleetStep> {
        if signals::asked().load(Ordering::Relaxed) {
            self.plan.stop(QueueStopReason::Interrupted);
        } else if self.state.is_stop_requested() && !self.stop_passed_on {
            self.stop_passed_on = true;
            self.plan.stop(QueueStopReason::Stopped);
            let runs = |agent: &usize| self.plan.phase(*agent) == AgentPhase::Running;
            for agent in (0..self.plan.agents()).filter(runs) {
                self.fleet.ask_to_stop(agent, StopRequest::AfterIteration);
            }
        }
        for agent in self.plan.unwanted() {
            self.fleet.ask_to_stop(agent, StopRequest::Now);
        }
        match self.plan.next(self.before.saturating_add(self.begun.elapsed())) {
            FleetNext::Run(step) => Next::Run(step),
            FleetNext::Wait => Next::Wait,
            FleetNext::Done => Next::Done,
        }
    }

    fn report(&mut self, _step: &FleetStep, (step, report): (FleetStep, StepReport)) {
        let agent = step.agent();
        match report {
            StepReport::Ran(report) => {
                let used = self.before.saturating_add(self.begun.elapsed());
                self.plan.ran(agent, &report, used);
            }
            StepReport::Other(report) => self.plan.report(agent, report),
        }
    }
}

struct Ticks<'a>(&'a Fleet<'a>);

impl LoopObserver<SteeredFleet<'_>> for Ticks<'_> {
    fn tick(&self, steered: &SteeredFleet<'_>) {
        let spent = self.0.group.spent();
        (self.0.front.event)(FleetEvent::Tick { plan: &steered.plan, spent });
    }
}

impl<'a> StepRunner<SteeredFleet<'a>, FleetWorker> for Fleet<'a> {
    type Error = FleetError;

    fn run(
        &self,
        worker: &mut FleetWorker,
        _number: usize,
        step: &FleetStep,
    ) -> Result<(FleetStep, StepReport), StepError<FleetError>> {
        let report = match *step {
            FleetStep::Run { agent, attempt, allowance } => {
                let report = self.run_agent(&mut worker.0, agent, attempt, Some(allowance));
                StepReport::Ran(Box::new(self.unless_interrupted(report)?))
            }
            FleetStep::Collect { agent, attempt } => {
                let report = self.run_agent(&mut worker.0, agent, attempt, None);
                StepReport::Ran(Box::new(self.unless_interrupted(report)?))
            }
            FleetStep::Merge { agent } => {
                let end = self.merge(&mut worker.0, agent);
                StepReport::Other(FleetReport::Merged(self.unless_interrupted(end)?))
            }
            FleetStep::Remove { agent } => {
                self.remove(agent).map_err(StepError::Failed)?;
                StepReport::Other(FleetReport::Removed)
            }
        };
        Ok((*step, report))
    }

    /// The plan's decision is recorded before it takes effect.
    fn reported(&self, _worker: &mut FleetWorker, steered: &mut SteeredFleet<'a>, _: &FleetStep) {
        for agent in 0..steered.plan.agents() {
            match (steered.plan.outcome(agent), steered.plan.phase(agent)) {
                (Some(outcome), _) => self.settle(agent, outcome),
                (None, AgentPhase::Waiting) => self.hand_back(agent),
                _ => {}
            }
        }
    }
}

impl Fleet<'_> {
    pub(super) fn name(&self, agent: usize) -> &str {
        &self.prepared.plan.agents[agent].name
    }

    pub(super) fn tree(&self, agent: usize) -> PathBuf {
        self.prepared.plan.directory.as_path().join(self.name(agent))
    }

    pub(super) fn trees(&self) -> &Trees {
        &self.prepared.trees
    }

    /// The prefix of an agent's references in the main repository.
    pub(super) fn prefix(&self, agent: usize) -> String {
        prefix(self.id, self.name(agent))
    }

    pub(super) fn record(&self, entry: &FleetEntry) -> Result<(), FleetError> {
        Ok(self.recorder.add(entry)?)
    }

    /// A git failure caused by a signal is not an error.
    fn unless_interrupted<T>(
        &self,
        result: Result<T, FleetError>,
    ) -> Result<T, StepError<FleetError>> {
        result.map_err(|error| match error {
            FleetError::Git(FleetGitError::Cancelled(_)) => StepError::Cancelled,
            error => StepError::Failed(error),
        })
    }

    /// While clones borrow its objects, git must not collect their base commit.
    fn keep_base(&self, worker: &mut Worker) -> Result<(), FleetError> {
        let base = &self.prepared.plan.base;
        let reference = format!("refs/retake/fleet/{}/base", self.id);
        Ok(FleetGit::new(worker, self.main).set_ref(&reference, base)?)
    }

    /// A signal stops every worker once, so that an end hook may still run.
    fn watch_signals(&self) -> Option<Ticker> {
        let cancels = self.cancels.clone();
        let watch = Ticker::start("signals", LOOK, move |_| {
            let Some(signal) = signals::received() else { return };
            for (cancel, asked) in lock(&cancels).iter_mut().filter(|(_, asked)| !asked) {
                *asked = true;
                cancel.cancel(signal);
            }
        });
        watch.ok()
    }

    /// Sends a stop request to an agent, once.
    fn ask_to_stop(&self, agent: usize, stop: StopRequest) {
        let mut agents = lock(&self.agents);
        let asked = &mut agents[agent].stop_asked;
        if asked.is_some_and(|asked| asked >= stop) {
            return;
        }
        *asked = Some(stop);
        drop(agents);
        self.pass_on_stop(agent, stop);
    }

    /// Repeats a request that was sent before the agent's loop began, which discarded it.
    pub(super) fn repeat_stop(&self, agent: usize) {
        let asked = lock(&self.agents)[agent].stop_asked;
        if let Some(stop) = asked {
            self.pass_on_stop(agent, stop);
        }
    }

    fn pass_on_stop(&self, agent: usize, stop: StopRequest) {
        let Ok(mailbox) = Mailbox::of(&self.workspaces[agent]) else { return };
        let asked = match stop {
            StopRequest::AfterIteration => mailbox.stop(),
            StopRequest::Now => mailbox.stop_now(),
        };
        if let Err(error) = asked {
            (self.front.event)(FleetEvent::NotReached { name: self.name(agent), error: &error });
        }
    }

    /// Sends a conflict to the agent that caused it.
    fn hand_back(&self, agent: usize) {
        let Some(conflict) = lock(&self.agents)[agent].conflict.take() else { return };
        let Conflict { onto, paths, text } = conflict;
        let name = self.name(agent);
        let message = format!(
            "Your work conflicts with what was merged meanwhile (commit {onto}), in: {}\n\
             Merge it: commit your work, run `git merge {onto}`, resolve the conflicts so that both \
             changes keep their purpose, and commit. Both sides of each file:\n\n{text}",
            paths.join(", ")
        );
        let message: String = message.chars().take(MESSAGE).collect();
        // Sent before it is recorded: a repeated message does less harm than a lost one.
        let sent = Mailbox::of(&self.workspaces[agent])
            .and_then(|mailbox| mailbox.tell(&message, jiff::Timestamp::now().as_nanosecond()));
        if let Err(error) = sent {
            (self.front.event)(FleetEvent::NotReached { name, error: &error });
        }
        (self.front.event)(FleetEvent::HandedBack { name, paths: &paths });
        let entry = FleetEntry::HandedBack { agent: agent as u32, onto, paths };
        if let Err(error) = self.recorder.add(&entry) {
            (self.front.event)(FleetEvent::NotRecorded(&error));
        }
    }

    /// Records the result of an agent's work, once.
    fn settle(&self, agent: usize, outcome: FleetOutcome) {
        let mut agents = lock(&self.agents);
        let state = &mut agents[agent];
        if std::mem::replace(&mut state.settled, true) {
            return;
        }
        let (branch, why) = (state.branch.clone(), state.why.clone());
        let (work, why_told) = (state.work.clone(), state.why_told);
        drop(agents);
        let entry = FleetEntry::Settled {
            agent: agent as u32,
            outcome,
            branch: branch.clone(),
            why: why.clone(),
        };
        // A record that cannot be written fails the next step before anything is removed.
        if let Err(error) = self.recorder.add(&entry) {
            (self.front.event)(FleetEvent::NotRecorded(&error));
        }
        let name = self.name(agent);
        let (branch, why) = (branch.as_deref(), why.as_deref().filter(|_| !why_told));
        (self.front.event)(FleetEvent::Settled { name, outcome, branch, why, work: work.as_ref() });
    }

    /// Ends the record, unless a signal ended the fleet early.
    fn finish(
        self,
        plan: &FleetPlan,
        mut workers: Vec<FleetWorker>,
    ) -> Result<FinishedFleet, FleetError> {
        let reason = plan.stopped();
        let interrupted = reason == Some(QueueStopReason::Interrupted)
            || signals::asked().load(Ordering::Relaxed);
        let states = lock(&self.agents).clone();
        let agents = self.prepared.plan.agents.iter().enumerate().map(|(number, agent)| {
            let state = &states[number];
            FinishedAgent {
                agent: agent.clone(),
                outcome: plan.outcome(number),
                branch: state.branch.clone(),
                why: state.why.clone(),
                work: state.work.clone(),
                tree: state.tree_kept.is_some().then(|| self.trees().home(&self.tree(number))),
            }
        });
        let agents = agents.collect();
        let mut git = FleetGit::new(&mut workers[0].0, self.main);
        let (id, target) = (self.id, self.prepared.plan.target.clone());
        let branch = stand_in(self.id);
        // A signal fails every call of git, and no attempt may be chosen yet.
        let merged = match interrupted {
            true => None,
            false => git.commit(&format!("refs/heads/{branch}"))?,
        };
        let stand_in = match (&target, merged) {
            (Some(target), Some(_)) => {
                let checkouts = git.checkouts_of(target)?;
                let checkout = match checkouts.first() {
                    _ if checkouts.contains(&self.main.top) => TargetCheckout::Here,
                    Some(path) => TargetCheckout::There(path.clone()),
                    None => TargetCheckout::Nowhere,
                };
                Some(StandIn { branch, checkout })
            }
            _ => None,
        };
        let spent = plan.spent();
        match interrupted {
            true => self.record(&FleetEntry::Interrupted)?,
            false => {
                self.remove_directory(&states);
                self.recorder.finish(stop_word(reason))?;
            }
        }
        let (best_of, chosen) = (self.prepared.plan.best_of, plan.winner().is_some());
        Ok(FinishedFleet {
            id,
            agents,
            reason,
            interrupted,
            best_of,
            chosen,
            spent,
            target,
            options: self.prepared.plan.options.clone(),
            stand_in,
        })
    }

    /// Removes the rest of the trees' directory, unless it still contains a tree.
    fn remove_directory(&self, states: &[AgentState]) {
        let directory = self.prepared.plan.directory.as_path();
        let stays = |state: &AgentState| state.tree_kept.is_some() || state.uncollected;
        if states.iter().any(stays) {
            return;
        }
        // It contains only what can be recreated: the base, the gate's tree, and copies of
        // workspaces whose loops are recorded. `agent prune` lists what cannot be removed.
        if self.trees().unmount().is_ok() {
            drop(remove_tree(directory, None));
        }
    }
}

/// The branch that receives results while the target cannot move.
pub(super) fn stand_in(id: LoopId) -> String {
    format!("retake/merged-{}", id.short())
}

fn stop_word(reason: Option<QueueStopReason>) -> &'static str {
    match reason {
        None | Some(QueueStopReason::Empty) => AgentStopReason::Completed.as_str(),
        Some(QueueStopReason::BudgetCost) => AgentStopReason::BudgetCost.as_str(),
        Some(QueueStopReason::BudgetTokens) => AgentStopReason::BudgetTokens.as_str(),
        Some(QueueStopReason::BudgetTime) => AgentStopReason::BudgetTime.as_str(),
        Some(QueueStopReason::Failed) => AgentStopReason::Failed.as_str(),
        Some(QueueStopReason::Stopped) => AgentStopReason::Stopped.as_str(),
        Some(QueueStopReason::Interrupted) => AgentStopReason::Interrupted.as_str(),
    }
}
