//! Hooks around an iteration, which run once, and a gate that is repeated until it can answer.

use crate::common::Sandbox;

const REPORT: &str = "$RETAKE_WORKSPACE_PATH/reports/verification-report.md";
const RETRY: &str = "retry:\n  first: 1ms\n  longest: 5ms\n";

fn passes() -> String {
    format!("start; printf 'Result: PASS\\n' > {REPORT}; result")
}

#[test]
fn a_limit_or_an_error_in_a_verification_is_no_refusal() {
    let sandbox = Sandbox::new();
    let count = sandbox.dir.path().join("gates");
    let config = format!(
        "{RETRY}verification:\n  autoVerify: true\n  command: echo x >> {}",
        count.display()
    );
    // A report from before the limit does not count.
    let limited = format!("start; printf 'Result: FAIL\\n' > {REPORT}; limited 1");
    sandbox.agent(&config, &["start; complete; result", &limited, "start; failed 529", &passes()]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "1"]);
    assert_eq!((called.code, sandbox.calls()), (0, 4), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed");
    assert_eq!(sandbox.stop_reason(), "completed");
    assert!(called.stdout.contains("continuing in"), "{}", called.snapshot());
    let verification = &sandbox.metadata()["verification"];
    assert_eq!(verification["verificationAttempts"], 1);
    assert_eq!(verification["lastVerificationStatus"], "pass");
    assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n", "the command had passed already");
    // Two results, and two failures: all of them cost money.
    let shown = sandbox.retake(&["agent", "show", "task"]).stdout;
    assert!(shown.contains("spent       $0.02, 214 tokens"), "{shown}");
}

#[test]
fn a_verification_that_never_answers_is_a_failure() {
    let sandbox = Sandbox::new();
    let config = format!("{RETRY}  tries: 2\nverification:\n  autoVerify: true");
    sandbox.agent(&config, &["start; complete; result", "start; failed 503"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!((called.code, sandbox.calls()), (1, 4), "{}", called.snapshot());
    assert_eq!(sandbox.stop_reason(), "failed");
    assert_eq!(sandbox.metadata()["verification"], serde_json::Value::Null);

    let sandbox = Sandbox::new();
    sandbox.agent(
        "verification:\n  autoVerify: true",
        &["start; complete; result", "start; limited 3600"],
    );
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--on-limit", "stop", "--fail-incomplete"]).code, 7);
    assert_eq!(sandbox.stop_reason(), "rate_limit");
}

#[test]
fn verify_and_validate_wait_too() {
    for (command, report) in
        [("verify", REPORT), ("validate", "$RETAKE_WORKSPACE_PATH/validation-report.md")]
    {
        let sandbox = Sandbox::new();
        let passes = format!("start; printf 'Result: PASS\\n' > {report}; result");
        sandbox.agent(RETRY, &["start; failed 529", "start; limited 1", &passes]);
        sandbox.workspace("task", &[]);
        let called = sandbox.retake(&["agent", command, "task", "--json"]);
        assert_eq!((called.code, sandbox.calls()), (0, 3), "{}", called.snapshot());
        assert_eq!(called.json()["status"], "pass");

        let sandbox = Sandbox::new();
        sandbox.agent(&format!("{RETRY}  tries: 1"), &["start; failed 529 'too busy'"]);
        sandbox.workspace("task", &[]);
        let called = sandbox.retake(&["agent", command, "task"]);
        assert_eq!((called.code, sandbox.calls()), (1, 2), "{}", called.snapshot());
        assert!(called.stderr.contains("too busy"), "{}", called.snapshot());
    }
}

#[test]
fn the_gate_ends_with_the_loops_time() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let options = ["--max-time", "2s", "--fail-incomplete", "--verify", "sleep 1000"];
    let called = sandbox.run_agent(&options);
    assert_eq!(called.code, 5, "{}", called.snapshot());
    assert_eq!(sandbox.stop_reason(), "budget_time");
    assert_eq!(sandbox.metadata()["verification"], serde_json::Value::Null);

    let sandbox = Sandbox::new();
    sandbox.agent(
        "verification:\n  autoVerify: true",
        &["start; complete; result", "start; sleep 1000"],
    );
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--max-time", "2s", "--fail-incomplete"]).code, 5);
    assert_eq!((sandbox.calls(), sandbox.stop_reason().as_str()), (2, "budget_time"));

    // Nor does a hook outlast the time budget.
    let sandbox = Sandbox::new();
    sandbox.agent("hooks:\n  pre:\n    run: sleep 1000\n    timeout: 1h", &["start; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--max-time", "1s", "--fail-incomplete"]).code, 5);
    assert_eq!((sandbox.calls(), sandbox.stop_reason().as_str()), (0, "budget_time"));
}

#[test]
fn a_gate_that_cannot_be_run_ends_the_loop_at_once() {
    for gate in ["nosuchcommand", "nosuchcommand --all"] {
        let sandbox = Sandbox::new();
        sandbox.agent("", &["start; complete; result"]);
        sandbox.workspace("task", &[]);
        let called = sandbox.run_agent(&["--no-delay", "--verify", gate]);
        assert_eq!((called.code, sandbox.calls()), (1, 1), "{}", called.snapshot());
        assert_eq!(sandbox.stop_reason(), "verify_failed");
        for part in [
            "The verification command cannot be run",
            &format!("  `{gate}`: "),
            "Stopped: the verification command cannot be run\n",
            "→ Correct the verification command, then continue: retake agent run task --verify ",
        ] {
            assert!(called.stdout.contains(part), "{part}: {}", called.snapshot());
        }
    }
}

/// The agent can make a missing script, make it executable, or install what a line starts.
#[test]
fn a_gate_that_the_agent_can_repair_is_asked_again() {
    for (gate, repair) in [
        ("./check", "printf '#!/bin/sh\\n' > check; chmod +x check"),
        ("./a-file", "chmod +x a-file"),
        ("true && . ./check", "touch check"),
    ] {
        let sandbox = Sandbox::new();
        let second = format!("start; {repair}; complete; result");
        sandbox.agent("", &["start; complete; result", &second]);
        sandbox.workspace("task", &[]);
        sandbox.file("a-file", "#!/bin/sh\n");
        let called = sandbox.run_agent(&["--no-delay", "--verify", gate]);
        assert_eq!((called.code, sandbox.calls()), (0, 2), "{gate}: {}", called.snapshot());
        assert_eq!(sandbox.stop_reason(), "completed");
    }
}

#[test]
fn hooks_run_once_however_often_the_agent_is_tried() {
    for (tries, options, steps, after) in [
        (9, "", ["start; failed 500", "start; limited 1", "start; complete; result"], "completed"),
        (1, "", ["start; failed 500"; 3], "failed"),
        (9, "stop", ["start; failed 500", "start; limited 3600", ""], "interrupted"),
    ] {
        let sandbox = Sandbox::new();
        let out = sandbox.dir.path().join("hooks");
        let config = format!(
            "{RETRY}  tries: {tries}\nhooks:\n  pre:\n    run: echo pre >> {0}\n  post:\n    \
             run: echo post $RETAKE_ITERATION_STATUS >> {0}",
            out.display()
        );
        sandbox.agent(&config, &steps);
        sandbox.workspace("task", &[]);
        let options: &[&str] = if options.is_empty() { &[] } else { &["--on-limit", options] };
        let called = sandbox.run_agent(options);
        let seen = std::fs::read_to_string(out).unwrap();
        assert_eq!(seen, format!("pre\npost {after}\n"), "{}", called.snapshot());
        // A mere attempt is not an iteration.
        let expected = if after == "interrupted" { "".to_owned() } else { format!("1 {after}") };
        assert_eq!(sandbox.statuses(), expected);
    }
}

#[test]
fn a_hook_after_the_last_try_can_end_the_loop() {
    let sandbox = Sandbox::new();
    let config = format!("{RETRY}  tries: 0\nmaxFailures: 0\nhooks:\n  post:\n    run: 'false'");
    sandbox.agent(&config, &["start; failed 500", "start; complete; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    assert_eq!((sandbox.calls(), sandbox.statuses().as_str()), (1, "1 failed"));
}
