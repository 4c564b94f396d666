//! No secret of a matrix is in its record or in a result.

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

/// Files for other machines, and the log of a job.
#[test]
fn lines_bundles_durations_and_gates_have_no_secrets() {
    let env = Env::bare();
    env.config(&format!(
        "command: 'echo \"metric: load=$(echo $AXIS_N | cut -c1).$(( (ITERATION * 7 + 3) % 10 )) ms\"'\niterations: 6\n\
         env: {{API_TOKEN: {VALUE}}}\naxes: {{n: ['1 {VALUE}', '2 {SHAPE}']}}\n"
    ));
    let ran = env.expect(1, &["run", "--metric", "load", "--fail-if", "slower:5%"]);
    assert!(ran.stderr.contains("n=1 [redacted:API_TOKEN] #0"), "{}", ran.snapshot());
    assert!(ran.stderr.contains("--fail-if: "), "{}", ran.snapshot());
    std::fs::create_dir(env.sandbox.project().join("parts")).expect("made");
    let sharded = ["run", "--append", "1", "--shard", "1/2", "--bundle", "parts/1"];
    let part = env.expect(0, &sharded);
    let exported = env.expect(0, &["export", "out"]);
    let balanced = ["run", "--append", "1", "--shard", "1/2", "--durations", "out/durations.json"];
    let balanced = env.expect(0, &balanced);
    for called in [&ran, &part, &exported, &balanced] {
        for secret in [VALUE, SHAPE] {
            assert!(!called.stdout.contains(secret), "{secret}: {}", called.snapshot());
            assert!(!called.stderr.contains(secret), "{secret}: {}", called.snapshot());
        }
    }
    for secret in [VALUE, SHAPE] {
        for name in ["out", "parts"] {
            let written = env.sandbox.project().join(name);
            assert!(!on_disk(&written, secret.as_bytes()), "{secret} is in {name}");
        }
    }
    // The columns are aligned for the redacted text.
    let lines: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("n=")).collect();
    let ends: Vec<Option<usize>> = lines.iter().map(|line| line.find(" …")).collect();
    assert!(ends.len() == 2 && ends[0] == ends[1], "{}", ran.stdout);
}

#[test]
fn no_redact_keeps_secrets_in_the_record() {
    let env = Env::with_commits(&["1", SHAPE]);
    config(&env);
    env.expect(0, &["run", "-q", "--no-redact"]);
    let exported = env.sandbox.retake(&["runs", "export"]).stdout;
    assert!(exported.contains(VALUE) && !exported.contains("[redacted:"), "{exported}");
    assert!(on_disk(&env.sandbox.store(), VALUE.as_bytes()));
}
