//! Several tasks one after another: order, budgets, killed runners, and changes while it runs.

use std::process::Stdio;

use serde_json::Value;

use crate::common::{Called, Detached, RETAKE, Running, Sandbox, eventually, on_disk};

/// Records the order, waits for `go-NAME` if `wait-NAME` exists, and completes.
const TASK: &str = r#"start; echo $RETAKE_WORKSPACE >> "$dir/order"; touch "$dir/at-$RETAKE_WORKSPACE"
while [ -e "$dir/wait-$RETAKE_WORKSPACE" ] && [ ! -e "$dir/go-$RETAKE_WORKSPACE" ]; do sleep 0.02; done
case $RETAKE_WORKSPACE in bad*) failed 401 'no key';; *) complete; result 0.50 100;; esac"#;

fn queue(sandbox: &Sandbox, words: &[&str]) -> Called {
    let words: Vec<_> = ["agent", "queue"].iter().chain(words).copied().collect();
    sandbox.retake(&words)
}

fn good(sandbox: &Sandbox, words: &[&str]) -> Called {
    let called = queue(sandbox, words);
    assert_eq!(called.code, 0, "{words:?}: {}", called.snapshot());
    called
}

fn with_tasks(script: &str, names: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[script]);
    for name in names {
        sandbox.workspace(name, &[]);
    }
    sandbox
}

fn order(sandbox: &Sandbox) -> String {
    let text = std::fs::read_to_string(sandbox.agent_dir().join("order")).unwrap_or_default();
    text.lines().collect::<Vec<_>>().join(" ")
}

fn wait(sandbox: &Sandbox, name: &str) {
    std::fs::write(sandbox.agent_dir().join(format!("wait-{name}")), "").unwrap();
}

fn go(sandbox: &Sandbox, name: &str) {
    std::fs::write(sandbox.agent_dir().join(format!("go-{name}")), "").unwrap();
}

fn start(sandbox: &Sandbox, options: &[&str]) -> Running {
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "queue", "run"]).args(options);
    Running::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// `NAME STATE`, or the stop reason where it has ended.
fn states(sandbox: &Sandbox) -> String {
    let list = good(sandbox, &["list", "--json"]).json();
    let word = |task: &Value| {
        let ended = task["stopReason"].as_str().or(task["state"].as_str()).unwrap().to_owned();
        format!("{} {ended}", task["name"].as_str().unwrap())
    };
    list["tasks"].as_array().unwrap().iter().map(word).collect::<Vec<_>>().join(", ")
}

#[test]
fn tasks_run_in_order_and_stay_listed_with_what_became_of_them() {
    let sandbox = with_tasks(TASK, &["a", "b", "c", "d"]);
    let empty = queue(&sandbox, &["run"]);
    assert_eq!(empty.code, 1);
    assert!(empty.stderr.contains("queue add NAME"), "{}", empty.snapshot());
    good(&sandbox, &["add", "b", "a"]);
    good(&sandbox, &["add", "c", "--max-cost", "3", "-m", "4"]);
    good(&sandbox, &["add", "d", "--first"]);
    assert_eq!(states(&sandbox), "d waiting, b waiting, a waiting, c waiting");
    let called = good(&sandbox, &["run"]);
    assert_eq!(order(&sandbox), "d b a c", "{}", called.snapshot());
    for part in [
        "Task d (3 tasks after it)",
        "✓ b: the task is complete, $0.50",
        "4 tasks completed, $2.00 spent",
    ] {
        assert!(called.stdout.contains(part), "{part}: {}", called.snapshot());
    }
    assert_eq!(states(&sandbox), "d completed, b completed, a completed, c completed");
    let list = good(&sandbox, &["list", "--json"]).json();
    let last = &list["tasks"][3];
    assert_eq!((&last["costUsd"], &last["iterations"]), (&0.5.into(), &1.into()));
    assert_eq!(last["options"]["settings"]["maxCost"], "3");
    let table = good(&sandbox, &["list"]).stdout;
    assert!(table.contains("completed") && table.contains("$0.50"), "{table}");
    assert!(last["startedAt"].is_string() && last["endedAt"].is_string(), "{last}");
    // No task is left to run, and an ended one can be queued again or removed.
    assert_eq!(queue(&sandbox, &["run"]).code, 1);
    good(&sandbox, &["add", "a"]);
    assert_eq!(states(&sandbox), "d completed, b completed, c completed, a waiting");
    let called = good(&sandbox, &["run"]);
    assert!(called.stdout.contains("✓ a is already complete"), "{}", called.snapshot());
    good(&sandbox, &["add", "a", "--again"]);
    good(&sandbox, &["run"]);
    assert_eq!(order(&sandbox), "d b a c a");
    good(&sandbox, &["remove", "--ended"]);
    assert_eq!(states(&sandbox), "");
}

#[test]
fn invalid_queue_commands_are_refused_with_a_reason() {
    let sandbox = with_tasks(TASK, &["a"]);
    assert_eq!(sandbox.retake(&["agent", "init", "bare"]).code, 0);
    for (words, part) in [
        (&["add", "nobody"][..], "Workspace not found: nobody"),
        (&["add", "bare"], "Instructions not found"),
        (&["add", "a", "a"], "a is named twice"),
        (&["add", "a", "--max-cost", "much"], "--max-cost: \"much\" is not an amount of money"),
        (
            &["add", "a", "--agent", "codex", "--max-cost", "1"],
            "--max-cost cannot be used with codex",
        ),
        (&["add", "a", "-m", "0"], "--max-iterations takes a whole number from 1"),
        (&["remove", "a"], "a is not in the queue"),
        (&["remove"], "NAME"),
        (&["run", "--max-time", "soon"], "--max-time: "),
        (&["stop"], "the queue is not running"),
    ] {
        let called = queue(&sandbox, words);
        assert_eq!(called.code, 1, "{words:?}: {}", called.snapshot());
        assert!(called.stderr.contains(part), "{words:?}: {}", called.snapshot());
    }
    good(&sandbox, &["add", "a"]);
    assert!(queue(&sandbox, &["add", "a"]).stderr.contains("a is already in the queue"));
    good(&sandbox, &["remove", "a"]);
    good(&sandbox, &["add", "a", "--agent", "codex"]);
    let called = queue(&sandbox, &["run", "--max-cost", "1"]);
    assert_eq!(called.code, 1);
    let said = "a cannot be run: --max-cost cannot be used with codex";
    assert!(called.stderr.contains(said), "{}", called.snapshot());
    // Permissions are given by the user who runs the queue, and never stored.
    assert_eq!(queue(&sandbox, &["add", "a", "--dangerously-skip-permissions"]).code, 1);
}

#[test]
fn a_failing_task_does_not_end_the_queue_unless_asked() {
    let sandbox = with_tasks(TASK, &["bad", "gone", "a"]);
    good(&sandbox, &["add", "bad", "gone", "a"]);
    assert_eq!(sandbox.retake(&["agent", "clean", "gone", "--force", "--no-archive"]).code, 0);
    let called = queue(&sandbox, &["run"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert_eq!(order(&sandbox), "bad a");
    assert_eq!(states(&sandbox), "bad failed, gone not_started, a completed");
    // Reported before the first task begins, while the user is watching.
    assert!(called.stderr.contains("gone cannot be run: "), "{}", called.snapshot());
    assert!(called.stdout.contains("1 task completed, 2 failed"), "{}", called.snapshot());

    good(&sandbox, &["remove", "gone"]);
    good(&sandbox, &["add", "bad", "a", "--again"]);
    let called = queue(&sandbox, &["run", "--stop-on-failure"]);
    assert_eq!(called.code, 1);
    assert_eq!(states(&sandbox), "bad failed, a waiting");
    assert!(called.stdout.contains("→ Run the 1 task left"), "{}", called.snapshot());
}

#[test]
fn a_queue_has_a_budget_for_all_tasks_and_one_per_task() {
    let sandbox = Sandbox::new();
    // 0.50 per iteration, never complete.
    sandbox.agent(
        "",
        &["start; echo $RETAKE_WORKSPACE >> \"$dir/order\"; progress 1 9; result 0.50 100"],
    );
    for name in ["a", "b", "c"] {
        sandbox.workspace(name, &[]);
    }
    good(&sandbox, &["add", "a", "--max-cost", "1"]);
    good(&sandbox, &["add", "b", "c", "-m", "3"]);
    // 1 for a, 1.5 for b, and the rest is too little for c's three.
    let called = good(&sandbox, &["run", "--max-cost", "3.2"]);
    assert_eq!(order(&sandbox), "a a b b b c c", "{}", called.snapshot());
    let said = "the cost budget for all tasks is exhausted; 0 tasks completed, \
                2 stopped before completion, $3.50 spent\n→ Run the 1 task left: retake agent queue run --max-cost 3.2\n";
    assert!(called.stdout.contains(said), "{}", called.snapshot());
    // The interrupted one waits for the next run; the others ended by their own rules.
    assert_eq!(states(&sandbox), "a budget_cost, b max_iterations, c waiting");
    good(&sandbox, &["run", "--max-tokens", "150"]);
    assert_eq!(states(&sandbox), "a budget_cost, b max_iterations, c waiting");
    assert_eq!(order(&sandbox), "a a b b b c c c c");
}

#[test]
fn the_queue_changes_while_it_runs() {
    let sandbox = with_tasks(TASK, &["a", "b", "c", "d"]);
    wait(&sandbox, "a");
    good(&sandbox, &["add", "a", "b", "c"]);
    let running = start(&sandbox, &[]);
    sandbox.awaited("at-a");
    assert_eq!(states(&sandbox), "a running, b waiting, c waiting");
    assert_eq!(good(&sandbox, &["list", "--json"]).json()["running"], true);
    let refused = queue(&sandbox, &["remove", "a"]);
    assert!(refused.stderr.contains("a is running"), "{}", refused.snapshot());
    let second = queue(&sandbox, &["run"]);
    assert!(
        second.stderr.contains("already run by `retake agent queue run`"),
        "{}",
        second.snapshot()
    );
    good(&sandbox, &["remove", "b"]);
    good(&sandbox, &["add", "d", "--first"]);
    go(&sandbox, "a");
    let called = running.end();
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(order(&sandbox), "a d c");
}

#[test]
fn a_killed_queue_continues_with_its_task_and_its_budget() {
    let sandbox = Sandbox::new();
    let script = r#"start; echo $RETAKE_WORKSPACE >> "$dir/order"
        case $n in
        3) used x 55; touch "$dir/stuck"; sleep 1000;;
        *) progress 1 9; result 0.50 100;;
        esac"#;
    sandbox.agent("", &[script]);
    for name in ["a", "b", "c"] {
        sandbox.workspace(name, &[]);
    }
    good(&sandbox, &["add", "a", "b", "c", "-m", "2"]);
    let running = start(&sandbox, &["--max-tokens", "600"]);
    sandbox.awaited("stuck");
    eventually("the output", || on_disk(&sandbox.store(), b"\"input_tokens\":55"));
    running.signal(libc::SIGKILL);
    running.end();
    assert_eq!(states(&sandbox), "a max_iterations, b interrupted, c waiting");
    let table = good(&sandbox, &["list"]).stdout;
    assert!(
        table.contains("its retake process died; `retake agent queue run` continues it"),
        "{table}"
    );
    // Without a budget option, the dead queue's budget and consumption count.
    let called = good(&sandbox, &["run"]);
    assert!(
        called.stdout.contains("Continuing the queue whose process died"),
        "{}",
        called.snapshot()
    );
    assert!(
        called.stdout.contains("Continuing the loop that was interrupted"),
        "{}",
        called.snapshot()
    );
    // 200, 55 and 200, then c: 100 of the remaining 145, and one that exceeds it.
    assert_eq!(order(&sandbox), "a a b b b c c", "{}", called.snapshot());
    assert_eq!(states(&sandbox), "a max_iterations, b max_iterations, c waiting");
    assert!(
        called.stdout.contains("token budget for all tasks is exhausted"),
        "{}",
        called.snapshot()
    );
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
}

#[test]
fn repeated_kills_of_the_queue_lose_no_task_and_run_none_twice() {
    let sandbox = with_tasks(TASK, &["a", "b", "c", "d", "e"]);
    good(&sandbox, &["add", "a", "b", "c", "d", "e"]);
    for round in 0..10u64 {
        let running = start(&sandbox, &["-q"]);
        // At any moment: in a task, between two, while the file is replaced.
        std::thread::sleep(std::time::Duration::from_millis(20 + round * 37 % 150));
        running.signal(libc::SIGKILL);
        running.end();
    }
    queue(&sandbox, &["run"]);
    let ended = "a completed, b completed, c completed, d completed, e completed";
    assert_eq!(states(&sandbox), ended);
    // A task that was complete when its runner died does not run again.
    for name in ["a", "b", "c", "d", "e"] {
        let shown = sandbox.retake(&["agent", "show", name, "--json"]).json();
        let iterations = shown["iterations"].as_array().unwrap();
        let completed = iterations.iter().filter(|i| i["status"] == "completed").count();
        assert_eq!(completed, 1, "{name}: {shown}");
    }
}

#[test]
fn an_interrupted_queue_keeps_what_it_was_doing() {
    let sandbox = with_tasks(TASK, &["a", "b"]);
    wait(&sandbox, "a");
    good(&sandbox, &["add", "a", "b"]);
    let running = start(&sandbox, &[]);
    sandbox.awaited("at-a");
    running.signal(libc::SIGINT);
    let called = running.end();
    assert_eq!(called.code, 130, "{}", called.snapshot());
    assert!(called.stdout.contains("→ Run the 2 tasks left"), "{}", called.snapshot());
    assert_eq!(states(&sandbox), "a waiting, b waiting");
    go(&sandbox, "a");
    good(&sandbox, &["run"]);
    assert_eq!(states(&sandbox), "a completed, b completed");
}

#[test]
fn a_queue_in_the_background_is_seen_and_stopped() {
    let sandbox = with_tasks(TASK, &["a", "b", "c"]);
    wait(&sandbox, "b");
    good(&sandbox, &["add", "a", "b", "c"]);
    let (said, background) = Detached::started(good(&sandbox, &["run", "--detach"]));
    assert!(said.stdout.contains("The queue runs in the background"), "{}", said.snapshot());
    sandbox.awaited("at-b");
    assert_eq!(states(&sandbox), "a completed, b running, c waiting");
    let called = good(&sandbox, &["stop"]);
    assert!(
        called.stdout.contains("The queue stops after this iteration"),
        "{}",
        called.snapshot()
    );
    go(&sandbox, "b");
    background.ended();
    assert_eq!(order(&sandbox), "a b");
    assert_eq!(states(&sandbox), "a completed, b completed, c waiting");
    // Immediately.
    wait(&sandbox, "c");
    let (_, background) = Detached::started(good(&sandbox, &["run", "--detach"]));
    sandbox.awaited("at-c");
    good(&sandbox, &["stop", "--now"]);
    background.ended();
    assert_eq!(states(&sandbox), "a completed, b completed, c stopped");
}

#[test]
fn worktrees_have_queues_of_their_own() {
    let sandbox = with_tasks(TASK, &["a"]);
    sandbox.git(&["init", "-q"]);
    sandbox.git(&["commit", "-q", "--allow-empty", "-m", "start"]);
    sandbox.git(&["worktree", "add", "-q", "../other"]);
    good(&sandbox, &["add", "a"]);
    let other = sandbox.sh("cd ../other && mkdir -p .agent && retake agent queue list --json");
    assert_eq!(other.json()["tasks"], serde_json::json!([]), "{}", other.snapshot());
}
