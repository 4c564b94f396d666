//! Terminals: the user's own, lent to the child and restored, and pseudo-terminals.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::stdio;
use rustix::termios::{
    LocalModes, OptionalActions, OutputModes, Winsize, tcgetattr, tcgetwinsize, tcsetattr,
    tcsetwinsize,
};

use crate::keeper::TerminalState;

/// The user's terminal, while a child may use it.
pub(crate) struct UserTerminal {
    fd: RawFd,
    own_group: i32,
    modes: libc::termios,
    lent: bool,
    _ttou: IgnoredTtou,
}

/// While another group is in the foreground, SIGTTOU must not stop retake's writes and mode
/// changes.
struct IgnoredTtou {
    before: libc::sigaction,
}

impl IgnoredTtou {
    fn new() -> Self {
        // SAFETY: zero is valid for both structures; the call fills the second.
        unsafe {
            let mut ignore: libc::sigaction = std::mem::zeroed();
            ignore.sa_sigaction = libc::SIG_IGN;
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGTTOU, &raw const ignore, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for IgnoredTtou {
    fn drop(&mut self) {
        // SAFETY: restores what `new` saved.
        unsafe { libc::sigaction(libc::SIGTTOU, &raw const self.before, std::ptr::null_mut()) };
    }
}

impl UserTerminal {
    /// The terminal behind `fd`, if it is this process's controlling terminal.
    pub(crate) fn controlling(fd: RawFd) -> Option<Self> {
        // SAFETY: plain queries; zero is valid for both structures, which the calls fill.
        unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            if libc::tcgetpgrp(fd) <= 0 || libc::tcgetattr(fd, &raw mut modes) != 0 {
                return None;
            }
            let own_group = libc::getpgrp();
            Some(Self { fd, own_group, modes, lent: false, _ttou: IgnoredTtou::new() })
        }
    }

    /// How to restore the terminal, for the keeper of a killed runner.
    pub(crate) fn as_lent(&self) -> (RawFd, TerminalState) {
        (self.fd, TerminalState { modes: self.modes, group: Some(self.own_group) })
    }

    /// Whether this process is in the foreground.
    pub(crate) fn in_foreground(&self) -> bool {
        // SAFETY: a plain query.
        unsafe { libc::tcgetpgrp(self.fd) == self.own_group }
    }

    /// The child has made itself the foreground group.
    pub(crate) fn lent(&mut self) {
        self.lent = true;
    }

    /// Puts the child in the foreground again after a pause, if retake is in it.
    pub(crate) fn lend(&mut self, group: i32) {
        if self.in_foreground() {
            // SAFETY: SIGTTOU is ignored, so this does not stop retake.
            self.lent = unsafe { libc::tcsetpgrp(self.fd, group) } == 0;
        }
    }

    /// Restores modes and foreground group.
    pub(crate) fn take_back(&mut self) {
        if std::mem::take(&mut self.lent) {
            // SAFETY: SIGTTOU is ignored; a missing terminal cannot be restored.
            unsafe {
                libc::tcsetpgrp(self.fd, self.own_group);
                libc::tcsetattr(self.fd, libc::TCSADRAIN, &raw const self.modes);
            }
        }
    }
}

impl Drop for UserTerminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// retake's side of a pseudo-terminal, which reads what the child writes.
pub(crate) struct Pty {
    pub(crate) ours: OwnedFd,
}

impl Pty {
    /// retake's side and the child's. Reading ends only when every copy of the child's side is
    /// closed. `typed` says that a user will type into it.
    pub(crate) fn open(typed: bool) -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags)?;
        unlockpt(&ours)?;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        if !typed && let Ok(mut modes) = tcgetattr(&theirs) {
            // Keeps line ends as written by the program, and echoes nothing.
            modes.output_modes.remove(OutputModes::ONLCR);
            modes.local_modes.remove(LocalModes::ECHO);
            // On failure the output is still complete.
            _ = tcsetattr(&theirs, OptionalActions::Now, &modes);
        }
        let pty = Self { ours };
        pty.copy_size();
        Ok((pty, theirs))
    }

    /// Takes the size of the user's terminal, or 80 x 24 without one.
    pub(crate) fn copy_size(&self) {
        let size = [stdio::stdin(), stdio::stdout(), stdio::stderr()]
            .into_iter()
            .filter_map(|fd| tcgetwinsize(fd).ok())
            .find(|size| size.ws_col > 0)
            .unwrap_or(Winsize { ws_col: 80, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 });
        // A pseudo-terminal works without a size.
        _ = tcsetwinsize(&self.ours, size);
    }
}

/// Puts the user's terminal into raw mode until dropped.
pub(crate) struct RawMode {
    fd: RawFd,
    before: libc::termios,
    _ttou: IgnoredTtou,
}

impl RawMode {
    pub(crate) fn enter(fd: RawFd) -> Option<Self> {
        // SAFETY: zero is a valid termios, filled by the query.
        let before = unsafe {
            let mut before: libc::termios = std::mem::zeroed();
            (libc::tcgetattr(fd, &raw mut before) == 0).then_some(before)
        }?;
        let raw = Self { fd, before, _ttou: IgnoredTtou::new() };
        raw.resume();
        Some(raw)
    }

    pub(crate) fn as_lent(&self) -> (RawFd, TerminalState) {
        (self.fd, TerminalState { modes: self.before, group: None })
    }

    /// Whether input is meant for this program. In the background it must neither read from the
    /// terminal nor change it.
    pub(crate) fn in_foreground(&self) -> bool {
        // SAFETY: plain queries.
        unsafe { libc::tcgetpgrp(self.fd) == libc::getpgrp() }
    }

    pub(crate) fn resume(&self) {
        if !self.in_foreground() {
            return;
        }
        let mut modes = self.before;
        // SAFETY: changes and sets a local copy.
        unsafe {
            libc::cfmakeraw(&raw mut modes);
            libc::tcsetattr(self.fd, libc::TCSADRAIN, &raw const modes);
        }
    }

    pub(crate) fn pause(&self) {
        if self.in_foreground() {
            // SAFETY: sets what `enter` saved.
            unsafe { libc::tcsetattr(self.fd, libc::TCSADRAIN, &raw const self.before) };
        }
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.pause();
    }
}
