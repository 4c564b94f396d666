//! Finds and kills processes that a child started and left running, by the run id in their environment.
//!
//! Killing a process group misses processes that changed their group or session. The run id is inherited
//! through both; only a process that also clears its environment escapes.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::fd::pidfd;
use crate::variables::RUN_ID;

/// A process in an uninterruptible system call does not die immediately, and may never.
const PATIENCE: Duration = Duration::from_secs(5);

/// A value for `FIRST_RUN_ID` that no other child on this machine has.
pub fn new_run_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let started = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    format!("{}-{started:x}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Kills every process with this run id except this one, including those started in the meantime.
/// Allocates, so it must not run in a forked copy.
pub fn kill_by_run_id(run_id: &str) {
    let mark = format!("{RUN_ID}={run_id}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let marked = marked(mark.as_bytes());
        if marked.is_empty() || Instant::now() >= deadline {
            return;
        }
        for process in &marked {
            kill(process);
        }
        for process in &marked {
            wait(process, deadline);
        }
    }
}

/// The other processes that have the variable in their environment.
fn marked(mark: &[u8]) -> Vec<OwnedFd> {
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let carries = |pid: i32| {
        // Unreadable means another user's, a zombie, or gone: none of them is to be killed.
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == mark))
    };
    pids.filter(|pid| pid.unsigned_abs() != own && carries(*pid))
        // A pid may have been reused in between; the second check is for the process behind the descriptor.
        .filter_map(|pid| pidfd(pid.unsigned_abs()).ok().filter(|_| carries(pid)))
        .collect()
}

fn kill(process: &OwnedFd) {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a descriptor we hold; no siginfo is given. A failure means it is already gone.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, none, 0);
    }
}

fn wait(process: &OwnedFd, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor that lives as long as the call.
    unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as i32) };
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn processes_that_left_their_group_and_session_are_found() {
        let run_id = format!("sweep-test-{}", std::process::id());
        let mut daemon = Command::new("setsid")
            .args(["sh", "-c", "sleep 1000 & sleep 1000"])
            .env(RUN_ID, &run_id)
            .spawn()
            .unwrap();
        let mut other = Command::new("sleep").arg("1000").env(RUN_ID, "other").spawn().unwrap();
        let mark = format!("{RUN_ID}={run_id}");
        while marked(mark.as_bytes()).len() < 3 {
            assert!(daemon.try_wait().unwrap().is_none(), "setsid did not stay");
        }
        kill_by_run_id(&run_id);
        assert!(marked(mark.as_bytes()).is_empty());
        assert!(!daemon.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
