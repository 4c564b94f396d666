//! Controlling a loop from another terminal, and rollbacks.
use crate::common::{STUBBORN, Sandbox, eventually};

/// Waits in each iteration for a file `go-N`.
const STEP: &str = "start; touch \"$dir/at-$n\"; while [ ! -e \"$dir/go-$n\" ]; do sleep 0.02; done; \
                    progress 1 9; result";

fn go(sandbox: &Sandbox, call: u32) {
    std::fs::write(sandbox.agent_dir().join(format!("go-{call}")), "").unwrap();
}

fn steer(sandbox: &Sandbox, words: &[&str]) {
    let words: Vec<_> = ["agent"].iter().chain(words).copied().collect();
    let called = sandbox.retake(&words);
    assert_eq!(called.code, 0, "{words:?}: {}", called.snapshot());
}

#[test]
fn stop_ends_after_this_iteration() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["--fail-incomplete"]);
    sandbox.awaited("at-1");
    let list = sandbox.retake(&["agent", "list", "--json"]).json();
    assert_eq!((&list[0]["name"], &list[0]["running"]), (&"task".into(), &true.into()));
    assert_eq!(sandbox.statuses(), "1 executing");
    steer(&sandbox, &["stop", "task"]);
    go(&sandbox, 1);
    let called = running.end();
    assert_eq!(called.code, 6);
    assert!(called.stdout.contains("Stopped: stopped on request"), "{}", called.snapshot());
    assert_eq!(
        (sandbox.statuses().as_str(), sandbox.stop_reason().as_str()),
        ("1 completed", "stopped")
    );
    // A stop applies to a running loop, and only once.
    let called = sandbox.retake(&["agent", "stop", "task"]);
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("task is not running"), "{}", called.snapshot());
    sandbox.agent("", &["start; complete; result"]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    assert_eq!(sandbox.stop_reason(), "completed");
}

#[test]
fn pause_holds_until_resumed() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let mut running = sandbox.start_agent(&["-m", "2"]);
    sandbox.awaited("at-1");
    steer(&sandbox, &["pause", "task"]);
    go(&sandbox, 1);
    go(&sandbox, 2);
    eventually("the pause", || sandbox.logs().contains("Paused"));
    assert!(!running.ended());
    assert_eq!(sandbox.calls(), 1);
    steer(&sandbox, &["resume", "task"]);
    assert_eq!(running.end().code, 0);
    assert_eq!(sandbox.calls(), 2);
}

#[test]
fn an_interrupt_ends_a_pause() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("at-1");
    steer(&sandbox, &["pause", "task"]);
    go(&sandbox, 1);
    eventually("the pause", || sandbox.logs().contains("Paused"));
    running.signal(libc::SIGINT);
    assert_eq!(running.end().code, 130);
    assert_eq!(sandbox.statuses(), "1 completed");
    assert_eq!(sandbox.stop_reason(), "interrupted");
}

#[test]
fn a_message_appears_once_in_the_next_prompt() {
    let sandbox = Sandbox::new();
    sandbox
        .agent("retry:\n  first: 1ms", &[STEP, "start; failed 500", "start; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    steer(&sandbox, &["tell", "task", "before it runs"]);
    let running = sandbox.start_agent(&["-m", "3"]);
    sandbox.awaited("at-1");
    steer(&sandbox, &["tell", "task", "pay $5 for {{this}}"]);
    steer(&sandbox, &["tell", "task", "and then that"]);
    go(&sandbox, 1);
    assert_eq!(running.end().code, 0);
    assert!(sandbox.prompt(1).contains("before it runs"));
    // Repeated in the second attempt at the same iteration, but not in the next iteration.
    for call in [2, 3] {
        let prompt = sandbox.prompt(call);
        assert!(prompt.contains("pay $5 for {{this}}\n\nand then that"), "{prompt}");
        assert!(!prompt.contains("before it runs"));
    }
    assert!(!sandbox.prompt(4).contains("and then that"));
    let called = sandbox.retake(&["agent", "tell", "task", " "]);
    assert_eq!(called.code, 1);
}

#[test]
fn stop_now_cuts_the_iteration_off() {
    let sandbox = Sandbox::new();
    let hook =
        "hooks:\n  post:\n    run: touch post\n  end:\n    run: echo $RETAKE_STOP_REASON > end";
    sandbox.agent(hook, &[STUBBORN]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["--fail-incomplete"]);
    sandbox.awaited("pid");
    steer(&sandbox, &["stop", "task", "--now"]);
    let called = running.end();
    assert_eq!(called.code, 6, "{}", called.snapshot());
    sandbox.gone();
    assert_eq!(sandbox.statuses(), "1 interrupted");
    assert_eq!(sandbox.stop_reason(), "stopped");
    assert_eq!(std::fs::read_to_string(sandbox.project().join("end")).unwrap(), "stopped\n");
    // It is used up, so the next loop does not get it.
    sandbox.agent("", &["start; complete; result"]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    assert_eq!(sandbox.stop_reason(), "completed");
}

#[test]
fn stop_now_ends_a_gate_and_a_wait() {
    let sandbox = Sandbox::new();
    let gate = format!("touch {0}/gate; sleep 1000", sandbox.agent_dir().display());
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["--verify", &gate, "--fail-incomplete"]);
    sandbox.awaited("gate");
    steer(&sandbox, &["stop", "task", "--now"]);
    assert_eq!(running.end().code, 6);
    assert_eq!(sandbox.stop_reason(), "stopped");

    sandbox.agent("", &["start; limited 3600"]);
    let running = sandbox.start_agent(&["--fail-incomplete", "--again"]);
    eventually("the wait", || sandbox.listed_task()["activity"] == "waiting");
    steer(&sandbox, &["stop", "task", "--now"]);
    assert_eq!(running.end().code, 6);
}
