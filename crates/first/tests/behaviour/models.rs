//! Tests under a model of a file system: states from one recording, and what is kept and told of them.

use std::fs;

use serde_json::Value;

use crate::stage::{Played, Stage};

#[test]
fn a_missing_sync_is_found_and_can_be_seen_again_without_the_workload() {
    let stage = Stage::new();
    let played = stage.play("forgets_to_sync");
    played.failed(&["`new`", "current was promised", "FIRST_REPLAY=", "FIRST_STATE="]);
    let lines = played.lines();
    assert!(lines.iter().any(|line| line.starts_with("ext4: F1 FAILED (see ")), "{lines:?}");
    let repro = played.text.lines().find(|line| line.contains("FIRST_REPLAY=")).unwrap().trim();
    let again = stage.paste(repro);
    again.failed(&["failed", "current was promised"]);
    let (_, key) = repro.split_once("FIRST_STATE=").unwrap();
    let key = key.split_whitespace().next().unwrap();
    let why = format!(
        "state {key} of a recording: the workload is not run; after changing it, run the test without \
         FIRST_REPLAY"
    );
    assert_eq!(again.lines()[..2], [why, format!("state {key}: FAILED")]);
    let runs = fs::read_to_string(stage.scratch().join("runs")).unwrap().lines().count();
    assert_eq!(runs, 1, "recorded once, and never run again");
    assert_eq!(stage.alive(), Vec::<String>::new());
    // Without a recording nothing is lost, and the test says so.
    let played = Stage::new().set("FIRST_RECORD", 0).play("forgets_to_sync");
    let said = played.passed().lines();
    assert!(said[0].contains("FIRST_RECORD=0): weaker than ext4"), "{said:?}");
}

#[test]
fn a_finding_is_kept_with_its_description_and_the_output_of_its_children() {
    let stage = Stage::new();
    let played = stage.play("forgets_to_sync");
    played.failed(&["current was promised"]);
    let base = stage.left()[1].clone();
    let read = |name: &str| fs::read_to_string(stage.tmp().join(&base).join(name)).unwrap();
    let record: Value = serde_json::from_str(&read("F1.json")).unwrap();
    assert_eq!((&record["id"], &record["model"]), (&"F1".into(), &"ext4".into()));
    assert!(record["sentence"].as_str().unwrap().contains("`new`"), "{record}");
    assert!(record["reason"].as_str().unwrap().contains("current was promised"), "{record}");
    assert!(read("F1.verify.log").contains("current was promised"));
    assert!(read("recording.log").contains("the workload speaks"));
    let again = stage.paste(record["repro"].as_str().unwrap());
    again.failed(&[&format!("state {} failed", record["state"].as_str().unwrap())]);
    assert!(again.text.contains("the check speaks"), "{}", again.text);
    // What fails before any state is tried is kept, too.
    let stage = Stage::new();
    let played = stage.play("checks_wrongly");
    let (_, log) = played.text.split_once("output of the check: ").unwrap();
    let log = fs::read_to_string(log.lines().next().unwrap()).unwrap();
    assert!(log.contains("never good"), "{log}");
    let played = stage.play("fails_in_its_workload_under_a_model");
    let (_, log) = played.text.split_once("output of the workload: ").unwrap();
    let log = fs::read_to_string(log.lines().next().unwrap()).unwrap();
    assert!(log.contains("no disk"), "{log}");
}

#[test]
fn events_of_a_model_are_its_states_its_findings_and_the_summary() {
    let events = |stage: Stage, scenario: &str| -> Vec<Value> {
        let file = stage.scratch().join("events");
        let stage = stage.set("FIRST_EVENTS", file.display());
        stage.play(scenario);
        let text = fs::read_to_string(file).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let of = |events: &[Value], event: &str| -> Vec<Value> {
        events.iter().filter(|one| one["event"] == event).cloned().collect()
    };
    let keep_going = Stage::new().set("FIRST_KEEP_GOING", 1);
    let told = events(keep_going, "forgets_to_sync");
    let (states, findings) = (of(&told, "state"), of(&told, "finding"));
    let failed = states.iter().filter(|state| state["status"] == "failed").count();
    assert!(failed > 0 && failed < states.len(), "{told:?}");
    for state in &states {
        assert_eq!(state["test"], "scenario::forgets_to_sync");
        assert!(state["durationMs"].as_u64().unwrap() > 0, "{state}");
        assert_eq!(state["reason"].is_string(), state["status"] == "failed", "{state}");
        let point: u64 = state["point"].as_u64().unwrap();
        assert!(state["state"].as_str().unwrap().starts_with(&point.to_string()), "{state}");
    }
    assert!(states.iter().any(|state| state["label"] == "written"), "{told:?}");
    let Some(first) = findings.first() else { panic!("{told:?}") };
    assert_eq!(first["id"], "F1");
    assert!(first["sentence"].as_str().unwrap().contains("`new`"), "{first}");
    assert!(first["workDir"].as_str().unwrap().ends_with("/F1"), "{first}");
    let summary = told.last().unwrap();
    let counts = ["total", "ok", "failed", "pruned", "findings"];
    let counts = counts.map(|key| summary[key].as_u64().unwrap() as usize);
    let ok = states.len() - failed;
    assert_eq!(counts, [states.len(), ok, failed, 0, findings.len()]);

    let told = events(Stage::new().set("MODEL", "posix"), "syncs");
    assert_eq!(of(&told, "state").len() + 1, told.len());
    assert_eq!((&told[told.len() - 1]["failed"], told.len() > 1), (&0.into(), true));
    // A test that fails before any state was tried says why.
    let told = events(Stage::new(), "checks_wrongly");
    assert_eq!(told.len(), 1);
    assert!(told[0]["reason"].as_str().unwrap().contains("never good"), "{told:?}");
}

#[test]
fn synced_data_survives_under_every_model() {
    for model in ["ext4", "posix"] {
        let stage = Stage::new().set("MODEL", model);
        let played = stage.play("syncs");
        let said = played.passed().lines();
        assert!(said[0].starts_with(&format!("{model}: ")), "{said:?}");
        assert!(said[0].contains("moments of a crash, ") && !said[0].contains("point"), "{said:?}");
        assert!(said[1].ends_with("states passed"), "{said:?}");
        assert_eq!((stage.left(), stage.alive()), (vec![], vec![]));
    }
    let said = "the check fails on the state without a crash: verify panicked: never good";
    Stage::new().play("checks_wrongly").failed(&[said]);
}

#[test]
fn under_a_model_a_selected_crash_point_is_only_killed_and_that_is_said() {
    let play = |target| {
        let stage = Stage::new().set("MODEL", "ext4").set("FIRST_CRASH_TARGET", target);
        stage.play("syncs")
    };
    let played = play(1);
    let weaker =
        "not recorded (FIRST_CRASH_TARGET=1): weaker than ext4, crash points are only killed";
    assert_eq!(played.passed().lines(), [weaker, "crash point 1: OK"]);
    play(2).failed(&["the workload has 1 crash point; there is no crash point 2"]);
}

#[test]
fn a_test_says_at_which_operation_it_stopped_and_how_to_try_the_rest() {
    let stopped = |played: &Played| -> Vec<String> {
        let lines = played.lines();
        lines
            .iter()
            .filter(|line| line.starts_with("stopped"))
            .map(|line| line.to_string())
            .collect()
    };
    let played = Stage::new().play("needs_two_files_under_a_model");
    played.failed(&["b without c"]);
    // An equal state is tried once, at the last moment that may leave it.
    let said = "stopped at op 9; FIRST_KEEP_GOING=1 tries the states after it, too";
    assert_eq!(stopped(&played), [said], "{}", played.text);
    assert!(played.text.contains("1 state fails for this"), "{}", played.text);
    let played = Stage::new().set("FIRST_KEEP_GOING", 1).play("needs_two_files_under_a_model");
    played.failed(&["b without c"]);
    assert_eq!((stopped(&played), played.count("1 state fails")), (vec![], 0), "{}", played.text);
    // Nothing is left to try after the last state.
    let played = Stage::new().play("needs_two_files_at_its_last_state");
    played.failed(&["a was promised"]);
    assert_eq!(stopped(&played), Vec::<String>::new(), "{}", played.text);
}
