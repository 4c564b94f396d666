//! Crashes during the recovery from a crash.

use serde_json::Value;

use crate::common::called;
use crate::env::{Env, sentences};

/// Promises `new` once it is in the journal; recovery moves it into `data`.
const PROGRAM: &str = "cd root; printf new > journal; sync journal .; echo new";

fn check(env: &Env, recover: &str) -> String {
    let text = format!(
        "cd \"$FIRST_WORK_DIR\"\nif [ \"$(cat journal 2>/dev/null)\" = new ]; then {recover}; fi\n\
         test ! -s \"$FIRST_ACKS\" || test \"$(cat data)\" = new\n"
    );
    format!("sh {}", env.sandbox.file("recover.sh", &text).display())
}

fn answer(env: &Env, code: i32, check: &str, recovery: bool) -> Value {
    std::fs::write(env.root().join("data"), "old").unwrap();
    let mut arguments = vec!["--root", "root", "--json", "--verify", check];
    if recovery {
        arguments.push("--recovery");
    }
    arguments.extend(["--", "sh", "-c", PROGRAM]);
    env.expect(code, &arguments).json()
}

#[test]
fn a_recovery_that_forgets_too_early_is_found_only_by_crashing_it() {
    let careless = "rm journal; sync .; printf new > data; sync data";
    let env = Env::new();
    let check = check(&env, careless);
    answer(&env, 0, &check, false);
    std::fs::remove_file(env.root().join("journal")).unwrap();
    let found = answer(&env, 1, &check, true);
    let sentences = sentences(&found);
    assert!(sentences[0].starts_with("a crash during recovery from state "), "{sentences:?}");
    assert!(sentences[0].contains("recovery op "), "{sentences:?}");
    // The state during recovery is reproduced from its own log, and listed from it.
    let log = found["findings"][0]["repro"].as_str().unwrap().split(' ').nth(3).unwrap();
    let shown = env.expect(0, &["show", log]).stdout;
    let (_, recovery) = shown.split_once("operations of the recovery in F1:\n").unwrap();
    assert!(recovery.contains("remove `journal`") && recovery.contains("sync `.`"), "{shown}");
    let shown = env.expect(0, &["show", log, "--json"]).json();
    assert_eq!(shown["recoveries"]["F1"][0]["number"], 1);
    let repro = found["findings"][0]["repro"].as_str().unwrap();
    let again = called(env.sandbox.command("sh").args(["-c", repro]));
    assert_eq!(again.code, 1, "{}", again.snapshot());
    let again = called(env.sandbox.command("sh").args(["-c", &format!("{repro} --verify true")]));
    assert_eq!(again.code, 0, "{}", again.snapshot());
}

#[test]
fn a_recovery_that_dies_between_two_steps_is_told_with_nothing_lost() {
    let careless = "rm journal; sync .; printf new > data; sync data .";
    let env = Env::new();
    let check = check(&env, careless);
    std::fs::write(env.root().join("data"), "old").unwrap();
    let arguments = ["--root", "root", "--recovery", "--verify", &check, "--", "sh", "-c", PROGRAM];
    let said = env.expect(1, &arguments).stdout;
    assert!(said.contains("fails with nothing lost, stopped between recovery op "), "{said}");
    let verdict = said.lines().find(|line| line.contains("1 finding: ")).unwrap_or(&said);
    assert!(verdict.starts_with("all ") && verdict.contains(" states of ext4 recover; "), "{said}");
    assert!(verdict.ends_with(" during recovery do not"), "{said}");
    assert!(!said.contains("`fsync`"), "{said}");
}

#[test]
fn a_recovery_that_can_be_repeated_is_clean() {
    let careful =
        "printf new > data.new; sync data.new; mv data.new data; sync .; rm journal; sync .";
    let env = Env::new();
    let check = check(&env, careful);
    let found = answer(&env, 0, &check, true);
    assert_eq!(found["complete"], true);
}

#[test]
fn a_check_that_changes_nothing_has_no_recovery_to_crash_and_that_is_said() {
    let env = Env::new();
    let note = "the check changed nothing, so there is no recovery to interrupt";
    let test = |check: &str| {
        let program = "echo new > root/data; sync root/data root; echo new";
        let arguments = ["--root", "root", "--fresh", "--recovery", "--verify", check];
        env.expect(0, &[&arguments[..], &["--", "sh", "-c", program]].concat()).stdout
    };
    let reads = "[ ! -s \"$FIRST_ACKS\" ] || grep -q new root/data";
    let said = test(reads);
    assert!(said.contains(note), "{said}");
    let said = test(&format!("touch root/recovered; {reads}"));
    assert!(!said.contains(note) && said.contains("during recovery checked, too"), "{said}");
}
