//! `retake matrix run --sandbox`: setups, hooks and iterations are confined.

use crate::env::Env;

#[test]
fn setup_hooks_and_iterations_write_only_in_their_trees() {
    let env = Env::with_commits(&["1", "2"]);
    if !env.sandbox.can_be_confined() {
        return;
    }
    let outside = env.sandbox.dir.path().canonicalize().unwrap();
    let plant = |name: &str| {
        format!("touch {}/outside-{name} 2>/dev/null; touch {name}", outside.display())
    };
    env.config(&format!(
        "command: '{}; test -e setup && cat value'\nsetup: '{}'\nprepare: '{}'\niterations: 1\ncode:\n  repo: .\n  refs: [v1, v2]\n",
        plant("command"),
        plant("setup"),
        plant("prepare")
    ));
    env.expect(0, &["run", "--sandbox"]);
    for name in ["command", "setup", "prepare"] {
        assert!(!outside.join(format!("outside-{name}")).exists(), "{name}");
    }
    let remote = env.matrix(&["run", "--sandbox", "--on", "slurm"]);
    assert_ne!(remote.code, 0);
    assert!(remote.stderr.contains("--sandbox=off"), "{}", remote.snapshot());
}
