//! The promises of a FIRST test, tried with real children.

#![expect(clippy::unwrap_used, reason = "tests")]

mod executor;
mod models;
mod recorded;
mod scenario;
mod served;
mod stage;
mod unrecorded;

use std::fs;
use std::os::unix::process::ExitStatusExt;

use serde_json::Value;
use stage::{Stage, eventually};

#[test]
fn every_point_is_crashed_and_checked_and_nothing_is_left() {
    for jobs in [1, 3] {
        let stage = Stage::new().set("SCENARIO_JOBS", jobs);
        let played = stage.play("passes");
        played.passed();
        let lines = ["crash point 1: OK", "crash point 2: OK", "crash point 3: OK"];
        assert_eq!(played.lines(), [&lines[..], &["all 3 crash points passed"]].concat());
        let count = |file| fs::read_to_string(stage.scratch().join(file)).unwrap().lines().count();
        assert_eq!((count("verified"), count("after")), (3, 1));
        assert_eq!((stage.left(), stage.alive()), (vec![], vec![]));
    }
}

#[test]
fn a_failure_says_what_a_person_needs() {
    let mut told = Vec::new();
    for jobs in [1, 3] {
        let stage = Stage::new().set("SCENARIO_JOBS", jobs);
        let played = stage.play("fails_at_b");
        let kept = stage.left();
        let base = kept[1].clone();
        assert!(base.starts_with("first/scenario::fails_at_b-"), "{base}");
        let files = ["a", "b"].map(|file| format!("{base}/run_2/{file}"));
        let beside =
            ["execution.log", "json", "verify.log"].map(|end| format!("{base}/run_2.{end}"));
        let run = [format!("{base}/run_2")];
        let all = [&["first".to_owned(), base.clone()], &run[..], &beside[..], &files[..]].concat();
        let mut all = all;
        all.sort();
        assert_eq!(kept, all);
        let directory = stage.tmp().join(&base).join("run_2").display().to_string();
        played.failed(&[
            "crash point 2 (\"b\") failed",
            "verify panicked: b without c",
            &directory,
            "to reproduce: FIRST_CRASH_TARGET=2 FIRST_SEED=9 ",
        ]);
        let lines = played.lines();
        assert_eq!(
            lines[..2],
            ["crash point 1: OK", &format!("crash point 2: FAILED (see {directory})")]
        );
        assert_eq!(lines[2..4], ["crash label: \"b\"", "reason: verify panicked: b without c"]);
        assert_eq!((played.count("the check speaks"), played.count("the workload speaks")), (1, 0));
        let record = fs::read(stage.tmp().join(format!("{base}/run_2.json"))).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(record["target"], 2);
        assert_eq!(record["label"], "b");
        assert_eq!(record["phase"], "VERIFY");
        assert_eq!(record["reason"], "verify panicked: b without c");
        assert_eq!(record["seed"], 9);
        // Pasted, it fails at the same point for the same reason, and tries no other point.
        let again = stage.paste(record["repro"].as_str().unwrap());
        again.failed(&["crash point 2 (\"b\") failed", "verify panicked: b without c"]);
        assert!(!again.text.contains("crash point 1"), "{}", again.text);
        told.push(played.text.replace(&stage.tmp().display().to_string(), ""));
    }
    // Apart from process ids and times, the number of jobs changes nothing.
    let plain = |text: &str| {
        let digits = |c: char| c.is_ascii_digit();
        text.split(digits)
            .filter(|part| !part.is_empty() && *part != ".")
            .collect::<Vec<_>>()
            .concat()
    };
    assert_eq!(plain(&told[0]), plain(&told[1]));
}

#[test]
fn under_cargo_the_command_is_cargos() {
    let stage = Stage::new().set("CARGO_PKG_NAME", "some-engine");
    stage
        .play("fails_at_b")
        .failed(&["to reproduce: FIRST_CRASH_TARGET=2 FIRST_SEED=9 cargo test -p some-engine \
         scenario::fails_at_b -- --exact --nocapture --include-ignored\n"]);
}

/// A name that contains another's and sorts before it: run by that name, it would run first.
mod before {
    mod scenario {
        #[test]
        #[ignore = "started by the tests beside it"]
        fn prefix() {
            crate::scenario::note("another", "ran");
        }
    }
}

#[test]
fn a_test_whose_name_is_part_of_others_runs_alone() {
    let stage = Stage::new();
    stage.play("prefix").passed();
    assert!(!stage.scratch().join("another").exists());
}

#[test]
fn misbehaving_workloads_have_distinct_messages() {
    for (scenario, says) in [
        ("panics_at_once", "the workload panicked before its first crash point: no disk"),
        ("panics_later", "the workload panicked after crash point 1 (\"a\"): no more disk"),
        (
            "has_no_points",
            "the workload returned without reaching a crash point: nothing was tested",
        ),
        (
            "filtered_out",
            "no label matches the label filter, though the workload reached 3 crash points",
        ),
        (
            "changes_its_number_of_points",
            "the workload is not deterministic: it returned after 1 crash point in one run and reached 2 in another",
        ),
        (
            "ends_earlier_at_last",
            "the workload is not deterministic: it returned after 2 crash points in one run and reached 1 in another",
        ),
        (
            "changes_its_labels",
            "the workload is not deterministic: crash point 1 was \"one\" in one run and \"other\" in another",
        ),
        (
            "forks",
            "the workload forked, and crash point \"in both\" was reached in the forked process",
        ),
        (
            "is_killed",
            "killed by SIGKILL after crash point 1 (\"a\"), which no crash point announced",
        ),
        ("exits", "the workload ended the process (exit code 0) after crash point 1 (\"a\")"),
        ("deletes_its_directory", "the workload deleted or replaced its own directory"),
        ("escapes", "Env::path takes a path inside the test's directory"),
        ("nul_label", "the label \"a\\0b\" holds a NUL character"),
        (
            "asynchronous_panic",
            "the workload panicked after crash point 1 (\"a\"): after the yield",
        ),
        ("misnamed", "the child ended without coming to first::test()"),
        ("hands_its_variables_on", "the FIRST_ variables here are meant for a child of process"),
        ("verify_deletes", "verify deleted or replaced its directory"),
        ("verify_aborts", "verify was terminated by SIGABRT (an abort)"),
        ("verify_exits", "verify ended the process (exit code 0) without returning"),
        ("no_jobs", ".jobs(0): at least one child has to run at a time"),
        ("forgotten_future", "the future of verify_async was dropped before its end"),
    ] {
        let counts_its_runs = ["changes_its_number_of_points", "ends_earlier_at_last"];
        for record in ["0", "1"] {
            // A recorded workload runs twice, so effects of a third run do not occur.
            if record == "1" && counts_its_runs.contains(&scenario) {
                continue;
            }
            let stage = Stage::new().set("FIRST_RECORD", record);
            stage.play(scenario).failed(&[says]);
            assert_eq!(stage.alive(), Vec::<String>::new(), "{scenario}");
        }
    }
}

#[test]
fn a_recorded_workload_gives_the_same_report_as_one_run_again() {
    for scenario in [
        "passes",
        "fails_at_b",
        "fails_twice",
        "same_states",
        "limited",
        "filtered",
        "odd_label",
        "panics_later",
        "exits",
        "threads",
        "promises",
        "fails_its_promise",
    ] {
        for keep_going in [0, 1] {
            let [recorded, again] = ["1", "0"].map(|record| {
                let stage =
                    Stage::new().set("FIRST_RECORD", record).set("FIRST_KEEP_GOING", keep_going);
                let played = stage.play(scenario);
                let lines =
                    played.lines().into_iter().map(|line| match line.split_once(" (see ") {
                        Some((told, _)) => told.to_owned(),
                        None => line.to_owned(),
                    });
                (played.code, lines.collect::<Vec<_>>())
            });
            assert_eq!(recorded, again, "{scenario}");
            assert!(!recorded.1.is_empty());
        }
    }
}

#[test]
fn a_recorded_workload_runs_twice_and_no_more() {
    for (record, runs) in [("1", 2), ("0", 5)] {
        let stage = Stage::new().set("FIRST_RECORD", record);
        stage.play("counts_its_runs").passed();
        let counted = fs::read_to_string(stage.scratch().join("runs")).unwrap().lines().count();
        assert_eq!(counted, runs);
    }
}

#[test]
fn a_failure_is_confirmed_by_a_real_kill() {
    // Once for the recording, and once until it is killed.
    let stage = Stage::new();
    stage.play("counts_the_runs_of_a_failure").failed(&["verify panicked: b without c"]);
    let counted = fs::read_to_string(stage.scratch().join("runs")).unwrap().lines().count();
    assert_eq!(counted, 2);
    // A failure of the recorded run alone is reported, with the remark that the runs differ.
    let stage = Stage::new();
    stage.play("fails_only_where_it_is_recorded").failed(&[
        "crash point 1 (\"a\") failed",
        "a fresh one that was killed at this point passes",
        "does not do the same each time",
    ]);
    let kept = stage.left().into_iter().find(|path| path.ends_with("run_1/a")).unwrap();
    assert_eq!(fs::read_to_string(stage.tmp().join(kept)).unwrap(), "bad");
    assert_eq!(stage.alive(), Vec::<String>::new());
}

#[test]
fn a_hanging_phase_is_ended_with_its_processes() {
    let stage = Stage::new();
    stage
        .play("hangs")
        .failed(&["did not finish within 700ms; it hung after crash point 1 (\"a\")"]);
    assert_eq!(stage.alive(), Vec::<String>::new());
    let stage = Stage::new();
    stage.play("verify_hangs").failed(&["verify did not finish within 700ms"]);
    assert_eq!(stage.alive(), Vec::<String>::new());
}

#[test]
fn processes_left_running_by_a_child_are_terminated() {
    let stage = Stage::new();
    let left = "the workload left 3 processes running, which had to be terminated";
    assert_eq!(stage.play("leaves_processes").passed().count(left), 1);
    assert_eq!(stage.alive(), Vec::<String>::new());
    let stage = Stage::new();
    stage.play("leaves_processes_under_a_model").failed(&[left]);
    assert_eq!(stage.alive(), Vec::<String>::new());
}

#[test]
fn children_die_with_a_killed_orchestrator() {
    // In its workload, with three processes of its own, and before it has reached its test.
    for (scenario, processes) in [("waits_to_be_orphaned", 5), ("waits_before_its_test", 2)] {
        let stage = Stage::new();
        let mut orchestrator = stage.command(&format!("scenario::{scenario}")).spawn().unwrap();
        eventually("the child waits", || stage.scratch().join("waiting").exists());
        assert!(stage.alive().len() >= processes, "{:?}", stage.alive());
        orchestrator.kill().unwrap();
        assert_eq!(orchestrator.wait().unwrap().signal(), Some(libc::SIGKILL));
        eventually("all are gone", || stage.alive().is_empty());
    }
}

#[test]
fn an_out_of_memory_kill_is_no_crash_and_says_so() {
    let stage = Stage::new();
    let link = stage.scratch().join("cgroup");
    let Some(cgroup) = SmallMemory::make() else {
        assert!(std::env::var_os("CI").is_none(), "this needs a memory cgroup that can be written");
        return;
    };
    std::os::unix::fs::symlink(&cgroup.path, link).unwrap();
    stage.play("eats_all_memory").failed(&[
        "killed by SIGKILL after crash point 1 (\"a\"), which no crash point announced: the kernel's \
         out-of-memory killer struck while it ran",
    ]);
}

/// A memory cgroup with little more memory than the test needs.
struct SmallMemory {
    path: std::path::PathBuf,
}

impl SmallMemory {
    fn make() -> Option<Self> {
        let name = format!("first-test-{}", std::process::id());
        for (root, limit) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let path = std::path::Path::new(root).join(&name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let made = Self { path };
            if fs::write(made.path.join(limit), (64 << 20).to_string()).is_ok() {
                // With swap, the limit alone would only slow it down.
                _ = fs::write(made.path.join("memory.swap.max"), "0");
                return Some(made);
            }
        }
        None
    }
}

impl Drop for SmallMemory {
    fn drop(&mut self) {
        eventually("the cgroup is empty", || fs::remove_dir(&self.path).is_ok());
    }
}

#[test]
fn a_label_may_be_anything_a_person_types() {
    let stage = Stage::new().set("FIRST_EVENTS", "events");
    let stage_events = stage.tmp().join("events");
    let stage = stage.set("FIRST_EVENTS", stage_events.display());
    let label = "say \"hi\",\n\t'$HOME' \\ 🦀";
    let played = stage.play("odd_label");
    played.failed(&[&format!("crash point 1 ({label:?}) failed"), "verify panicked: told"]);
    let base = stage.left().into_iter().find(|path| path.ends_with("run_1.json")).unwrap();
    let record: Value = serde_json::from_slice(&fs::read(stage.tmp().join(base)).unwrap()).unwrap();
    assert_eq!(record["label"], label);
    let events = fs::read_to_string(stage_events).unwrap();
    let event: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    assert_eq!(event["label"], label);
}

#[test]
fn the_phases_can_be_played_by_hand() {
    let stage = Stage::new();
    let work = stage.scratch().join("by hand");
    let by_hand = |stage: Stage, phase: &str| {
        stage.set("FIRST_PHASE", phase).set("FIRST_WORK_DIR", work.display()).set("FIRST_SEED", 4)
    };
    let execution = by_hand(Stage::new(), "EXECUTION").set("FIRST_CRASH_TARGET", 2);
    let played = execution.play("passes");
    assert_eq!(played.signal, Some(libc::SIGKILL), "{}", played.text);
    let line = played.text.lines().find(|line| line.starts_with('{')).unwrap();
    let directory = work.display();
    assert_eq!(
        line,
        format!(
            r#"{{"event":"crash","point_id":2,"label":"b","seed":4,"work_dir":"{directory}"}}"#
        )
    );
    assert!(work.join("b").exists() && !work.join("c").exists());
    let check = by_hand(Stage::new(), "VERIFY")
        .set("FIRST_CRASH_POINT_ID", 2)
        .set("FIRST_CRASH_LABEL", "b");
    check.play("passes").passed();
    by_hand(Stage::new(), "VERIFY")
        .set("FIRST_CRASH_POINT_ID", 2)
        .play("passes")
        .text
        .contains("failed");
    // The next point comes after the workload, where none counts.
    let past = by_hand(Stage::new(), "EXECUTION").set("FIRST_CRASH_TARGET", 4);
    past.play("passes").passed();
}

#[test]
fn a_target_past_the_end_fails() {
    let says = "the workload has 3 crash points; there is no crash point 99: nothing was tested";
    let stage = Stage::new().set("FIRST_CRASH_TARGET", 99);
    let played = stage.play("passes");
    played.failed(&[says]);
    assert_eq!(played.lines(), Vec::<&str>::new());
    assert_eq!(stage.left(), Vec::<String>::new());
}

#[test]
fn a_selected_crash_point_belongs_to_one_test_of_a_function() {
    // The second test has two crash points, the first one: a command without an index is for the first.
    let played = Stage::new().set("FIRST_CRASH_TARGET", 1).play("two_tests");
    assert_eq!(
        played.passed().lines(),
        ["crash point 1: OK", "number 2 is left out: FIRST_TEST_INDEX=2 selects it"]
    );
    Stage::new()
        .set("FIRST_CRASH_TARGET", 2)
        .play("two_tests")
        .failed(&["the workload has 1 crash point; there is no crash point 2"]);
}

#[test]
fn a_single_crash_point_can_be_selected() {
    let stage = Stage::new().set("FIRST_CRASH_TARGET", 2);
    assert_eq!(stage.play("passes").passed().lines(), ["crash point 2: OK"]);
}

#[test]
fn nonsense_in_a_variable_fails_and_names_it() {
    for (name, value) in [
        ("FIRST_PHASE", "VERIFIED"),
        ("FIRST_CRASH_TARGET", "first"),
        ("FIRST_SEED", "-1"),
        ("FIRST_TEST_INDEX", "0"),
        ("FIRST_KEEP_ARTIFACTS", "yes"),
        ("FIRST_KEEP_GOING", "2"),
        ("FIRST_TEST_NAME", "another::test"),
        ("FIRST_EVENTS", "/no/such/directory/events"),
        ("FIRST_WORK_DIR", "/dev/null"),
        ("FIRST_CHANNEL", "1"),
    ] {
        let stage = Stage::new().set(name, value);
        stage.play("passes").failed(&[value]);
        assert_eq!(stage.left(), Vec::<String>::new(), "{name}");
    }
    let stage = Stage::new().set("FIRST_PHASE", "VERIFY").set("FIRST_CRASH_POINT_ID", 1);
    stage.set("FIRST_WORK_DIR", "/no/such").play("passes").failed(&["FIRST_WORK_DIR=/no/such: "]);
    let stage = Stage::new().set("FIRST_PHASE", "EXECUTION").set("FIRST_WORK_DIR", "/tmp");
    stage.play("passes").failed(&["FIRST_PHASE=EXECUTION needs FIRST_CRASH_TARGET to be set"]);
}

#[test]
fn a_temp_directory_that_cannot_be_written_is_named() {
    let stage = Stage::new();
    fs::write(stage.scratch().join("file"), "").unwrap();
    let tmp = stage.scratch().join("file").display().to_string();
    let stage = stage.set("TMPDIR", &tmp);
    stage.play("passes").failed(&[
        "cannot make the directory",
        &format!("{tmp}/first: "),
        "TMPDIR",
    ]);
}

#[test]
fn several_tests_in_one_function_each_have_their_place() {
    let stage = Stage::new().set("FIRST_RECORD", 0);
    let played = stage.play("two_tests");
    played.failed(&["crash point 2 (\"three\") failed", "FIRST_TEST_INDEX=2 "]);
    let lines = played.lines();
    assert_eq!(
        lines[..3],
        ["crash point 1: OK", "all 1 crash point passed", "crash point 1: OK"],
        "{lines:?}"
    );
    let order = fs::read_to_string(stage.scratch().join("order")).unwrap();
    let ends: Vec<_> =
        order.lines().map(|line| line.rsplit_once("two_tests-").unwrap().1).collect();
    let pid = ends[0].strip_suffix("/run_1").unwrap();
    assert_eq!(ends[1..], [format!("{pid}-2/run_1"), format!("{pid}-2/run_2")]);
    let second = Stage::new().set("FIRST_TEST_INDEX", 2).set("FIRST_CRASH_TARGET", 1);
    let played = second.play("two_tests");
    assert_eq!(
        played.passed().lines(),
        ["number 1 is left out: FIRST_TEST_INDEX=2", "crash point 1: OK"]
    );
}

#[test]
fn several_tests_of_a_binary_run_at_once() {
    let stage = Stage::new().argument("--test-threads=3");
    let output = stage.command("at_once::").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("2 passed; 1 failed"), "{text}");
    let kept: Vec<_> = stage.left().into_iter().filter(|path| path.ends_with("/c")).collect();
    assert!(kept.len() == 1 && kept[0].contains("at_once::three-"), "{kept:?}");
}

#[test]
fn any_executor_will_do() {
    let stage = Stage::new();
    let played = stage.play("asynchronous");
    assert_eq!(played.passed().lines().last(), Some(&"all 2 crash points passed"));
    let stage = stage.set("FAIL_AT_B", 1);
    stage.play("asynchronous").failed(&["crash point 2 (\"b\") failed", "verify panicked: at b"]);
    Stage::new().play("asynchronous_elsewhere").passed();
}

#[test]
fn a_thread_without_a_name_is_told_how_to_give_one() {
    let stage = Stage::new();
    let output = stage.command("nameless").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("cannot be determined from this thread") && text.contains("`.name("),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(101));
    // If the arguments select a single test, as nextest's do, no name is needed.
    stage.play("nameless").passed();
}

#[test]
fn threads_may_reach_points() {
    let played = Stage::new().play("threads");
    assert_eq!(played.passed().lines().last(), Some(&"all 12 crash points passed"));
}

#[test]
fn equal_states_are_checked_once_unless_the_check_looks() {
    for jobs in [1, 4] {
        let stage = Stage::new().set("SCENARIO_JOBS", jobs);
        let events = stage.tmp().join("events");
        let stage = stage.set("FIRST_EVENTS", events.display());
        let played = stage.play("same_states");
        assert_eq!(
            played.passed().lines(),
            [
                "crash point 1: OK",
                "crash point 2: OK (same state as 1)",
                "crash point 3: OK",
                "crash point 4: OK (same state as 1)",
                "all 4 crash points passed",
            ]
        );
        let verified = |stage: &Stage| {
            fs::read_to_string(stage.scratch().join("verified")).unwrap().lines().count()
        };
        assert_eq!(verified(&stage), 2);
        let events = fs::read_to_string(events).unwrap();
        let events: Vec<Value> =
            events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let statuses: Vec<_> = events.iter().filter_map(|event| event["status"].as_str()).collect();
        assert_eq!(statuses, ["ok", "pruned", "ok", "pruned"]);
        assert_eq!(events[1]["test"], "scenario::same_states");
        assert_eq!((&events[1]["target"], &events[1]["label"]), (&2.into(), &"nothing new".into()));
        assert!(events[1]["durationMs"].as_u64().unwrap() > 0);
        assert!(events[1]["workDir"].as_str().unwrap().ends_with("/run_2"));
        let summary = &events[4];
        let counts = ["total", "ok", "failed", "pruned"].map(|key| summary[key].as_u64().unwrap());
        assert_eq!((summary["event"].as_str(), counts), (Some("summary"), [4, 2, 0, 2]));

        let stage = Stage::new().set("SCENARIO_JOBS", jobs).set("LOOK", 1);
        let played = stage.play("same_states");
        assert_eq!(played.passed().count("same state"), 0);
        assert_eq!(verified(&stage), 4);
    }
}

#[test]
fn options_limit_filter_and_seed_the_run() {
    let played = Stage::new().play("limited");
    assert_eq!(
        played.passed().lines(),
        [
            "crash point 1: OK",
            "crash point 2: OK",
            "the first 2 crash points passed; there may be more"
        ]
    );
    let played = Stage::new().play("filtered");
    assert_eq!(played.passed().lines().last(), Some(&"all 2 crash points passed"));
    for (stage, seed) in [(Stage::new(), "5"), (Stage::new().set("FIRST_SEED", 77), "77")] {
        stage.play("seeded").passed();
        let seeds = fs::read_to_string(stage.scratch().join("seeds")).unwrap();
        // Recorded, run again for comparison, and checked once.
        assert_eq!(seeds.lines().collect::<Vec<_>>(), [seed; 3]);
    }
    Stage::new().play("should_panic").passed();
}

#[test]
fn keeping_going_finds_every_failure() {
    for jobs in [1, 3] {
        let stage = Stage::new().set("SCENARIO_JOBS", jobs);
        stage.play("fails_twice").failed(&["crash point 1 "]);
        assert!(!stage.left().iter().any(|path| path.ends_with("run_3")));
        let stage = stage.set("FIRST_KEEP_GOING", 1);
        let played = stage.play("fails_twice");
        played.failed(&["crash point 1 (\"a\") failed", "crash point 3 (\"c\") failed"]);
        assert_eq!(played.lines().iter().filter(|line| line.ends_with(": OK")).count(), 1);
        assert_eq!(runs(&stage), ["1", "1", "3"], "the first play kept its own");
    }
}

/// The numbers of the kept runs, of all plays together.
fn runs(stage: &Stage) -> Vec<String> {
    let number = |path: String| Some(path.rsplit_once("/run_")?.1.to_owned());
    let mut runs: Vec<_> =
        stage.left().into_iter().filter_map(number).filter(|run| run.len() == 1).collect();
    // Not by path: process ids wrap around at some point.
    runs.sort();
    runs
}

#[test]
fn artifacts_are_kept_on_request() {
    let stage = Stage::new().set("FIRST_KEEP_ARTIFACTS", 1);
    stage.play("passes").passed();
    assert_eq!(runs(&stage), ["1", "2", "3"]);
    let stage = Stage::new().set("FIRST_KEEP_ARTIFACTS", 0);
    stage.play("passes").passed();
    assert_eq!(stage.left(), Vec::<String>::new());
}

#[test]
fn a_directory_without_the_right_to_write_is_removed() {
    let stage = Stage::new();
    stage.play("locks_its_directory").passed();
    assert_eq!(stage.left(), Vec::<String>::new());
}
