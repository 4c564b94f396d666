//! Checkpoints and rollbacks under every crash state of a power-loss model, and under kills at any
//! moment: everything acknowledged is there, and everything that was kept can be restored.

use crate::common::{RETAKE, Sandbox, called};

/// Three files that differ from iteration to iteration, one of which is removed in the second.
const AGENT: &str = r#"start
case $RETAKE_ITERATION in
1) echo one > file; echo 1 > only; mkdir -p sub; seq 2000 > sub/many;;
*) echo two > file; rm -f only; seq 3000 > sub/many;;
esac
progress 1 9; result"#;

/// A project with a repository in `root/p`, and a loop of two iterations with checkpoints.
fn project() -> Sandbox {
    let sandbox = Sandbox::new();
    let agent = sandbox.agent("", &[AGENT]);
    let made = sandbox.sh(&format!(
        "mkdir -p root/p/.agent && cd root/p && git init -q && echo .agent > .gitignore && echo zero > file && \
         printf 'agent:\\n  claude:\\n    command: {}\\n' > .agent/config.yml && \
         echo Work. | retake agent init task --from - --delay 0 && retake agent run task --checkpoint -m 2",
        agent.display()
    ));
    assert_eq!(made.code, 0, "{}", made.snapshot());
    sandbox
}

/// What must be true in each state.
const CHECK: &str = r#"
fail() { echo "$1"; exit 1; }
is() { [ "$(cat file)" = "$1" ] && [ "$(wc -l < sub/many)" = "$2" ] && [ "$(ls only 2>/dev/null)" = "$3" ]; }
unset RETAKE_STORE
cd root/p || exit 1
# Acknowledged: the files are those of the checkpoint.
if grep -q '✓' "$FIRST_ACKS"; then is one 2000 only || fail "✓ and not there: $(head -3 file only 2>&1)"; fi
# One that broke off is finished; else there is nothing to finish.
retake agent rollback task > out 2>&1 || grep -q 'choose a checkpoint' out || fail "not finished: $(cat out)"
rm -f out
retake agent rollback task --to 2 > ../out 2>&1 || fail "to 2: $(cat ../out)"
is two 3000 '' || fail "not as after 2"
retake agent rollback task --to 1 > ../out 2>&1 || fail "to 1: $(cat ../out)"
is one 2000 only || fail "not as after 1"
retake agent rollback task --undo > ../out 2>&1 || fail "undo: $(cat ../out)"
is two 3000 '' || fail "not as before the last rollback"
"#;

fn explore(sandbox: &Sandbox, check: &str, program: &str) {
    let check = format!("sh {}", sandbox.file("check.sh", check).display());
    let mut command = sandbox.command(RETAKE);
    command.args(["crash", "--root", "root", "--json", "--model", "ext4", "--verify", &check]);
    let explored = called(command.args(["--", "sh", "-c", program]));
    assert_eq!(explored.code, 0, "{}", explored.snapshot());
    let answer = explored.json();
    assert_eq!(answer["complete"], true, "{answer}");
    assert!(answer["distinct"].as_u64().unwrap() > 50, "{answer}");
}

#[test]
fn a_rollback_survives_a_loss_of_power_at_any_moment() {
    let sandbox = project();
    explore(&sandbox, CHECK, "unset RETAKE_STORE; cd root/p && retake agent rollback task --to 1");
}
