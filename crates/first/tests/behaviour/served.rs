//! Checks by copies of one process, which stopped right before its check, and cases without them.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::scenario::{note, scratch};
use crate::stage::Stage;

const POINTS: usize = 3;

/// The lines that a scenario wrote to a file.
fn noted(stage: &Stage, file: &str) -> Vec<String> {
    let text = fs::read_to_string(stage.scratch().join(file)).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn setup_before_the_check_runs_once_for_all_checks() {
    let stage = Stage::new();
    stage.play_named("served::counts").passed();
    // The orchestrator, the recorded run, the second run, and the server.
    assert_eq!(noted(&stage, "setups").len(), 4);
    let checks = noted(&stage, "checks");
    let parents: HashSet<&str> = checks.iter().filter_map(|pids| pids.split(' ').nth(1)).collect();
    let own: HashSet<&str> = checks.iter().filter_map(|pids| pids.split(' ').next()).collect();
    assert_eq!((parents.len(), own.len()), (1, POINTS), "{checks:?}");
    assert_eq!((stage.left(), stage.alive()), (vec![], vec![]));
}

#[test]
fn a_test_that_cannot_be_copied_is_started_for_every_check() {
    for what in ["thread", "process", "executor"] {
        let stage = Stage::new().set("SERVED_STARTS", what);
        stage
            .play_named(if what == "executor" { "served::async_" } else { "served::counts" })
            .passed();
        // One more: the server that could not serve.
        assert_eq!(noted(&stage, "setups").len(), 4 + POINTS, "{what}");
        assert_eq!(noted(&stage, "checks").len(), POINTS, "{what}");
        assert_eq!(stage.alive(), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_check_that_ends_its_server_is_repeated_without_one() {
    let stage = Stage::new();
    let played = stage.play_named("served::ends_its_server");
    played.passed();
    assert_eq!(played.count(": OK"), POINTS, "{}", played.text);
    // The first one twice.
    assert_eq!(noted(&stage, "checks").len(), POINTS + 1);
    assert_eq!((stage.left(), stage.alive()), (vec![], vec![]));
}

#[test]
fn each_check_gets_the_data_of_its_own_point() {
    let stage = Stage::new();
    stage.play_named("served::tells").passed();
    let told = noted(&stage, "told");
    assert_eq!(told, ["1 a 1 a", "2 b 2 b", "3 c 3 c"]);
}

#[test]
fn states_that_are_written_ahead_are_those_of_their_points_and_checked_one_at_a_time() {
    let stage = Stage::new();
    let played = stage.play_named("served::many");
    played.passed();
    // A point between two writes has the state of the previous one.
    let distinct = MANY - MANY / 3;
    assert_eq!(played.count("same state as"), MANY / 3, "{}", played.text);
    let checks = noted(&stage, "checks");
    assert_eq!(checks.len(), 2 * distinct, "{checks:?}");
    let in_turn = (1..=MANY).filter(|point| point % 3 != 0);
    for (point, one) in in_turn.zip(checks.chunks(2)) {
        assert_eq!(one, [format!("begins {point}"), format!("ends {point}")], "{checks:?}");
    }
    let servers: HashSet<_> = noted(&stage, "servers").into_iter().collect();
    let processors = std::thread::available_parallelism().unwrap().get();
    assert_eq!(
        servers.len(),
        processors.min(2),
        "one checks while the state of the other is written"
    );
    assert_eq!((stage.left(), stage.alive()), (vec![], vec![]));
}

#[test]
fn a_state_prepared_in_vain_is_not_used_for_another_point() {
    let stage = Stage::new().set("SERVED_STARTS", "looks");
    let played = stage.play_named("served::many");
    played.passed();
    // If a check uses its crash info, equal states are checked again.
    assert_eq!(played.count("same state as"), MANY / 6, "{}", played.text);
}

#[test]
fn a_failure_among_states_that_were_written_ahead_is_that_of_its_point() {
    let stage = Stage::new().set("SERVED_STARTS", "failure");
    let played = stage.play_named("served::many");
    played.failed(&[&format!("crash point {FAILS_AT} "), "as it should"]);
    assert_eq!(played.count(": OK"), FAILS_AT - 1, "{}", played.text);
    assert_eq!(stage.alive(), Vec::<String>::new());
}

const MANY: usize = 60;
const FAILS_AT: usize = 34;

fn steps(env: &first::Env) {
    for label in ["a", "b", "c"] {
        fs::write(env.path(label), label).unwrap();
        first::crash_point(label);
    }
}

fn count() {
    // A static has its value from before the first check.
    static CHECKED: AtomicUsize = AtomicUsize::new(0);
    assert_eq!(CHECKED.fetch_add(1, Ordering::Relaxed), 0);
    // SAFETY: neither has arguments or fails.
    let (own, parent) = unsafe { (libc::getpid(), libc::getppid()) };
    note("checks", &format!("{own} {parent}"));
}

fn starts(what: &str) -> bool {
    std::env::var("SERVED_STARTS").is_ok_and(|value| value == what)
}

#[test]
#[ignore = "started by the tests beside it"]
fn counts() {
    note("setups", "");
    if starts("thread") {
        std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
    }
    let process =
        starts("process").then(|| std::process::Command::new("sleep").arg("1000").spawn().unwrap());
    first::test().run(steps).verify(|_, _| count());
    if let Some(mut process) = process {
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

#[test]
fn a_second_run_that_fails_leaves_its_directory() {
    let stage = Stage::new();
    let played = stage.play_named("served::panics_in_its_second_run");
    played.failed(&["the workload panicked after crash point 2 (\"b\"): no disk"]);
    let left = stage.left();
    assert!(left.iter().any(|path| path.ends_with("run_5/b")), "{left:?}");
    assert!(!left.iter().any(|path| path.ends_with("run_5/c")), "{left:?}");
}

#[test]
#[ignore = "started by the tests beside it"]
fn panics_in_its_second_run() {
    first::test()
        .run(|env| {
            let runs = note("runs", "");
            for label in ["a", "b", "c"] {
                assert!(runs == 1 || label != "c", "no disk");
                fs::write(env.path(label), label).unwrap();
                first::crash_point(label);
            }
        })
        .verify(|_, _| {});
}

/// Every third point is reached before anything more is written.
#[test]
#[ignore = "started by the tests beside it"]
fn many() {
    first::test()
        .run(|env| {
            for point in 1..=MANY {
                if point % 3 != 0 {
                    fs::write(env.path("number"), point.to_string()).unwrap();
                    fs::write(env.path(format!("file {point}")), "").unwrap();
                    first::ack(point.to_string());
                }
                first::crash_point(&format!("p{point}"));
            }
        })
        .verify(|env, crash| {
            let number = fs::read_to_string(env.path("number")).unwrap();
            note("checks", &format!("begins {number}"));
            // SAFETY: it has no arguments and does not fail.
            note("servers", &format!("{}", unsafe { libc::getppid() }));
            let last: usize = number.parse().unwrap();
            // Irregularly, so that the next state cannot be predicted.
            if starts("looks") && last.is_multiple_of(2) {
                assert!(crash.point_id() - last < 2);
            }
            let written = (1..=last).filter(|point| point % 3 != 0).count();
            assert_eq!(fs::read_dir(env.path("")).unwrap().count(), 1 + written);
            let promised = fs::read_to_string(std::env::var_os("FIRST_ACKS").unwrap()).unwrap();
            assert_eq!(promised.lines().last(), Some(number.as_str()));
            assert!(!starts("failure") || last != FAILS_AT, "as it should");
            // Changes of a check to its state are invisible to other checks.
            fs::write(env.path("left"), "").unwrap();
            fs::remove_file(env.path(format!("file {number}"))).unwrap();
            note("checks", &format!("ends {number}"));
        });
}

#[test]
#[ignore = "started by the tests beside it"]
fn async_() {
    note("setups", "");
    crate::executor::block_on(async {
        first::test().run_async(async |env| steps(&env)).verify_async(async |_, _| count()).await;
    });
}

#[test]
#[ignore = "started by the tests beside it"]
fn ends_its_server() {
    first::test().run(steps).verify(|_, _| {
        note("checks", "");
        if std::env::var_os("FIRST_CHECK_SERVER").is_some() {
            // SAFETY: plain numbers; the parent is the server.
            unsafe { libc::kill(libc::getppid(), libc::SIGKILL) };
            loop {
                std::thread::park();
            }
        }
    });
}

#[test]
#[ignore = "started by the tests beside it"]
fn tells() {
    first::test().run(steps).verify(|env, crash| {
        let variable = |name: &str| std::env::var(name).unwrap();
        assert_eq!(variable("FIRST_WORK_DIR"), env.path("").display().to_string());
        let told = format!("{} {}", crash.point_id(), crash.label());
        let variables =
            format!("{} {}", variable("FIRST_CRASH_POINT_ID"), variable("FIRST_CRASH_LABEL"));
        note("told", &format!("{told} {variables}"));
        assert!(scratch().exists());
    });
}
