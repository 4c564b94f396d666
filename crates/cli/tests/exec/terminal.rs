//! Terminals and job control: an interactive bash on a real pseudo-terminal, typed at as by a
//! person.

use std::time::Duration;

use crate::common::{Sandbox, Screen, alive, eventually};

/// An interactive shell with job control and a prompt that is easy to find.
struct Shell {
    screen: Screen,
    sandbox: Sandbox,
}

impl Shell {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let mut command = sandbox.command("bash");
        command.args(["--norc", "--noprofile", "--noediting", "-i"]);
        command.env("PS1", "PROMPT> ").env("TERM", "dumb");
        let mut shell = Self { screen: Screen::of(command, 80), sandbox };
        shell.expect("PROMPT> ");
        shell
    }

    fn send(&mut self, keys: &str) {
        self.screen.send(keys);
    }

    fn expect(&mut self, text: &str) {
        self.screen.expect(text);
    }

    fn line(&mut self, line: &str) {
        self.send(line);
        self.send("\n");
        // The echo of typed text is not an answer.
        let last = line.rsplit('\n').next().unwrap().to_owned();
        self.expect(&last);
    }

    fn pid(&self) -> i32 {
        let file = self.sandbox.project().join("pid");
        let mut pid = 0;
        eventually("the command wrote its pid", || {
            pid = std::fs::read_to_string(&file)
                .ok()
                .and_then(|t| t.trim().parse().ok())
                .unwrap_or(0);
            pid != 0
        });
        std::fs::remove_file(file).unwrap();
        pid
    }
}

fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('T')
}

#[test]
fn a_prompt_fails_at_once_unless_the_terminal_is_lent() {
    let mut shell = Shell::new();
    shell.line("retake exec -- sh -c 'read x < /dev/tty; echo code $?'");
    shell.expect("cannot open /dev/tty");
    shell.expect("PROMPT> ");
    shell.line("retake exec --stdin inherit -- sh -c 'echo ask; read x < /dev/tty; echo got $x'");
    shell.expect("ask");
    shell.line("hello");
    shell.expect("got hello");
    shell.expect("PROMPT> ");
}

#[test]
fn modes_and_foreground_are_given_back_however_the_run_ends() {
    let mut shell = Shell::new();
    for end in ["exit 0", "kill -9 $$", "sleep 100"] {
        shell.line(&format!("retake exec --stdin inherit --timeout 0.5 -- sh -c 'stty -echo raw; {end}'; stty -a | tr ';' '\\n'"));
        shell.expect(" icanon");
        shell.expect(" echo ");
        shell.expect("PROMPT> ");
    }
    // Killed with the child in the foreground: the shell gets its terminal back.
    shell.line(
        "retake exec --stdin inherit -- sh -c 'stty -echo; echo $PPID > pid; exec sleep 1000'",
    );
    let keeper = shell.pid();
    let stat = std::fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap();
    let retake: i32 =
        stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    // SAFETY: a process of this test.
    unsafe { libc::kill(retake, libc::SIGKILL) };
    shell.expect("Killed");
    shell.expect("PROMPT> ");
    eventually("the keeper is gone", || !alive(keeper));
    shell.send("stty -a | tr ';' '\\n'; echo usable\n");
    shell.expect("usable");
}

#[test]
fn ctrl_c_ends_the_run_and_a_loop_around_it() {
    let mut shell = Shell::new();
    for stdin in ["null", "inherit"] {
        shell.line(&format!("for i in 1 2 3; do retake exec --stdin {stdin} -- sh -c 'echo $$ > pid; exec sleep 1000'; done"));
        let pid = shell.pid();
        shell.send("\x03");
        shell.expect("PROMPT> ");
        assert!(!alive(pid));
        shell.line("echo code $?");
        shell.expect("code 130");
    }
}

#[test]
fn ctrl_z_stops_tree_and_clock_and_fg_resumes_both() {
    let mut shell = Shell::new();
    for stdin in ["null", "inherit"] {
        // Without `exec` the shell may be stopped in the middle of a vfork, where it does not
        // stop before its child continues.
        shell.line(&format!(
            "retake exec --stdin {stdin} --timeout 3 -- sh -c 'echo $$ > pid; exec sleep 1000'"
        ));
        let pid = shell.pid();
        shell.send("\x1a");
        shell.expect("Stopped");
        shell.expect("PROMPT> ");
        eventually("the child stands still", || stopped(pid));
        // Longer than the timeout: its clock is stopped.
        std::thread::sleep(Duration::from_secs(3));
        assert!(alive(pid) && stopped(pid));
        shell.line("fg");
        eventually("the child continues", || !stopped(pid));
        assert!(alive(pid));
        shell.expect("timed out after 3s");
        shell.expect("PROMPT> ");
        assert!(!alive(pid));
    }
}

#[test]
fn tostop_does_not_stop_a_run_that_has_lent_the_terminal() {
    let mut shell = Shell::new();
    shell.line("stty tostop");
    shell.expect("PROMPT> ");
    shell.line("retake exec --stdin inherit -- sh -c 'echo one; sleep 0.2; echo two'");
    shell.expect("one");
    shell.expect("two");
    shell.expect("PROMPT> ");
    shell.line("retake exec -- echo plain");
    shell.expect("plain");
    shell.expect("PROMPT> ");
}

#[test]
fn a_terminal_of_its_own_can_be_typed_into() {
    let mut shell = Shell::new();
    shell.line("retake exec --pty --stdin inherit -- sh -c 'test -t 0 && test -t 1 && echo ask; read x; echo got $x'");
    shell.expect("ask");
    shell.send("hello\r");
    shell.expect("got hello");
    shell.expect("PROMPT> ");
    shell.line("stty -a | tr ';' '\\n'");
    shell.expect(" icanon");
    shell.expect("PROMPT> ");
}

#[test]
fn killing_retake_also_ends_a_keeper_that_was_stopped() {
    let mut shell = Shell::new();
    shell.line("retake exec -- sh -c 'kill -STOP $PPID; echo $$ > pid; sleep 1000'");
    let child = shell.pid();
    let keeper = parent(child);
    let retake = parent(keeper);
    // SAFETY: a process of this test.
    unsafe { libc::kill(retake, libc::SIGKILL) };
    eventually("the tree is gone", || !alive(child) && !alive(keeper));
}

#[test]
fn a_raw_terminal_is_made_sane_by_the_keeper() {
    let mut shell = Shell::new();
    // A script does not restore its terminal, unlike an interactive shell.
    let script = "retake exec --pty --stdin inherit -- sh -c \"echo \\$PPID > pid; exec sleep 777\"; while ! [ -e go ]; do sleep 0.01; done; stty -a | tr \";\" \"\\n\"";
    shell.line(&format!("sh -c '{script}'"));
    let keeper = shell.pid();
    // SAFETY: a process of this test.
    unsafe { libc::kill(parent(keeper), libc::SIGKILL) };
    eventually("the keeper is gone", || !alive(keeper));
    shell.sandbox.file("go", "");
    shell.expect(" icanon");
    shell.expect(" echo ");
    shell.expect("PROMPT> ");
}

#[test]
fn a_run_in_its_own_terminal_can_be_brought_to_the_foreground() {
    let mut shell = Shell::new();
    shell.line("retake exec --pty --stdin inherit -- sh -c 'echo $$ > pid; read x; echo got $x' &");
    shell.pid();
    shell.expect("PROMPT> ");
    shell.line("fg");
    shell.send("hello\r");
    shell.expect("got hello");
    shell.expect("PROMPT> ");
}
