//! A runner that dies at any moment: its counts, waits and messages are not lost.

use crate::common::{STUBBORN, Sandbox, eventually, on_disk};

#[test]
fn a_killed_runner_loses_nothing() {
    let sandbox = Sandbox::new();
    let config = "retry:\n  first: 1ms";
    let stuck = format!("used a 55; {STUBBORN}");
    sandbox.agent(
        config,
        &[
            "start; progress 1 9; result 0.10 100",
            "start; failed 500",
            &stuck,
            "start; progress 2 9; result 0.10 100",
        ],
    );
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("pid");
    // Its output is recorded before it dies.
    eventually("the output", || on_disk(&sandbox.store(), b"\"input_tokens\":55"));
    running.signal(libc::SIGKILL);
    running.end();
    sandbox.gone();
    assert_eq!(sandbox.statuses(), "1 completed, 2 interrupted");
    assert_eq!(sandbox.stop_reason(), "interrupted");

    // 100, 7, 55 and 100 tokens: the third one, at 262, exceeds the budget.
    let called = sandbox.run_agent(&["--max-tokens", "262", "-m", "5"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("Continuing the loop"), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed, 2 interrupted, 3 completed");
    assert_eq!(sandbox.stop_reason(), "budget_tokens");
    assert!(sandbox.prompt(4).contains("was interrupted"));
    let iteration = &sandbox.shown()["iterations"][1];
    assert_eq!(iteration["tokens"], 55);
    assert!(iteration["runId"].is_string() && iteration["endedAt"].is_string());
    let metadata = sandbox.metadata();
    assert_eq!(metadata["executionIterations"], 3);
    assert_eq!(metadata["totalIterations"], 3);
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
}

#[test]
fn many_deaths_at_any_moment_leave_exact_counters() {
    let sandbox = Sandbox::new();
    let config = "hooks:\n  pre:\n    run: 'true'\n  post:\n    run: 'true'";
    sandbox.agent(config, &["start; progress 1 9; result 0.01 10"]);
    sandbox.workspace("task", &[]);
    for round in 0..12u64 {
        let running = sandbox.start_agent(&["-q"]);
        // At any moment: in a hook, in the agent, between them.
        std::thread::sleep(std::time::Duration::from_millis(30 + round * 23 % 140));
        running.signal(libc::SIGKILL);
        running.end();
    }
    assert_eq!(sandbox.run_agent(&["-m", "1"]).code, 0);
    let shown = sandbox.shown();
    let iterations = shown["iterations"].as_array().unwrap();
    let numbers: Vec<_> = iterations.iter().map(|i| i["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=iterations.len() as u64).collect::<Vec<_>>());
    for iteration in iterations {
        let word = iteration["status"].as_str().unwrap();
        assert!(["completed", "interrupted"].contains(&word), "{iteration}");
        assert!(word != "completed" || iteration["tokens"] == 10, "{iteration}");
    }
    assert_eq!(sandbox.metadata()["executionIterations"], iterations.len());
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
}

#[test]
fn after_a_death_the_time_in_between_is_not_counted() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; touch \"$dir/ready\"; sleep 1000", "start; complete; result"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    running.signal(libc::SIGKILL);
    running.end();
    // Longer than the loop's time limit.
    std::thread::sleep(std::time::Duration::from_millis(2200));
    let called = sandbox.run_agent(&["--max-time", "2s"]);
    assert_eq!(
        (called.code, sandbox.stop_reason()),
        (0, "completed".into()),
        "{}",
        called.snapshot()
    );
}

#[test]
fn reset_gives_a_broken_loop_up() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "",
        &["start; used a 500; touch \"$dir/ready\"; sleep 1000", "start; complete; result"],
    );
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    running.signal(libc::SIGKILL);
    running.end();
    assert_eq!(sandbox.retake(&["agent", "reset", "task"]).code, 0);
    assert_eq!(sandbox.metadata()["executionIterations"], 0);
    let called = sandbox.run_agent(&["--max-tokens", "400"]);
    assert!(!called.stdout.contains("Going on"), "{}", called.snapshot());
    assert_eq!(sandbox.stop_reason(), "completed");
    // The record keeps the old loop, and the workspace counts from 1.
    assert_eq!(sandbox.statuses(), "1 completed");
    assert_eq!(sandbox.metadata()["executionIterations"], 1);
}

fn kill(running: crate::common::Running) {
    running.signal(libc::SIGKILL);
    running.end();
}

#[test]
fn the_output_of_a_failed_gate_reaches_the_next_prompt_after_a_crash() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let line = "if [ -e passes ]; then exit 0; fi; echo 'the door is blue'; exit 1";
    let running = sandbox.start_agent(&["--verify", line, "-d", "1000"]);
    eventually("the refusal", || {
        sandbox.metadata()["verification"]["lastVerificationStatus"] == "fail"
    });
    kill(running);
    sandbox.file("passes", "");
    let called = sandbox.run_agent(&["--verify", line]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(!sandbox.prompt(1).contains("the door is blue"));
    assert!(sandbox.prompt(2).contains("the door is blue"), "{}", sandbox.prompt(2));
    assert_eq!(sandbox.statuses(), "1 completed, 2 completed");
    // It was used: another loop does not get the message again.
    std::fs::remove_file(sandbox.project().join("passes")).unwrap();
    assert_eq!(sandbox.run_agent(&["-m", "1", "--again"]).code, 0);
    assert!(!sandbox.prompt(3).contains("the door is blue"));
}

#[test]
fn a_gate_that_a_death_cut_off_is_asked_again() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let line =
        format!("touch {0}/ready; test -e passes || sleep 1000", sandbox.agent_dir().display());
    let running = sandbox.start_agent(&["--verify", &line]);
    sandbox.awaited("ready");
    kill(running);
    sandbox.file("passes", "");
    let called = sandbox.run_agent(&["--verify", &line]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!((sandbox.calls(), sandbox.stop_reason().as_str()), (1, "completed"));
}

#[test]
fn the_cost_of_an_interrupted_verification_counts() {
    let sandbox = Sandbox::new();
    let report = "$RETAKE_WORKSPACE_PATH/reports/verification-report.md";
    sandbox.agent(
        "verification:\n  autoVerify: true",
        &[
            "start; complete; result 0.01 100",
            "start; used a 55; touch \"$dir/ready\"; sleep 1000",
            &format!("start; printf 'Result: FAIL\\n' > {report}; result 0.01 1"),
            "start; progress 1 2; result 0.01 1",
        ],
    );
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    eventually("the output", || on_disk(&sandbox.store(), b"\"input_tokens\":55"));
    kill(running);
    let called = sandbox.run_agent(&["--max-tokens", "156", "-m", "3", "--fail-incomplete"]);
    assert_eq!(called.code, 5, "{}", called.snapshot());
    assert_eq!((sandbox.calls(), sandbox.stop_reason().as_str()), (3, "budget_tokens"));
}

#[test]
fn time_goes_on_over_restarts() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["--verify", "sleep 1000", "--max-time", "1000s"]);
    eventually("two seconds in the gate", || {
        let text = sandbox.loop_state("task", "control/clock").unwrap_or_default();
        text.trim()
            .rsplit(' ')
            .next()
            .and_then(|ms| ms.parse().ok())
            .is_some_and(|ms: u64| ms >= 2000)
    });
    kill(running);
    let called = sandbox.run_agent(&["--verify", "true", "--max-time", "2s", "--fail-incomplete"]);
    assert_eq!(called.code, 5, "{}", called.snapshot());
    assert_eq!((sandbox.calls(), sandbox.stop_reason().as_str()), (1, "budget_time"));
}

#[test]
fn a_hook_is_not_repeated_when_a_wait_is_cut_off_by_a_death() {
    let sandbox = Sandbox::new();
    let out = sandbox.dir.path().join("hooks");
    let config = |first: &str| {
        let out = out.display();
        format!(
            "retry:\n  first: {first}\n  longest: {first}\nhooks:\n  pre:\n    run: echo pre >> {out}"
        )
    };
    let steps = ["start; failed 500", "start; complete; result"];
    sandbox.agent(&config("1h"), &steps);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    eventually("the wait", || sandbox.logs().contains("continuing in"));
    kill(running);
    sandbox.agent(&config("1ms"), &steps);
    let called = sandbox.run_agent(&[]);
    assert_eq!((called.code, sandbox.calls()), (0, 2), "{}", called.snapshot());
    assert_eq!(std::fs::read_to_string(out).unwrap(), "pre\n");
    assert_eq!(sandbox.statuses(), "1 completed");
}
