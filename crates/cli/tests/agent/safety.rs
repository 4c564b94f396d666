//! What makes it safe to leave a loop alone: limits, budgets, reliable ends, restarts.

use crate::common::{STUBBORN, Sandbox, eventually};

#[test]
fn a_limit_is_waited_out_and_not_counted() {
    let sandbox = Sandbox::new();
    // On a busy machine the limit is read a while after the agent reported it.
    sandbox.agent("", &["start; limited 5", "start; complete; result"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "1"]);
    assert_eq!((called.code, sandbox.calls()), (0, 2), "{}", called.snapshot());
    assert!(called.stdout.contains("limit is reached"), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed");
    assert_eq!(sandbox.stop_reason(), "completed");
    assert_eq!(sandbox.metadata()["executionIterations"], 1);
}

#[test]
fn a_limit_can_end_the_loop() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; result", "start; limited 3600", "start; complete; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--on-limit", "stop", "--fail-incomplete"]).code, 7);
    assert_eq!(sandbox.stop_reason(), "rate_limit");
    assert_eq!(sandbox.statuses(), "1 completed");
    assert_eq!(sandbox.metadata()["status"], "in_progress");
    // The iteration number was not used up.
    assert_eq!(sandbox.run_agent(&["--on-limit", "stop"]).code, 0);
    assert_eq!(sandbox.statuses(), "1 completed, 2 completed");
}

#[test]
fn a_wait_ends_when_asked_to() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; limited 3600"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    eventually("the wait", || sandbox.logs().contains("limit is reached"));
    assert_eq!(sandbox.retake(&["agent", "stop", "task"]).code, 0);
    assert_eq!(running.end().code, 0);
    assert_eq!(sandbox.stop_reason(), "stopped");
    assert_eq!(sandbox.statuses(), "");
}

#[test]
fn errors_that_pass_are_tried_again() {
    let sandbox = Sandbox::new();
    let config = "retry:\n  first: 1ms\n  longest: 5ms\n  tries: 3";
    let steps = [
        "start; failed 529; exit 1",
        "start; failed 500",
        "start; progress 1 2; result",
        "start; failed 503",
    ];
    sandbox.agent(config, &steps);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    // Two attempts, then one that counts; then one and three more attempts, which is the maximum.
    assert_eq!(sandbox.calls(), 7);
    assert_eq!(sandbox.statuses(), "1 completed, 2 failed");
    assert!(called.stderr.contains("Iteration 2 failed: it went wrong"), "{}", called.snapshot());
    // A permanent error is not retried.
    let sandbox = Sandbox::new();
    sandbox.agent(config, &["start; failed 401"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    assert_eq!(sandbox.calls(), 1);
}

#[test]
fn budgets_end_the_loop() {
    let cases = [
        // Reached by the report at the end.
        ("--max-cost", "0.02", "start; progress 1 9; result 0.01", "budget_cost", 2),
        ("--max-tokens", "250", "start; progress 1 9; result 0.01 100", "budget_tokens", 3),
        // Reached in the middle: the agent is terminated.
        ("--max-tokens", "250", "start; used a 200; used b 100; sleep 1000", "budget_tokens", 1),
        ("--max-iteration-tokens", "50", "start; used a 60; sleep 1000", "budget_tokens", 1),
        ("--max-time", "1s", "start; sleep 1000", "budget_time", 1),
        // The agent stopped by itself at the given amount.
        (
            "--max-iteration-cost",
            "0.5",
            r#"start; echo '{"type":"result","subtype":"error_max_budget_usd","is_error":true,"total_cost_usd":0.6,"usage":{}}'"#,
            "budget_cost",
            1,
        ),
    ];
    for (option, most, step, reason, calls) in cases {
        let sandbox = Sandbox::new();
        sandbox.agent("", &[step]);
        sandbox.workspace("task", &[]);
        let called = sandbox.run_agent(&[option, most]);
        assert_eq!(called.code, 0, "{option} {}", called.snapshot());
        assert_eq!((sandbox.stop_reason().as_str(), sandbox.calls()), (reason, calls), "{option}");
        assert_eq!(sandbox.run_agent(&[option, most, "--fail-incomplete"]).code, 5, "{option}");
        assert_eq!(sandbox.metadata()["status"], "in_progress");
    }
}

#[test]
fn a_budget_that_cannot_be_measured_is_refused() {
    let sandbox = Sandbox::new();
    let agent = sandbox.agent("", &["complete"]);
    sandbox.workspace("task", &[]);
    let command = agent.to_string_lossy().into_owned();
    for (kind, option) in
        [("custom", "--max-cost"), ("custom", "--max-tokens"), ("codex", "--max-cost")]
    {
        sandbox.file(".agent/config.yml", &format!("agent:\n  command: {command}\n"));
        let called = sandbox.run_agent(&["--agent", kind, option, "10"]);
        assert_eq!(called.code, 1);
        assert!(
            called.stderr.contains(&format!("{option} cannot be used with {kind}")),
            "{}",
            called.snapshot()
        );
    }
    assert_eq!(sandbox.calls(), 0);
    assert_eq!(sandbox.run_agent(&["--agent", "custom", "--max-time", "1m"]).code, 0);
}

#[test]
fn an_iteration_that_takes_too_long_is_ended() {
    let sandbox = Sandbox::new();
    sandbox.agent("timeout: 1s", &["start; used a 40; echo half > made; sleep 1000"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("Iteration 1 failed: it timed out"), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 timed_out");
    let iteration = &sandbox.shown()["iterations"][0];
    assert_eq!(iteration["tokens"], 40);
    assert_eq!(iteration["filesCreated"], serde_json::json!(["made"]));
    assert_eq!(sandbox.shown()["summary"]["timedOutIterations"], 1);
}

#[test]
fn an_agent_that_lingers_after_its_result_is_ended() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "resultGrace: 0s",
        &["start; progress 1 2; result; sleep 1000", "start; complete; result"],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed, 2 completed");
}

#[test]
fn no_process_of_an_agent_survives_its_loop() {
    let sandbox = Sandbox::new();
    sandbox.agent("timeout: 1s", &[STUBBORN]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    sandbox.gone();
    assert_eq!(sandbox.statuses(), "1 timed_out");
}

#[test]
fn an_interrupt_ends_politely() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "",
        &[
            "start; progress 1 3; result",
            "start; say 'in the middle'; used u 30; touch \"$dir/ready\"; sleep 1000",
        ],
    );
    sandbox.workspace("task", &[]);
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let running = sandbox.start_agent(&[]);
        sandbox.awaited("ready");
        running.signal(signal);
        assert_eq!(running.end().code, code);
        std::fs::remove_file(sandbox.agent_dir().join("ready")).unwrap();
        assert_eq!(sandbox.stop_reason(), "interrupted");
        assert_eq!(sandbox.metadata()["status"], "in_progress");
    }
    assert_eq!(sandbox.statuses(), "1 completed, 2 interrupted, 3 interrupted");
    assert_eq!(sandbox.shown()["iterations"][1]["tokens"], 30);
    let log = sandbox.logs();
    assert!(log.contains("in the middle") && log.contains("STOPPED: interrupted"), "{log}");
    // The next run reports it, and continues the numbers.
    sandbox.agent("", &["start; complete; result"]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    assert!(sandbox.prompt(sandbox.calls()).contains("was interrupted"));
    assert_eq!(sandbox.statuses(), "1 completed, 2 interrupted, 3 interrupted, 4 completed");
}

#[test]
fn a_second_interrupt_ends_at_once() {
    let sandbox = Sandbox::new();
    // Ends slowly, and would get the time for it.
    let slow = "trap 'touch \"$dir/ending\"; sleep 4; touch \"$dir/ended\"; exit' TERM INT; start; \
                touch \"$dir/ready\"; while :; do sleep 0.05; done";
    sandbox.agent("", &[slow]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    running.signal(libc::SIGINT);
    sandbox.awaited("ending");
    running.signal(libc::SIGINT);
    assert_eq!(running.end().code, 130);
    assert!(!sandbox.agent_dir().join("ended").exists());
    assert_eq!(sandbox.statuses(), "1 interrupted");
}

#[test]
fn an_interrupt_in_a_hook_or_a_gate_is_an_interrupt() {
    for config in [
        "hooks:\n  pre:\n    run: touch HERE; sleep 1000\n    timeout: 1h",
        "hooks:\n  post:\n    run: touch HERE; sleep 1000\n    timeout: 1h",
        "verification:\n  command: touch HERE; sleep 1000",
    ] {
        let sandbox = Sandbox::new();
        let here = sandbox.agent_dir().join("ready");
        sandbox
            .agent(&config.replace("HERE", &here.to_string_lossy()), &["start; complete; result"]);
        sandbox.workspace("task", &[]);
        let running = sandbox.start_agent(&[]);
        sandbox.awaited("ready");
        running.signal(libc::SIGINT);
        let called = running.end();
        assert_eq!(called.code, 130, "{config}: {}", called.snapshot());
        assert!(!called.stderr.contains("failed"), "{config}: {}", called.snapshot());
        let stopped = sandbox.stop_reason();
        assert!(["interrupted", "completed"].contains(&stopped.as_str()), "{config}: {stopped}");
        let statuses = sandbox.statuses();
        let expected = if config.contains("pre") { "1 interrupted" } else { "1 completed" };
        assert_eq!(statuses, expected, "{config}");
    }
}

#[test]
fn an_interrupt_before_or_outside_the_loop_is_an_interrupt() {
    let sandbox = Sandbox::new();
    let agent = sandbox.agent("", &["touch \"$dir/ready\"; sleep 1000"]);
    sandbox.workspace("task", &[]);
    let interrupted = |command: &str| {
        let mut child = sandbox
            .command(crate::common::RETAKE)
            .args(["agent", command, "task"])
            .spawn()
            .unwrap();
        sandbox.awaited("ready");
        // SAFETY: to this process's child, which has not been reaped.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        let status = child.wait().unwrap();
        std::fs::remove_file(sandbox.agent_dir().join("ready")).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGINT));
    };
    interrupted("verify");
    // Even while its version is queried.
    let ready = sandbox.agent_dir().join("ready");
    std::fs::write(&agent, format!("#!/bin/sh\ntouch {}\nsleep 1000\n", ready.display())).unwrap();
    interrupted("run");
    assert_eq!(sandbox.statuses(), "");
}

#[test]
fn a_workspace_runs_one_loop_at_a_time() {
    let sandbox = Sandbox::new();
    let waits = "start; touch \"$dir/ready\"; while [ ! -e \"$dir/go\" ]; do sleep 0.02; done; \
                 complete; result";
    sandbox.agent("", &[waits, "start; complete; result"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1);
    assert!(
        called.stderr.contains("Workspace task is in use by `retake agent run task`"),
        "{}",
        called.snapshot()
    );
    assert!(called.stderr.contains(&format!("pid {}", running.pid())), "{}", called.snapshot());
    for command in [
        &["clean", "task", "-f"][..],
        &["reset", "task"],
        &["archive", "save", "task"],
        &["rollback", "task", "--to", "1"],
    ] {
        let words: Vec<_> = ["agent"].iter().chain(command).copied().collect();
        assert_eq!(sandbox.retake(&words).code, 1, "{command:?}");
    }
    std::fs::write(sandbox.agent_dir().join("go"), "").unwrap();
    assert_eq!(running.end().code, 0);
    assert_eq!(sandbox.calls(), 1);
    assert_eq!(sandbox.retake(&["agent", "reset", "task"]).code, 0);
}

#[test]
fn root_is_refused_before_the_first_iteration() {
    // SAFETY: no arguments, no failure.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let run = |value: &str| {
        let words = ["agent", "run", "task", "--dangerously-skip-permissions"];
        sandbox.retake_with(&[("IS_SANDBOX", value)], &words)
    };
    let called = run("");
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("IS_SANDBOX=1"), "{}", called.snapshot());
    assert_eq!(sandbox.calls(), 0);
    let called = run("1");
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stderr.contains("⚠️ --dangerously-skip-permissions"), "{}", called.snapshot());
    let argv = std::fs::read_to_string(sandbox.agent_dir().join("argv-1")).unwrap();
    assert!(argv.contains("--dangerously-skip-permissions"));
    // Never stored.
    assert!(!sandbox.metadata().to_string().contains("dangerously"));
    assert_eq!(sandbox.run_agent(&["--again"]).code, 0);
    let argv = std::fs::read_to_string(sandbox.agent_dir().join("argv-2")).unwrap();
    assert!(!argv.contains("dangerously"));
}

/// An agent that deletes its workspace must not end its own loop, nor let a second one begin.
#[test]
fn a_loop_survives_an_agent_that_destroys_its_workspace() {
    for destruction in [
        "echo {} > $RETAKE_WORKSPACE_PATH/.metadata.json",
        "rm -rf $RETAKE_WORKSPACE_PATH/.control $RETAKE_WORKSPACE_PATH/.lock",
        "rm -rf $RETAKE_WORKSPACE_PATH",
        "git -C $PWD clean -qfdx; rm -rf $RETAKE_WORKSPACE_PATH",
        "sed -i 's/\"maxIterations\": [0-9]*/\"maxIterations\": 1000/' $RETAKE_WORKSPACE_PATH/.metadata.json",
    ] {
        let sandbox = Sandbox::new();
        sandbox.git(&["init", "-q", "-b", "main"]);
        let step = format!(
            "start; {destruction}; touch \"$dir/at-$n\"; \
             while [ ! -e \"$dir/go-$n\" ]; do sleep 0.02; done; \
             mkdir -p $RETAKE_WORKSPACE_PATH; progress $n 9; result"
        );
        sandbox.agent("", &[&step]);
        let dir = sandbox.workspace("task", &["--max-iterations", "2"]);
        let instructions = std::fs::read_to_string(dir.join("INSTRUCTIONS.md")).unwrap();
        let running = sandbox.start_agent(&["--no-delay"]);
        sandbox.awaited("at-1");
        let second = sandbox.run_agent(&["--no-delay"]);
        assert_eq!(second.code, 1, "{destruction}: {}", second.snapshot());
        assert_eq!(sandbox.calls(), 1, "{destruction}: {}", second.snapshot());
        for call in [1, 2] {
            std::fs::write(sandbox.agent_dir().join(format!("go-{call}")), "").unwrap();
        }
        let called = running.end();
        assert_eq!(called.code, 0, "{destruction}: {}", called.snapshot());
        assert_eq!(sandbox.statuses(), "1 completed, 2 completed", "{destruction}");
        let metadata = sandbox.metadata();
        assert_eq!(
            (&metadata["executionIterations"], &metadata["maxIterations"], &metadata["name"]),
            (&2.into(), &2.into(), &"task".into()),
            "{destruction}"
        );
        assert_eq!(
            std::fs::read_to_string(dir.join("INSTRUCTIONS.md")).unwrap(),
            instructions,
            "{destruction}"
        );
    }
}

/// The loop and its agent died with the metadata destroyed: the next run rebuilds it.
#[test]
fn destroyed_metadata_is_rebuilt() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "",
        &[
            "start; progress 1 9; result",
            "start; echo {} > $RETAKE_WORKSPACE_PATH/.metadata.json; touch \"$dir/at\"; sleep 1000",
            "start; complete; result",
        ],
    );
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["--no-delay"]);
    sandbox.awaited("at");
    running.signal(libc::SIGKILL);
    running.end();
    let listed = sandbox.retake(&["agent", "list", "--json"]).json();
    assert_eq!((&listed[0]["name"], &listed[0]["problem"]), (&"task".into(), &().into()));
    let called = sandbox.run_agent(&["--no-delay"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed, 2 interrupted, 3 completed");
    assert_eq!(sandbox.metadata()["name"], "task");
}
