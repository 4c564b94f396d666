//! A program on a pseudo-terminal, read and typed at as by a person.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{RETAKE, Sandbox};

/// Longer than the slowest machine takes.
const PATIENCE: Duration = Duration::from_secs(20);

impl Sandbox {
    /// A pseudo-terminal: the test's end and the program's end.
    pub(crate) fn terminal() -> (OwnedFd, OwnedFd) {
        // SAFETY: new descriptors are wrapped immediately.
        unsafe {
            let ours = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
            libc::grantpt(ours);
            libc::unlockpt(ours);
            let theirs = libc::ioctl(
                ours,
                libc::TIOCGPTPEER,
                libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC,
            );
            assert!(ours >= 0 && theirs >= 0);
            (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
        }
    }

    /// One of this many columns and lines.
    pub(crate) fn sized_terminal((columns, lines): (u16, u16)) -> (OwnedFd, OwnedFd) {
        let (ours, theirs) = Self::terminal();
        let size = libc::winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: a terminal and a complete structure.
        unsafe { assert_eq!(libc::ioctl(ours.as_raw_fd(), libc::TIOCSWINSZ, &raw const size), 0) };
        (ours, theirs)
    }

    /// The output of the program on a terminal of this size, without stderr.
    pub(crate) fn on_terminal(
        &self,
        size: (u16, u16),
        variables: &[(&str, &str)],
        arguments: &[&str],
    ) -> String {
        let (ours, theirs) = Self::sized_terminal(size);
        let mut command: Command = self.command(RETAKE);
        command.env_remove("COLUMNS").env("TERM", "xterm").envs(variables.iter().copied());
        let mut child =
            command.args(arguments).stdout(theirs).stderr(Stdio::null()).spawn().expect("started");
        // Otherwise this process's copy of the other end would keep the terminal open forever.
        drop(command);
        let mut shown = Vec::new();
        let mut terminal = File::from(ours);
        // The end of a terminal is an error, not end-of-file.
        assert!(terminal.read_to_end(&mut shown).is_err(), "{}", terminal.as_raw_fd());
        child.wait().expect("ended");
        String::from_utf8(shown).expect("text").replace("\r\n", "\n")
    }
}

pub(crate) struct Screen {
    program: Child,
    terminal: File,
    seen: String,
    from: usize,
}

impl Screen {
    /// The terminal is its standard input, output and error, and its controlling one.
    pub(crate) fn of(mut command: Command, columns: u16) -> Self {
        let (ours, theirs) = Sandbox::sized_terminal((columns, 24));
        let copy = || theirs.try_clone().expect("a descriptor");
        command.env_remove("COLUMNS").stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let program = command.spawn().expect("started");
        // SAFETY: sets the descriptor not to block, so that waiting has an end.
        unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        Self { program, terminal: ours.into(), seen: String::new(), from: 0 }
    }

    pub(crate) fn send(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).expect("typed");
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        match self.terminal.read(&mut buffer) {
            Ok(n) if n > 0 => self.seen.push_str(&String::from_utf8_lossy(&buffer[..n])),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }

    /// Waits until the text appears after what was already expected.
    pub(crate) fn expect(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        let at = loop {
            if let Some(at) = self.seen[self.from..].find(text) {
                break at;
            }
            assert!(Instant::now() < until, "no {text:?} after:\n{}", &self.seen[self.from..]);
            self.read();
        };
        self.from += at + text.len();
    }

    /// Waits for its end; returns its exit code and everything that was shown.
    pub(crate) fn end(mut self) -> (i32, String) {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.program.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < until, "does not end:\n{}", self.seen);
            self.read();
        };
        let mut rest = Vec::new();
        // The end of a terminal is an error, not end-of-file.
        _ = self.terminal.read_to_end(&mut rest);
        self.seen.push_str(&String::from_utf8_lossy(&rest));
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        let code = status.code().unwrap_or_else(|| 128 + signal.expect("a code or a signal"));
        (code, std::mem::take(&mut self.seen))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It may have ended already.
        _ = self.program.kill();
        _ = self.program.wait();
    }
}
