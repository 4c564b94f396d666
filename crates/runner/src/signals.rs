//! Signals that retake itself receives, and its exit by a signal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use retake_engine::{Cancel, SignalDispositions};

static ORIGINAL: OnceLock<SignalDispositions> = OnceLock::new();

/// Saves the inherited dispositions before anything changes them, and makes writes to a closed pipe
/// or an over-limit file fail instead of killing retake. Called before anything else.
pub fn remember() {
    ORIGINAL.get_or_init(SignalDispositions::current);
    // SAFETY: plain dispositions.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    raise_file_size_limit();
}

/// `ulimit -f` is meant for the command, which gets it unchanged. The record may use the hard
/// limit.
fn raise_file_size_limit() {
    // SAFETY: a local structure, filled by the query. The soft limit may always be raised to the
    // hard one.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) == 0
            && limit.rlim_cur != limit.rlim_max
        {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
        }
    }
}

/// If stdin, stdout or stderr is closed, the next opened file would take its number and receive
/// output. Opens /dev/null in its place, and remembers a missing stdout.
pub fn fill_stdio() {
    for fd in 0..3 {
        // SAFETY: queries a descriptor, and opens the lowest free number, which is this one.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
                if fd == 1 {
                    STDOUT_CLOSED.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether stdout was closed at the start.
pub fn stdout_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}

/// The dispositions for children: exactly the inherited ones.
pub fn original() -> SignalDispositions {
    *ORIGINAL.get_or_init(SignalDispositions::current)
}

/// One per worker: a token wakes only one waiter.
static CANCELS: OnceLock<Vec<Cancel>> = OnceLock::new();

const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
const PAUSING: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Becomes true when a signal asks for the end.
pub fn asked() -> Arc<AtomicBool> {
    ASKED.get_or_init(Arc::default).clone()
}

extern "C" fn on_end(signal: i32) {
    if let Some(asked) = ASKED.get() {
        asked.store(true, Ordering::Relaxed);
    }
    END.get().into_iter().chain(cancels()).for_each(|cancel| cancel.cancel(signal));
}

extern "C" fn on_pause(_: i32) {
    cancels().iter().for_each(Cancel::suspend);
}

extern "C" fn on_resize(_: i32) {
    cancels().iter().for_each(Cancel::window_changed);
}

/// Behaves as if this signal had been received.
pub fn interrupt(signal: i32) {
    on_end(signal);
}

/// The signal that asked for the end.
pub fn received() -> Option<i32> {
    END.get().into_iter().chain(cancels()).find_map(Cancel::requested)
}

/// How long ago a signal asked for the end, measured from the first call that noticed it.
pub fn received_since() -> Option<Duration> {
    static NOTICED: OnceLock<Instant> = OnceLock::new();
    received()?;
    Some(NOTICED.get_or_init(Instant::now).elapsed())
}

fn cancels() -> &'static [Cancel] {
    CANCELS.get().map_or(&[], Vec::as_slice)
}

/// Turns signals into requests on all of the returned tokens, which are created by the first call.
/// Inherited ignored signals stay ignored.
pub fn install(count: usize) -> std::io::Result<&'static [Cancel]> {
    let made = (0..count).map(|_| Cancel::new()).collect::<std::io::Result<Vec<_>>>()?;
    let cancels = CANCELS.get_or_init(|| made);
    for signal in ENDING {
        handle(signal, on_end);
    }
    for signal in PAUSING {
        handle(signal, on_pause);
    }
    handle(libc::SIGWINCH, on_resize);
    Ok(cancels)
}

/// Becomes readable when a signal asks for the end, and only then.
static END: OnceLock<Cancel> = OnceLock::new();

/// For code that waits without the engine: readable once a signal has asked for the end.
pub fn end_descriptor() -> std::io::Result<std::os::fd::OwnedFd> {
    let made = Cancel::new()?;
    let descriptor = END.get_or_init(|| made).descriptor();
    for signal in ENDING {
        handle(signal, on_end);
    }
    descriptor
}

fn handle(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: the handler only touches atomics and writes to a descriptor. Without SA_RESTART a
    // forbidden write to a terminal returns instead of being retried forever.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut now);
        if now.sa_sigaction != libc::SIG_IGN {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

fn set_default(signal: i32) {
    // SAFETY: the default disposition of a valid signal.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Restores the default signal actions: once a run is over, Ctrl-C while its result is printed must
/// simply end retake.
pub fn uninstall() {
    for signal in ENDING.into_iter().chain(PAUSING) {
        // SAFETY: zero is a valid sigaction, filled by the query.
        let ours = unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut now);
            now.sa_sigaction != libc::SIG_IGN
        };
        if ours {
            set_default(signal);
        }
    }
}

/// For code that waits without the engine: stops if requested; returns when continued.
pub fn stop_if_asked() {
    let asked = cancels().iter().filter(|cancel| cancel.take_suspend()).count();
    if asked > 0 {
        stop(false);
    }
}

/// Stops like any other job of the shell; returns when continued. If the child was stopped at its
/// terminal, stops retake's group as the terminal would have done.
pub fn stop(whole_group: bool) {
    set_default(libc::SIGTSTP);
    // SAFETY: signals this process or its own group.
    unsafe {
        if whole_group {
            libc::kill(0, libc::SIGTSTP);
        } else {
            libc::raise(libc::SIGTSTP);
        }
    }
    handle(libc::SIGTSTP, on_pause);
}

/// Dies of the signal, so that a surrounding shell loop stops too.
pub fn die_of(signal: i32) {
    // SAFETY: turns off core files, which would be useless.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
    }
    set_default(signal);
    // SAFETY: unblocks and raises; returns only for a signal whose default is not to die.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
}
