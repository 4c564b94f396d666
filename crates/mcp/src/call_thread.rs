//! Decides which thread drives the runtime, and which thread runs the command of a call.
//!
//! Handing a command to another thread and its result back costs two wake-ups, a good part of a short
//! call. So the thread that drives the runtime runs the command itself and then continues with the
//! response: a single call never crosses threads.
//!
//! During that time nothing is read from the client. So if a command takes longer than
//! [`ALONE`], a second thread drives the runtime until the first one returns: it reads further calls
//! and cancellations, and reports progress. Calls that arrive in that time run on threads of the blocking
//! pool.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};

/// How long another message of the client may have to wait for a command. Most commands for which
/// two wake-ups matter take less.
const ALONE: Duration = Duration::from_millis(4);

type Work = Box<dyn FnOnce() + Send>;

/// Through which calls pass their work to the threads.
pub(super) struct CallThread {
    work: mpsc::UnboundedSender<Work>,
    busy: Arc<AtomicBool>,
}

pub(super) type HandedIn = mpsc::UnboundedReceiver<Work>;

pub(super) fn call_thread() -> (CallThread, HandedIn) {
    let (work, handed_in) = mpsc::unbounded_channel();
    (CallThread { work, busy: Arc::new(AtomicBool::new(false)) }, handed_in)
}

impl CallThread {
    /// Runs blocking work: on the thread that drives the runtime if that is free. Must be called inside of
    /// the runtime.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        if self.busy.swap(true, Ordering::AcqRel) {
            return self.run_apart(work);
        }
        let busy = self.busy.clone();
        let (work, answered) = answering(move || {
            let result = work();
            // Before the response: the next call may arrive before this thread is back.
            busy.store(false, Ordering::Release);
            result
        });
        // Without a receiver the server is about to end, and starts nothing.
        drop(self.work.send(Box::new(work)));
        answered
    }

    /// Runs work that may take long on its own thread.
    pub(super) fn run_apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (work, answered) = answering(work);
        drop(tokio::task::spawn_blocking(work));
        answered
    }
}

/// The same work, and the receiver of its result.
fn answering<T: Send>(
    work: impl FnOnce() -> T + Send,
) -> (impl FnOnce() + Send, oneshot::Receiver<T>) {
    let (answer, answered) = oneshot::channel();
    // The receiver may be gone.
    (move || drop(answer.send(work())), answered)
}

/// Drives the runtime until `serving` ends, and runs the work of calls in between. Does not wait for a
/// command that is still running at the end.
pub(super) fn drive<T: Send + 'static>(
    runtime: Runtime,
    handed_in: HandedIn,
    serving: impl Future<Output = T> + Send + 'static,
) -> io::Result<T> {
    let runtime = Arc::new(runtime);
    let timer = Arc::new(Timer::new()?);
    let (set_away, mut away) = watch::channel(false);
    let (set_over, over) = watch::channel(false);
    let mut serving = runtime.spawn(async move {
        let end = serving.await;
        set_over.send_replace(true);
        end
    });
    let first =
        FirstDriver { runtime: runtime.clone(), timer: timer.clone(), away: set_away, over };
    std::thread::Builder::new().name("calls".to_owned()).spawn(move || first.drive(handed_in))?;
    let end = loop {
        timer.wait()?;
        let end = runtime.block_on(async {
            tokio::select! {
                biased;
                end = &mut serving => Some(end),
                _ = away.wait_for(|away| !away) => None,
            }
        });
        if let Some(end) = end {
            break end;
        }
    };
    // A thread that reads stdin would never end; one that runs a command holds the runtime, too.
    if let Some(runtime) = Arc::into_inner(runtime) {
        runtime.shutdown_background();
    }
    end.map_err(io::Error::other)
}

/// The thread that drives the runtime unless it runs a command.
struct FirstDriver {
    runtime: Arc<Runtime>,
    timer: Arc<Timer>,
    away: watch::Sender<bool>,
    over: watch::Receiver<bool>,
}

impl FirstDriver {
    fn drive(mut self, mut handed_in: HandedIn) {
        loop {
            let work = self.runtime.block_on(async {
                tokio::select! {
                    work = handed_in.recv() => work,
                    _ = self.over.wait_for(|over| *over) => None,
                }
            });
            self.away.send_replace(true);
            let Some(work) = work else { break };
            // Without a timer the command would block all other calls.
            self.timer.set(ALONE);
            work();
            self.timer.set(Duration::ZERO);
            self.away.send_replace(false);
        }
        let Self { runtime, timer, .. } = self;
        drop(runtime);
        timer.set(Duration::from_nanos(1));
    }
}

/// Wakes the second thread; free for the first one until it expires.
struct Timer(OwnedFd);

impl Timer {
    fn new() -> io::Result<Self> {
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?))
    }

    /// Expires after this time; zero disarms it.
    fn set(&self, after: Duration) {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec::try_from(after).unwrap_or(none);
        let once = Itimerspec { it_interval: none, it_value: value };
        // Cannot fail: a timer descriptor and a valid time.
        _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once);
    }

    fn wait(&self) -> io::Result<()> {
        loop {
            match rustix::io::read(&self.0, &mut [0; 8]) {
                Err(Errno::INTR) => {}
                read => return read.map(drop).map_err(Into::into),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::thread::ThreadId;

    use super::*;

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn current() -> ThreadId {
        std::thread::current().id()
    }

    #[test]
    fn a_command_that_is_alone_runs_on_the_thread_that_serves() {
        let (calls, handed_in) = call_thread();
        let threads = drive(runtime(), handed_in, async move {
            let mut threads = Vec::new();
            for _ in 0..20 {
                let ran_on = calls.run(current).await.unwrap();
                threads.push((current(), ran_on));
            }
            threads
        });
        let threads = threads.unwrap();
        // On a busy machine the second thread may have to take over sometimes.
        assert!(threads.iter().any(|(served_by, ran_on)| served_by == ran_on), "{threads:?}");
    }

    #[test]
    fn commands_run_at_once_and_the_client_is_served_meanwhile() {
        let (calls, handed_in) = call_thread();
        let served = drive(runtime(), handed_in, async move {
            let (go_on, wait) = channel::<()>();
            let first = calls.run(move || wait.recv().is_ok());
            // Arrives while the first one runs, and needs the other thread.
            tokio::time::sleep(ALONE).await;
            let both = Arc::new(Barrier::new(2));
            let pair = [both.clone(), both].map(|both| calls.run(move || both.wait().is_leader()));
            for ended in pair {
                ended.await.unwrap();
            }
            go_on.send(()).unwrap();
            first.await.unwrap()
        });
        assert!(served.unwrap());
    }

    #[test]
    fn a_command_that_does_not_end_does_not_keep_the_server() {
        let (calls, handed_in) = call_thread();
        let (begun, has_begun) = oneshot::channel();
        let (keep, never) = channel::<()>();
        let ended = drive(runtime(), handed_in, async move {
            drop(calls.run(move || {
                begun.send(()).unwrap();
                _ = never.recv();
            }));
            has_begun.await.unwrap();
            7
        });
        assert_eq!(ended.unwrap(), 7);
        drop(keep);
    }
}
