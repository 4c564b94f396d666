//! Processes that outlive the child: their names, and ending them when the keeper cannot.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::process_tree::{self, ProcessStat, TreeEntry};
use crate::variable::Variable;

/// The variable that marks the processes of a run with its id.
pub const PARENT_VARIABLE: &str = "RETAKE_PARENT_ID";

/// A process with its command name.
pub(crate) struct LeftoverProcess {
    pub(crate) pid: i32,
    pub(crate) command: String,
    name: String,
}

impl LeftoverProcess {
    /// Whether its program has one of these names.
    pub(crate) fn is_named(&self, names: &[String]) -> bool {
        names.iter().any(|name| {
            // The kernel cuts names to 15 bytes.
            *name == self.name
                || (name.len() > 15 && name.as_bytes()[..15] == *self.name.as_bytes())
        })
    }
}

/// The live processes below `root`, without those in `kept` and everything below them. Removes dead
/// ones from `kept`.
pub(crate) fn living_below(root: i32, kept: &mut Vec<i32>) -> Vec<LeftoverProcess> {
    let mut found = vec![TreeEntry::default(); 16 << 10];
    let count = process_tree::descendants(root, &mut found);
    let found = &found[..count];
    kept.retain(|pid| found.iter().any(|entry| entry.pid == *pid));
    let mut left_out = kept.clone();
    let mut processes = Vec::new();
    for entry in found {
        // Parents come first, so processes below a kept one are seen after it.
        if left_out.contains(&entry.pid) || left_out.contains(&entry.parent) {
            left_out.push(entry.pid);
        } else {
            processes.extend(describe(entry.pid));
        }
    }
    processes
}

fn describe(pid: i32) -> Option<LeftoverProcess> {
    if ProcessStat::read(pid)?.state == b'Z' {
        return None;
    }
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned();
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line
        .split(|&b| b == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let command = if words.is_empty() {
        format!("[{name}]")
    } else {
        crate::command_line::quote(words.iter().map(String::as_str))
    };
    Some(LeftoverProcess { pid, command, name })
}

/// Ends the processes of a run whose keeper is gone. They are retake's children now, like
/// everything else this program runs, so each must show that it belongs to the run.
///
/// With `everything`, every process except keepers belongs to the run.
pub(crate) fn end_orphans(
    keeper: i32,
    child: Option<i32>,
    environment: &[Variable],
    everything: bool,
) {
    let mark =
        environment.iter().find(|variable| variable.name() == PARENT_VARIABLE).map(Variable::bytes);
    let own = std::process::id() as i32;
    let until = Instant::now() + Duration::from_secs(2);
    let mut found = vec![TreeEntry::default(); 16 << 10];
    loop {
        let count = process_tree::descendants(own, &mut found);
        let mut members: Vec<i32> = Vec::new();
        let mut alive = false;
        for &entry in &found[..count] {
            let Some(stat) = ProcessStat::read(entry.pid) else { continue };
            let belongs = members.contains(&entry.parent)
                || everything && entry.parent == own && !is_keeper(entry.pid)
                || stat.session == keeper
                || child
                    .is_some_and(|child| [entry.pid, stat.group, stat.session].contains(&child))
                || mark.is_some_and(|mark| has_variable(entry.pid, mark));
            if !belongs {
                continue;
            }
            members.push(entry.pid);
            process_tree::signal(entry, own, &[libc::SIGKILL]);
            if let Some(pid) = Pid::from_raw(entry.pid).filter(|_| entry.parent == own) {
                // An adopted child; if it is not dead yet, the next round reaps it.
                _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
            alive |= stat.state != b'Z' || entry.parent == own;
        }
        if !alive || Instant::now() > until {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The keepers of this program, which are never leftovers.
static KEEPERS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

pub(crate) fn register(keeper: i32) {
    KEEPERS.lock().unwrap_or_else(PoisonError::into_inner).push(keeper);
}

pub(crate) fn unregister(keeper: i32) {
    KEEPERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|&known| known != keeper);
}

fn is_keeper(pid: i32) -> bool {
    KEEPERS.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
}

/// Whether a process's environment contains this `NAME=value`.
fn has_variable(pid: i32, pair: &[u8]) -> bool {
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| environment.split(|&b| b == 0).any(|entry| entry == pair))
}
