//! Test results of a real framework, which names only failing tests: their history, the
//! display of a failure, truncated output, and reports for continuous integration.

use std::os::unix::ffi::OsStrExt;

use crate::common::{RETAKE, Sandbox, Screen};
use serde_json::{Value, json};

/// A test case of Python's unittest with two tests; the first fails if the file `broken` exists.
const TWO_TESTS: &str = "import os, unittest\n\
    class Cart(unittest.TestCase):\n\
    \x20   def test_sum(self):\n\
    \x20       self.assertFalse(os.path.exists('broken'), 'it is broken')\n\
    \x20   def test_tax(self):\n\
    \x20       pass\n";

const UNITTEST: &str = "python3 -m unittest";

struct Project(Sandbox);

impl Project {
    fn new(tests: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.file("test_cart.py", tests);
        Self(sandbox)
    }

    fn run(&self, command: &str) -> Value {
        self.0.retake(&["exec", "--json", "--tests", command]).json()
    }

    fn results(&self, command: &str) -> Value {
        self.run(command)["effects"]["testResults"].clone()
    }

    /// Runs the tests once for each word.
    fn history(&self, runs: &[bool]) {
        for passes in runs {
            if *passes {
                drop(std::fs::remove_file(self.0.project().join("broken")));
            } else {
                self.0.file("broken", "");
            }
            let code = if *passes { 0 } else { 1 };
            assert_eq!(self.run(UNITTEST)["exitCode"], json!(code));
        }
    }

    fn tests(&self, filter: &[&str]) -> Value {
        self.0.retake(&[&["tests", "--json"], filter].concat()).json()
    }

    fn says(&self, filter: &[&str]) -> String {
        let called = self.0.retake(&[&["tests"], filter].concat());
        assert_eq!((called.code, called.stdout.as_str()), (0, ""), "{}", called.snapshot());
        called.stderr
    }
}

#[test]
fn a_green_run_that_names_no_test_ends_a_failure_and_is_a_flip() {
    let project = Project::new(TWO_TESTS);
    project.history(&[true]);
    assert_eq!(
        project.says(&[]),
        "retake: 1 run had tests but named none; most test runners name passing tests with -v\n"
    );
    project.history(&[false]);
    assert_eq!(project.tests(&["--failing"])[0]["name"], "test_cart.Cart.test_sum");
    assert_eq!(project.says(&["--flaky"]), "retake: no flaky test among 1\n");
    project.history(&[true]);
    assert_eq!(project.says(&["--failing"]), "retake: no failing test among 1\n");
    project.history(&[false, true]);

    let test = &project.tests(&["--flaky"])[0];
    assert_eq!((&test["flips"], &test["flaky"]), (&json!(3), &json!(true)));
    assert_eq!((&test["status"], &test["failingSince"]), (&json!("passed"), &json!(null)));
    let results: Vec<_> = test["results"].as_array().unwrap().iter().collect();
    let shown: Vec<_> = results.iter().map(|r| (&r["status"], &r["inferred"])).collect();
    let (failed, passed) = (json!("failed"), json!("passed"));
    let (named, inferred) = (json!(false), json!(true));
    assert_eq!(
        shown,
        [(&failed, &named), (&passed, &inferred), (&failed, &named), (&passed, &inferred)]
    );
    let one = project.0.retake(&["tests", "test_cart.Cart.test_sum"]).stdout;
    assert_eq!(one.matches("not failed").count(), 2, "{one}");
    // A pattern lists tests, however many match.
    let listed = project.0.retake(&["tests", "test_cart.*"]).stdout;
    assert!(listed.contains("HISTORY") && !listed.contains("not failed"), "{listed}");
    assert_eq!(project.0.retake(&["tests", "-n", "0"]).snapshot(), "exit 0\n");
    assert_eq!(
        project.says(&["nothing"]),
        "retake: no recorded test is called nothing; '*nothing*' also finds parts of names\n"
    );
    assert_eq!(project.says(&["nothing*"]), "retake: no recorded test matches nothing*\n");
    assert_eq!(
        project.says(&["test_cart.*", "--failing"]),
        "retake: no failing test among 1 that matches test_cart.*\n"
    );
    assert_eq!(
        project.says(&["--failing", "--flaky"]),
        "retake: no failing and flaky test among 1\n"
    );
}

#[test]
fn a_run_that_says_nothing_of_a_test_does_not_end_its_failure() {
    let project = Project::new(TWO_TESTS);
    project.history(&[false]);
    let failing = || project.tests(&["--failing"]).as_array().unwrap().len();
    assert_eq!(failing(), 1);
    // A different command may run different tests.
    project.run("python3 -m unittest test_cart.Cart.test_tax");
    assert_eq!(failing(), 1);
    // The same command with fewer tests, and none at all.
    project.0.file("test_cart.py", "import unittest\n");
    project.run(UNITTEST);
    assert_eq!(failing(), 1);
    // An interrupted run.
    let slow = TWO_TESTS.replace("pass", "import time; time.sleep(60)");
    project.0.file("test_cart.py", &slow);
    std::fs::remove_file(project.0.project().join("broken")).unwrap();
    project.0.retake(&["exec", "-q", "--tests", "--timeout", "1s", UNITTEST]);
    assert_eq!(failing(), 1);
    // Another test fails, and is named: so this one did not fail.
    project.0.file("test_cart.py", &TWO_TESTS.replace("pass", "self.fail('tax')"));
    project.run(UNITTEST);
    let still = project.tests(&["--failing"]);
    assert_eq!(still[0]["name"], "test_cart.Cart.test_tax");
    assert_eq!(failing(), 1);
    let table = project.0.retake(&["tests"]).stdout;
    let drawn: Vec<_> =
        table.lines().skip(1).filter_map(|row| row.split_whitespace().rev().nth(1)).collect();
    assert_eq!(drawn, ["x.", "x"], "{table}");
}

#[test]
fn progress_is_seen_although_no_test_is_named() {
    let project = Project::new(TWO_TESTS);
    project.history(&[false]);
    std::fs::remove_file(project.0.project().join("broken")).unwrap();
    let progress = || project.run(UNITTEST)["effects"]["progress"]["reasons"].clone();
    assert_eq!(progress(), json!(["tests_newly_passing"]));
    assert_eq!(progress(), json!(["none"]));
    project.0.file("broken", "");
    assert_eq!(progress(), json!(["tests_newly_failing"]));
}

#[test]
fn the_exception_of_a_failed_test_is_shown() {
    let deep = "import unittest\n\
        class Cart(unittest.TestCase):\n\
        \x20   def test_deep(self):\n\
        \x20       def f(n):\n\
        \x20           if n == 0: raise ValueError('at the bottom')\n\
        \x20           f(n - 1)  # a comment that makes the line of each frame of the traceback a long one\n\
        \x20       f(60)\n";
    let project = Project::new(deep);
    assert_eq!(project.run(UNITTEST)["exitCode"], 1);
    let shown = project.0.retake(&["runs", "show", "last"]).stdout;
    assert!(
        shown.contains("x test_cart.Cart.test_deep\n              ValueError: at the bottom\n"),
        "{shown}"
    );
    assert!(!shown.contains("Traceback"), "{shown}");
}

#[test]
fn a_timeout_names_the_test_that_was_running() {
    let hangs = TWO_TESTS.replace("pass", "import time; time.sleep(60)");
    let project = Project::new(&hangs);
    let arguments = ["exec", "--json", "--tests", "--timeout", "2s", "python3 -u -m unittest -v"];
    let run = project.0.retake(&arguments).json();
    let results = &run["effects"]["testResults"];
    assert_eq!(results["running"], json!(["test_cart.Cart.test_tax"]), "{run}");
    assert_eq!((&results["partial"], &results["passed"]), (&json!(true), &json!(1)));
    let shown = project.0.retake(&["runs", "show", "last"]).stdout;
    assert!(shown.contains("> test_cart.Cart.test_tax was running\n"), "{shown}");
}

/// What pytest prints until a test hangs.
const HANGS: &str = "=== test session starts ===\ncollected 3 items\n\n\
    tests/test_a.py::test_bad FAILED [ 33%]\ntests/test_a.py::test_good PASSED [ 66%]\n\
    tests/test_hang.py::test_hang ";

/// A step of a CI job that shows results also runs if nothing was started.
#[test]
fn a_summary_of_nothing_is_no_error() {
    let sandbox = Sandbox::new();
    let none = sandbox.retake(&["runs", "summary", "last", "--annotations", "github"]);
    assert_eq!((none.code, none.stdout.as_str()), (0, ""), "{}", none.snapshot());
    let said = "retake: nothing was recorded yet; there is nothing to summarise\n";
    assert_eq!(none.stderr, said);
}

#[test]
fn a_test_that_the_timeout_ended_is_an_error_everywhere() {
    let sandbox = Sandbox::new();
    sandbox.file("printed", HANGS);
    let command =
        ["exec", "-q", "--tests", "--timeout", "2s", "--", "sh", "-c", "cat printed; sleep 60"];
    assert_eq!(sandbox.retake(&command).code, 124);
    let (name, error) =
        ("tests/test_hang.py::test_hang", "running when the timeout of 2s ended the run");
    let report = sandbox.retake(&["runs", "export", "--format", "junit", "last"]).stdout;
    let case = format!("name=\"{name}\" time=\"0.000\"><error type=\"error\" message=\"{error}\">");
    assert!(report.contains(&case), "{report}");
    assert!(report.contains(" tests=\"3\" failures=\"1\" errors=\"1\" "), "{report}");
    assert!(report.contains("name=\"tests/test_a.py::test_good\""), "{report}");
    let summary = sandbox.retake(&["runs", "summary", "last"]).stdout;
    let line = format!("- ❌ {}: {error}\n", name.replace('_', "\\_"));
    assert!(summary.contains(&line), "{summary}");
    let annotated = sandbox.retake(&["runs", "summary", "last", "--annotations", "github"]).stdout;
    let title = format!("::error title=test failed%3A {}::{error}\n", name.replace(':', "%3A"));
    assert!(annotated.contains(&title), "{annotated}");
    let tests = sandbox.retake(&["tests", "--json", "--failing", "*hang*"]).json();
    assert_eq!(
        (&tests[0]["name"], &tests[0]["status"]),
        (&json!(name), &json!("error")),
        "{tests}"
    );
}

#[test]
fn a_run_without_test_results_says_so() {
    let sandbox = Sandbox::new();
    let called = sandbox.retake(&["exec", "-q", "--tests", "true"]);
    assert!(
        called.stderr.starts_with("retake: --tests: no test results found; "),
        "{}",
        called.stderr
    );
    let shown = sandbox.retake(&["runs", "show", "last"]).stdout;
    assert!(shown.contains("\ntests       no test results found\n"), "{shown}");
    assert!(!shown.contains("\nprogress "), "{shown}");
    assert_eq!(sandbox.retake(&["exec", "-q", "true"]).stderr, "");
    assert!(!sandbox.retake(&["runs", "show", "last"]).stdout.contains("\ntests "));
}

#[test]
fn the_report_that_a_command_line_names_is_read() {
    let sandbox = Sandbox::new();
    let report = "<testsuite><testcase classname='c' name='a'/></testsuite>";
    sandbox.file("write", &format!("#!/bin/sh\ncat > \"${{1#*=}}\" <<'.'\n{report}\n.\n"));
    for command in ["sh write --junitxml=mine.xml", "sh -c 'sh write --junit-xml=out.xml'"] {
        let run = sandbox.retake(&["exec", "--json", "--tests", command]).json();
        assert_eq!(run["effects"]["testResults"]["passed"], 1, "{command}: {run}");
    }
    let elsewhere = sandbox.retake(&["exec", "--json", "--tests", "sh write other.xml"]).json();
    assert_eq!(elsewhere["effects"]["testResults"], json!(null));
}

#[test]
fn results_that_were_not_counted_are_not_zero() {
    let sandbox = Sandbox::new();
    sandbox.file("printed", "=== test session starts ===\ncollected 3 items\n\n");
    sandbox.retake(&["exec", "-q", "--tests", "--timeout", "1s", "sh -c 'cat printed; sleep 60'"]);
    let shown = sandbox.retake(&["runs", "show", "last"]).stdout;
    assert!(shown.contains("\ntests       not counted: the run ended before"), "{shown}");
    let summary = sandbox.retake(&["runs", "summary", "last"]).stdout;
    assert!(summary.contains("not counted") && !summary.contains("| 0 |"), "{summary}");
}

#[test]
fn advice_fits_what_was_typed() {
    let sandbox = Sandbox::new();
    for (typed, expected) in [
        (
            &["exec", "--retries", "2", "--", "pytest"][..],
            "exec has no retries; `retake again last`",
        ),
        (&["exec", "--shard", "1/2", "--", "pytest"], "`retake matrix run --shard K/N`"),
        (&["exec", "--junit", "x.xml", "--", "pytest"], "`retake runs export --format junit last`"),
        (&["exec", "-timeout", "5", "--", "pytest"], "did you mean '--timeout'?"),
        (
            &["agent", "run", "t", "--timeout", "1s"],
            "`retake agent config timeout TIME` sets the timeout of an iteration; `--max-time` limits",
        ),
        (&["exec", "ls", "-l"], "a command that has options goes after '--'"),
        (&["runs", "show", "last", "--format", "json"], "--json"),
        (&["runs", "export", "-o", "x.xml"], "> FILE"),
        (&["runs", "logs", "last", "-n", "1"], "`--tail N` prints the last N lines, `--head N`"),
        (&["runs", "logs", "last", "--lines", "1"], "`--tail N`"),
        (&["version"], "`retake --version`"),
        (&["help", "run"], "did you mean exec, agent run, matrix run?"),
        (&["runs", "list", "--limit", "abc"], "a whole number is needed"),
    ] {
        let called = sandbox.retake(typed);
        assert!(called.stderr.contains(expected), "{typed:?}: {}", called.snapshot());
        let after = "a command that has options goes after";
        assert!(expected.contains(after) || !called.stderr.contains(after), "{}", called.stderr);
    }
    // What is put after `--` would name a run; secrets stay replaced.
    for typed in [
        &["runs", "logs", "last", "-n", "1"][..],
        &["runs", "show", "--verbose", "last"],
        &["again", "--tests", "last"],
        &["tests", "--last"],
        &["exec", "--no-record", "--", "true"],
        &["exec", "--no-reduce", "--", "true"],
        &["agent", "run", "--no-reduce", "x"],
        &["matrix", "run", "--no-record"],
    ] {
        let said = sandbox.retake(typed).stderr;
        assert!(said.contains("unexpected argument"), "{typed:?}: {said}");
        assert!(!said.contains("-- -") && !said.contains("redact"), "{typed:?}: {said}");
    }
    let meant = sandbox.retake(&["exec", "--no-redaction", "--", "true"]).stderr;
    assert!(meant.contains("'--no-redact'"), "{meant}");
    let text = sandbox.retake(&["runs", "search", "--verbose"]).stderr;
    assert!(text.contains("-- --verbose"), "{text}");
    let topic = sandbox.retake(&["help", "exit-code"]);
    assert!(topic.code == 0 && topic.stdout.starts_with("Exit codes"), "{}", topic.snapshot());
    let script = sandbox.file("env.sh", "");
    let refused = sandbox.retake(&["exec", "--", &script.display().to_string()]).stderr;
    assert!(refused.contains("/env.sh is not executable; "), "{refused}");
}

#[test]
fn a_row_that_a_warning_interrupted_is_counted_under_its_name() {
    let warns = TWO_TESTS.replace("pass", "import warnings; warnings.warn('old')");
    let project = Project::new(&warns);
    let results = project.results("python3 -W default -m unittest -v");
    let names: Vec<_> =
        results["details"].as_array().unwrap().iter().map(|test| &test["name"]).collect();
    assert_eq!(names, ["test_cart.Cart.test_sum", "test_cart.Cart.test_tax"]);
    assert_eq!(results["allPassed"], true);
}

#[test]
fn output_cut_by_a_pipe_is_partial_and_never_wrong() {
    let mut tests = "import unittest\nclass Many(unittest.TestCase):\n".to_owned();
    for n in 0..9 {
        let body = if n < 4 { "self.fail('no')" } else { "pass" };
        tests.push_str(&format!("    def test_{n}(self): {body}\n"));
    }
    let project = Project::new(&tests);
    let whole = project.results(UNITTEST);
    let numbers =
        |results: &Value| ["passed", "failed", "skipped"].map(|key| results[key].as_u64().unwrap());
    assert_eq!((numbers(&whole), &whole["partial"]), ([5, 4, 0], &json!(false)));
    for lines in [4, 6, 12, 20, 30] {
        let cut = project.results(&format!("{UNITTEST} 2>&1 | tail -{lines}"));
        assert_eq!(numbers(&cut), [5, 4, 0], "{lines}: {cut}");
        assert_eq!(cut["partial"], true, "{lines}: {cut}");
    }
    for lines in [1, 5, 12, 30] {
        let cut = project.results(&format!("{UNITTEST} 2>&1 | head -{lines}"));
        if cut.is_null() {
            continue;
        }
        let [passed, failed, _] = numbers(&cut);
        assert!(passed == 0 && failed <= 4, "{lines}: {cut}");
        assert_eq!(cut["partial"], true, "{lines}: {cut}");
    }
    // Nothing was cut.
    let through = project.results(&format!("{UNITTEST} 2>&1 | tail -200"));
    assert_eq!((numbers(&through), &through["partial"]), ([5, 4, 0], &json!(false)));
    let shown =
        project.0.sh(&format!("retake exec --json --tests -- sh -c '{UNITTEST} 2>&1 | tail -9'"));
    assert_eq!(shown.json()["effects"]["testResults"]["partial"], true);
}

#[test]
fn a_search_is_no_test_run() {
    let sandbox = Sandbox::new();
    sandbox.file("log", "====== 3 failed, 9 passed in 0.12s ======\n3 examples, 0 failures\n");
    for command in ["grep passed log", "grep -h examples log", "rg passed log | head -1"] {
        let run = sandbox.retake(&["exec", "--json", "--tests", command]).json();
        assert_eq!(run["effects"]["testResults"], json!(null), "{command}");
    }
    // Prose around a summary is not a summary.
    let prose = "echo I ran it and saw; echo '3 examples, 0 failures'; echo '5 passed in 0.1s'";
    let run = sandbox.retake(&["exec", "--json", "--tests", prose]).json();
    assert_eq!(run["effects"]["testResults"], json!(null));
}

#[test]
fn a_failed_run_on_a_terminal_ends_with_where_more_is() {
    let sandbox = Sandbox::new();
    let last_line = |arguments: &[&str]| {
        let mut command = sandbox.command(RETAKE);
        command.args(arguments);
        let (_, shown) = Screen::of(command, 200).end();
        shown.lines().last().unwrap_or_default().trim_end().to_owned()
    };
    let line = last_line(&["exec", "--", "sh", "-c", "echo oops; exit 3"]);
    let id = line.strip_prefix("retake: run ").and_then(|line| line.split(':').next()).unwrap();
    assert_eq!(line, format!("retake: run {id}: exit 3; `retake runs show {id}` shows more"));
    assert_eq!(sandbox.retake(&["runs", "show", id]).code, 0);
    assert!(last_line(&["exec", "--timeout", "100ms", "sleep 9"]).contains(": timed out; `retake"));
    assert!(last_line(&["exec", "no-such-program"]).contains(": not started; `retake"));
    assert_eq!(last_line(&["exec", "echo fine"]), "fine");
    // Elsewhere only the command's own output is printed.
    assert_eq!(sandbox.retake(&["exec", "--", "false"]).snapshot(), "exit 1\n");
}

#[test]
fn a_run_is_found_by_the_first_of_the_digits_that_lists_show() {
    let sandbox = Sandbox::new();
    let ids: Vec<String> = (0..3).map(|n| sandbox.recorded(&format!("echo {n}"))).collect();
    for id in &ids {
        let short = &id[id.len() - 8..];
        let mut found = 0;
        for length in 1..=8 {
            let prefix = &short[..length];
            let called = sandbox.retake(&["runs", "show", "--json", prefix]);
            if called.code == 0 {
                assert_eq!(called.json()["id"], id.as_str(), "{prefix}");
                found += 1;
            } else {
                assert!(called.stderr.contains("names several runs"), "{}", called.snapshot());
            }
        }
        assert!(found >= 4, "{short}");
    }
}

#[test]
fn different_names_that_are_not_utf8_print_differently() {
    let sandbox = Sandbox::new();
    let script =
        "printf a > \"$(printf 'x\\377')\"; printf a > \"$(printf 'x\\376')\"; printf a > 'x\\xfd'";
    let run = sandbox.retake(&["exec", "--json", "--track", "--", "sh", "-c", script]).json();
    let mut created: Vec<_> =
        run["effects"]["filesCreated"].as_array().unwrap().iter().map(Value::to_string).collect();
    created.sort();
    assert_eq!(created, [r#""x\\xfd""#, r#""x\\xfe""#, r#""x\\xff""#]);
    let shown = sandbox.retake(&["runs", "show", "last"]).stdout;
    for name in ["+ x\\xff  +1 -0", "+ x\\xfe  +1 -0", "+ x\\xfd  +1 -0"] {
        assert!(shown.contains(name), "{name}: {shown}");
    }
    let changed = |name: &[u8]| {
        let mut command = sandbox.command(RETAKE);
        command.args(["runs", "list", "--json", "--changed"]);
        command.arg(std::ffi::OsStr::from_bytes(name));
        crate::common::called(&mut command).json().as_array().unwrap().len()
    };
    assert_eq!((changed(b"x\xff"), changed(b"x\xf0")), (1, 0));
}
