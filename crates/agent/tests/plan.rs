//! The plan with scripted outcomes: every stop reason, both modes, and its invariants.

use std::time::Duration;

use proptest::prelude::*;
use retake_agent::plan::{
    AgentPlan, AgentRole, AgentStopReason, Backoff, Budgets, Gate, IterationOutcome,
    IterationReport, Now, OnLimit, PastIteration, Requests, Rules, Step, WaitReason,
};
use retake_types::loop_record::agent::{IterationStatus, Mode, Spent};

const NONE: Requests = Requests { stop: false, stop_now: false, pause: false, interrupt: false };
const TRANSIENT: IterationOutcome = IterationOutcome::Transient { limit: false };
const STOP: Requests = Requests { stop: true, ..NONE };

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> Now {
    Now { elapsed: secs(seconds), unix: 1_000_000 + seconds as i64 }
}

fn rules(mode: Mode) -> Rules {
    Rules { delay: Duration::ZERO, ..Rules::new(mode) }
}

fn ok() -> IterationReport {
    IterationReport::new(IterationOutcome::Completed)
}

fn complete() -> IterationReport {
    IterationReport { complete: true, ..ok() }
}

/// Plays a loop in which every step takes a second; returns its abbreviated steps and the reason.
struct Story {
    plan: AgentPlan,
    clock: u64,
    steps: Vec<String>,
}

impl Story {
    fn new(plan: AgentPlan) -> Self {
        Self { plan, clock: 0, steps: Vec::new() }
    }

    fn play(
        mut self,
        mut reports: impl FnMut(u32) -> IterationReport,
        mut gate: impl FnMut(u32) -> bool,
    ) -> (AgentStopReason, Vec<String>, AgentPlan) {
        loop {
            match self.plan.next(at(self.clock), NONE) {
                Step::Iterate { number, attempt, .. } => {
                    self.steps.push(format!("{number}.{attempt}"));
                    self.clock += 1;
                    self.plan.done(reports(number), at(self.clock));
                }
                Step::Verify { attempt, .. } => {
                    self.steps.push(format!("verify {attempt}"));
                    self.plan.verified(gate(attempt), at(self.clock));
                }
                Step::Wait { why, remaining } => {
                    self.steps.push(match why {
                        WaitReason::Delay => "delay".to_owned(),
                        WaitReason::RateLimit { .. } => "limit".to_owned(),
                        WaitReason::Backoff { attempt } => format!("backoff {attempt}"),
                    });
                    self.clock += remaining.as_secs() + 1;
                }
                Step::Pause => unreachable!("nobody asked"),
                Step::Stop(reason) => return (reason, self.steps, self.plan),
            }
            assert!(self.steps.len() < 10_000, "does not end");
        }
    }
}

fn play(
    rules: Rules,
    reports: impl FnMut(u32) -> IterationReport,
) -> (AgentStopReason, Vec<String>, AgentPlan) {
    Story::new(AgentPlan::new(rules, 0)).play(reports, |_| true)
}

#[test]
fn defaults_are_the_specified_ones() {
    let (reason, steps, _) = play(rules(Mode::Loop), |_| ok());
    assert_eq!((reason, steps.len()), (AgentStopReason::MaxIterations, 50));
    let (reason, steps, _) = play(rules(Mode::Iterative), |_| ok());
    assert_eq!((reason, steps.len()), (AgentStopReason::MaxIterations, 20));
    let rules = Rules::new(Mode::Loop);
    assert_eq!(rules.delay, secs(2));
    assert_eq!((rules.stagnation_threshold, rules.max_failures, rules.max_no_progress), (2, 1, 0));
    assert_eq!(rules.iteration_timeout, secs(1800));
}

#[test]
fn completion_ends_both_modes() {
    for mode in [Mode::Loop, Mode::Iterative] {
        let (reason, steps, plan) = play(rules(mode), |n| if n == 3 { complete() } else { ok() });
        assert_eq!((reason, steps.len(), plan.number()), (AgentStopReason::Completed, 3, 3));
    }
}

#[test]
fn completion_in_the_last_iteration_is_completion() {
    let few = Rules { max_iterations: 2, ..rules(Mode::Loop) };
    assert_eq!(play(few, |n| if n == 2 { complete() } else { ok() }).0, AgentStopReason::Completed);
}

#[test]
fn a_failed_iteration_cannot_complete() {
    let report =
        IterationReport { complete: true, ..IterationReport::new(IterationOutcome::Failed) };
    assert_eq!(play(rules(Mode::Loop), |_| report).0, AgentStopReason::Failed);
}

#[test]
fn stagnation_only_in_iterative_mode_and_only_in_a_row() {
    let idle = IterationReport { worked: Some(false), ..ok() };
    let busy = IterationReport { worked: Some(true), ..ok() };
    let (reason, steps, _) = play(rules(Mode::Iterative), |_| idle);
    assert_eq!((reason, steps.len()), (AgentStopReason::Stagnation, 2));
    let (reason, _, _) = play(rules(Mode::Loop), |_| idle);
    assert_eq!(reason, AgentStopReason::MaxIterations);
    let off = Rules { stagnation_threshold: 0, ..rules(Mode::Iterative) };
    assert_eq!(play(off, |_| idle).0, AgentStopReason::MaxIterations);
    let (reason, steps, _) =
        play(rules(Mode::Iterative), |n| if n % 2 == 0 || n > 6 { idle } else { busy });
    assert_eq!((reason, steps.len()), (AgentStopReason::Stagnation, 7));
    // A missing report differs from a report of no work.
    let (reason, _, _) = play(rules(Mode::Iterative), |n| if n % 2 == 0 { ok() } else { idle });
    assert_eq!(reason, AgentStopReason::MaxIterations);
}

#[test]
fn no_progress_breaker() {
    let still = IterationReport { progress: Some(false), ..ok() };
    let moved = IterationReport { progress: Some(true), ..ok() };
    assert_eq!(play(rules(Mode::Loop), |_| still).0, AgentStopReason::MaxIterations);
    let three = Rules { max_no_progress: 3, ..rules(Mode::Loop) };
    let (reason, steps, _) = play(three.clone(), |n| if n == 2 { moved } else { still });
    assert_eq!((reason, steps.len()), (AgentStopReason::NoProgress, 5));
    assert_eq!(play(three, |_| ok()).0, AgentStopReason::MaxIterations);
}

#[test]
fn failure_breaker() {
    for outcome in [IterationOutcome::Failed, IterationOutcome::TimedOut] {
        let (reason, steps, plan) = play(rules(Mode::Loop), |_| IterationReport::new(outcome));
        assert_eq!((reason, steps.len(), plan.number()), (AgentStopReason::Failed, 1, 1));
        let three = Rules { max_failures: 3, ..rules(Mode::Loop) };
        let (reason, steps, _) =
            play(three, |n| if n == 2 { ok() } else { IterationReport::new(outcome) });
        assert_eq!((reason, steps.len()), (AgentStopReason::Failed, 5));
        let never = Rules { max_failures: 0, ..rules(Mode::Loop) };
        assert_eq!(
            play(never, |_| IterationReport::new(outcome)).0,
            AgentStopReason::MaxIterations
        );
    }
    assert_eq!(
        play(rules(Mode::Loop), |_| IterationReport::new(IterationOutcome::HookStopped)).0,
        AgentStopReason::Failed
    );
}

#[test]
fn a_skipped_iteration_has_a_number_and_is_no_failure() {
    let few = Rules { max_iterations: 3, ..rules(Mode::Loop) };
    let (reason, _, plan) = play(few, |_| IterationReport::new(IterationOutcome::Skipped));
    assert_eq!((reason, plan.number(), plan.failures()), (AgentStopReason::MaxIterations, 3, 0));
}

#[test]
fn budgets_stop_the_loop() {
    let spent = Spent { cost_usd: 0.4, tokens: 100 };
    let report = IterationReport { spent, ..ok() };
    let with = |budgets| Rules { budgets, ..rules(Mode::Loop) };
    let (reason, steps, _) =
        play(with(Budgets { cost_usd: Some(1.0), ..Budgets::default() }), |_| report);
    assert_eq!((reason, steps.len()), (AgentStopReason::BudgetCost, 3));
    let (reason, steps, _) =
        play(with(Budgets { tokens: Some(200), ..Budgets::default() }), |_| report);
    assert_eq!((reason, steps.len()), (AgentStopReason::BudgetTokens, 2));
    let (reason, steps, _) =
        play(with(Budgets { time: Some(secs(4)), ..Budgets::default() }), |_| report);
    assert_eq!((reason, steps.len()), (AgentStopReason::BudgetTime, 4));
    for reason in [AgentStopReason::BudgetCost, AgentStopReason::BudgetTokens] {
        let cut = IterationReport::new(IterationOutcome::OverBudget(reason));
        assert_eq!(play(rules(Mode::Loop), |_| cut).0, reason);
    }
}

#[test]
fn a_running_iteration_is_held_to_both_budgets() {
    let budgets = Budgets {
        cost_usd: Some(1.0),
        iteration_cost_usd: Some(0.5),
        iteration_tokens: Some(50),
        ..Budgets::default()
    };
    let mut plan = AgentPlan::new(Rules { budgets, ..rules(Mode::Loop) }, 0);
    let cap = |plan: &mut AgentPlan| match plan.next(at(0), NONE) {
        Step::Iterate { max_cost_usd, .. } => max_cost_usd,
        other => panic!("{other:?}"),
    };
    assert_eq!(cap(&mut plan), Some(0.5));
    assert_eq!(plan.over(Spent { cost_usd: 0.49, tokens: 49 }), None);
    assert_eq!(plan.over(Spent { cost_usd: 0.5, tokens: 0 }), Some(AgentStopReason::BudgetCost));
    assert_eq!(plan.over(Spent { cost_usd: 0.0, tokens: 50 }), Some(AgentStopReason::BudgetTokens));
    plan.done(IterationReport { spent: Spent { cost_usd: 0.75, tokens: 0 }, ..ok() }, at(1));
    assert_eq!(cap(&mut plan), Some(0.25));
    assert_eq!(plan.over(Spent { cost_usd: 0.3, tokens: 0 }), Some(AgentStopReason::BudgetCost));
}

#[test]
fn a_timeout_by_the_time_budget_is_no_failure() {
    let budgets = Budgets { time: Some(secs(10)), ..Budgets::default() };
    let mut plan = AgentPlan::new(Rules { budgets, ..rules(Mode::Loop) }, 0);
    let Step::Iterate { timeout, .. } = plan.next(at(4), NONE) else { panic!() };
    assert_eq!(timeout, secs(6));
    plan.done(IterationReport::new(IterationOutcome::TimedOut), at(10));
    assert_eq!(plan.stopped(), Some(AgentStopReason::BudgetTime));
}

#[test]
fn a_limit_is_waited_out_and_is_no_iteration() {
    let limit = |resets_at| {
        IterationReport::new(IterationOutcome::RateLimited { resets_at: Some(resets_at) })
    };
    let mut first = true;
    let (reason, steps, plan) = play(rules(Mode::Loop), |_| {
        if std::mem::take(&mut first) { limit(1_000_500) } else { complete() }
    });
    assert_eq!(reason, AgentStopReason::Completed);
    assert_eq!(steps, ["1.1", "limit", "1.2"]);
    assert_eq!((plan.number(), plan.iterations(), plan.failures()), (1, 1, 0));

    let stop = Rules { on_limit: OnLimit::Stop, ..rules(Mode::Loop) };
    let (reason, _, plan) = play(stop, |_| limit(1_000_500));
    assert_eq!((reason, plan.number()), (AgentStopReason::RateLimit, 0));

    // A limit that is reported again and again after its end must not be retried forever.
    let (reason, steps, _) = play(rules(Mode::Loop), |_| limit(5));
    assert_eq!((reason, steps.len()), (AgentStopReason::RateLimit, 21));

    let budgets = Budgets { time: Some(secs(100)), ..Budgets::default() };
    let (reason, steps, _) = play(Rules { budgets, ..rules(Mode::Loop) }, |_| limit(1_000_500));
    assert_eq!((reason, steps), (AgentStopReason::BudgetTime, vec!["1.1".to_owned()]));
}

#[test]
fn transient_errors_back_off_and_then_count() {
    let mut left = 4;
    let (reason, steps, plan) = play(rules(Mode::Loop), |_| {
        left -= 1;
        if left > 0 { IterationReport::new(TRANSIENT) } else { complete() }
    });
    assert_eq!(reason, AgentStopReason::Completed);
    assert_eq!(steps, ["1.1", "backoff 1", "1.2", "backoff 2", "1.3", "backoff 3", "1.4"]);
    assert_eq!((plan.number(), plan.failures()), (1, 0));

    let (reason, steps, plan) = play(rules(Mode::Loop), |_| IterationReport::new(TRANSIENT));
    assert_eq!((reason, plan.number()), (AgentStopReason::Failed, 1));
    assert_eq!(steps.len(), 21);
    let backoff = Backoff { tries: 2, ..Backoff::default() };
    let (_, steps, _) =
        play(Rules { backoff, ..rules(Mode::Loop) }, |_| IterationReport::new(TRANSIENT));
    assert_eq!(steps, ["1.1", "backoff 1", "1.2", "backoff 2", "1.3"]);
}

#[test]
fn each_iteration_has_tries_of_its_own() {
    let mut calls = 0;
    let two = Backoff { tries: 2, ..Backoff::default() };
    let (reason, steps, _) = play(Rules { backoff: two, ..rules(Mode::Loop) }, |_| {
        calls += 1;
        match calls {
            3 => ok(),
            6 => complete(),
            _ => IterationReport::new(TRANSIENT),
        }
    });
    assert_eq!(reason, AgentStopReason::Completed);
    let iteration = |n| {
        [
            format!("{n}.1"),
            "backoff 1".into(),
            format!("{n}.2"),
            "backoff 2".into(),
            format!("{n}.3"),
        ]
    };
    assert_eq!(steps, [iteration(1), iteration(2)].concat());
}

#[test]
fn the_gate_must_pass() {
    let gate = Some(Gate { max_attempts: 2, resume_on_fail: true });
    let gated = || AgentPlan::new(Rules { verify: gate, ..rules(Mode::Loop) }, 0);
    let (reason, steps, _) = Story::new(gated()).play(|_| complete(), |attempt| attempt == 2);
    assert_eq!(reason, AgentStopReason::Completed);
    assert_eq!(steps, ["1.1", "verify 1", "2.1", "verify 2"]);
    // Its output goes into the next prompt twice; the third failure is the last.
    let (reason, steps, _) = Story::new(gated()).play(|_| complete(), |_| false);
    assert_eq!(reason, AgentStopReason::VerifyFailed);
    assert_eq!(steps, ["1.1", "verify 1", "2.1", "verify 2", "3.1", "verify 3"]);
    let once = Some(Gate { max_attempts: 2, resume_on_fail: false });
    let plan = AgentPlan::new(Rules { verify: once, ..rules(Mode::Loop) }, 0);
    let (reason, steps, _) = Story::new(plan).play(|_| complete(), |_| false);
    assert_eq!((reason, steps.len()), (AgentStopReason::VerifyFailed, 2));
    let few = Rules { verify: gate, max_iterations: 1, ..rules(Mode::Loop) };
    let (reason, _, _) = Story::new(AgentPlan::new(few, 0)).play(|_| complete(), |_| false);
    assert_eq!(reason, AgentStopReason::MaxIterations);
}

#[test]
fn stop_pause_and_interrupt() {
    let mut plan = AgentPlan::new(Rules::new(Mode::Loop), 0);
    plan.done(ok(), at(1));
    let pause = Requests { pause: true, ..NONE };
    assert!(
        matches!(plan.next(at(1), NONE), Step::Wait { why: WaitReason::Delay, remaining } if remaining == secs(2))
    );
    assert_eq!(plan.next(at(1), pause), Step::Pause);
    assert_eq!(plan.next(at(5), pause), Step::Pause);
    assert!(matches!(plan.next(at(5), NONE), Step::Iterate { number: 2, .. }));
    assert_eq!(plan.clone().next(at(5), STOP), Step::Stop(AgentStopReason::Stopped));
    let both = Requests { stop: true, pause: true, ..NONE };
    assert_eq!(plan.clone().next(at(5), both), Step::Stop(AgentStopReason::Stopped));
    let interrupt = Requests { interrupt: true, ..NONE };
    assert_eq!(plan.clone().next(at(5), interrupt), Step::Stop(AgentStopReason::Interrupted));
    // A stop during a wait for a limit takes effect at once.
    let limit = IterationReport::new(IterationOutcome::RateLimited { resets_at: Some(2_000_000) });
    plan.done(limit, at(6));
    assert!(matches!(plan.next(at(6), NONE), Step::Wait { .. }));
    assert_eq!(plan.next(at(6), STOP), Step::Stop(AgentStopReason::Stopped));
    assert_eq!(plan.next(at(6), NONE), Step::Stop(AgentStopReason::Stopped));

    let mut plan = AgentPlan::new(Rules::new(Mode::Loop), 7);
    plan.done(IterationReport::new(IterationOutcome::Interrupted), at(1));
    assert_eq!((plan.stopped(), plan.number()), (Some(AgentStopReason::Interrupted), 8));
    // Completion during a stop request counts.
    let mut plan = AgentPlan::new(Rules::new(Mode::Loop), 0);
    plan.done(complete(), at(1));
    assert_eq!(plan.next(at(1), STOP), Step::Stop(AgentStopReason::Completed));
}

#[test]
fn a_broken_loop_goes_on_with_its_counters() {
    let past = |number, status, worked| PastIteration {
        number,
        status,
        worked,
        progress: Some(false),
        spent: Spent { cost_usd: 0.25, tokens: 10 },
        duration: secs(30),
    };
    use IterationStatus::{Completed, Failed, Interrupted};
    let history =
        [past(5, Completed, Some(false)), past(6, Failed, Some(false)), past(7, Interrupted, None)];
    let budgets = Budgets { time: Some(secs(100)), ..Budgets::default() };
    let rules = Rules { max_failures: 2, budgets, max_iterations: 2, ..rules(Mode::Iterative) };
    let mut plan = AgentPlan::resume(rules, 4, &history, 1);
    assert_eq!((plan.number(), plan.failures(), plan.idle(), plan.no_progress()), (7, 1, 2, 2));
    assert_eq!(plan.spent(), Spent { cost_usd: 0.75, tokens: 30 });
    assert_eq!(plan.time_left(at(0)), Some(secs(10)));
    assert_eq!((plan.verify_attempts(), plan.iterations()), (1, 0));
    assert!(matches!(plan.next(at(0), NONE), Step::Iterate { number: 8, .. }));
    plan.done(IterationReport::new(IterationOutcome::Failed), at(1));
    assert_eq!(plan.stopped(), Some(AgentStopReason::Failed));
}

fn any_report() -> impl Strategy<Value = IterationReport> {
    let outcome = prop_oneof![
        6 => Just(IterationOutcome::Completed),
        2 => Just(IterationOutcome::Failed),
        1 => Just(IterationOutcome::TimedOut),
        1 => Just(IterationOutcome::Skipped),
        1 => any::<bool>().prop_map(|limit| IterationOutcome::Transient { limit }),
        1 => (0i64..2_000).prop_map(|s| IterationOutcome::RateLimited { resets_at: Some(1_000_000 + s) }),
        1 => Just(IterationOutcome::RateLimited { resets_at: None }),
    ];
    (outcome, any::<bool>(), any::<Option<bool>>(), any::<Option<bool>>(), 0.0..0.2f64, 0u64..50)
        .prop_map(|(outcome, complete, worked, progress, cost_usd, tokens)| IterationReport {
            outcome,
            complete: complete && tokens > 40,
            worked,
            progress,
            spent: Spent { cost_usd, tokens },
        })
}

proptest! {
    #[test]
    fn invariants_hold_for_random_reports(
        reports in prop::collection::vec(any_report(), 1..60),
        iterative in any::<bool>(),
        max_iterations in 1u32..30,
        max_failures in 0u32..4,
        max_no_progress in 0u32..4,
        threshold in 0u32..4,
        last in 0u32..5,
        gate in prop::option::of(0u32..3),
        fallback in any::<bool>(),
    ) {
        let rules = Rules {
            max_iterations,
            max_failures,
            max_no_progress,
            stagnation_threshold: threshold,
            fallback,
            verify: gate.map(|max_attempts| Gate { max_attempts, resume_on_fail: true }),
            ..Rules::new(if iterative { Mode::Iterative } else { Mode::Loop })
        };
        let mut plan = AgentPlan::new(rules.clone(), last);
        let mut clock = 0;
        let mut counted = 0;
        for report in reports {
            // Waits end; asking twice gives the same answer.
            let step = loop {
                let step = plan.next(at(clock), NONE);
                prop_assert_eq!(plan.next(at(clock), NONE), step);
                match step {
                    Step::Wait { remaining, .. } => {
                        prop_assert!(!remaining.is_zero());
                        clock += remaining.as_secs() + 1;
                    }
                    Step::Verify { .. } => plan.verified(report.tokens_odd(), at(clock)),
                    other => break other,
                }
            };
            match step {
                Step::Iterate { number, agent, .. } => {
                    prop_assert!(fallback || agent == AgentRole::First);
                    prop_assert_eq!(number, last + counted + 1);
                    prop_assert!(counted < max_iterations);
                    plan.done(report, at(clock));
                    let same = plan.number() == last + counted;
                    match report.outcome {
                        IterationOutcome::RateLimited { .. } => prop_assert!(same),
                        IterationOutcome::Transient { .. } => {}
                        _ => prop_assert!(!same),
                    }
                    counted = plan.number() - last;
                    prop_assert_eq!(plan.iterations(), counted);
                }
                Step::Stop(reason) => {
                    let completed = reason == AgentStopReason::Completed;
                    prop_assert!(!completed || counted > 0);
                    if reason == AgentStopReason::Stagnation {
                        prop_assert!(iterative && threshold > 0);
                    }
                    plan.done(report, at(clock));
                    prop_assert_eq!(plan.next(at(clock), NONE), Step::Stop(reason));
                    break;
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}

trait Odd {
    fn tokens_odd(&self) -> bool;
}

impl Odd for IterationReport {
    fn tokens_odd(&self) -> bool {
        self.spent.tokens % 2 == 1
    }
}

fn gated(max_attempts: u32) -> Rules {
    let gate = Gate { max_attempts, resume_on_fail: true };
    Rules { verify: Some(gate), ..rules(Mode::Loop) }
}

fn at_its_gate(rules: Rules) -> AgentPlan {
    let mut plan = AgentPlan::new(rules, 0);
    plan.done(complete(), at(1));
    assert!(matches!(plan.next(at(1), NONE), Step::Verify { attempt: 1, .. }));
    plan
}

#[test]
fn a_gate_that_could_not_be_asked_refuses_nothing() {
    // The limit of iterations is reached, but verification is still pending.
    let mut plan = at_its_gate(Rules { max_iterations: 1, ..gated(1) });
    plan.unverified(IterationOutcome::RateLimited { resets_at: Some(1_000_101) }, at(1));
    let wait =
        Step::Wait { why: WaitReason::RateLimit { resets_at: 1_000_101 }, remaining: secs(101) };
    assert_eq!(plan.next(at(1), NONE), wait);
    assert!(matches!(plan.next(at(102), NONE), Step::Verify { attempt: 1, .. }));
    plan.unverified(TRANSIENT, at(102));
    assert!(matches!(
        plan.next(at(102), NONE),
        Step::Wait { why: WaitReason::Backoff { attempt: 1 }, .. }
    ));
    assert!(matches!(plan.next(at(110), NONE), Step::Verify { attempt: 1, .. }));
    assert_eq!(plan.verify_attempts(), 0);
    plan.verified(true, at(110));
    assert_eq!(plan.stopped(), Some(AgentStopReason::Completed));
}

#[test]
fn a_gate_that_cannot_be_run_ends_the_loop_whatever_is_left() {
    let mut plan = at_its_gate(Rules { max_failures: 0, ..gated(5) });
    plan.cannot_verify();
    assert_eq!(plan.stopped(), Some(AgentStopReason::VerifyFailed));
    // Only the gate can end it in this way.
    let mut plan = AgentPlan::new(gated(5), 0);
    plan.cannot_verify();
    assert_eq!(plan.stopped(), None);
}

#[test]
fn a_gate_that_never_answers_is_a_failure() {
    let few = Backoff { tries: 2, ..Backoff::default() };
    let mut plan = at_its_gate(Rules { backoff: few, ..gated(1) });
    for clock in [1, 100, 200] {
        assert!(matches!(plan.next(at(clock), NONE), Step::Verify { attempt: 1, .. }));
        plan.unverified(TRANSIENT, at(clock));
    }
    assert_eq!((plan.stopped(), plan.failures()), (Some(AgentStopReason::Failed), 1));
    // If failures do not end the loop, the next iteration starts with a first attempt.
    let mut plan =
        at_its_gate(Rules { backoff: Backoff { tries: 0, ..few }, max_failures: 0, ..gated(1) });
    plan.unverified(TRANSIENT, at(2));
    assert!(matches!(plan.next(at(2), NONE), Step::Iterate { number: 2, attempt: 1, .. }));
    let mut plan = at_its_gate(Rules { on_limit: OnLimit::Stop, ..gated(1) });
    plan.unverified(IterationOutcome::RateLimited { resets_at: None }, at(2));
    assert_eq!(plan.stopped(), Some(AgentStopReason::RateLimit));
}

#[test]
fn time_bounds_the_gate_and_is_no_refusal() {
    let budgets = Budgets { time: Some(secs(60)), ..Budgets::default() };
    let mut plan = at_its_gate(Rules { budgets, ..gated(5) }).having_used(secs(10));
    assert_eq!(
        plan.next(at(20), NONE),
        Step::Verify { attempt: 1, agent: AgentRole::First, left: Some(secs(30)) }
    );
    plan.verified(false, at(50));
    assert_eq!((plan.stopped(), plan.verify_attempts()), (Some(AgentStopReason::BudgetTime), 0));
    let mut plan = at_its_gate(Rules { budgets, ..gated(5) }).having_used(secs(10));
    assert_eq!(plan.next(at(50), NONE), Step::Stop(AgentStopReason::BudgetTime));
}

#[test]
fn a_broken_loop_goes_on_where_it_was() {
    let plan = AgentPlan::resume(gated(3), 4, &[], 1).having_used(secs(7)).having_tried(2);
    assert_eq!(plan.time_used(at(1)), secs(8));
    let (mut tried, mut at_gate) = (plan.clone(), plan.at_gate());
    assert!(matches!(tried.next(at(0), NONE), Step::Iterate { number: 5, attempt: 3, .. }));
    assert!(matches!(at_gate.next(at(0), NONE), Step::Verify { attempt: 2, .. }));
    // Without verification, or after it, the agent is not asked again.
    let done = Step::Stop(AgentStopReason::Completed);
    let mut plain = AgentPlan::resume(rules(Mode::Loop), 4, &[], 1).at_gate();
    assert_eq!(plain.next(at(0), NONE), done);
    let mut passed = AgentPlan::resume(gated(3), 4, &[], 1).completed();
    assert_eq!(passed.next(at(0), NONE), done);
}

#[test]
fn retried_attempts_are_not_iterations() {
    let plan = AgentPlan::new(rules(Mode::Loop), 0);
    assert!(plan.postpones(TRANSIENT));
    assert!(plan.postpones(IterationOutcome::RateLimited { resets_at: None }));
    assert!(
        !plan.postpones(IterationOutcome::Failed) && !plan.postpones(IterationOutcome::Completed)
    );
    let none = Backoff { tries: 0, ..Backoff::default() };
    let plan = AgentPlan::new(Rules { backoff: none, ..rules(Mode::Loop) }, 0);
    assert!(!plan.postpones(TRANSIENT));
}

#[test]
fn a_check_alone_is_asked_until_it_answers() {
    let mut plan = AgentPlan::checking(rules(Mode::Loop), 3);
    assert!(matches!(plan.next(at(0), NONE), Step::Verify { .. }));
    plan.unverified(TRANSIENT, at(0));
    assert!(matches!(plan.next(at(0), NONE), Step::Wait { .. }));
    assert!(matches!(plan.next(at(9), NONE), Step::Verify { .. }));
}

fn with_fallback() -> Rules {
    Rules { fallback: true, max_iterations: 9, ..rules(Mode::Loop) }
}

fn limited(resets_at: Option<i64>) -> IterationReport {
    IterationReport::new(IterationOutcome::RateLimited { resets_at })
}

/// Which agent the plan uses now, for which iteration and attempt.
fn asked(plan: &mut AgentPlan, second: u64) -> (AgentRole, u32, u32) {
    match plan.next(at(second), NONE) {
        Step::Iterate { agent, number, attempt, .. } => (agent, number, attempt),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_fallback_works_until_the_limit_of_the_first_agent_is_over() {
    let mut plan = AgentPlan::new(with_fallback(), 0);
    assert_eq!(asked(&mut plan, 0), (AgentRole::First, 1, 1));
    plan.done(limited(Some(1_000_100)), at(10));
    // The same iteration at once, by the other agent.
    assert_eq!(asked(&mut plan, 10), (AgentRole::Fallback, 1, 2));
    plan.done(ok(), at(60));
    assert_eq!(asked(&mut plan, 60), (AgentRole::Fallback, 2, 1));
    plan.done(ok(), at(99));
    assert_eq!(asked(&mut plan, 99), (AgentRole::Fallback, 3, 1));
    plan.done(ok(), at(101));
    // A second more than reported, because the end is in whole seconds.
    assert_eq!(asked(&mut plan, 101), (AgentRole::First, 4, 1));
}

#[test]
fn two_limited_agents_wait_for_the_one_that_is_free_first() {
    for (fallback_until, expected) in
        [(1_000_050, AgentRole::Fallback), (1_000_500, AgentRole::First)]
    {
        let mut plan = AgentPlan::new(with_fallback(), 0);
        asked(&mut plan, 0);
        plan.done(limited(Some(1_000_100)), at(0));
        asked(&mut plan, 0);
        plan.done(limited(Some(fallback_until)), at(0));
        let until = fallback_until.min(1_000_100);
        let remaining = secs((until - 1_000_000) as u64 + 1);
        let why = WaitReason::RateLimit { resets_at: until };
        assert_eq!(plan.next(at(0), NONE), Step::Wait { why, remaining });
        let then = remaining.as_secs();
        assert_eq!(asked(&mut plan, then), (expected, 1, 3));
    }
}

#[test]
fn an_agent_that_is_not_limited_does_not_hand_over() {
    let mut plan = AgentPlan::new(with_fallback(), 0);
    asked(&mut plan, 0);
    plan.done(IterationReport::new(TRANSIENT), at(0));
    assert!(matches!(plan.next(at(0), NONE), Step::Wait { .. }));
    assert_eq!(asked(&mut plan, 60).0, AgentRole::First);
    // "Too many requests" is a limit with an unknown end.
    let too_many = IterationReport::new(IterationOutcome::Transient { limit: true });
    plan.done(too_many, at(60));
    assert_eq!(asked(&mut plan, 60).0, AgentRole::Fallback);
    plan.done(ok(), at(200));
    assert_eq!(asked(&mut plan, 200).0, AgentRole::First);
}

#[test]
fn limits_without_end_stop_the_loop_in_the_end() {
    let backoff = Backoff { tries: 3, ..Backoff::default() };
    let mut plan = AgentPlan::new(Rules { backoff, ..with_fallback() }, 0);
    let (mut clock, mut calls) = (0, 0);
    loop {
        match plan.next(at(clock), NONE) {
            Step::Wait { remaining, .. } => clock += remaining.as_secs() + 1,
            Step::Iterate { .. } => {
                calls += 1;
                plan.done(limited(None), at(clock));
            }
            Step::Stop(reason) => break assert_eq!(reason, AgentStopReason::RateLimit),
            other => panic!("{other:?}"),
        }
        assert!(calls < 50, "it never ends");
    }
    let stop = Rules { on_limit: OnLimit::Stop, ..with_fallback() };
    let mut plan = AgentPlan::new(stop, 0);
    asked(&mut plan, 0);
    plan.done(limited(Some(1_000_100)), at(0));
    assert_eq!(asked(&mut plan, 0).0, AgentRole::Fallback);
    plan.done(limited(Some(1_000_100)), at(0));
    assert_eq!(plan.next(at(0), NONE), Step::Stop(AgentStopReason::RateLimit));
}

#[test]
fn a_limited_verification_is_handed_over_as_well() {
    let mut plan = AgentPlan::new(Rules { fallback: true, ..gated(2) }, 0);
    asked(&mut plan, 0);
    plan.done(complete(), at(1));
    assert!(matches!(plan.next(at(1), NONE), Step::Verify { agent: AgentRole::First, .. }));
    plan.unverified(IterationOutcome::RateLimited { resets_at: Some(1_000_100) }, at(2));
    assert!(matches!(plan.next(at(2), NONE), Step::Verify { agent: AgentRole::Fallback, .. }));
    plan.verified(true, at(3));
    assert_eq!(plan.next(at(3), NONE), Step::Stop(AgentStopReason::Completed));
}
