//! Requests from a signal handler or another thread to end or pause a run.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::syscalls;

/// A token that ends or suspends the runs it is given to. A clone refers to the same request. Every
/// method is safe in a signal handler.
#[derive(Clone)]
pub struct Cancel {
    state: Arc<CancelState>,
}

struct CancelState {
    /// Wakes the supervision loop.
    wake: OwnedFd,
    /// The first signal that asked; 0 before any request.
    signal: AtomicI32,
    kill: AtomicBool,
    suspend: AtomicBool,
    window: AtomicBool,
}

impl Cancel {
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = syscalls::above_stdio(fd)?;
        Ok(Self {
            state: Arc::new(CancelState {
                wake,
                signal: AtomicI32::new(0),
                kill: AtomicBool::new(false),
                suspend: AtomicBool::new(false),
                window: AtomicBool::new(false),
            }),
        })
    }

    /// Ends the run: SIGTERM to the whole tree, the grace, then SIGKILL. A second request kills at
    /// once. The outcome will name `signal`.
    pub fn cancel(&self, signal: i32) {
        if self
            .state
            .signal
            .compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            self.state.kill.store(true, Ordering::SeqCst);
        }
        self.wake();
    }

    /// Ends the run without grace.
    pub fn kill(&self, signal: i32) {
        self.state.kill.store(true, Ordering::SeqCst);
        self.cancel(signal);
    }

    /// Resets the token for the next run.
    pub fn reset(&self) {
        self.state.kill.store(false, Ordering::SeqCst);
        self.state.signal.store(0, Ordering::SeqCst);
    }

    /// Stops the tree and the clock, as Ctrl-Z does.
    pub fn suspend(&self) {
        self.state.suspend.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Reports that the terminal's size has changed.
    pub fn window_changed(&self) {
        self.state.window.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// The signal that asked for the end, if any.
    pub fn requested(&self) -> Option<i32> {
        Some(self.state.signal.load(Ordering::SeqCst)).filter(|&signal| signal != 0)
    }

    /// Becomes readable after a request, for a caller that waits without the engine.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.state.wake.try_clone()
    }

    pub(crate) fn kill_requested(&self) -> bool {
        self.state.kill.load(Ordering::SeqCst)
    }

    /// Whether a pause was requested, true once per request, for a caller that waits without the
    /// engine.
    pub fn take_suspend(&self) -> bool {
        self.state.suspend.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn take_window(&self) -> bool {
        self.state.window.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.state.wake.as_raw_fd()
    }

    /// Discards earlier wakes, so that the next wait sleeps.
    pub(crate) fn drain(&self) {
        let mut count = [0; 8];
        // A failed read means that there was no wake; the flags hold the requests.
        _ = syscalls::read_some(self.fd(), &mut count);
    }

    fn wake(&self) {
        let one = 1u64;
        // SAFETY: writes eight local bytes; `write` is allowed in a signal handler. A full counter
        // means that a wake is pending already.
        unsafe {
            let errno = libc::__errno_location();
            let saved = *errno;
            libc::write(self.fd(), (&raw const one).cast(), 8);
            *errno = saved;
        }
    }
}
