//! The location of the record: in a git repository its git directory, and never a different place than
//! before without a message.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::common::{Called, RETAKE, Sandbox, Screen, called};

/// A sandbox whose project is a plain directory.
fn bare_sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    std::fs::remove_dir(sandbox.project().join(".agent")).expect("as set up");
    sandbox
}

/// The place of a record outside of a repository.
fn project_data(sandbox: &Sandbox) -> PathBuf {
    sandbox.project().join(".agent/data")
}

fn git(sandbox: &Sandbox, line: &str) -> String {
    let settings = "-c user.name=t -c user.email=t@t -c protocol.file.allow=always";
    let done = sandbox.sh(&format!("git() {{ command git {settings} \"$@\"; }}; {line}"));
    assert_eq!(done.code, 0, "{line}: {}", done.snapshot());
    done.stdout
}

/// The commands that a list shows in a directory, newest first.
fn listed_in(sandbox: &Sandbox, directory: &Path) -> Vec<String> {
    let called = in_directory(sandbox, directory, &["runs", "list", "--json"]);
    let runs = called.json();
    let runs = runs.as_array().expect("as set up").iter();
    runs.map(|run| run["command"].as_str().expect("as set up").to_owned()).collect()
}

fn in_directory(sandbox: &Sandbox, directory: &Path, arguments: &[&str]) -> Called {
    called(sandbox.command(RETAKE).current_dir(directory).args(arguments))
}

fn run_in(sandbox: &Sandbox, directory: &Path, word: &str) -> Called {
    let done = in_directory(sandbox, directory, &["exec", "-q", "--", "echo", word]);
    assert_eq!(done.code, 0, "{}", done.snapshot());
    done
}

fn doctor(sandbox: &Sandbox, directory: &Path) -> serde_json::Value {
    in_directory(sandbox, directory, &["doctor", "--json"]).json()
}

fn store_of(sandbox: &Sandbox, directory: &Path) -> PathBuf {
    PathBuf::from(doctor(sandbox, directory)["store"].as_str().expect("as set up"))
}

#[test]
fn git_operations_on_the_work_tree_leave_the_record_alone() {
    let sandbox = bare_sandbox();
    git(&sandbox, "git init -q . && git commit -q --allow-empty -m one");
    assert_eq!(run_in(&sandbox, &sandbox.project(), "kept").snapshot(), "exit 0\n");
    assert_eq!(store_of(&sandbox, &sandbox.project()), sandbox.project().join(".git/retake"));
    assert_eq!(git(&sandbox, "git status --short --ignored"), "");
    git(&sandbox, "git add -A && git clean -fdxq && git reset -q --hard");
    git(&sandbox, "git worktree add -q ../linked");
    let linked = sandbox.dir.path().join("linked");
    run_in(&sandbox, &linked, "linked");
    assert_eq!(sandbox.listed(&[]), ["echo linked", "echo kept"]);
    assert_eq!(listed_in(&sandbox, &linked), ["echo linked", "echo kept"]);
    assert_eq!(git(&sandbox, "git ls-files"), "");
    let other = sandbox.dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let variables = [("GIT_DIR", other.to_str().unwrap()), ("GIT_WORK_TREE", "/")];
    let elsewhere = sandbox.retake_with(&variables, &["runs", "list", "--json"]);
    assert_eq!(elsewhere.json().as_array().unwrap().len(), 2, "variables do not count");
}

#[test]
fn an_existing_record_stays_until_it_is_moved() {
    let sandbox = Sandbox::new();
    run_in(&sandbox, &sandbox.project(), "before");
    git(&sandbox, "git init -q . && git commit -q --allow-empty -m one");
    git(&sandbox, "git worktree add -q ../linked");
    let linked = sandbox.dir.path().join("linked");
    run_in(&sandbox, &linked, "linked");
    assert_eq!(sandbox.listed(&[]), ["echo linked", "echo before"]);
    assert_eq!(git(&sandbox, "git status --short"), "", "it ignores itself");
    let found = doctor(&sandbox, &linked);
    let to = sandbox.project().join(".git/retake");
    assert_eq!(found["store"], project_data(&sandbox).to_str().unwrap());
    assert_eq!(found["belongsAt"], to.to_str().unwrap());

    let mut running = sandbox.command(RETAKE);
    let mut running = running.args(["exec", "-q", "--", "sleep", "1000"]).spawn().unwrap();
    crate::common::eventually("it runs", || sandbox.listed(&[]).len() == 3);
    let refused = sandbox.retake(&["doctor", "--move"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("is in use (1 running, 0 on other"), "{}", refused.stderr);
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&running),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    running.wait().unwrap();

    let moved = sandbox.settled_call(&["doctor", "--move"]);
    assert!(moved.starts_with("exit 0\nstdout: store  PROJECT/.git/retake\n"), "{moved}");
    assert!(moved.contains("moved  from PROJECT/.agent/data to PROJECT/.git/retake\n"), "{moved}");
    assert!(!project_data(&sandbox).join("retake.db").exists());
    for directory in [&linked, &sandbox.project()] {
        assert_eq!(listed_in(&sandbox, directory).len(), 3);
        assert_eq!(store_of(&sandbox, directory), to);
    }
    // A program that knows only the old location, such as a running server, finds the record.
    let store = project_data(&sandbox);
    let old = sandbox.retake(&["--store", store.to_str().unwrap(), "runs", "list", "--json"]);
    assert_eq!(old.json().as_array().unwrap().len(), 3);
    let again = sandbox.settled_call(&["doctor", "--move"]);
    assert!(again.contains("moved  nothing: the record is in its default location\n"), "{again}");
    let given = sandbox.retake(&["--store", "x", "doctor", "--move"]);
    assert_eq!(given.code, 2, "{}", given.snapshot());
}

/// As a mount point the record's directory cannot be renamed: the kernel reports it as busy.
#[test]
fn a_record_with_a_file_system_of_its_own_is_moved() {
    let sandbox = bare_sandbox();
    let alone = |line: &str| sandbox.sh(&format!("unshare -Urm sh -ec '{line}'"));
    let mount = "mkdir -p .agent/data; mount -t tmpfs none .agent/data";
    if alone(mount).code != 0 {
        return crate::common::skip("there are no user namespaces");
    }
    let moved = alone(&format!(
        "{mount}; retake exec -q -- echo kept; git init -q; retake doctor --move >&2; \
         retake runs list --json; ls -A .agent/data >&2"
    ));
    assert_eq!(moved.code, 0, "{}", moved.snapshot());
    assert_eq!(moved.json()[0]["command"], "echo kept");
    assert!(moved.stderr.ends_with(".gitignore\nmoved-to\n"), "{}", moved.stderr);
    assert_eq!(listed_in(&sandbox, &sandbox.project()), ["echo kept"]);
}

#[test]
fn a_move_to_another_file_system_that_was_interrupted_is_completed() {
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    let sandbox = Sandbox::new();
    if other.path().metadata().unwrap().dev() == sandbox.project().metadata().unwrap().dev() {
        return;
    }
    run_in(&sandbox, &sandbox.project(), "before");
    let git_dir = other.path().join("git");
    git(&sandbox, &format!("git init -q --separate-git-dir {} .", git_dir.display()));
    // The remains of a move that was killed while it copied.
    let incoming = git_dir.join("retake.incoming");
    std::fs::create_dir(&incoming).unwrap();
    std::fs::set_permissions(&incoming, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(incoming.join("moved-from"), project_data(&sandbox).to_str().unwrap()).unwrap();
    std::fs::write(incoming.join("retake.db"), "half").unwrap();
    let interrupted = sandbox.settled_call(&["doctor"]);
    assert!(interrupted.starts_with("exit 1\n"), "{interrupted}");
    assert!(interrupted.contains("was interrupted; `retake doctor --move`"), "{interrupted}");
    let moved = sandbox.retake(&["doctor", "--move"]);
    assert_eq!(moved.code, 0, "{}", moved.snapshot());
    assert!(moved.stdout.contains("continuing a move that was interrupted"), "{}", moved.stdout);
    assert_eq!(sandbox.listed(&[]), ["echo before"]);
    assert_eq!(store_of(&sandbox, &sandbox.project()), git_dir.join("retake"));
    assert!(!incoming.exists() && !project_data(&sandbox).join("retake.db").exists());
}

#[test]
fn a_later_git_init_hides_nothing() {
    let sandbox = bare_sandbox();
    run_in(&sandbox, &sandbox.project(), "before");
    run_in(&sandbox, sandbox.dir.path(), "elsewhere");
    git(&sandbox, "git init -q .");
    assert_eq!(sandbox.listed(&[]).len(), 2, "what is known here is still what it was");
    let first = run_in(&sandbox, &sandbox.project(), "after");
    assert!(
        first.stderr.contains("copied 1 earlier run of this directory from "),
        "{}",
        first.stderr
    );
    assert_eq!(sandbox.listed(&[]), ["echo after", "echo before"]);
    assert_eq!(run_in(&sandbox, &sandbox.project(), "more").stderr, "");
    // A repository inside of the repository.
    let inner = sandbox.project().join("inner");
    std::fs::create_dir(&inner).unwrap();
    run_in(&sandbox, &inner, "inner");
    git(&sandbox, "git init -q inner");
    run_in(&sandbox, &inner, "own");
    assert_eq!(listed_in(&sandbox, &inner), ["echo own", "echo inner"]);
    assert_eq!(store_of(&sandbox, &inner), inner.join(".git/retake"));
}

#[test]
fn a_submodule_is_recorded_with_its_superproject() {
    let sandbox = bare_sandbox();
    run_in(&sandbox, &sandbox.project(), "before");
    git(&sandbox, "git init -q . && git init -q ../lib");
    git(&sandbox, "git -C ../lib commit -q --allow-empty -m one");
    git(&sandbox, "git submodule --quiet add ../lib lib");
    run_in(&sandbox, &sandbox.project().join("lib"), "below");
    assert_eq!(sandbox.listed(&[]), ["echo below", "echo before"]);
    assert!(sandbox.project().join(".git/retake/retake.db").exists());
}

#[test]
fn init_and_whatever_else_makes_a_project_takes_over_earlier_runs() {
    let sandbox = bare_sandbox();
    run_in(&sandbox, &sandbox.project(), "before");
    let init = sandbox.retake(&["init"]);
    assert!(init.stderr.contains("copied 1 earlier run"), "{}", init.stderr);
    assert_eq!(sandbox.listed(&[]), ["echo before"]);
    assert_eq!(store_of(&sandbox, &sandbox.project()), project_data(&sandbox));

    let sandbox = bare_sandbox();
    run_in(&sandbox, &sandbox.project(), "before");
    sandbox.file("matrix.yml", "command: 'true'\niterations: 1\naxes: {a: [x]}\n");
    let matrix = sandbox.retake(&["matrix", "run", "--quiet"]);
    assert!(matrix.stderr.contains("copied 1 earlier run"), "{}", matrix.snapshot());
    assert!(sandbox.listed(&[]).contains(&"echo before".to_owned()));

    // Created by hand, later a repository, and never to be seen by git.
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "");
    run_in(&sandbox, &sandbox.project(), "before");
    git(&sandbox, "git init -q . && git add -A");
    assert_eq!(git(&sandbox, "git ls-files"), ".agent/config.yml\n");
}

#[test]
fn files_of_the_user_in_the_agent_directory_are_not_ignored_by_git() {
    let sandbox = bare_sandbox();
    git(&sandbox, "git init -q .");
    sandbox.retake(&["init"]);
    let mut theirs = Vec::new();
    for path in
        ["workspaces/task/INSTRUCTIONS.md", "workspaces/task/iterate-1.log", "templates/t/x"]
    {
        let path = format!(".agent/{path}");
        std::fs::create_dir_all(sandbox.project().join(&path).parent().unwrap()).unwrap();
        sandbox.file(&path, "");
        theirs.push(path);
    }
    for path in ["data/x", "worktrees/x", "tmp/x", "matrix-setup/x", "workspaces/task/.lock"] {
        let path = format!(".agent/{path}");
        std::fs::create_dir_all(sandbox.project().join(&path).parent().unwrap()).unwrap();
        sandbox.file(&path, "");
    }
    theirs.extend([".gitignore", "config.yml", "project-id"].map(|name| format!(".agent/{name}")));
    theirs.sort();
    git(&sandbox, "git add -A");
    let mut added: Vec<String> = git(&sandbox, "git ls-files").lines().map(str::to_owned).collect();
    added.sort();
    assert_eq!(added, theirs);
}

#[test]
fn another_users_repository_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let sandbox = bare_sandbox();
    git(&sandbox, "git init -q .");
    let everything = |path: &Path| called(sandbox.command("chown").args(["-R", "1234"]).arg(path));
    everything(&sandbox.project());
    let run = run_in(&sandbox, &sandbox.project(), "root");
    assert!(run.stderr.contains(".git belongs to user id 1234"), "{}", run.stderr);
    let mine = sandbox.sh("find . -user 0");
    assert_eq!(mine.stdout, "", "nothing of root's is left there");
    let listed = sandbox.retake(&["runs", "list", "--json"]);
    assert_eq!(listed.json().as_array().unwrap().len(), 1);
    assert!(listed.stderr.contains("the record is "), "{}", listed.stderr);

    // An inaccessible store is not the same as a missing one.
    let theirs = sandbox.dir.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::set_permissions(sandbox.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o700)).unwrap();
    let program = sandbox.dir.path().join("retake");
    std::fs::copy(RETAKE, &program).unwrap();
    let mut command = sandbox.command(program.to_str().unwrap());
    std::os::unix::process::CommandExt::uid(&mut command, 1234);
    command.current_dir(sandbox.dir.path()).env("RETAKE_STORE", &theirs);
    let refused = called(command.args(["runs", "list"]));
    assert_eq!(refused.code, 1, "{}", refused.snapshot());
    assert!(
        refused.stderr.contains("belongs to root (user id 0), not to you"),
        "{}",
        refused.stderr
    );
}

/// retake as an unprivileged user, with that user's own home, in a directory.
fn as_user(sandbox: &Sandbox, uid: u32, directory: &Path, arguments: &[&str]) -> Called {
    let open = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(sandbox.dir.path(), open).expect("as set up");
    let (program, home) = (sandbox.dir.path().join("retake"), sandbox.dir.path().join("home-of"));
    if !program.exists() {
        std::fs::copy(RETAKE, &program).expect("as set up");
        std::fs::create_dir(&home).expect("as set up");
        std::os::unix::fs::chown(&home, Some(uid), None).expect("as set up");
    }
    let mut command = std::process::Command::new(&program);
    std::os::unix::process::CommandExt::uid(&mut command, uid);
    command.env_clear().env("HOME", &home).env("PATH", "/usr/bin:/bin");
    called(command.current_dir(directory).args(arguments))
}

#[test]
fn a_git_directory_that_cannot_be_written_is_not_used_and_that_is_said() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    const USER: u32 = 1234;
    for foreign in [true, false] {
        let sandbox = bare_sandbox();
        git(&sandbox, "git init -q . && git commit -q --allow-empty -m one");
        let project = sandbox.project();
        let mut said = format!("{}/.git cannot be written", project.display());
        if foreign {
            said = format!("{}/.git belongs to root", project.display());
        } else {
            git(&sandbox, &format!("chown -R {USER} . && chmod 555 .git"));
        }
        let run = as_user(&sandbox, USER, &project, &["exec", "--", "sh", "-c", "echo hi; exit 3"]);
        assert_eq!((run.code, run.stdout.as_str()), (3, "hi\n"), "{}", run.snapshot());
        let home = sandbox.dir.path().join("home-of");
        assert!(run.stderr.contains(&said), "{said}: {}", run.snapshot());
        assert!(run.stderr.contains(home.to_str().unwrap()), "{}", run.snapshot());
        let listed = as_user(&sandbox, USER, &project, &["runs", "list", "--json"]);
        assert_eq!(listed.json().as_array().unwrap().len(), 1, "{}", listed.snapshot());
        let doctor = as_user(&sandbox, USER, &project, &["doctor", "--json"]).json();
        assert!(doctor["location"].as_str().unwrap().contains(&said), "{doctor}");
        assert!(!project.join(".git/retake").exists());
        // Once it can be written the runs are still visible.
        if !foreign {
            git(&sandbox, "chmod 755 .git");
            let more = as_user(&sandbox, USER, &project, &["exec", "-q", "--", "true"]);
            assert_eq!(more.code, 0, "{}", more.snapshot());
            let listed = as_user(&sandbox, USER, &project, &["runs", "list", "--json"]);
            assert_eq!(listed.json().as_array().unwrap().len(), 2, "{}", listed.snapshot());
        }
    }
}

#[test]
fn a_user_without_a_home_runs_unrecorded_unless_that_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let sandbox = bare_sandbox();
    let program = sandbox.dir.path().join("retake");
    std::fs::copy(RETAKE, &program).unwrap();
    std::fs::set_permissions(sandbox.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let homeless = |required: &str| {
        let mut command = std::process::Command::new(&program);
        std::os::unix::process::CommandExt::uid(&mut command, 54321);
        command.env_clear().env("RETAKE_EXECUTION__AUDIT__REQUIRED", required);
        command.current_dir("/").args(["exec", "--", "/bin/sh", "-c", "echo hi; exit 7"]);
        called(&mut command)
    };
    let run = homeless("false");
    assert_eq!((run.code, run.stdout.as_str()), (7, "hi\n"), "{}", run.snapshot());
    assert!(
        run.stderr.contains("this run is not recorded: there is no directory for the record"),
        "{}",
        run.stderr
    );
    let refused = homeless("true");
    assert_eq!((refused.code, refused.stdout.as_str()), (125, ""), "{}", refused.snapshot());
}

#[test]
fn an_empty_variable_is_unset_and_a_misspelled_one_is_an_error() {
    let sandbox = Sandbox::new();
    run_in(&sandbox, &sandbox.project(), "one");
    let unset = sandbox.retake_with(&[("RETAKE_STORE", "")], &["runs", "list", "--json"]);
    assert_eq!(unset.json().as_array().unwrap().len(), 1);
    assert_eq!(sandbox.retake(&["--store", "", "runs", "list"]).code, 2);
    let misspelled = sandbox
        .retake_with(&[("RETAKE_EXECUTION__MAX_OUTPT_KB", "3")], &["exec", "-q", "--", "true"]);
    assert_eq!(misspelled.code, 125);
    assert!(
        misspelled.stderr.contains(
            "$RETAKE_EXECUTION__MAX_OUTPT_KB: there is no such key; did you mean $RETAKE_EXECUTION__MAX_OUTPUT_KB?"
        ),
        "{}",
        misspelled.stderr
    );
    let own = sandbox.retake_with(&[("RETAKE_MY_OWN", "3")], &["exec", "-q", "--", "true"]);
    assert_eq!(own.snapshot(), "exit 0\n");
}

#[test]
fn a_pipe_in_the_place_of_gits_files_is_not_waited_for() {
    let sandbox = Sandbox::new();
    git(&sandbox, "mkfifo .git");
    assert_eq!(sandbox.sh("timeout 60 retake exec -q -- true").code, 0);
    git(&sandbox, "rm .git && git init -q . && rm .git/HEAD && mkfifo .git/HEAD");
    assert_eq!(sandbox.sh("timeout 60 retake exec -q -- true").code, 0);
    assert_eq!(sandbox.listed(&[]).len(), 2);
}

#[test]
fn an_empty_list_on_a_terminal_names_the_record() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(RETAKE);
    command.args(["runs", "list"]);
    let (code, shown) = Screen::of(command, 300).end();
    let expected = format!(
        "nothing was recorded here yet (in the record {})",
        project_data(&sandbox).display()
    );
    assert!(code == 0 && shown.contains(&expected), "{shown}");
}
