//! Escapes that take more than one run: the effects of one must not enable the next, and
//! neither the host's own git nor retake executes planted files.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use crate::common::{Called, RETAKE, Sandbox, called};

/// A repository with a commit, or `None` without the full level.
fn repository() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    std::fs::remove_dir(sandbox.project().join(".agent")).unwrap();
    let made = sandbox
        .sh("git init -q . && git config user.email a@b && git config user.name n && \
         git commit -q --allow-empty -m one");
    assert_eq!(made.code, 0, "{}", made.snapshot());
    let tried = confined(&sandbox, "true");
    if tried.code != 0 {
        #[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
        {
            eprintln!("SKIP: {}", tried.stderr);
        }
        return None;
    }
    Some(sandbox)
}

fn confined(sandbox: &Sandbox, script: &str) -> Called {
    sandbox.retake(&["exec", "--sandbox", "--", "sh", "-c", script])
}

/// A directory next to the project, which nothing confined may change.
fn outside(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.dir.path().canonicalize().unwrap().join("outside");
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_link_in_the_place_of_git_opens_nothing() {
    let sandbox = Sandbox::new();
    let outside = outside(&sandbox);
    let plant = format!("ln -s {} .git", outside.display());
    if confined(&sandbox, &plant).code != 0 {
        return;
    }
    let written = confined(&sandbox, "touch ../outside/x .git/y");
    assert_ne!(written.code, 0, "{}", written.snapshot());
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

/// A cover over a link's target would expose it, if the directory with the target is hidden.
#[test]
fn a_link_in_the_place_of_a_protected_file_shows_nothing() {
    let Some(sandbox) = repository() else { return };
    let hidden = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::write(hidden.path().join("secret"), "SECRETKEY").unwrap();
    let path = hidden.path().display();
    confined(&sandbox, &format!("ln -s {path} .vscode; ln -s {path}/secret .envrc"));
    let read = confined(&sandbox, &format!("cat .vscode/secret .envrc {path}/secret; ls {path}"));
    assert!(!read.stdout.contains("SECRETKEY"), "{}", read.snapshot());
    assert!(!read.stdout.contains("secret"), "{}", read.snapshot());
}

#[test]
fn a_link_to_the_hooks_cannot_be_replaced() {
    let Some(sandbox) = repository() else { return };
    let project = sandbox.project();
    std::fs::create_dir(project.join("hooks")).unwrap();
    std::fs::remove_dir_all(project.join(".git/hooks")).unwrap();
    symlink("../hooks", project.join(".git/hooks")).unwrap();
    let tried = confined(
        &sandbox,
        "rm -f .git/hooks; mv .git/hooks .git/h; mkdir .git/hooks; ln -sfn /tmp .git/hooks; \
         touch hooks/pre-commit .git/hooks/pre-commit; mv hooks x; git commit -qm two --allow-empty",
    );
    assert_eq!(tried.code, 0, "git still works: {}", tried.snapshot());
    assert_eq!(std::fs::read_link(project.join(".git/hooks")).unwrap(), PathBuf::from("../hooks"));
    assert_eq!(std::fs::read_dir(project.join("hooks")).unwrap().count(), 0);
}

#[test]
fn hooks_that_the_configuration_keeps_elsewhere_are_protected() {
    let Some(sandbox) = repository() else { return };
    let project = sandbox.project();
    sandbox.sh("mkdir .githooks && echo '#!/bin/sh' > .githooks/pre-commit && git config core.hooksPath .githooks && git config include.path ../shared.cfg && touch shared.cfg");
    let tried = confined(
        &sandbox,
        "echo evil >> .githooks/pre-commit; touch .githooks/post-commit; mv .githooks x; echo evil >> shared.cfg",
    );
    assert_ne!(tried.code, 0);
    let hook = std::fs::read_to_string(project.join(".githooks/pre-commit")).unwrap();
    assert_eq!(hook, "#!/bin/sh\n");
    assert!(!project.join(".githooks/post-commit").exists());
    assert_eq!(std::fs::read(project.join("shared.cfg")).unwrap(), b"");
}

#[test]
fn missing_hooks_cannot_be_made() {
    let Some(sandbox) = repository() else { return };
    let project = sandbox.project();
    std::fs::remove_dir_all(project.join(".git/hooks")).unwrap();
    let tried = confined(&sandbox, "mkdir -p .git/hooks && echo x > .git/hooks/pre-commit");
    assert_ne!(tried.code, 0, "{}", tried.snapshot());
    assert!(!project.join(".git/hooks/pre-commit").exists());
}

/// In a linked worktree the directories of the main repository are writable, except files that name
/// programs.
#[test]
fn a_linked_worktree_cannot_change_what_the_main_repository_executes() {
    let Some(sandbox) = repository() else { return };
    let project = sandbox.project();
    let made = sandbox.sh("git worktree add -q ../linked -b l");
    assert_eq!(made.code, 0, "{}", made.snapshot());
    let linked = sandbox.dir.path().canonicalize().unwrap().join("linked");
    let script = "common=$(git rev-parse --git-common-dir); own=$(git rev-parse --git-dir); \
        echo x > $common/hooks/pre-commit; git config core.fsmonitor evil; \
        echo evil >> $common/config; echo / > $own/commondir; echo / > $own/gitdir; \
        echo 'gitdir: /' > .git; mv .git g; mv $common/hooks $common/h; mv $own $own.2; \
        touch $common/../x; touch $common/retake/x; ls $common/retake; \
        echo a > a && git add a && git commit -qm linked";
    let run = called(
        sandbox
            .command(RETAKE)
            .args(["exec", "--sandbox", "--", "sh", "-c", script])
            .current_dir(&linked),
    );
    assert_eq!(run.code, 0, "the commit works: {}", run.snapshot());
    assert_eq!(run.stdout, "");
    assert!(!project.join(".git/hooks/pre-commit").exists());
    assert!(!project.join("x").exists());
    let config = std::fs::read_to_string(project.join(".git/config")).unwrap();
    assert!(!config.contains("evil"), "{config}");
    let log =
        called(sandbox.command("git").args(["log", "--format=%s", "-1"]).current_dir(&linked));
    assert_eq!(log.stdout, "linked\n", "{}", log.snapshot());
}

#[test]
fn submodules_cannot_be_made_to_execute_anything() {
    let Some(sandbox) = repository() else { return };
    let made = sandbox.sh(
        "git init -q ../lib && git -C ../lib -c user.name=n -c user.email=a@b commit -q --allow-empty -m l && \
         git -c protocol.file.allow=always submodule --quiet add ../lib group/lib && git commit -qm sub",
    );
    assert_eq!(made.code, 0, "{}", made.snapshot());
    let module = sandbox.project().join(".git/modules/group/lib");
    assert!(module.join("config").exists(), "{}", made.snapshot());
    let before = std::fs::read(module.join("config")).unwrap();
    confined(
        &sandbox,
        "echo x > .git/modules/group/lib/hooks/post-checkout; echo '[core] fsmonitor = evil' >> .git/modules/group/lib/config; \
         git -C group/lib config core.fsmonitor evil; mv .git/modules .git/m; mv .git/modules/group .git/modules/g; \
         printf '[submodule \"x\"]\\n update = !evil\\n' >> .gitmodules",
    );
    assert_eq!(std::fs::read(module.join("config")).unwrap(), before);
    assert!(!module.join("hooks/post-checkout").exists());
    let modules = std::fs::read_to_string(sandbox.project().join(".gitmodules")).unwrap();
    assert!(!modules.contains("evil"), "{modules}");
}

/// A planted `.agent` directory would bring a configuration that names commands, and another record.
#[test]
fn a_project_of_retake_that_was_made_inside_is_not_left_where_it_is() {
    let Some(sandbox) = repository() else { return };
    let project = sandbox.project();
    let before = sandbox.retake(&["runs", "list", "--json"]).json().as_array().unwrap().len();
    let run = confined(
        &sandbox,
        "mkdir -p .agent sub/.agent && echo 'sandbox: {mode: off}' | tee .agent/config.yml > sub/.agent/config.yml; \
         retake --store .agent/data exec -q -- true; for i in $(seq 200); do mkdir -p d$i; echo x > d$i/.envrc; done",
    );
    assert_eq!(run.code, 0, "{}", run.snapshot());
    for path in [".agent", "sub/.agent"] {
        assert!(!project.join(path).exists(), "{path}: {}", run.snapshot());
        assert!(project.join(format!("{path}.quarantined/config.yml")).exists(), "{path}");
    }
    assert!(run.stderr.contains("moved aside: retake project"), "{}", run.stderr);
    let after = sandbox.retake(&["runs", "list", "--json"]).json().as_array().unwrap().len();
    assert_eq!(after, before + 1, "the record is still the same");
}

/// An existing `.agent` directory can neither be changed nor replaced.
#[test]
fn the_project_of_retake_cannot_be_changed() {
    let Some(sandbox) = repository() else { return };
    std::fs::create_dir(sandbox.project().join(".agent")).unwrap();
    let tried = confined(
        &sandbox,
        "echo 'sandbox: {mode: off}' > .agent/config.yml; mkdir .agent/data; mv .agent a; rm -rf .agent",
    );
    assert_ne!(tried.code, 0);
    assert_eq!(std::fs::read_dir(sandbox.project().join(".agent")).unwrap().count(), 0);
}

/// All files that may be executed later are moved aside, even those that are not listed.
#[test]
fn quarantine_knows_no_crowd_to_hide_in() {
    let Some(sandbox) = repository() else { return };
    let script = "for i in $(seq 150); do mkdir -p d$i; echo x > d$i/.envrc; done; git init -q z";
    let run =
        sandbox.retake(&["exec", "--sandbox", "--quarantine", "--json", "--", "sh", "-c", script]);
    let left = &run.json()["sandbox"]["leftForHost"];
    assert_eq!(left["files"].as_array().unwrap().len(), 100);
    assert_eq!(left["unlisted"], 51);
    let found = sandbox.sh("ls -d d*/.envrc z/.git 2>/dev/null | wc -l");
    assert_eq!(found.stdout.trim(), "0", "{}", run.stderr);
}

/// Planted hooks are not executed by the git commands of retake.
#[test]
fn git_commands_of_retake_execute_no_planted_hooks() {
    let Some(sandbox) = repository() else { return };
    let outside = outside(&sandbox);
    let evil = format!("touch {}/ran;false", outside.display());
    // As if an earlier, unprotected sandbox had left it.
    sandbox.sh(&format!("git config core.fsmonitor '{evil}'; git config core.sshCommand '{evil}'; git config filter.x.clean '{evil}'; echo '* filter=x' > .gitattributes"));
    let hook = sandbox.project().join(".git/hooks/post-index-change");
    std::fs::write(&hook, format!("#!/bin/sh\n{evil}\n")).unwrap();
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    for arguments in [
        &["exec", "--sandbox", "--track", "--", "true"][..],
        &["exec", "--", "true"],
        &["runs", "list"],
        &["doctor"],
    ] {
        sandbox.retake(arguments);
    }
    assert!(!outside.join("ran").exists());
}
