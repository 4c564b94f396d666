//! Comparing commands in one line, and the files left by that.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::{Called, RETAKE, called};
use crate::env::Env;

/// A directory that is neither a project nor a repository.
fn plain() -> Env {
    let env = Env::bare();
    std::fs::remove_dir_all(env.sandbox.project().join(".agent")).unwrap();
    env
}

fn tried(env: &Env, code: i32, arguments: &[&str]) -> Called {
    let mut command = env.sandbox.command(RETAKE);
    // Apart from the temporary files of other tests.
    let tmp = env.outside("tmp");
    std::fs::create_dir_all(&tmp).unwrap();
    command.env("TMPDIR", &tmp).args(["matrix", "try"]).args(arguments);
    let called = called(&mut command);
    assert_eq!(called.code, code, "{arguments:?}: {}", called.snapshot());
    let left: Vec<_> = std::fs::read_dir(&tmp).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    called
}

fn names(answer: &Value) -> Vec<&str> {
    answer["cells"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect()
}

#[test]
fn commands_are_compared_at_each_value_and_nothing_stays_in_the_directory() {
    let env = plain();
    let log = env.outside("log");
    let echo = |name: &str| format!("sh -c 'echo {name} {{n}} $AXIS_N >> {}'", log.display());
    let (a, b) = (echo("a"), echo("b"));
    let arguments = [&a, &b, "--axis", "n=1,20", "--runs", "6", "--json", "-q"];
    let arguments = arguments.map(|text: &str| text);
    let answer = tried(&env, 0, &arguments).json();
    assert_eq!((answer["ok"].as_u64(), answer["failed"].as_u64()), (Some(24), Some(0)));
    // The commands for one value are adjacent, with the value filled in.
    let shown = names(&answer);
    assert_eq!(shown.len(), 4);
    assert!(shown[0].contains("echo a 1 ") && shown[1].contains("echo b 1 "), "{shown:?}");
    assert!(shown[3].contains("echo b 20 "), "{shown:?}");
    // Commands with each other, and not 1 with 20.
    let comparisons = answer["comparisons"].as_array().unwrap();
    assert_eq!(comparisons.len(), 2, "{comparisons:#?}");
    for comparison in comparisons {
        assert!(comparison["a"].as_str().unwrap().contains("echo a"));
        assert!(comparison["b"].as_str().unwrap().contains("echo b"));
    }
    let written = std::fs::read_to_string(&log).unwrap();
    let lines: BTreeSet<&str> = written.lines().collect();
    assert_eq!(lines, ["a 1 1", "a 20 20", "b 1 1", "b 20 20"].into());
    assert_eq!(written.lines().count(), 24);
    assert_eq!(std::fs::read_dir(env.sandbox.project()).unwrap().count(), 0);
    // Recorded in the record for directories without a project.
    let runs = env.sandbox.retake(&["runs", "list", "--json", "--limit", "100"]).stdout;
    let recorded = runs.matches("matrix.axis.command").count();
    assert_eq!(recorded, 24, "{runs}");
    // The next call is a new measurement.
    assert_eq!(tried(&env, 0, &arguments).json()["ok"].as_u64(), Some(24));
}

#[test]
fn a_command_can_be_compared_with_itself_and_have_a_name() {
    let env = plain();
    let answer = tried(&env, 0, &["true", "true", "-r", "2", "--json"]).json();
    assert_eq!(names(&answer), ["true", "true (2)"]);
    assert_eq!(answer["ok"].as_u64(), Some(4));
    let named = ["true", "false", "-n", "good", "--name", "bad", "-i", "-r", "2", "--json"];
    assert_eq!(names(&tried(&env, 0, &named).json()), ["good", "bad"]);
    let table = tried(&env, 0, &["true", "-r", "3"]);
    assert!(table.stdout.starts_with("wall") && table.stdout.contains("true"), "{}", table.stdout);
}

#[test]
fn commands_around_iterations_get_the_axis_values() {
    let env = plain();
    let log = env.outside("log").display().to_string();
    let write = |what: &str| format!("echo {what} {{n}} >> {log}");
    let (setup, prepare) = (write("setup"), write("prepare"));
    let (conclude, cleanup) = (write("conclude"), write("cleanup"));
    let command = write("run");
    let arguments = [
        command.as_str(),
        "--axis",
        "n=1,2",
        "-r",
        "2",
        "-w",
        "1",
        "-s",
        &setup,
        "-p",
        &prepare,
        "-C",
        &conclude,
        "-c",
        &cleanup,
    ];
    let answered = tried(&env, 0, &arguments);
    let written = std::fs::read_to_string(&log).unwrap();
    let count = |line: &str| written.lines().filter(|found| *found == line).count();
    for n in [1, 2] {
        let counts = ["setup", "prepare", "run", "conclude", "cleanup"]
            .map(|what| count(&format!("{what} {n}")));
        assert_eq!(counts, [1, 3, 3, 3, 1], "{written}");
    }
    // One command: its values are compared.
    assert!(answered.stdout.contains("against n=1"), "{}", answered.stdout);
    // A setup runs every time.
    tried(&env, 0, &arguments);
    let written = std::fs::read_to_string(&log).unwrap();
    assert_eq!(written.lines().filter(|line| *line == "setup 1").count(), 2);
}

#[test]
fn a_failure_is_an_error_unless_it_is_ignored() {
    let env = plain();
    let failed = tried(&env, 1, &["sh -c 'exit 3'", "true", "-r", "5"]);
    assert!(failed.stderr.contains("5 runs failed") && failed.stderr.contains("--ignore-failure"));
    for ignored in ["-i", "--ignore-failure=3", "--ignore-failure=1,3"] {
        let arguments = ["sh -c 'exit 3'", "true", "-r", "5", "--json", ignored];
        let answer = tried(&env, 0, &arguments).json();
        assert_eq!(answer["cells"][0]["summary"]["samples"].as_u64(), Some(5), "{answer:#}");
    }
    tried(&env, 1, &["sh -c 'exit 3'", "true", "-r", "5", "--ignore-failure=2"]);
    tried(&env, 2, &["true", "--ignore-failure=x"]);
}

#[test]
fn the_shell_is_used_as_asked_and_its_start_is_not_counted() {
    let env = plain();
    // A plain command has no shell, and no note about one.
    let without = tried(&env, 0, &["/bin/true", "-r", "3"]);
    assert!(!without.stderr.contains("start of a shell"), "{}", without.stderr);
    let with = tried(&env, 0, &["/bin/true", "-r", "3", "--shell", "default", "--json"]).json();
    assert!(with["shellStartMs"].as_f64().unwrap() > 0.0);
    assert!(with["cells"][0]["summary"]["min"].as_f64().unwrap() >= 0.0);
    let said = tried(&env, 0, &["/bin/true; /bin/true", "-r", "3"]);
    assert!(said.stderr.contains("the start of a shell, "), "{}", said.stderr);
    let none = tried(&env, 2, &["/bin/true; /bin/true", "-N"]);
    assert!(none.stderr.contains("needs a shell"), "{}", none.stderr);
    tried(&env, 2, &["/bin/true | cat", "--shell", "none"]);
}

#[test]
fn a_number_in_the_output_is_a_metric_and_a_missing_one_is_a_failure() {
    let env = plain();
    let rate = ["--metric", "rate=rate: ([0-9.]+)", "--higher", "-r", "6", "--json"];
    let with = |commands: [&'static str; 2]| [&commands[..], &rate[..]].concat();
    let answer = tried(&env, 0, &with(["echo rate: 5", "echo rate: 10 >&2"])).json();
    let change = &answer["comparisons"][0];
    assert_eq!(
        (change["metric"].as_str(), change["verdict"].as_str()),
        (Some("rate"), Some("faster"))
    );
    assert_eq!(change["medians"]["b"].as_f64(), Some(10.0));
    let answered = tried(&env, 1, &with(["echo rate: 5", "echo nothing"]));
    let answer = answered.json();
    assert_eq!((answer["ok"].as_u64(), answer["failed"].as_u64()), (Some(6), Some(6)));
    assert!(answer["cells"][1]["summary"].is_null(), "{answer:#}");
    assert!(answered.stderr.contains("there is no number for rate: "), "{}", answered.stderr);
}

#[test]
fn invalid_options_are_refused_before_anything_runs() {
    let env = plain();
    for (arguments, why) in [
        (&["true", "--axis", "n"][..], "NAME=VALUE"),
        (&["true", "--axis", "command=1"], "axis of that name"),
        (&["true", "--axis", "9=1"], "not a name for an axis"),
        (&["true", "--axis", "n=1,,2"], "empty value"),
        (&["true", "-n", "a", "-n", "b"], "2 names for 1 command"),
        (&["true", "--metric", "x=("], "unclosed group"),
        (&["true", "--until-sure", "2%"], "no two that differ"),
        (&[" "], "a command is empty"),
        (&["true", "--export", "xml", "f"], "choose from csv, markdown, json and hyperfine"),
    ] {
        let called = tried(&env, 2, arguments);
        assert!(called.stderr.contains(why), "{arguments:?}: {}", called.stderr);
    }
    let unused = tried(&env, 0, &["true", "--axis", "n=1,2", "-r", "1"]);
    assert!(unused.stderr.contains("no command has {n} or AXIS_N"), "{}", unused.stderr);
    assert_eq!(std::fs::read_dir(env.sandbox.project()).unwrap().count(), 0);
}

#[test]
fn a_failure_is_shown_with_its_reason_and_names_without_an_axis() {
    let env = plain();
    let failed = tried(&env, 1, &["no-such-command {m}", "true", "-r", "2"]);
    for part in [
        "the first failure: no-such-command {m}, exit code 127: ",
        "not found",
        "`retake runs logs ",
        "{m} in a command stays unchanged; --axis m=",
    ] {
        assert!(failed.stderr.contains(part), "{part}: {}", failed.stderr);
    }
    let warned = tried(&env, 0, &["echo {n} {m} $AXIS_N", "-r", "1", "--axis", "n=1"]);
    assert!(
        warned.stderr.starts_with("retake: {m} in a command stays unchanged; there is --axis n"),
        "{}",
        warned.stderr
    );
    let fine = tried(&env, 0, &["echo | awk '{print}'", "-r", "1", "--axis", "n=1"]);
    assert!(!fine.stderr.contains("{print} in a command"), "{}", fine.stderr);
    let unknown = tried(&env, 1, &["true", "--metric", "nope", "-r", "2"]);
    let said = "there is no number for nope: the command did not report it; it reported ";
    assert_eq!(unknown.stderr.matches(said).count(), 1, "{}", unknown.stderr);
}

#[test]
fn several_commands_of_a_file_are_kept_and_named() {
    let env = Env::bare();
    env.config("commands: ['echo {n}', {name: two, command: 'echo {n}{n}'}]\niterations: 2\naxes: {n: [1, 2]}\n");
    env.expect(0, &["run", "-q"]);
    assert_eq!(env.counts(), [(2, 0, 0); 4]);
    // Nothing is pending, unlike after `try`.
    assert_eq!(env.expect(0, &["run", "--json"]).json()["ok"].as_u64(), Some(0));
    let again = env.expect(0, &["run", "--append", "1", "--axis", "command=two", "--json"]).json();
    assert_eq!(names(&again), ["two n=1", "two n=2"]);
}
