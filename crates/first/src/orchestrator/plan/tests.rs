//! The plan without processes: scripted outcomes go in, steps and lines come out.

use super::*;

fn goal() -> Goal {
    Goal { only: None, max_crashes: None, keep_going: false, jobs: 1 }
}

fn label(target: usize) -> String {
    format!("p{target}")
}

fn labels(points: usize) -> Vec<String> {
    (1..=points).map(label).collect()
}

fn trace(points: usize) -> PointTrace {
    let labels = labels(points);
    PointTrace::scripted(&labels.iter().map(String::as_str).collect::<Vec<_>>())
}

fn crashed(target: usize, state: u64) -> Executed {
    Executed {
        result: Execution::Crashed { label: label(target) },
        trace: trace(target),
        state: Some(DirectoryDigest(state, 0)),
    }
}

fn ended(points: usize) -> Executed {
    Executed { result: Execution::Ended { filtered: 0 }, trace: trace(points), state: None }
}

fn broken(reason: &str) -> Executed {
    let result = Execution::Failed { reason: reason.into() };
    Executed { result, trace: PointTrace::default(), state: None }
}

const PASSED: Check = Check::Passed { looked: false };
const LOOKED: Check = Check::Passed { looked: true };

fn wrong() -> Check {
    Check::Failed { reason: "lost".into() }
}

/// A workload with this many points and these check results, run one child at a time.
struct Script {
    points: usize,
    state: fn(usize) -> u64,
    check: fn(usize) -> Check,
}

impl Script {
    fn of(points: usize) -> Self {
        Self { points, state: |target| target as u64, check: |_| PASSED }
    }

    fn execute(&self, target: usize) -> Executed {
        if target > self.points {
            ended(self.points)
        } else {
            crashed(target, (self.state)(target))
        }
    }

    /// The steps in words, the lines in words, and the finish.
    fn play(&self, goal: Goal) -> (String, Vec<String>, Finish) {
        let mut plan = Plan::new(goal);
        let mut steps = String::new();
        while let Some(step) = plan.next() {
            match step {
                Step::Execute { target } => {
                    steps.push_str(&format!("e{target} "));
                    plan.executed(target, self.execute(target));
                }
                Step::Verify { target, label } => {
                    assert_eq!(label, self::label(target));
                    steps.push_str(&format!("v{target} "));
                    plan.checked(target, (self.check)(target));
                }
            }
        }
        (steps.trim_end().to_owned(), told(&mut plan), plan.finish().unwrap().clone())
    }
}

fn told(plan: &mut Plan) -> Vec<String> {
    std::iter::from_fn(|| plan.line())
        .map(|line| match line {
            Line::Passed { target, .. } => format!("{target} ok"),
            Line::Same { target, earlier, .. } => format!("{target} = {earlier}"),
            Line::Failed(failure) => format!("{} {}", failure.target, failure.reason),
        })
        .collect()
}

#[test]
fn one_job_runs_points_in_order_and_confirms_the_end() {
    let (steps, lines, finish) = Script::of(3).play(goal());
    assert_eq!(steps, "e1 v1 e2 v2 e3 v3 e4 e5");
    assert_eq!(lines, ["1 ok", "2 ok", "3 ok"]);
    assert_eq!(finish, Finish::Exhausted);
}

#[test]
fn the_first_failed_check_stops() {
    let script =
        Script { check: |target| if target < 2 { PASSED } else { wrong() }, ..Script::of(4) };
    let (steps, lines, finish) = script.play(goal());
    assert_eq!(steps, "e1 v1 e2 v2");
    assert_eq!(lines, ["1 ok", "2 lost"]);
    assert_eq!(finish, Finish::Failed);
}

#[test]
fn keeping_going_explores_on_and_still_fails() {
    let script =
        Script { check: |target| if target % 2 == 1 { PASSED } else { wrong() }, ..Script::of(4) };
    let (_, lines, finish) = script.play(Goal { keep_going: true, ..goal() });
    assert_eq!(lines, ["1 ok", "2 lost", "3 ok", "4 lost"]);
    assert_eq!(finish, Finish::Failed);
}

#[test]
fn a_failed_execution_ends_even_what_keeps_going() {
    let mut plan = Plan::new(Goal { keep_going: true, ..goal() });
    assert_eq!(plan.next(), Some(Step::Execute { target: 1 }));
    plan.executed(1, broken("panicked"));
    assert_eq!(plan.next(), None);
    assert_eq!(told(&mut plan), ["1 panicked"]);
    assert_eq!(plan.finish(), Some(&Finish::Failed));
}

#[test]
fn a_workload_without_crash_points_fails() {
    let (steps, lines, finish) = Script::of(0).play(goal());
    assert_eq!((steps.as_str(), finish), ("e1", Finish::Failed));
    assert!(lines[0].contains("without reaching a crash point"), "{lines:?}");
    let mut plan = Plan::new(goal());
    plan.next();
    let result = Execution::Ended { filtered: 4 };
    plan.executed(1, Executed { result, trace: PointTrace::default(), state: None });
    let lines = told(&mut plan);
    assert!(lines[0].contains("label filter") && lines[0].contains("4 crash points"), "{lines:?}");
}

#[test]
fn a_limit_ends_without_a_run_past_it() {
    let limited = |max| Script::of(3).play(Goal { max_crashes: Some(max), ..goal() });
    let (steps, lines, finish) = limited(2);
    assert_eq!((steps.as_str(), finish), ("e1 v1 e2 v2", Finish::Limited));
    assert_eq!(lines.len(), 2);
    assert_eq!(limited(3).2, Finish::Limited);
    let (steps, _, finish) = limited(4);
    assert_eq!((steps.as_str(), finish), ("e1 v1 e2 v2 e3 v3 e4", Finish::Exhausted));
    assert_eq!(limited(9).0, "e1 v1 e2 v2 e3 v3 e4 e5");
}

#[test]
fn a_single_point_can_be_run_alone() {
    let only = |target| Script::of(3).play(Goal { only: Some(target), ..goal() });
    let (steps, lines, finish) = only(2);
    assert_eq!((steps.as_str(), finish), ("e2 v2", Finish::Limited));
    assert_eq!(lines, ["2 ok"]);
    let (steps, lines, finish) = only(9);
    assert_eq!((steps.as_str(), finish), ("e9", Finish::PastTheEnd { points: 3 }));
    assert!(lines.is_empty());
}

#[test]
fn an_equal_state_is_not_checked_again() {
    let script = Script { state: |target| (target % 2) as u64, ..Script::of(5) };
    let (steps, lines, finish) = script.play(goal());
    assert_eq!(steps, "e1 v1 e2 v2 e3 e4 e5 e6 e7");
    assert_eq!(lines, ["1 ok", "2 ok", "3 = 1", "4 = 2", "5 = 1"]);
    assert_eq!(finish, Finish::Exhausted);
}

#[test]
fn a_check_that_read_its_crash_info_is_not_reused_for_equal_states() {
    let check = |target| if target < 3 { LOOKED } else { PASSED };
    let script = Script { state: |_| 0, check, ..Script::of(5) };
    let (steps, lines, _) = script.play(goal());
    assert_eq!(steps, "e1 v1 e2 v2 e3 v3 e4 e5 e6 e7");
    assert_eq!(lines, ["1 ok", "2 ok", "3 ok", "4 = 3", "5 = 3"]);
}

#[test]
fn neither_does_a_failed_one() {
    let check = |target| if target == 1 { wrong() } else { PASSED };
    let script = Script { state: |_| 0, check, ..Script::of(3) };
    let (_, lines, _) = script.play(Goal { keep_going: true, ..goal() });
    assert_eq!(lines, ["1 lost", "2 ok", "3 = 2"]);
}

#[test]
fn an_unreadable_state_is_always_checked() {
    let mut plan = Plan::new(goal());
    for target in 1..=2 {
        assert_eq!(plan.next(), Some(Step::Execute { target }));
        plan.executed(target, Executed { state: None, ..crashed(target, 0) });
        assert_eq!(plan.next(), Some(Step::Verify { target, label: label(target) }));
        plan.checked(target, PASSED);
    }
    assert_eq!(told(&mut plan), ["1 ok", "2 ok"]);
}

/// Runs targets 1 to `n` with the results of `execute` and passing checks, and returns the last line.
fn last_line(execute: impl Fn(usize) -> Executed) -> String {
    let mut plan = Plan::new(goal());
    while let Some(step) = plan.next() {
        match step {
            Step::Execute { target } => plan.executed(target, execute(target)),
            Step::Verify { target, .. } => plan.checked(target, PASSED),
        }
    }
    assert_eq!(plan.finish(), Some(&Finish::Failed));
    told(&mut plan).pop().unwrap()
}

#[test]
fn a_number_of_points_that_changes_is_reported() {
    let shrinks = last_line(|target| if target < 4 { crashed(target, 0) } else { ended(1) });
    assert!(shrinks.contains("not deterministic"), "{shrinks}");
    assert!(shrinks.contains("returned after 1 crash point in one run and reached 3"), "{shrinks}");
    let grows = last_line(|target| match target {
        3 => ended(2),
        target => crashed(target, 0),
    });
    assert!(grows.contains("returned after 2 crash points in one run and reached 4"), "{grows}");
    let differs = last_line(|target| match target {
        1 => crashed(1, 0),
        2 => ended(1),
        _ => ended(0),
    });
    assert!(differs.starts_with("3 ") && differs.contains("reached 0 in another"), "{differs}");
}

#[test]
fn labels_that_change_are_reported() {
    let other = |target: usize| {
        let trace = PointTrace::scripted(&["p1", "q2", "p3"]);
        if target < 3 { crashed(target, 0) } else { Executed { trace, ..crashed(3, 0) } }
    };
    let said = last_line(other);
    assert!(
        said.contains("not deterministic") && said.contains(r#""p2" in one run and "q2""#),
        "{said}"
    );
}

#[test]
fn a_failing_confirmation_is_reported() {
    let said = last_line(|target| match target {
        1 => crashed(1, 0),
        2 => ended(1),
        _ => broken("hung"),
    });
    assert_eq!(said, "3 hung");
}

#[test]
fn running_ahead_does_not_change_the_report() {
    // Four jobs; outcomes arrive in reverse order.
    let mut plan = Plan::new(Goal { jobs: 4, ..goal() });
    let steps: Vec<_> = std::iter::from_fn(|| plan.next()).collect();
    assert_eq!(steps.len(), 8, "twice as many as jobs, so that a slow one does not stop the rest");
    for target in (1..=8).rev() {
        plan.executed(target, if target > 3 { ended(3) } else { crashed(target, 7) });
        assert_eq!(plan.line(), None);
    }
    assert_eq!(plan.bound(), 5);
    // All three states are equal: 2 and 3 wait for 1.
    assert_eq!(plan.next(), Some(Step::Verify { target: 1, label: label(1) }));
    assert_eq!(plan.next(), None);
    plan.checked(1, PASSED);
    assert_eq!(told(&mut plan), ["1 ok", "2 = 1", "3 = 1"]);
    assert_eq!(plan.finish(), Some(&Finish::Exhausted));
    assert_eq!(plan.untold(), 4..=8);
}

#[test]
fn the_lowest_failure_is_told_whichever_came_first() {
    let mut plan = Plan::new(Goal { jobs: 4, ..goal() });
    while plan.next().is_some() {}
    for target in 1..=4 {
        plan.executed(target, crashed(target, target as u64));
    }
    let checks: Vec<_> = std::iter::from_fn(|| plan.next()).map(|step| step.target()).collect();
    assert_eq!(checks, [1, 2, 3, 4]);
    plan.checked(4, wrong());
    assert_eq!(plan.bound(), 4);
    plan.checked(2, wrong());
    assert_eq!(plan.bound(), 2);
    assert_eq!((plan.line(), plan.finish()), (None, None));
    plan.checked(1, PASSED);
    assert_eq!(told(&mut plan), ["1 ok", "2 lost"]);
    assert_eq!(plan.finish(), Some(&Finish::Failed));
}
