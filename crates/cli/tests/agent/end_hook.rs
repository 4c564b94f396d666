//! The hook at the end of a loop.

use crate::common::{Sandbox, eventually};

const HOOK: &str =
    "hooks:\n  end:\n    run: 'env | grep ^RETAKE_ | sort > end; echo from the hook'";

fn told(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.project().join("end")).unwrap()
}

#[test]
fn the_end_hook_gets_the_result_of_the_loop_and_is_recorded() {
    let sandbox = Sandbox::new();
    sandbox
        .agent(HOOK, &["start; progress 1 2; result 0.25 100", "start; complete; result 0.5 200"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let told = told(&sandbox);
    for line in [
        "RETAKE_STOP_REASON=completed",
        "RETAKE_LOOP_ITERATIONS=2",
        "RETAKE_ITERATION=2",
        "RETAKE_LOOP_COST_USD=0.75",
        "RETAKE_LOOP_TOKENS=300",
        "RETAKE_WORKSPACE=task",
    ] {
        assert!(told.lines().any(|known| known == line), "{line}: {told}");
    }
    let runs = sandbox.retake(&["runs", "list", "--label", "hook=end", "--json"]);
    let run = &runs.json()[0];
    assert_eq!(run["outcome"], "exited", "{}", runs.snapshot());
    let id = told.lines().find_map(|line| line.strip_prefix("RETAKE_LOOP_ID=")).unwrap();
    assert_eq!(run["loopId"], id, "{run}");
    assert!(sandbox.logs().contains("from the hook"), "{}", sandbox.logs());
}

#[test]
fn the_end_hook_runs_for_every_end_of_the_loop() {
    let sandbox = Sandbox::new();
    sandbox.agent(HOOK, &["start; failed 401"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    assert!(told(&sandbox).contains("RETAKE_STOP_REASON=failed"));

    sandbox.agent(HOOK, &["start; touch \"$dir/ready\"; sleep 1000"]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    running.signal(libc::SIGTERM);
    // The caller sees the effect of the signal on the loop.
    assert_eq!(running.end().code, 143);
    assert!(told(&sandbox).contains("RETAKE_STOP_REASON=interrupted"));
}

#[test]
fn a_hook_that_fails_changes_nothing_and_one_that_hangs_is_ended() {
    let sandbox = Sandbox::new();
    let failing = "hooks:\n  end:\n    run: exit 3";
    sandbox.agent(failing, &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stderr.contains("The end hook failed: exit 3"), "{}", called.snapshot());
    assert_eq!(sandbox.stop_reason(), "completed");

    let hanging = "hooks:\n  end:\n    run: sleep 1000\n    timeout: 100ms";
    sandbox.agent(hanging, &["start; complete; result"]);
    let called = sandbox.run_agent(&["--again"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stderr.contains("The end hook failed: sleep 1000"), "{}", called.snapshot());

    // A second signal terminates the hook, too.
    let hanging = "hooks:\n  end:\n    run: touch hanging; sleep 1000\n    timeout: 1h";
    sandbox.agent(hanging, &["start; touch \"$dir/ready\"; sleep 1000"]);
    let running = sandbox.start_agent(&["--again"]);
    sandbox.awaited("ready");
    running.signal(libc::SIGINT);
    let hook = sandbox.project().join("hanging");
    eventually("the hook", || hook.exists());
    running.signal(libc::SIGINT);
    assert_eq!(running.end().code, 130);
}

#[test]
fn a_death_in_the_hook_does_not_bring_the_loop_back() {
    let sandbox = Sandbox::new();
    let config = "hooks:\n  end:\n    run: touch hanging; sleep 1000\n    timeout: 1h";
    sandbox.agent(config, &["start; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["-m", "1"]);
    let hook = sandbox.project().join("hanging");
    eventually("the hook", || hook.exists());
    running.signal(libc::SIGKILL);
    running.end();
    assert_eq!(sandbox.stop_reason(), "max_iterations");
    sandbox.agent("", &["start; progress 1 9; result"]);
    let called = sandbox.run_agent(&["-m", "1"]);
    assert!(!called.stdout.contains("Going on"), "{}", called.snapshot());
}
