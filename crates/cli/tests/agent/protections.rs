//! What messages suggest keeps a task protected, and what went wrong is shown with its reason.

use crate::common::Sandbox;

const NO_STATUS: &str = "start; result";

#[test]
fn the_suggested_command_repeats_sandbox_gate_budgets_and_checkpoints() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; progress 1 9; echo x > made; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.sh("git init -q .").code, 0);
    let options =
        ["--sandbox=off", "--verify", "false || false", "--max-time", "5m", "--checkpoint"];
    let called = sandbox.run_agent(&[&options[..], &["-m", "1"]].concat());
    let repeated = "--sandbox=off --verify 'false || false' --max-time 5m --checkpoint";
    for line in [
        format!("→ Continue: retake agent run task {repeated} --max-iterations 1\n"),
        format!("→ Increase the limit: retake agent run task {repeated} --max-iterations 2\n"),
    ] {
        assert!(called.stdout.contains(&line), "{line}: {}", called.snapshot());
    }
    // Nothing is suggested that was not given.
    let called = sandbox.run_agent(&["-m", "1"]);
    assert!(called.stdout.contains("→ Continue: retake agent run task --max-iterations 1\n"));
}

#[test]
fn a_run_without_the_last_runs_protections_warns() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; progress 1 9; echo x > made; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "1", "--verify", "true"]).stderr, "");
    let called = sandbox.run_agent(&["-m", "1"]);
    assert!(called.stderr.contains("add --verify true"), "{}", called.snapshot());
    let command = "retake agent run task -m 1 --verify true\n";
    assert!(called.stderr.contains(command), "{}", called.snapshot());
    assert_eq!(sandbox.run_agent(&["-m", "1"]).stderr, "", "it is said once");

    if !sandbox.can_be_confined() {
        return;
    }
    let allowed = format!("--allow-write={}", sandbox.agent_dir().display());
    sandbox.run_agent(&["-m", "1", "--sandbox", &allowed]);
    let called = sandbox.run_agent(&["-m", "1"]);
    let warning = "the last run was confined; this one is not: add --sandbox";
    assert!(called.stderr.contains(warning), "{}", called.snapshot());
    assert!(called.stderr.contains("--sandbox --allow-write "), "{}", called.snapshot());
}

#[test]
fn a_task_of_the_queue_that_was_confined_names_the_option_of_the_queue() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; progress 1 9; echo x > made; result"]);
    if !sandbox.can_be_confined() {
        return;
    }
    sandbox.workspace("task", &[]);
    let allowed = format!("--allow-write={}", sandbox.agent_dir().display());
    sandbox.run_agent(&["-m", "1", "--sandbox", &allowed]);
    assert_eq!(sandbox.retake(&["agent", "queue", "add", "task", "-m", "1"]).code, 0);
    let called = sandbox.retake(&["agent", "queue", "run"]);
    let told = "this one is not: add --sandbox\n→ Confine it: retake agent queue run --sandbox\n";
    let told = told.replace('\n', "\nretake: ");
    let told = told.trim_end_matches("retake: ");
    assert!(called.stderr.contains(told), "{}", called.snapshot());
}

#[test]
fn the_suggestion_for_a_completed_task_can_be_typed() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; echo x >> made; complete; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--verify", "test -e made", "--max-time", "5m"]).code, 0);
    let called = sandbox.run_agent(&["--again", "--no-delay", "--max-failures", "2", "-v"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let suggested = "retake agent run task --again --no-delay --max-failures 2 -v \
                     --verify 'test -e made' --max-time 5m";
    let line = format!("→ With the options of the last run: {suggested}\n");
    assert!(called.stderr.contains(&line), "{}", called.snapshot());
    let called = sandbox.sh(suggested);
    assert_eq!((called.code, sandbox.calls()), (0, 3), "{}", called.snapshot());
    assert!(called.stdout.contains("✓ Verification passed"), "{}", called.snapshot());
}

#[test]
fn the_end_after_several_failures_names_their_number() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["exit 3"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["--no-delay", "--max-failures", "3"]);
    assert_eq!((called.code, sandbox.calls()), (1, 3), "{}", called.snapshot());
    let said = "Stopped: 3 iterations failed in a row\n";
    assert!(called.stdout.contains(said), "{}", called.snapshot());
}

#[test]
fn a_loop_that_nothing_ends_says_so_after_its_first_iteration() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[NO_STATUS, NO_STATUS]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "2"]);
    let warning = "Iteration 1 changed no file and wrote no .status.json";
    assert_eq!(called.stdout.matches(warning).count(), 1, "{}", called.snapshot());
    assert_eq!(called.stdout.matches("--max-no-progress 3").count(), 1, "{}", called.snapshot());
    for (step, options) in [
        (NO_STATUS, &["-m", "2", "--max-no-progress", "3"][..]),
        ("start; progress 1 9; result", &["-m", "2"]),
        ("start; echo x >> made; result", &["-m", "2"]),
    ] {
        let sandbox = Sandbox::new();
        sandbox.agent("", &[step, step]);
        sandbox.workspace("task", &[]);
        let called = sandbox.run_agent(options);
        assert!(!called.stdout.contains("wrote no"), "{step}: {}", called.snapshot());
    }
}

#[test]
fn a_failure_shows_what_the_agent_printed_last() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["printf 'one\\n\\033[31mmodel error: boom\\033[0m\\n\\n' >&2; exit 3"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1);
    assert!(
        called.stderr.ends_with("exited with code 3: model error: boom\n"),
        "{}",
        called.snapshot()
    );
    assert!(called.stdout.contains("→ Its output: retake runs logs "), "{}", called.snapshot());
    assert!(called.stdout.contains("Stopped: an iteration failed\n"), "{}", called.snapshot());
    let shown = sandbox.retake(&["agent", "show", "task", "1"]).stdout;
    for part in ["model error: boom", "output      retake runs logs "] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_refusal_of_the_gate_shows_its_command_and_its_last_line() {
    let sandbox = Sandbox::new();
    let step = "start; complete; echo x >> made; result";
    sandbox.agent("", &[step, step, step, step]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["--verify", "echo first; echo 3 tests failed; exit 4"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    let line = "`echo first; echo 3 tests failed; exit 4`: ";
    let line = called.stdout.lines().find(|shown| shown.contains(line)).unwrap_or_default();
    assert!(line.contains('4') && line.ends_with(": 3 tests failed"), "{}", called.snapshot());
    assert!(called.stdout.contains("→ Its output: retake runs logs "), "{}", called.snapshot());
    assert!(
        called.stdout.contains("Stopped: verification does not pass\n"),
        "{}",
        called.snapshot()
    );
    let table = sandbox.retake(&["agent", "show", "task"]).stdout;
    assert!(table.contains("completed, refused by the gate"), "{table}");
    let one = sandbox.retake(&["agent", "show", "task", "1"]).stdout;
    assert!(one.contains("refused by the gate\n") && one.contains("3 tests failed"), "{one}");
    // An iteration that the gate accepted has no such mark.
    assert_eq!(sandbox.run_agent(&["--verify", "true", "--again"]).code, 0);
    let last = sandbox.retake(&["agent", "show", "task", "--last", "1"]).stdout;
    assert!(!last.contains("refused"), "{last}");
}

#[test]
fn denials_of_the_sandbox_are_counted_and_listed() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let step = "start\n(echo x > $dir/../outside) 2>/dev/null\ncomplete\nresult";
    sandbox.agent("", &[step]);
    sandbox.workspace("task", &[]);
    let allowed = format!("--allow-write={}", sandbox.agent_dir().display());
    let called = sandbox.run_agent(&["--sandbox", &allowed]);
    if !called.stdout.contains("denied: ") {
        return crate::common::skip("this machine does not report what a sandbox denies");
    }
    let one = sandbox.retake(&["agent", "show", "task", "1"]).stdout;
    assert!(one.contains("denied by the sandbox\n") && one.contains("outside"), "{one}");
    let table = sandbox.retake(&["agent", "show", "task"]).stdout;
    let row = table.lines().find(|line| line.starts_with("1  ")).unwrap_or_default();
    let column = table.lines().find(|line| line.contains("DENIED")).unwrap_or_default();
    let at = column.find("DENIED").unwrap_or_default();
    assert!(row[..].chars().skip(at).take(6).any(|c| c.is_ascii_digit()), "{table}");
}

#[test]
fn a_setting_takes_the_place_of_the_commented_section() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.retake(&["init"]).code, 0);
    let file = sandbox.project().join(".agent/config.yml");
    let before = std::fs::read_to_string(&file).unwrap();
    assert!(before.contains("\n# agent:\n"), "{before}");
    assert_eq!(sandbox.retake(&["agent", "config", "kind", "custom"]).code, 0);
    let after = std::fs::read_to_string(&file).unwrap();
    assert_eq!(after, before.replace("\n# agent:\n", "\nagent:\n  kind: \"custom\"\n"));
    std::fs::write(&file, format!("{after}\nagent:\n  mcp: true\n")).unwrap();
    let called = sandbox.retake(&["agent", "list"]);
    assert!(called.stderr.contains("the key agent is in line "), "{}", called.snapshot());
    std::fs::write(&file, &after).unwrap();
    let called = sandbox.retake(&["agent", "config", "kind", "foo"]);
    assert!(called.stderr.contains("kind takes one of claude"), "{}", called.snapshot());
    assert!(!called.stderr.contains("config.yml:"), "{}", called.snapshot());
    let called = sandbox.retake(&["agent", "config", "command", "./nosuch"]);
    assert!(called.stderr.contains("there is no program "), "{}", called.snapshot());
}

#[test]
fn an_archive_says_that_the_workspace_moved_and_is_found_by_the_beginning_of_its_name() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[]);
    sandbox.workspace("task", &[]);
    let saved = sandbox.retake(&["agent", "archive", "save", "task"]);
    assert!(saved.stdout.contains("→ Restore it: retake agent archive restore task-"));
    let unknown = sandbox.retake(&["agent", "archive", "show", "nothing"]);
    assert!(unknown.stderr.contains("retake agent archive list"), "{}", unknown.snapshot());
    assert_eq!(sandbox.retake(&["agent", "archive", "show", "task"]).code, 0);
    let restored = sandbox.retake(&["agent", "archive", "restore", "task"]);
    assert_eq!(restored.stdout, "✓ Workspace restored: task\n", "{}", restored.snapshot());
    // Two archives begin with it.
    assert_eq!(sandbox.retake(&["agent", "archive", "save", "task"]).code, 0);
    let two = sandbox.retake(&["agent", "archive", "restore", "task"]);
    assert!(two.stderr.contains("several archives"), "{}", two.snapshot());
}

#[test]
fn messages_name_the_next_step() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    let missing = sandbox.run_agent(&[]);
    assert!(missing.stderr.contains("Workspace not found: task\n"), "{}", missing.snapshot());
    assert!(missing.stderr.contains("`retake agent init task`"), "{}", missing.snapshot());
    sandbox.workspace("task", &[]);
    let dry = sandbox.run_agent(&["--dry-run"]);
    assert!(dry.stdout.starts_with("Dry run: "), "{}", dry.snapshot());
    sandbox.file("my-agent", "#!/bin/sh\n");
    for (key, value) in [("kind", "custom"), ("command", "./my-agent")] {
        sandbox.retake(&["agent", "config", key, value]);
    }
    let called = sandbox.run_agent(&[]);
    assert!(called.stderr.contains("chmod +x"), "{}", called.snapshot());
}
