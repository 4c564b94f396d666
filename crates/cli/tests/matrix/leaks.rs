//! No secret of a matrix is in its record or in an answer.

use crate::common::on_disk;
use crate::env::Env;

/// A value that nothing else contains, and that no rule knows by its shape.
const VALUE: &str = "Zq7-matrix-Kw93xTr";
/// One that is known by its shape only.
const SHAPE: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";

fn config(env: &Env) {
    let around: String = ["setup", "prepare", "conclude", "cleanup"]
        .map(|name| format!("{name}: echo {name} {VALUE} $API_TOKEN\n"))
        .concat();
    env.config(&format!(
        "command: 'echo {VALUE}; ! grep -q ghp_ value'\n{around}iterations: 1\n\
         env: {{API_TOKEN: {VALUE}}}\ncode: {{refs: [v1, v2]}}\naxes: {{n: [{VALUE}]}}\n"
    ));
}

#[test]
fn setups_hooks_axes_and_answers_are_recorded_without_secrets() {
    let env = Env::with_commits(&["1", SHAPE]);
    config(&env);
    let ran = env.expect(0, &["run", "-q", "--json"]);
    let search = ["bisect", "--axis", "code", "--good", "v1", "--bad", "v2", "-q", "--json"];
    let found = env.expect(0, &search);
    assert_eq!(found.json()["subject"], "[redacted:github-token]", "{}", found.snapshot());
    let listed = env.sandbox.retake(&["runs", "list", "--json"]);
    let exported = env.sandbox.retake(&["runs", "export"]);
    for called in [&ran, &found, &listed, &exported] {
        for secret in [VALUE, SHAPE] {
            assert!(!called.stdout.contains(secret), "{secret}: {}", called.snapshot());
        }
    }
    for name in ["setup", "prepare", "conclude", "cleanup"] {
        assert!(exported.stdout.contains(&format!("echo {name} [redacted:")), "{name} was not run");
    }
    for secret in [VALUE, SHAPE] {
        assert!(!on_disk(&env.sandbox.store(), secret.as_bytes()), "{secret} is on the disk");
    }
}

#[test]
fn no_redact_keeps_them() {
    let env = Env::with_commits(&["1", SHAPE]);
    config(&env);
    env.expect(0, &["run", "-q", "--no-redact"]);
    let exported = env.sandbox.retake(&["runs", "export"]).stdout;
    assert!(exported.contains(VALUE) && !exported.contains("[redacted:"), "{exported}");
    assert!(on_disk(&env.sandbox.store(), VALUE.as_bytes()));
}
