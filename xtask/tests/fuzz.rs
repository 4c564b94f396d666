//! A short part of `cargo xtask fuzz`: the corpus, and some seconds of new lines.

#![cfg(feature = "bench")]

use std::process::Command;

#[test]
fn the_policy_lets_nothing_through_that_its_rules_forbid() {
    let mut fuzz = Command::new(env!("CARGO_BIN_EXE_xtask"));
    // The same lines each time, so that only the change matters.
    let done = fuzz.args(["fuzz", "10"]).env("RETAKE_FUZZ_SEED", "20261117").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{why}");
    assert!(said.contains("SKIP") || said.contains("allowed and run by both shells"), "{said}");
}
