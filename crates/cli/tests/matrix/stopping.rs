//! Ctrl-C, a kill -9, and a second run while the first is running.

use std::process::{Child, Stdio};

use crate::common::{RETAKE, alive, eventually};
use crate::env::Env;

/// Iteration 0 ends immediately; iteration 1 waits until it is released.
struct Stuck {
    env: Env,
    run: Child,
    child: i32,
    go: std::path::PathBuf,
}

impl Stuck {
    fn new() -> Self {
        Self::running(2, &["run"])
    }

    /// With this many iterations configured; those before what is run are done.
    fn running(iterations: u64, arguments: &[&str]) -> Self {
        let env = Env::with_commits(&["one", "two"]);
        let (go, pid) = (env.outside("go"), env.outside("pid"));
        env.config(&format!(
            "command: |\n  if [ $ITERATION = 1 ] && [ ! -e {go} ]; then echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000; fi\niterations: {iterations}\ncode: {{refs: [v1, v2]}}\n",
            go = go.display(),
            pid = pid.display()
        ));
        if iterations == 1 {
            env.expect(0, &["run"]);
        }
        let mut command = env.sandbox.command(RETAKE);
        command.arg("matrix").args(arguments).stderr(Stdio::null()).stdout(Stdio::null());
        let run = command.spawn().unwrap();
        eventually("the second iteration begins", || pid.exists());
        let child = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        Self { env, run, child, go }
    }

    fn signal(&mut self, signal: i32) -> std::process::ExitStatus {
        let pid = i32::try_from(self.run.id()).unwrap();
        // SAFETY: our own child, not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        self.run.wait().unwrap()
    }

    /// An interrupted iteration has no result, and the next run does only the rest.
    fn goes_on(self) {
        let child = self.child;
        eventually("the child is gone", || !alive(child));
        let env = self.env;
        let before = env.ids();
        assert_eq!(before.len(), 2);
        assert_eq!(env.counts(), [(1, 0, 1), (1, 0, 1)]);
        std::fs::write(&self.go, "").unwrap();
        let ran = env.expect(0, &["run"]);
        assert!(ran.stderr.contains("2 runs: 2 ok"), "{}", ran.stderr);
        assert_eq!(env.counts(), [(2, 0, 0), (2, 0, 0)]);
        assert!(before.is_subset(&env.ids()));
    }
}

#[test]
fn signals_end_the_command_and_then_us_by_the_same_signal() {
    use std::os::unix::process::ExitStatusExt;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut stuck = Stuck::new();
        assert_eq!(stuck.signal(signal).signal(), Some(signal));
        stuck.goes_on();
    }
}

#[test]
fn a_killed_runner_loses_only_what_was_in_flight() {
    let mut stuck = Stuck::new();
    stuck.signal(libc::SIGKILL);
    stuck.goes_on();
}

/// Iterations that `--append` did not reach are not configured, so the next run has nothing to continue.
#[test]
fn a_run_after_a_killed_one_says_whether_it_continues_it() {
    let after_kill = |mut stuck: Stuck| {
        stuck.signal(libc::SIGKILL);
        let Stuck { env, child, go, .. } = stuck;
        eventually("the child is gone", || !alive(child));
        std::fs::write(go, "").unwrap();
        env.expect(0, &["run"]).stderr
    };
    let said = after_kill(Stuck::new());
    assert!(said.contains("an earlier run was interrupted; this one continues it"), "{said}");
    let said = after_kill(Stuck::running(1, &["run", "--append", "1"]));
    assert!(said.contains("Nothing was pending"), "{said}");
    assert!(!said.contains("continues it"), "{said}");
}

#[test]
fn what_an_interrupted_append_left_is_completed_by_the_command_that_it_names() {
    let env = Env::bare();
    let (go, pid) = (env.outside("go"), env.outside("pid"));
    env.config(&format!(
        "command: |\n  if [ $ITERATION = 2 ] && [ ! -e {go} ]; then touch {pid}; sleep 1000; fi\n\
         iterations: 1\naxes: {{n: [1, 2]}}\n",
        go = go.display(),
        pid = pid.display()
    ));
    env.expect(0, &["run", "-q"]);
    let mut command = env.sandbox.command(RETAKE);
    command.args(["matrix", "run", "--append", "3", "--axis", "n=1", "--axis=n=2"]);
    let run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the third iteration begins", || pid.exists());
    // SAFETY: our own child, not waited for yet.
    assert_eq!(unsafe { libc::kill(i32::try_from(run.id()).unwrap(), libc::SIGINT) }, 0);
    let said = String::from_utf8(run.wait_with_output().unwrap().stderr).unwrap();
    let named = "`retake matrix run --iterations 4 --axis n=1 --axis=n=2`";
    assert!(said.contains(named), "{said}");
    std::fs::write(&go, "").unwrap();
    env.expect(0, &["run", "--iterations", "4", "--axis", "n=1", "--axis=n=2"]);
    let runs: Vec<u64> = env.counts().iter().map(|(ok, ..)| *ok).collect();
    assert_eq!(runs, [4, 4]);
}

#[test]
fn a_second_run_is_refused_and_told_who_runs() {
    let mut stuck = Stuck::new();
    let refused = stuck.env.expect(1, &["run"]);
    let holder = format!("`retake matrix run` (pid {}", stuck.run.id());
    assert!(refused.stderr.contains(&holder), "{}", refused.stderr);
    let refused = stuck.env.expect(1, &["clean"]);
    assert!(refused.stderr.contains(&holder), "{}", refused.stderr);
    stuck.signal(libc::SIGTERM);
}
