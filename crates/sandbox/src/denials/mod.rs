//! What was denied, told.
//!
//! The kernel notifies of each system call that can be denied, and waits; a thread of the runner
//! reads what the call is about, notes it if the sandbox does not allow it, and lets the kernel go
//! on with the call as if nothing had happened. Whether the call succeeds is decided by the mounts,
//! Landlock and the filter alone: by the time the kernel reads the path, the process may have
//! changed it, so nothing that is found out here may decide.
//!
//! Only one listener can be on a process and its parents. Where there is one already, or where the
//! kernel refuses, nothing is told and everything else is the same.

mod call;
mod filter;
mod judge;
mod listener;
mod recent;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use retake_types::{Denial, DeniedOperation, OsText};

pub(crate) use filter::rules;
pub(crate) use judge::Judge;
pub use listener::first_call;
pub(crate) use listener::install;

/// Set once calls were notified and could not be answered.
static UNANSWERABLE: AtomicBool = AtomicBool::new(false);

/// Whether this machine may notify of calls, as far as is known.
pub(crate) fn is_possible() -> bool {
    !UNANSWERABLE.load(Ordering::Relaxed)
}

pub(crate) fn give_up() {
    UNANSWERABLE.store(true, Ordering::Relaxed);
}

/// The calls of one sandbox, watched by a thread until this is dropped.
#[derive(Debug)]
pub struct DenialWatch {
    noted: Arc<Mutex<Noted>>,
    /// What the thread waits for. Dropped before, it ends.
    begin: Option<Sender<Watched>>,
    /// Closing it ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What a process that confined itself hands to the thread.
#[derive(Debug)]
struct Watched {
    listener: OwnedFd,
    root: OwnedFd,
}

impl DenialWatch {
    /// Starts the thread; what it watches comes later.
    pub(crate) fn start(judge: Arc<Judge>) -> io::Result<Self> {
        let noted = Arc::new(Mutex::new(Noted::default()));
        let (begin, begun) = channel();
        let (stop, thread) = listener::start(begun, judge, noted.clone())?;
        Ok(Self { noted, begin: Some(begin), stop: Some(stop), thread: Some(thread) })
    }

    /// Answers the first call, which [`first_call`] made, and has the thread answer all others. Fails
    /// where the kernel does not take an answer.
    pub(crate) fn begin(&mut self, listener: OwnedFd, root: OwnedFd) -> io::Result<()> {
        listener::answer_first(&listener)?;
        let ended = || io::Error::from_raw_os_error(libc::ESRCH);
        let begin = self.begin.take().ok_or_else(ended)?;
        begin.send(Watched { listener, root }).map_err(|_| ended())
    }

    /// Has this done before the next call that can change a file, whose process waits for it. What
    /// was noted before is forgotten.
    pub fn before_change(&self, act: Box<dyn FnOnce() + Send>) {
        *lock(&self.noted) = Noted { before_change: Some(act), ..Noted::default() };
    }

    /// What was noted since this was last asked. What was to be done before a change is not done any
    /// more.
    pub fn take(&self) -> WatchedCalls {
        let Noted { denied, unlisted, changing, set_group_id, .. } =
            std::mem::take(&mut *lock(&self.noted));
        let denied = denied.into_iter().map(|((operation, path, program), count)| Denial {
            operation,
            path,
            program,
            count,
        });
        WatchedCalls { denied: denied.collect(), unlisted, changing, set_group_id }
    }
}

impl Drop for DenialWatch {
    fn drop(&mut self) {
        (self.begin, self.stop) = (None, None);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; one that panicked has told nothing more.
            _ = thread.join();
        }
    }
}

/// What the calls of a run were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedCalls {
    pub denied: Vec<Denial>,
    /// How many times something was denied that is not listed.
    pub unlisted: u64,
    /// How many calls could have changed a file, denied or not.
    pub changing: u64,
    /// Whether one asked for the set-group-ID bit, of a file or a directory.
    pub set_group_id: bool,
}

/// Bounded, however often something is denied.
#[derive(Default)]
struct Noted {
    denied: BTreeMap<(DeniedOperation, OsText, String), u64>,
    unlisted: u64,
    changing: u64,
    set_group_id: bool,
    before_change: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for Noted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { denied, unlisted, changing, .. } = self;
        let mut shown = formatter.debug_struct("Noted");
        shown.field("denied", denied).field("unlisted", unlisted).field("changing", changing);
        shown.finish_non_exhaustive()
    }
}

impl Noted {
    /// A call that can change a file is about to be carried out.
    fn note_changing(&mut self) {
        self.changing = self.changing.saturating_add(1);
        if let Some(act) = self.before_change.take() {
            act();
        }
    }

    fn add(&mut self, operation: DeniedOperation, path: OsText, program: String) {
        let full = self.denied.len() >= Denial::LISTED;
        let key = (operation, path, program);
        if let Some(count) = self.denied.get_mut(&key) {
            *count = count.saturating_add(1);
        } else if full {
            self.unlisted = self.unlisted.saturating_add(1);
        } else {
            self.denied.insert(key, 1);
        }
    }
}

/// What another thread noted before it panicked still counts.
fn lock(noted: &Mutex<Noted>) -> MutexGuard<'_, Noted> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}
