//! The plan with scripted outcomes.

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

/// All steps that can start now, as words.
fn steps(plan: &mut FleetPlan) -> Vec<String> {
    let mut steps = Vec::new();
    while let FleetNext::Run(step) = plan.next(Duration::ZERO) {
        steps.push(match step {
            FleetStep::Run { agent, attempt: 1, .. } => format!("run {agent}"),
            FleetStep::Run { agent, attempt, .. } => format!("run {agent} again {attempt}"),
            FleetStep::Collect { agent, .. } => format!("collect {agent}"),
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
fn only_completed_work_is_merged_and_reported_as_merged() {
    use AgentStopReason as Stop;
    for (report, expected) in [
        (ended(Stop::Completed, false), FleetOutcome::NoChange),
        (ended(Stop::MaxIterations, true), FleetOutcome::Kept),
        (ended(Stop::Stopped, true), FleetOutcome::Kept),
        (ended(Stop::Stopped, false), FleetOutcome::NoChange),
        (ended(Stop::Failed, true), FleetOutcome::AgentFailed),
        (ended(Stop::VerifyFailed, true), FleetOutcome::VerifyFailed),
        (ended(Stop::VerifyFailed, false), FleetOutcome::VerifyFailed),
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
fn a_fleet_ended_by_a_signal_resumes_in_the_same_phases() {
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
    again.restore(phases.iter().map(|phase| restored(*phase)));
    assert_eq!(steps(&mut again), ["merge 0", "run 1", "run 2"]);
}

fn restored(phase: AgentPhase) -> RestoredAgent {
    RestoredAgent { attempt: 1, phase, left: false, chosen: false }
}

#[test]
fn work_left_in_a_tree_is_collected_if_its_agent_does_not_continue() {
    let halt = Some(HaltRule { failures: 1, now: false });
    let mut plan = FleetPlan::new(FleetRules { halt, ..rules(2) }, false, 4, Spent::default());
    let failed = AgentPhase::Settled { outcome: FleetOutcome::AgentFailed, tree: TreePhase::Done };
    let left = RestoredAgent { left: true, ..restored(AgentPhase::Waiting) };
    plan.restore([restored(failed), left, left, restored(AgentPhase::Waiting)]);
    assert_eq!(steps(&mut plan), ["collect 1", "collect 2"]);
    plan.ran(1, &ended(AgentStopReason::Stopped, true), Duration::ZERO);
    plan.ran(2, &done(), Duration::ZERO);
    assert_eq!(plan.outcome(1), Some(FleetOutcome::Kept));
    assert_eq!(steps(&mut plan), ["merge 2", "remove 1"], "its loop had ended");
    merged(&mut plan, 2, MergeEnd::Merged);
    steps(&mut plan);
    plan.report(1, FleetReport::Removed);
    plan.report(2, FleetReport::Removed);
    assert_eq!(plan.next(Duration::ZERO), FleetNext::Done);
    assert_eq!(plan.phase(3), AgentPhase::Waiting);
}

#[test]
fn a_try_chosen_before_a_restart_stays_the_only_one() {
    for outcome in [FleetOutcome::Merged, FleetOutcome::Kept] {
        let mut plan = FleetPlan::new(rules(4), true, 4, Spent::default());
        let taken = AgentPhase::Settled { outcome, tree: TreePhase::Done };
        plan.restore([
            RestoredAgent { left: true, ..restored(AgentPhase::Waiting) },
            RestoredAgent { chosen: true, ..restored(taken) },
            restored(AgentPhase::Finished(1)),
            restored(AgentPhase::Waiting),
        ]);
        assert_eq!(plan.winner(), Some(1));
        assert_eq!(plan.outcome(2), Some(FleetOutcome::Kept));
        assert_eq!(plan.outcome(3), Some(FleetOutcome::NoChange));
        assert_eq!(steps(&mut plan), ["collect 0", "remove 2", "remove 3"]);
        plan.ran(0, &done(), Duration::ZERO);
        assert_eq!(plan.outcome(0), Some(FleetOutcome::Kept));
    }
}

#[test]
fn a_conflict_that_nobody_can_resolve_any_more_is_settled() {
    let limited = FleetRules { max_cost_usd: Some(1.5), ..rules(1) };
    let mut plan = FleetPlan::new(limited, false, 2, Spent::default());
    steps(&mut plan);
    plan.ran(0, &done(), Duration::ZERO);
    assert_eq!(steps(&mut plan), ["merge 0", "run 1"]);
    merged(&mut plan, 0, MergeEnd::Conflict);
    plan.ran(1, &done(), Duration::ZERO);
    assert_eq!(steps(&mut plan), ["merge 1", "collect 0"]);
    plan.ran(0, &ended(AgentStopReason::Stopped, true), Duration::ZERO);
    assert_eq!(plan.outcome(0), Some(FleetOutcome::Kept));
}
