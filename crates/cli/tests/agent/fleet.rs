//! Several agents at once: separate clones, a merge queue with a gate, and a user's checkout that is never touched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Called, RETAKE, Running, Sandbox, eventually};

/// Agents that run `$dir/do-NAME`, and complete their task; NAME is the agent's name.
pub(crate) const DO: &str = r#"start
git config user.name a; git config user.email a@example.org
. "$dir/do-$RETAKE_AGENT" > "$dir/out-$RETAKE_AGENT" 2>&1
complete; result 0.50 100"#;

/// A repository with two branches, `main` not checked out, and workspaces for these agents.
pub(crate) fn project(agents: &[(&str, &str)]) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[DO]);
    sandbox.file(".gitignore", "/.agent\n*.o\n");
    sandbox.file("a", "1\n2\n3\n");
    sandbox.file("b", "1\n");
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.git(&["add", "."]);
    sandbox.git(&["commit", "-qm", "one"]);
    sandbox.git(&["checkout", "-qb", "mine"]);
    for (name, script) in agents {
        sandbox.workspace(name, &[]);
        does(&sandbox, name, script);
    }
    sandbox
}

pub(crate) fn does(sandbox: &Sandbox, agent: &str, script: &str) {
    std::fs::write(sandbox.agent_dir().join(format!("do-{agent}")), script).unwrap();
}

pub(crate) fn run(sandbox: &Sandbox, words: &[&str]) -> Called {
    let words: Vec<_> = ["agent", "run"].iter().chain(words).copied().collect();
    sandbox.retake(&words)
}

pub(crate) fn fleet(sandbox: &Sandbox) -> Value {
    let called = sandbox.retake(&["agent", "fleet", "--json"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    called.json()
}

/// `NAME STATE` of all agents.
pub(crate) fn states(sandbox: &Sandbox) -> String {
    let word = |agent: &Value| {
        format!("{} {}", agent["name"].as_str().unwrap(), agent["state"].as_str().unwrap())
    };
    let fleet = fleet(sandbox);
    fleet["agents"].as_array().unwrap().iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Every file of the user's checkout with its bytes, and the index; without retake's own files.
pub(crate) fn checkout(sandbox: &Sandbox) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(dir: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            if entry.file_name() == ".agent" || entry.file_name() == ".git" {
                continue;
            }
            match entry.file_type().unwrap().is_dir() {
                true => walk(&path, into),
                false => _ = into.insert(path.clone(), std::fs::read(&path).unwrap()),
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(&sandbox.project(), &mut files);
    for name in ["index", "HEAD", "config"] {
        let path = sandbox.project().join(".git").join(name);
        files.insert(path.clone(), std::fs::read(path).unwrap());
    }
    files
}

/// No clone is left, and the repository is intact.
pub(crate) fn tidy(sandbox: &Sandbox) {
    let trees = sandbox.dir.path().join("home/data/retake/trees");
    let left: Vec<_> = std::fs::read_dir(&trees).into_iter().flatten().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    let checked = sandbox.git(&["fsck", "--full", "--strict"]);
    assert!(!checked.contains("missing") && !checked.contains("error"), "{checked}");
}

pub(crate) fn show(sandbox: &Sandbox, name: &str) -> String {
    sandbox.git(&["show", name])
}

#[test]
fn results_are_merged_in_order_and_the_users_checkout_stays_as_it_is() {
    let sandbox = project(&[
        ("one", "echo one > one; git add .; git commit -qm one"),
        ("two", "echo two > two; echo more >> b; rm a"),
        ("three", "echo three > sub.o; true"),
    ]);
    sandbox.file("b", "dirty\n");
    sandbox.file("new", "untracked\n");
    sandbox.git(&["add", "b"]);
    sandbox.file("b", "dirtier\n");
    let before = checkout(&sandbox);
    let called =
        run(&sandbox, &["one", "two", "three", "--merge-into", "main", "--verify", "true"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(states(&sandbox), "one merged, two merged, three no_change");
    assert_eq!(checkout(&sandbox), before);
    assert_eq!(show(&sandbox, "main:one"), "one");
    assert_eq!(show(&sandbox, "main:b"), "1\nmore");
    assert_eq!(sandbox.git(&["ls-tree", "--name-only", "main", "a", "sub.o"]), "");
    assert!(called.stderr.contains("--from dirty"), "{}", called.snapshot());
    for part in ["✓ one: merged into main", "2 merged, 1 no_change; $1.50"] {
        assert!(called.stdout.contains(part), "{part}: {}", called.snapshot());
    }
    tidy(&sandbox);
    // The work is kept under retake's references, and not among the user's branches.
    let branches = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/heads"]);
    assert_eq!(branches, "refs/heads/main\nrefs/heads/mine");
}

#[test]
fn two_that_pass_alone_and_fail_together_are_not_both_merged() {
    let sandbox = project(&[("x", "touch x"), ("y", "touch y")]);
    let gate = "test ! -e x || test ! -e y";
    let called = run(&sandbox, &["x", "y", "--merge-into", "main", "--verify", gate]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    let fleet = fleet(&sandbox);
    let states: Vec<_> =
        fleet["agents"].as_array().unwrap().iter().map(|a| a["state"].as_str().unwrap()).collect();
    assert!(states.contains(&"merged") && states.contains(&"verify_failed"), "{states:?}");
    let merged = sandbox.git(&["ls-tree", "--name-only", "main", "x", "y"]);
    assert_eq!(merged.lines().count(), 1, "{merged}");
    tidy(&sandbox);
    // Refused work is not lost.
    let refused = if states[0] == "verify_failed" { "x" } else { "y" };
    let diff = sandbox.retake(&["agent", "fleet", "diff", refused]);
    assert!(diff.stdout.contains(&format!("b/{refused}")), "{}", diff.snapshot());
}

#[test]
fn an_agent_whose_own_gate_refused_has_not_failed_itself() {
    let sandbox = project(&[("one", "touch one"), ("two", "exit 3")]);
    let called = run(&sandbox, &["one", "two", "--no-delay", "--verify", "false"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert_eq!(states(&sandbox), "one verify_failed, two agent_failed");
    assert!(called.stdout.contains("✗ one: verify_failed"), "{}", called.snapshot());
    let listed = sandbox.retake(&["agent", "fleet"]).stdout;
    assert!(listed.contains("verification does not pass"), "{listed}");
}

#[test]
fn a_branch_that_someone_has_checked_out_is_not_moved() {
    let sandbox = project(&[("one", "echo one > one"), ("two", "echo two > two")]);
    sandbox.git(&["checkout", "-q", "main"]);
    let old = sandbox.git(&["rev-parse", "main"]);
    let before = checkout(&sandbox);
    let called = run(&sandbox, &["one", "two", "--merge-into", "main", "--jobs", "1"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.git(&["rev-parse", "main"]), old);
    assert_eq!(checkout(&sandbox), before);
    let command =
        called.stdout.lines().find_map(|line| line.split("Take it: git ").nth(1)).unwrap();
    sandbox.git(&command.split(' ').collect::<Vec<_>>());
    assert_eq!(
        (show(&sandbox, "main:one"), show(&sandbox, "main:two")),
        ("one".into(), "two".into())
    );
}

#[test]
fn a_branch_that_a_second_worktree_has_is_taken_there() {
    let sandbox = project(&[("one", "echo one > one")]);
    let second = sandbox.dir.path().canonicalize().unwrap().join("second one");
    sandbox.git(&["worktree", "add", "-q", second.to_str().unwrap(), "main"]);
    let called = run(&sandbox, &["one", "--merge-into", "main"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let command = called.stdout.lines().find_map(|line| line.split("Take it: ").nth(1)).unwrap();
    assert_eq!(sandbox.sh(command).code, 0, "{command}");
    assert_eq!(std::fs::read_to_string(second.join("one")).unwrap(), "one\n");
    assert_eq!(show(&sandbox, "main:one"), "one");
    assert!(!sandbox.project().join("one").exists(), "mine is not touched");
    // In the meantime it is not checked out anywhere.
    let free = format!("git -C '{}' checkout -q --detach", second.display());
    does(&sandbox, "one", &format!("echo two > two; touch \"$dir/at\"; {free}"));
    let gate = format!("case $PWD in *gate.tree) {free};; esac");
    sandbox.git(&["-C", second.to_str().unwrap(), "checkout", "-q", "main"]);
    let words = ["one", "--again", "--merge-into", "main", "--verify", &gate];
    let called = run(&sandbox, &words);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(show(&sandbox, "main:two"), "two");
}

#[test]
fn a_clean_checkout_follows_if_asked_and_a_dirty_one_does_not() {
    let sandbox = project(&[("one", "echo one > one"), ("two", "echo two > two")]);
    sandbox.git(&["checkout", "-q", "main"]);
    let words = ["--merge-into", "main", "--update-checkout"];
    let called = run(&sandbox, &[&["one"][..], &words].concat());
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(std::fs::read_to_string(sandbox.project().join("one")).unwrap(), "one\n");
    assert_eq!(sandbox.git(&["status", "--porcelain"]), "");
    sandbox.file("b", "mine\n");
    let before = checkout(&sandbox);
    let called = run(&sandbox, &[&["two"][..], &words].concat());
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(checkout(&sandbox), before);
    assert!(
        called.stdout.contains("main is checked out and was not moved"),
        "{}",
        called.snapshot()
    );
}

#[test]
fn a_branch_that_the_user_moves_meanwhile_keeps_the_users_commit() {
    let sandbox = project(&[("one", "echo one > one")]);
    // The gate moves the branch itself, the first time it runs.
    let mark = sandbox.agent_dir().join("moved");
    let project = sandbox.project();
    let gate = format!(
        "cd {p} && test -e {m} || {{ touch {m}; git -c user.name=u -c user.email=u@u \
         update-ref refs/heads/main $(git -c user.name=u -c user.email=u@u commit-tree -p main -m user main^{{tree}}); }}",
        p = project.display(),
        m = mark.display()
    );
    let gate = sandbox.file(".agent/gate.sh", &gate);
    // Only the gate on the merged tree moves it, not that of the agent's own loop.
    let verify = format!("case $PWD in *gate.tree*) sh {};; esac", gate.display());
    let called = run(&sandbox, &["one", "--merge-into", "main", "--verify", &verify]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(mark.exists(), "{}", called.snapshot());
    let log = sandbox.git(&["log", "--format=%s", "main"]);
    assert!(log.contains("user") && log.contains("Merge the work of agent one"), "{log}");
    assert_eq!(show(&sandbox, "main:one"), "one");
}

#[test]
fn a_conflict_goes_back_to_its_agent_with_both_sides() {
    let resolve = r#"if [ "$RETAKE_ITERATION" = 1 ]; then
  while [ $(git --git-dir=ORIGINAL/.git rev-list --count main) = 1 ]; do sleep 0.02; done
  sed -i s/2/second/ a
else
  onto=$(sed -n 's/.*run `git merge \([0-9a-f]*\)`.*/\1/p' "$dir/prompt-$n" | head -1)
  git commit -qam mine; git merge -q $onto || { printf '1\nboth\n3\n' > a; git commit -qam both; }
fi"#;
    let sandbox =
        project(&[("first", "sed -i s/2/first/ a; touch \"$dir/first\""), ("second", "")]);
    // The second one begins its work after that of the first is merged.
    let original = sandbox.project().display().to_string();
    does(&sandbox, "second", &resolve.replace("ORIGINAL", &original));
    let called = run(&sandbox, &["first", "second", "--merge-into", "main"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(states(&sandbox), "first merged, second merged");
    assert_eq!(show(&sandbox, "main:a"), "1\nboth\n3");
    assert_eq!(fleet(&sandbox)["agents"][1]["attempt"], 2);
    // Simultaneous calls may have the same number.
    let called_with = std::fs::read_dir(sandbox.agent_dir()).unwrap().flatten();
    let prompts = called_with.filter(|e| e.file_name().to_string_lossy().starts_with("prompt-"));
    let prompts: String =
        prompts.map(|entry| std::fs::read_to_string(entry.path()).unwrap()).collect();
    assert!(prompts.contains("<<<<<<<") && prompts.contains("second"), "{prompts}");
    for part in ["second: conflicts in a", "first and second both change a"] {
        assert!(called.stdout.contains(part), "{part}: {}", called.snapshot());
    }
    tidy(&sandbox);
}

#[test]
fn a_conflict_that_is_not_resolved_is_called_so_and_kept() {
    let sandbox = project(&[("first", "sed -i s/2/first/ a"), ("second", "sed -i s/2/second/ a")]);
    let words = ["first", "second", "--merge-into", "main", "--conflict-attempts", "0"];
    let called = run(&sandbox, &words);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    let states = states(&sandbox);
    assert!(states.contains("merged") && states.contains("conflict"), "{states}");
    let name = if states.contains("first conflict") { "first" } else { "second" };
    let refused = sandbox.retake(&["agent", "fleet", "apply", name]);
    // The branch that is checked out contains neither: there it applies.
    assert_eq!(refused.code, 0, "{}", refused.snapshot());
    assert_eq!(show(&sandbox, "HEAD:a"), format!("1\n{name}\n3"));
    tidy(&sandbox);
}

#[test]
fn eight_at_once_do_not_get_in_each_others_way() {
    let hostile = r#"echo $RETAKE_SLOT $RETAKE_PORT_BASE > "$dir/slot-$RETAKE_AGENT"
for i in 1 2 3; do
  echo $i > $RETAKE_AGENT; git add .; git commit -qm $i
  echo stash >> $RETAKE_AGENT; git stash -q; git config my.key $i; git stash pop -q
  git checkout -q -- .
  git branch same-$i 2>/dev/null; git tag -f same > /dev/null
done
echo hidden > $RETAKE_AGENT-2; git add .; git stash -q
git config core.fsmonitor "touch $dir/executed"; git config core.hooksPath /tmp
git config filter.x.clean "touch $dir/executed; cat"; echo '* filter=x' > .git/info/attributes 2>/dev/null
printf '#!/bin/sh\ntouch %s/executed\n' "$dir" > .git/hooks/pre-commit 2>/dev/null
echo left > $RETAKE_AGENT-left"#;
    let deleted = "echo kept > h; rm -rf .git";
    let nested = "git init -q inner; (cd inner; echo x > x); echo g > g";
    let names = ["a1", "b1", "c1", "d1", "e1", "f1"];
    let mut agents: Vec<(&str, &str)> = names.iter().map(|name| (*name, hostile)).collect();
    agents.extend([("g1", nested), ("h1", deleted)]);
    let sandbox = project(&agents);
    let before = checkout(&sandbox);
    let words: Vec<&str> = agents.iter().map(|(name, _)| *name).collect();
    let called = run(&sandbox, &[&words[..], &["--jobs", "8", "--merge-into", "main"]].concat());
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(checkout(&sandbox), before);
    assert!(!sandbox.agent_dir().join("executed").exists(), "something of an agent's was executed");
    assert!(
        states(&sandbox).split(", ").all(|state| state.ends_with(" merged")),
        "{}",
        states(&sandbox)
    );
    for name in names {
        assert_eq!(show(&sandbox, &format!("main:{name}")), "3", "{name}");
        assert_eq!(show(&sandbox, &format!("main:{name}-left")), "left", "{name}");
        let id = fleet(&sandbox)["id"].as_str().unwrap().to_owned();
        let stash = format!("refs/retake/fleet/{id}/{name}/stash:{name}-2");
        assert_eq!(show(&sandbox, &stash), "hidden", "a stash is kept, too");
    }
    assert_eq!((show(&sandbox, "main:h"), show(&sandbox, "main:g")), ("kept".into(), "g".into()));
    assert_eq!(sandbox.git(&["stash", "list"]), "");
    // No two agents have the same ports at the same time; slots are numbers from 1.
    let slots = names.map(|name| {
        std::fs::read_to_string(sandbox.agent_dir().join(format!("slot-{name}"))).unwrap()
    });
    assert!(slots.iter().all(|slot| slot.split_whitespace().count() == 2), "{slots:?}");
    // A repository inside of a clone is not kept elsewhere: this clone stays, and `prune` says so.
    assert!(called.stderr.contains("g1: its clone was left at "), "{}", called.snapshot());
    let listed = sandbox.retake(&["agent", "prune"]);
    assert!(listed.stdout.contains("g1  /"), "{}", listed.snapshot());
    assert_eq!(listed.stdout.matches("trees/").count(), 1, "{}", listed.snapshot());
    let kept = sandbox.retake(&["agent", "prune", "--yes"]);
    assert!(kept.code == 1 && kept.stderr.contains("inner"), "{}", kept.snapshot());
    let tree = fleet(&sandbox)["agents"][6]["tree"].as_str().unwrap().to_owned();
    std::fs::remove_dir_all(Path::new(&tree).join("inner")).unwrap();
    assert_eq!(sandbox.retake(&["agent", "prune", "--yes"]).code, 0);
    assert!(!Path::new(&tree).exists());
    tidy(&sandbox);
}

#[test]
fn of_several_tries_the_one_that_passes_is_taken() {
    let sandbox = project(&[("flaky", "")]);
    for number in 1..=3 {
        does(&sandbox, &format!("flaky-{number}"), &format!("echo {number} > answer"));
    }
    // In its own clone each of them passes.
    let gate = "case $PWD in *gate.tree) grep -q 2 answer;; esac";
    let called = run(&sandbox, &["flaky", "--best-of", "3", "--jobs", "1", "--verify", gate]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let states = states(&sandbox);
    assert!(states.starts_with("flaky-1 verify_failed, flaky-2 kept, flaky-3 "), "{states}");
    let branch = fleet(&sandbox)["agents"][1]["branch"].as_str().unwrap().to_owned();
    assert_eq!(show(&sandbox, &format!("{branch}:answer")), "2");
    assert!(called.stdout.contains(&format!("git merge {branch}")), "{}", called.snapshot());
    tidy(&sandbox);
}

#[test]
fn the_budget_and_the_halt_rule_apply_to_the_whole_fleet() {
    let sandbox = project(&[("one", "touch one"), ("two", "touch two"), ("three", "touch three")]);
    let words = ["one", "two", "three", "--jobs", "1", "--merge-into", "main"];
    let called = run(&sandbox, &[&words[..], &["--max-cost", "0.75"]].concat());
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(
        called.stdout.contains("the cost budget for all agents is exhausted"),
        "{}",
        called.snapshot()
    );
    assert_eq!(states(&sandbox), "one merged, two merged, three waiting");
    let sandbox = project(&[("one", "exit 3"), ("two", "touch two"), ("three", "touch three")]);
    let called = run(&sandbox, &[&words[..], &["--halt", "fail=1"]].concat());
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert_eq!(states(&sandbox), "one agent_failed, two waiting, three waiting");
    let called = run(&sandbox, &["one", "two", "--halt", "sometimes"]);
    assert!(called.stderr.contains("--halt: "), "{}", called.snapshot());
}

#[test]
fn when_one_agent_is_limited_the_others_wait_as_well() {
    let sandbox = project(&[("one", ""), ("two", "touch two")]);
    sandbox.agent(
        "",
        &[r#"start
case $RETAKE_AGENT in
one) if [ ! -e "$dir/limited" ]; then touch "$dir/limited"; limited 3; exit; fi;;
two) while [ ! -e "$dir/limited" ]; do sleep 0.02; done
     if [ ! -e "$dir/again" ]; then sleep 1; touch "$dir/again"; progress 1 2; result; exit; fi;;
esac
touch $RETAKE_AGENT; complete; result"#],
    );
    let called = run(&sandbox, &["one", "two", "--merge-into", "main"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let waits =
        |name: &str| called.stdout.lines().any(|l| l.starts_with(name) && l.contains("limit"));
    assert!(waits("one: ") && waits("two: "), "{}", called.snapshot());
}

#[test]
fn agents_are_shown_stopped_and_told_one_by_one() {
    let wait = "while [ ! -e \"$dir/go\" ]; do sleep 0.02; done; touch $RETAKE_AGENT";
    let sandbox = project(&[("one", wait), ("two", "echo 2 > two; touch \"$dir/at\"; sleep 600")]);
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "run", "one", "two", "--merge-into", "main"]);
    let running = Running::of(
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()),
    );
    sandbox.awaited("at");
    eventually("both run", || states(&sandbox) == "one running, two running");
    let again = run(&sandbox, &["one", "two"]);
    assert!(again.code == 1 && again.stderr.contains("are already run by"), "{}", again.snapshot());
    let diff = sandbox.retake(&["agent", "fleet", "diff", "two"]);
    assert!(diff.stdout.contains("+2"), "while it works: {}", diff.snapshot());
    let wrong = sandbox.retake(&["agent", "fleet", "diff", "nobody"]);
    assert!(wrong.stderr.contains("choose from one, two"), "{}", wrong.snapshot());
    let stopped = sandbox.retake(&["agent", "fleet", "stop", "two", "--now"]);
    assert_eq!(stopped.code, 0, "{}", stopped.snapshot());
    eventually("two has ended", || states(&sandbox) == "one running, two kept");
    std::fs::write(sandbox.agent_dir().join("go"), "").unwrap();
    let called = running.end();
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(states(&sandbox), "one merged, two kept");
    assert!(sandbox.retake(&["agent", "fleet"]).stdout.contains("merged"), "a table");
    tidy(&sandbox);
}

#[test]
fn agents_that_cannot_be_isolated_are_refused_and_never_run_in_place() {
    let sandbox = project(&[("one", "touch one"), ("two", "touch two")]);
    for (prepare, words, part) in [
        ("true", &["one", "nobody"][..], "Workspace not found: nobody"),
        ("true", &["one", "one"], "one is named twice"),
        ("true", &["one", "two", "--best-of", "2"], "--best-of takes one task"),
        ("true", &["one", "--merge-into", "none"], "there is no branch none"),
        ("true", &["one", "two", "--from", "nothing"], "\"nothing\" is not a commit"),
        ("touch .git/MERGE_HEAD", &["one", "two"], "a merge is not finished"),
        ("rm .git/MERGE_HEAD; git checkout -q --detach", &["one", "two"], "--from head"),
        ("rm -rf .git", &["one", "two"], "not in a git repository"),
    ] {
        assert_eq!(sandbox.sh(prepare).code, 0);
        let called = run(&sandbox, words);
        assert_eq!(called.code, 1, "{words:?}: {}", called.snapshot());
        assert!(called.stderr.contains(part), "{words:?}: {}", called.snapshot());
    }
    assert_eq!(sandbox.calls(), 0, "no agent began");
    assert!(!sandbox.project().join("one").exists());
    let inside = sandbox.sh("git init -q; RETAKE_AGENT=x retake agent run one two");
    assert!(inside.stderr.contains("this is agent x of a fleet"), "{}", inside.snapshot());
}

#[test]
fn they_start_from_uncommitted_changes_if_asked() {
    let sandbox = project(&[("one", "cat b new > seen")]);
    sandbox.file("b", "dirty\n");
    sandbox.file("new", "untracked\n");
    let before = checkout(&sandbox);
    let called = run(&sandbox, &["one", "--from", "dirty"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(checkout(&sandbox), before);
    let branch = fleet(&sandbox)["agents"][0]["branch"].as_str().unwrap().to_owned();
    assert_eq!(show(&sandbox, &format!("{branch}:seen")), "dirty\nuntracked");
}

#[test]
fn submodules_are_there_without_asking_another_machine() {
    let sandbox = project(&[("one", "cat lib/file > seen"), ("two", "echo changed > lib/file")]);
    let made = sandbox.sh(
        "set -e; g() { git -c user.name=u -c user.email=u@u -c protocol.file.allow=always \"$@\"; }\n\
         mkdir ../lib; cd ../lib; g init -q; echo lib > file; g add .; g commit -qm lib; cd ../project\n\
         g submodule --quiet add ../lib lib; g commit -qm sub; mv ../lib ../gone",
    );
    assert_eq!(made.code, 0, "{}", made.snapshot());
    let called = run(&sandbox, &["one", "two"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let branch = fleet(&sandbox)["agents"][0]["branch"].as_str().unwrap().to_owned();
    assert_eq!(show(&sandbox, &format!("{branch}:seen")), "lib");
    // Uncommitted changes in a submodule are in no commit: this clone stays.
    assert!(called.stderr.contains("two: its clone was left at"), "{}", called.snapshot());
    assert!(!called.stderr.contains("one: its clone was left at"), "{}", called.snapshot());
}
