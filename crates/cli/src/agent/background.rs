//! Continues a command in the background. Errors at its start are still reported in the terminal it
//! was typed in.

use std::os::unix::process::ExitStatusExt;

use retake_agent::display::Level;
use retake_engine::{BackgroundOutcome, BackgroundProcess, InBackground};

use super::refused;
use crate::{Exit, Failure, term};

/// Which process continues.
pub(super) enum Continuation {
    /// The process in the background.
    Here(BackgroundProcess),
    /// The process in the terminal, once the other one has started or failed.
    Caller(Exit),
}

/// Call this before anything is locked and before a thread starts. `started` makes the message that the
/// process in the terminal prints once the other one has started.
pub(super) fn continue_in_background(
    level: Level,
    started: &dyn Fn(i32) -> String,
) -> Result<Continuation, Failure> {
    let failed = |error| refused(format!("could not start a process: {error}"));
    // SAFETY: nothing here has started a thread yet; workers are started later.
    let split = unsafe { retake_engine::continue_in_background() }.map_err(failed)?;
    let start = match split {
        InBackground::Process(process) => return Ok(Continuation::Here(process)),
        InBackground::Caller(start) => start,
    };
    let exit = match start.wait().map_err(failed)? {
        BackgroundOutcome::Started { pid } => {
            if level != Level::Quiet {
                term::data(started(pid).as_bytes())?;
            }
            Exit::OK
        }
        BackgroundOutcome::Ended(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(u8::try_from(code).unwrap_or(1)),
            (None, signal) => Exit::Signal(signal.unwrap_or(libc::SIGTERM)),
        },
    };
    Ok(Continuation::Caller(exit))
}
