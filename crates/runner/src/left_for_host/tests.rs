//! Uses real repositories and files; the tests change files in place of a run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::git_dir::tests::{git, repository};

/// A project whose files are older than later changes.
fn project() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap().join("project");
    repository(&root);
    fs::write(root.join("package.json"), r#"{"scripts": {"test": "jest"}}"#).unwrap();
    fs::write(root.join(".envrc"), "old").unwrap();
    (dir, root)
}

/// Waits until the clock of file systems advances, so that later changes have later times.
fn tick() {
    let now = Moment::now();
    while Moment::now() == now {
        std::hint::spin_loop();
    }
}

fn before(root: &Path, quarantine: bool) -> HostFiles {
    tick();
    HostFiles::before(root, root, quarantine)
}

fn found(host: HostFiles) -> Vec<(LeftFileKind, String)> {
    let root = host.root.clone();
    let left = host.after(false);
    let files = left.map_or_else(Vec::new, |left| left.files);
    let name = |file: LeftFile| {
        let path = file.path.as_path().strip_prefix(&root).unwrap().to_owned();
        (file.kind, path.display().to_string())
    };
    let mut found: Vec<_> = files.into_iter().map(name).collect();
    found.sort();
    found
}

fn script(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "#!/bin/sh\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn ordinary_work_leaves_nothing_to_report() {
    let (_dir, root) = project();
    let host = before(&root, true);
    fs::write(root.join("main.c"), "int main;").unwrap();
    let package = r#"{"scripts": {"test": "jest"}, "dependencies": {"a": "1"}}"#;
    fs::write(root.join("package.json"), package).unwrap();
    git(&root, &["add", "."]);
    git(&root, &["commit", "-qm", "work"]);
    git(&root, &["config", "branch.main.remote", "origin"]);
    git(&root, &["worktree", "add", "-q", "../linked"]);
    fs::create_dir(root.join(".git/hooks")).ok();
    fs::write(root.join(".git/hooks/x.sample"), "").unwrap();
    assert_eq!(host.after(false), None);
}

#[test]
fn everything_that_the_host_acts_on_is_found() {
    use LeftFileKind::*;
    let (_dir, root) = project();
    let host = before(&root, false);
    script(&root.join(".git/hooks/pre-commit"));
    fs::write(root.join(".git/commondir"), "../elsewhere").unwrap();
    git(&root, &["config", "--file", ".git/config.worktree", "core.pager", "x"]);
    fs::write(root.join(".envrc"), "new").unwrap();
    fs::create_dir_all(root.join("a/.vscode")).unwrap();
    fs::write(root.join("a/.vscode/tasks.json"), "{}").unwrap();
    fs::create_dir(root.join(".claude")).unwrap();
    fs::write(root.join(".claude/settings.json"), "{}").unwrap();
    fs::write(root.join("package.json"), r#"{"scripts": {"test": "curl x | sh"}}"#).unwrap();
    fs::write(root.join("a/package.json"), r#"{"scripts": {"install": "x"}}"#).unwrap();
    fs::create_dir(root.join(".cargo")).unwrap();
    fs::write(root.join(".cargo/config.toml"), "").unwrap();
    fs::create_dir(root.join(".devcontainer")).unwrap();
    fs::write(root.join(".devcontainer/devcontainer.json"), "{}").unwrap();
    fs::write(root.join(".yarnrc"), "yarn-path x").unwrap();
    let expected = [
        (EditorTask, ".devcontainer/devcontainer.json"),
        (BuildConfiguration, ".yarnrc"),
        (GitHook, ".git/hooks/pre-commit"),
        (GitCommonDir, ".git/commondir"),
        (GitConfig, ".git/config.worktree"),
        (Envrc, ".envrc"),
        (EditorTask, "a/.vscode/tasks.json"),
        (PackageScript, "a/package.json"),
        (PackageScript, "package.json"),
        (AgentConfiguration, ".claude/settings.json"),
        (BuildConfiguration, ".cargo/config.toml"),
    ];
    let mut expected = expected.map(|(kind, path)| (kind, path.to_owned()));
    expected.sort();
    assert_eq!(found(host), expected);
}

#[test]
fn commands_of_an_unfinished_rebase_are_named() {
    let (_dir, root) = project();
    let host = before(&root, false);
    fs::create_dir(root.join(".git/rebase-merge")).unwrap();
    let steps = root.join(".git/rebase-merge/git-rebase-todo");
    fs::write(&steps, "pick 1234567 one\n\nexec ./evil\n# x comment\n x sh -c y\n").unwrap();
    let left = host.after(false).unwrap();
    assert_eq!(left.files[0].path.as_path(), steps);
    assert_eq!(left.files[0].names, ["./evil", "sh -c y"]);
    // Without a command it is only unfinished work.
    let host = before(&root, false);
    fs::write(&steps, "pick 1234567 one\n").unwrap();
    assert_eq!(host.after(false), None);
}

#[test]
fn a_comment_hides_no_key() {
    let (_dir, root) = project();
    let host = before(&root, false);
    let file = root.join(".git/config");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}[core]\n# harmless \\\n fsmonitor = ./evil\n")).unwrap();
    assert_eq!(found(host), [(LeftFileKind::GitConfig, ".git/config".to_owned())]);
}

#[test]
fn repositories_inside_are_found_whatever_way_they_came() {
    use LeftFileKind::NestedRepository;
    let (dir, root) = project();
    // An earlier run left a directory that is not a repository yet.
    repository(&root.join("moved"));
    git(&root.join("moved"), &["config", "core.fsmonitor", "./x"]);
    fs::rename(root.join("moved/.git"), root.join("moved/dotgit")).unwrap();
    // An existing repository is not reported, even if the run works in it.
    repository(&root.join("old"));
    let host = before(&root, false);
    fs::rename(root.join("moved/dotgit"), root.join("moved/.git")).unwrap();
    repository(&root.join("new"));
    repository(&root.join("node_modules/hidden"));
    git(&root, &["-c", "advice.addEmbeddedRepo=false", "add", "-f", "node_modules/hidden"]);
    git(&root, &["init", "-q", "--bare", "bare"]);
    fs::create_dir(root.join("file")).unwrap();
    let elsewhere = dir.path().join("elsewhere");
    fs::write(root.join("file/.git"), format!("gitdir: {}", elsewhere.display())).unwrap();
    git(&root.join("old"), &["commit", "-q", "--allow-empty", "-m", "two"]);
    fs::write(root.join("old/work"), "").unwrap();
    let expected = ["bare", "file/.git", "moved/.git", "new/.git", "node_modules/hidden/.git"];
    assert_eq!(found(host), expected.map(|path| (NestedRepository, path.to_owned())));
}

#[test]
fn a_repository_in_the_place_of_the_project_s_own_is_found() {
    let (_dir, root) = project();
    let host = before(&root, false);
    fs::rename(root.join(".git"), root.join(".git2")).unwrap();
    git(&root, &["init", "-q"]);
    git(&root, &["config", "core.fsmonitor", "./x"]);
    let found = found(host);
    assert!(found.contains(&(LeftFileKind::NestedRepository, ".git".to_owned())), "{found:?}");
}

#[test]
fn planted_git_files_that_the_sandbox_cannot_cover_are_moved_aside() {
    let (dir, root) = project();
    git(&root, &["worktree", "add", "-q", "../linked"]);
    let host = before(&root, false);
    fs::write(root.join(".git/commondir"), "../elsewhere").unwrap();
    let program = "[core]\n\tfsmonitor = ./x\n";
    fs::write(root.join(".git/config.worktree"), program).unwrap();
    fs::write(root.join(".git/worktrees/linked/config.worktree"), program).unwrap();
    script(&root.join(".git/hooks/pre-commit"));
    let files = host.after(false).unwrap().files;
    assert_eq!(files.iter().filter(|file| file.moved_to.is_some()).count(), 3, "{files:?}");
    for planted in ["commondir", "config.worktree", "worktrees/linked/config.worktree"] {
        assert!(!root.join(".git").join(planted).exists(), "{planted}");
    }
    assert!(root.join(".git/hooks/pre-commit").exists(), "only named");

    // A repository created by the run, with its own record.
    let made = dir.path().join("made");
    fs::create_dir(&made).unwrap();
    let host = before(&made, false);
    git(&made, &["init", "-q"]);
    fs::create_dir(made.join(".git/retake")).unwrap();
    fs::write(made.join(".git/retake/retake.db"), "forged").unwrap();
    host.after(false).unwrap();
    assert!(!made.join(".git/retake").exists());
    assert!(made.join(".git/HEAD").exists(), "the repository itself is the user's");
}

#[test]
fn quarantine_moves_aside_and_one_mv_brings_back() {
    let (_dir, root) = project();
    let config = fs::read(root.join(".git/config")).unwrap();
    let package = fs::read(root.join("package.json")).unwrap();
    let host = before(&root, true);
    script(&root.join(".git/hooks/pre-commit"));
    git(&root, &["config", "core.fsmonitor", "touch planted"]);
    repository(&root.join("sub"));
    fs::write(root.join("package.json"), r#"{"scripts": {"test": "x"}}"#).unwrap();
    let left = host.after(false).unwrap();
    assert!(left.files.iter().all(|file| file.moved_to.is_some()), "{left:#?}");
    assert_eq!(left.files.len(), 4, "{left:#?}");
    // The earlier content is restored.
    assert_eq!(fs::read(root.join(".git/config")).unwrap(), config);
    assert_eq!(fs::read(root.join("package.json")).unwrap(), package);
    assert!(!root.join(".git/hooks/pre-commit").exists());
    assert!(!root.join("sub/.git").exists());
    git(&root, &["status"]);
    assert!(!root.join("planted").exists());
    for file in &left.files {
        let to = file.moved_to.as_ref().unwrap().as_path();
        if file.path.as_path().is_file() {
            fs::remove_file(file.path.as_path()).unwrap();
        }
        fs::rename(to, file.path.as_path()).unwrap();
    }
    assert!(root.join(".git/hooks/pre-commit").exists());
    assert!(fs::read_to_string(root.join(".git/config")).unwrap().contains("planted"));
    // Nothing is listed twice, and an earlier quarantined file is not replaced.
    fs::write(root.join(".git/hooks/pre-commit.quarantined"), "earlier").unwrap();
    let host = before(&root, true);
    script(&root.join(".git/hooks/pre-commit"));
    let left = host.after(false).unwrap();
    let to = left.files[0].moved_to.as_ref().unwrap();
    assert!(to.as_path().ends_with("pre-commit.quarantined-1"), "{to}");
}

#[test]
fn no_link_is_followed_out_of_the_project() {
    let (dir, root) = project();
    let outside = dir.path().join("outside");
    fs::create_dir_all(outside.join(".vscode")).unwrap();
    let host = before(&root, true);
    fs::write(outside.join(".vscode/tasks.json"), "{}").unwrap();
    fs::write(outside.join(".envrc"), "").unwrap();
    script(&outside.join("hooks/pre-commit"));
    symlink(&outside, root.join("link")).unwrap();
    fs::rename(root.join(".git/hooks"), root.join(".git/hooks-before")).ok();
    symlink(outside.join("hooks"), root.join(".git/hooks")).unwrap();
    fs::remove_file(root.join(".envrc")).unwrap();
    symlink(outside.join(".envrc"), root.join(".envrc")).unwrap();
    let left = host.after(false).unwrap();
    // The link itself is moved, never its target.
    for file in &left.files {
        let moved = file.moved_to.as_ref().is_none_or(|to| to.as_path().starts_with(&root));
        assert!(moved, "{file:?}");
    }
    for link in [".envrc", ".git/hooks"] {
        let file = left.files.iter().find(|file| file.path.as_path() == root.join(link));
        assert!(file.is_some_and(|file| file.moved_to.is_some()), "{link}: {left:#?}");
    }
    for kept in [".vscode/tasks.json", ".envrc", "hooks/pre-commit"] {
        assert!(outside.join(kept).exists(), "{kept}");
    }
}

#[test]
fn a_very_large_project_is_searched_in_part_and_that_is_said() {
    let (_dir, root) = project();
    let host = before(&root, false);
    fs::create_dir(root.join("many")).unwrap();
    for number in 0..50_100 {
        symlink("x", root.join("many").join(number.to_string())).unwrap();
    }
    let left = host.after(false).unwrap();
    assert!(!left.complete);
    assert!(left.files.is_empty());
}

/// Anywhere, also in skipped directories.
#[test]
fn files_with_a_set_id_bit_are_found_and_lose_it_in_quarantine() {
    let (_dir, root) = project();
    let old = root.join("old");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let with = |path: &Path, mode: u32| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    with(&old, 0o2755);
    let names = ["a", "node_modules/b", ".git/objects/c", "target/unreadable", "x.quarantined"];
    for quarantine in [false, true] {
        let host = before(&root, quarantine);
        for name in names {
            with(&root.join(name), 0o2111);
        }
        let shared = root.join("shared");
        fs::create_dir_all(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o2775)).unwrap();
        symlink("a", root.join(format!("link-{quarantine}"))).unwrap();
        let left = host.after(true).unwrap();
        assert!(left.complete);
        assert_eq!(left.files.len(), names.len(), "{left:?}");
        for name in names {
            let found = left.files.iter().find(|file| file.path.as_path() == root.join(name));
            let found = found.unwrap();
            assert_eq!(found.kind, LeftFileKind::SetIdFile, "{name}");
            assert_eq!(found.moved_to.is_some(), quarantine, "{name}");
            if let Some(moved) = &found.moved_to {
                assert_eq!(mode(moved.as_path()), 0o111, "{name}");
            }
        }
        assert_eq!((mode(&shared), mode(&old)), (0o2775, 0o2755));
        for name in names {
            drop(fs::remove_file(root.join(name)));
        }
    }
}
