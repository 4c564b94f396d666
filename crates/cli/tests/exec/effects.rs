//! The effects of a run: changed files, test results, and finding runs by them.

use crate::common::{Sandbox, on_disk};
use serde_json::json;

/// Prints the output of `cargo test` for these tests.
fn cargo(tests: &[(&str, bool)]) -> String {
    let mut text = format!("\nrunning {} tests\n", tests.len());
    for (name, passed) in tests {
        text += &format!("test {name} ... {}\n", if *passed { "ok" } else { "FAILED" });
    }
    let failed = tests.iter().filter(|(_, passed)| !passed).count();
    let passed = tests.len() - failed;
    let word = if failed == 0 { "ok" } else { "FAILED" };
    text += &format!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\n"
    );
    text
}

#[test]
fn changed_files_are_exact_and_runs_are_found_by_them() {
    let sandbox = Sandbox::new();
    sandbox.file(".gitignore", "built\n");
    sandbox.file("kept", "one\n");
    sandbox.file("edited", "one\ntwo\n");
    sandbox.file("gone", "bye\n");
    sandbox.file("old", "moved away\n");
    let script = "touch kept; printf 'one\\n2\\n3\\n' > edited; rm gone; mv old new; \
                  mkdir sub; echo x > sub/made; echo y > built";
    let run = sandbox.retake(&["exec", "--json", "--track", "--", "sh", "-c", script]).json();
    let effects = &run["effects"];
    assert_eq!(effects["filesCreated"], json!(["sub/made"]));
    assert_eq!(effects["filesModified"], json!(["edited"]));
    assert_eq!(effects["filesDeleted"], json!(["gone"]));
    assert_eq!(effects["filesRenamed"], json!([{"from": "old", "to": "new"}]));
    assert_eq!(effects["lineChanges"]["edited"], json!({"added": 2, "removed": 1}));
    assert_eq!(effects["progress"], json!({"detected": true, "reasons": ["files_changed"]}));
    assert_eq!(effects["testResults"], json!(null));

    let idle = sandbox.retake(&["exec", "--json", "--track", "--", "touch", "kept"]).json();
    assert_eq!(idle["effects"]["progress"], json!({"detected": false, "reasons": ["none"]}));
    let plain = sandbox.retake(&["exec", "--json", "--", "true"]).json();
    assert_eq!(plain.get("effects"), None);

    let command = run["command"].as_str().unwrap();
    for path in ["edited", "sub", "sub/made", "old", "new", "."] {
        assert_eq!(sandbox.listed(&["--changed", path]), [command], "{path}");
    }
    assert!(sandbox.listed(&["--changed", "kept"]).is_empty());
    let id = run["id"].as_str().unwrap();
    let stored = sandbox.retake(&["runs", "show", id, "--json"]).json();
    assert_eq!(&stored["effects"], effects);
    let shown = sandbox.retake(&["runs", "show", id]).stdout;
    assert!(
        shown.contains(
            "files       + sub/made  +1 -0\n            ~ edited  +2 -1\n            - gone  +0 -1\n            > old -> new\n"
        ),
        "{shown}"
    );
    assert_eq!(sandbox.retake(&["doctor"]).code, 0);
}

#[test]
fn another_directory_can_be_tracked_and_every_file_read() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.project().join("sub")).unwrap();
    let run = sandbox.retake(&[
        "exec",
        "--json",
        "--track=..",
        "--exact",
        "--cwd",
        "sub",
        "--",
        "touch",
        "x",
    ]);
    // Relative to the directory in which retake was called, like every other path on its command line.
    assert_eq!(run.code, 0, "{}", run.snapshot());
    let effects = run.json()["effects"].clone();
    assert_eq!(effects["filesCreated"], json!(["project/sub/x"]));
    assert_eq!(sandbox.listed(&["--changed", "sub/x"]).len(), 1);
    let refused = sandbox.retake(&["exec", "--track=nowhere", "--", "true"]);
    assert_eq!(refused.code, 125);
    assert!(refused.stderr.contains("nowhere: there is no such directory"));
    assert_eq!(sandbox.retake(&["exec", "--exact", "--", "true"]).code, 125);
}

#[test]
fn test_results_are_read_compared_and_have_a_history() {
    let sandbox = Sandbox::new();
    let run = |tests: &[(&str, bool)]| {
        sandbox.file("output", &cargo(tests));
        let failed = tests.iter().any(|(_, passed)| !passed);
        sandbox.file("code", if failed { "101" } else { "0" });
        let arguments = ["exec", "--json", "--tests", "cat output; exit $(cat code)"];
        sandbox.retake(&arguments).json()["effects"].clone()
    };
    let first = run(&[("a", true), ("b", false)]);
    let results = &first["testResults"];
    assert_eq!(results["framework"], "cargo");
    let numbers = ["total", "passed", "failed", "skipped"].map(|key| results[key].clone());
    assert_eq!(numbers, [2, 1, 1, 0].map(serde_json::Value::from));
    assert_eq!((&results["allPassed"], &results["successRate"]), (&json!(false), &json!(50.0)));
    assert_eq!(results["details"][1]["name"], "b");
    assert_eq!(results["details"][1]["status"], "failed");
    assert_eq!(first["progress"], json!({"detected": false, "reasons": ["none"]}));

    assert_eq!(
        run(&[("a", true), ("b", true)])["progress"],
        json!({"detected": true, "reasons": ["tests_newly_passing"]})
    );
    assert_eq!(
        run(&[("a", true), ("b", true)])["progress"],
        json!({"detected": false, "reasons": ["none"]})
    );
    assert_eq!(
        run(&[("a", false), ("b", true)])["progress"],
        json!({"detected": false, "reasons": ["tests_newly_failing"]})
    );

    assert_eq!(sandbox.listed(&["--tests-failed"]).len(), 2);
    let tests = sandbox.retake(&["tests", "--json"]).json();
    assert_eq!(tests[0]["name"], "a");
    assert_eq!((&tests[0]["runs"], &tests[0]["flips"]), (&json!(4), &json!(1)));
    assert_eq!(tests[0]["failingSince"], tests[0]["firstFailure"]);
    assert_eq!(tests[1]["status"], "passed");
    assert_eq!(sandbox.retake(&["tests", "b", "--json"]).json().as_array().unwrap().len(), 1);
    let table = sandbox.retake(&["tests"]).stdout;
    assert!(table.contains("+++x") && table.contains("x+++"), "{table}");
    let shown = sandbox.retake(&["runs", "show", "last"]).stdout;
    assert!(shown.contains("tests       1 passed, 1 failed, 0 skipped (cargo"), "{shown}");
    assert_eq!(
        sandbox.retake(&["tests", "nothing"]).snapshot(),
        "exit 0\nstderr: retake: no recorded test is called nothing; '*nothing*' also finds parts of names\n"
    );
}

#[test]
fn no_tests_are_not_success_and_a_compile_error_is_none() {
    let sandbox = Sandbox::new();
    let none = sandbox.retake(&["exec", "--json", "--tests", "--", "echo", "hello"]).json();
    assert_eq!(none["effects"]["testResults"], json!(null));
    sandbox.file("output", &cargo(&[]));
    let zero = sandbox.retake(&["exec", "--json", "--tests", "--", "cat", "output"]).json();
    let results = &zero["effects"]["testResults"];
    assert_eq!((&results["allPassed"], &results["successRate"]), (&json!(false), &json!(null)));
}

#[test]
fn secrets_do_not_reach_the_record_through_effects() {
    let sandbox = Sandbox::new();
    let script = "printf '\\nrunning 1 test\\ntest leaks_%s ... FAILED\\n\\nfailures:\\n\\n---- leaks_%s stdout ----\\n\
                  panicked: %s\\n\\n\\nfailures:\\n    leaks\\n\\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\\n\\n' \
                  $API_TOKEN $API_TOKEN $API_TOKEN; echo x > made-$API_TOKEN; exit 101";
    let run = sandbox.retake_with(
        &[("API_TOKEN", "hunter2hunter2")],
        &["exec", "--json", "--track", "--tests", "--", "sh", "-c", script],
    );
    assert!(!run.stdout.contains("hunter2hunter2"), "{}", run.stdout);
    let effects = run.json()["effects"].clone();
    assert_eq!(effects["filesCreated"], json!(["made-[redacted:API_TOKEN]"]));
    assert_eq!(effects["testResults"]["details"][0]["name"], "leaks_[redacted:API_TOKEN]");
    // Snapshots know files by their names, and this one is in the tree under that name.
    std::fs::remove_dir_all(sandbox.store().join("snapshots")).unwrap();
    assert!(!on_disk(&sandbox.store(), b"hunter2hunter2"));
}
