//! Several agents whose runner is killed at every step: no commit is lost, no clone is left, and the
//! branch is either old or new.

use std::process::Stdio;

use crate::common::{Called, RETAKE, Running, Sandbox, called, eventually};
use crate::fleet::{checkout, fleet, project, run, states, tidy};

/// Replaces git: kills retake before or after the call of this number.
fn killing(sandbox: &Sandbox) -> String {
    let bin = sandbox.dir.path().join("killing");
    std::fs::create_dir_all(&bin).unwrap();
    let real = sandbox.sh("command -v git").stdout.trim().to_owned();
    let dir = bin.display();
    // Calls by agents and gates are not counted: they have RETAKE_AGENT set.
    let script = format!(
        "#!/bin/sh\n[ -n \"$RETAKE_AGENT\" ] && exec {real} \"$@\"\n\
         echo >> {dir}/calls; n=$(wc -l < {dir}/calls)\n\
         die() {{ while [ ! -s {dir}/pid ]; do sleep 0.01; done; kill -9 $(cat {dir}/pid); sleep 600; }}\n\
         [ \"$(cat {dir}/before)\" = $n ] && die\n\
         {real} \"$@\"; code=$?\n\
         [ \"$(cat {dir}/after)\" = $n ] && die\nexit $code\n"
    );
    let git = bin.join("git");
    std::fs::write(&git, script).unwrap();
    std::fs::set_permissions(&git, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    bin.to_string_lossy().into_owned()
}

/// Runs with a kill at a call of git. Returns whether it was killed.
fn killed(sandbox: &Sandbox, bin: &str, (before, after): (u32, u32)) -> bool {
    for (name, text) in [("before", before), ("after", after)] {
        std::fs::write(format!("{bin}/{name}"), text.to_string()).unwrap();
    }
    for name in ["calls", "pid"] {
        std::fs::write(format!("{bin}/{name}"), "").unwrap();
    }
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    let mut command = sandbox.command(RETAKE);
    command.args(WORDS).env("PATH", path).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    std::fs::write(format!("{bin}/pid"), child.id().to_string()).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.code().is_none() {
        return true;
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    false
}

const WORDS: [&str; 8] =
    ["agent", "run", "one", "two", "--merge-into", "main", "--verify", "test -e a"];

#[test]
fn a_kill_at_any_step_loses_nothing_and_the_next_run_goes_on() {
    let sandbox = project(&[
        ("one", "echo one > one; git add .; git commit -qm one; echo more > more"),
        ("two", "echo two > two"),
    ]);
    let bin = killing(&sandbox);
    let before = checkout(&sandbox);
    let old = sandbox.git(&["rev-parse", "main"]);
    let mut kills = 0;
    // One or two calls later each time, alternating before and after.
    for step in (2..).step_by(3) {
        let at = if step % 2 == 0 { (step / 2 + 3, 0) } else { (0, step / 2 + 3) };
        if !killed(&sandbox, &bin, at) {
            break;
        }
        kills += 1;
        assert_eq!(checkout(&sandbox), before, "after kill {kills}");
        // Old, or with all of the work of one agent.
        let tip = sandbox.git(&["rev-parse", "main"]);
        let files = sandbox.git(&["ls-tree", "--name-only", "main"]);
        assert!(tip == old || files.contains("one") || files.contains("two"), "{files}");
        assert_eq!(files.contains("one"), files.contains("more"), "half of its work: {files}");
        sandbox.git(&["fsck", "--full"]);
        assert!(kills < 200, "it never ends");
    }
    assert!(kills > 5, "{kills}");
    assert_eq!(states(&sandbox), "one merged, two merged");
    let files = sandbox.git(&["ls-tree", "--name-only", "main"]);
    for name in ["one", "more", "two"] {
        assert!(files.lines().any(|file| file == name), "{files}");
    }
    assert_eq!(checkout(&sandbox), before);
    tidy(&sandbox);
}

#[test]
fn an_interrupted_agent_continues_in_its_tree() {
    let kill = "if [ ! -e \"$dir/killed\" ]; then touch \"$dir/killed\"; echo half > half; while [ ! -s \"$dir/pid\" ]; do sleep 0.01; done; kill -9 $(cat \"$dir/pid\"); sleep 600; fi; echo whole > whole";
    let sandbox = project(&[("one", kill), ("two", "echo two > two")]);
    let mut command = sandbox.command(RETAKE);
    command.args(WORDS).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    std::fs::write(sandbox.agent_dir().join("pid"), child.id().to_string()).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), None, "it was killed");
    let listed = sandbox.retake(&["agent", "fleet"]);
    assert!(listed.stdout.contains("its retake process died"), "{}", listed.snapshot());
    let other = sandbox.retake(&["agent", "run", "one", "--jobs", "1"]);
    let command = "`retake agent run one two --merge-into main --verify 'test -e a'`";
    assert!(other.code == 1 && other.stderr.contains(command), "{}", other.snapshot());
    // The remains of a killed git.
    let id = fleet(&sandbox)["id"].as_str().unwrap().to_owned();
    let locked = sandbox.project().join(".git/refs/retake/fleet").join(id).join("one");
    std::fs::create_dir_all(&locked).unwrap();
    std::fs::write(locked.join("result.lock"), "").unwrap();
    let again = called(sandbox.command(RETAKE).args(WORDS));
    assert_eq!(again.code, 0, "{}", again.snapshot());
    assert!(
        again.stdout.contains("Continuing the agents whose process died; they had worked for ")
            && again.stdout.contains("; no cost was reported\n"),
        "{}",
        again.snapshot()
    );
    assert_eq!(states(&sandbox), "one merged, two merged");
    let files = sandbox.git(&["ls-tree", "--name-only", "main"]);
    assert!(files.contains("half") && files.contains("whole"), "{files}");
    tidy(&sandbox);
}

#[test]
fn an_unfinished_run_can_be_given_up_without_losing_its_work() {
    let kill = "echo half > half; while [ ! -s \"$dir/pid\" ]; do sleep 0.01; done; kill -9 $(cat \"$dir/pid\"); sleep 600";
    let sandbox = project(&[("one", kill), ("two", "echo two > two")]);
    let mut command = sandbox.command(RETAKE);
    command.args(WORDS).args(["--jobs", "1"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    std::fs::write(sandbox.agent_dir().join("pid"), child.id().to_string()).unwrap();
    child.wait().unwrap();
    let id = fleet(&sandbox)["id"].as_str().unwrap().to_owned();
    let listed = sandbox.retake(&["agent", "prune"]);
    assert!(listed.stdout.contains("(unfinished)"), "{}", listed.snapshot());
    let kept = sandbox.retake(&["agent", "prune", "--yes"]);
    assert!(kept.stderr.contains("--unfinished abandons it"), "{}", kept.snapshot());
    let given_up = sandbox.retake(&["agent", "prune", "--yes", "--unfinished"]);
    assert_eq!(given_up.code, 0, "{}", given_up.snapshot());
    let kept = format!("refs/retake/fleet/{id}/one/result:half");
    assert_eq!(sandbox.git(&["show", &kept]), "half");
    assert_eq!(sandbox.git(&["show", "--format=%s", "-s", "main"]), "one", "the branch is old");
    tidy(&sandbox);
}

/// Runs these words, kills the program once a script has created `at`, and returns the output of the next
/// same run.
fn killed_and_continued(sandbox: &Sandbox, words: &[&str]) -> Called {
    let mut command = sandbox.command(RETAKE);
    command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    sandbox.awaited("at");
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::write(sandbox.agent_dir().join("go"), "").unwrap();
    called(sandbox.command(RETAKE).args(words))
}

/// Waits to be killed, the first time.
const WAITS: &str = "if [ ! -e \"$dir/go\" ]; then touch \"$dir/at\"; sleep 600; fi";

#[test]
fn a_git_of_the_agent_that_was_killed_does_not_lock_it_out_of_its_tree() {
    let script = format!(
        "[ -e \"$dir/go\" ] || touch .git/index.lock .git/refs/heads/retake/one.lock\n{WAITS}\n\
         echo one > one; git add .; git commit -qm one"
    );
    let sandbox = project(&[("one", &script)]);
    let again = killed_and_continued(&sandbox, &["agent", "run", "one", "--merge-into", "main"]);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    assert_eq!(sandbox.git(&["log", "-1", "--format=%s", "main"]), "one", "its own commit");
    tidy(&sandbox);
}

#[test]
fn ctrl_c_prints_how_to_continue_and_loses_no_iteration() {
    let sandbox = project(&[("one", WAITS)]);
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "run", "one", "--merge-into", "main", "--verify", "true"]);
    let running = Running::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    sandbox.awaited("at");
    running.signal(libc::SIGINT);
    let ended = running.end();
    assert_eq!(ended.code, 128 + libc::SIGINT, "{}", ended.snapshot());
    let command = "→ Continue: retake agent run one --merge-into main --verify true\n";
    assert!(ended.stdout.contains(command), "{}", ended.snapshot());
    std::fs::write(sandbox.agent_dir().join("go"), "").unwrap();
    let again = run(&sandbox, &["one", "--merge-into", "main"]);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    assert_eq!(fleet(&sandbox)["agents"][0]["iterations"], 2);
    tidy(&sandbox);
}

#[test]
fn work_of_an_interrupted_agent_is_kept_if_it_does_not_continue() {
    // The first one fails once the second has started.
    let fails = "while [ ! -e \"$dir/at\" ]; do sleep 0.02; done; exit 3";
    let works = "echo half > half; git add .; git commit -qm half; echo more > more; touch \"$dir/at\"; sleep 600";
    let sandbox = project(&[("one", fails), ("two", works)]);
    let words = [
        "agent",
        "run",
        "one",
        "two",
        "--merge-into",
        "main",
        "--halt",
        "fail=1",
        "--verify",
        "true",
    ];
    let mut command = sandbox.command(RETAKE);
    let mut child =
        command.args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sandbox.awaited("at");
    eventually("the first has failed", || states(&sandbox) == "one agent_failed, two running");
    child.kill().unwrap();
    child.wait().unwrap();
    let again = called(sandbox.command(RETAKE).args(words));
    assert_eq!(again.code, 1, "{}", again.snapshot());
    assert_eq!(states(&sandbox), "one agent_failed, two kept");
    let id = fleet(&sandbox)["id"].as_str().unwrap().to_owned();
    for name in ["half", "more"] {
        let kept = format!("refs/retake/fleet/{id}/two/result:{name}");
        assert_eq!(sandbox.git(&["show", &kept]), name);
    }
    // Its loop has ended, too, and is not continued in the project.
    let shown = sandbox.retake(&["agent", "list", "--json"]).json();
    let open = shown.as_array().unwrap().iter().any(|task| task["state"] == "died");
    assert!(!open, "{shown}");
    tidy(&sandbox);
}

#[test]
fn a_run_that_died_before_it_made_a_tree_can_be_given_up() {
    let sandbox = project(&[("one", "touch one"), ("two", "touch two")]);
    let died = called(sandbox.command(RETAKE).args(WORDS).env("RETAKE_DIE_AT", "2"));
    assert_eq!(died.code, 128 + libc::SIGKILL, "{}", died.snapshot());
    let other = run(&sandbox, &["one", "--jobs", "1"]);
    assert!(other.code == 1 && other.stderr.contains("prune --unfinished"), "{}", other.snapshot());
    let listed = sandbox.retake(&["agent", "prune"]);
    assert!(listed.stdout.contains("one, two  (no clone, unfinished)"), "{}", listed.snapshot());
    let kept = sandbox.retake(&["agent", "prune", "--yes"]);
    assert!(kept.stderr.contains("--unfinished abandons it"), "{}", kept.snapshot());
    let given_up = sandbox.retake(&["agent", "prune", "--yes", "--unfinished"]);
    assert!(given_up.stdout.contains("✓ one, two: abandoned"), "{}", given_up.snapshot());
    assert_eq!(run(&sandbox, &["one", "--jobs", "1"]).code, 0);
    tidy(&sandbox);
}

#[test]
fn a_run_that_was_interrupted_has_not_died() {
    let sandbox = project(&[("one", WAITS), ("two", "touch two")]);
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "run", "one", "two", "--merge-into", "main"]);
    let running = Running::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    sandbox.awaited("at");
    running.signal(libc::SIGINT);
    assert_eq!(running.end().code, 130);
    let listed = sandbox.retake(&["agent", "fleet"]).stdout;
    let said = "The run was interrupted. Continue: retake agent run one two --merge-into main\n";
    assert!(listed.contains(said) && !listed.contains("died"), "{listed}");
    // A process that continued it can be killed.
    std::fs::remove_file(sandbox.agent_dir().join("at")).unwrap();
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "run", "one", "two", "--merge-into", "main"]);
    let running = Running::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    sandbox.awaited("at");
    running.signal(libc::SIGKILL);
    let killed = running.end();
    assert!(killed.stdout.contains("whose run was interrupted"), "{}", killed.snapshot());
    let listed = sandbox.retake(&["agent", "fleet"]).stdout;
    assert!(listed.contains("its retake process died"), "{listed}");
}

#[test]
fn an_agent_whose_run_was_not_finished_is_not_continued_in_the_project_itself() {
    let script = format!("echo one > one\n{WAITS}");
    let sandbox = project(&[("one", &script), ("two", "touch two")]);
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "run", "one", "--merge-into", "main"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sandbox.awaited("at");
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::write(sandbox.agent_dir().join("go"), "").unwrap();
    let advice = "`retake agent run one --merge-into main` continues it";
    sandbox.retake(&["agent", "queue", "add", "one"]);
    for words in [&["run", "one"][..], &["run", "one", "two"], &["queue", "run"]] {
        let refused = sandbox.retake(&[&["agent"], words].concat());
        let said = refused.stdout.clone() + &refused.stderr;
        assert!(refused.code == 1 && said.contains(advice), "{words:?}: {}", refused.snapshot());
    }
    assert!(!sandbox.project().join("one").exists());
    let again = run(&sandbox, &["one", "--merge-into", "main"]);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    assert_eq!(sandbox.git(&["show", "main:one"]), "one");
    tidy(&sandbox);
}
