//! A fleet as a pure state machine: which agent starts, which result is merged next, and each
//! result. Starts nothing, reads no clock, opens no record.

use std::time::Duration;

use retake_types::loop_record::agent::Spent;
use retake_types::loop_record::fleet::{FleetOutcome, FleetRules};

use crate::plan::AgentStopReason;
use crate::queue::{
    QueuePlan, QueueRules, QueueStopReason, TaskAllowance, TaskEnd, TaskOutcome, TaskReport,
};

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FleetStep {
    /// Run an agent in its tree, and collect its work.
    Run { agent: usize, attempt: u32, allowance: TaskAllowance },
    /// Collect its work from before its runner died, because it will not continue.
    Collect { agent: usize, attempt: u32 },
    /// Merge its work, or keep it without a target.
    Merge { agent: usize },
    /// Its work is collected: remove its tree.
    Remove { agent: usize },
}

impl FleetStep {
    pub fn agent(&self) -> usize {
        let (Self::Run { agent, .. }
        | Self::Collect { agent, .. }
        | Self::Merge { agent }
        | Self::Remove { agent }) = *self;
        agent
    }
}

/// The plan's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetNext {
    Run(FleetStep),
    /// Nothing can start before a running step has reported.
    Wait,
    Done,
}

/// The result of running an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentReport {
    pub task: TaskReport,
    /// Whether its work differs from its starting point; `None` if collecting failed.
    pub changed: Option<bool>,
}

/// The result of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeEnd {
    Merged,
    /// The work is on a separate branch.
    Kept,
    Conflict,
    VerifyFailed,
    /// It could not be attempted, and no agent can help.
    Failed,
    /// A signal interrupted it: it will be repeated.
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FleetReport {
    Merged(MergeEnd),
    Removed,
}

/// The phase of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentPhase {
    Waiting,
    Running,
    /// Its work from before its runner died is being collected.
    Collecting,
    /// Its work waits to be merged; lower numbers come first.
    Finished(u32),
    Merging,
    Settled {
        outcome: FleetOutcome,
        tree: TreePhase,
    },
}

/// Whether the tree of an agent exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreePhase {
    There,
    Removing,
    /// It is removed, or stays permanently.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    phase: AgentPhase,
    attempt: u32,
    /// Whether its tree contains work from before its runner died.
    left: bool,
}

/// The state of an agent in the record of a dead runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredAgent {
    pub attempt: u32,
    pub phase: AgentPhase,
    /// Whether its tree exists and its work has no result yet.
    pub left: bool,
    /// Whether it is the chosen attempt.
    pub chosen: bool,
}

/// The state of a fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetPlan {
    rules: FleetRules,
    best_of: bool,
    /// Tracks the shared budget.
    group: QueuePlan,
    members: Vec<Member>,
    finished: u32,
    /// The chosen attempt.
    winner: Option<usize>,
    failures: u32,
}

impl FleetPlan {
    /// `spent` is what its agents spent before a restart.
    pub fn new(rules: FleetRules, best_of: bool, agents: usize, spent: Spent) -> Self {
        let group = QueueRules {
            max_cost_usd: rules.max_cost_usd,
            max_tokens: rules.max_tokens,
            max_time: rules.max_time,
            stop_on_failure: false,
        };
        let member = Member { phase: AgentPhase::Waiting, attempt: 1, left: false };
        Self {
            rules,
            best_of,
            group: QueuePlan::new(group, spent),
            members: vec![member; agents],
            finished: 0,
            winner: None,
            failures: 0,
        }
    }

    /// Restores the agents from the record of a dead runner.
    pub fn restore(&mut self, agents: impl IntoIterator<Item = RestoredAgent>) {
        for (agent, restored) in agents.into_iter().enumerate() {
            let RestoredAgent { attempt, phase, left, chosen } = restored;
            match phase {
                AgentPhase::Finished(order) => self.finished = self.finished.max(order + 1),
                AgentPhase::Settled { outcome, .. } => self.count(outcome),
                _ => {}
            }
            self.members[agent] = Member { phase, attempt, left };
            if chosen {
                self.winner = Some(agent);
            }
        }
        // The runner may have died before it recorded the consequences for the others.
        if let Some(winner) = self.winner {
            self.choose(winner);
        }
    }

    pub fn phase(&self, agent: usize) -> AgentPhase {
        self.members[agent].phase
    }

    pub fn attempt(&self, agent: usize) -> u32 {
        self.members[agent].attempt
    }

    pub fn agents(&self) -> usize {
        self.members.len()
    }

    pub fn stopped(&self) -> Option<QueueStopReason> {
        self.group.stopped()
    }

    pub fn spent(&self) -> Spent {
        self.group.spent()
    }

    pub fn outcome(&self, agent: usize) -> Option<FleetOutcome> {
        match self.members[agent].phase {
            AgentPhase::Settled { outcome, .. } => Some(outcome),
            _ => None,
        }
    }

    /// Requests the end: no further agent starts. Finished work is still merged, except after a
    /// signal.
    pub fn stop(&mut self, reason: QueueStopReason) {
        if self.group.stopped() != Some(QueueStopReason::Interrupted) {
            self.group.stop(reason);
        }
    }

    /// Running agents whose work is no longer needed.
    pub fn unwanted(&self) -> Vec<usize> {
        let halted = self.halted() && self.rules.halt.is_some_and(|halt| halt.now);
        let spent = matches!(
            self.group.stopped(),
            Some(
                QueueStopReason::BudgetCost
                    | QueueStopReason::BudgetTokens
                    | QueueStopReason::BudgetTime
            )
        );
        if !halted && self.winner.is_none() && !spent {
            return Vec::new();
        }
        let runs = |&agent: &usize| self.members[agent].phase == AgentPhase::Running;
        (0..self.members.len()).filter(runs).collect()
    }

    fn halted(&self) -> bool {
        self.rules.halt.is_some_and(|halt| self.failures >= halt.failures)
    }

    fn running(&self) -> usize {
        self.members.iter().filter(|member| member.phase == AgentPhase::Running).count()
    }

    /// The next step. A returned step is running until it reports.
    pub fn next(&mut self, time_used: Duration) -> FleetNext {
        if self.group.stopped().is_none() {
            if let Some(reason) = self.group.budget_spent(time_used) {
                self.group.stop(reason);
            } else if self.halted() {
                self.group.stop(QueueStopReason::Failed);
            }
        }
        let interrupted = self.group.stopped() == Some(QueueStopReason::Interrupted);
        let under_way = |phase: AgentPhase| match phase {
            AgentPhase::Running | AgentPhase::Collecting | AgentPhase::Merging => true,
            AgentPhase::Settled { tree, .. } => tree == TreePhase::Removing,
            AgentPhase::Waiting | AgentPhase::Finished(_) => false,
        };
        let some_under_way = self.members.iter().any(|member| under_way(member.phase));
        if interrupted {
            return if some_under_way { FleetNext::Wait } else { FleetNext::Done };
        }
        if let Some(agent) = self.next_merge() {
            self.members[agent].phase = AgentPhase::Merging;
            return FleetNext::Run(FleetStep::Merge { agent });
        }
        if self.group.stopped().is_none()
            && self.winner.is_none()
            && self.running() < self.rules.jobs.max(1) as usize
            && let Some(agent) = self.position(|phase| phase == AgentPhase::Waiting)
        {
            self.members[agent].phase = AgentPhase::Running;
            let allowance = self.group.allowance(time_used);
            let attempt = self.members[agent].attempt;
            return FleetNext::Run(FleetStep::Run { agent, attempt, allowance });
        }
        let ends = self.group.stopped().is_some() || self.winner.is_some();
        let left = |member: &Member| member.left && member.phase == AgentPhase::Waiting;
        if let Some(agent) = self.members.iter().position(left).filter(|_| ends) {
            self.members[agent].phase = AgentPhase::Collecting;
            return FleetNext::Run(FleetStep::Collect {
                agent,
                attempt: self.members[agent].attempt,
            });
        }
        let there = |phase| matches!(phase, AgentPhase::Settled { tree: TreePhase::There, .. });
        if let Some(agent) = self.position(there) {
            if let AgentPhase::Settled { tree, .. } = &mut self.members[agent].phase {
                *tree = TreePhase::Removing;
            }
            return FleetNext::Run(FleetStep::Remove { agent });
        }
        if some_under_way { FleetNext::Wait } else { FleetNext::Done }
    }

    fn position(&self, wanted: impl Fn(AgentPhase) -> bool) -> Option<usize> {
        self.members.iter().position(|member| wanted(member.phase))
    }

    /// One result at a time, in the order of completion.
    fn next_merge(&self) -> Option<usize> {
        if self.position(|phase| phase == AgentPhase::Merging).is_some() {
            return None;
        }
        let order = |member: &Member| match member.phase {
            AgentPhase::Finished(order) => Some(order),
            _ => None,
        };
        let finished = self.members.iter().enumerate();
        let finished = finished.filter_map(|(agent, member)| Some((order(member)?, agent)));
        finished.min().map(|(_, agent)| agent)
    }

    /// Processes the end of an agent.
    pub fn ran(&mut self, agent: usize, report: &AgentReport, time_used: Duration) {
        let end = &report.task.end;
        self.members[agent].left = false;
        let waits_again = self.group.done(&report.task, time_used) == TaskOutcome::WaitsAgain;
        let interrupted =
            matches!(end, TaskEnd::Stopped { reason: AgentStopReason::Interrupted, .. });
        if waits_again && interrupted {
            self.members[agent].phase = AgentPhase::Waiting;
            return;
        }
        match (end, report.changed) {
            (_, None) => self.settle(agent, FleetOutcome::AgentFailed),
            (TaskEnd::Stopped { reason: AgentStopReason::VerifyFailed, .. }, _) => {
                self.settle(agent, FleetOutcome::VerifyFailed);
            }
            (end, _) if end.failed() => self.settle(agent, FleetOutcome::AgentFailed),
            (_, Some(false)) => self.settle(agent, FleetOutcome::NoChange),
            (end, Some(true)) if end.completed() && self.winner.is_none() => {
                self.members[agent].phase = AgentPhase::Finished(self.finished);
                self.finished += 1;
            }
            // It was stopped, is out of budget, or another attempt was chosen.
            (_, Some(true)) => self.settle(agent, FleetOutcome::Kept),
        }
    }

    /// Processes the end of a merge or a removal.
    pub fn report(&mut self, agent: usize, report: FleetReport) {
        let end = match report {
            FleetReport::Removed => {
                if let AgentPhase::Settled { tree, .. } = &mut self.members[agent].phase {
                    *tree = TreePhase::Done;
                }
                return;
            }
            FleetReport::Merged(end) => end,
        };
        match end {
            MergeEnd::Interrupted => {
                self.stop(QueueStopReason::Interrupted);
                // It was the first one waiting.
                self.members[agent].phase = AgentPhase::Finished(0);
            }
            MergeEnd::Conflict if self.hands_back(agent) => {
                let member = &mut self.members[agent];
                let attempt = member.attempt + 1;
                *member = Member { phase: AgentPhase::Waiting, attempt, left: true };
            }
            MergeEnd::Conflict | MergeEnd::Failed => self.settle(agent, FleetOutcome::Conflict),
            MergeEnd::VerifyFailed => self.settle(agent, FleetOutcome::VerifyFailed),
            MergeEnd::Merged => self.settle(agent, FleetOutcome::Merged),
            MergeEnd::Kept => self.settle(agent, FleetOutcome::Kept),
        }
        if self.best_of && matches!(end, MergeEnd::Merged | MergeEnd::Kept) {
            self.choose(agent);
        }
    }

    /// Whether a conflict of this agent would go back to it.
    pub fn hands_back(&self, agent: usize) -> bool {
        self.group.stopped().is_none()
            && self.members[agent].attempt <= self.rules.conflict_attempts
    }

    /// One attempt is enough: the others are kept unmerged.
    fn choose(&mut self, winner: usize) {
        self.winner = Some(winner);
        for agent in 0..self.members.len() {
            match self.members[agent].phase {
                AgentPhase::Finished(_) => self.settle(agent, FleetOutcome::Kept),
                AgentPhase::Waiting if !self.members[agent].left => {
                    self.settle(agent, FleetOutcome::NoChange);
                }
                _ => {}
            }
        }
    }

    pub fn winner(&self) -> Option<usize> {
        self.winner
    }

    fn settle(&mut self, agent: usize, outcome: FleetOutcome) {
        self.count(outcome);
        self.members[agent].phase = AgentPhase::Settled { outcome, tree: TreePhase::There };
    }

    fn count(&mut self, outcome: FleetOutcome) {
        self.failures += u32::from(outcome.failed());
    }
}

#[cfg(test)]
mod tests;
