//! Crash points and acknowledgements.
//!
//! Linked into production code, so outside an EXECUTION child and outside a recording a crash point is one
//! relaxed load and a branch. Only the first one reads a variable.
//!
//! Inside a recording, points and acknowledgements are sent to the recorder as [`Marker`]s.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use crate::channel::{Announcer, Message};
use crate::json::Object;
use crate::parent_death;
use crate::variables;
use retake_crash::glob::Glob;
use retake_crash::marker::Marker;

/// Whether crash points are reported: unknown, no, yes.
static REPORTING: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static RECORDED: AtomicBool = AtomicBool::new(false);
static EXECUTION: OnceLock<Armed> = OnceLock::new();

/// Marks an instant at which a crash is worth trying: before and after each step that must be
/// atomic or durable.
///
/// Does nothing, at almost no cost, unless this process runs the workload of a FIRST test. Points
/// are numbered from 1 in the order they are reached, by any thread. Labels need not be
/// unique.
#[inline]
pub fn crash_point(label: &str) {
    if REPORTING.load(Ordering::Relaxed) != OFF {
        reached(label);
    }
}

/// Tells a recording that something was promised: it must survive every
/// crash from now on. A check gets the promises made before its crash from
/// [`CrashInfo::acks`](crate::CrashInfo::acks).
///
/// Does nothing outside a recording, at almost no cost.
#[inline]
pub fn ack(promise: impl AsRef<[u8]>) {
    if REPORTING.load(Ordering::Relaxed) != OFF {
        promised(promise.as_ref());
    }
}

/// Whether crash points are reported, determined by the first call.
fn is_reporting() -> bool {
    if REPORTING.load(Ordering::Acquire) == UNKNOWN {
        read_variables();
    }
    REPORTING.load(Ordering::Acquire) == ON
}

fn read_variables() {
    let recorded = std::env::var_os(variables::RECORDING).is_some_and(|value| value == "1");
    RECORDED.store(recorded, Ordering::Relaxed);
    // A FIRST test arms the points itself when its workload begins.
    let test = std::env::var_os(variables::PHASE).is_some();
    let reporting = if recorded && !test { ON } else { OFF };
    // Another thread may have armed the points in the meantime.
    _ = REPORTING.compare_exchange(UNKNOWN, reporting, Ordering::Release, Ordering::Relaxed);
}

/// What a crash point does while a workload runs.
#[derive(Debug)]
pub(crate) struct Armed {
    pub(crate) target: usize,
    pub(crate) filter: Option<Glob>,
    pub(crate) seed: u64,
    pub(crate) work_dir: Box<Path>,
    /// `None` if a person started this phase by hand.
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

/// Points count from now on. A process runs only one workload.
pub(crate) fn arm(armed: Armed) {
    let first = EXECUTION.set(armed).is_ok();
    assert!(first, "first: a process runs one workload in its life");
    read_variables();
    REPORTING.store(ON, Ordering::Release);
}

/// Points do not count any more. Returns how many were skipped because of their labels.
pub(crate) fn disarm() -> usize {
    REPORTING.store(OFF, Ordering::Release);
    EXECUTION.get().map_or(0, |armed| lock(&armed.counts).filtered)
}

#[cold]
#[inline(never)]
fn reached(label: &str) {
    if !is_reporting() {
        return;
    }
    let Some(armed) = EXECUTION.get() else {
        if RECORDED.load(Ordering::Relaxed) {
            Marker::Label.send(label.as_bytes());
        }
        return;
    };
    if std::process::id() != armed.pid {
        forked(armed, label);
    }
    // It is passed in a variable, which ends at a NUL.
    assert!(!label.contains('\0'), "first: the label {label:?} holds a NUL character");
    // Held to the end, so that no other thread passes a point after the fatal one.
    let mut counts = lock(&armed.counts);
    if armed.filter.as_ref().is_some_and(|filter| !filter.matches(label)) {
        counts.filtered += 1;
        return;
    }
    counts.points += 1;
    let own_thread = thread::current().id() == armed.thread;
    announce(armed, &Message::Point { own_thread, label: label.to_owned() });
    if RECORDED.load(Ordering::Relaxed) {
        Marker::Label.send(label.as_bytes());
    }
    if counts.points == armed.target {
        crash(armed, counts.points, label);
    }
}

#[cold]
#[inline(never)]
fn promised(promise: &[u8]) {
    if !is_reporting() {
        return;
    }
    if RECORDED.load(Ordering::Relaxed) {
        Marker::Acknowledgement.send(promise);
    } else if let Some(armed) = EXECUTION.get()
        && std::process::id() == armed.pid
    {
        // Behind a crash that is just happening nothing is promised.
        let _turn = lock(&armed.counts);
        announce(armed, &Message::Promise { said: promise.to_vec() });
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
        // Processes started by the workload die in the same instant.
        parent_death::end_group();
    }
    parent_death::end_process()
}

fn forked(armed: &Armed, label: &str) -> ! {
    let said = armed.announcer.as_ref().is_some_and(|announcer| announcer.forked(label).is_ok());
    if !said {
        write_stderr(b"[first] a crash point was reached in a forked process\n");
    }
    parent_death::end_process()
}

fn announce(armed: &Armed, message: &Message) {
    if let Some(announcer) = &armed.announcer
        && announcer.send(message).is_err()
    {
        // The orchestrator is gone.
        parent_death::end_group();
    }
}

/// Bypasses all buffers and locks: another thread may hold them, and this one is about to die.
fn write_stderr(bytes: &[u8]) {
    // SAFETY: the slice is valid for its length. The line is optional; a closed stderr
    // must not keep the process from dying.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

fn lock(counts: &Mutex<Counts>) -> std::sync::MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
