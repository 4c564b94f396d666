//! Checkpoints with the real git: what is kept, and what is left alone.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

use retake_agent::checkpoint::{Commands, Git, RollbackError, parse_list, rollback};
use retake_agent::workspace::Name;

fn shell(dir: &Path, line: &str) -> String {
    let out = Command::new("sh").arg("-ec").arg(line).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn run(git: &Git) -> String {
    let out = Command::new(&git.argv[0])
        .args(&git.argv[1..])
        .envs(git.env.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    assert!(out.status.success(), "{:?}: {}", git.argv, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim_end().to_owned()
}

/// The tree of what is there now, in a fresh index.
fn tree(commands: &Commands<'_>) -> String {
    if commands.index.exists() {
        std::fs::remove_file(commands.index).unwrap();
    }
    run(&commands.read_tree("HEAD"));
    run(&commands.add_all());
    run(&commands.write_tree())
}

#[test]
fn kept_and_restored_without_touching_what_is_the_users() {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("repo");
    std::fs::create_dir(&repo).unwrap();
    shell(
        &repo,
        "git init -q -b main; git config user.name me; git config user.email me@x; \
         echo one > a; echo ignored > .gitignore; git add .; git commit -qm first; \
         mkdir -p .agent; echo own > .agent/config.yml; \
         for hook in pre-commit post-commit reference-transaction post-index-change post-checkout; \
         do printf '#!/bin/sh\\necho $0 >> %s/hooks-ran\\n' \"$PWD\" > .git/hooks/$hook; \
         chmod +x .git/hooks/$hook; done; \
         echo staged > staged; git add staged; rm -f hooks-ran; echo dirty >> a; echo x > ignored",
    );
    let users = || {
        let index = std::fs::read(repo.join(".git/index")).unwrap();
        let refs = shell(&repo, "cat .git/HEAD; git rev-parse main; git stash list; git branch -a");
        (index, refs)
    };
    let before = users();
    let name = Name::new("t").unwrap();
    let index = dir.path().join("index");
    let commands = Commands { project: &repo, index: &index };
    assert_eq!(
        Path::new(&run(&commands.top())).canonicalize().unwrap(),
        repo.canonicalize().unwrap()
    );
    let head = run(&commands.head());
    let keep = |iteration: u32| {
        let tree = tree(&commands);
        let commit = run(&commands.commit_tree(&tree, Some(&head), &name, iteration));
        run(&commands.update_ref(&name, iteration, &commit));
    };
    keep(1);
    shell(&repo, "echo two > a; rm staged; mkdir sub; echo new > 'sub/b c'");
    keep(2);
    let all = parse_list(&name, &run(&commands.list(&name)));
    assert_eq!(all.iter().map(|c| c.iteration).collect::<Vec<_>>(), [1, 2]);
    assert!(run(&commands.differences(&all[0].tree, &all[1].tree)).contains("sub/b c"));
    assert!(
        !shell(&repo, &format!("git ls-tree -r --name-only {}", all[1].tree)).contains(".agent")
    );

    let now = tree(&commands);
    let target = rollback(&name, &all, 1, &now).unwrap();
    run(&commands.refresh());
    run(&commands.switch_tree(&now, &target.tree));
    assert_eq!(
        shell(&repo, "cat a staged ignored .agent/config.yml"),
        "one\ndirty\nstaged\nx\nown\n"
    );
    assert!(!repo.join("sub").exists());
    assert_eq!(tree(&commands), target.tree);
    assert_eq!(users(), before);
    assert!(!repo.join("hooks-ran").exists(), "{}", shell(&repo, "cat hooks-ran"));

    shell(&repo, "echo mine > a");
    let refused = rollback(&name, &all, 2, &tree(&commands));
    assert_eq!(refused, Err(RollbackError::Changed { iteration: 2 }));
}
