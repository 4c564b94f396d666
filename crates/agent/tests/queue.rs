//! The queue's plan with scripted tasks, and its file with several writers.

use std::time::Duration;

use jiff::Timestamp;
use retake_agent::plan::{AgentStopReason, Budgets};
use retake_agent::queue::{
    Queue, QueueError, QueuePlan, QueueRules, QueueStep, QueueStopReason, QueuedTask,
    TaskAllowance, TaskEnd, TaskOptions, TaskOutcome, TaskReport, TaskState,
};
use retake_agent::workspace::{Name, WorkspaceDirectories};
use retake_types::loop_record::agent::Spent;

fn task(name: &str, state: TaskState) -> QueuedTask {
    QueuedTask {
        name: name.to_owned(),
        added: Timestamp::UNIX_EPOCH,
        options: TaskOptions::default(),
        state,
    }
}

fn waiting(name: &str) -> QueuedTask {
    task(name, TaskState::Waiting)
}

fn running(name: &str) -> QueuedTask {
    task(name, TaskState::Running { since: Timestamp::UNIX_EPOCH })
}

fn ended(name: &str) -> QueuedTask {
    let (at, end) = (Timestamp::UNIX_EPOCH, TaskEnd::AlreadyComplete);
    task(name, TaskState::Ended { since: None, at, end })
}

fn stopped(reason: AgentStopReason, cost_usd: f64, tokens: u64) -> TaskReport {
    let end = TaskEnd::Stopped { reason, loop_id: None };
    TaskReport { end, spent: Spent { cost_usd, tokens } }
}

fn next(plan: &mut QueuePlan, tasks: &[QueuedTask], seconds: u64) -> (String, TaskAllowance) {
    match plan.next(tasks, Duration::from_secs(seconds)) {
        QueueStep::Run { task, allowance } => (task.name, allowance),
        QueueStep::Stop(reason) => panic!("{reason:?}"),
    }
}

const RULES: QueueRules =
    QueueRules { max_cost_usd: None, max_tokens: None, max_time: None, stop_on_failure: false };

#[test]
fn interrupted_tasks_run_first_and_ended_ones_never() {
    let mut plan = QueuePlan::new(RULES, Spent::default());
    let tasks = [ended("a"), waiting("b"), running("c"), waiting("d")];
    assert_eq!(next(&mut plan, &tasks, 0).0, "c");
    let tasks = [ended("a"), waiting("b"), ended("c"), waiting("d")];
    assert_eq!(next(&mut plan, &tasks, 0).0, "b");
    let step = plan.next(&[ended("a")], Duration::ZERO);
    assert_eq!(step, QueueStep::Stop(QueueStopReason::Empty));
    // A task is added at this moment.
    let step = plan.next(&tasks, Duration::ZERO);
    assert_eq!(step, QueueStep::Stop(QueueStopReason::Empty));
    plan.resume();
    assert_eq!(next(&mut plan, &tasks, 0).0, "b");
}

#[test]
fn a_task_gets_what_is_left_and_never_more_than_its_own() {
    let rules = QueueRules {
        max_cost_usd: Some(5.0),
        max_tokens: Some(1000),
        max_time: Some(Duration::from_secs(100)),
        ..RULES
    };
    let mut plan = QueuePlan::new(rules, Spent { cost_usd: 1.0, tokens: 100 });
    let tasks = [waiting("a")];
    let (_, allowance) = next(&mut plan, &tasks, 40);
    let left = TaskAllowance {
        cost_usd: Some(4.0),
        tokens: Some(900),
        time: Some(Duration::from_secs(60)),
    };
    assert_eq!(allowance, left);
    let own = Budgets { cost_usd: Some(2.0), tokens: Some(5000), ..Budgets::default() };
    let limited = allowance.limit(own);
    assert_eq!((limited.cost_usd, limited.tokens), (Some(2.0), Some(900)));
    // For this invocation, regardless of earlier time of the loop.
    assert_eq!((limited.invocation_time, limited.time), (Some(Duration::from_secs(60)), None));
    // Its own budget ends the task, not the queue.
    let outcome =
        plan.done(&stopped(AgentStopReason::BudgetCost, 2.1, 10), Duration::from_secs(50));
    assert_eq!(outcome, TaskOutcome::Ended);
    assert_eq!(next(&mut plan, &tasks, 50).1.tokens, Some(890));
    // The queue's budget ends the queue, and the task waits for the next run.
    let outcome =
        plan.done(&stopped(AgentStopReason::BudgetCost, 1.9, 10), Duration::from_secs(60));
    assert_eq!(outcome, TaskOutcome::WaitsAgain);
    assert_eq!(plan.stopped(), Some(QueueStopReason::BudgetCost));
    // A task that completed with the last cent is complete.
    let mut plan = QueuePlan::new(rules, Spent::default());
    let outcome = plan.done(&stopped(AgentStopReason::Completed, 6.0, 1), Duration::ZERO);
    assert_eq!((outcome, plan.completed()), (TaskOutcome::Ended, 1));
    let step = plan.next(&tasks, Duration::ZERO);
    assert_eq!(step, QueueStep::Stop(QueueStopReason::BudgetCost));
    for (spent, seconds, reason) in [
        (Spent { cost_usd: 0.0, tokens: 1000 }, 0, QueueStopReason::BudgetTokens),
        (Spent::default(), 100, QueueStopReason::BudgetTime),
    ] {
        let step = QueuePlan::new(rules, spent).next(&tasks, Duration::from_secs(seconds));
        assert_eq!(step, QueueStep::Stop(reason));
    }
}

#[test]
fn failures_end_the_queue_only_if_asked_and_signals_always() {
    let failures = [
        stopped(AgentStopReason::Failed, 0.0, 0),
        stopped(AgentStopReason::VerifyFailed, 0.0, 0),
        TaskReport::without_loop(TaskEnd::NotStarted { why: "no agent".into() }),
    ];
    let mut plan = QueuePlan::new(RULES, Spent::default());
    for failure in &failures {
        assert_eq!(plan.done(failure, Duration::ZERO), TaskOutcome::Ended);
    }
    assert_eq!((plan.failures(), plan.stopped()), (3, None));
    for failure in &failures {
        let rules = QueueRules { stop_on_failure: true, ..RULES };
        let mut plan = QueuePlan::new(rules, Spent::default());
        plan.done(failure, Duration::ZERO);
        assert_eq!(plan.stopped(), Some(QueueStopReason::Failed));
    }
    for good in
        [AgentStopReason::MaxIterations, AgentStopReason::Stopped, AgentStopReason::RateLimit]
    {
        plan.done(&stopped(good, 0.0, 0), Duration::ZERO);
    }
    assert_eq!((plan.failures(), plan.completed()), (3, 0));
    let outcome = plan.done(&stopped(AgentStopReason::Interrupted, 0.0, 0), Duration::ZERO);
    assert_eq!(outcome, TaskOutcome::WaitsAgain);
    assert_eq!(plan.stopped(), Some(QueueStopReason::Interrupted));
}

fn queue(dir: &std::path::Path) -> Queue {
    Queue::of(&WorkspaceDirectories::of_project(dir))
}

#[test]
fn many_writers_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let queue = queue(dir.path());
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let queue = &queue;
            scope.spawn(move || {
                for number in 0..10 {
                    queue.add(vec![waiting(&format!("t{writer}-{number}"))], false).unwrap();
                }
                let gone = Name::new(&format!("t{writer}-3")).unwrap();
                queue.remove(&[gone]).unwrap();
            });
        }
    });
    let tasks = queue.read().unwrap().tasks;
    assert_eq!(tasks.len(), 72);
    assert!(tasks.iter().all(|task| !task.name.ends_with("-3")));
}

#[test]
fn a_refused_change_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let queue = queue(dir.path());
    queue.add(vec![waiting("a"), waiting("b")], false).unwrap();
    let twice = queue.add(vec![waiting("c"), waiting("a")], false);
    assert!(matches!(twice, Err(QueueError::Queued(name)) if name == "a"));
    let names = [Name::new("b").unwrap(), Name::new("z").unwrap()];
    assert!(matches!(queue.remove(&names), Err(QueueError::NotQueued(name)) if name == "z"));
    let left: Vec<String> = queue.read().unwrap().tasks.into_iter().map(|task| task.name).collect();
    assert_eq!(left, ["a", "b"]);
    // Only one process may run it.
    let held = queue.lock().unwrap();
    assert!(matches!(queue.lock(), Err(QueueError::Held { .. })));
    drop(held);
    queue.lock().unwrap();
    // An unreadable file is an error, never an empty queue.
    std::fs::write(queue.dir().join("queue.json"), "{\"tasks\": [").unwrap();
    assert!(matches!(queue.read(), Err(QueueError::Invalid { .. })));
    assert!(queue.add(vec![waiting("c")], false).is_err());
}
