//! Loops in the background: they outlive their terminal, can be followed from any other, and report errors
//! at their start.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{Called, Detached, RETAKE, Sandbox, Screen, alive, called, eventually};

/// Waits in each iteration for a file `go-N`.
const STEP: &str = "start; touch \"$dir/at-$n\"; while [ ! -e \"$dir/go-$n\" ]; do sleep 0.02; done; \
                    say \"about $n\"; progress 1 9; result";
const LAST: &str = "start; touch \"$dir/at-$n\"; while [ ! -e \"$dir/go-$n\" ]; do sleep 0.02; done; \
                    say 'this is the end'; complete; result";

fn go(sandbox: &Sandbox, call: u32) {
    std::fs::write(sandbox.agent_dir().join(format!("go-{call}")), "").unwrap();
}

#[test]
fn a_loop_outlives_the_terminal_it_was_started_from() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP, LAST]);
    sandbox.workspace("task", &[]);
    let mut command = sandbox.command("sh");
    // A shell with a terminal, like a user's; it exits and its terminal closes.
    command.args(["-c", "retake agent run task --detach; echo code $?; read line"]);
    let mut screen = Screen::of(command, 100);
    screen.expect("✓ task runs in the background (pid ");
    screen.expect("→ Follow it: retake agent attach task");
    screen.expect("→ Stop it: retake agent stop task");
    screen.expect("code 0");
    sandbox.awaited("at-1");
    let holder = sandbox.loop_state("task", "lock").unwrap();
    let pid = holder.split("(pid ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let pid: i32 = pid.parse().unwrap();
    // Closes the terminal: its session gets SIGHUP.
    drop(screen);
    let listed = sandbox.listed_task();
    assert_eq!((&listed["running"], &listed["activity"]), (&true.into(), &"running".into()));
    // Not even a SIGHUP of its own terminates it.
    // SAFETY: to the process that holds the workspace.
    unsafe { libc::kill(pid, libc::SIGHUP) };
    go(&sandbox, 1);
    go(&sandbox, 2);
    eventually("the end of the loop", || !alive(pid));
    assert_eq!(sandbox.statuses(), "1 completed, 2 completed");
    assert_eq!(sandbox.stop_reason(), "completed");
    let listed = sandbox.listed_task();
    assert_eq!((&listed["running"], &listed["activity"]), (&false.into(), &"stopped".into()));
    assert_eq!(listed["stopReason"], "completed");
    let log = sandbox.logs();
    assert!(log.contains("this is the end") && log.contains("STOPPED: completed"), "{log}");
}

#[test]
fn a_detached_loop_keeps_no_descriptors_of_its_caller() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    // A pipe that is read to its end, and a lock that a script holds while it starts the loop.
    let started = sandbox.sh(
        "exec 8>lock; flock 8; text=$(retake agent run task --detach 2>&1 | cat); echo \"$text\"",
    );
    let (_, background) = Detached::started(started);
    sandbox.awaited("at-1");
    assert_eq!(sandbox.sh("flock -n lock true").code, 0);
    assert!(background.alive());
}

#[test]
fn errors_that_prevent_a_detached_start_are_reported_immediately() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let refused = |called: &Called, part: &str| {
        assert_eq!(called.code, 1, "{}", called.snapshot());
        assert!(called.stderr.contains(part), "{part}: {}", called.snapshot());
    };
    let command = ["agent", "run", "task", "--detach"];
    // Errors that are known before and after the background process exists.
    let codex = sandbox.retake(&[&command[..], &["--agent", "codex", "--max-cost", "1"]].concat());
    refused(&codex, "--max-cost cannot be used with codex");
    let git = sandbox.retake(&[&command[..], &["--checkpoint"]].concat());
    refused(&git, "git init");
    let (_, background) = sandbox.detach_agent(&[]);
    sandbox.awaited("at-1");
    refused(&sandbox.retake(&command), "in use by `retake agent run task`");
    background.signal(libc::SIGKILL);
    background.ended();
    std::fs::remove_file(sandbox.agent_dir().join("agent")).unwrap();
    refused(&sandbox.retake(&command), "Claude CLI not found");
    // No process is left running.
    assert_eq!(sandbox.listed_task()["running"], false);
    let complete = sandbox.retake(&["agent", "run", "task", "--detach", "--dry-run"]);
    assert_eq!(complete.code, 1, "{}", complete.snapshot());
}

#[test]
fn a_caller_that_dies_first_leaves_no_loop_behind() {
    let sandbox = Sandbox::new();
    let path = sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let script = std::fs::read_to_string(&path).unwrap();
    let slow = "if [ \"$1\" = --version ]; then touch \"$dir/asked\"; \
                while [ ! -e \"$dir/answer\" ]; do sleep 0.02; done; fi\n";
    std::fs::write(&path, script.replacen("if [", &format!("{slow}if ["), 1)).unwrap();
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "run", "task", "--detach"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut caller = command.spawn().unwrap();
    sandbox.awaited("asked");
    caller.kill().unwrap();
    caller.wait().unwrap();
    std::fs::write(sandbox.agent_dir().join("answer"), "").unwrap();
    eventually("the end of the loop", || sandbox.listed_task()["activity"] == "stopped");
    assert_eq!((sandbox.stop_reason(), sandbox.calls()), ("interrupted".to_owned(), 0));
}

#[test]
fn attach_follows_a_loop_and_leaves_it_running() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP, STEP, LAST]);
    sandbox.workspace("task", &[]);
    let called = sandbox.retake(&["agent", "attach", "task"]);
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("task is not running"), "{}", called.snapshot());
    let (_, background) = sandbox.detach_agent(&["-m", "3"]);
    go(&sandbox, 1);
    sandbox.awaited("at-2");
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "attach", "task"]);
    let mut screen = Screen::of(command, 100);
    // Past iterations, the current one, and its duration.
    screen.expect("✓ 1  0 files  $0.01");
    screen.expect("Running iteration 2...");
    screen.expect("Iteration 2/3 · ");
    screen.send("\u{3}");
    screen.expect("task continues to run");
    screen.expect("→ Stop it: retake agent stop task");
    assert_eq!(screen.end().0, 130);
    assert!(background.alive());
    // From another terminal, with everything the agent says, to the end.
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "attach", "task", "-v"]);
    let mut screen = Screen::of(command, 100);
    screen.expect("Running iteration 2...");
    go(&sandbox, 2);
    screen.expect("📝 about 2");
    screen.expect("✓ 2  0 files");
    screen.expect("Running iteration 3...");
    go(&sandbox, 3);
    screen.expect("📝 this is the end");
    screen.expect("✓ Task completed successfully after 3 iterations");
    assert_eq!(screen.end().0, 0);
    background.ended();
}

#[test]
fn attach_works_through_a_pipe_and_sees_a_death() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let (_, background) = sandbox.detach_agent(&[]);
    go(&sandbox, 1);
    sandbox.awaited("at-2");
    let mut follow = sandbox
        .command(RETAKE)
        .args(["agent", "attach", "task"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A loop that is dead before it is followed counts as not running, which is a different answer.
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let joined = lines.find(|line| line.as_ref().unwrap().contains("Running iteration 2"));
    assert!(joined.is_some());
    background.signal(libc::SIGKILL);
    let rest: Vec<_> = lines.map(Result::unwrap).collect();
    let out = follow.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{rest:?}{said}");
    assert!(
        said.contains("its retake process died; `retake agent run task` continues it"),
        "{said}"
    );
    let listed = called(sandbox.command(RETAKE).args(["agent", "list"])).stdout;
    assert!(listed.contains("in_progress (interrupted)"), "{listed}");
}

#[test]
fn a_failing_loop_ends_attach_with_its_code_and_says_why_in_its_log() {
    let sandbox = Sandbox::new();
    let stuck = "start; touch \"$dir/at-1\"; while [ ! -e \"$dir/go-1\" ]; do sleep 0.02; done; failed 401 'no key'";
    sandbox.agent("", &[stuck]);
    sandbox.workspace("task", &[]);
    let (_, background) = sandbox.detach_agent(&[]);
    sandbox.awaited("at-1");
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "attach", "task"]);
    let mut screen = Screen::of(command, 100);
    screen.expect("Running iteration 1...");
    go(&sandbox, 1);
    screen.expect("Iteration 1 failed: no key");
    assert_eq!(screen.end().0, 1);
    background.ended();
    assert!(sandbox.logs().contains("Iteration 1 failed: no key"), "{}", sandbox.logs());
}

#[test]
fn a_waiting_loop_says_for_what_and_until_when() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; limited 3600"]);
    sandbox.workspace("task", &[]);
    let (_, background) = sandbox.detach_agent(&[]);
    eventually("the wait", || sandbox.listed_task()["activity"] == "waiting");
    let listed = sandbox.listed_task();
    assert_eq!((&listed["waitingFor"], &listed["running"]), (&"rateLimit".into(), &true.into()));
    assert!(listed["waitingUntil"].is_string(), "{listed}");
    let table = sandbox.retake(&["agent", "list"]).stdout;
    assert!(table.contains("waiting until "), "{table}");
    let shown = sandbox.retake(&["agent", "show", "task"]).stdout;
    assert!(shown.contains("waiting     until ") && shown.contains("limit"), "{shown}");
    let stop = sandbox.retake(&["agent", "stop", "task"]);
    assert_eq!(stop.code, 0, "{}", stop.snapshot());
    background.ended();
    assert_eq!(sandbox.stop_reason(), "stopped");
}
