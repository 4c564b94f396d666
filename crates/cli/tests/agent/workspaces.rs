//! Workspaces and the commands around them.

use crate::common::Sandbox;
use serde_json::json;

fn ok(sandbox: &Sandbox, words: &[&str]) -> crate::common::Called {
    let words: Vec<_> = ["agent"].iter().chain(words).copied().collect();
    let called = sandbox.retake(&words);
    assert_eq!(called.code, 0, "{words:?}: {}", called.snapshot());
    called
}

fn refused(sandbox: &Sandbox, words: &[&str]) -> String {
    let words: Vec<_> = ["agent"].iter().chain(words).copied().collect();
    let called = sandbox.retake(&words);
    assert_eq!(called.code, 1, "{words:?}: {}", called.snapshot());
    assert!(!called.stderr.is_empty(), "{words:?}");
    called.stderr
}

#[test]
fn init_writes_what_was_asked_for() {
    let sandbox = Sandbox::new();
    ok(&sandbox, &["init", "a"]);
    let read = |name: &str| -> serde_json::Value {
        let path = sandbox.project().join(".agent/workspaces").join(name).join(".metadata.json");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("{\n  \"name\"") && text.ends_with("}\n"), "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let mut made = read("a");
    assert!(made["created"].take().is_string());
    assert_eq!(
        made,
        json!({"name": "a", "created": null, "status": "in_progress", "totalIterations": 0,
               "setupIterations": 0, "executionIterations": 0, "mode": "loop", "maxIterations": 50,
               "delay": 2, "stagnationThreshold": 2, "notifyEvents": ["all"]})
    );
    for file in ["TODO.md", "working", "reports"] {
        assert!(sandbox.project().join(".agent/workspaces/a").join(file).exists(), "{file}");
    }
    ok(
        &sandbox,
        &[
            "init",
            "b",
            "--mode",
            "iterative",
            "--delay",
            "0",
            "--stagnation-threshold",
            "0",
            "--notify-url",
            "http://127.0.0.1:1/x",
            "--notify-events",
            "error,completion",
        ],
    );
    let made = read("b");
    assert_eq!((&made["maxIterations"], &made["delay"]), (&20.into(), &0.into()));
    assert_eq!(made["stagnationThreshold"], 0);
    assert_eq!(made["notifyEvents"], json!(["error", "completion"]));
    // Neither a second time nor with invalid values.
    for wrong in [
        &["init", "a"][..],
        &["init", "c", "--mode", "fast"],
        &["init", "c", "-m", "0"],
        &["init", "c", "-m", "many"],
        &["init", "c", "-d", "-1"],
        &["init", "c", "--notify-events", "everything"],
        &["init", "c", "--notify-url", "ftp://x"],
    ] {
        refused(&sandbox, wrong);
    }
    assert!(!sandbox.project().join(".agent/workspaces/c").exists());
    // Defaults of the project reach a workspace.
    sandbox.file(".agent/config.yml", "agent:\n  defaultMaxIterations: 7\n  defaultDelay: 3s\n");
    ok(&sandbox, &["init", "d"]);
    assert_eq!((&read("d")["maxIterations"], &read("d")["delay"]), (&7.into(), &3.into()));
}

#[test]
fn a_name_never_leaves_its_directory() {
    let sandbox = Sandbox::new();
    sandbox.workspace("task", &[]);
    ok(&sandbox, &["template", "save", "task"]);
    ok(&sandbox, &["archive", "save", "task", "--keep"]);
    let archive = ok(&sandbox, &["archive", "list", "--json"]).json()[0]["archiveName"]
        .as_str()
        .unwrap()
        .to_owned();
    for bad in ["../task", "..", ".", "a/b", "/tmp/x", "a b", ""] {
        for words in [
            vec!["init", bad],
            vec!["run", bad],
            vec!["show", bad],
            vec!["reset", bad],
            vec!["clean", bad, "-f"],
            vec!["setup", bad],
            vec!["edit", bad],
            vec!["validate", bad],
            vec!["verify", bad],
            vec!["stop", bad],
            vec!["pause", bad],
            vec!["resume", bad],
            vec!["tell", bad, "x"],
            vec!["watch", bad],
            vec!["rollback", bad, "--to", "1"],
            vec!["config", "outputLevel", "-w", bad],
            vec!["archive", "save", bad],
            vec!["archive", "restore", bad],
            vec!["archive", "restore", &archive, bad],
            vec!["archive", "show", bad],
            vec!["archive", "delete", bad, "-f"],
            vec!["template", "save", bad],
            vec!["template", "save", "task", bad],
            vec!["template", "use", bad, "new"],
            vec!["template", "use", "task", bad],
            vec!["template", "show", bad],
            vec!["template", "delete", bad, "-f"],
        ] {
            refused(&sandbox, &words);
        }
    }
    // Nor does one that a file claims.
    let about = sandbox.project().join(".agent/archive").join(&archive).join(".archived.json");
    let text = std::fs::read_to_string(&about).unwrap();
    std::fs::write(
        &about,
        text.replace("\"originalName\": \"task\"", "\"originalName\": \"../../x\""),
    )
    .unwrap();
    refused(&sandbox, &["archive", "restore", &archive]);
    assert!(!sandbox.project().join("x").exists() && !sandbox.project().join(".agent/x").exists());
}

#[test]
fn list_and_reset() {
    let sandbox = Sandbox::new();
    assert_eq!(ok(&sandbox, &["list"]).stdout, "");
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    sandbox.workspace("other", &[]);
    ok(&sandbox, &["run", "task"]);
    let names = |words: &[&str]| -> Vec<String> {
        let list = ok(&sandbox, words).json();
        list.as_array().unwrap().iter().map(|w| w["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["list", "--json"]), ["other", "task"]);
    assert_eq!(names(&["ls", "--json", "--status", "completed"]), ["task"]);
    refused(&sandbox, &["list", "--status", "odd"]);
    let text = ok(&sandbox, &["list"]).stdout;
    assert!(text.contains("completed") && text.contains("never"), "{text}");
    ok(&sandbox, &["reset", "task"]);
    let metadata = sandbox.metadata();
    assert_eq!(
        (&metadata["status"], &metadata["totalIterations"]),
        (&"in_progress".into(), &0.into())
    );
    assert!(sandbox.project().join(".agent/workspaces/task/.status.json").exists());
    // An unreadable one is listed with its error.
    sandbox.file(".agent/workspaces/other/.metadata.json", "{");
    assert!(ok(&sandbox, &["list"]).stdout.contains("not valid"));
    refused(&sandbox, &["run", "other"]);
}

#[test]
fn clean_and_archive() {
    let sandbox = Sandbox::new();
    let dir = sandbox.workspace("task", &[]);
    std::fs::write(dir.join("working/notes"), "n").unwrap();
    // Cannot ask without a terminal.
    refused(&sandbox, &["clean", "task"]);
    assert!(dir.exists());
    ok(&sandbox, &["clean", "task", "-f"]);
    assert!(!dir.exists());
    let list = ok(&sandbox, &["archive", "list", "--json"]).json();
    let name = list[0]["archiveName"].as_str().unwrap();
    assert!(name.starts_with("task-"), "{name}");
    assert_eq!(list[0]["originalName"], "task");
    assert!(ok(&sandbox, &["archive", "show", name]).stdout.contains(name));
    ok(&sandbox, &["archive", "restore", name]);
    assert!(dir.join("working/notes").exists() && !dir.join(".archived.json").exists());
    refused(&sandbox, &["archive", "restore", name]);
    ok(&sandbox, &["archive", "restore", name, "second"]);
    let shown = ok(&sandbox, &["show", "second", "--json"]).json();
    assert_eq!(shown["name"], "second");
    let called = ok(&sandbox, &["archive", "delete", name]);
    assert!(called.stdout.is_empty() && called.stderr.contains("--force"), "{}", called.snapshot());
    ok(&sandbox, &["archive", "show", name]);
    ok(&sandbox, &["archive", "rm", name, "-f"]);
    assert_eq!(ok(&sandbox, &["archive", "list", "--json"]).json(), json!([]));
    ok(&sandbox, &["clean", "task", "-f", "--no-archive"]);
    assert_eq!(ok(&sandbox, &["archive", "list", "--json"]).json(), json!([]));
}

#[test]
fn a_new_workspace_has_no_old_history() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    ok(&sandbox, &["run", "task"]);
    ok(&sandbox, &["clean", "task", "-f", "--no-archive"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.statuses(), "");
    ok(&sandbox, &["run", "task"]);
    assert_eq!(sandbox.statuses(), "1 completed");
}

#[test]
fn templates() {
    let sandbox = Sandbox::new();
    sandbox.workspace("task", &["--mode", "iterative", "-m", "9"]);
    ok(&sandbox, &["template", "save", "task", "mine", "-d", "What it is", "-t", "a,b", "-e", "4"]);
    refused(&sandbox, &["template", "save", "task", "mine"]);
    ok(&sandbox, &["tpl", "save", "task", "mine", "-f"]);
    ok(&sandbox, &["template", "save", "task", "for-all", "-g"]);
    let shown = ok(&sandbox, &["template", "show", "mine", "--json"]).json();
    assert_eq!((&shown["mode"], &shown["maxIterations"]), (&"iterative".into(), &9.into()));
    assert!(ok(&sandbox, &["template", "show", "mine"]).stdout.contains("Do the work"));
    let list = ok(&sandbox, &["template", "list", "--json"]).json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    ok(&sandbox, &["template", "use", "for-all", "fresh"]);
    let dir = sandbox.project().join(".agent/workspaces/fresh");
    assert!(std::fs::read_to_string(dir.join("INSTRUCTIONS.md")).unwrap().contains("$5 {{now}}"));
    let metadata: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join(".metadata.json")).unwrap()).unwrap();
    assert_eq!((&metadata["mode"], &metadata["maxIterations"]), (&"iterative".into(), &9.into()));
    refused(&sandbox, &["template", "use", "for-all", "fresh"]);
    refused(&sandbox, &["template", "delete", "for-all", "-f"]);
    ok(&sandbox, &["template", "delete", "for-all", "-g", "-f"]);
    let called = ok(&sandbox, &["template", "delete", "mine"]);
    assert!(called.stdout.is_empty() && called.stderr.contains("--force"), "{}", called.snapshot());
    refused(&sandbox, &["template", "delete", "none"]);
    ok(&sandbox, &["template", "rm", "mine", "-f"]);
    assert_eq!(ok(&sandbox, &["template", "list", "--json"]).json(), json!([]));
}

#[test]
fn settings_are_read_changed_and_checked() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "# mine\nagent:\n  timeout: 20m\n");
    sandbox.workspace("task", &[]);
    let get = |words: &[&str]| ok(&sandbox, words).stdout;
    assert_eq!(get(&["config", "timeout"]), "20m\n");
    assert_eq!(get(&["config", "agent.outputLevel"]), "progress\n");
    ok(&sandbox, &["config", "outputLevel", "quiet"]);
    ok(&sandbox, &["config", "claude.args", "--add", "--model"]);
    ok(&sandbox, &["config", "claude.args", "--add", "opus"]);
    ok(&sandbox, &["config", "verification.maxAttempts", "3"]);
    let text = std::fs::read_to_string(sandbox.project().join(".agent/config.yml")).unwrap();
    assert!(text.starts_with("# mine\n"), "{text}");
    assert_eq!(
        ok(&sandbox, &["config", "claude.args", "--json"]).json(),
        json!(["--model", "opus"])
    );
    ok(&sandbox, &["config", "claude.args", "--remove", "opus"]);
    assert_eq!(ok(&sandbox, &["config", "claude.args", "--json"]).json(), json!(["--model"]));
    // The workspace overrides the project, and the project the user.
    ok(&sandbox, &["config", "-g", "outputLevel", "verbose"]);
    ok(&sandbox, &["config", "-w", "task", "outputLevel", "verbose"]);
    assert_eq!(get(&["config", "outputLevel"]), "quiet\n");
    assert_eq!(get(&["config", "outputLevel", "-w", "task"]), "verbose\n");
    assert!(get(&["config", "--list", "-w", "task"]).contains("outputLevel = verbose\n"));
    ok(&sandbox, &["config", "outputLevel", "--unset"]);
    assert_eq!(get(&["config", "outputLevel"]), "verbose\n", "the user's");
    assert!(get(&["config", "--keys"]).contains("verification.command"));
    let before = std::fs::read_to_string(sandbox.project().join(".agent/config.yml")).unwrap();
    for wrong in [
        &["config", "no.such"][..],
        &["config", "timeout", "soon"],
        &["config", "outputLevel", "loud"],
        &["config", "verification.maxAttempts", "11"],
        &["config", "maxCost", "-1"],
        &["config", "timeout", "--add", "x"],
        &["config", "claude.args", "--remove", "absent"],
        &["config", "-w", "task", "workspacesDir", "x"],
        &["config", "-w", "task", "timeout", "soon"],
    ] {
        refused(&sandbox, wrong);
    }
    assert_eq!(
        std::fs::read_to_string(sandbox.project().join(".agent/config.yml")).unwrap(),
        before
    );
}

#[test]
fn layers_reach_the_loop() {
    let sandbox = Sandbox::new();
    sandbox.agent("outputLevel: quiet\nargs: [--from-project]", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(ok(&sandbox, &["run", "task"]).stdout, "");
    ok(&sandbox, &["config", "-w", "task", "outputLevel", "progress"]);
    ok(&sandbox, &["config", "-w", "task", "args", "--from-workspace"]);
    assert!(ok(&sandbox, &["run", "task", "--again"]).stdout.contains("Running iteration"));
    let argv = std::fs::read_to_string(sandbox.agent_dir().join("argv-2")).unwrap();
    assert!(argv.starts_with("--from-workspace\n"), "{argv}");
    for again in [&["agent", "run", "task"][..], &["agent", "run", "task", "--again"]] {
        let called = sandbox.retake_with(&[("RETAKE_AGENT__OUTPUTLEVEL", "quiet")], again);
        assert_eq!(called.stdout, "");
    }
    let called = ok(&sandbox, &["run", "task", "--output", "progress", "--again"]);
    assert!(called.stdout.contains("Running"));
}

#[test]
fn sessions_and_reports() {
    let sandbox = Sandbox::new();
    let setup = r#"case "$*" in *.prompt.md*) echo 'Do it all.' > .agent/workspaces/task/INSTRUCTIONS.md;; esac"#;
    sandbox.agent("", &[setup]);
    ok(&sandbox, &["init", "task"]);
    refused(&sandbox, &["edit", "task"]);
    let called = ok(&sandbox, &["setup", "task"]);
    assert!(called.stdout.contains("Next: retake agent run task"), "{}", called.snapshot());
    assert_eq!(sandbox.metadata()["setupIterations"], 1);
    assert!(!sandbox.project().join(".agent/workspaces/task/.prompt.md").exists());
    ok(&sandbox, &["edit", "task"]);
    assert_eq!(
        (&sandbox.metadata()["setupIterations"], &sandbox.metadata()["totalIterations"]),
        (&2.into(), &2.into())
    );

    let report = |result: &str| {
        format!(
            "start; for f in validation-report.md reports/verification-report.md; do printf 'Result: {result}\\n\\n## Issues\\n1. odd\\n' > \"$RETAKE_WORKSPACE_PATH/$f\"; done; result"
        )
    };
    sandbox.agent("", &[&report("PASS")]);
    ok(&sandbox, &["validate", "task"]);
    let verified = ok(&sandbox, &["verify", "task", "--depth", "deep", "--json"]).json();
    assert_eq!(verified["status"], "pass");
    assert!(sandbox.prompt(sandbox.calls()).contains("Depth: deep"));
    assert_eq!(sandbox.metadata()["verification"]["lastVerificationStatus"], "pass");
    sandbox.agent("", &[&report("FAIL")]);
    let called = sandbox.retake(&["agent", "verify", "task"]);
    assert_eq!(called.code, 1);
    assert!(
        called.stdout.contains("❌ Failed") && called.stdout.contains("odd"),
        "{}",
        called.snapshot()
    );
    assert_eq!(sandbox.retake(&["agent", "verify", "task", "-q"]).snapshot(), "exit 1\n");
    refused(&sandbox, &["verify", "task", "--depth", "total"]);
    // An old report is not mistaken for a new one.
    sandbox.agent("", &["start; result"]);
    assert!(refused(&sandbox, &["verify", "task"]).contains("no report"));
    // None of these is a loop.
    assert_eq!(sandbox.logs(), "");
    assert_eq!(sandbox.statuses(), "");
}

#[test]
fn prompts_of_the_project_replace_the_built_in_ones() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    std::fs::create_dir_all(sandbox.project().join(".agent/prompts/loop")).unwrap();
    sandbox.file(
        ".agent/prompts/loop/iteration.md",
        "MINE {{projectRoot}} {{workspacePath}} {{iteration}} {{instructions}}",
    );
    ok(&sandbox, &["run", "task"]);
    let root = sandbox.project();
    assert_eq!(
        sandbox.prompt(1).trim_end(),
        format!(
            "MINE {0} {0}/.agent/workspaces/task 1 Do the work for $5 {{{{now}}}}.",
            root.display()
        )
    );
}

#[test]
fn directories_can_be_chosen_by_options() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; progress 1 2; result"]);
    ok(&sandbox, &["init", "task", "--workspaces-dir", "ws", "-d", "0"]);
    sandbox.file("ws/task/INSTRUCTIONS.md", "x");
    ok(&sandbox, &["run", "task", "--workspaces-dir", "ws", "-m", "1"]);
    let shown = ok(&sandbox, &["show", "task", "--json", "--workspaces-dir", "ws"]).json();
    // Files that the loop writes do not count as the agent's work.
    assert_eq!(shown["iterations"][0]["filesCreated"], json!([]));
    assert_eq!(shown["iterations"][0]["progressDetected"], false);
}

#[test]
fn global_flags_work_before_and_after_the_command() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; say 'I look around'; complete; result"]);
    sandbox.workspace("task", &[]);
    for words in [&["--verbose", "list"][..], &["list", "--verbose"]] {
        let called = ok(&sandbox, words);
        let place = sandbox.project().join(".agent/workspaces");
        assert!(called.stderr.contains(&place.display().to_string()), "{}", called.snapshot());
        assert!(ok(&sandbox, &["list"]).stderr.is_empty());
    }
    for words in [&["--verbose", "run", "task"][..], &["run", "task", "--verbose", "--again"]] {
        assert!(ok(&sandbox, words).stdout.contains("I look around"));
    }
    refused(&sandbox, &["--verbose", "run", "task", "-q"]);
    let version = env!("CARGO_PKG_VERSION");
    for words in [&["--version"][..], &["list", "--version"], &["run", "--version"]] {
        assert!(ok(&sandbox, words).stdout.trim_end().ends_with(version));
    }
}

#[test]
fn a_task_comes_from_a_file_or_standard_input() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    let file = sandbox.file("task.md", "Mend the roof.\n");
    ok(&sandbox, &["init", "one", "--from", file.to_str().unwrap()]);
    let mut command = sandbox.command(crate::common::RETAKE);
    command.args(["agent", "init", "two", "--from", "-"]);
    command.stdin(std::fs::File::open(&file).unwrap());
    assert_eq!(crate::common::called(&mut command).code, 0);
    for name in ["one", "two"] {
        let path = sandbox.project().join(format!(".agent/workspaces/{name}/INSTRUCTIONS.md"));
        assert_eq!(std::fs::read_to_string(path).unwrap(), "Mend the roof.\n");
        assert_eq!(sandbox.retake(&["agent", "run", name]).code, 0);
    }
    // Nothing is created from an unreadable description.
    sandbox.file("empty", " \n");
    refused(&sandbox, &["init", "three", "--from", "empty"]);
    refused(&sandbox, &["init", "three", "--from", "missing"]);
    assert!(!sandbox.project().join(".agent/workspaces/three").exists());
}

#[test]
fn the_morning_after() {
    let sandbox = Sandbox::new();
    sandbox.git(&["init", "-q"]);
    let tests = r#"tool Bash '{"command":"cargo test"}'; returned 'running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n    b\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s' true"#;
    let grep = r#"tool Bash '{"command":"grep -r result ."}'; returned 'test result: ok. 900 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s' false"#;
    sandbox.agent(
        "",
        &[
            &format!("start; echo a > made; {tests}; {grep}; status '{{\"complete\":false,\"summary\":\"half of it\\\\nand more\"}}'; result 0.42"),
            "start; failed 400 'the door is stuck'",
        ],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["--no-delay", "-m", "2"]);
    assert!(
        called.stdout.contains("✓ 1  1 file  1 passed, 1 failed  $0.42  "),
        "{}",
        called.snapshot()
    );
    assert!(called.stdout.contains("✗ 2  0 files"), "{}", called.snapshot());
    let shown = ok(&sandbox, &["show", "task"]).stdout;
    let row = |start: &str| {
        let found = shown.lines().find(|line| line.trim_start().starts_with(start));
        found.unwrap_or_else(|| panic!("{start} in {shown}")).to_owned()
    };
    let first = row("1  ✓ completed");
    for part in ["$0.42", "1 (+1 -0)", "1 passed, 1 failed (1 new)", "half of it"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(row("2  ✗ failed").contains("the door is stuck"), "{shown}");
    assert!(shown.contains("tests       1 passed, 1 failed (iteration 1)"), "{shown}");
    let full = ok(&sandbox, &["show", "task", "1"]).stdout;
    for part in [
        "half of it",
        "and more",
        "A made",
        "Command: cargo test",
        "failing tests",
        "retake runs show",
    ] {
        assert!(full.contains(part), "{part}: {full}");
    }
    let json = sandbox.retake(&["agent", "show", "task", "2", "--json"]).json();
    assert_eq!(json["error"], "the door is stuck");
    assert!(json["prompt"].as_str().unwrap().len() > 10);
    refused(&sandbox, &["show", "task", "9"]);
}

#[test]
fn show_counts_the_lines_of_changed_files() {
    let sandbox = Sandbox::new();
    sandbox.git(&["init", "-q"]);
    let text = "start; printf 'b\\nd\\n' > kept; echo a > made; rm gone; result";
    // A binary file has no lines, so a sum would be too small.
    let binary = "start; printf 'x\\0y' > image; echo z >> kept; result";
    sandbox.agent("", &[text, binary]);
    sandbox.workspace("task", &[]);
    std::fs::write(sandbox.project().join("kept"), "a\nb\nc\n").unwrap();
    std::fs::write(sandbox.project().join("gone"), "1\n2\n3\n4\n").unwrap();
    assert_eq!(sandbox.run_agent(&["--no-delay", "-m", "2"]).code, 0);
    let shown = ok(&sandbox, &["show", "task"]).stdout;
    let row = |number: &str| {
        let found = shown.lines().find(|line| line.trim_start().starts_with(number));
        found.unwrap_or_else(|| panic!("{number} in {shown}")).to_owned()
    };
    assert!(row("1  ✓").contains("3 (+2 -6)"), "{shown}");
    let second = row("2  ✓");
    assert!(!second.contains("(+") && second.trim_end().ends_with(" 2"), "{shown}");
    let first = ok(&sandbox, &["show", "task", "1"]).stdout;
    for part in ["A made  +1 -0\n", "M kept  +1 -2\n", "D gone  +0 -4\n"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    let second = ok(&sandbox, &["show", "task", "2"]).stdout;
    assert!(second.contains("A image\n") && second.contains("M kept  +1 -0\n"), "{second}");
}
