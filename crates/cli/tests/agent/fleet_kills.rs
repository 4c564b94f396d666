//! A real `kill -9` of the program right before and right after every entry of the record: the same
//! command continues, no commit is lost, nothing is left behind, and a branch is either old or new.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::{RETAKE, Sandbox, called, eventually};
use crate::fleet::{checkout, does, fleet, project, show, states, tidy};

/// A run to be killed at every step, and how it ends if it is not.
struct Scene {
    sandbox: Sandbox,
    words: Vec<&'static str>,
    code: i32,
    /// Whether the record says that it finished.
    finished: fn(&Sandbox) -> bool,
    /// What must be true then.
    end: fn(&Sandbox),
}

/// The parts of a scene, in the directory of its sandbox.
const PARTS: &str = "project home agent";

impl Scene {
    /// Kills at every step from `first` on, `stride` apart; the tests that share a scene take turns.
    fn kill_at_every_step(&self, first: u32, stride: u32) {
        let sandbox = &self.sandbox;
        let parts = |line: &str| {
            let line = format!("cd .. && {line}");
            let done = called(sandbox.command("sh").args(["-c", &line]));
            assert_eq!(done.code, 0, "{}", done.snapshot());
        };
        parts(&format!("mkdir -p start home && cp -a {PARTS} start"));
        let mut seen = BTreeSet::new();
        let mut step = first;
        loop {
            let mut command = sandbox.command(RETAKE);
            let ran = called(command.args(&self.words).env("RETAKE_DIE_AT", step.to_string()));
            if ran.code != 128 + libc::SIGKILL {
                assert_eq!(ran.code, self.code, "{}", ran.snapshot());
                break;
            }
            seen.extend(self.entries().last().cloned());
            // The continuing run is killed, too.
            if step.is_multiple_of(3) && !(self.finished)(sandbox) {
                let again = (step * 5 % 13 + 1).to_string();
                called(sandbox.command(RETAKE).args(&self.words).env("RETAKE_DIE_AT", again));
            }
            self.goes_on(step);
            step += stride;
            parts(&format!("rm -rf {PARTS} && cp -a start/. ."));
        }
        assert!(step > 20, "{step} steps");
        if stride == 1 {
            let all: BTreeSet<String> = self.entries().into_iter().collect();
            assert!(all.is_subset(&seen), "killed after {seen:?} of {all:?}");
        }
    }

    /// Runs it to its end and checks the result.
    fn goes_on(&self, step: u32) {
        let sandbox = &self.sandbox;
        if !(self.finished)(sandbox) {
            let ran = called(sandbox.command(RETAKE).args(&self.words));
            assert_eq!(ran.code, self.code, "killed at {step}: {}", ran.snapshot());
        }
        (self.end)(sandbox);
        tidy(sandbox);
        let noted = std::fs::read_to_string(sandbox.agent_dir().join("commits"));
        for commit in noted.unwrap_or_default().lines() {
            let kept = sandbox.git(&["for-each-ref", "--count=1", "--contains", commit]);
            assert!(!kept.is_empty(), "killed at {step}, {commit} is lost");
        }
        let locks = sandbox.sh("find .git -name '*.lock' -not -path '.git/retake/*'");
        assert_eq!(locks.stdout, "", "killed at {step}");
        eventually("the end of all processes", || !works_in(sandbox.dir.path()));
    }

    /// The kinds of all entries of all loops, in their order.
    fn entries(&self) -> Vec<String> {
        let path = self.sandbox.store().join("retake.db");
        let read_only = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let opened = rusqlite::Connection::open_with_flags(path, read_only);
        // Before the first loop there is no database.
        let Ok(database) = opened else { return Vec::new() };
        let entries = "SELECT json_extract(body, '$.type') FROM events ORDER BY at_us, seq";
        let Ok(mut entries) = database.prepare(entries) else { return Vec::new() };
        entries.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}

/// Whether a process has this directory in its environment.
fn works_in(directory: &Path) -> bool {
    let wanted = format!("HOME={}/home", directory.display());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.into_iter().any(|process| {
        let variables = std::fs::read(process.path().join("environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    })
}

/// Records a commit that must not be lost.
const NOTE: &str = "note() { git rev-parse \"$1\" >> \"$dir/commits\"; }\n";

/// One agent is merged, and one conflicts with it and resolves that.
fn merging() -> Scene {
    let sandbox = project(&[("one", ""), ("two", "")]);
    let first = "echo one > one; git add .; git commit -qm one; note HEAD\n\
         echo hidden > hidden; git add .; git stash -q; note refs/stash; sed -i s/2/first/ a";
    does(&sandbox, "one", &format!("{NOTE}{first}"));
    let second = r#"if [ ! -e "$dir/conflicts" ]; then
  while [ $(git --git-dir=ORIGINAL/.git rev-list --count main) = 1 ]; do sleep 0.02; done
  sed -i s/2/second/ a; git commit -qam second; note HEAD; touch "$dir/conflicts"
else
  onto=$(sed -n 's/.*run `git merge \([0-9a-f]*\)`.*/\1/p' "$dir/prompt-$n" | head -1)
  [ -z "$onto" ] || git merge -q $onto || { printf '1\nboth\n3\n' > a; git commit -qam both; note HEAD; }
fi"#;
    let second = second.replace("ORIGINAL", &sandbox.project().to_string_lossy());
    does(&sandbox, "two", &format!("{NOTE}{second}"));
    sandbox.file("b", "dirty\n");
    sandbox.git(&["add", "b"]);
    sandbox.file("b", "dirtier\n");
    sandbox.file("new", "untracked\n");
    let agents = ["agent", "run", "one", "two", "--jobs", "1", "--merge-into", "main"];
    Scene {
        sandbox,
        words: [&agents[..], &["--verify", "test -e a"]].concat(),
        code: 0,
        finished: fleet_is_over,
        end: |sandbox| {
            assert_eq!(states(sandbox), "one merged, two merged");
            assert_eq!(show(sandbox, "main:a"), "1\nboth\n3");
            assert_eq!(show(sandbox, "main:one"), "one");
            let files = checkout(sandbox);
            let content = |name: &str| files[&sandbox.project().join(name)].clone();
            assert_eq!(
                (content("b"), content("new")),
                (b"dirtier\n".into(), b"untracked\n".into())
            );
            assert_eq!(sandbox.git(&["show", ":b"]), "dirty");
            assert_eq!(sandbox.git(&["rev-parse", "--abbrev-ref", "HEAD"]), "mine");
        },
    }
}

fn fleet_is_over(sandbox: &Sandbox) -> bool {
    fleet(sandbox)["stopReason"].is_string()
}

/// The gate refuses the first attempt, and accepts the second.
fn trying(count: &'static str, words: &[&'static str], end: fn(&Sandbox)) -> Scene {
    let sandbox = project(&[("flaky", "")]);
    for number in 1..=3 {
        let answer =
            format!("{NOTE}echo {number} > answer; git add .; git commit -qm a; note HEAD");
        does(&sandbox, &format!("flaky-{number}"), &answer);
    }
    let gate = "case $PWD in *gate.tree) grep -q 2 answer;; esac";
    let tries = ["agent", "run", "flaky", "--best-of", count, "--jobs", "1", "--verify", gate];
    let words = [&tries[..], words].concat();
    Scene { sandbox, words, code: 0, finished: fleet_is_over, end }
}

#[test]
fn merges_and_conflicts_survive_a_kill_at_every_odd_step() {
    merging().kill_at_every_step(1, 2);
}

#[test]
fn merges_and_conflicts_survive_a_kill_at_every_even_step() {
    merging().kill_at_every_step(2, 2);
}

#[test]
fn a_result_of_the_last_run_is_merged_after_a_kill_at_any_step() {
    let commit = format!("{NOTE}touch $RETAKE_AGENT; git add .; git commit -qm x; note HEAD");
    let sandbox = project(&[("one", &commit), ("two", &commit)]);
    let gate = "case $PWD in *gate.tree) test -e $HOME/ok;; esac";
    let words = ["agent", "run", "one", "two", "--jobs", "1", "--merge-into", "main", "--verify"];
    let words = [&words[..], &[gate]].concat();
    assert_eq!(sandbox.retake(&words).code, 1);
    assert_eq!(states(&sandbox), "one verify_failed, two verify_failed");
    assert_eq!(sandbox.sh("touch $HOME/ok").code, 0);
    let scene = Scene {
        sandbox,
        words,
        code: 0,
        finished: |sandbox| fleet_is_over(sandbox) && !states(sandbox).contains("verify_failed"),
        end: |sandbox| {
            assert_eq!(states(sandbox), "one merged, two merged");
            assert_eq!(sandbox.git(&["ls-tree", "--name-only", "main", "one", "two"]), "one\ntwo");
            assert_eq!(sandbox.calls(), 2, "no agent worked again");
        },
    };
    scene.kill_at_every_step(1, 2);
}

#[test]
fn one_of_several_tries_is_kept_after_a_kill_at_every_step() {
    let scene = trying("3", &[], |sandbox| {
        assert!(states(sandbox).starts_with("flaky-1 verify_failed, flaky-2 kept, flaky-3 "));
        let branches = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/heads/retake"]);
        assert_eq!(branches.lines().count(), 1, "{branches}");
        assert_eq!(show(sandbox, &format!("{branches}:answer")), "2");
    });
    scene.kill_at_every_step(1, 1);
}

#[test]
fn one_of_several_tries_is_merged_after_a_kill_at_every_step() {
    let scene = trying("2", &["--merge-into", "main"], |sandbox| {
        assert_eq!(states(sandbox), "flaky-1 verify_failed, flaky-2 merged");
        assert_eq!(show(sandbox, "main:answer"), "2");
        assert_eq!(sandbox.git(&["rev-list", "--count", "main"]), "2", "one of them");
    });
    scene.kill_at_every_step(1, 1);
}

#[test]
fn a_queue_survives_a_kill_at_every_step() {
    let sandbox = project(&[("one", ""), ("two", "")]);
    let agent = "start\necho line >> $RETAKE_WORKSPACE\n\
         if [ $(wc -l < $RETAKE_WORKSPACE) = 1 ]; then progress 1 2; else complete; fi; result 0.50 100";
    sandbox.agent("", &[agent]);
    let added = sandbox.retake(&["agent", "queue", "add", "one", "two", "--verify", "test -e one"]);
    assert_eq!(added.code, 0, "{}", added.snapshot());
    let scene = Scene {
        sandbox,
        words: vec!["agent", "queue", "run"],
        code: 0,
        finished: |sandbox| {
            let listed = sandbox.retake(&["agent", "queue", "list", "--json"]).json();
            let tasks = listed["tasks"].as_array().unwrap();
            listed["run"].is_null() && tasks.iter().all(|task| task["state"] == "ended")
        },
        end: |sandbox| {
            let listed = sandbox.retake(&["agent", "queue", "list", "--json"]).json();
            assert!(listed["run"].is_null(), "{listed}");
            for task in listed["tasks"].as_array().unwrap() {
                assert_eq!(task["stopReason"], "completed", "{listed}");
            }
            for name in ["one", "two"] {
                let lines = std::fs::read_to_string(sandbox.project().join(name)).unwrap();
                assert!(lines.lines().count() >= 2, "{name}: {lines}");
            }
        },
    };
    scene.kill_at_every_step(1, 1);
}
