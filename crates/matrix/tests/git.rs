//! Git operations in real repositories.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use retake_engine::{Cancel, Keeper, KeeperSettings};
use retake_matrix::git::{Git, GitError, WorktreeChange, WorktreeName, Worktrees};

struct Repo {
    temp: tempfile::TempDir,
    keeper: Keeper,
    cancel: Cancel,
}

fn environment() -> Vec<(OsString, OsString)> {
    let mut environment: Vec<_> = std::env::vars_os().collect();
    for (name, value) in [
        ("GIT_AUTHOR_NAME", "t"),
        ("GIT_AUTHOR_EMAIL", "t@t"),
        ("GIT_COMMITTER_NAME", "t"),
        ("GIT_COMMITTER_EMAIL", "t@t"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        // Submodules of this test are directories next to it.
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "protocol.file.allow"),
        ("GIT_CONFIG_VALUE_0", "always"),
    ] {
        environment.push((name.into(), value.into()));
    }
    environment
}

fn git_in(directory: &Path, arguments: &[&str]) -> String {
    let output = std::process::Command::new("git")
        .envs(environment())
        .arg("-C")
        .arg(directory)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?} {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Repo {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("repo")).unwrap();
        let repo = Self {
            temp,
            keeper: Keeper::start(KeeperSettings::default()).unwrap(),
            cancel: Cancel::new().unwrap(),
        };
        repo.run(&["init", "-q", "-b", "main"]);
        repo.commit("one");
        repo
    }

    fn path(&self) -> PathBuf {
        self.temp.path().join("repo")
    }

    fn run(&self, arguments: &[&str]) -> String {
        git_in(&self.path(), arguments)
    }

    fn commit(&self, text: &str) -> String {
        fs::write(self.path().join("file"), text).unwrap();
        self.run(&["add", "-A"]);
        self.run(&["commit", "-q", "-m", text]);
        self.run(&["rev-parse", "HEAD"])
    }

    fn git(&mut self) -> Git<'_> {
        let path = self.path();
        Git::open(&mut self.keeper, &self.cancel, &path, environment()).unwrap()
    }

    fn worktrees(&self) -> Worktrees {
        Worktrees::new(&self.temp.path().join("worktrees"))
    }
}

fn name(sha: &str) -> WorktreeName {
    WorktreeName { sha: sha.to_owned(), build: "0123456789abcdef".to_owned(), number: 0 }
}

#[test]
fn refs_tags_and_hashes_are_commits() {
    let mut repo = Repo::new();
    let sha = repo.run(&["rev-parse", "HEAD"]);
    repo.run(&["tag", "-a", "v1", "-m", "annotated"]);
    repo.run(&["tag", "-a", "v1-again", "-m", "of a tag", "v1"]);
    repo.run(&["branch", "feature/a"]);
    let tag = repo.run(&["rev-parse", "v1"]);
    assert_ne!(tag, sha);
    let mut git = repo.git();
    for reference in ["main", "v1", "v1-again", "feature/a", "HEAD", &sha, &sha[..10], &tag] {
        assert_eq!(git.resolve(reference).unwrap().sha, sha, "{reference}");
    }
}

#[test]
fn bad_refs_say_why() {
    let mut repo = Repo::new();
    let blob = repo.run(&["rev-parse", "HEAD:file"]);
    repo.run(&["update-ref", "refs/remotes/origin/theirs", "HEAD"]);
    let mut git = repo.git();
    let mut why = |reference: &str| match git.resolve(reference) {
        Err(GitError::BadRef { why, .. }) => why,
        other => panic!("{reference}: {other:?}"),
    };
    assert_eq!(why("nope"), "there is no such branch, tag or commit here");
    assert_eq!(why(&"1".repeat(40)), "there is no such branch, tag or commit here");
    assert_eq!(why("--output=x"), "begins with -, which a ref cannot");
    assert_eq!(why("a\nb"), "is not a valid ref name");
    assert_eq!(why(""), "is not a valid ref name");
    assert_eq!(why("main..x"), "there is no such branch, tag or commit here");
    assert_eq!(why(&blob), "is not a commit");
    assert!(why("theirs").ends_with("there is origin/theirs"));
}

#[test]
fn a_shallow_clone_says_so() {
    let mut repo = Repo::new();
    let old = repo.run(&["rev-parse", "HEAD"]);
    repo.commit("two");
    let source = format!("file://{}", repo.path().display());
    git_in(repo.temp.path(), &["clone", "-q", "--depth", "1", &source, "shallow"]);
    let shallow = repo.temp.path().join("shallow");
    let mut git = Git::open(&mut repo.keeper, &repo.cancel, &shallow, environment()).unwrap();
    let error = git.resolve(&old).unwrap_err().to_string();
    assert!(error.contains("shallow clone"), "{error}");
}

#[test]
fn a_directory_that_is_not_a_repository_is_refused() {
    let mut repo = Repo::new();
    let temp = tempfile::tempdir().unwrap();
    let mut open =
        |path: &Path| Git::open(&mut repo.keeper, &repo.cancel, path, environment()).err();
    assert!(matches!(open(temp.path()), Some(GitError::NotARepository(_))));
    assert!(matches!(open(&temp.path().join("x")), Some(GitError::NoDirectory(_))));
}

#[test]
fn variables_of_a_hook_do_not_lead_astray() {
    let mut repo = Repo::new();
    let sha = repo.run(&["rev-parse", "HEAD"]);
    let mut hooked = environment();
    hooked.push(("GIT_DIR".into(), "/no/such/repository".into()));
    let path = repo.path();
    let mut git = Git::open(&mut repo.keeper, &repo.cancel, &path, hooked).unwrap();
    assert_eq!(git.resolve("main").unwrap().sha, sha);
}

#[test]
fn a_worktree_is_made_once_and_shared_by_refs_on_its_commit() {
    let mut repo = Repo::new();
    repo.run(&["branch", "feature/a"]);
    repo.run(&["checkout", "-q", "-b", "feature-a"]);
    repo.commit("other");
    let worktrees = repo.worktrees();
    let mut git = repo.git();
    let slash = name(&git.resolve("feature/a").unwrap().sha);
    let main = name(&git.resolve("main").unwrap().sha);
    let hyphen = name(&git.resolve("feature-a").unwrap().sha);
    let (first, change) = worktrees.ensure(&mut git, &slash).unwrap();
    assert_eq!(change, WorktreeChange::Created);
    worktrees.mark_complete(&first).unwrap();
    assert_eq!(worktrees.ensure(&mut git, &main).unwrap(), (first.clone(), WorktreeChange::Reused));
    let (second, _) = worktrees.ensure(&mut git, &hyphen).unwrap();
    assert_ne!(first.path, second.path);
    let text = |path: &Path| fs::read_to_string(path.join("file")).unwrap();
    assert_eq!((text(&first.path), text(&second.path)), ("one".into(), "other".into()));
    assert!(first.path.is_absolute());
    // Another build, and another worker.
    let built = WorktreeName { build: "fedcba9876543210".to_owned(), ..main.clone() };
    let worker = WorktreeName { number: 1, ..main };
    for other in [built, worker] {
        let (tree, change) = worktrees.ensure(&mut git, &other).unwrap();
        assert_eq!(change, WorktreeChange::Created);
        assert_ne!(tree.path, first.path);
    }
    assert_eq!(worktrees.list().unwrap().len(), 4);
}

#[test]
fn defects_of_a_worktree_are_reported() {
    let mut repo = Repo::new();
    let worktrees = repo.worktrees();
    let sha = repo.run(&["rev-parse", "HEAD"]);
    let mut git = repo.git();
    let (tree, _) = worktrees.ensure(&mut git, &name(&sha)).unwrap();
    assert_eq!(worktrees.defect(&mut git, &tree).unwrap(), None);
    git_in(&tree.path, &["commit", "-q", "--allow-empty", "-m", "by the command"]);
    let moved = Some("another commit was checked out in it");
    assert_eq!(worktrees.defect(&mut git, &tree).unwrap(), moved);
    fs::write(tree.path.join(".git"), "gitdir: /no/such\n").unwrap();
    let foreign = Some("it did not belong to this repository");
    assert_eq!(worktrees.defect(&mut git, &tree).unwrap(), foreign);
    fs::remove_file(tree.path.join(".git")).unwrap();
    let none = Some("it was no longer a worktree");
    assert_eq!(worktrees.defect(&mut git, &tree).unwrap(), none);
}

#[test]
fn missing_and_incomplete_worktrees_are_created_again() {
    let mut repo = Repo::new();
    let worktrees = repo.worktrees();
    let sha = repo.run(&["rev-parse", "HEAD"]);
    let directory = repo.temp.path().join("worktrees");
    let repository = repo.path();
    let mut git = repo.git();
    let name = name(&sha);
    let (tree, _) = worktrees.ensure(&mut git, &name).unwrap();
    worktrees.mark_complete(&tree).unwrap();

    let mut recreated = |what: &str| {
        let (tree, change) = worktrees.ensure(&mut git, &name).unwrap();
        let WorktreeChange::Recreated(why) = change else { panic!("{what}: {change:?}") };
        assert_eq!(fs::read_to_string(tree.path.join("file")).unwrap(), "one", "{what}");
        assert!(!tree.path.join("built").exists(), "{what}: its setup is gone with it");
        fs::write(tree.path.join("built"), "by setup").unwrap();
        worktrees.mark_complete(&tree).unwrap();
        why
    };
    fs::remove_dir_all(&tree.path).unwrap();
    assert_eq!(recreated("gone"), "it was gone");
    // What a killed `git worktree add` leaves: a lock, and missing files.
    fs::remove_file(directory.join(format!("{name}.complete"))).unwrap();
    fs::remove_file(tree.path.join("file")).unwrap();
    let known = repository.join(".git/worktrees").join(name.to_string());
    fs::write(known.join("locked"), "initializing").unwrap();
    assert_eq!(recreated("half made"), "it was incomplete");
    fs::remove_file(directory.join(format!("{name}.complete"))).unwrap();
    fs::remove_dir_all(&tree.path).unwrap();
    fs::write(&tree.path, "a file").unwrap();
    recreated("a file in its place");
}

#[test]
fn pointers_of_git_lfs_are_found_where_files_should_be() {
    let mut repo = Repo::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    fs::write(repo.path().join(".gitattributes"), "*.bin filter=lfs diff=lfs -text\n").unwrap();
    fs::create_dir(repo.path().join("deep")).unwrap();
    fs::write(repo.path().join("deep/large.bin"), pointer).unwrap();
    fs::write(repo.path().join("real.bin"), "content").unwrap();
    // Not under the rules of LFS, so it is the committed content.
    fs::write(repo.path().join("example.txt"), pointer).unwrap();
    let sha = repo.commit("large");
    let worktrees = repo.worktrees();
    let mut git = repo.git();
    let (tree, _) = worktrees.ensure(&mut git, &name(&sha)).unwrap();
    assert_eq!(git.lfs_pointers(&tree.path).unwrap(), ["deep/large.bin"]);
    fs::write(tree.path.join("deep/large.bin"), "12345").unwrap();
    assert_eq!(git.lfs_pointers(&tree.path).unwrap(), [""; 0]);
}

#[test]
fn a_worktree_contains_its_submodules() {
    let mut repo = Repo::new();
    let library = repo.temp.path().join("library");
    fs::create_dir(&library).unwrap();
    git_in(&library, &["init", "-q"]);
    fs::write(library.join("lib"), "lib").unwrap();
    git_in(&library, &["add", "-A"]);
    git_in(&library, &["commit", "-q", "-m", "lib"]);
    repo.run(&["submodule", "--quiet", "add", library.to_str().unwrap(), "sub"]);
    let sha = repo.commit("with submodule");
    let worktrees = repo.worktrees();
    let mut git = repo.git();
    let (tree, _) = worktrees.ensure(&mut git, &name(&sha)).unwrap();
    assert_eq!(fs::read_to_string(tree.path.join("sub/lib")).unwrap(), "lib");
    worktrees.clean(&mut git).unwrap();
    assert!(!tree.path.exists());
}

#[test]
fn cleaning_removes_ours_and_nothing_else() {
    let mut repo = Repo::new();
    let worktrees = repo.worktrees();
    let sha = repo.run(&["rev-parse", "HEAD"]);
    let directory = repo.temp.path().join("worktrees");
    let repository = repo.path();
    let mut git = Git::open(&mut repo.keeper, &repo.cancel, &repository, environment()).unwrap();
    assert_eq!(worktrees.clean(&mut git).unwrap(), [""; 0]);
    let (tree, _) = worktrees.ensure(&mut git, &name(&sha)).unwrap();
    worktrees.mark_complete(&tree).unwrap();
    fs::create_dir_all(worktrees.snapshot(&tree).join("tree")).unwrap();
    // With the name of an earlier release.
    let old = directory.join(&sha);
    git_in(&repository, &["worktree", "add", "--detach", "-q", old.to_str().unwrap(), &sha]);
    fs::write(directory.join(format!("{sha}.ready")), "").unwrap();
    fs::write(directory.join("notes.txt"), "mine").unwrap();
    assert_eq!(worktrees.clean(&mut git).unwrap(), [sha.clone(), name(&sha).to_string()]);
    let left: Vec<_> = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    assert_eq!(git_in(&repository, &["worktree", "list"]).lines().count(), 1);
}

#[test]
fn the_commits_between_follow_the_main_line_in_either_direction() {
    let mut repo = Repo::new();
    let one = repo.run(&["rev-parse", "HEAD"]);
    repo.run(&["checkout", "-q", "-b", "side"]);
    let side = repo.commit("side");
    repo.run(&["checkout", "-q", "main"]);
    let two = repo.commit("two");
    repo.run(&["merge", "-q", "-s", "ours", "-m", "merge", "side"]);
    let merge = repo.run(&["rev-parse", "HEAD"]);
    let three = repo.commit("three");
    let mut git = repo.git();
    let mut between = |a: &str, b: &str| {
        let (a, b) = (git.resolve(a).unwrap(), git.resolve(b).unwrap());
        git.between(&a, &b).map(|commits| (commits.shas, commits.first_parent))
    };
    let line = vec![one.clone(), two.clone(), merge.clone(), three.clone()];
    assert_eq!(between(&one, "main").unwrap(), (line.clone(), true));
    assert_eq!(between("main", &one).unwrap(), (line, true));
    assert_eq!(between("side", "main").unwrap(), (vec![side, merge, three], false));
    assert_eq!(between("main", "main").unwrap().0.len(), 1);
    let error = between("side", &two).unwrap_err().to_string();
    assert!(error.contains(&one[..12]), "{error}");
}

#[test]
fn planted_hooks_and_configuration_are_not_executed() {
    let mut repo = Repo::new();
    let sha = repo.run(&["rev-parse", "HEAD"]);
    let ran = repo.temp.path().join("ran");
    let touch = format!("touch '{}'; false", ran.display());
    fs::create_dir_all(repo.path().join(".git/hooks")).unwrap();
    for hook in ["post-checkout", "post-index-change", "reference-transaction"] {
        let path = repo.path().join(".git/hooks").join(hook);
        fs::write(&path, format!("#!/bin/sh\ntouch '{}'\n", ran.display())).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    for (key, value) in
        [("core.fsmonitor", touch.as_str()), ("core.pager", &touch), ("log.showSignature", "true")]
    {
        git_in(&repo.path(), &["config", "--file", ".git/config", key, value]);
    }
    let worktrees = repo.worktrees();
    let mut git = repo.git();
    worktrees.ensure(&mut git, &name(&sha)).unwrap();
    git.resolve("main").unwrap();
    git.subject(&sha).unwrap();
    worktrees.clean(&mut git).unwrap();
    assert!(!ran.exists());
    // The same with plain git: the planted commands do run.
    repo.run(&["worktree", "add", "-q", "--detach", "../plain", "main"]);
    assert!(ran.exists());
    // Configuration from another place.
    fs::write(repo.path().join(".git/commondir"), "../../elsewhere").unwrap();
    let path = repo.path();
    let refused = Git::open(&mut repo.keeper, &repo.cancel, &path, environment()).err();
    assert!(matches!(refused, Some(GitError::Redirected(_))), "{refused:?}");
}
