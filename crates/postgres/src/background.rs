//! A push in the background: a separate process that exits when it is done.
//!
//! At most one for each record. If the database is down, it stores the error and
//! gives up; the next push sends the rest.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use retake_engine::{HelperProgram, PARENT_VARIABLE};
use retake_runner::signals;

/// The lock for pushing this record, held until dropped; `None` while another process holds it.
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

/// Stores why a push failed, or, with `None`, that the last one succeeded.
pub fn set_last_failure(store: &Path, failure: Option<&str>) {
    let path = store.join("push.log");
    // Only informative: the next push fails for the same reason.
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

/// Starts a push and does not wait for it. Inside another run nothing is started: that run's end pushes,
/// and would otherwise treat the process as left behind by the command.
pub fn start_in_background(store: &Path) {
    if std::env::var_os(PARENT_VARIABLE).is_some() {
        return;
    }
    let push = HelperProgram::new("/proc/self/exe", signals::original())
        .named("retake")
        .arguments(["--store".as_ref(), store.as_os_str()])
        .arguments(["runs", "push", "--background"])
        .in_own_session();
    // If it cannot be started, the next push sends everything.
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
