//! Long output goes through a pager when a person at a terminal reads it.
//!
//! A pager needs the terminal, and is neither captured, limited nor recorded.

use std::io::{self, IsTerminal, Write};

use retake_engine::{HelperOutput, HelperProgram};

use crate::signals;

const USUAL: &str = "less -FRX";

/// Prints text on stdout, through `$PAGER` if it is longer than the terminal is high.
pub(crate) fn page(text: &str) -> io::Result<()> {
    if !io::stdout().is_terminal() || text.lines().count() < super::height() {
        return super::data(text.as_bytes());
    }
    match std::env::var("PAGER").as_deref().map(str::trim) {
        Ok("" | "cat") => super::data(text.as_bytes()),
        Ok(pager) => through(pager, text),
        Err(_) => through(USUAL, text),
    }
}

fn through(pager: &str, text: &str) -> io::Result<()> {
    // A shell line, as in other programs that use $PAGER.
    let started = HelperProgram::new("/bin/sh", signals::original())
        .arguments(["-c", pager])
        .with_input()
        .output(HelperOutput::Inherit)
        .start();
    let Ok(mut child) = started else { return super::data(text.as_bytes()) };
    // Ctrl-C at the pager is for the pager; it must not terminate this process.
    // SAFETY: sets a plain disposition, restored below.
    let before = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    let written = match child.take_input() {
        Some(mut stdin) => stdin.write_all(text.as_bytes()),
        None => Ok(()),
    };
    let ended = child.wait();
    // SAFETY: restores the previous disposition.
    unsafe { libc::signal(libc::SIGINT, before) };
    match (written, ended?.code()) {
        // The shell's exit codes for a pager that is not installed.
        (_, Some(126 | 127)) => super::data(text.as_bytes()),
        // Quitting a pager early is not an error.
        (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
