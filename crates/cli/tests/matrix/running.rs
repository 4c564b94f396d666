//! What `matrix run` runs, and what it leaves alone.

use std::collections::BTreeSet;

use crate::env::Env;

const GRID: &str = "\
command: |
  cat value; echo \"$AXIS_KIND #$ITERATION\"
iterations: 3
code: {refs: [v1, main]}
axes: {kind: [small, large]}
";

#[test]
fn every_cell_runs_in_its_worktree_with_its_variables_and_only_once() {
    let env = Env::with_commits(&["one", "two"]);
    env.config(GRID);
    let ran = env.expect(0, &["run"]);
    assert!(ran.stderr.contains("  [ 1/12] "), "{}", ran.stderr);
    let line = regex::Regex::new(
        r"(?m)^  \[12/12\] (v1|main) \([0-9a-f]{7}\) × kind=(small|large) #2    \d+ms  exit:0$",
    );
    assert!(line.unwrap().is_match(&ran.stderr), "{}", ran.stderr);
    assert!(ran.stderr.contains("Done. 12 runs: 12 ok, 0 failed."), "{}", ran.stderr);

    let status = env.status();
    assert_eq!(status["order"], "interleaved");
    assert!(status["seed"].is_u64());
    for cell in status["cells"].as_array().unwrap() {
        let reference = cell["code"].as_str().unwrap();
        assert_eq!(cell["sha"], env.git(&["rev-parse", reference]));
        for run in cell["runs"].as_array().unwrap() {
            let logs = env.sandbox.retake(&["runs", "logs", run["id"].as_str().unwrap()]);
            let value = if reference == "v1" { "one" } else { "two" };
            let kind = cell["axes"]["kind"].as_str().unwrap();
            assert_eq!(logs.stdout, format!("{value}{kind} #{}\n", run["iteration"]));
        }
    }
    let grid = env.expect(0, &["status"]).stdout;
    assert!(grid.starts_with("code"), "{grid}");
    assert_eq!(grid.matches("3/3 ✓").count(), 4, "{grid}");

    let again = env.expect(0, &["run"]);
    assert!(again.stderr.contains("Nothing was pending"), "{}", again.stderr);
    assert_eq!(env.ids().len(), 12);
}

#[test]
fn the_contract_is_set_and_the_rest_is_inherited() {
    let env = Env::with_commits(&["one"]);
    env.config(
        "command: env; pwd\niterations: 1\ncode: {refs: [v1]}\naxes: {node-version: [20]}\nenv: {MINE: 1, ITERATION: no}\n",
    );
    let mut command = env.sandbox.command(crate::common::RETAKE);
    command.args(["matrix", "run"]).env("INHERITED", "yes").env("CODE_REF", "wrong");
    command.env("GIT_DIR", "/nowhere");
    let ran = crate::common::called(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let id = env.ids().into_iter().next().unwrap();
    let output = env.sandbox.retake(&["runs", "logs", &id]).stdout;
    let sha = env.git(&["rev-parse", "v1"]);
    let directory = output.lines().last().unwrap().to_owned();
    let worktrees = env.sandbox.project().join(".agent/worktrees");
    assert!(directory.starts_with(&format!("{}/{sha}-", worktrees.display())), "{directory}");
    for expected in [
        "INHERITED=yes".to_owned(),
        "MINE=1".to_owned(),
        "ITERATION=0".to_owned(),
        "CODE_REF=v1".to_owned(),
        format!("CODE_SHA={sha}"),
        format!("CODE_DIR={directory}"),
        "AXIS_NODE_VERSION=20".to_owned(),
    ] {
        assert!(output.lines().any(|line| line == expected), "{expected}: {output}");
    }
    assert!(!output.contains("GIT_DIR="), "a hook's repository is not the worktree");
    assert!(!output.contains("CHROME_"), "{output}");
}

#[test]
fn workers_share_nothing() {
    let env = Env::with_commits(&["one"]);
    env.config(
        "command: ls -A $RETAKE_TMP; touch $RETAKE_TMP/x; echo $RETAKE_TMP $CODE_DIR\niterations: 24\nworkers: 4\ncode: {refs: [v1]}\n",
    );
    env.expect(0, &["run", "--quiet"]);
    assert_eq!(env.counts(), [(24, 0, 0)]);
    let mut places = BTreeSet::new();
    for id in env.ids() {
        let output = env.sandbox.retake(&["runs", "logs", &id]).stdout;
        assert_eq!(output.lines().count(), 1, "it was empty: {output}");
        places.insert(output);
    }
    assert!((1..=4).contains(&places.len()), "{places:?}");
    let trees: BTreeSet<&str> = places.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(trees.len(), places.len(), "{places:?}");
    assert!(!env.sandbox.project().join(".agent/tmp").exists());
}

#[test]
fn failing_iterations_are_results_and_are_tried_again() {
    let env = Env::with_commits(&["one", "two"]);
    env.config("command: test $ITERATION = 0\niterations: 2\ncode: {refs: [v1, v2]}\n");
    let ran = env.expect(0, &["run"]);
    assert!(ran.stderr.contains("2 ok, 2 failed"), "{}", ran.stderr);
    assert_eq!(env.counts(), [(1, 1, 0), (1, 1, 0)]);
    let grid = env.expect(0, &["status", "--failures"]).stdout;
    assert!(grid.contains("1/2 ✗ (1 failed)") && grid.contains("retake runs logs"), "{grid}");
    // Now only the failed ones are left, and all of them fail: the cells are as before, and so is
    // the exit code.
    let ran = env.expect(0, &["run", "--json"]);
    let json = ran.json();
    assert_eq!((&json["total"], &json["failed"]), (&2.into(), &2.into()));
    assert!(ran.stderr.contains("`retake matrix status --failures`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("the first failure: v"), "{}", ran.stderr);
    for shard in [&[][..], &["--shard", "1/1"]] {
        let gate = [&["run", "--fail-if", "failed"], shard].concat();
        let ran = env.expect(1, &gate);
        assert!(ran.stderr.contains("--fail-if: 2 iterations failed"), "{}", ran.stderr);
    }
    env.config("command: 'false'\niterations: 2\ncode: {refs: [v1, v2]}\n");
    for _ in 0..2 {
        let ran = env.expect(1, &["run"]);
        assert!(ran.stderr.contains("every iteration failed"), "{}", ran.stderr);
    }
}

#[test]
fn a_first_configuration_names_the_next_step_and_a_failed_warmup_its_reason() {
    let env = Env::bare();
    let made = env.expect(0, &["init"]);
    assert!(made.stderr.contains("next: set command in matrix.yml"), "{}", made.stderr);
    let written = std::fs::read_to_string(env.sandbox.project().join("matrix.yml")).unwrap();
    assert!(written.contains("\n# code:\n#   repo: .\n#   refs: [main]\n"), "{written}");
    env.config("command: 'echo no such test >&2; exit 3'\nwarmup: 1\niterations: 1\n");
    let ran = env.expect(1, &["run"]);
    let why = "the command: its warmup failed: no such test; see `retake runs logs ";
    assert!(ran.stderr.contains(why), "{}", ran.stderr);
    let env = Env::with_commits(&["one"]);
    let made = env.expect(0, &["init"]);
    assert!(made.stderr.contains("next: set command and code.refs in "), "{}", made.stderr);
}

#[test]
fn a_missing_ref_and_a_failing_setup_do_not_affect_the_other_cells() {
    let env = Env::with_commits(&["one", "two", "three"]);
    env.config(
        "command: cat made value\nsetup: grep -v two value > made\niterations: 1\ncode: {refs: [v1, nope, v2, v3]}\n",
    );
    let ran = env.expect(1, &["run", "--json"]);
    let json = ran.json();
    assert_eq!((&json["ok"], &json["failed"]), (&2.into(), &0.into()), "{json}");
    let missing = json["unavailable"].as_array().unwrap();
    assert!(missing[0].as_str().unwrap().contains("nope: there is no such branch"), "{json}");
    assert!(missing[1].as_str().unwrap().starts_with("v2 ("), "{json}");
    assert!(ran.stderr.contains("✗  exit:1"), "{}", ran.stderr);

    // Done once for each worktree: its result stays, and is not created again.
    env.config(
        "command: cat made value\nsetup: grep -v two value > made\niterations: 2\ncode: {refs: [v1]}\n",
    );
    let ran = env.expect(0, &["run"]);
    assert!(!ran.stderr.contains("[setup]"), "{}", ran.stderr);
    // A different text is a different setup.
    env.config("command: cat made\nsetup: echo new > made\niterations: 1\ncode: {refs: [v1]}\n");
    let ran = env.expect(0, &["run"]);
    assert!(ran.stderr.contains("[setup]"), "{}", ran.stderr);
}

#[test]
fn an_edited_command_starts_over_and_mixes_with_nothing() {
    let env = Env::with_commits(&["one"]);
    let config =
        |command: &str| format!("command: {command}\niterations: 2\ncode: {{refs: [v1]}}\n");
    env.config(&config("echo a"));
    env.expect(0, &["run"]);
    let before = env.ids();
    env.config(&config("echo b"));
    assert_eq!(env.counts(), [(0, 0, 2)]);
    env.config(&(config("echo a") + "env: {X: 1}\n"));
    assert_eq!(env.counts(), [(0, 0, 2)]);
    env.config(&config("echo a"));
    assert_eq!(env.counts(), [(2, 0, 0)]);
    assert_eq!(env.ids(), before);
    // A branch that moved is a different commit.
    env.config("command: echo a\niterations: 2\ncode: {refs: [main]}\n");
    assert_eq!(env.counts(), [(2, 0, 0)], "main is v1");
    env.git(&["commit", "-q", "--allow-empty", "-m", "later"]);
    assert_eq!(env.counts(), [(0, 0, 2)]);
}

#[test]
fn replaced_runs_go_when_their_successors_are_there() {
    let env = Env::with_commits(&["one"]);
    let broken = env.outside("broken");
    env.config(&format!(
        "command: test ! -e {}\niterations: 2\ncode: {{refs: [v1]}}\n",
        broken.display()
    ));
    env.expect(0, &["run"]);
    let old = env.ids();
    std::fs::write(&broken, "").unwrap();
    env.expect(1, &["run", "--replace"]);
    assert!(old.is_subset(&env.ids()), "nothing new succeeded, so the old stays");
    assert_eq!(env.counts(), [(2, 0, 0)]);
    std::fs::remove_file(&broken).unwrap();
    env.expect(0, &["run", "--replace"]);
    assert!(old.is_disjoint(&env.ids()));
    assert_eq!(env.counts(), [(2, 0, 0)]);
    env.expect(0, &["run", "--append", "3"]);
    assert_eq!(env.counts(), [(5, 0, 0)]);
    assert!(env.expect(0, &["status"]).stdout.contains("5/2 ✓"));
}

#[test]
fn filters_leave_other_cells_alone() {
    let env = Env::with_commits(&["one", "two"]);
    env.config(GRID);
    env.expect(0, &["run", "--refs", "v1", "--axis", "kind=small"]);
    assert_eq!(env.counts(), [(3, 0, 0), (0, 0, 3), (0, 0, 3), (0, 0, 3)]);
}

#[test]
fn cleaning_removes_worktrees_and_keeps_results() {
    let env = Env::with_commits(&["one"]);
    env.config("command: cat value; echo dirty > value\niterations: 1\ncode: {refs: [v1]}\n");
    env.expect(0, &["run"]);
    env.expect(0, &["run", "--append", "1"]);
    for id in env.ids() {
        assert_eq!(env.sandbox.retake(&["runs", "logs", &id]).stdout, "one");
    }
    let cleaned = env.expect(0, &["clean", "--json"]).json();
    assert_eq!(cleaned["removed"].as_array().unwrap().len(), 1);
    assert!(!env.sandbox.project().join(".agent/worktrees").exists());
    assert_eq!(env.git(&["worktree", "list"]).lines().count(), 1);
    assert_eq!(env.counts(), [(2, 0, 0)], "results stay");
}

#[test]
fn warmups_come_first_do_not_count_and_a_failing_one_skips_its_cell() {
    let env = Env::with_commits(&["one", "two"]);
    let log = env.outside("log");
    env.config(&format!(
        "command: echo x >> {}; grep -q one value\niterations: 2\nwarmup: 1\ncode: {{refs: [v1, v2]}}\n",
        log.display()
    ));
    let ran = env.expect(1, &["run"]);
    assert!(ran.stderr.contains("  [warmup] v1 ("), "{}", ran.stderr);
    assert!(ran.stderr.contains("not run: v2: its warmup failed"), "{}", ran.stderr);
    assert_eq!(env.counts(), [(2, 0, 0), (0, 0, 2)]);
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 4);
}

#[test]
fn a_matrix_needs_neither_code_nor_browser() {
    let env = Env::bare();
    env.config(
        "command: echo $AXIS_N; sleep $AXIS_N\ntimeout: 1s\niterations: 1\naxes: {n: [0, 600]}\n",
    );
    let ran = env.expect(0, &["run"]);
    assert_eq!(env.counts(), [(1, 0, 0), (0, 1, 0)]);
    let status = env.status();
    assert_eq!(status["cells"][1]["runs"][0]["exitCode"], 124);
    for part in ["ms  timed out after 1s", "the first failure: n=600, timed out after 1s: 600; see"]
    {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("124"), "{}", ran.stderr);
    let failures = env.expect(0, &["status", "--failures"]).stdout;
    assert!(failures.contains("  timed out  retake runs logs"), "{failures}");
}

#[test]
fn a_value_stands_for_its_axis_in_a_single_command_and_its_hooks() {
    let env = Env::bare();
    env.config(
        "command: 'echo \"metric: load={n}\"; grep \"^{n}$\" prepared'\nprepare: echo {n} > prepared\niterations: 1\naxes: {n: [3, 50]}\n",
    );
    env.expect(0, &["run", "-q"]);
    let status = env.status();
    for (cell, n) in [(0, 3.0), (1, 50.0)] {
        let run = &status["cells"][cell]["runs"][0];
        assert_eq!(run["metrics"]["load"]["value"], n, "{status}");
    }
}

#[test]
fn a_script_that_may_not_be_executed_is_reported_with_what_to_do() {
    let env = Env::bare();
    env.sandbox.file("bench.sh", "#!/bin/sh\n");
    env.config("command: ./bench.sh\niterations: 1\n");
    let ran = env.expect(1, &["run"]);
    for part in ["exit code 126: ", "; make it executable with chmod +x"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
}

#[test]
fn a_first_run_says_what_it_creates() {
    let env = Env::bare();
    let fresh = env.outside("fresh");
    let script = format!(
        "mkdir {0} && cd {0} && git init -q && printf \"command: 'true'\\niterations: 1\\n\" > \
         matrix.yml && retake matrix run",
        fresh.display()
    );
    let ran = env.sandbox.sh(&script);
    let said = format!("created {} (worktrees and settings)", fresh.join(".agent").display());
    assert!(ran.stderr.contains(&said), "{}", ran.snapshot());
    assert!(fresh.join(".git/retake").is_dir(), "the record is elsewhere");
}

#[test]
fn a_setup_without_code_runs_once_for_each_text() {
    let env = Env::bare();
    let log = env.outside("log");
    let config = |setup: &str| {
        env.config(&format!(
            "command: 'true'\nsetup: {setup}; echo x >> {}\niterations: 1\naxes: {{n: [0]}}\n",
            log.display()
        ));
    };
    let times = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    config("exit 3");
    let ran = env.expect(1, &["run"]);
    assert!(ran.stderr.contains("here: its setup failed with exit code 3"), "{}", ran.stderr);
    config("echo one");
    env.expect(0, &["run", "-q"]);
    env.expect(0, &["run", "-q", "--append", "1"]);
    assert_eq!(times(), 1);
    config("echo two");
    env.expect(0, &["run", "-q", "--append", "1"]);
    assert_eq!(times(), 2);
    env.expect(0, &["clean"]);
    env.expect(0, &["run", "-q", "--append", "1"]);
    assert_eq!(times(), 3);
}

#[test]
fn failures_are_shown_with_the_end_of_what_they_said_and_how_to_try_again() {
    let env = Env::with_commits(&["one"]);
    env.config(
        "command: 'if [ \"$AXIS_KIND\" = \"too large\" ]; then echo out; seq 1 20 >&2; exit 7; fi'\niterations: 2\ncode: {refs: [v1]}\naxes: {kind: [small, too large]}\n",
    );
    env.expect(0, &["run", "-q"]);
    let shown = env.expect(0, &["status", "--failures"]).stdout;
    assert_eq!(shown.matches("exit:7  retake runs logs").count(), 2, "{shown}");
    assert!(shown.contains("    11\n") && shown.contains("    20\n"), "{shown}");
    assert!(!shown.contains("    10\n") && !shown.contains("out"), "{shown}");
    let again = shown.lines().find_map(|line| line.trim().strip_prefix("again: ")).unwrap();
    assert_eq!(again, "retake matrix run --refs v1 --axis 'kind=too large'");
    let ran = env.sandbox.sh(again);
    assert!(ran.stderr.contains("2 runs: 0 ok, 2 failed"), "{}", ran.snapshot());
    let small = env.expect(0, &["status", "--compact"]).stdout;
    assert!(small.contains("v1") && small.contains("  █✗\n"), "{small}");
}

#[test]
fn workers_can_be_tied_to_cpus() {
    let env = Env::bare();
    env.config(
        "command: grep Cpus_allowed_list /proc/self/status\niterations: 1\naxes: {n: [0]}\n",
    );
    env.expect(0, &["run", "--pin"]);
    let id = env.ids().into_iter().next().unwrap();
    let output = env.sandbox.retake(&["runs", "logs", &id]).stdout;
    let list = output.split_whitespace().last().unwrap();
    assert!(list.parse::<u32>().is_ok(), "one CPU: {output}");
    let refused = env.expect(2, &["run", "--pin", "--workers", "500"]);
    assert!(
        refused.stderr.contains("for 500 workers; every worker needs one of its own"),
        "{}",
        refused.stderr
    );
}

#[test]
fn init_writes_a_configuration_that_can_be_read_and_keeps_one_that_is_there() {
    let env = Env::with_commits(&["one"]);
    env.expect(0, &["init"]);
    assert_eq!(env.counts(), [(0, 0, 5)]);
    let refused = env.expect(1, &["init"]);
    assert!(refused.stderr.contains("--force"), "{}", refused.stderr);
    env.expect(0, &["init", "--force"]);
    let refs = || {
        env.expect(0, &["init", "--force"]);
        assert_eq!(env.counts(), [(0, 0, 5)]);
        let written = std::fs::read_to_string(env.sandbox.project().join("matrix.yml")).unwrap();
        let line = written.lines().find(|line| line.starts_with("  refs: ")).unwrap();
        line["  refs: ".len()..].to_owned()
    };
    assert_eq!(refs(), "[main]");
    for (branch, written) in
        [("topic/one", "[topic/one]"), ("1.0", "[\"1.0\"]"), ("a,b", "[\"a,b\"]")]
    {
        env.git(&["checkout", "-q", "-b", branch]);
        assert_eq!(refs(), written);
    }
    env.git(&["checkout", "-q", "--detach"]);
    assert!(refs().contains(&env.git(&["rev-parse", "HEAD"])));
}

#[test]
fn secrets_of_the_command_are_not_in_the_record() {
    let env = Env::bare();
    env.config("command: echo hunter2222 $API_TOKEN\niterations: 1\naxes: {n: [0]}\nenv: {API_TOKEN: hunter2222}\n");
    env.expect(0, &["run"]);
    assert_eq!(env.counts(), [(1, 0, 0)]);
    let id = env.ids().into_iter().next().unwrap();
    assert!(!env.sandbox.retake(&["runs", "logs", &id]).stdout.contains("hunter2222"));
    let database = std::fs::read(env.sandbox.store().join("retake.db")).unwrap();
    let wal = std::fs::read(env.sandbox.store().join("retake.db-wal"));
    let all = [database, wal.unwrap_or_default()].concat();
    assert!(!all.windows(10).any(|window| window == b"hunter2222"));
}
