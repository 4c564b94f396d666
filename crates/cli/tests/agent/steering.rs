//! Steering a loop from elsewhere, and going back.
use std::process::Stdio;

use crate::common::{RETAKE, Sandbox, eventually};

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
    assert!(called.stdout.contains("Stopped: asked to stop"), "{}", called.snapshot());
    assert_eq!(
        (sandbox.statuses().as_str(), sandbox.stop_reason().as_str()),
        ("1 completed", "stopped")
    );
    // A stop is for a loop that runs, and used up by it.
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
fn what_is_told_goes_into_the_next_prompt_once() {
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
    // Again for the second try of the same iteration, and not in the one after.
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
fn watch_follows_a_loop() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.retake(&["agent", "watch", "task"]).code, 1);
    let running = sandbox.start_agent(&["-m", "2"]);
    sandbox.awaited("at-1");
    let watch = sandbox
        .command(RETAKE)
        .args(["agent", "watch", "task"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    go(&sandbox, 1);
    go(&sandbox, 2);
    assert_eq!(running.end().code, 0);
    let out = watch.wait_with_output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success());
    for part in [
        "iteration 1: executing",
        "iteration 1: completed, 0 files",
        "iteration 2: completed",
        "stopped: max_iterations",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
