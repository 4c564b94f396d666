//! Forwards keys from the user's terminal to the child's pseudo-terminal.

use std::os::fd::{AsRawFd, RawFd};

use super::Supervision;
use crate::syscalls;
use crate::terminal::RawMode;

/// The user's terminal, whose keys go to the child.
pub(super) struct Keyboard {
    pub(super) raw: RawMode,
    /// Keys that the pseudo-terminal has not accepted yet.
    pub(super) pending: Vec<u8>,
    /// Whether this program is in the terminal's foreground and receives its keys.
    pub(super) foreground: bool,
}

impl Keyboard {
    pub(super) fn new(raw: RawMode) -> Self {
        Self { foreground: raw.in_foreground(), raw, pending: Vec::new() }
    }
}

impl Supervision<'_> {
    /// Detects that this program has come to the foreground of the user's terminal.
    pub(super) fn update_foreground(&mut self) {
        if let Some(keyboard) = &mut self.terminals.keyboard {
            let before = keyboard.foreground;
            keyboard.foreground = keyboard.raw.in_foreground();
            if keyboard.foreground && !before {
                keyboard.raw.resume();
            }
        }
    }

    /// The descriptor to read keys from; `-1` while none are wanted.
    pub(super) fn key_source(&self) -> RawFd {
        match &self.terminals.keyboard {
            Some(keyboard) if keyboard.foreground && keyboard.pending.is_empty() => 0,
            _ => -1,
        }
    }

    /// The descriptor to write keys to; `-1` without pending keys.
    pub(super) fn key_sink(&self) -> RawFd {
        match (&self.terminals.keyboard, &self.terminals.pty) {
            (Some(keyboard), Some(pty)) if !keyboard.pending.is_empty() => pty.ours.as_raw_fd(),
            _ => -1,
        }
    }

    /// Moves keys from the user's terminal to the child's.
    pub(super) fn forward_keys(&mut self) {
        let (Some(keyboard), Some(pty)) = (&mut self.terminals.keyboard, &self.terminals.pty)
        else {
            return;
        };
        if keyboard.pending.is_empty() {
            let mut keys = [0; 512];
            match syscalls::read_some(0, &mut keys) {
                Ok(Some(n @ 1..)) => keyboard.pending.extend_from_slice(&keys[..n]),
                Ok(None) => {}
                // The user's terminal is gone: no more keys arrive.
                Ok(Some(_)) | Err(_) => self.terminals.keyboard = None,
            }
            return;
        }
        // After `poll` reported writability. The rest is retried.
        if let Ok(n) = rustix::io::write(&pty.ours, &keyboard.pending) {
            keyboard.pending.drain(..n);
        }
    }
}
