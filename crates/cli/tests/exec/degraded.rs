//! Sandboxes on machines that lack something: never less than requested without a refusal.
#![cfg(target_arch = "x86_64")]

use crate::common::{Called, RETAKE, Sandbox, WITHOUT, called};

fn without(sandbox: &Sandbox, what: &str, arguments: &[&str]) -> Called {
    let mut command = sandbox.command("python3");
    called(command.args(["-c", WITHOUT, what, RETAKE]).args(arguments))
}

/// The level at which a command that tries to escape was confined, according to the result.
fn level(sandbox: &Sandbox, what: &str, mode: &str) -> (Called, Option<String>) {
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    let script = format!("echo x > {}; echo made > made", outside.display());
    let mode = format!("--sandbox={mode}");
    let called = without(sandbox, what, &["exec", &mode, "--json", "--", "sh", "-c", &script]);
    assert!(!outside.exists(), "{what}: {}", called.snapshot());
    let json = called.json();
    let level = json["sandbox"]["level"].as_str().map(str::to_owned);
    assert_eq!(level.is_some(), std::fs::remove_file(sandbox.project().join("made")).is_ok());
    (called, level)
}

#[test]
fn each_sandbox_level_is_the_fallback_of_the_better_one() {
    let sandbox = Sandbox::new();
    let (probe, full) = level(&sandbox, "", "strict");
    if full.as_deref() != Some("full") {
        eprintln!("SKIP: {}", probe.snapshot());
        return;
    }
    for (what, strict, best_effort) in [
        ("landlock", Some("full"), Some("full")),
        ("namespaces", None, Some("landlock")),
        ("networks", None, Some("landlock")),
        ("mounts", None, Some("landlock")),
        ("domain", None, Some("landlock")),
        ("namespaces,landlock", None, None),
        ("mounts,landlock", None, None),
    ] {
        let (called, found) = level(&sandbox, what, "strict");
        assert_eq!(found.as_deref(), strict, "{what}: {}", called.snapshot());
        let (called, found) = level(&sandbox, what, "best-effort");
        assert_eq!(found.as_deref(), best_effort, "{what}: {}", called.snapshot());
        let doctor = without(&sandbox, what, &["doctor", "--json"]).json();
        assert_eq!(doctor["sandbox"], best_effort.unwrap_or("none"), "{what}: {doctor}");
    }
}

/// A process whose calls are notified waits for an answer, or they fail without one.
#[test]
fn without_answers_to_notifications_runs_are_confined_without_reports() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.project().join(".vscode")).unwrap();
    let script = "touch .vscode/planted; mkdir made && rmdir made && echo done";
    let run = |what: &str| {
        let called = without(
            &sandbox,
            what,
            &["exec", "--sandbox=best-effort", "--json", "--", "sh", "-c", script],
        );
        let json = called.json();
        assert_eq!(json["stdout"], "done\n", "{what}: {}", called.snapshot());
        json["sandbox"].clone()
    };
    let told = run("");
    if told["level"] != "full" {
        eprintln!("SKIP: {told}");
        return;
    }
    assert_eq!(told["denied"].as_array().map(Vec::len), Some(1), "{told}");
    for (what, level) in
        [("questions", "full"), ("answers", "full"), ("questions,namespaces", "landlock")]
    {
        let told = run(what);
        assert_eq!(told["level"], level, "{what}: {told}");
        assert_eq!(told["denied"], serde_json::json!([]), "{what}: {told}");
        let planted = sandbox.project().join(".vscode/planted").exists();
        assert_eq!(planted, level == "landlock", "{what}: {told}");
    }
}

/// Without notification it is unknown whether such a bit was set: files are searched for it anyway.
#[test]
fn set_id_bits_are_refused_or_listed_without_notification_too() {
    let sandbox = Sandbox::new();
    let script = "cp /usr/bin/true a; cp a b; chmod 4755 a; chmod 2755 b; ls -l";
    for what in ["", "questions", "answers", "questions,namespaces"] {
        let arguments = ["exec", "--sandbox=best-effort", "--json", "--", "sh", "-c", script];
        let called = without(&sandbox, what, &arguments);
        let json = called.json();
        if json["sandbox"]["level"].is_null() {
            eprintln!("SKIP: {}", called.snapshot());
            return;
        }
        let shown = json["stdout"].as_str().unwrap();
        assert!(!shown.contains("rws") && shown.contains("r-s"), "{what}: {}", called.snapshot());
        let left = json["sandbox"]["leftForHost"]["files"].as_array().unwrap();
        assert_eq!(left.len(), 1, "{what}: {json}");
        assert_eq!(left[0]["kind"], "set_id_file", "{what}: {json}");
        for name in ["a", "b"] {
            std::fs::remove_file(sandbox.project().join(name)).unwrap();
        }
    }
}

#[test]
fn a_refusal_names_what_is_missing_and_what_to_do() {
    let sandbox = Sandbox::new();
    if sandbox.retake(&["exec", "--sandbox", "--", "true"]).code != 0 {
        eprintln!("SKIP: no namespaces here");
        return;
    }
    for (what, words) in [
        ("namespaces", ["user namespaces", "--sandbox=best-effort"]),
        ("domain", ["mounts", "--sandbox=best-effort"]),
    ] {
        let called = without(&sandbox, what, &["exec", "--sandbox", "--", "true"]);
        assert_eq!(called.code, 125, "{what}: {}", called.snapshot());
        for word in words {
            assert!(called.stderr.contains(word), "{what}, {word}: {}", called.stderr);
        }
    }
}

#[test]
fn inside_of_bubblewrap_it_confines_once_more_or_refuses() {
    let sandbox = Sandbox::new();
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    let line = format!(
        "bwrap --dev-bind / / --unshare-user --unshare-pid --proc /proc retake exec --sandbox=best-effort --json -- \
         sh -c 'echo x > {}'",
        outside.display()
    );
    if sandbox.sh("bwrap --dev-bind / / true").code != 0 {
        eprintln!("SKIP: bwrap does not work here");
        return;
    }
    let called = sandbox.sh(&line);
    assert!(!outside.exists(), "{}", called.snapshot());
    let level = called.json()["sandbox"]["level"].clone();
    assert!(level == "full" || level == "landlock", "{}", called.snapshot());
}
