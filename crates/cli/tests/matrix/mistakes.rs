//! Invalid input: each with its own message and a nonzero exit code.

use crate::env::Env;

#[test]
fn every_mistake_has_its_message() {
    let env = Env::with_commits(&["one"]);
    env.config("command: 'true'\niterations: 1\ncode: {refs: [v1]}\naxes: {n: [1, 2]}\n");
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["run", "--refs", "nope"],
            2,
            "choose from v1; --refs selects from code.refs: add it there",
        ),
        (&["run", "--axis", "node=1"], 2, "there is no axis node; choose from code, n"),
        (&["run", "--axis", "n"], 2, "write NAME=VALUE"),
        (&["run", "--append", "abc"], 2, "abc"),
        (&["run", "--append", "0"], 2, "0"),
        (&["run", "--append", "1", "--replace"], 2, "cannot be used with"),
        (&["run", "--until-sure", "x"], 2, "such as 5%"),
        (&["run", "--budget", "1m"], 2, "--until-sure"),
        (&["status", "-f", "missing.yml"], 2, "missing.yml"),
        (&["compare", "v1", "nope"], 2, "nope is not a value of any axis"),
        (&["compare", "v1"], 2, "<B>"),
        (&["compare", "n=1", "n=2", "--fail-if", "wrong"], 2, "is not a valid condition"),
        (&["compare", "n=1", "n=2", "--metric", "nope"], 2, "no run has reported nope"),
        (&["bisect", "--good", "v1", "--bad", "v1"], 2, "name the axis"),
        (&["bisect", "--axis", "x", "--good", "v1", "--bad", "v1"], 2, "there is no axis x"),
        (&["bisect", "--axis", "code", "--good", "v1", "--bad", "main"], 2, "must differ"),
        (&["bisect", "--axis", "code", "--good", "v1", "--bad", "no"], 2, "no: there is no such"),
        (&["history", "--ref", "no"], 2, "no: there is no such"),
        (&["bisect", "--axis", "n", "--good", "1", "--bad", "9"], 2, "9 is not one of the points"),
        (&["list-chrome", "--since", "2024-01-31"], 2, "has none"),
        (&["import", "nowhere"], 1, "there is no runs.jsonl"),
    ];
    for (arguments, code, message) in cases {
        let called = env.expect(*code, arguments);
        assert!(called.stderr.contains(message), "{arguments:?}: {}", called.snapshot());
    }
}

#[test]
fn every_bad_configuration_has_its_message() {
    let env = Env::with_commits(&["one"]);
    let missing = env.expect(2, &["run"]);
    assert!(missing.stderr.contains("there is no matrix.yml here"), "{}", missing.stderr);
    let cases = [
        ("iterations: 1\naxes: {n: [1]}\n", 2, "command is missing"),
        ("command: x\niterations: 1\nchrome: {versions: [120]}\n", 2, "write m120"),
        ("command: x\niterations: 1\naxes: {n: [1]}\nexclude: [{n: 1}]\n", 2, "no cell is left"),
        (
            "command: x\niterations: 1\ncode: {repo: ./no, refs: [v1]}\n",
            1,
            "there is no such directory",
        ),
        (
            "command: x\niterations: 1\ncode: {repo: /, refs: [v1]}\n",
            1,
            "is not in a git repository",
        ),
        (
            "command: 'true'\niterations: 1\nchrome: {versions: [/no/chrome]}\n",
            1,
            "there is no such program",
        ),
    ];
    for (text, code, message) in cases {
        env.config(text);
        let called = env.expect(code, &["run"]);
        assert!(called.stderr.contains(message), "{text}: {}", called.snapshot());
    }
}

#[test]
fn a_shallow_clone_is_named_as_the_reason() {
    let env = Env::with_commits(&["one", "two"]);
    let clone = env.outside("clone");
    let url = format!("file://{}", env.sandbox.project().display());
    let path = clone.display().to_string();
    env.git(&["clone", "-q", "--depth", "1", "--no-tags", &url, &path]);
    let first = env.git(&["rev-parse", "v1"]);
    env.config(&format!(
        "command: 'true'\niterations: 1\ncode: {{repo: {path}, refs: [main, {first}]}}\n"
    ));
    let ran = env.expect(1, &["run"]);
    assert!(ran.stderr.contains("shallow clone"), "{}", ran.stderr);
    assert!(ran.stderr.contains("1 run: 1 ok"), "{}", ran.stderr);
}

#[test]
fn a_metric_that_no_run_reports_is_no_answer() {
    let env = Env::with_commits(&["100", "100"]);
    env.config("command: 'echo metric: load=7'\niterations: 6\ncode: {refs: [v1, main]}\n");
    // Otherwise a gate with a typing error would never fail.
    let gate = ["run", "--metric", "laod", "--fail-if", "slower:5%"];
    let ran = env.expect(1, &gate);
    assert!(ran.stderr.contains("no run has reported laod; choose from "), "{}", ran.snapshot());
    assert!(ran.stderr.contains("load"), "{}", ran.snapshot());
    env.expect(1, &["run", "--metric", "laod", "--until-sure", "5%", "--budget", "1s"]);
    env.expect(0, &["run", "--metric", "load", "--fail-if", "slower:5%"]);
    let search = ["bisect", "--axis", "code", "--good", "v1", "--bad", "main", "--metric", "laod"];
    let searched = env.expect(1, &search);
    let said = "no run has reported laod, so nothing can be judged; choose from ";
    assert!(searched.stderr.contains(said), "{}", searched.snapshot());
    assert_eq!(searched.stdout, "");
}

#[test]
fn the_side_without_values_is_the_one_that_is_named() {
    let env = Env::with_commits(&["100", "0"]);
    env.config("command: 'test $(cat value) -gt 0'\niterations: 2\ncode: {refs: [v1, v2]}\n");
    env.expect(0, &["run", "-q"]);
    let compared = env.expect(0, &["compare", "v1", "v2"]).stdout;
    assert!(compared.contains("(v2 has no successful run that reports wall)"), "{compared}");
    let compared = env.expect(0, &["compare", "v2", "v1"]).stdout;
    assert!(compared.contains("(v2 has no successful run that reports wall)"), "{compared}");
}

#[test]
fn quiet_says_nothing_and_writes_what_was_asked_for() {
    let env = Env::bare();
    env.config("command: 'true'\niterations: 2\n");
    let ran = env.expect(0, &["run", "-q", "--export", "csv", "x.csv"]);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    assert!(env.sandbox.project().join("x.csv").exists());
    // Nothing is measured, so nothing disturbs it.
    let again = env.expect(0, &["run"]);
    assert!(again.stderr.starts_with("Done. Nothing was pending."), "{}", again.stderr);
}

#[test]
fn a_metric_that_the_processor_cannot_count_does_not_prevent_the_others() {
    let env = Env::bare();
    env.config(
        "command: 'true'\niterations: 2\nmetrics: [wall, instructions]\naxes: {n: [1, 2]}\n",
    );
    let ran = env.expect(0, &["run", "--metric", "instructions"]);
    // Machines with counters use them.
    let uncounted = ran.stderr.contains("instructions needs counters of the processor: ");
    assert_eq!(uncounted, ran.stderr.contains("; cpu is compared instead"), "{}", ran.snapshot());
    let compared = if uncounted { "cpu" } else { "instructions" };
    assert!(ran.stdout.starts_with(compared), "{}", ran.snapshot());
    let report = env.expect(0, &["report", "-o", "-"]).stdout;
    assert_eq!(report.contains("no run has reported instructions"), uncounted, "{report}");
    assert!(report.contains("<h2>wall"), "{report}");
    let asked = if uncounted { 2 } else { 0 };
    env.expect(asked, &["report", "--metric", "instructions", "-o", "-"]);
}
