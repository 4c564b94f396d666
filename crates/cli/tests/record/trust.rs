//! The record of unusual runs: refused, interrupted, imported, and those
//! that left many processes behind.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use crate::common::{Called, RETAKE, Sandbox, called, eventually};

/// The only run there is.
fn only_run(sandbox: &Sandbox) -> serde_json::Value {
    let list = sandbox.retake(&["runs", "list", "--json"]).json();
    let [run] = &list.as_array().expect("as made")[..] else { panic!("{list}") };
    run.clone()
}

#[test]
fn a_refused_request_is_on_the_record_with_every_reason() {
    let requests: [(&[&str], &str, &str); 4] = [
        (&["--cwd", "/no/such", "--", "true"], "ACODE-EXE-006", "/no/such"),
        (&[""], "ACODE-EXE-005", "the command is empty"),
        (&["--timeout", "0", "--", "true"], "ACODE-EXE-005", "the timeout is 0"),
        (&["--shell", "false", "a | b"], "ACODE-EXE-005", "needs a shell"),
    ];
    for (request, code, reason) in requests {
        let sandbox = Sandbox::new();
        let arguments: Vec<_> = ["exec"].iter().chain(request).copied().collect();
        let refused = sandbox.retake(&arguments);
        assert_eq!(refused.code, 125);
        // The line on the terminal has the code, like the JSON.
        assert!(refused.stderr.starts_with(&format!("retake: {code} ")), "{}", refused.stderr);
        let run = only_run(&sandbox);
        assert_eq!((&run["outcome"], &run["exitCode"]), (&"not_started".into(), &125.into()));
        assert_eq!(run["error"]["code"], code);
        let message = run["error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
        assert!(sandbox.retake(&["audit", "verify"]).code == 0);
    }
}

#[test]
fn a_refusal_names_all_reasons_and_no_secret() {
    let sandbox = Sandbox::new();
    let arguments = ["exec", "--json", "--timeout", "0", "--label", "hush-hush-42", "--", "echo"];
    let refused = sandbox.retake_with(
        &[("MY_TOKEN", "hush-hush-42")],
        &[&arguments[..], &["hush-hush-42"]].concat(),
    );
    assert_eq!(refused.json()["recorded"], true);
    let run = only_run(&sandbox);
    assert_eq!(run["error"]["problems"].as_array().unwrap().len(), 2, "{run}");
    assert_eq!(run["id"], refused.json()["id"]);
    for text in [run.to_string(), refused.stdout, refused.stderr] {
        assert!(!text.contains("hush-hush-42"), "{text}");
    }
    assert!(!crate::common::on_disk(&sandbox.store(), b"hush-hush-42"));
}

#[test]
fn invalid_requests_are_not_recorded() {
    let sandbox = Sandbox::new();
    sandbox.recorded("true");
    assert_eq!(sandbox.retake(&["exec", "--no-such-option", "--", "true"]).code, 125);
    assert_eq!(sandbox.retake(&["again", "no-such-run"]).code, 125);
    only_run(&sandbox);
    sandbox.file(".agent/config.yml", "execution:\n  audit:\n    enabled: false\n");
    let refused = sandbox.retake(&["exec", "--json", "--timeout", "0", "--", "true"]);
    assert_eq!(refused.json()["recorded"], false);
    only_run(&sandbox);
}

#[test]
fn a_run_is_found_by_the_id_its_caller_gave() {
    let sandbox = Sandbox::new();
    let id = sandbox.recorded_with(&["--run-id", "build-7"], "echo seven");
    let other = sandbox.recorded_with(&["--run-id", "twice"], "echo one");
    sandbox.recorded_with(&["--run-id", "twice"], "echo two");
    assert_eq!(sandbox.retake(&["runs", "show", "build-7", "--json"]).json()["id"], *id);
    assert_eq!(sandbox.retake(&["runs", "logs", "build-7"]).stdout, "seven\n");
    assert_eq!(sandbox.retake(&["again", "build-7"]).stdout, "seven\n");
    assert!(sandbox.retake(&["runs", "diff", "build-7", &other]).stdout.contains("-seven\n"));
    let several = sandbox.retake(&["runs", "show", "twice"]);
    assert_eq!(several.code, 1);
    assert!(several.stderr.contains("`twice` names several runs"), "{}", several.stderr);
    assert!(several.stderr.contains(&other), "{}", several.stderr);
    assert_eq!(sandbox.retake(&["runs", "show", "build"]).code, 1, "only the whole of it");
    // A run with the same caller's id as the real one is not the one meant.
    sandbox.recorded_with(&["--run-id", &id], "echo eight");
    assert_eq!(sandbox.retake(&["runs", "logs", &id]).stdout, "seven\n");
}

/// A runner that was killed while its command slept, and how long the command had slept at
/// least, in milliseconds.
fn killed_runner(sandbox: &Sandbox) -> u64 {
    let mut runner = sandbox
        .command(RETAKE)
        .args(["exec", "--", "sh", "-c", "echo on; sleep 1; echo over >&2; sleep 99"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("as made");
    let mut line = String::new();
    BufReader::new(runner.stderr.take().expect("as made")).read_line(&mut line).expect("as made");
    assert_eq!(line, "over\n");
    std::thread::sleep(std::time::Duration::from_millis(500));
    runner.kill().expect("as made");
    runner.wait().expect("as made");
    1500
}

#[test]
fn the_duration_of_an_interrupted_run_reaches_to_the_death_of_its_runner() {
    let sandbox = Sandbox::new();
    let least = killed_runner(&sandbox);
    // The keeper has noticed; before that its file is unchanged.
    let live = sandbox.store().join("live");
    eventually("the death is marked", || {
        let files = std::fs::read_dir(&live).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).eq([1])
    });
    let unrelated = sandbox.retake(&["exec", "--", "echo", "other"]);
    assert_eq!(unrelated.snapshot(), "exit 0\nstdout: other\n", "nothing about the other run");
    let list = sandbox.retake(&["runs", "list", "--json"]).json();
    let run = &list[1];
    assert_eq!(run["outcome"], "interrupted");
    assert!(run["durationMs"].as_u64().unwrap() >= least, "{run}");
    assert_eq!(run["durationIsLowerBound"], serde_json::Value::Null);
    let shown = sandbox.retake(&["runs", "show", run["id"].as_str().unwrap()]).stdout;
    assert!(shown.contains("interrupted, its retake process died"), "{shown}");
    assert!(!shown.contains('≥'), "{shown}");
}

#[test]
fn the_first_look_at_a_killed_run_shows_all_of_it() {
    for look in [&["runs", "show", "last"][..], &["runs", "list"], &["runs", "export"]] {
        let sandbox = Sandbox::new();
        killed_runner(&sandbox);
        let first = sandbox.retake(look);
        assert!(first.stderr.contains("its retake process died"), "{}", first.snapshot());
        let second = sandbox.retake(look);
        assert_eq!(sandbox.settled(&first.stdout), sandbox.settled(&second.stdout), "{look:?}");
        assert!(second.stderr.is_empty(), "{}", second.stderr);
        if look[1] == "show" {
            for fact in ["\nended ", "\ntook ", "\nstdout      3 B", "\nstderr      5 B"] {
                assert!(first.stdout.contains(fact), "{fact}: {}", first.stdout);
            }
        }
    }
}

#[test]
fn without_a_witness_the_duration_is_a_lower_bound() {
    let sandbox = Sandbox::new();
    killed_runner(&sandbox);
    let live = sandbox.store().join("live");
    let file = || std::fs::read_dir(&live).unwrap().next().unwrap().unwrap().path();
    eventually("the death is marked", || file().metadata().unwrap().len() == 1);
    // As after a power failure, which nothing observes.
    std::fs::File::options().write(true).open(file()).unwrap().set_len(0).unwrap();
    let listed = sandbox.retake(&["runs", "list"]);
    assert!(
        listed.stderr.contains("its retake process died"),
        "said to who looks: {}",
        listed.stderr
    );
    let listed = sandbox.retake(&["runs", "list"]);
    assert!(listed.stdout.contains('≥'), "{}", listed.stdout);
    let run = only_run(&sandbox);
    assert_eq!(run["durationIsLowerBound"], true);
}

#[test]
fn many_processes_left_behind_are_counted_and_not_listed() {
    let sandbox = Sandbox::new();
    let script = "for i in $(seq 60); do setsid sleep 99 & done";
    let run = sandbox.retake(&["exec", "--", "sh", "-c", script]);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    let said = "retake: 60 processes were still running when the command ended, and were terminated: sleep 99 (";
    assert!(run.stderr.starts_with(said), "{}", run.stderr);
    let stored = only_run(&sandbox);
    let listed = stored["leftProcesses"].as_array().unwrap().len();
    let more = stored["leftUnlisted"]["ended"].as_u64().unwrap();
    assert!(listed < 60 && listed as u64 + more == 60, "{listed} and {more}");
    let shown = sandbox.retake(&["runs", "show", "last"]).stdout;
    let left: Vec<_> = shown.lines().filter(|line| line.starts_with("left")).collect();
    assert_eq!(left.len(), 1, "{shown}");
    assert!(left[0].contains("60 processes, ended: "), "{shown}");
}

/// Runs that began long ago, as another record exports them.
fn old_export(sandbox: &Sandbox) -> String {
    let other = Sandbox::new();
    for name in ["first", "second"] {
        other.recorded(&format!("echo {name}"));
    }
    let exported = other.retake(&["runs", "export"]).stdout;
    let today = regex::Regex::new(r#""(start|end)Time":"\d{4}-"#).expect("as made");
    let old = today.replace_all(&exported, r#""${1}Time":"2001-"#).into_owned();
    sandbox.file("old.jsonl", &old);
    old
}

#[test]
fn imported_runs_are_kept_for_one_retention_period() {
    let sandbox = Sandbox::new();
    old_export(&sandbox);
    let imported = sandbox.retake(&["runs", "import", "old.jsonl"]);
    assert_eq!(imported.code, 0, "{}", imported.snapshot());
    assert!(imported.stderr.contains("2 runs imported, 0 already recorded"), "{}", imported.stderr);
    assert!(imported.stderr.contains("2 of them older than 30 days"), "{}", imported.stderr);
    assert!(imported.stderr.contains("kept until 2"), "{}", imported.stderr);
    let due = || sandbox.tamper("DELETE FROM settings WHERE name = 'retention_checked_us'");
    due();
    let after: Called = sandbox.retake(&["exec", "--", "true"]);
    assert_eq!(after.snapshot(), "exit 0\n");
    assert_eq!(sandbox.listed(&[]).len(), 3);
    // The rows are derived from the ledger, which a repair reads again.
    sandbox.tamper("DELETE FROM settings WHERE name LIKE 'import:%'; UPDATE runs SET cwd = 'x'");
    assert_eq!(sandbox.retake(&["doctor", "--repair"]).code, 0);
    due();
    sandbox.retake(&["exec", "--", "true"]);
    assert_eq!(sandbox.listed(&[]).len(), 4);
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
    // They are erased once the period is over.
    sandbox.tamper("UPDATE settings SET value = '1 ' || substr(value, instr(value, ' ') + 1) WHERE name LIKE 'import:%'");
    due();
    let erased = sandbox.retake(&["exec", "--", "true"]);
    assert!(erased.stderr.contains("2 runs older than 30 days erased"), "{}", erased.stderr);
    assert_eq!(sandbox.listed(&[]).len(), 3);
}

#[test]
fn an_inherited_secret_that_is_not_set_any_more_is_named() {
    let sandbox = Sandbox::new();
    let arguments = ["exec", "--run-id", "deploy", "--", "true"];
    sandbox.retake_with(&[("DEPLOY_TOKEN", "abcdefgh1234")], &arguments);
    let said = "the secret variable DEPLOY_TOKEN was set in the recorded run but is not set now";
    let without = sandbox.retake(&["again", "deploy"]);
    assert!(without.code == 0 && without.stderr.contains(said), "{}", without.snapshot());
    let with = sandbox.retake_with(&[("DEPLOY_TOKEN", "other-value-9")], &["again", "deploy"]);
    assert!(!with.stderr.contains("DEPLOY_TOKEN"), "{}", with.snapshot());
}

#[test]
fn a_run_is_repeated_in_a_directory_that_is_not_utf8() {
    let sandbox = Sandbox::new();
    let directory = sandbox.project().join(OsStr::from_bytes(b"d\xff"));
    std::fs::create_dir(&directory).unwrap();
    let line = ["exec", "--", "sh", "-c", "pwd >&2; touch here"];
    let there = || called(sandbox.command(RETAKE).args(line).current_dir(&directory));
    assert_eq!(there().code, 0);
    std::fs::remove_file(directory.join("here")).unwrap();
    let again = sandbox.retake(&["again", "last"]);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    assert!(directory.join("here").exists());
    assert!(again.stderr.contains("same output"), "{}", again.stderr);
}
