//! Terminals and job control: an interactive bash on a real pseudo-terminal, typed at like a
//! person would.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::time::{Duration, Instant};

use common::{Sandbox, alive, eventually};

struct Screen {
    shell: Child,
    terminal: File,
    seen: String,
    from: usize,
    sandbox: Sandbox,
}

impl Screen {
    /// An interactive shell with job control and a prompt that is easy to find.
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let (ours, theirs) = Sandbox::terminal();
        let mut command = sandbox.command("bash");
        command
            .args(["--norc", "--noprofile", "--noediting", "-i"])
            .env("PS1", "PROMPT> ")
            .env("TERM", "dumb")
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs);
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let shell = command.spawn().unwrap();
        // SAFETY: sets the descriptor not to block, so that waiting has an end.
        unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let mut screen =
            Self { shell, terminal: ours.into(), seen: String::new(), from: 0, sandbox };
        screen.expect("PROMPT> ");
        screen
    }

    fn send(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    fn line(&mut self, line: &str) {
        self.send(line);
        self.send("\n");
        // The echo of what was typed is not an answer.
        let last = line.rsplit('\n').next().unwrap().to_owned();
        self.expect(&last);
    }

    /// Waits until the text appears after what was already expected.
    fn expect(&mut self, text: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let mut buffer = [0; 4096];
            match self.terminal.read(&mut buffer) {
                Ok(n) if n > 0 => self.seen.push_str(&String::from_utf8_lossy(&buffer[..n])),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
            if let Some(at) = self.seen[self.from..].find(text) {
                self.from += at + text.len();
                return;
            }
            assert!(Instant::now() < until, "no {text:?} after:\n{}", &self.seen[self.from..]);
        }
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

impl Drop for Screen {
    fn drop(&mut self) {
        // The shell may be gone already.
        _ = self.shell.kill();
        _ = self.shell.wait();
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
    let mut screen = Screen::new();
    screen.line("retake exec -- sh -c 'read x < /dev/tty; echo code $?'");
    screen.expect("cannot open /dev/tty");
    screen.expect("PROMPT> ");
    screen.line("retake exec --stdin inherit -- sh -c 'echo ask; read x < /dev/tty; echo got $x'");
    screen.expect("ask");
    screen.line("hello");
    screen.expect("got hello");
    screen.expect("PROMPT> ");
}

#[test]
fn modes_and_foreground_are_given_back_however_the_run_ends() {
    let mut screen = Screen::new();
    for end in ["exit 0", "kill -9 $$", "sleep 100"] {
        screen.line(&format!("retake exec --stdin inherit --timeout 0.5 -- sh -c 'stty -echo raw; {end}'; stty -a | tr ';' '\\n'"));
        screen.expect(" icanon");
        screen.expect(" echo ");
        screen.expect("PROMPT> ");
    }
    // Killed with the child in front: the shell gets its terminal back.
    screen.line(
        "retake exec --stdin inherit -- sh -c 'stty -echo; echo $PPID > pid; exec sleep 1000'",
    );
    let keeper = screen.pid();
    let stat = std::fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap();
    let retake: i32 =
        stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    // SAFETY: a process of this test.
    unsafe { libc::kill(retake, libc::SIGKILL) };
    screen.expect("Killed");
    screen.expect("PROMPT> ");
    eventually("the keeper is gone", || !alive(keeper));
    screen.send("stty -a | tr ';' '\\n'; echo usable\n");
    screen.expect("usable");
}

#[test]
fn ctrl_c_ends_the_run_and_a_loop_around_it() {
    let mut screen = Screen::new();
    for stdin in ["null", "inherit"] {
        screen.line(&format!("for i in 1 2 3; do retake exec --stdin {stdin} -- sh -c 'echo $$ > pid; exec sleep 1000'; done"));
        let pid = screen.pid();
        screen.send("\x03");
        screen.expect("PROMPT> ");
        assert!(!alive(pid));
        screen.line("echo code $?");
        screen.expect("code 130");
    }
}

#[test]
fn ctrl_z_stops_tree_and_clock_and_fg_resumes_both() {
    let mut screen = Screen::new();
    for stdin in ["null", "inherit"] {
        screen.line(&format!(
            "retake exec --stdin {stdin} --timeout 3 -- sh -c 'echo $$ > pid; sleep 1000'"
        ));
        let pid = screen.pid();
        screen.send("\x1a");
        screen.expect("Stopped");
        screen.expect("PROMPT> ");
        eventually("the child stands still", || stopped(pid));
        // Longer than the timeout: the clock stands.
        std::thread::sleep(Duration::from_secs(3));
        assert!(alive(pid) && stopped(pid));
        screen.line("fg");
        eventually("the child goes on", || !stopped(pid));
        assert!(alive(pid));
        screen.expect("timed out after 3s");
        screen.expect("PROMPT> ");
        assert!(!alive(pid));
    }
}

#[test]
fn tostop_does_not_stop_a_run_that_has_lent_the_terminal() {
    let mut screen = Screen::new();
    screen.line("stty tostop");
    screen.expect("PROMPT> ");
    screen.line("retake exec --stdin inherit -- sh -c 'echo one; sleep 0.2; echo two'");
    screen.expect("one");
    screen.expect("two");
    screen.expect("PROMPT> ");
    screen.line("retake exec -- echo plain");
    screen.expect("plain");
    screen.expect("PROMPT> ");
}

#[test]
fn a_terminal_of_its_own_can_be_typed_into() {
    let mut screen = Screen::new();
    screen.line("retake exec --pty --stdin inherit -- sh -c 'test -t 0 && test -t 1 && echo ask; read x; echo got $x'");
    screen.expect("ask");
    screen.send("hello\r");
    screen.expect("got hello");
    screen.expect("PROMPT> ");
    screen.line("stty -a | tr ';' '\\n'");
    screen.expect(" icanon");
    screen.expect("PROMPT> ");
}

#[test]
fn killing_retake_also_ends_a_keeper_that_was_stopped() {
    let mut screen = Screen::new();
    screen.line("retake exec -- sh -c 'kill -STOP $PPID; echo $$ > pid; sleep 1000'");
    let child = screen.pid();
    let keeper = parent(child);
    let retake = parent(keeper);
    // SAFETY: a process of this test.
    unsafe { libc::kill(retake, libc::SIGKILL) };
    eventually("the tree is gone", || !alive(child) && !alive(keeper));
}

#[test]
fn a_raw_terminal_is_made_sane_by_the_keeper() {
    let mut screen = Screen::new();
    // A script does not repair its terminal, as an interactive shell would.
    let script = "retake exec --pty --stdin inherit -- sh -c \"echo \\$PPID > pid; exec sleep 777\"; while ! [ -e go ]; do sleep 0.01; done; stty -a | tr \";\" \"\\n\"";
    screen.line(&format!("sh -c '{script}'"));
    let keeper = screen.pid();
    // SAFETY: a process of this test.
    unsafe { libc::kill(parent(keeper), libc::SIGKILL) };
    eventually("the keeper is gone", || !alive(keeper));
    screen.sandbox.file("go", "");
    screen.expect(" icanon");
    screen.expect(" echo ");
    screen.expect("PROMPT> ");
}

#[test]
fn a_terminal_of_its_own_comes_to_the_front_once() {
    let mut screen = Screen::new();
    screen
        .line("retake exec --pty --stdin inherit -- sh -c 'echo $$ > pid; read x; echo got $x' &");
    screen.pid();
    screen.expect("PROMPT> ");
    screen.line("fg");
    screen.send("hello\r");
    screen.expect("got hello");
    screen.expect("PROMPT> ");
}
