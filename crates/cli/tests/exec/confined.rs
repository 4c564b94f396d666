//! `retake exec --sandbox` as users see it. Escapes are tried in `escapes`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{Called, RETAKE, Sandbox, alive, eventually};

fn confined(sandbox: &Sandbox, script: &str) -> Called {
    sandbox.retake(&["exec", "--sandbox", "--", "sh", "-c", script])
}

#[test]
fn the_project_is_writable_and_the_record_is_not_there() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let called = confined(
        &sandbox,
        "echo new > made; ls .agent/data || echo hidden; touch .agent/config.yml || echo kept; \
         mv .agent away || echo pinned; touch $TMPDIR/t && echo temp",
    );
    assert_eq!(called.stdout, "hidden\nkept\npinned\ntemp\n", "{}", called.snapshot());
    assert_eq!(std::fs::read_to_string(sandbox.project().join("made")).unwrap(), "new\n");
    let shown = sandbox.sh("retake runs list --json | head -1");
    assert!(shown.stdout.contains("echo new"), "{}", shown.snapshot());
}

#[test]
fn the_result_and_the_record_say_how_it_was_confined() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let json = sandbox.retake(&["exec", "--sandbox", "--json", "--", "true"]).json();
    assert_eq!(json["sandbox"]["level"], "full");
    assert_eq!(json["sandbox"]["dropped"], serde_json::json!([]));
    let id = json["id"].as_str().unwrap();
    let shown = sandbox.retake(&["runs", "show", id]);
    assert!(shown.stdout.contains("strict: full"), "{}", shown.snapshot());
    let again = sandbox.retake(&["again", id, "--json"]);
    assert!(again.stdout.contains("\"level\":\"full\""), "{}", again.snapshot());
    let plain = sandbox.retake(&["exec", "--sandbox=off", "--json", "--", "true"]).json();
    assert!(plain.get("sandbox").is_none());
}

#[test]
fn options_that_cannot_be_enforced_are_refused_with_every_reason() {
    let sandbox = Sandbox::new();
    let called = sandbox.retake(&[
        "exec",
        "--sandbox",
        "--allow-write=/no/such",
        "--deny-read=/proc/1",
        "--detach-ok",
        "--",
        "true",
    ]);
    assert_eq!(called.code, 125);
    for part in ["/no/such", "create it first", "/proc/1", "--detach-ok"] {
        assert!(called.stderr.contains(part), "{part}: {}", called.stderr);
    }
    let word = sandbox.retake(&["exec", "--sandbox=loose", "--", "true"]);
    assert!(word.stderr.contains("best-effort"), "{}", word.stderr);
    let alone = sandbox.retake(&["exec", "--allow-write=/etc", "--", "true"]);
    assert_ne!(alone.code, 0, "{}", alone.snapshot());
    let off = sandbox.retake(&["exec", "--sandbox=off", "--deny-read=/etc", "--", "true"]);
    assert_eq!(off.code, 125, "{}", off.snapshot());
}

#[test]
fn home_is_no_workspace() {
    let sandbox = Sandbox::new();
    let home = sandbox.dir.path().join("home");
    std::fs::create_dir_all(&home).unwrap();
    let called = crate::common::called(
        sandbox.command(RETAKE).args(["exec", "--sandbox", "--", "true"]).current_dir(&home),
    );
    assert_eq!(called.code, 125);
    assert!(called.stderr.contains("--allow-write"), "{}", called.stderr);
}

#[test]
fn without_namespaces_strict_refuses_and_best_effort_says_what_is_missing() {
    let sandbox = Sandbox::new();
    let none = "echo 0 >/proc/sys/user/max_user_namespaces";
    if sandbox.sh(&format!("unshare -Ur sh -c '{none}'")).code != 0 {
        return;
    }
    let run = |options: &str| {
        sandbox.sh(&format!("unshare -Ur sh -c '{none}; retake exec {options} -- touch made'"))
    };
    let strict = run("--sandbox");
    assert_eq!(strict.code, 125);
    assert!(strict.stderr.contains("user namespaces"), "{}", strict.stderr);
    assert!(!sandbox.project().join("made").exists(), "nothing ran");
    let best = run("--sandbox=best-effort --json");
    let json = best.json();
    if json["error"]["code"] == "ACODE-EXE-010" {
        return; // Neither mechanism: refused as well.
    }
    assert_eq!(json["sandbox"]["level"], "landlock");
    let dropped = json["sandbox"]["dropped"].as_array().unwrap();
    assert!(dropped.contains(&"record".into()), "{json}");
    assert!(best.stderr.contains("the record can be read and written"), "{}", best.stderr);
    assert!(sandbox.project().join("made").exists());
}

#[test]
fn git_commits_inside_in_a_linked_worktree_too() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let made = sandbox
        .sh("git init -q . && git config user.email a@b && git config user.name n && \
         git commit -q --allow-empty -m one && git worktree add -q ../linked -b l");
    assert_eq!(made.code, 0, "{}", made.snapshot());
    let commit = "echo x > f && git add f && git commit -qm inside && git log --format=%s -1";
    assert_eq!(confined(&sandbox, commit).stdout, "inside\n");
    let linked = sandbox.dir.path().join("linked");
    let called = crate::common::called(
        sandbox
            .command(RETAKE)
            .args(["exec", "--sandbox", "--", "sh", "-c", commit])
            .current_dir(&linked),
    );
    assert_eq!(called.stdout, "inside\n", "{}", called.snapshot());
}

/// A `.git` file that an earlier command planted gives no access.
#[test]
fn a_planted_git_file_opens_nothing() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let target = sandbox.dir.path().join("elsewhere");
    std::fs::create_dir(&target).unwrap();
    sandbox.file(".git", &format!("gitdir: {}\n", target.display()));
    let called = confined(&sandbox, "touch ../elsewhere/x 2>/dev/null || echo denied");
    assert_eq!(called.stdout, "denied\n", "{}", called.snapshot());
    assert!(!target.join("x").exists());
}

#[test]
fn secrets_among_the_variables_stay_outside_unless_given() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let script = "echo ${MY_TOKEN-none} ${SSH_AUTH_SOCK-none} ${GIVEN_TOKEN-none} $PLAIN";
    let called = crate::common::called(
        sandbox
            .command(RETAKE)
            .args(["exec", "--sandbox", "--no-redact", "--env", "GIVEN_TOKEN=g", "--"])
            .args(["sh", "-c", script])
            .env("MY_TOKEN", "t")
            .env("SSH_AUTH_SOCK", "/s")
            .env("PLAIN", "p"),
    );
    assert_eq!(called.stdout, "none none g p\n", "{}", called.snapshot());
}

#[test]
fn killing_retake_ends_everything_inside() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let mut child = sandbox
        .command(RETAKE)
        .args(["exec", "--sandbox", "--", "sh", "-c", "setsid sleep 1234.5 & echo ready; wait"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let sleeping = || {
        let out =
            std::process::Command::new("pgrep").args(["-f", "sleep 1234.5"]).output().unwrap();
        let pids = String::from_utf8(out.stdout).unwrap();
        pids.lines().filter_map(|pid| pid.parse().ok()).find(|pid| alive(*pid))
    };
    eventually("it sleeps", || sleeping().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("it is gone", || sleeping().is_none());
}

#[test]
fn doctor_says_what_this_machine_can_do() {
    let sandbox = Sandbox::new();
    let doctor = sandbox.retake(&["doctor", "--json"]).json();
    assert_eq!(doctor["sandbox"] == "full", sandbox.can_be_confined(), "{doctor}");
    let none = "unshare -Ur sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && retake doctor'";
    let without = sandbox.sh(none);
    if without.code == 0 {
        assert!(without.stdout.contains("user namespaces"), "{}", without.snapshot());
        assert!(!without.stdout.contains("full"), "{}", without.snapshot());
    }
}
