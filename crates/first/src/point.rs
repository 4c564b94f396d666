//! The crash point itself.
//!
//! Linked into production code, so outside an EXECUTION child it is one relaxed load and a branch
//! that is never taken: no variable is read, no lock taken, nothing counted.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use crate::channel::{Announcer, Message};
use crate::glob::Glob;
use crate::json::Object;
use crate::lifeline;

static ARMED: AtomicBool = AtomicBool::new(false);
static EXECUTION: OnceLock<Armed> = OnceLock::new();

/// Marks an instant at which a crash is worth trying: before and after each step that has to be
/// atomic or durable.
///
/// Does nothing, at next to no cost, unless this process runs the workload of a FIRST test. Points
/// are numbered from 1 in the order they are reached, by whatever thread. Labels need not be
/// unique.
#[inline]
pub fn crash_point(label: &str) {
    if ARMED.load(Ordering::Relaxed) {
        reached(label);
    }
}

/// What a crash point does while a workload runs.
#[derive(Debug)]
pub(crate) struct Armed {
    pub(crate) target: usize,
    pub(crate) filter: Option<Glob>,
    pub(crate) seed: u64,
    pub(crate) work_dir: Box<Path>,
    /// None where a person started this phase by hand.
    pub(crate) announcer: Option<Arc<Announcer>>,
    pub(crate) pid: u32,
    pub(crate) thread: ThreadId,
    pub(crate) counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    points: usize,
    filtered: usize,
}

/// Points count from now on. A process runs one workload in its life.
pub(crate) fn arm(armed: Armed) {
    let first = EXECUTION.set(armed).is_ok();
    assert!(first, "first: a process runs one workload in its life");
    ARMED.store(true, Ordering::Release);
}

/// Points do not count any more. Says how many were passed over because of their labels.
pub(crate) fn disarm() -> usize {
    ARMED.store(false, Ordering::Release);
    EXECUTION.get().map_or(0, |armed| lock(&armed.counts).filtered)
}

#[cold]
#[inline(never)]
fn reached(label: &str) {
    let Some(armed) = EXECUTION.get() else { return };
    if std::process::id() != armed.pid {
        forked(armed, label);
    }
    // It travels in a variable, which ends at a NUL.
    assert!(!label.contains('\0'), "first: the label {label:?} holds a NUL character");
    // Held to the end, so that no other thread passes a point after the one that is fatal.
    let mut counts = lock(&armed.counts);
    if armed.filter.as_ref().is_some_and(|filter| !filter.matches(label)) {
        counts.filtered += 1;
        return;
    }
    counts.points += 1;
    let own_thread = thread::current().id() == armed.thread;
    announce(armed, &Message::Point { own_thread, label: label.to_owned() });
    if counts.points == armed.target {
        crash(armed, counts.points, label);
    }
}

fn crash(armed: &Armed, point_id: usize, label: &str) -> ! {
    let line = Object::new()
        .string("event", "crash")
        .number("point_id", point_id as u64)
        .string("label", label)
        .number("seed", armed.seed)
        .string("work_dir", &armed.work_dir.to_string_lossy())
        .line();
    write_stderr(line.as_bytes());
    announce(armed, &Message::Crash { point_id });
    if armed.announcer.is_some() {
        // What the workload started dies in the same instant.
        lifeline::end_group();
    }
    lifeline::end_process()
}

fn forked(armed: &Armed, label: &str) -> ! {
    let said = armed.announcer.as_ref().is_some_and(|announcer| announcer.forked(label).is_ok());
    if !said {
        write_stderr(b"[first] a crash point was reached in a forked process\n");
    }
    lifeline::end_process()
}

fn announce(armed: &Armed, message: &Message) {
    if let Some(announcer) = &armed.announcer
        && announcer.send(message).is_err()
    {
        // Nobody is left to hear it.
        lifeline::end_group();
    }
}

/// Past every buffer and lock: another thread may hold them, and this one is about to die.
fn write_stderr(bytes: &[u8]) {
    // SAFETY: the bytes are ours and as long as we say. The line is a courtesy; a closed stderr
    // must not keep the process from dying.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

fn lock(counts: &Mutex<Counts>) -> std::sync::MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
