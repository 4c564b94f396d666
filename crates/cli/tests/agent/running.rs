//! The loop: how it continues, how it ends, and what it reports.
use crate::common::Sandbox;

fn keys(value: &serde_json::Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn sorted(words: &str) -> Vec<&str> {
    let mut words: Vec<_> = words.split_whitespace().collect();
    words.sort_unstable();
    words
}

const THREE: [&str; 3] = [
    "start; progress 1 3; echo a > made; say '## Summary\\nfirst'; result",
    "start; progress 2 3; echo b > made; result 0.02",
    "start; complete; rm made; result 0.03 300",
];

#[test]
fn completes_in_three_iterations_and_shows_them() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &THREE);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    let took = regex::Regex::new(r"\d+ms").unwrap();
    assert_eq!(
        took.replace_all(&called.snapshot(), "TOOK"),
        "exit 0\nstdout: Running iteration 1...\n\
         stdout: ✓ 1  1 file  $0.01  TOOK\nstdout: (2 items remaining)\n\
         stdout: Running iteration 2...\n\
         stdout: ✓ 2  1 file  $0.02  TOOK\nstdout: (1 item remaining)\n\
         stdout: Running iteration 3...\nstdout: ✓ 3  1 file  $0.03  TOOK\n\
         stdout: ✓ Task completed successfully after 3 iterations\n"
    );
    let shown = sandbox.shown();
    assert_eq!(keys(&shown), sorted("name mode status stopReason summary iterations"));
    assert_eq!((&shown["name"], &shown["mode"]), (&"task".into(), &"loop".into()));
    assert_eq!(
        (&shown["status"], &shown["stopReason"]),
        (&"completed".into(), &"completed".into())
    );
    assert_eq!(
        keys(&shown["summary"]),
        sorted(
            "totalIterations successfulIterations failedIterations timedOutIterations \
             totalDurationMs totalFilesModified totalFilesCreated totalTestsRun totalTestsPassed \
             totalTestsFailed"
        )
    );
    let iterations = shown["iterations"].as_array().unwrap();
    for (at, iteration) in iterations.iter().enumerate() {
        assert_eq!(
            keys(iteration),
            sorted(
                "number status startedAt endedAt exitCode filesModified filesCreated filesDeleted \
                 testsRun testResults contextUsagePercent progressDetected summary durationMs \
                 costUsd tokens sessionId runId error denials deniedTools prompt agent"
            )
        );
        assert_eq!(iteration["number"], at + 1);
        assert_eq!(iteration["status"], "completed");
        assert_eq!(iteration["exitCode"], 0);
        assert_eq!(iteration["progressDetected"], true);
        assert_eq!(iteration["sessionId"], format!("session-{}", at + 1));
    }
    assert_eq!(iterations[0]["filesCreated"], serde_json::json!(["made"]));
    assert_eq!(iterations[1]["filesModified"], serde_json::json!(["made"]));
    assert_eq!(iterations[2]["filesDeleted"], serde_json::json!(["made"]));
    assert_eq!(iterations[0]["summary"], "first");
    assert_eq!((&iterations[2]["costUsd"], &iterations[2]["tokens"]), (&0.03.into(), &300.into()));
    // The runs are recorded, each with its output.
    let run = iterations[1]["runId"].as_str().unwrap();
    assert!(sandbox.retake(&["runs", "logs", run]).stdout.contains("session-2"));
    let metadata = sandbox.metadata();
    assert_eq!(metadata["status"], "completed");
    assert_eq!(
        (&metadata["executionIterations"], &metadata["totalIterations"]),
        (&3.into(), &3.into())
    );
    // For people.
    let text = sandbox.retake(&["agent", "show", "task"]).stdout;
    for part in ["completed", "all is done", "$0.06", "500 tokens"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The user's text reaches the agent unchanged, by standard input alone.
    assert!(sandbox.prompt(1).contains("Do the work for $5 {{now}}."));
    let argv = std::fs::read_to_string(sandbox.agent_dir().join("argv-1")).unwrap();
    assert!(argv.contains("--append-system-prompt") && !argv.contains("$5"));
}

#[test]
fn history_is_picked_from() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "maxFailures: 0",
        &["start; result", "start; failed 400", "start; complete; result"],
    );
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    let numbers = |options: &[&str]| {
        let all: Vec<_> =
            ["agent", "show", "task", "--json"].iter().chain(options).copied().collect();
        let shown = sandbox.retake(&all).json();
        let numbers: Vec<_> =
            shown["iterations"].as_array().unwrap().iter().map(|i| i["number"].clone()).collect();
        (numbers, shown["summary"]["failedIterations"].clone())
    };
    let text = sandbox.retake(&["agent", "show", "task"]).stdout;
    assert!(text.contains("iterations  3: 2 completed, 1 failed\n"), "{text}");
    assert_eq!(numbers(&["--last", "2"]), (vec![2.into(), 3.into()], 1.into()));
    assert_eq!(numbers(&["--status", "failed"]), (vec![2.into()], 1.into()));
    assert_eq!(sandbox.retake(&["agent", "show", "task", "--status", "odd"]).code, 1);
}

#[test]
fn a_failure_ends_the_loop() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "",
        &["start; progress 1 2; result", "start; failed 401 'the key is not valid'; exit 1"],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1);
    assert_eq!(called.stderr, "retake: Iteration 2 failed: the key is not valid\n");
    assert_eq!(sandbox.statuses(), "1 completed, 2 failed");
    assert_eq!(sandbox.stop_reason(), "failed");
    assert_eq!(sandbox.metadata()["status"], "error");
    assert!(sandbox.logs().contains("ERROR: the key is not valid"));
    // A loop that continues ignores the error.
    sandbox.agent("", &["start; complete; result"]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    assert_eq!(sandbox.metadata()["status"], "completed");
    assert_eq!(sandbox.statuses(), "1 completed, 2 failed, 3 completed");
}

#[test]
fn a_workspace_that_continues_after_a_failure_is_in_progress() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; failed 400", "start; progress 1 2; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    assert_eq!(sandbox.run_agent(&["-m", "1"]).code, 0);
    assert_eq!(sandbox.metadata()["status"], "in_progress");
}

#[test]
fn words_and_exit_codes_of_the_agent_decide_nothing() {
    let sandbox = Sandbox::new();
    // Exit 1 after a good result, and `error` in every text.
    sandbox.agent(
        "",
        &[
            "start; say 'error: failed, fatal'; progress 1 3; result; exit 1",
            // Unreadable.
            "echo success; exit 0",
        ],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("Iteration 2 failed"), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed, 2 failed");
}

#[test]
fn failures_in_a_row_are_counted() {
    let sandbox = Sandbox::new();
    let steps = ["start; failed 400", "start; result", "start; failed 400"];
    sandbox.agent("", &steps);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--max-failures", "2"]).code, 1);
    assert_eq!(sandbox.statuses(), "1 failed, 2 completed, 3 failed, 4 failed");
    let text = sandbox.retake(&["agent", "show", "task"]).stdout;
    assert!(text.contains("4: 1 completed, 3 failed; failure streak 2\n"), "{text}");
}

#[test]
fn the_maximum_of_iterations() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; progress 1 9; result"]);
    sandbox.workspace("task", &["-m", "2"]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0);
    for part in [
        "⚠️ Reached maximum iterations (2)",
        "→ Continue: retake agent run task",
        "retake agent show task",
    ] {
        assert!(called.stdout.contains(part), "{}", called.snapshot());
    }
    assert_eq!(sandbox.stop_reason(), "max_iterations");
    assert_eq!(sandbox.metadata()["status"], "in_progress");
    // Counted separately for each invocation; numbers continue.
    assert_eq!(sandbox.run_agent(&["-m", "1", "--fail-incomplete"]).code, 3);
    assert_eq!(sandbox.statuses(), "1 completed, 2 completed, 3 completed");
    assert_eq!(sandbox.metadata()["executionIterations"], 3);
}

#[test]
fn stagnation_is_for_iterative_mode() {
    let idle = "start; status '{\"complete\":false,\"worked\":false}'; result";
    let work = "start; status '{\"complete\":false,\"worked\":true}'; result";
    let sandbox = Sandbox::new();
    sandbox.agent("", &[idle, work, idle]);
    sandbox.workspace("task", &["--mode", "iterative"]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0);
    assert!(
        called.stdout.contains("⚠️ Stagnation detected: 2 consecutive iterations with no work")
    );
    assert_eq!(sandbox.calls(), 4);
    assert_eq!(sandbox.stop_reason(), "stagnation");
    assert_eq!(sandbox.metadata()["status"], "in_progress");
    assert_eq!(sandbox.run_agent(&["--fail-incomplete", "--stagnation-threshold", "1"]).code, 4);
    assert_eq!(sandbox.run_agent(&["--stagnation-threshold", "0", "-m", "3"]).code, 0);
    assert_eq!(sandbox.stop_reason(), "max_iterations");

    let sandbox = Sandbox::new();
    sandbox.agent("", &[idle]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "4"]).code, 0);
    assert_eq!(sandbox.stop_reason(), "max_iterations");
}

#[test]
fn missing_progress_is_detected_from_unchanged_files() {
    let sandbox = Sandbox::new();
    // It claims to work, and changes nothing.
    sandbox
        .agent("", &["start; echo x > file; progress 1 9; result", "start; progress 2 9; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--max-no-progress", "2", "--fail-incomplete"]).code, 4);
    assert_eq!(sandbox.calls(), 3);
    assert_eq!(sandbox.stop_reason(), "no_progress");
    assert_eq!(sandbox.shown()["iterations"][1]["progressDetected"], false);
}

#[test]
fn test_results_come_from_what_tools_printed() {
    let sandbox = Sandbox::new();
    let printed = "running 2 tests\\ntest a ... ok\\ntest b ... FAILED\\n\\nfailures:\\n    b\\n\\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\\n";
    let step = format!(
        "start; tool Bash '{{\"command\":\"cargo test\"}}'; returned '{printed}' true; progress 1 2; result"
    );
    sandbox.agent("", &[&step, "start; complete; result"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let shown = sandbox.shown();
    assert_eq!(shown["iterations"][0]["testsRun"], true);
    assert_eq!(shown["iterations"][0]["testResults"]["failed"], 1);
    assert_eq!(shown["iterations"][1]["testsRun"], false);
    assert_eq!(shown["summary"]["totalTestsRun"], 2);
    assert!(sandbox.prompt(2).contains("1 passed, 1 failed"), "{}", sandbox.prompt(2));
}

#[test]
fn a_part_of_a_report_counts_and_is_called_partial() {
    let sandbox = Sandbox::new();
    // No line has a number, unlike those of a complete report.
    let printed = "test_a (t.T.test_a) ... ok\\ntest_b (t.T.test_b) ... FAIL\\n";
    let step = format!(
        "start; tool Bash '{{\"command\":\"python3 -m unittest -v 2>&1 | head -2\"}}'; returned '{printed}' false; complete; result"
    );
    sandbox.agent("", &[&step]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let results = &sandbox.shown()["iterations"][0]["testResults"];
    assert_eq!((&results["partial"], &results["failed"]), (&true.into(), &1.into()), "{results}");
}

#[test]
fn hooks_run_around_iterations() {
    let sandbox = Sandbox::new();
    let out = sandbox.dir.path().join("hooks");
    let line = "env | grep ^RETAKE_ITERATION= >> OUT; env | grep -c . > /dev/null; echo $RETAKE_WORKSPACE >> OUT";
    let config = format!(
        "hooks:\n  pre:\n    run: {:?}\n  post:\n    run: {:?}",
        line.replace("OUT", &out.to_string_lossy()),
        format!("env | grep '^RETAKE_ITERATION_[SEF]' | sort >> {0}", out.display())
    );
    sandbox.agent(
        &config,
        &["start; echo x > made; progress 1 2; result", "start; complete; result; exit 3"],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let facts = |exit: u32, created: u32| {
        format!(
            "RETAKE_ITERATION_EXIT_CODE={exit}\nRETAKE_ITERATION_FILES_CREATED={created}\n\
             RETAKE_ITERATION_FILES_DELETED=0\nRETAKE_ITERATION_FILES_MODIFIED=0\n\
             RETAKE_ITERATION_STATUS=completed\n"
        )
    };
    assert_eq!(
        std::fs::read_to_string(out).unwrap(),
        format!(
            "RETAKE_ITERATION=1\ntask\n{}RETAKE_ITERATION=2\ntask\n{}",
            facts(0, 1),
            facts(3, 0)
        )
    );
}

#[test]
fn hooks_can_skip_and_stop() {
    let sandbox = Sandbox::new();
    let pre = "hooks:\n  pre:\n    run: test $RETAKE_ITERATION -ne 2\n    on_failure: skip";
    sandbox.agent(pre, &["start; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "3"]).code, 0);
    assert_eq!(sandbox.statuses(), "1 completed, 2 skipped, 3 completed");
    assert_eq!(sandbox.calls(), 2);

    let sandbox = Sandbox::new();
    sandbox.agent(&pre.replace("skip", "stop"), &["start; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "3"]);
    assert_eq!(called.code, 1);
    assert_eq!(sandbox.statuses(), "1 completed, 2 failed");
    assert!(called.stderr.contains("The pre hook failed"), "{}", called.snapshot());

    let sandbox = Sandbox::new();
    let post = "hooks:\n  post:\n    run: sleep 1000\n    timeout: 1s";
    sandbox.agent(post, &["start; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "3"]).code, 1);
    assert_eq!(sandbox.calls(), 1);
}

#[test]
fn levels_of_output() {
    let step = "start; say 'hello there'; tool Bash '{\"command\":\"ls -l\"}'; returned 'a b' false; \
                tool Edit '{\"file_path\":\"/x\",\"old_string\":\"o\",\"new_string\":\"n\"}'; \
                returned 'String not found' true; complete; result";
    let sandbox = Sandbox::new();
    sandbox.agent("", &[step]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-q"]).snapshot(), "exit 0\n");
    let called = sandbox.run_agent(&["--output", "progress", "--again"]);
    assert!(!called.stdout.contains("hello there"), "{}", called.snapshot());
    for verbose in [&["-v"][..], &["--output", "verbose"]] {
        let called = sandbox.run_agent(&[verbose, &["--again"]].concat());
        for part in [
            "Running iteration",
            "hello there",
            "🔧 Bash",
            "ls -l",
            "a b",
            "✓",
            "❌ Edit failed",
            "String not found",
        ] {
            assert!(called.stdout.contains(part), "{part}: {}", called.snapshot());
        }
    }
    for wrong in [&["-v", "-q"][..], &["-q", "--output", "verbose"], &["--output", "loud"]] {
        assert_eq!(sandbox.run_agent(wrong).code, 1, "{wrong:?}");
    }
    // Errors are shown at every level.
    sandbox.agent("", &["start; failed 400 broken"]);
    assert!(sandbox.run_agent(&["-q", "--again"]).stderr.contains("Iteration 5 failed: broken"));
}

#[test]
fn the_log_has_its_form() {
    let sandbox = Sandbox::new();
    sandbox
        .agent("", &["start; say one; progress 1 3; result", "start; say two; complete; result"]);
    let dir = sandbox.workspace("task", &[]);
    std::fs::write(dir.join(".status-instructions.md"), "Write it well.\n").unwrap();
    assert_eq!(sandbox.run_agent(&["-q"]).code, 0);
    let names: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().into_string().ok())
        .filter(|name| name.ends_with(".log"))
        .collect();
    let pattern = regex::Regex::new(r"^iterate-\d{8}-\d{6}\.log$").unwrap();
    assert!(names.len() == 1 && pattern.is_match(&names[0]), "{names:?}");
    let log = sandbox.logs();
    let mut from = 0;
    for part in [
        "RETAKE - EXECUTION LOG\nStarted: ",
        "RUN METADATA\n",
        "Workspace: task\nMode: loop\nMax Iterations: 50\nStart Time: ",
        "INSTRUCTIONS\n",
        "Do the work for $5 {{now}}.\n",
        "SYSTEM PROMPT\n",
        "STATUS INSTRUCTIONS\n",
        "Write it well.\n",
        "ITERATION 1\nStarted: ",
        "CLAUDE OUTPUT:\n",
        "one\n",
        "STATUS: success\nCompleted: ",
        "Remaining: 2\n",
        "ITERATION 2\nStarted: ",
        "two\n",
        "STATUS: success\n",
    ] {
        let at = log[from..].find(part).unwrap_or_else(|| panic!("{part:?} in {}", &log[from..]));
        from += at + part.len();
    }
    assert_eq!(log.matches("Do the work for").count(), 1, "once");
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    let dir = sandbox.workspace("task", &[]);
    // A link at the path of the log for any of the next seconds.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for second in now..now + 60 {
        let at = sandbox.sh(&format!("date -u -d @{second} +%Y%m%d-%H%M%S")).stdout;
        let path = dir.join(format!("iterate-{}.log", at.trim()));
        std::os::unix::fs::symlink("/nowhere/at/all", path).unwrap();
    }
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0);
    assert_eq!(called.stderr.matches("logging is off").count(), 1, "{}", called.snapshot());
}

#[test]
fn a_custom_agent_is_judged_by_its_exit_code() {
    let sandbox = Sandbox::new();
    let agent = sandbox.agent("", &["echo working; progress 1 2; exit 0", "complete; exit 7"]);
    let config =
        format!("agent:\n  kind: custom\n  command: {}\n  args: [--fast]\n", agent.display());
    sandbox.file(".agent/config.yml", &config);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-v"]);
    assert_eq!(called.code, 1);
    assert!(called.stdout.contains("working"), "{}", called.snapshot());
    assert!(
        called.stderr.contains("Iteration 2 failed: exited with code 7"),
        "{}",
        called.snapshot()
    );
    assert!(sandbox.logs().contains("AGENT OUTPUT:\nworking\n"), "{}", sandbox.logs());
    // The system prompt is in the same request.
    assert!(sandbox.prompt(1).contains("Do the work for $5"));
    assert_eq!(std::fs::read_to_string(sandbox.agent_dir().join("argv-1")).unwrap(), "--fast\n");
}

#[test]
fn mistakes_are_reported_before_anything_runs() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("task"), "{}", called.snapshot());
    let dir = sandbox.workspace("task", &[]);
    for wrong in [
        &["-m", "abc"][..],
        &["-m", "0"],
        &["-m", "-1"],
        &["-m"],
        &["-d", "soon"],
        &["-d", "1", "--no-delay"],
        &["--stagnation-threshold", "few"],
        &["--max-cost", "cheap"],
        &["--max-tokens", "1.5"],
        &["--max-time", "0"],
        &["--on-limit", "panic"],
        &["--agent", "hal"],
        &["--no-such-flag"],
    ] {
        let called = sandbox.run_agent(wrong);
        assert_eq!(called.code, 1, "{wrong:?} {}", called.snapshot());
        let named = if wrong[0].starts_with("--") { wrong[0] } else { "--" };
        assert!(called.stderr.contains(named), "{wrong:?} {}", called.snapshot());
    }
    std::fs::remove_file(dir.join("INSTRUCTIONS.md")).unwrap();
    assert_eq!(
        sandbox.run_agent(&[]).snapshot(),
        "exit 1\nstderr: retake: Instructions not found. Run setup first: retake agent setup task\n\
         stderr: retake: hint: or write INSTRUCTIONS.md yourself; `retake agent show task` prints the directory\n"
    );
    std::fs::write(dir.join("INSTRUCTIONS.md"), "x").unwrap();
    sandbox.file(".agent/config.yml", "agent:\n  claude:\n    command: no-such-claude\n");
    assert_eq!(
        sandbox.run_agent(&[]).snapshot(),
        "exit 1\nstderr: retake: Claude CLI not found. Make sure 'no-such-claude' is installed and in PATH.\n\
         stderr: retake: hint: choose another agent with `retake agent config kind KIND`: claude, codex, gemini, opencode or custom; `retake agent run NAME --dry-run` needs none\n"
    );
    let custom = "agent:\n  kind: custom\n  command: sh -e script\n";
    sandbox.file(".agent/config.yml", custom);
    assert_eq!(
        sandbox.run_agent(&[]).snapshot(),
        "exit 1\nstderr: retake: Agent not found. Make sure 'sh -e script' is installed and in PATH.\n\
         stderr: retake: hint: the whole text is the name of the program; put its arguments in agent.args\n"
    );
    sandbox.file(".agent/config.yml", "agent:\n  timeout: soon\n");
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    sandbox.file(".agent/config.yml", "agent:\n  timeot: 3s\n");
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    assert_eq!(sandbox.calls(), 0);
}

#[test]
fn the_agent_gets_its_environment_and_place() {
    let sandbox = Sandbox::new();
    let step = "env | grep -E '^(OWN|RETAKE_(ITERATION|WORKSPACE|TASK_ID))' | sort > \"$dir/env\"; \
                pwd >> \"$dir/env\"; start; complete; result";
    sandbox.agent("env:\n  OWN: a=b c", &[step]);
    let dir = sandbox.workspace("task", &[]);
    // From anywhere in the project.
    std::fs::create_dir(sandbox.project().join("below")).unwrap();
    let called = sandbox.sh("cd below && retake agent run task");
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let expected = format!(
        "OWN=a=b c\nRETAKE_ITERATION=1\nRETAKE_TASK_ID=task\nRETAKE_WORKSPACE=task\n\
         RETAKE_WORKSPACE_PATH={}\n{}\n",
        dir.display(),
        sandbox.project().display()
    );
    assert_eq!(std::fs::read_to_string(sandbox.agent_dir().join("env")).unwrap(), expected);
}

#[test]
fn denied_permissions_are_shown_and_no_failure() {
    let sandbox = Sandbox::new();
    let denied = r#"start; echo '{"type":"system","subtype":"permission_denied","tool_name":"Bash","message":"no"}'; complete; echo '{"type":"result","subtype":"success","is_error":false,"result":"x","usage":{},"permission_denials":[{"tool_name":"Bash"},{"tool_name":"Write"},{"tool_name":"Bash"}]}'"#;
    sandbox.agent("", &[denied]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let said = "⚠️ 3 permissions denied: Bash (2), Write";
    assert!(called.stdout.contains(said), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed");
    let shown = sandbox.retake(&["agent", "show", "task"]).stdout;
    assert!(shown.contains("denied      3 permissions: Bash (2), Write"), "{shown}");
    let iteration = sandbox.retake(&["agent", "show", "task", "1"]).stdout;
    assert!(iteration.contains("denied      3: Bash (2), Write"), "{iteration}");
    let json = sandbox.shown();
    assert_eq!(json["iterations"][0]["deniedTools"], "Bash (2), Write");
}

#[test]
fn a_dry_run_needs_no_agent() {
    let sandbox = Sandbox::new();
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["--dry-run"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.ends_with("✓ Task completed successfully after 3 iterations\n"));
    assert_eq!(sandbox.statuses(), "");
    assert!(std::fs::read_to_string("/tmp/mock-claude.log").unwrap().contains("prompt: "));
}
