//! The result in every form: JSON, JUnit, HTML, the record, and the log for later.

use serde_json::Value;

use crate::common::called;
use crate::env::{Env, compiled, sentences};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn json_has_its_documented_shape() {
    let env = Env::new();
    let answer = env.save(1, "file", &[]);
    let mut expected = [
        "model",
        "operations",
        "points",
        "states",
        "distinct",
        "verified",
        "failing",
        "complete",
        "findings",
    ];
    expected.sort_unstable();
    let mut found = keys(&answer);
    found.sort_unstable();
    assert_eq!(found, expected);
    // With source lines, because `save` has debug information.
    let mut expected = [
        "id",
        "sentence",
        "verdict",
        "sourceSentence",
        "places",
        "files",
        "lostOperations",
        "states",
        "explained",
        "proven",
        "repro",
    ];
    expected.sort_unstable();
    let finding = &answer["findings"][0];
    let mut found = keys(finding);
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(finding["id"], "F1");
    assert_eq!(finding["files"], serde_json::json!(["map", "map.tmp"]));
    assert!(finding["lostOperations"].as_array().unwrap().contains(&5.into()), "{finding}");
    // 2 rounds of create or truncate, write, sync, close, rename.
    assert_eq!((&answer["operations"], &answer["points"]), (&10.into(), &11.into()));
}

#[test]
fn a_finding_can_be_had_again_from_its_log_alone() {
    let env = Env::new();
    let answer = env.save(1, "file", &[]);
    std::fs::remove_dir_all(env.root()).unwrap();
    std::fs::create_dir(env.root()).unwrap();
    let repro = answer["findings"][0]["repro"].as_str().unwrap();
    let again = called(env.sandbox.command("sh").args(["-c", repro]));
    assert_eq!(again.code, 1, "{}", again.snapshot());
    assert!(again.stdout.contains("round 0 is lost"), "{}", again.snapshot());
    assert!(again.stderr.contains("F1: the rename of"), "{}", again.snapshot());
    let repaired =
        called(env.sandbox.command("sh").args(["-c", &format!("{repro} --verify true")]));
    assert_eq!(repaired.code, 0, "{}", repaired.snapshot());
    let looked = called(env.sandbox.command("sh").args(["-c", &format!("{repro} --into seen")]));
    assert_eq!(looked.code, 0, "{}", looked.snapshot());
    assert!(!env.sandbox.project().join("seen/map").exists());
    let wrong = repro.replace(" F1", " F9");
    let wrong = called(env.sandbox.command("sh").args(["-c", &wrong]));
    assert_eq!(wrong.code, 125, "{}", wrong.snapshot());
    assert!(wrong.stderr.contains("choose from: F1"), "{}", wrong.snapshot());
}

#[test]
fn recording_and_exploring_can_be_days_apart() {
    let env = Env::new();
    let (save, check) = (compiled("save"), compiled("check"));
    let (save, check) = (save.to_str().unwrap(), check.to_str().unwrap());
    let said = env.expect(0, &["record", "--root", "root", "-o", "log", "--", save, "file", "1"]);
    assert_eq!(said.stdout, "saved 0\n");
    assert!(said.stderr.contains("5 operations, 1 sync, 1 acknowledgement"), "{}", said.stderr);
    // Not even the directory is needed; states are then found through FIRST_WORK_DIR.
    std::fs::remove_dir_all(env.root()).unwrap();
    let found = env.expect(1, &["explore", "log", "--json", "--verify", check]);
    assert!(found.stderr.contains("does not exist any more"), "{}", found.stderr);
    assert_eq!(sentences(&found.json()).len(), 1);
    let shown = env.expect(0, &["show", "log"]);
    for line in ["create `map.tmp`", "rename `map.tmp` to `map`", "saved 0", "crash: F1 the rename"]
    {
        assert!(shown.stdout.contains(line), "{line}: {}", shown.stdout);
    }
    let shown = env.expect(0, &["show", "log", "--json"]).json();
    assert_eq!(shown["operations"], 5);
    assert_eq!(shown["entries"][5]["sort"], "acknowledgement");
    assert_eq!(shown["findings"][0]["id"], "F1");
    // In another model nothing fails, which refutes nothing.
    env.expect(0, &["explore", "log", "--model", "kill", "--verify", check]);
    assert_eq!(env.expect(0, &["show", "log", "--json"]).json()["findings"][0]["id"], "F1");
}

#[test]
fn junit_and_html_say_what_the_findings_say() {
    let env = Env::new();
    let answer = env.save(1, "file", &["--junit", "crash.xml", "--html", "crash.html"]);
    let read = |name: &str| std::fs::read_to_string(env.sandbox.project().join(name)).unwrap();
    let sentence = &sentences(&answer)[0];
    let junit = read("crash.xml");
    assert!(junit.contains("tests=\"1\" failures=\"1\""), "{junit}");
    assert!(junit.contains(&format!("<failure type=\"crash\" message=\"{sentence}\">")), "{junit}");
    let html = read("crash.html");
    // Names are marked up as code there.
    let reason = sentence.rsplit('`').next().unwrap();
    for part in [reason, "lost in F1", "⚡ crash of", "“saved 1”", "id=\"op10\""] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(!html.contains("<script") && !html.contains("http://") && !html.contains("https://"));
    let env = Env::new();
    env.save(0, "both", &["--junit", "crash.xml"]);
    let junit = std::fs::read_to_string(env.sandbox.project().join("crash.xml")).unwrap();
    assert!(junit.contains("tests=\"1\" failures=\"0\""), "{junit}");
}

#[test]
fn a_test_is_one_loop_and_one_run_of_the_record() {
    let env = Env::new();
    env.save(1, "file", &[]);
    let (reason, events) = env.loop_record();
    assert_eq!(reason.as_deref(), Some("findings"));
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let save = ["operation", "operation", "sync", "operation", "operation", "acknowledgement"];
    let steps = [&save[..], &save[..]].concat();
    let last = ["states", "finding", "finished"];
    assert_eq!(names, [&["recorded"], &steps[..], &last[..]].concat());
    assert_eq!(events[3]["text"], "sync `map.tmp`");
    assert_eq!(events[0]["calls"]["rename"], 2);
    assert_eq!(events[0]["acknowledgements"], 2);
    let finding = &events[names.len() - 2];
    assert!(finding["output"].as_str().unwrap().contains("is lost"));
    let runs = env.sandbox.retake(&["runs", "list", "--json"]).json();
    let runs = runs.as_array().unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!((&runs[0]["kind"], &runs[0]["outcome"]), (&"crash".into(), &"exited".into()));
    assert_eq!(events[0]["run"], runs[0]["id"]);
    let id = runs[0]["id"].as_str().unwrap();
    assert_eq!(env.sandbox.retake(&["runs", "logs", id]).stdout, "saved 0\nsaved 1\n");
}

#[test]
fn names_that_are_not_utf8_stay_distinct() {
    let env = Env::new();
    let program =
        "import os; os.chdir(b'root'); [open(n, 'w').close() for n in (b'a\\xe8', b'a\\xe9')]";
    let check = "test $(ls \"$FIRST_WORK_DIR\" | wc -l) != 1";
    let found = env.expect(
        1,
        &["--root", "root", "--json", "--verify", check, "--", "python3", "-c", program],
    );
    let found = found.stdout;
    assert!(found.contains(r"$'a\\xe8'") && !found.contains('\u{fffd}'), "{found}");
}

#[test]
fn findings_that_differ_only_in_how_the_check_ends_are_named_as_one_cause() {
    let env = Env::new();
    let program = "echo 2 > root/new; mv root/new root/current; echo saved";
    let note = "F2 (exited with 2), F3 (exited with 3) have the same cause";
    for (corrupt, noted) in [(3, true), (2, false)] {
        let check = format!(
            "cd root; [ -s \"$FIRST_ACKS\" ] || [ -e current ] || exit 0; [ -e current ] || exit 1; \
             [ -s current ] || exit 2; grep -qx 2 current || exit {corrupt}"
        );
        let arguments =
            ["--root", "root", "--fresh", "--verify", &check, "--", "sh", "-c", program];
        let told = env.expect(1, &arguments).stdout;
        assert_eq!(told.contains(note), noted, "{told}");
        assert_eq!(told.contains("F3"), noted, "{told}");
    }
}

#[test]
fn a_clean_test_leaves_no_log() {
    let env = Env::new();
    env.save(0, "both", &[]);
    assert_eq!(env.loop_record().0.as_deref(), Some("clean"));
    assert!(!env.sandbox.project().join(".agent/data/crash").exists());
}

#[test]
fn shards_check_every_state_once_and_find_what_one_machine_finds() {
    let env = Env::new();
    let whole = env.save(1, "file", &[]);
    let check = compiled("check");
    let (mut verified, mut failing) = (0, 0);
    for shard in ["1/3", "2/3", "3/3"] {
        let arguments =
            ["explore", "last", "--json", "--verify", check.to_str().unwrap(), "--shard", shard];
        let explored = env.crash(&arguments);
        let answer = explored.json();
        let found = answer["failing"].as_u64().unwrap();
        assert_eq!(explored.code, i32::from(found > 0), "{}", explored.snapshot());
        assert_eq!(answer["distinct"], whole["distinct"], "{answer}");
        verified += answer["verified"].as_u64().unwrap();
        failing += found;
    }
    assert_eq!(
        (verified, failing),
        (whole["verified"].as_u64().unwrap(), whole["failing"].as_u64().unwrap())
    );
    let text =
        env.crash(&["explore", "last", "--verify", check.to_str().unwrap(), "--shard", "1/3"]);
    assert!(text.snapshot().contains("shard 1/3 only"), "{}", text.snapshot());
    assert_eq!(env.crash(&["explore", "last", "--verify", "true", "--shard", "4/3"]).code, 2);
}

#[test]
fn the_parts_of_an_exploration_are_brought_together_by_their_bundles() {
    let env = Env::new();
    env.save(1, "file", &[]);
    let check = compiled("check");
    let mut bundles = Vec::new();
    let mut codes = Vec::new();
    for shard in ["1/3", "2/3", "3/3"] {
        let bundle = env.sandbox.project().join(format!("{}.bundle", &shard[..1]));
        let path = bundle.to_str().unwrap().to_owned();
        let check = check.to_str().unwrap();
        let arguments = ["explore", "last", "--verify", check, "--shard", shard, "--bundle", &path];
        codes.push(env.crash(&arguments).code);
        bundles.push(path);
    }
    let elsewhere = env.sandbox.dir.path().join("together");
    let elsewhere = elsewhere.to_str().unwrap();
    let import = |files: &[String]| {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        env.sandbox.retake(&[&["--store", elsewhere, "runs", "import"], &files[..]].concat())
    };
    let gap = import(&bundles[..2]);
    assert_eq!(gap.code, 1, "{}", gap.snapshot());
    assert!(gap.stderr.contains("missing: shard 3/3"), "{}", gap.snapshot());
    let whole = import(&bundles);
    assert_eq!(whole.code, 0, "{}", whole.snapshot());
    assert!(whole.stderr.contains("1 run imported from 3 bundles, 2 already recorded"));
    let list = ["--store", elsewhere, "runs", "list", "--kind", "crash", "--json"];
    let runs = env.sandbox.retake(&list).json();
    let mut found: Vec<i64> =
        runs.as_array().unwrap().iter().map(|run| run["exitCode"].as_i64().unwrap()).collect();
    let mut codes: Vec<i64> = codes.into_iter().map(i64::from).collect();
    found.sort_unstable();
    codes.sort_unstable();
    assert_eq!(found, codes);
    assert!(codes.contains(&1), "{codes:?}");
    // A bundle that cannot be written is refused before any check.
    let checked = env.sandbox.dir.path().join("checked");
    let check = format!("touch {}", checked.display());
    let nowhere = ["explore", "last", "--verify", &check, "--shard", "1/3", "--bundle", "/none/b"];
    let refused = env.crash(&nowhere);
    assert!(refused.stderr.contains("cannot write /none/b"), "{}", refused.snapshot());
    assert!(!checked.exists());
}
