//! Files of an earlier run in the root, output that arrives too late, and the newest log.

use crate::env::{Env, compiled};

/// Writes a file that is never synced, unless it exists.
const PROGRAM: &str = "cd root; [ -e data ] || printf x > data; echo saved; printf y > done";
const CHECK: &str = "cd \"$FIRST_WORK_DIR\"; [ ! -s \"$FIRST_ACKS\" ] || [ -s data ]";

fn arguments<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["--root", "root", "--verify", CHECK];
    all.extend(options);
    all.extend(["--", "sh", "-c", PROGRAM]);
    all
}

#[test]
fn existing_files_in_the_root_are_reported_and_count_as_durable() {
    let env = Env::new();
    let first = env.expect(1, &arguments(&[]));
    assert!(!first.stdout.contains("was not empty"), "{}", first.stdout);
    let second = env.expect(0, &arguments(&[]));
    assert!(
        second.stdout.contains("the root was not empty: 2 files count as durable"),
        "{}",
        second.stdout
    );
    let json = env.expect(0, &arguments(&["--json"]));
    assert!(json.stderr.contains("the root was not empty"), "{}", json.stderr);
    // The same program in an empty directory, and in a copy of another one.
    env.expect(1, &arguments(&["--fresh"]));
    let seed = env.sandbox.project().join("seed");
    std::fs::create_dir(&seed).unwrap();
    std::fs::write(seed.join("data"), "old").unwrap();
    let fresh = format!("--fresh={}", seed.display());
    let copied = env.expect(0, &arguments(&[&fresh]));
    assert!(!copied.stdout.contains("was not empty"), "{}", copied.stdout);
    // A log of it says so, too; a log of a directory that was left as it was does not.
    for (option, noted) in [(Some(&*fresh), false), (None, true)] {
        let mut record = vec!["record", "--root", "root", "-o", "log"];
        record.extend(option);
        record.extend(["--", "sh", "-c", PROGRAM]);
        env.expect(0, &record);
        let explored = env.expect(0, &["explore", "log", "--verify", CHECK]).stdout;
        assert_eq!(explored.contains("was not empty"), noted, "{explored}");
    }
    // A missing directory is created.
    std::fs::remove_dir_all(env.root()).unwrap();
    env.expect(1, &arguments(&["--fresh"]));
}

#[test]
fn files_of_an_earlier_run_are_named_when_the_check_fails_without_a_crash() {
    let env = Env::new();
    let program = "cat root/data > root/old 2>/dev/null; printf x > root/data; echo saved";
    let check = "[ ! -e \"$FIRST_WORK_DIR/old\" ] || [ ! -s \"$FIRST_WORK_DIR/old\" ]";
    let test = |code: i32, options: &[&str]| {
        let mut all = vec!["--root", "root", "--model", "kill", "--verify", check];
        all.extend(options);
        all.extend(["--", "sh", "-c", program]);
        env.expect(code, &all)
    };
    let note =
        "root had 2 files before the program started: --fresh starts with an empty directory";
    assert!(!test(0, &[]).snapshot().contains("before the program started"));
    let again = test(125, &[]);
    assert!(again.stderr.contains("without any crash: it exited with 1"), "{}", again.stderr);
    assert!(again.stderr.contains(note), "{}", again.stderr);
    test(0, &["--fresh"]);
    // A copy was meant to be there.
    let seed = env.sandbox.project().join("seed");
    std::fs::create_dir(&seed).unwrap();
    std::fs::write(seed.join("data"), "x").unwrap();
    let copied = test(125, &[&format!("--fresh={}", seed.display())]);
    assert!(!copied.stderr.contains("before the program started"), "{}", copied.stderr);
}

#[test]
fn a_directory_that_cannot_be_copied_is_named_and_nothing_is_removed() {
    let env = Env::new();
    let kept = env.root().join("kept");
    std::fs::write(&kept, "").unwrap();
    env.sandbox.file("file", "");
    for (from, why) in [("nodir", "No such file or directory"), ("file", "Not a directory")] {
        let fresh = format!("--fresh={from}");
        let told = env.expect(125, &["--root", "root", &fresh, "--verify", "true", "--", "true"]);
        let says = format!("cannot copy {from} (--fresh): {why}\n");
        assert!(told.stderr.contains(&says), "{}", told.stderr);
        assert!(kept.exists());
    }
}

#[test]
fn a_directory_that_holds_the_current_one_is_not_emptied() {
    let env = Env::new();
    let kept = env.sandbox.project().join("kept");
    std::fs::write(&kept, "").unwrap();
    let refused = env.expect(125, &["--root", ".", "--fresh", "--verify", "true", "--", "true"]);
    assert!(refused.stderr.contains("is not emptied: "), "{}", refused.stderr);
    assert!(kept.exists());
}

#[test]
fn acknowledgements_that_all_come_at_the_exit_are_reported() {
    let env = Env::new();
    let program = "printf 1 > root/a; printf 2 > root/b; echo one; echo two";
    let late = env.expect(0, &["--root", "root", "--verify", "true", "--", "sh", "-c", program]);
    assert!(
        late.stdout.contains("all 2 acknowledgements came after the last operation"),
        "{}",
        late.stdout
    );
    let program = "printf 1 > root/a; echo one; printf 2 > root/b; echo two";
    let arguments = ["--root", "root", "--fresh", "--verify", "true", "--", "sh", "-c", program];
    let well = env.expect(0, &arguments);
    assert!(!well.stdout.contains("came after the last operation"), "{}", well.stdout);
}

#[test]
fn last_is_the_newest_log() {
    let env = Env::new();
    let none = env.expect(125, &["repro", "last"]);
    assert!(none.stderr.contains("there is no log in "), "{}", none.stderr);
    env.save(1, "none", &["--model", "posix"]);
    env.save(1, "file", &["--fresh"]);
    let again = env.expect(1, &["repro", "last"]);
    assert!(
        again.stderr.contains("F1: the rename of `map.tmp` to `map` (op 5) is lost"),
        "{}",
        again.stderr
    );
    env.expect(1, &["repro", "last", "F1"]);
    assert!(env.expect(0, &["show", "last"]).stdout.contains("crash: F1"));
    let check = compiled("check");
    env.expect(1, &["explore", "last", "--verify", check.to_str().unwrap()]);
}

#[test]
fn a_program_that_leaves_a_process_running_is_no_all_clear() {
    let env = Env::new();
    let program = "printf 1 > root/a; setsid sleep 1000 & echo one";
    let page = env.sandbox.project().join("report.html");
    let common = ["--root", "root", "--fresh", "--verify", "true"];
    let test = |options: &[&str]| {
        let mut all = common.to_vec();
        all.extend(options);
        all.extend(["--", "sh", "-c", program]);
        env.expect(125, &all)
    };
    let note = "1 process was still running after the program's first process had ended, and was \
                terminated: what it would have written later is not part of this test";
    let text = test(&["--html", page.to_str().unwrap()]).stdout;
    assert!(
        text.contains("every one of them recovers, but the program was not recorded to its end")
    );
    assert!(text.contains("not complete: 1 process not recorded to the end"), "{text}");
    assert!(text.contains(note), "{text}");
    let html = std::fs::read_to_string(&page).unwrap().replace("&#39;", "'");
    assert!(html.contains("was not recorded to its end"), "{html}");
    assert!(html.contains("was terminated: what it would have written later"), "{html}");
    let json = test(&["--json"]);
    assert!(json.stderr.contains(note), "{}", json.stderr);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&json["complete"], &json["processesEnded"]), (&false.into(), &1.into()));

    // The log carries it.
    let log = env.sandbox.project().join("left.log");
    let log = log.to_str().unwrap();
    let arguments = ["record", "--root", "root", "--fresh", "-o", log, "--", "sh", "-c", program];
    assert!(env.expect(0, &arguments).stderr.contains(note));
    assert!(env.expect(0, &["show", log]).stderr.contains(note));
    let shown = env.expect(0, &["show", log, "--json"]).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["processesEnded"], 1);
    assert!(env.expect(125, &["explore", log, "--verify", "true"]).stdout.contains(note));
}

#[test]
fn writes_of_a_background_process_are_tested() {
    let env = Env::new();
    // Promised by a process that still runs when the program has ended, and never synced.
    let program = "p=$$; { while [ -d /proc/$p ]; do sleep 0.01; done; printf x > root/data; \
                   echo saved; } &";
    let arguments = ["--root", "root", "--fresh", "--verify", CHECK, "--", "sh", "-c", program];
    let found = env.expect(1, &arguments).stdout;
    assert!(
        found.contains("continued after the program's first process had ended; everything"),
        "{found}"
    );
}
