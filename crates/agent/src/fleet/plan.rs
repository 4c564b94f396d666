//! A fleet as a pure state machine: which agent begins, which result is merged next, and what becomes
//! of each. Starts nothing, reads no clock, opens no record.

use std::time::Duration;

use retake_types::loop_record::agent::Spent;
use retake_types::loop_record::fleet::{FleetOutcome, FleetRules};

use crate::plan::AgentStopReason;
use crate::queue::{
    QueuePlan, QueueRules, QueueStopReason, TaskAllowance, TaskEnd, TaskOutcome, TaskReport,
};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FleetStep {
    /// Run an agent in its tree, and collect what it did.
    Run { agent: usize, attempt: u32, allowance: TaskAllowance },
    /// Merge what it did, or keep it where there is nothing to merge into.
    Merge { agent: usize },
    /// Its work is kept elsewhere: remove its tree.
    Remove { agent: usize },
}

impl FleetStep {
    pub fn agent(&self) -> usize {
        let (Self::Run { agent, .. } | Self::Merge { agent } | Self::Remove { agent }) = *self;
        agent
    }
}

/// The plan's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetNext {
    Run(FleetStep),
    /// Nothing can begin before a step that is under way has reported.
    Wait,
    Done,
}

/// What running an agent led to.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentReport {
    pub task: TaskReport,
    /// Whether what it did differs from where it started; `None` where it could not be collected.
    pub changed: Option<bool>,
}

/// What merging led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeEnd {
    Merged,
    /// It is on a branch of its own.
    Kept,
    Conflict,
    VerifyFailed,
    /// It could not be tried, and no agent can help.
    Failed,
    /// A signal cut it off: it is made again.
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FleetReport {
    Merged(MergeEnd),
    Removed,
}

/// Where an agent stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentPhase {
    Waiting,
    Running,
    /// Its work waits to be merged; lower numbers come first.
    Finished(u32),
    Merging,
    Settled {
        outcome: FleetOutcome,
        tree: TreePhase,
    },
}

/// Whether the tree of an agent is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreePhase {
    There,
    Removing,
    /// It is gone, or stays for good.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    phase: AgentPhase,
    attempt: u32,
}

/// Where a fleet stands.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetPlan {
    rules: FleetRules,
    best_of: bool,
    /// Knows what was spent, and when the budget for all is over.
    group: QueuePlan,
    members: Vec<Member>,
    finished: u32,
    /// The try that was chosen.
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
        let member = Member { phase: AgentPhase::Waiting, attempt: 1 };
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

    /// Puts an agent where the record of a dead runner has it.
    pub fn restore(&mut self, agent: usize, attempt: u32, phase: AgentPhase) {
        if let AgentPhase::Finished(order) = phase {
            self.finished = self.finished.max(order + 1);
        }
        if let AgentPhase::Settled { outcome, .. } = phase {
            self.count(agent, outcome);
        }
        self.members[agent] = Member { phase, attempt };
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

    /// Someone asks for the end: no further agent begins. What has finished is still merged, unless
    /// a signal asks.
    pub fn stop(&mut self, reason: QueueStopReason) {
        if self.group.stopped() != Some(QueueStopReason::Interrupted) {
            self.group.stop(reason);
        }
    }

    /// Agents that run and whose work is not wanted any more.
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

    /// What to do now. A step that is given is under way until it reports.
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
            AgentPhase::Running | AgentPhase::Merging => true,
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

    /// One result at a time, in the order in which they were finished.
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

    /// Takes in how an agent ended.
    pub fn ran(&mut self, agent: usize, report: &AgentReport, time_used: Duration) {
        let end = &report.task.end;
        let waits_again = self.group.done(&report.task, time_used) == TaskOutcome::WaitsAgain;
        let interrupted =
            matches!(end, TaskEnd::Stopped { reason: AgentStopReason::Interrupted, .. });
        if waits_again && interrupted {
            self.members[agent].phase = AgentPhase::Waiting;
            return;
        }
        match (end, report.changed) {
            (_, None) => self.settle(agent, FleetOutcome::AgentFailed),
            (end, _) if end.failed() => self.settle(agent, FleetOutcome::AgentFailed),
            (_, Some(false)) => self.settle(agent, FleetOutcome::NoChange),
            (end, Some(true)) if end.completed() && self.winner.is_none() => {
                self.members[agent].phase = AgentPhase::Finished(self.finished);
                self.finished += 1;
            }
            // It was stopped, or is out of budget, or another try was chosen.
            (_, Some(true)) => self.settle(agent, FleetOutcome::Kept),
        }
    }

    /// Takes in how a merge or a removal ended.
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
                // It was the first of those that waited.
                self.members[agent].phase = AgentPhase::Finished(0);
            }
            MergeEnd::Conflict if self.hands_back(agent) => {
                let member = &mut self.members[agent];
                *member = Member { phase: AgentPhase::Waiting, attempt: member.attempt + 1 };
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

    /// One try is enough: the others stay as they are.
    fn choose(&mut self, winner: usize) {
        self.winner = Some(winner);
        for agent in 0..self.members.len() {
            match self.members[agent].phase {
                AgentPhase::Finished(_) => self.settle(agent, FleetOutcome::Kept),
                AgentPhase::Waiting => self.settle(agent, FleetOutcome::NoChange),
                _ => {}
            }
        }
    }

    pub fn winner(&self) -> Option<usize> {
        self.winner
    }

    fn settle(&mut self, agent: usize, outcome: FleetOutcome) {
        self.count(agent, outcome);
        self.members[agent].phase = AgentPhase::Settled { outcome, tree: TreePhase::There };
    }

    fn count(&mut self, agent: usize, outcome: FleetOutcome) {
        self.failures += u32::from(outcome.failed());
        if self.best_of && outcome == FleetOutcome::Merged {
            self.winner = Some(agent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retake_types::loop_record::fleet::HaltRule;

    fn rules(jobs: u32) -> FleetRules {
        FleetRules { jobs, ..FleetRules::default() }
    }

    fn plan(jobs: u32, agents: usize) -> FleetPlan {
        FleetPlan::new(rules(jobs), false, agents, Spent::default())
    }

    fn ended(reason: AgentStopReason, changed: bool) -> AgentReport {
        let end = TaskEnd::Stopped { reason, loop_id: None };
        let spent = Spent { cost_usd: 1.0, tokens: 10 };
        AgentReport { task: TaskReport { end, spent }, changed: Some(changed) }
    }

    fn done() -> AgentReport {
        ended(AgentStopReason::Completed, true)
    }

    /// All steps that can begin now, as words.
    fn steps(plan: &mut FleetPlan) -> Vec<String> {
        let mut steps = Vec::new();
        while let FleetNext::Run(step) = plan.next(Duration::ZERO) {
            steps.push(match step {
                FleetStep::Run { agent, attempt: 1, .. } => format!("run {agent}"),
                FleetStep::Run { agent, attempt, .. } => format!("run {agent} again {attempt}"),
                FleetStep::Merge { agent } => format!("merge {agent}"),
                FleetStep::Remove { agent } => format!("remove {agent}"),
            });
        }
        steps
    }

    fn merged(plan: &mut FleetPlan, agent: usize, end: MergeEnd) {
        plan.report(agent, FleetReport::Merged(end));
    }

    #[test]
    fn no_more_agents_run_at_once_than_asked_and_one_result_is_merged_at_a_time() {
        let mut plan = plan(2, 3);
        assert_eq!(steps(&mut plan), ["run 0", "run 1"]);
        plan.ran(1, &done(), Duration::ZERO);
        assert_eq!(steps(&mut plan), ["merge 1", "run 2"]);
        plan.ran(0, &done(), Duration::ZERO);
        plan.ran(2, &done(), Duration::ZERO);
        assert_eq!(steps(&mut plan), Vec::<String>::new(), "1 is being merged");
        assert_eq!(plan.next(Duration::ZERO), FleetNext::Wait);
        merged(&mut plan, 1, MergeEnd::Merged);
        assert_eq!(steps(&mut plan), ["merge 0", "remove 1"], "in the order of their ends");
        plan.report(1, FleetReport::Removed);
        merged(&mut plan, 0, MergeEnd::VerifyFailed);
        assert_eq!(steps(&mut plan), ["merge 2", "remove 0"]);
        merged(&mut plan, 2, MergeEnd::Merged);
        plan.report(0, FleetReport::Removed);
        assert_eq!(steps(&mut plan), ["remove 2"]);
        plan.report(2, FleetReport::Removed);
        assert_eq!(plan.next(Duration::ZERO), FleetNext::Done);
        let outcomes: Vec<_> = (0..3).filter_map(|agent| plan.outcome(agent)).collect();
        use FleetOutcome::{Merged, VerifyFailed};
        assert_eq!(outcomes, [VerifyFailed, Merged, Merged]);
        assert_eq!(plan.spent().cost_usd, 3.0);
    }

    #[test]
    fn only_what_is_complete_is_merged_and_nothing_else_is_called_merged() {
        use AgentStopReason as Stop;
        for (report, expected) in [
            (ended(Stop::Completed, false), FleetOutcome::NoChange),
            (ended(Stop::MaxIterations, true), FleetOutcome::Kept),
            (ended(Stop::Stopped, true), FleetOutcome::Kept),
            (ended(Stop::Stopped, false), FleetOutcome::NoChange),
            (ended(Stop::Failed, true), FleetOutcome::AgentFailed),
            (ended(Stop::VerifyFailed, true), FleetOutcome::AgentFailed),
            (AgentReport { changed: None, ..done() }, FleetOutcome::AgentFailed),
        ] {
            let mut plan = plan(1, 1);
            steps(&mut plan);
            plan.ran(0, &report, Duration::ZERO);
            assert_eq!(plan.outcome(0), Some(expected), "{report:?}");
            assert_eq!(steps(&mut plan), ["remove 0"]);
        }
    }

    #[test]
    fn a_conflict_goes_back_to_its_agent_as_often_as_allowed() {
        let mut plan = plan(2, 1);
        steps(&mut plan);
        for attempt in 2..=3 {
            plan.ran(0, &done(), Duration::ZERO);
            assert_eq!(steps(&mut plan), ["merge 0"]);
            assert!(plan.hands_back(0));
            merged(&mut plan, 0, MergeEnd::Conflict);
            assert_eq!(steps(&mut plan), [format!("run 0 again {attempt}")]);
        }
        plan.ran(0, &done(), Duration::ZERO);
        steps(&mut plan);
        assert!(!plan.hands_back(0));
        merged(&mut plan, 0, MergeEnd::Conflict);
        assert_eq!(plan.outcome(0), Some(FleetOutcome::Conflict));
    }

    #[test]
    fn after_enough_failures_none_begins_and_what_is_finished_is_still_merged() {
        let halt = Some(HaltRule { failures: 1, now: false });
        let mut plan = FleetPlan::new(FleetRules { halt, ..rules(2) }, false, 4, Spent::default());
        steps(&mut plan);
        plan.ran(0, &ended(AgentStopReason::Failed, true), Duration::ZERO);
        assert_eq!(steps(&mut plan), ["remove 0"]);
        assert_eq!(plan.stopped(), Some(QueueStopReason::Failed));
        assert!(plan.unwanted().is_empty());
        plan.ran(1, &done(), Duration::ZERO);
        assert_eq!(steps(&mut plan), ["merge 1"]);
        merged(&mut plan, 1, MergeEnd::Merged);
        steps(&mut plan);
        plan.report(0, FleetReport::Removed);
        plan.report(1, FleetReport::Removed);
        assert_eq!(plan.next(Duration::ZERO), FleetNext::Done);
        assert_eq!(plan.phase(2), AgentPhase::Waiting);
    }

    #[test]
    fn halt_now_stops_those_that_run() {
        let halt = Some(HaltRule { failures: 1, now: true });
        let mut plan = FleetPlan::new(FleetRules { halt, ..rules(3) }, false, 3, Spent::default());
        steps(&mut plan);
        plan.ran(1, &ended(AgentStopReason::Failed, true), Duration::ZERO);
        steps(&mut plan);
        assert_eq!(plan.unwanted(), [0, 2]);
    }

    #[test]
    fn the_budget_is_for_all_and_each_gets_what_is_left() {
        let limited = FleetRules { max_cost_usd: Some(2.5), ..rules(1) };
        let mut plan = FleetPlan::new(limited, false, 4, Spent::default());
        let cost = |plan: &mut FleetPlan| match plan.next(Duration::ZERO) {
            FleetNext::Run(FleetStep::Run { allowance, .. }) => allowance.cost_usd,
            _ => None,
        };
        assert_eq!(cost(&mut plan), Some(2.5));
        plan.ran(0, &ended(AgentStopReason::Completed, false), Duration::ZERO);
        assert_eq!(cost(&mut plan), Some(1.5));
        plan.ran(1, &ended(AgentStopReason::Completed, false), Duration::ZERO);
        assert_eq!(cost(&mut plan), Some(0.5));
        plan.ran(2, &ended(AgentStopReason::BudgetCost, true), Duration::ZERO);
        assert_eq!(plan.outcome(2), Some(FleetOutcome::Kept));
        assert_eq!(plan.stopped(), Some(QueueStopReason::BudgetCost));
        assert_eq!(cost(&mut plan), None, "3 does not begin");
    }

    #[test]
    fn time_for_all_ends_those_that_run() {
        let limited = FleetRules { max_time: Some(Duration::from_secs(9)), ..rules(2) };
        let mut plan = FleetPlan::new(limited, false, 2, Spent::default());
        steps(&mut plan);
        assert!(plan.unwanted().is_empty());
        assert_eq!(plan.next(Duration::from_secs(9)), FleetNext::Wait);
        assert_eq!(plan.unwanted(), [0, 1]);
    }

    #[test]
    fn of_several_tries_the_first_that_passes_is_chosen_and_the_others_are_kept() {
        let mut plan = FleetPlan::new(rules(4), true, 4, Spent::default());
        steps(&mut plan);
        plan.ran(2, &done(), Duration::ZERO);
        plan.ran(0, &done(), Duration::ZERO);
        assert_eq!(steps(&mut plan), ["merge 2"]);
        merged(&mut plan, 2, MergeEnd::VerifyFailed);
        assert_eq!(steps(&mut plan), ["merge 0", "remove 2"]);
        plan.ran(1, &done(), Duration::ZERO);
        merged(&mut plan, 0, MergeEnd::Merged);
        assert_eq!(plan.winner(), Some(0));
        assert_eq!(plan.unwanted(), [3]);
        assert_eq!(plan.outcome(1), Some(FleetOutcome::Kept));
        plan.ran(3, &ended(AgentStopReason::Stopped, true), Duration::ZERO);
        assert_eq!(plan.outcome(3), Some(FleetOutcome::Kept));
    }

    #[test]
    fn a_signal_ends_it_where_it_is_and_a_restart_goes_on_there() {
        let mut plan = plan(2, 3);
        steps(&mut plan);
        plan.ran(0, &done(), Duration::ZERO);
        steps(&mut plan);
        for agent in [1, 2] {
            plan.ran(agent, &ended(AgentStopReason::Interrupted, true), Duration::ZERO);
        }
        merged(&mut plan, 0, MergeEnd::Interrupted);
        assert_eq!(plan.next(Duration::ZERO), FleetNext::Done);
        let phases: Vec<_> = (0..3).map(|agent| plan.phase(agent)).collect();
        use AgentPhase::{Finished, Waiting};
        assert_eq!(phases, [Finished(0), Waiting, Waiting]);
        let mut again = self::plan(2, 3);
        again.restore(0, 1, phases[0]);
        assert_eq!(steps(&mut again), ["merge 0", "run 1", "run 2"]);
    }
}
