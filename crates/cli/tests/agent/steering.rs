//! Steering a loop from elsewhere, and going back.
use std::process::Stdio;

use crate::common::{RETAKE, Sandbox, called, eventually};

/// Waits in each iteration for a file `go-N`.
const STEP: &str = "start; touch \"$dir/at-$n\"; while [ ! -e \"$dir/go-$n\" ]; do sleep 0.02; done; \
                    progress 1 9; result";

fn go(sandbox: &Sandbox, call: u32) {
    std::fs::write(sandbox.agent_dir().join(format!("go-{call}")), "").unwrap();
}

fn steer(sandbox: &Sandbox, words: &[&str]) {
    let words: Vec<_> = ["agent"].iter().chain(words).copied().collect();
    let called = sandbox.retake(&words);
    assert_eq!(called.code, 0, "{words:?}: {}", called.snapshot());
}

#[test]
fn stop_ends_after_this_iteration() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["--fail-incomplete"]);
    sandbox.awaited("at-1");
    let list = sandbox.retake(&["agent", "list", "--json"]).json();
    assert_eq!((&list[0]["name"], &list[0]["running"]), (&"task".into(), &true.into()));
    assert_eq!(sandbox.statuses(), "1 executing");
    steer(&sandbox, &["stop", "task"]);
    go(&sandbox, 1);
    let called = running.end();
    assert_eq!(called.code, 6);
    assert!(called.stdout.contains("Stopped: asked to stop"), "{}", called.snapshot());
    assert_eq!(
        (sandbox.statuses().as_str(), sandbox.stop_reason().as_str()),
        ("1 completed", "stopped")
    );
    // A stop is for a loop that runs, and used up by it.
    let called = sandbox.retake(&["agent", "stop", "task"]);
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("task is not running"), "{}", called.snapshot());
    sandbox.agent("", &["start; complete; result"]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    assert_eq!(sandbox.stop_reason(), "completed");
}

#[test]
fn pause_holds_until_resumed() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let mut running = sandbox.start_agent(&["-m", "2"]);
    sandbox.awaited("at-1");
    steer(&sandbox, &["pause", "task"]);
    go(&sandbox, 1);
    go(&sandbox, 2);
    eventually("the pause", || sandbox.logs().contains("Paused"));
    assert!(!running.ended());
    assert_eq!(sandbox.calls(), 1);
    steer(&sandbox, &["resume", "task"]);
    assert_eq!(running.end().code, 0);
    assert_eq!(sandbox.calls(), 2);
}

#[test]
fn an_interrupt_ends_a_pause() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("at-1");
    steer(&sandbox, &["pause", "task"]);
    go(&sandbox, 1);
    eventually("the pause", || sandbox.logs().contains("Paused"));
    running.signal(libc::SIGINT);
    assert_eq!(running.end().code, 130);
    assert_eq!(sandbox.statuses(), "1 completed");
    assert_eq!(sandbox.stop_reason(), "interrupted");
}

#[test]
fn what_is_told_goes_into_the_next_prompt_once() {
    let sandbox = Sandbox::new();
    sandbox
        .agent("retry:\n  first: 1ms", &[STEP, "start; failed 500", "start; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    steer(&sandbox, &["tell", "task", "before it runs"]);
    let running = sandbox.start_agent(&["-m", "3"]);
    sandbox.awaited("at-1");
    steer(&sandbox, &["tell", "task", "pay $5 for {{this}}"]);
    steer(&sandbox, &["tell", "task", "and then that"]);
    go(&sandbox, 1);
    assert_eq!(running.end().code, 0);
    assert!(sandbox.prompt(1).contains("before it runs"));
    // Again for the second try of the same iteration, and not in the one after.
    for call in [2, 3] {
        let prompt = sandbox.prompt(call);
        assert!(prompt.contains("pay $5 for {{this}}\n\nand then that"), "{prompt}");
        assert!(!prompt.contains("before it runs"));
    }
    assert!(!sandbox.prompt(4).contains("and then that"));
    let called = sandbox.retake(&["agent", "tell", "task", " "]);
    assert_eq!(called.code, 1);
}

#[test]
fn watch_follows_a_loop() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.retake(&["agent", "watch", "task"]).code, 1);
    let running = sandbox.start_agent(&["-m", "2"]);
    sandbox.awaited("at-1");
    let watch = sandbox
        .command(RETAKE)
        .args(["agent", "watch", "task"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    go(&sandbox, 1);
    go(&sandbox, 2);
    assert_eq!(running.end().code, 0);
    let out = watch.wait_with_output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success());
    for part in [
        "iteration 1: executing",
        "iteration 1: completed, 0 files",
        "iteration 2: completed",
        "stopped: max_iterations",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

fn repository(sandbox: &Sandbox) {
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.file(".gitignore", ".agent\nbuilt\n");
    sandbox.file("file", "zero\n");
    sandbox.git(&["add", "."]);
    sandbox.git(&["commit", "-q", "-m", "first"]);
    // Something stashed, something staged, and hooks that must not run.
    sandbox.file("file", "stashed\n");
    sandbox.git(&["stash", "-q"]);
    sandbox.file("staged", "staged\n");
    sandbox.git(&["add", "staged"]);
    for hook in [
        "pre-commit",
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "post-rewrite",
    ] {
        let path = sandbox.file(&format!(".git/hooks/{hook}"), "#!/bin/sh\ntouch hooked\n");
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
    }
}

fn state(sandbox: &Sandbox) -> Vec<String> {
    let words: [&[&str]; 6] = [
        &["rev-parse", "HEAD"],
        &["symbolic-ref", "HEAD"],
        &["stash", "list", "--format=%H"],
        &["ls-files", "--stage"],
        &["for-each-ref", "refs/heads", "refs/tags", "refs/stash"],
        &["reflog", "--format=%H"],
    ];
    words.iter().map(|words| sandbox.git(words)).collect()
}

#[test]
fn checkpoints_and_going_back() {
    let sandbox = Sandbox::new();
    repository(&sandbox);
    sandbox.agent(
        "",
        &[
            "start; echo one > file; echo x > added; mkdir built; echo b > built/out; progress 1 9; result",
            "start; echo two > file; rm added; ln -s file link; progress 2 9; result",
            "start; echo three > file; rm staged; progress 3 9; result",
        ],
    );
    sandbox.workspace("task", &[]);
    let before = state(&sandbox);
    assert_eq!(sandbox.run_agent(&["-m", "3", "--checkpoint"]).code, 0);
    assert_eq!(state(&sandbox), before);
    assert!(!sandbox.project().join("hooked").exists());
    let refs = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/retake"]);
    assert_eq!(refs.lines().count(), 3, "{refs}");
    assert_eq!(sandbox.git(&["show", "refs/retake/agent/task/1:file"]), "one");

    let read = |name: &str| std::fs::read_to_string(sandbox.project().join(name)).ok();
    let back = |to: &str| sandbox.retake(&["agent", "rollback", "task", "--to", to]);
    let called = back("1");
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(
        (read("file"), read("added"), read("link")),
        (Some("one\n".into()), Some("x\n".into()), None)
    );
    assert_eq!(read("staged").as_deref(), Some("staged\n"));
    assert_eq!(read("built/out").as_deref(), Some("b\n"), "what git ignores stays");
    assert_eq!(state(&sandbox), before);
    assert!(!sandbox.project().join("hooked").exists());
    // And forth.
    assert_eq!(back("3").code, 0);
    assert_eq!((read("file"), read("staged")), (Some("three\n".into()), None));

    // Work that no checkpoint has is not overwritten.
    sandbox.file("mine", "precious\n");
    let called = back("2");
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("differs from the last checkpoint"), "{}", called.snapshot());
    assert_eq!((read("file"), read("mine")), (Some("three\n".into()), Some("precious\n".into())));
    for wrong in ["4", "0"] {
        assert_eq!(back(wrong).code, 1);
    }
    assert_eq!(back("x").code, 1);
}

#[test]
fn an_ignored_file_in_the_way_is_not_overwritten() {
    let sandbox = Sandbox::new();
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.file(".gitignore", ".agent\n");
    sandbox.agent(
        "",
        &[
            "start; echo made > thing; progress 1 9; result",
            "start; rm thing; echo thing >> .gitignore; progress 2 9; result",
        ],
    );
    sandbox.workspace("task", &[]);
    // Without any commit, too.
    let called = sandbox.run_agent(&["-m", "2", "--checkpoint"]);
    assert_eq!((called.code, called.stderr.as_str()), (0, ""), "{}", called.snapshot());
    sandbox.file("thing", "mine\n");
    let called = sandbox.retake(&["agent", "rollback", "task", "--to", "1"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert_eq!(std::fs::read_to_string(sandbox.project().join("thing")).unwrap(), "mine\n");
}

#[test]
fn checkpoints_need_a_repository_and_never_stop_the_loop() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let called = called(sandbox.command(RETAKE).env("GIT_CEILING_DIRECTORIES", "/").args([
        "agent",
        "run",
        "task",
        "--checkpoint",
    ]));
    assert!(called.stderr.contains("git"), "{}", called.snapshot());
    assert_eq!(sandbox.retake(&["agent", "rollback", "task", "--to", "1"]).code, 1);
}

#[test]
fn checkpoints_go_where_their_workspace_goes() {
    let sandbox = Sandbox::new();
    repository(&sandbox);
    sandbox.agent("", &["start; echo $n > file; progress 1 9; result"]);
    let refs = || {
        let listed = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/retake"]);
        listed.lines().map(|line| line.trim_start_matches("refs/retake/").to_owned()).collect()
    };
    let run = || {
        sandbox.workspace("task", &[]);
        assert_eq!(sandbox.run_agent(&["-m", "2", "--checkpoint"]).code, 0);
        assert_eq!(refs(), ["agent/task/1", "agent/task/2"]);
    };
    let back = |to: &str| sandbox.retake(&["agent", "rollback", "task", "--to", to]);
    let before = state(&sandbox);
    let refs: &dyn Fn() -> Vec<String> = &refs;

    run();
    let called = sandbox.retake(&["agent", "clean", "task", "-f", "--no-archive"]);
    assert!(called.stdout.contains("2 checkpoints removed"), "{}", called.snapshot());
    assert_eq!(refs(), Vec::<String>::new());

    // Put away they are nobody else's, and come back with what they belong to.
    run();
    steer(&sandbox, &["clean", "task", "-f"]);
    let listed = sandbox.retake(&["agent", "archive", "list", "--json"]).json();
    let archive = listed[0]["archiveName"].as_str().unwrap().to_owned();
    let put_away = [1, 2].map(|n| format!("archive/{archive}/{n}"));
    assert_eq!(refs(), put_away);
    sandbox.workspace("task", &[]);
    let called = back("1");
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("no checkpoints"), "{}", called.snapshot());
    steer(&sandbox, &["clean", "task", "-f", "--no-archive"]);
    steer(&sandbox, &["archive", "restore", &archive, "other"]);
    assert_eq!(refs(), put_away);
    steer(&sandbox, &["archive", "restore", &archive]);
    assert_eq!(refs().len(), 4);
    assert_eq!(back("1").code, 0);
    assert_eq!(std::fs::read_to_string(sandbox.project().join("file")).unwrap(), "3\n");
    let called = sandbox.retake(&["agent", "archive", "delete", &archive, "-f"]);
    assert!(called.stdout.contains("2 checkpoints removed"), "{}", called.snapshot());
    steer(&sandbox, &["archive", "save", "task", "--keep"]);
    assert_eq!(refs().len(), 4);
    assert_eq!(state(&sandbox), before);
    assert!(!sandbox.project().join("hooked").exists());
}
