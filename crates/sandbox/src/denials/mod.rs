//! Reports what a sandbox denied.
//!
//! The kernel notifies of each system call that can be denied, and waits; a thread of the runner
//! reads the call's arguments, records the call if the sandbox denies it, and lets the kernel
//! continue it. Only the mounts, Landlock and the filter decide whether the call succeeds: the
//! process may change the path before the kernel reads it, so nothing that is read here may decide.
//!
//! A process and its parents can have only one listener. If there is one already, or the kernel
//! refuses, denials are not reported and everything else is the same.

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

/// Set after calls were notified but could not be answered.
static UNANSWERABLE: AtomicBool = AtomicBool::new(false);

/// Whether this machine supports notification, as far as known.
pub(crate) fn is_possible() -> bool {
    !UNANSWERABLE.load(Ordering::Relaxed)
}

pub(crate) fn give_up() {
    UNANSWERABLE.store(true, Ordering::Relaxed);
}

/// Watches the calls of one sandbox with a thread until dropped.
#[derive(Debug)]
pub struct DenialWatch {
    noted: Arc<Mutex<Noted>>,
    /// Starts the thread's work. If dropped before, the thread ends.
    begin: Option<Sender<Watched>>,
    /// Closing it ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What a confined process passes to the thread.
#[derive(Debug)]
struct Watched {
    listener: OwnedFd,
    root: OwnedFd,
}

impl DenialWatch {
    /// Starts the thread; [`Self::begin`] passes what it watches.
    pub(crate) fn start(judge: Arc<Judge>) -> io::Result<Self> {
        let noted = Arc::new(Mutex::new(Noted::default()));
        let (begin, begun) = channel();
        let (stop, thread) = listener::start(begun, judge, noted.clone())?;
        Ok(Self { noted, begin: Some(begin), stop: Some(stop), thread: Some(thread) })
    }

    /// Answers the first call, made by [`first_call`], and lets the thread answer all others. Fails
    /// if the kernel rejects the answer.
    pub(crate) fn begin(&mut self, listener: OwnedFd, root: OwnedFd) -> io::Result<()> {
        listener::answer_first(&listener)?;
        let ended = || io::Error::from_raw_os_error(libc::ESRCH);
        let begin = self.begin.take().ok_or_else(ended)?;
        begin.send(Watched { listener, root }).map_err(|_| ended())
    }

    /// Runs `act` before the next call that can change a file, while its process waits. Discards
    /// earlier records.
    pub fn before_change(&self, act: Box<dyn FnOnce() + Send>) {
        *lock(&self.noted) = Noted { before_change: Some(act), ..Noted::default() };
    }

    /// The calls recorded since the last query. Cancels a pending [`Self::before_change`].
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
            // It has no result; after a panic nothing more is reported.
            _ = thread.join();
        }
    }
}

/// The recorded calls of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedCalls {
    pub denied: Vec<Denial>,
    /// How many denials are not listed.
    pub unlisted: u64,
    /// How many calls could have changed a file, denied or not.
    pub changing: u64,
    /// Whether a call asked for the set-group-ID bit of a file or directory.
    pub set_group_id: bool,
}

/// Bounded, however many denials there are.
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
    /// A call that can change a file is about to continue.
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

/// Records of a thread that panicked still count.
fn lock(noted: &Mutex<Noted>) -> MutexGuard<'_, Noted> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}
