//! Which code is measured: built by which setup, in which state, by which compiler.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use crate::common::{RETAKE, called, eventually};
use crate::env::Env;

/// A program that prints how it was compiled.
const SOURCE: &str = "\
#include <stdio.h>
int main(void) {
#ifdef __OPTIMIZE__
    puts(\"optimised\");
#else
    puts(\"plain\");
#endif
    return 0;
}
";

fn with_program() -> Env {
    let env = Env::with_commits(&["one"]);
    env.sandbox.file("main.c", SOURCE);
    env.git(&["add", "main.c"]);
    env.git(&["commit", "-q", "-m", "program"]);
    env.git(&["tag", "p1"]);
    env
}

fn build(level: &str, more: &str) -> String {
    format!(
        "command: ./prog\nsetup: gcc {level} -o prog main.c\niterations: 2\ncode: {{refs: [p1]}}\n{more}"
    )
}

/// The output of each run that counts.
fn printed(env: &Env) -> Vec<String> {
    let ids = env.ids();
    ids.iter().map(|id| env.sandbox.retake(&["runs", "logs", id]).stdout).collect()
}

#[test]
fn every_configuration_measures_what_its_own_setup_built() {
    let env = with_program();
    env.sandbox.file("fast.yml", &build("-O2", ""));
    env.sandbox.file("slow.yml", &build("-O0", ""));
    let run = |file: &str, more: &[&str]| {
        let all: Vec<&str> = ["run", "-q", "-f", file].iter().chain(more).copied().collect();
        env.expect(0, &all)
    };
    run("fast.yml", &[]);
    run("slow.yml", &[]);
    run("fast.yml", &["--append", "3"]);
    let said = |file: &str| {
        let status = env.expect(0, &["status", "--json", "-f", file]).json();
        let runs = status["cells"][0]["runs"].as_array().unwrap().clone();
        let ids = runs.iter().map(|run| run["id"].as_str().unwrap().to_owned());
        let said: Vec<String> =
            ids.map(|id| env.sandbox.retake(&["runs", "logs", &id]).stdout).collect();
        (said.len(), said.into_iter().collect::<BTreeSet<_>>())
    };
    assert_eq!(said("fast.yml"), (5, BTreeSet::from(["optimised\n".to_owned()])));
    assert_eq!(said("slow.yml"), (2, BTreeSet::from(["plain\n".to_owned()])));

    // An edited setup is a different build: it starts without results, and is not mixed with the old one.
    env.sandbox.file("fast.yml", &build("-O0 -g", ""));
    assert_eq!(said("fast.yml").0, 0);
    run("fast.yml", &["--append", "1"]);
    assert_eq!(said("fast.yml"), (1, BTreeSet::from(["plain\n".to_owned()])));
}

#[test]
fn the_environment_of_a_setup_is_part_of_what_it_built() {
    let env = with_program();
    let setup = "command: ./prog\nsetup: gcc $LEVEL $CFLAGS -o prog main.c\niterations: 1\ncode: {refs: [p1]}\n";
    env.config(&format!("{setup}env: {{LEVEL: -O2}}\n"));
    env.expect(0, &["run", "-q"]);
    assert_eq!(printed(&env), ["optimised\n"]);
    env.config(&format!("{setup}env: {{LEVEL: -O0}}\n"));
    env.expect(0, &["run", "-q"]);
    assert_eq!(printed(&env), ["plain\n"]);
    // Inherited compiler flags affect it, too.
    let with_flags = |arguments: &[&str]| {
        let mut command = env.sandbox.command(RETAKE);
        command.arg("matrix").args(arguments).env("CFLAGS", "-O3");
        called(&mut command)
    };
    let ran = with_flags(&["run"]);
    assert!(ran.stderr.contains("[setup]"), "{}", ran.snapshot());
    let status = with_flags(&["status", "--json"]).json();
    let id = status["cells"][0]["runs"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(env.sandbox.retake(&["runs", "logs", &id]).stdout, "optimised\n");
    assert_eq!(printed(&env), ["plain\n"]);
}

#[test]
fn a_directory_without_code_knows_which_setup_it_holds() {
    let env = Env::bare();
    env.sandbox.file("main.c", SOURCE);
    let config = |file: &str, level: &str| {
        let text = build(level, "").replace("code: {refs: [p1]}", "axes: {n: [1]}");
        env.sandbox.file(file, &text);
    };
    config("fast.yml", "-O2");
    config("slow.yml", "-O0");
    for (file, expected) in
        [("fast.yml", "optimised"), ("slow.yml", "plain"), ("fast.yml", "optimised")]
    {
        let ran = env.expect(0, &["run", "-f", file, "--append", "1"]);
        assert!(ran.stderr.contains("[setup] here  ✓"), "{file}: {}", ran.stderr);
        let status = env.expect(0, &["status", "--json", "-f", file]).json();
        for run in status["cells"][0]["runs"].as_array().unwrap() {
            let logs = env.sandbox.retake(&["runs", "logs", run["id"].as_str().unwrap()]);
            assert_eq!(logs.stdout.trim(), expected, "{file}");
        }
    }
    let ran = env.expect(0, &["run", "-f", "fast.yml", "--append", "1"]);
    assert!(!ran.stderr.contains("[setup]"), "{}", ran.stderr);
}

/// Everything that an iteration may leave behind.
const DIRTY: &str = "\
command: |
  wc -l < f; cat value; ls; cat made; stat -c %Y.%a made
  echo more >> f; echo dirty > value; rm made; mkdir new; echo x > new/file
  git commit -q --allow-empty -m mine || true; git add -A; chmod 700 .
setup: echo product > made; echo patched > value; touch -d 2001-01-01 made
iterations: 3
code: {refs: [v2]}
";

fn dirty() -> Env {
    let env = Env::with_commits(&["one"]);
    env.sandbox.file("f", "line\n");
    env.git(&["add", "f"]);
    env.git(&["commit", "-q", "-m", "f"]);
    env.git(&["tag", "v2"]);
    env
}

#[test]
fn no_iteration_sees_what_another_one_did() {
    let env = dirty();
    env.config(DIRTY);
    env.expect(0, &["run", "-q"]);
    env.expect(0, &["run", "-q", "--append", "2"]);
    env.expect(0, &["run", "-q", "--append", "6", "--workers", "2"]);
    let said = printed(&env);
    assert_eq!(said.len(), 11);
    let same: BTreeSet<&String> = said.iter().collect();
    assert_eq!(same.len(), 1, "{same:?}");
    let lines: Vec<&str> = said[0].lines().collect();
    assert_eq!(lines[..6], ["1", "patched", "f", "made", "value", "product"], "{lines:?}");
    assert!(lines[6].starts_with("97830"), "the time of the setup's product: {lines:?}");
    // The setup ran once for each worker.
    let setups = env.sandbox.retake(&["runs", "list", "--json", "--limit", "100"]).stdout;
    assert_eq!(setups.matches("\"matrix.setup\"").count(), 2, "{setups}");
}

#[test]
fn a_tree_can_be_reset_once_for_each_run_or_never() {
    let env = dirty();
    let counts = |reset: &str| {
        env.config(&format!(
            "command: wc -l < f; echo more >> f\niterations: 3\nreset: {reset}\ncode: {{refs: [v2]}}\n"
        ));
        env.expect(0, &["run", "-q"]);
        env.expect(0, &["run", "-q", "--append", "2"]);
        let mut said: Vec<String> =
            printed(&env).iter().map(|text| text.trim().to_owned()).collect();
        said.sort();
        said.join(" ")
    };
    assert_eq!(counts("iteration"), "1 1 1 1 1");
    assert_eq!(counts("run"), "1 1 2 2 3");
    assert_eq!(counts("never"), "1 2 3 4 5");
    env.config("command: x\niterations: 1\nreset: sometimes\n");
    let refused = env.expect(2, &["run"]);
    assert!(refused.stderr.contains("takes iteration, run or never, not sometimes"));
}

#[test]
fn a_failed_setup_is_listed_with_its_output_and_retried_in_a_clean_tree() {
    let env = Env::with_commits(&["one"]);
    let fixed = env.outside("fixed");
    env.config(&format!(
        "command: cat made\nsetup: echo x >> made; echo broken >&2; test -e {}\niterations: 1\ncode: {{refs: [v1]}}\n",
        fixed.display()
    ));
    env.expect(1, &["run", "-q"]);
    let shown = env.expect(0, &["status", "--failures"]).stdout;
    assert!(shown.contains("\nv1 (") && shown.contains("  setup  exit:1  retake runs logs "));
    assert!(shown.contains("\n    broken\n"), "{shown}");
    let json = env.status();
    assert_eq!(json["phaseFailures"][0]["phase"], "setup", "{json}");
    std::fs::write(&fixed, "").unwrap();
    env.expect(0, &["run", "-q"]);
    assert_eq!(printed(&env), ["x\n"], "nothing of the first attempt is left");
    assert!(!env.expect(0, &["status", "--failures"]).stdout.contains("setup"));
}

#[test]
fn prepare_and_conclude_run_around_each_iteration_and_cleanup_once_for_each_cell() {
    let env = Env::with_commits(&["one"]);
    let log = env.outside("log");
    let shown = log.display();
    env.config(&format!(
        "command: cat ready; echo \"run $AXIS_N $ITERATION\" >> {shown}\nprepare: echo yes > ready; echo \"prepare $AXIS_N $ITERATION\" >> {shown}\nconclude: cat ready > /dev/null; echo \"conclude $AXIS_N $ITERATION\" >> {shown}\ncleanup: echo \"cleanup $AXIS_N\" >> {shown}\nwarmup: 1\niterations: 2\norder: blocked\ncode: {{refs: [v1]}}\naxes: {{n: [a, b]}}\n"
    ));
    env.expect(0, &["run", "-q"]);
    let lines = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 3 * 6 + 2, "{lines:?}");
    for around in lines[..18].chunks(3) {
        let rest = around[0].strip_prefix("prepare ").unwrap();
        assert_eq!(around[1..], [format!("run {rest}"), format!("conclude {rest}")]);
    }
    assert_eq!(lines[18..], ["cleanup a", "cleanup b"]);
    assert_eq!(printed(&env), ["yes\n"; 4]);
    assert_eq!(env.counts(), [(2, 0, 0), (2, 0, 0)], "they are no results");
    // Nothing is pending, so nothing is cleaned up.
    env.expect(0, &["run", "-q"]);
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), lines.len());
}

#[test]
fn a_cell_whose_prepare_fails_is_skipped_and_listed() {
    let env = Env::with_commits(&["one"]);
    env.config(
        "command: 'true'\nprepare: echo no >&2; test $AXIS_N = a\niterations: 2\ncode: {refs: [v1]}\naxes: {n: [a, b]}\n",
    );
    let ran = env.expect(1, &["run"]);
    assert!(ran.stderr.contains("n=b: its prepare failed with exit code 1"), "{}", ran.stderr);
    assert!(ran.stderr.contains(": its warmup, prepare or conclude failed"));
    assert_eq!(env.counts(), [(2, 0, 0), (0, 0, 2)]);
    let shown = env.expect(0, &["status", "--failures"]).stdout;
    assert!(shown.contains("  prepare  exit:1  retake runs logs "), "{shown}");
    // It is not a verdict about the code.
    env.config(
        "command: 'true'\nprepare: exit 3\niterations: 1\ncode: {refs: [v1]}\naxes: {n: [a, b]}\n",
    );
    let ran = env.expect(1, &["bisect", "--axis", "n", "--good", "a", "--bad", "b"]);
    assert!(!ran.stdout.contains("is given as"), "{}", ran.snapshot());
}

#[test]
fn a_search_leaves_no_worktree_of_its_own() {
    let env = Env::with_commits(&["0", "0", "0", "1", "1", "1"]);
    env.config(
        "command: exit $(cat value)\nsetup: echo x > made\niterations: 1\ncode: {refs: [v1]}\n",
    );
    env.expect(0, &["run", "-q"]);
    let trees = || env.git(&["worktree", "list"]).lines().count();
    assert_eq!(trees(), 2);
    let found =
        env.expect(0, &["bisect", "--axis", "code", "--good", "v1", "--bad", "v6", "--json"]);
    assert_eq!(found.json()["firstBad"], env.git(&["rev-parse", "v4"]));
    assert_eq!(trees(), 2, "what was there before stays");
    let left = std::fs::read_dir(env.sandbox.project().join(".agent/worktrees")).unwrap().count();
    assert_eq!(left, 3, "the tree, its mark and its snapshot");
}

#[test]
fn pointers_of_git_lfs_are_refused() {
    let env = Env::with_commits(&["one"]);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    env.sandbox.file(".gitattributes", "*.bin filter=lfs -text\n");
    env.sandbox.file("large.bin", pointer);
    env.git(&["add", "."]);
    env.git(&["commit", "-q", "-m", "large"]);
    env.git(&["tag", "v2"]);
    env.config("command: cat large.bin\niterations: 1\ncode: {refs: [v1, v2]}\n");
    let ran = env.expect(1, &["run"]);
    assert!(ran.stderr.contains("large.bin is a Git LFS pointer"), "{}", ran.stderr);
    assert!(ran.stderr.contains("not run: v2 (") && ran.stderr.contains("git lfs fetch"));
    // A setup that fetches them suffices.
    env.config(
        "command: cat large.bin\nsetup: echo real > large.bin\niterations: 1\ncode: {refs: [v2]}\n",
    );
    env.expect(0, &["run", "-q"]);
    assert_eq!(printed(&env), ["real\n"]);
}

#[test]
fn a_worktree_that_cannot_be_made_names_its_ref() {
    let env = Env::with_commits(&["one"]);
    let library = env.outside("library");
    env.git(&["init", "-q", library.to_str().unwrap()]);
    let text = "[submodule \"sub\"]\n\tpath = sub\n\turl = /no/such/repository\n";
    env.sandbox.file(".gitmodules", text);
    env.git(&["add", ".gitmodules"]);
    let info = format!("160000,{},sub", env.git(&["rev-parse", "HEAD"]));
    env.git(&["update-index", "--add", "--cacheinfo", &info]);
    env.git(&["commit", "-q", "-m", "with a submodule"]);
    env.git(&["tag", "v2"]);
    env.config("command: 'true'\niterations: 1\ncode: {refs: [v1, v2]}\n");
    let ran = env.expect(1, &["run"]);
    let sha = env.git(&["rev-parse", "--short=7", "v2"]);
    let expected = format!("not run: v2 ({sha}): git submodule update failed");
    assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    assert_eq!(env.counts(), [(1, 0, 0), (0, 0, 1)]);
}

#[test]
fn a_plain_command_runs_without_a_shell_and_the_rest_through_one() {
    let env = Env::bare();
    let shell = |command: &str| {
        env.config(&format!("command: {command}\niterations: 1\naxes: {{n: [0]}}\n"));
        env.matrix(&["run", "-q"]);
        let id = env.ids().into_iter().next().unwrap();
        let run = env.sandbox.retake(&["runs", "show", "--json", &id]).json();
        run["shell"].as_bool().unwrap()
    };
    assert!(!shell("cat matrix.yml"));
    assert!(shell("cat $AXIS_N matrix.yml"));
    assert!(shell("echo -n 'x'"), "a builtin stays one");
    let script = env.sandbox.file("script", "exit 0\n");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(shell("./script"), "without a first line only a shell can run it");
    assert_eq!(env.counts(), [(1, 0, 0)]);
    assert!(shell("no-such-program here"));
    let id = env.ids().into_iter().next().unwrap();
    let said = env.sandbox.retake(&["runs", "logs", "--stderr", &id]).stdout;
    assert!(said.contains("no-such-program"), "{said}");
}

#[test]
fn metrics_are_finer_than_milliseconds_and_go_out_and_come_back() {
    let env = Env::with_commits(&["one"]);
    env.config(
        "command: 'echo \"metric: load=12.25 ms\"'\niterations: 6\nwarmup: 0\ncode: {refs: [v1]}\n",
    );
    env.expect(0, &["run", "-q"]);
    let metrics = || {
        let status = env.status();
        let runs = status["cells"][0]["runs"].as_array().unwrap().clone();
        runs.iter().map(|run| run["metrics"].clone()).collect::<Vec<_>>()
    };
    let before = metrics();
    for run in &before {
        for name in ["wall", "cpu", "user", "sys", "rss", "page-faults", "context-switches"] {
            assert!(run[name]["value"].is_number(), "{name}: {run}");
        }
        assert_eq!(run["load"]["value"], 12.25);
    }
    let whole = |run: &serde_json::Value| run["cpu"]["value"].as_f64().unwrap().fract() == 0.0;
    assert!(!before.iter().all(whole), "{before:?}");
    let out = env.outside("out").display().to_string();
    env.expect(0, &["export", &out]);
    std::fs::remove_dir_all(env.sandbox.store()).unwrap();
    env.expect(0, &["import", &out]);
    assert_eq!(metrics(), before);
}

#[test]
fn a_browser_given_by_its_path_has_the_version_that_it_reports() {
    let env = Env::bare();
    let browser = |name: &str, text: &str| {
        let path = env.sandbox.file(name, &format!("#!/bin/sh\n{text}\n"));
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    };
    browser("chrome", "echo Chromium 156.0.8078.79 built on Debian");
    browser("silent", "exit 1");
    env.config(
        "command: echo $CHROME_VERSION\niterations: 1\nchrome: {versions: [./chrome, ./silent]}\n",
    );
    env.expect(0, &["run", "-q"]);
    let said: BTreeSet<String> = printed(&env).into_iter().collect();
    assert_eq!(said, ["156.0.8078.79\n", "./silent\n"].map(str::to_owned).into());
}

#[test]
fn as_the_first_process_of_a_namespace_a_signal_is_the_exit_code() {
    let env = Env::bare();
    let pid = env.outside("pid");
    env.config(&format!(
        "command: |\n  echo x > {}; sleep 1000\niterations: 1\naxes: {{n: [0]}}\n",
        pid.display()
    ));
    let namespace = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    if called(env.sandbox.command("unshare").args(namespace).arg("true")).code != 0 {
        return; // No namespaces here.
    }
    // The program itself must be the first process.
    let mut command = env.sandbox.command("unshare");
    command.args(namespace).args([RETAKE, "matrix", "run", "-q"]);
    let mut running = command.spawn().unwrap();
    eventually("it runs", || pid.exists());
    let below = format!("/proc/{0}/task/{0}/children", running.id());
    let child: i32 = std::fs::read_to_string(below).unwrap().trim().parse().unwrap();
    // SAFETY: the child of this process's child, which waits for it.
    assert_eq!(unsafe { libc::kill(child, libc::SIGTERM) }, 0);
    assert_eq!(running.wait().unwrap().code(), Some(143));
}
