//! Processes that outlived the runner of their run.
//!
//! A process is touched only if its environment names the run, it started after the run did, and it
//! is in this pid namespace. A pidfd is opened before the checks, so that a reused pid is never
//! signalled.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use retake_engine::{PARENT_VARIABLE, quote};
use retake_types::RunId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::notice::Notice;

/// Clocks can be set, and process start times are in hundredths of a second.
const CLOCK_SLACK: SignedDuration = SignedDuration::from_secs(1);
/// A process stuck in the kernel does not die at once, and waiting must end.
const PATIENCE: Duration = Duration::from_secs(2);

/// A process whose environment names its run.
pub struct Leftover {
    pub pid: i32,
    pub run: RunId,
    pub command: String,
    /// The first word of the command.
    pub program: String,
    began: Timestamp,
    handle: OwnedFd,
}

impl Leftover {
    pub fn notice(&self, killed: bool) -> Notice {
        Notice::Leftover { pid: self.pid, run: self.run, command: self.command.clone(), killed }
    }

    /// Whether it can belong to a run that began at this time.
    pub fn began_after(&self, start: Timestamp) -> bool {
        self.began.duration_since(start) >= -CLOCK_SLACK
    }
}

/// Every process with the mark of a run, except this one and its ancestors.
pub fn marked() -> Vec<Leftover> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let Ok(namespace) = fs::read_link("/proc/self/ns/pid") else { return Vec::new() };
    let lineage = lineage();
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| !lineage.contains(pid))
        .filter_map(|pid| inspect(pid, &namespace))
        .collect()
}

/// `None` for a process that is gone, inaccessible, or without a mark.
fn inspect(pid: i32, namespace: &std::path::Path) -> Option<Leftover> {
    let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let run = environment.split(|&byte| byte == 0).find_map(|pair| {
        let value = pair.strip_prefix(PARENT_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        std::str::from_utf8(value).ok()?.parse::<RunId>().ok()
    })?;
    if fs::read_link(format!("/proc/{pid}/ns/pid")).ok()? != namespace {
        return None;
    }
    let began = began(&fields(pid)?)?;
    let words = command(pid);
    let program = words.first().cloned().unwrap_or_default();
    let command = quote(words.iter().map(String::as_str));
    Some(Leftover { pid, run, command, program, began, handle })
}

/// The fields of `/proc/PID/stat` after the name, which may contain anything.
fn fields(pid: i32) -> Option<Vec<u64>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The state is a letter and some later fields are negative; none of those is used.
    let numbers = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    Some(numbers.map(|field| field.parse().unwrap_or(0)).collect())
}

fn began(fields: &[u64]) -> Option<Timestamp> {
    // SAFETY: sysconf reads a constant; clock_gettime fills the structure given.
    let (ticks_per_second, up) = unsafe {
        let mut up: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut up);
        (libc::sysconf(libc::_SC_CLK_TCK), up)
    };
    let ticks = u64::try_from(ticks_per_second).ok().filter(|ticks| *ticks > 0)?;
    let started = SignedDuration::from_millis(i64::try_from(fields.get(19)? * 1000 / ticks).ok()?);
    let age = SignedDuration::new(up.tv_sec, i32::try_from(up.tv_nsec).ok()?) - started;
    Timestamp::now().checked_sub(age).ok()
}

fn command(pid: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// This process and its ancestors: a command inside a dead run must not kill its ancestors.
fn lineage() -> Vec<i32> {
    let mut lineage = Vec::new();
    let mut next = i32::try_from(std::process::id()).ok();
    while let Some(pid) = next.filter(|pid| *pid > 0 && !lineage.contains(pid)) {
        lineage.push(pid);
        next = fields(pid).and_then(|fields| i32::try_from(*fields.get(1)?).ok());
    }
    lineage
}

/// Kills processes and waits until they are gone; returns those that remain.
pub fn end(leftovers: &[Leftover]) -> Vec<&Leftover> {
    for leftover in leftovers {
        // A finished process needs no signal.
        _ = pidfd_send_signal(&leftover.handle, Signal::KILL);
    }
    let until = Instant::now() + PATIENCE;
    leftovers.iter().filter(|leftover| !gone(leftover, until)).collect()
}

fn gone(leftover: &Leftover, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut descriptors = [PollFd::new(&leftover.handle, PollFlags::IN)];
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(1) => return true,
            Err(_) if Instant::now() < until => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_a_process_with_the_mark_is_found_and_ended() {
        let (run, other) = (RunId::new(), RunId::new());
        let before = Timestamp::now();
        let sleeper = |mark: Option<RunId>| {
            let mut command = Command::new("sleep");
            // Inheriting stdout would keep the reader of a failed test waiting for the sleepers.
            command
                .arg("99")
                .env_remove(PARENT_VARIABLE)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if let Some(run) = mark {
                command.env(PARENT_VARIABLE, run.to_string());
            }
            command.spawn().unwrap()
        };
        let (mut ours, mut theirs, mut nobodys) =
            (sleeper(Some(run)), sleeper(Some(other)), sleeper(None));
        let found: Vec<_> = marked().into_iter().filter(|found| found.run == run).collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pid, found[0].command.as_str()), (ours.id() as i32, "sleep 99"));
        assert!(found[0].began_after(before));
        assert!(!found[0].began_after(before + SignedDuration::from_secs(60)));
        assert!(end(&found).is_empty());
        assert!(!ours.wait().unwrap().success());
        for bystander in [&mut theirs, &mut nobodys] {
            assert_eq!(bystander.try_wait().unwrap(), None);
            bystander.kill().unwrap();
            bystander.wait().unwrap();
        }
    }
}
