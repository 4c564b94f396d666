//! Agents in a repository with submodules: submodules that the user has checked out are available, agents'
//! commits in them are merged and kept, and a clone with anything that cannot be kept stays.

use crate::common::Sandbox;
use crate::fleet::{checkout, fleet, project, run, show, states, tidy};

/// A project with a submodule that is checked out, and one that is not; the repositories of both are
/// gone.
fn with_submodules(agents: &[(&str, &str)]) -> Sandbox {
    let sandbox = project(agents);
    let made = sandbox.sh(
        "set -e; g() { git -c user.name=u -c user.email=u@u -c protocol.file.allow=always \"$@\"; }\n\
         for name in lib other; do (mkdir ../$name; cd ../$name; g init -q; echo $name > file; g add .; g commit -qm $name); done\n\
         g submodule --quiet add ../lib lib; g submodule --quiet add ../other far/other; g commit -qm sub\n\
         g submodule --quiet deinit -f far/other; rm -rf .git/modules/far; git branch -f main\n\
         mv ../lib ../gone; mv ../other ../gone-too",
    );
    assert_eq!(made.code, 0, "{}", made.snapshot());
    sandbox
}

/// Passes if the submodule's commit is in the tree.
const GATE: &str = "grep -q changed lib/file && test ! -e lib/left";

#[test]
fn commits_in_a_submodule_are_verified_merged_and_kept() {
    let commits = "cd lib; echo changed >> file; git commit -qam changed; git rev-parse HEAD > \"$dir/commit\"; cd ..\n\
         git submodule status > \"$dir/status\"";
    for (add, options) in [
        ("git add lib; git commit -qm lib", &[][..]),
        // Uncommitted changes become a commit, as elsewhere.
        ("true", &[]),
        ("git add lib; git commit -qm lib", &["--sandbox"]),
    ] {
        let sandbox = with_submodules(&[("one", &format!("{commits}\n{add}"))]);
        if !options.is_empty() && !sandbox.can_be_confined() {
            return;
        }
        let before = checkout(&sandbox);
        let writable = format!("--allow-write={}", sandbox.agent_dir().display());
        let mut words = vec!["one", "--merge-into", "main", "--verify", GATE];
        words.extend(options);
        words.extend(options.first().map(|_| writable.as_str()));
        let called = run(&sandbox, &words);
        assert_eq!(called.code, 0, "{add} {options:?}: {}", called.snapshot());
        assert!(
            called.stderr.contains("empty for agents: far/other;"),
            "what is not there is said: {}",
            called.snapshot()
        );
        assert_eq!(states(&sandbox), "one merged");
        assert_eq!(checkout(&sandbox), before);
        let commit = std::fs::read_to_string(sandbox.agent_dir().join("commit")).unwrap();
        assert_eq!(sandbox.git(&["rev-parse", "main:lib"]), commit.trim());
        let status = std::fs::read_to_string(sandbox.agent_dir().join("status")).unwrap();
        let known = status.lines().any(|line| line.starts_with('+') && line.contains(" lib "));
        assert!(known, "{status}");
        tidy(&sandbox);
        // The branch can be checked out with its submodule, although no other repository has that commit.
        sandbox.git(&["checkout", "-q", "main"]);
        sandbox.git(&["submodule", "--quiet", "update", "lib"]);
        assert_eq!(show(&sandbox, "HEAD"), show(&sandbox, "main"));
        let file = std::fs::read_to_string(sandbox.project().join("lib/file")).unwrap();
        assert_eq!(file, "lib\nchanged\n");
    }
}

#[test]
fn two_that_change_one_submodule_lose_nothing() {
    let script = "cd lib; echo $RETAKE_AGENT > file; git commit -qam $RETAKE_AGENT; git rev-parse HEAD > \"$dir/commit-$RETAKE_AGENT\"; cd ..; git commit -qam lib";
    let sandbox = with_submodules(&[("one", script), ("two", script)]);
    let called = run(&sandbox, &["one", "two", "--merge-into", "main", "--conflict-attempts", "0"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    let states = states(&sandbox);
    assert!(states.contains("merged") && states.contains("conflict"), "{states}");
    for name in ["one", "two"] {
        let commit =
            std::fs::read_to_string(sandbox.agent_dir().join(format!("commit-{name}"))).unwrap();
        let kept = sandbox.git(&[
            "--git-dir=.git/modules/lib",
            "for-each-ref",
            "--contains",
            commit.trim(),
            "refs/retake/fleet",
        ]);
        assert!(!kept.is_empty(), "{name}: {commit}");
    }
    tidy(&sandbox);
}

#[test]
fn files_in_a_submodule_that_is_no_repository_keep_their_tree() {
    let sandbox = with_submodules(&[
        ("one", "echo mine > far/other/mine"),
        ("two", "rm -rf lib/.git; echo mine > lib/mine"),
        ("three", "rm -rf lib/.git; touch three"),
    ]);
    let called = run(&sandbox, &["one", "two", "three"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let agents = fleet(&sandbox)["agents"].clone();
    for (number, name, file) in [(0, "one", "far/other/mine"), (1, "two", "lib/mine")] {
        assert!(
            called.stderr.contains(&format!("{name}: its clone was left at")),
            "{}",
            called.snapshot()
        );
        let tree = agents[number]["tree"].as_str().unwrap().to_owned();
        assert_eq!(std::fs::read_to_string(format!("{tree}/{file}")).unwrap(), "mine\n");
    }
    assert!(!called.stderr.contains("three: its clone was left at"), "{}", called.snapshot());
    let kept = sandbox.retake(&["agent", "prune", "--yes"]);
    assert!(kept.code == 1 && kept.stderr.contains("far/other"), "{}", kept.snapshot());
}
