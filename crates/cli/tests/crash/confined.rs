//! `retake crash --sandbox`: checks are confined.

use crate::env::Env;

#[test]
fn a_check_writes_to_its_state_and_not_outside() {
    let env = Env::new();
    if !env.sandbox.can_be_confined() {
        return;
    }
    let outside = env.sandbox.dir.path().canonicalize().unwrap().join("outside");
    // Every check sees its state, can write there, and can read what was acknowledged.
    let check = format!(
        "touch {}; touch root/recovered && cat $FIRST_ACKS && test -d $FIRST_WORK_DIR",
        outside.display()
    );
    let words = ["--root", "root", "--sandbox", "--verify", &check, "--", "touch", "root/file"];
    env.expect(0, &words);
    assert!(!outside.exists());
    assert!(!env.root().join("recovered").exists());
    let recovery = env.crash(&[&["--recovery"], &words[..]].concat());
    assert_ne!(recovery.code, 0);
    assert!(recovery.stderr.contains("--recovery"), "{}", recovery.snapshot());
}
