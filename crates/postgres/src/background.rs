//! A push that nobody waits for: a process of its own that ends by itself.
//!
//! One at a time for each record. One that finds the database down writes its failure down and
//! gives up; the next one sends what this one did not.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use retake_engine::{HelperProgram, PARENT_VARIABLE};
use retake_runner::signals;

/// The right to push this record, until dropped; `None` while another process has it.
pub fn lock(store: &Path) -> Option<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(store.join("push.lock"))
        .ok()?;
    file.try_lock().is_ok().then_some(file)
}

/// Writes down why a push failed, or, with `None`, that the last one succeeded.
pub fn set_last_failure(store: &Path, failure: Option<&str>) {
    let path = store.join("push.log");
    // Nothing depends on it: the next push fails for the same reason.
    _ = match failure {
        Some(failure) => std::fs::write(&path, format!("{} {failure}\n", jiff::Timestamp::now())),
        None => std::fs::remove_file(&path),
    };
}

/// Why the last push failed, and when; `None` if it succeeded.
pub fn last_failure(store: &Path) -> Option<String> {
    let text = std::fs::read_to_string(store.join("push.log")).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Starts a push and does not wait for it. Inside another run it is left to that run's end, which
/// would otherwise take the process for something the command left behind.
pub fn start_in_background(store: &Path) {
    if std::env::var_os(PARENT_VARIABLE).is_some() {
        return;
    }
    let push = HelperProgram::new("/proc/self/exe", signals::original())
        .named("retake")
        .arguments(["--store".as_ref(), store.as_os_str()])
        .arguments(["runs", "push", "--background"])
        .in_own_session();
    // If it cannot be started, the next push sends what this one would have sent.
    _ = push.start();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_push_at_a_time() {
        let store = tempfile::tempdir().unwrap();
        let first = lock(store.path()).unwrap();
        assert!(lock(store.path()).is_none());
        drop(first);
        assert!(lock(store.path()).is_some());
    }

    #[test]
    fn the_last_failure_is_kept_until_a_push_succeeds() {
        let store = tempfile::tempdir().unwrap();
        assert_eq!(last_failure(store.path()), None);
        set_last_failure(store.path(), Some("the database is down"));
        assert!(last_failure(store.path()).unwrap().ends_with(" the database is down"));
        set_last_failure(store.path(), None);
        assert_eq!(last_failure(store.path()), None);
    }
}
