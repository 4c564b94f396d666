//! A metric over the commits of a branch, and gates against one.

use serde_json::Value;

use crate::env::Env;

/// A metric that depends on the commit and on the machine, with a little noise.
fn load(env: &Env, machine: u32, refs: &str) {
    let level = env.outside("level");
    std::fs::write(&level, machine.to_string()).unwrap();
    env.config(
        &format!(
            "command: 'echo \"metric: load=$(( $(cat value) * $(cat {}) + RANDOM_OF_RUN )) ms\"'\n\
         iterations: 10\ncode: {{refs: [{refs}]}}\n",
            level.display()
        )
        .replace("RANDOM_OF_RUN", "ITERATION * 7 % 10"),
    );
}

fn history(env: &Env, more: &[&str]) -> Value {
    let arguments = [&["history", "--metric", "load", "--json"], more].concat();
    env.expect(0, &arguments).json()
}

fn changes(json: &Value) -> Vec<(String, String)> {
    let text = |change: &Value, key: &str| change[key].as_str().unwrap().to_owned();
    let changes = json["series"][0]["changes"].as_array().unwrap();
    changes.iter().map(|one| (text(one, "subject"), text(one, "evidence"))).collect()
}

#[test]
fn a_history_shows_every_commit_ever_measured_and_where_it_changed() {
    let env = Env::with_commits(&["100", "101", "100", "130", "131", "130"]);
    load(&env, 10, "v1, v2, v4, v6");
    env.expect(0, &["run", "-q"]);
    // A session of another day and another configuration file, on a slower machine.
    load(&env, 12, "v1, v3");
    std::fs::rename(
        env.sandbox.project().join("matrix.yml"),
        env.sandbox.project().join("other.yml"),
    )
    .unwrap();
    env.expect(0, &["run", "-q", "-f", "other.yml", "--baseline", "again"]);
    load(&env, 12, "v6");
    let json = history(&env, &[]);
    let commits = json["series"][0]["commits"].as_array().unwrap();
    let subjects: Vec<&str> = commits.iter().map(|one| one["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, ["100", "101", "100", "130", "130"], "in the order of the branch: {json}");
    assert_eq!(commits[0]["sessions"], serde_json::json!([1, 2]));
    assert_eq!(commits[0]["summary"]["samples"], 20);
    assert_eq!((&json["lookedAt"], &json["unit"]), (&6.into(), &"ms".into()));
    assert_eq!(changes(&json), [("130".to_owned(), "same_sessions".to_owned())]);
    let change = &json["series"][0]["changes"][0];
    assert!((1.28..1.32).contains(&change["ratio"].as_f64().unwrap()), "{change}");
    assert_eq!((&change["verdict"], &change["between"]), (&"slower".into(), &0.into()));

    let text = env.expect(0, &["history", "--metric", "load"]);
    let lines: Vec<&str> = text.stdout.lines().collect();
    assert_eq!(lines[0], "load on HEAD: 5 of 6 commits, 2 sessions", "{}", text.stdout);
    assert_eq!(lines[1].chars().count(), 5, "{}", text.stdout);
    assert!(text.stdout.contains("load is slower since "), "{}", text.stdout);
    let of_v4 = lines.iter().find(|line| line.ends_with(" 130")).unwrap();
    assert!(of_v4.contains("+2") || of_v4.contains("+3"), "{}", text.stdout);
    // An older branch ends earlier.
    let older = history(&env, &["--ref", "v3"]);
    assert_eq!(older["series"][0]["commits"].as_array().unwrap().len(), 3);
    assert_eq!(changes(&older), []);
}

#[test]
fn a_machine_that_changes_between_sessions_is_no_change_of_the_code() {
    let env = Env::with_commits(&["100", "100", "100", "100", "100", "100", "100"]);
    for (at, machine) in [10, 10, 10, 13, 13, 13].into_iter().enumerate() {
        // Every session measures a commit and the one before it.
        load(&env, machine, &format!("v{}, v{}", at + 1, at + 2));
        env.expect(0, &["run", "-q", "--baseline", "again"]);
    }
    assert_eq!(changes(&history(&env, &[])), []);
}

#[test]
fn changes_seen_only_between_sessions_are_marked() {
    let env = Env::with_commits(&["100", "101", "100", "99", "130", "131", "130", "129"]);
    for at in 1..=8 {
        load(&env, 10, &format!("v{at}"));
        env.expect(0, &["run", "-q"]);
    }
    let json = history(&env, &[]);
    assert_eq!(changes(&json), [("130".to_owned(), "different_sessions".to_owned())], "{json}");
    let text = env.expect(0, &["history", "--metric", "load"]);
    assert!(text.stdout.contains("load may be slower since "), "{}", text.stdout);
    assert!(text.stdout.contains("it may be the machine"), "{}", text.stdout);
    assert!(text.stderr.contains("retake matrix bisect --axis code --good "), "{}", text.stderr);
}

#[test]
fn a_history_of_few_runs_says_how_many_are_missing_and_what_was_not_measured() {
    let env = Env::with_commits(&["100", "100", "130"]);
    load(&env, 10, "v1, v3");
    env.expect(0, &["run", "-q", "--iterations", "5"]);
    let text = env.expect(0, &["history", "--metric", "load"]);
    for part in [
        "not sure whether load changed: 5 runs of a commit are too few for a change point; 2 more",
        "1 commit between ",
        "a 95 % interval needs at least 6 runs",
    ] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    let (good, bad) = (env.git(&["rev-parse", "v1"]), env.git(&["rev-parse", "v3"]));
    let search = format!("--good {} --bad {} --metric load", &good[..7], &bad[..7]);
    assert!(text.stderr.contains(&search), "{}", text.stderr);
    env.expect(0, &["run", "-q", "--iterations", "7", "--replace"]);
    let text = env.expect(0, &["history", "--metric", "load"]);
    assert!(text.stdout.contains("load is slower since "), "7 suffice: {}", text.stdout);
}

#[test]
fn without_a_possible_change_a_history_names_no_search() {
    let env = Env::with_commits(&["100", "100", "100"]);
    load(&env, 10, "v1, v3");
    env.expect(0, &["run", "-q"]);
    let text = env.expect(0, &["history", "--metric", "load"]);
    assert!(text.stdout.contains("no conclusive change of load"), "{}", text.stdout);
    assert!(text.stdout.contains("1 commit between "), "{}", text.stdout);
    assert!(!text.stderr.contains("matrix bisect"), "{}", text.stderr);
}

#[test]
fn a_history_needs_commits_and_results() {
    let env = Env::bare();
    env.config("command: 'true'\niterations: 1\n");
    let refused = env.expect(2, &["history"]);
    assert!(refused.stderr.contains("has no code"), "{}", refused.stderr);
    let env = Env::with_commits(&["1"]);
    env.config("command: 'true'\niterations: 1\ncode: {refs: [v1]}\n");
    let nothing = env.expect(1, &["history"]);
    assert!(nothing.stderr.contains("no commit of HEAD has a result"), "{}", nothing.stderr);
    env.expect(0, &["run", "-q"]);
    let unknown = env.expect(2, &["history", "--metric", "fps"]);
    assert!(
        unknown.stderr.contains("no run has reported fps; choose from wall"),
        "{}",
        unknown.stderr
    );
    let unknown = env.expect(2, &["history", "--ref", "nowhere"]);
    assert!(unknown.stderr.contains("no such branch"), "{}", unknown.stderr);
}

/// `main` was measured on another day, when the machine was faster; the change is on a branch.
fn work_on_a_branch(value: &str) -> Env {
    let env = Env::with_commits(&["100"]);
    load(&env, 10, "main");
    env.expect(0, &["run", "-q"]);
    env.git(&["checkout", "-q", "-b", "work"]);
    env.sandbox.file("value", value);
    env.git(&["commit", "-q", "--allow-empty", "-am", value]);
    load(&env, 12, "HEAD");
    env
}

#[test]
fn a_gate_against_a_branch_measures_its_tip_beside_the_cells_of_the_run() {
    let env = work_on_a_branch("100");
    let gate = ["run", "--metric", "load", "--fail-if", "slower:5%@main", "--json"];
    let json = env.expect(0, &gate).json();
    assert_eq!(json["ok"], 20, "both were run in turn: {json}");
    let comparison = &json["comparisons"][0];
    assert_eq!(
        (&comparison["a"], &comparison["b"], &comparison["verdict"]),
        (&"main".into(), &"HEAD".into(), &"same".into())
    );
    assert_eq!(env.expect(0, &gate).json()["ok"], 0, "once is enough");
}

#[test]
fn a_gate_against_a_branch_fails_for_what_is_slower_than_its_tip() {
    let env = work_on_a_branch("110");
    for gate in ["slower:5%@main", "slower:5%!@main"] {
        let ran = env.expect(1, &["run", "--metric", "load", "--fail-if", gate]);
        assert!(
            ran.stderr.contains("--fail-if: HEAD is slower than main in load"),
            "{}",
            ran.stderr
        );
        assert!(ran.stdout.contains("against main"), "{}", ran.stdout);
    }
    env.expect(0, &["run", "-q", "--metric", "load", "--fail-if", "slower:15%@main"]);
    env.expect(0, &["run", "-q", "--metric", "load", "--fail-if", "faster:5%@main"]);
    env.expect(0, &["run", "-q", "--metric", "load", "--fail-if", "unsure@main"]);
    // The same with --until-sure.
    let sure =
        ["run", "-q", "--metric", "load", "--until-sure", "2%", "--fail-if", "slower:5%@main"];
    env.expect(1, &sure);
}

#[test]
fn gates_against_branches_say_what_they_need() {
    let env = work_on_a_branch("100");
    let missing = env.expect(1, &["run", "--metric", "load", "--fail-if", "slower:5%@nowhere"]);
    assert!(
        missing.stderr.contains("not run: nowhere: there is no such branch"),
        "{}",
        missing.stderr
    );
    let stored = env.expect(2, &["compare", "--metric", "load", "--fail-if", "slower:5%@main"]);
    assert!(stored.stderr.contains("main is not in code.refs"), "{}", stored.stderr);
    load(&env, 12, "main, HEAD");
    env.expect(0, &["run", "-q", "--baseline", "again"]);
    env.expect(0, &["compare", "--metric", "load", "--fail-if", "slower:5%@main"]);
    let both = ["compare", "main", "HEAD", "--metric", "load", "--fail-if", "slower:5%@main"];
    let both = env.expect(2, &both);
    assert!(both.stderr.contains("leave out @main"), "{}", both.stderr);
    let bare = Env::bare();
    bare.config("command: 'true'\niterations: 1\naxes: {n: [1, 2]}\n");
    let refused = bare.expect(2, &["run", "--fail-if", "slower:5%@main"]);
    assert!(refused.stderr.contains("has no code"), "{}", refused.stderr);
}
