//! When a task counts as complete: the agent's report, and the gate's answer.

use crate::common::Sandbox;

#[test]
fn the_gate_refuses_until_it_passes() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result", "start; complete; touch good; result"]);
    sandbox.workspace("task", &[]);
    let gate = "echo looked for good; test -e good";
    let called = sandbox.run_agent(&["--verify", gate]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.stop_reason(), "completed");
    assert_eq!(sandbox.calls(), 2);
    assert!(!sandbox.prompt(1).contains("verification did not pass"));
    assert!(sandbox.prompt(2).contains("verification did not pass"));
    assert!(sandbox.prompt(2).contains("looked for good"), "{}", sandbox.prompt(2));
    assert!(sandbox.metadata()["verification"]["verificationAttempts"] == 2);
    assert_eq!(sandbox.metadata()["verification"]["lastVerificationStatus"], "pass");
    assert_eq!(sandbox.metadata()["verification"]["verifyResumeCycles"], 1);
}

#[test]
fn a_gate_that_never_passes_is_a_failure() {
    let sandbox = Sandbox::new();
    sandbox.agent("verification:\n  command: 'false'", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert_eq!(sandbox.stop_reason(), "verify_failed");
    // It may continue twice, as verification.maxAttempts says.
    assert_eq!(sandbox.calls(), 3);
    assert_eq!(sandbox.metadata()["status"], "error");
    assert!(called.stderr.contains("erification"), "{}", called.snapshot());
}

#[test]
fn the_agent_itself_can_be_the_gate() {
    let sandbox = Sandbox::new();
    let report = "$RETAKE_WORKSPACE_PATH/reports/verification-report.md";
    sandbox.agent(
        "verification:\n  autoVerify: true",
        &[
            "start; complete; result",
            &format!("start; printf 'Result: FAIL\\n\\n## Issues\\n1. a part is missing\\n' > {report}; result 0.5"),
            "start; complete; result",
            &format!("start; printf 'Result: PASS\\n' > {report}; result 0.25"),
        ],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.calls(), 4);
    assert!(sandbox.prompt(2).contains("Someone says that the task below is complete"));
    assert!(sandbox.prompt(3).contains("a part is missing"));

    // Its cost counts.
    let sandbox = Sandbox::new();
    sandbox.agent(
        "verification:\n  autoVerify: true",
        &[
            "start; complete; result",
            &format!("start; printf 'Result: FAIL\\n' > {report}; result 0.5"),
        ],
    );
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--max-cost", "0.4", "--fail-incomplete"]).code, 5);
    assert_eq!(sandbox.calls(), 2);
    assert_eq!(sandbox.stop_reason(), "budget_cost");
}

#[test]
fn a_complete_from_before_does_not_count() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; result", "start; complete; result"]);
    let dir = sandbox.workspace("task", &[]);
    std::fs::write(dir.join(".status.json"), r#"{"complete":true}"#).unwrap();
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0);
    assert_eq!(sandbox.calls(), 2);
    assert!(called.stdout.contains("said complete before this run began"), "{}", called.snapshot());
}

#[test]
fn status_files_of_all_habits() {
    // Replaced by rename, with a time offset and an unknown key.
    let good = r#"start; printf '\357\273\277{"complete":true,"lastUpdated":"2026-01-01T00:00:00+02:00","mood":1}' > "$dir/s"; mv "$dir/s" "$RETAKE_WORKSPACE_PATH/.status.json"; result"#;
    let bad = [
        "status '{\"complete\":\"true\"}'",
        "status '{\"complete\":tr'",
        "status ''",
        "status '[]'",
        "status '{\"complete\":true,\"progress\":{\"completed\":-1,\"total\":3}}'",
    ];
    let mut steps: Vec<String> = bad.iter().map(|b| format!("start; {b}; result")).collect();
    steps.push(good.to_owned());
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let sandbox = Sandbox::new();
    sandbox.agent("", &steps);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.calls(), 6);
    assert_eq!(sandbox.stop_reason(), "completed");
    // The prompt says what is wrong with it.
    assert!(sandbox.prompt(2).contains("complete is \"true\""), "{}", sandbox.prompt(2));
    assert!(called.stdout.contains(".status.json is not valid"), "{}", called.snapshot());
}

#[test]
fn todo_decides_while_there_is_no_status() {
    let todo = |text: &str| {
        format!("start; printf '%b' '{text}' > \"$RETAKE_WORKSPACE_PATH/TODO.md\"; result")
    };
    let steps = [
        todo("- [x] a\\n- [ ] b\\n"),
        // An open box in a code fence is an example.
        todo("- [x] a\\n- [x] b\\n```\\n- [ ] c\\n```\\n"),
    ];
    let sandbox = Sandbox::new();
    sandbox.agent("", &[&steps[0], &steps[1]]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!((called.code, sandbox.calls()), (0, 2), "{}", called.snapshot());
    assert!(called.stdout.contains("TODO.md"), "{}", called.snapshot());
    assert!(called.stdout.contains("(1 item remaining)"));

    let sandbox = Sandbox::new();
    sandbox.agent("todoFallback: false", &[&steps[1]]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "2", "--fail-incomplete"]).code, 3);
}

#[test]
fn completion_at_the_last_iteration_is_completion() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "1", "--fail-incomplete"]).code, 0);
    assert_eq!(sandbox.stop_reason(), "completed");
}

#[test]
fn a_complete_task_is_not_run_again_unasked() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    let dir = sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--no-delay"]).code, 0);
    let called = sandbox.run_agent(&["--no-delay"]);
    assert_eq!((called.code, sandbox.calls()), (0, 1), "{}", called.snapshot());
    assert!(called.stdout.contains("task is already complete"), "{}", called.snapshot());
    assert_eq!(sandbox.run_agent(&["--no-delay", "--again"]).code, 0);
    assert_eq!(sandbox.calls(), 2);
    // Different instructions are a different task.
    std::fs::write(dir.join("INSTRUCTIONS.md"), "Something else.\n").unwrap();
    assert_eq!(sandbox.run_agent(&["--no-delay"]).code, 0);
    assert_eq!(sandbox.calls(), 3);
}

#[test]
fn a_dry_run_leaves_the_workspace_as_it_was() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    let dir = sandbox.workspace("task", &[]);
    let files = || {
        let mut all: Vec<(String, Vec<u8>)> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| (path.display().to_string(), std::fs::read(&path).unwrap()))
            .collect();
        all.sort();
        all
    };
    let before = files();
    let called = sandbox.run_agent(&["--no-delay", "--dry-run"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("completed successfully after 3"), "{}", called.snapshot());
    assert_eq!(files(), before);
    assert_eq!(sandbox.run_agent(&["--no-delay"]).code, 0);
    assert_eq!((sandbox.calls(), sandbox.statuses().as_str()), (1, "1 completed"));
}

#[test]
fn a_dry_run_records_nothing() {
    let sandbox = Sandbox::new();
    let config = "agent:\n  kind: custom\n  command: ./my-agent\n  hooks:\n    pre:\n      run: touch hooked\n    \
                  end:\n      run: 'true'\n";
    sandbox.file(".agent/config.yml", config);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["--no-delay", "--dry-run", "--verify", "true"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("nothing is recorded"), "{}", called.snapshot());
    assert!(sandbox.project().join("hooked").exists(), "hooks are tried, too");
    let listed = sandbox.retake(&["runs", "list"]);
    assert!(listed.stderr.contains("nothing was recorded"), "{}", listed.snapshot());
    // Nor is anything added to an existing one.
    assert_eq!(sandbox.retake(&["exec", "--", "true"]).code, 0);
    let called = sandbox.run_agent(&["--no-delay", "--dry-run", "--verify", "true"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let runs = sandbox.retake(&["runs", "list", "--json"]).json();
    assert_eq!(runs.as_array().map(Vec::len), Some(1), "{runs}");
}

#[test]
fn the_summary_of_an_earlier_iteration_is_not_repeated() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "",
        &[
            "start; status '{\"complete\":false,\"summary\":\"did a\",\"progress\":{\"completed\":1,\"total\":9}}'; result",
            "start; failed 400 broken",
            // The same summary again is reported again.
            "start; status '{\"complete\":false,\"summary\":\"did a\",\"progress\":{\"completed\":1,\"total\":9}}'; result",
        ],
    );
    sandbox.workspace("task", &[]);
    sandbox.run_agent(&["--no-delay", "-m", "3", "--max-failures", "5"]);
    let shown = sandbox.shown();
    let iterations = shown["iterations"].as_array().unwrap();
    let summaries: Vec<_> = iterations.iter().map(|i| i["summary"].as_str()).collect();
    assert_eq!(summaries, [Some("did a"), None, Some("did a")], "{shown}");
    let remaining: Vec<_> =
        sandbox.logs().lines().filter(|l| l.starts_with("Remaining")).map(str::to_owned).collect();
    assert_eq!(remaining, ["Remaining: 8", "Remaining: unknown", "Remaining: 8"]);
}

#[test]
fn an_agent_that_says_it_was_aborted_has_failed() {
    let sandbox = Sandbox::new();
    let aborted = r#"start; printf '{"type":"result","subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_tools","total_cost_usd":0,"session_id":"s"}\n'"#;
    sandbox.agent("", &[aborted, "start; complete; result"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["--no-delay", "--max-failures", "2"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 failed, 2 completed");
    assert!(called.stderr.contains("by something other than retake"), "{}", called.snapshot());
}
