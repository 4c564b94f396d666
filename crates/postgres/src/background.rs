//! A push that nobody waits for: a process of its own that ends by itself.
//!
//! One at a time for each record. One that finds the database down leaves a note and gives up; the
//! next one sends what this one did not.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use retake_engine::{HelperProgram, PARENT_VARIABLE};

use crate::signals;

/// The turn to push this record; `None` while another process has it.
pub fn turn(store: &Path) -> Option<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(store.join("push.lock"))
        .ok()?;
    // SAFETY: the descriptor is open.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    locked.then_some(file)
}

/// Leaves what went wrong for whoever wonders; nothing once it went well.
pub fn note(store: &Path, problem: Option<&str>) {
    let path = store.join("push.log");
    // A note that cannot be left changes nothing: the next push says the same.
    _ = match problem {
        Some(problem) => std::fs::write(&path, format!("{} {problem}\n", jiff::Timestamp::now())),
        None => std::fs::remove_file(&path),
    };
}

/// What went wrong with the last push, and when; `None` if it went well.
pub fn owed(store: &Path) -> Option<String> {
    let text = std::fs::read_to_string(store.join("push.log")).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Starts a push and does not wait for it. Inside another run it is left to that run's end, which
/// would otherwise take the process for something the command left behind.
pub fn in_background(store: &Path) {
    if std::env::var_os(PARENT_VARIABLE).is_some() {
        return;
    }
    let push = HelperProgram::new("/proc/self/exe", signals::original())
        .named("retake")
        .arguments(["--store".as_ref(), store.as_os_str()])
        .arguments(["runs", "push", "--background"])
        .in_own_session();
    // What cannot be started is made up for by the next one.
    _ = push.start();
}
