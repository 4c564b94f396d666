//! Checkpoints: what is kept, what is restored, and what is not touched.
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{RETAKE, Sandbox, called, eventually};

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
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
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

fn steer(sandbox: &Sandbox, words: &[&str]) {
    let words: Vec<_> = ["agent"].iter().chain(words).copied().collect();
    let called = sandbox.retake(&words);
    assert_eq!(called.code, 0, "{words:?}: {}", called.snapshot());
}

fn read(sandbox: &Sandbox, name: &str) -> Option<String> {
    std::fs::read_to_string(sandbox.project().join(name)).ok()
}

fn back(sandbox: &Sandbox, to: &str) -> crate::common::Called {
    sandbox.retake(&["agent", "rollback", "task", "--to", to])
}

fn undo(sandbox: &Sandbox) {
    steer(sandbox, &["rollback", "task", "--undo"]);
}

fn refs(sandbox: &Sandbox) -> Vec<String> {
    let listed = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/retake"]);
    listed.lines().map(str::to_owned).collect()
}

/// Whether a git process works in a directory.
fn runs_in(dir: &Path) -> bool {
    let name = dir.to_string_lossy().into_owned();
    std::fs::read_dir("/proc").unwrap().flatten().any(|process| {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        words.starts_with("git\0") && words.contains(&name)
    })
}

#[test]
fn a_checkpoint_is_created_restored_and_the_restore_undone() {
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
    assert_eq!(refs(&sandbox).len(), 4, "{:?}", refs(&sandbox));
    let listed = sandbox.retake(&["agent", "checkpoints", "task", "--json"]).json();
    let listed = listed.as_array().unwrap();
    let numbers: Vec<_> = listed.iter().map(|one| one["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert_eq!((&listed[0]["time"], &listed[1]["time"]), (&"start".into(), &"iteration".into()));
    assert_eq!((&listed[1]["files"], &listed[1]["added"]), (&2.into(), &2.into()));

    let read = |name: &str| read(&sandbox, name);
    let called = back(&sandbox, "1");
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(
        (read("file"), read("added"), read("link")),
        (Some("one\n".into()), Some("x\n".into()), None)
    );
    assert_eq!(read("staged").as_deref(), Some("staged\n"));
    assert_eq!(read("built/out").as_deref(), Some("b\n"), "what git ignores stays");
    assert_eq!(state(&sandbox), before);
    assert!(!sandbox.project().join("hooked").exists());
    undo(&sandbox);
    assert_eq!((read("file"), read("staged")), (Some("three\n".into()), None));
    // A second undo is refused, and changes nothing.
    let called = sandbox.retake(&["agent", "rollback", "task", "--undo"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    let said = "the rollback was already undone; `retake agent rollback task --to 1` does it again";
    assert!(called.stderr.contains(said), "{}", called.snapshot());
    assert_eq!(read("file").as_deref(), Some("three\n"));
    assert_eq!(back(&sandbox, "0").code, 0);
    assert_eq!((read("file"), read("link")), (Some("zero\n".into()), None));

    // Work that is in no checkpoint is kept, and can be restored.
    sandbox.file("mine", "precious\n");
    sandbox.file("file", "edited\n");
    assert_eq!(back(&sandbox, "2").code, 0);
    assert_eq!((read("file"), read("mine")), (Some("two\n".into()), None));
    undo(&sandbox);
    assert_eq!((read("file"), read("mine")), (Some("edited\n".into()), Some("precious\n".into())));
    let called = back(&sandbox, "4");
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("choose from 0, 1, 2, 3"), "{}", called.snapshot());
    assert_ne!(back(&sandbox, "x").code, 0);
    let called = sandbox.retake(&["agent", "rollback", "task"]);
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("--to"), "{}", called.snapshot());
}

#[test]
fn iterations_are_compared() {
    let sandbox = Sandbox::new();
    repository(&sandbox);
    sandbox.agent("", &["start; echo \"line $n\" >> file; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "3", "--checkpoint"]).code, 0);
    let diff = |range: &[&str]| {
        let words: Vec<_> = ["agent", "diff", "task"].iter().chain(range).copied().collect();
        let called = sandbox.retake(&words);
        assert_eq!(called.code, 0, "{}", called.snapshot());
        let added = called.stdout.lines().filter(|line| line.starts_with("+line"));
        added.map(|line| line[1..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(diff(&["2"]), ["line 2"]);
    assert_eq!(diff(&["1..3"]), ["line 2", "line 3"]);
    assert_eq!(diff(&[]), ["line 1", "line 2", "line 3"]);
    assert_eq!(sandbox.retake(&["agent", "diff", "task", "0"]).code, 1);
    assert_eq!(sandbox.retake(&["agent", "diff", "task", "9"]).code, 1);
}

#[test]
fn an_ignored_file_in_the_way_is_kept_as_well() {
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
    let called = back(&sandbox, "1");
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(read(&sandbox, "thing").as_deref(), Some("made\n"));
    undo(&sandbox);
    assert_eq!(read(&sandbox, "thing").as_deref(), Some("mine\n"));
}

#[test]
fn a_checkpoint_restores_bytes_exactly() {
    let sandbox = Sandbox::new();
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.git(&["config", "core.autocrlf", "true"]);
    sandbox.git(&["config", "filter.x.clean", "touch planted; tr a-z A-Z"]);
    sandbox.git(&["config", "filter.x.smudge", "touch planted; cat"]);
    sandbox.file(".gitattributes", "* text=auto filter=x ident\n");
    sandbox.file(".gitignore", ".agent\nforced\n");
    sandbox.file("forced", "tracked though ignored\n");
    sandbox.file("crlf", "a\r\nb\n$Id$\n");
    sandbox.git(&["add", "-f", "forced"]);
    _ = std::fs::remove_file(sandbox.project().join("planted"));
    sandbox.agent("", &["start; rm crlf forced; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "1", "--checkpoint"]).code, 0);
    let called = back(&sandbox, "0");
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(read(&sandbox, "crlf").as_deref(), Some("a\r\nb\n$Id$\n"));
    assert_eq!(read(&sandbox, "forced").as_deref(), Some("tracked though ignored\n"));
    assert!(!sandbox.project().join("planted").exists(), "a filter of the repository ran");
}

#[test]
fn only_the_project_s_part_of_a_repository() {
    let sandbox = Sandbox::new();
    let outer = sandbox.project().parent().unwrap().to_owned();
    let git = |words: &[&str]| {
        let done = std::process::Command::new("git").arg("-C").arg(&outer).args(words).output();
        assert!(done.unwrap().status.success(), "{words:?}");
    };
    git(&["init", "-q", "-b", "main"]);
    std::fs::write(outer.join("outside"), "one\n").unwrap();
    sandbox.agent("", &["start; echo two > ../outside; echo x > inside; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "1", "--checkpoint"]).code, 0);
    let called = back(&sandbox, "0");
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(read(&sandbox, "inside"), None);
    assert_eq!(std::fs::read_to_string(outer.join("outside")).unwrap(), "two\n");
}

#[test]
fn repositories_inside_are_named_and_left_alone() {
    let sandbox = Sandbox::new();
    repository(&sandbox);
    let vendor = sandbox.project().join("vendor");
    std::fs::create_dir_all(&vendor).unwrap();
    let init = |dir: &Path| {
        let done = std::process::Command::new("git").arg("init").arg("-q").arg(dir).output();
        assert!(done.unwrap().status.success());
    };
    init(&vendor.join("lib"));
    std::fs::write(vendor.join("lib/file"), "lib\n").unwrap();
    sandbox.agent(
        "",
        &[
            "start; echo one > file; echo changed > vendor/lib/file; progress 1 9; result",
            "start; git init -q made; echo x > made/x; echo two > file; progress 2 9; result",
        ],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "2", "--checkpoint"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("do not cover vendor/lib"), "{}", called.snapshot());
    assert!(!called.stderr.contains("no checkpoint"), "{}", called.snapshot());
    let called = back(&sandbox, "1");
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("Left as they are: vendor/lib"), "{}", called.snapshot());
    assert_eq!(read(&sandbox, "file").as_deref(), Some("one\n"));
    assert_eq!(read(&sandbox, "vendor/lib/file").as_deref(), Some("changed\n"));
    assert_eq!(read(&sandbox, "made/x").as_deref(), Some("x\n"));

    // An untracked file in place of a checkpoint's file is not overwritten.
    std::fs::create_dir(sandbox.project().join("place")).unwrap();
    sandbox.file("place/a", "a\n");
    sandbox.agent(
        "",
        &["start; rm -r place; git init -q place; echo b > place/b; progress 1 9; result"],
    );
    assert_eq!(sandbox.run_agent(&["-m", "1", "--checkpoint"]).code, 0);
    let listed = sandbox.retake(&["agent", "checkpoints", "task", "--json"]).json();
    let start = listed.as_array().unwrap().iter().rev().find(|one| one["time"] == "start").unwrap();
    let called = back(&sandbox, &start["commit"].as_str().unwrap()[..12]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert!(
        called.stderr.contains("place has become a separate repository"),
        "{}",
        called.snapshot()
    );
    assert_eq!(read(&sandbox, "place/b").as_deref(), Some("b\n"));
}

#[test]
fn a_rollback_that_was_killed_is_finished_or_undone() {
    let sandbox = Sandbox::new();
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.file(".gitignore", ".agent\n");
    sandbox.agent(
        "",
        &[
            "start; mkdir d; for i in $(seq 3000); do echo one > d/$i; done; progress 1 9; result",
            "start; for i in $(seq 3000); do echo two $i > d/$i; done; progress 2 9; result",
        ],
    );
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "2", "--checkpoint"]).code, 0);
    let all = |text: &dyn Fn(usize) -> String| {
        (1..=3000).all(|i| read(&sandbox, &format!("d/{i}")) == Some(text(i)))
    };
    let (one, two): (&dyn Fn(usize) -> String, &dyn Fn(usize) -> String) =
        (&|_| "one\n".to_owned(), &|i| format!("two {i}\n"));
    let mut killed = 0;
    // Killed as soon as the first file has changed, and at a few later moments.
    for (round, wait) in [0, 5, 20, 60].into_iter().enumerate() {
        assert!(all(two), "round {round}");
        let child = sandbox
            .command(RETAKE)
            .args(["agent", "rollback", "task", "--to", "1"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut child = child;
        while read(&sandbox, "d/1").as_deref() == Some("two 1\n")
            && child.try_wait().unwrap().is_none()
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("git's end", || !runs_in(&sandbox.project()));
        if !all(one) {
            killed += 1;
            let called = sandbox.run_agent(&["-m", "1", "--checkpoint"]);
            assert_eq!(called.code, 1, "{}", called.snapshot());
            assert!(called.stderr.contains("was interrupted"), "{}", called.snapshot());
        }
        if round % 2 == 0 {
            // Without a goal it finishes an interrupted rollback; a completed one leaves nothing to finish.
            let called = sandbox.retake(&["agent", "rollback", "task"]);
            assert!(called.code == 0 || called.stderr.contains("--to"), "{}", called.snapshot());
            assert!(all(one), "round {round}");
        }
        undo(&sandbox);
    }
    assert!(all(two));
    assert!(killed > 0, "no rollback was caught in the middle");
}

#[test]
fn a_worktree_has_checkpoints_of_its_own() {
    let sandbox = Sandbox::new();
    repository(&sandbox);
    sandbox.agent("", &["start; pwd > file; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    // The workspace is committed, so the other tree contains it, too.
    sandbox.file(".gitignore", "built\n");
    sandbox.git(&["add", "-f", ".agent/workspaces", ".agent/config.yml"]);
    sandbox.git(&["-c", "core.hooksPath=/dev/null", "commit", "-q", "-m", "workspace"]);
    let linked = sandbox.project().parent().unwrap().join("linked");
    sandbox.git(&[
        "-c",
        "core.hooksPath=/dev/null",
        "worktree",
        "add",
        "-q",
        linked.to_str().unwrap(),
    ]);
    assert_eq!(sandbox.run_agent(&["-m", "1", "--checkpoint"]).code, 0);
    let there = |words: &[&str]| called(sandbox.command(RETAKE).current_dir(&linked).args(words));
    let done = there(&["agent", "run", "task", "-m", "1", "--no-delay", "--checkpoint"]);
    assert_eq!(done.code, 0, "{}", done.snapshot());
    for (dir, words) in [(sandbox.project(), "0"), (linked.clone(), "0"), (linked.clone(), "1")] {
        let done = called(
            sandbox
                .command(RETAKE)
                .current_dir(&dir)
                .args(["agent", "rollback", "task", "--to", words]),
        );
        assert_eq!(done.code, 0, "{}", done.snapshot());
    }
    assert_eq!(back(&sandbox, "1").code, 0);
    let text = |dir: &Path| std::fs::read_to_string(dir.join("file")).unwrap().trim().to_owned();
    assert_eq!(text(&sandbox.project()), sandbox.project().display().to_string());
    assert_eq!(text(&linked), linked.display().to_string());
}

#[test]
fn a_moved_reference_is_not_believed() {
    let sandbox = Sandbox::new();
    repository(&sandbox);
    sandbox.agent("", &["start; echo $n > file; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "2", "--checkpoint"]).code, 0);
    let refs = refs(&sandbox);
    let one = refs.iter().find(|name| name.ends_with("/1")).unwrap();
    sandbox.git(&["update-ref", one, "HEAD"]);
    assert_eq!(back(&sandbox, "1").code, 0);
    assert_eq!(read(&sandbox, "file").as_deref(), Some("1\n"));
    for name in &refs {
        sandbox.git(&["update-ref", "-d", name]);
    }
    sandbox.git(&["-c", "gc.reflogExpire=now", "gc", "-q", "--prune=now"]);
    let called = back(&sandbox, "2");
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("no longer has checkpoint"), "{}", called.snapshot());
}

#[test]
fn checkpoints_need_a_repository() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let refused = called(sandbox.command(RETAKE).args(["agent", "run", "task", "--checkpoint"]));
    assert_eq!(refused.code, 1, "{}", refused.snapshot());
    assert!(refused.stderr.contains("not in a git repository"), "{}", refused.snapshot());
    assert_eq!(sandbox.calls(), 0);
    assert_eq!(back(&sandbox, "1").code, 1);
}

#[test]
fn checkpoints_go_where_their_workspace_goes() {
    let sandbox = Sandbox::new();
    repository(&sandbox);
    sandbox.agent("", &["start; echo $n > file; progress 1 9; result"]);
    let run = || {
        sandbox.workspace("task", &[]);
        assert_eq!(sandbox.run_agent(&["-m", "2", "--checkpoint"]).code, 0);
    };
    let before = state(&sandbox);
    run();
    assert_eq!(refs(&sandbox).len(), 3);
    let called = sandbox.retake(&["agent", "clean", "task", "-f", "--no-archive"]);
    assert!(called.stdout.contains("3 checkpoints removed"), "{}", called.snapshot());
    assert_eq!(refs(&sandbox), Vec::<String>::new());

    // Archived checkpoints belong to no other workspace, and are restored with theirs.
    run();
    steer(&sandbox, &["clean", "task", "-f"]);
    let listed = sandbox.retake(&["agent", "archive", "list", "--json"]).json();
    let archive = listed[0]["archiveName"].as_str().unwrap().to_owned();
    assert_eq!(refs(&sandbox).len(), 3);
    sandbox.workspace("task", &[]);
    let called = back(&sandbox, "1");
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("no checkpoints"), "{}", called.snapshot());
    steer(&sandbox, &["clean", "task", "-f", "--no-archive"]);
    steer(&sandbox, &["archive", "restore", &archive, "other"]);
    steer(&sandbox, &["archive", "restore", &archive]);
    assert_eq!(back(&sandbox, "1").code, 0);
    assert_eq!(read(&sandbox, "file").as_deref(), Some("3\n"));
    // The workspace still has them.
    let called = sandbox.retake(&["agent", "archive", "delete", &archive, "-f"]);
    assert!(!called.stdout.contains("removed from git"), "{}", called.snapshot());
    let called = sandbox.retake(&["agent", "clean", "task", "-f", "--no-archive"]);
    assert!(called.stdout.contains("4 checkpoints removed"), "{}", called.snapshot());
    assert_eq!(state(&sandbox), before);
    assert!(!sandbox.project().join("hooked").exists());
}
