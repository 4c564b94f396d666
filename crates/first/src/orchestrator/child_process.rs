//! One child: started so that it cannot outlive us, watched until its end, and what it left running
//! killed.
//!
//! Theory of operation. The child gets two pipe ends. Over one it announces what happens to it. The
//! other never carries a byte: its end-of-file, when this process dies in whatever way, is what
//! [`parent_death`] waits for in the child. Until that thread of the child is up, the
//! kernel's parent-death signal does its job; that signal follows the *thread* that started the
//! child, so the thread that starts a child here also waits for it.
//!
//! The child leads a process group. The group is killed while the dead leader has not been waited
//! for, so that its number cannot belong to anybody else. What left the group is found by its run id.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::verdict::{ChildOutcome, ExitKind};
use crate::channel::Inbox;
use crate::parent_death;
use crate::variables::{self, Channel};
use retake_crash::fd::{pidfd, pipe};
use retake_crash::mount_namespace::MountNamespace;
use retake_crash::recorder::{RecordError, Recorded, WorkloadOutcome};
use retake_crash::stray_processes::{kill_by_run_id, new_run_id};

/// What to start.
#[derive(Debug)]
pub(crate) struct ChildCommand<'a> {
    pub(crate) target: usize,
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [OsString],
    pub(crate) set: Vec<(&'static str, OsString)>,
    /// Where both of its output streams go.
    pub(crate) log: PathBuf,
    pub(crate) timeout: Duration,
    /// Where it sees its directory.
    pub(crate) namespace: Option<MountNamespace>,
}

/// The children that are running now, so that those whose result is not needed can be killed.
#[derive(Debug)]
pub(crate) struct RunningChildren {
    table: Mutex<ChildTable>,
}

#[derive(Debug)]
struct ChildTable {
    bound: usize,
    children: HashMap<usize, u32>,
}

/// The child was killed, or not started, because its result is not needed any more.
#[derive(Debug)]
pub(crate) struct Unwanted;

impl RunningChildren {
    pub(crate) fn new() -> Self {
        Self { table: Mutex::new(ChildTable { bound: usize::MAX, children: HashMap::new() }) }
    }

    pub(crate) fn end_beyond(&self, bound: usize) {
        let mut table = self.lock();
        table.bound = table.bound.min(bound);
        for (target, pid) in &table.children {
            if *target > table.bound {
                signal(*pid as i32, libc::SIGKILL);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChildTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a child to its end. Nothing it started is alive afterwards.
    pub(crate) fn run(
        &self,
        command: &ChildCommand<'_>,
    ) -> io::Result<Result<ChildOutcome, Unwanted>> {
        let run_id = new_run_id();
        let before = out_of_memory_kills();
        let (mut child, watch) = {
            let mut table = self.lock();
            if command.target > table.bound {
                return Ok(Err(Unwanted));
            }
            let started = start(command, &run_id)?;
            table.children.insert(command.target, started.0.id());
            started
        };
        let (inbox, timed_out) = watch.until_the_end(&child, command.timeout);
        signal(-(child.id() as i32), libc::SIGKILL);
        // From here on the pid may be reused.
        self.lock().children.remove(&command.target);
        let status = child.wait()?;
        kill_by_run_id(&run_id);
        if command.target > self.lock().bound {
            return Ok(Err(Unwanted));
        }
        let killed = status.signal() == Some(libc::SIGKILL);
        Ok(Ok(ChildOutcome {
            status: match status.code() {
                Some(code) => ExitKind::Exited(code),
                None => ExitKind::Signaled(status.signal().unwrap_or_default()),
            },
            timed_out: timed_out.then_some(command.timeout),
            out_of_memory: killed && out_of_memory_kills() > before,
            garbled: inbox.garbled,
            messages: inbox.messages,
        }))
    }
}

fn start(asked: &ChildCommand<'_>, run_id: &str) -> io::Result<(Child, ChildWatch)> {
    let (child_parent_alive, parent_alive) = pipe()?;
    let (announcements, child_announce) = pipe()?;
    let own = std::process::id();
    let channel = Channel {
        orchestrator: own,
        parent_alive: child_parent_alive.as_raw_fd(),
        announce: child_announce.as_raw_fd(),
    };
    let log = OpenOptions::new().create(true).append(true).open(&asked.log)?;
    let mut command = Command::new(asked.program);
    command
        .args(asked.arguments)
        .env(variables::CHANNEL, channel.value())
        .env(variables::RUN_ID, run_id)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    for name in [variables::CRASH_POINT_ID, variables::CRASH_LABEL] {
        command.env_remove(name);
    }
    command.envs(asked.set.iter().map(|(name, value)| (name, value)));
    let death_signal = parent_death::death_signal();
    let namespace = asked.namespace.clone();
    let adopt = move || {
        // SAFETY: async-signal-safe calls on plain numbers.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, death_signal);
            if libc::getppid() != own as i32 {
                libc::_exit(1);
            }
            for fd in [channel.parent_alive, channel.announce] {
                if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        namespace.as_ref().map_or(Ok(()), MountNamespace::enter)
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(adopt) };
    let mut child = command.spawn()?;
    match pidfd(child.id()) {
        Ok(pidfd) => Ok((child, ChildWatch { pidfd, announcements, _parent_alive: parent_alive })),
        Err(error) => {
            signal(-(child.id() as i32), libc::SIGKILL);
            child.wait()?;
            let message = format!("cannot watch a process, which needs Linux 5.3: {error}");
            Err(io::Error::new(error.kind(), message))
        }
    }
}

/// Runs a child to its end while everything it does to a directory is recorded.
pub(crate) fn record(
    command: &ChildCommand<'_>,
    root: &Path,
) -> Result<(Recorded, ChildOutcome), RecordError> {
    let failed = |source| RecordError::system("a child", source);
    let run_id = new_run_id();
    let before = out_of_memory_kills();
    let (child_parent_alive, _parent_alive) = pipe().map_err(failed)?;
    let (announcements, child_announce) = pipe().map_err(failed)?;
    let channel = Channel {
        orchestrator: std::process::id(),
        parent_alive: child_parent_alive.as_raw_fd(),
        announce: child_announce.as_raw_fd(),
    };
    let log = OpenOptions::new().create(true).append(true).open(&command.log).map_err(failed)?;
    let mut recorder = retake_crash::record(command.program)
        .args(command.arguments)
        .root(root)
        .output(log.try_clone().map_err(failed)?)
        .stderr(log)
        .acknowledge_lines(false)
        .timeout(command.timeout)
        .inherit(channel.parent_alive)
        .inherit(channel.announce)
        .env_remove(variables::CRASH_POINT_ID)
        .env_remove(variables::CRASH_LABEL)
        .env(variables::CHANNEL, channel.value())
        .env(variables::RUN_ID, &run_id);
    for (name, value) in &command.set {
        recorder = recorder.env(name, value);
    }
    let (recorded, inbox) = std::thread::scope(|scope| {
        let inbox = scope.spawn(|| {
            let mut inbox = Inbox::default();
            let mut pipe = File::from(announcements);
            let mut buffer = [0; 16 << 10];
            // An error leaves what is known already, and the verdict then misses what it needs.
            while let Ok(n) = pipe.read(&mut buffer)
                && n > 0
            {
                inbox.push(&buffer[..n]);
            }
            inbox
        });
        let recorded = recorder.run();
        // The last writer: now the inbox comes to its end.
        drop((child_announce, child_parent_alive));
        (recorded, inbox.join().unwrap_or_default())
    });
    let recorded = recorded?;
    let (status, killed) = match recorded.outcome {
        WorkloadOutcome::Exited(code) => (ExitKind::Exited(code), false),
        WorkloadOutcome::Signaled(signal) => (ExitKind::Signaled(signal), signal == libc::SIGKILL),
    };
    let outcome = ChildOutcome {
        status,
        timed_out: None,
        out_of_memory: killed && out_of_memory_kills() > before,
        garbled: inbox.garbled,
        messages: inbox.messages,
    };
    Ok((recorded, outcome))
}

struct ChildWatch {
    pidfd: OwnedFd,
    announcements: OwnedFd,
    /// Held for as long as the child may live.
    _parent_alive: OwnedFd,
}

impl ChildWatch {
    /// Takes messages until the child is dead; it is not yet waited for.
    fn until_the_end(self, child: &Child, timeout: Duration) -> (Inbox, bool) {
        let mut inbox = Inbox::default();
        let mut pipe = File::from(self.announcements);
        // A deadline past the end of time is none.
        let deadline = Instant::now().checked_add(timeout);
        let mut timed_out = false;
        loop {
            let on = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = [on(self.pidfd.as_raw_fd()), on(pipe.as_raw_fd())];
            let left = match deadline {
                Some(deadline) if !timed_out => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    // Rounded up: a poll that ends early would spin.
                    i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
                }
                _ => -1,
            };
            // SAFETY: two descriptors that live as long as the call.
            unsafe { libc::poll(fds.as_mut_ptr(), 2, left) };
            if fds[1].revents & libc::POLLIN != 0 {
                take(&mut pipe, &mut inbox);
            } else if fds[0].revents != 0 {
                return (inbox, timed_out);
            } else if fds[1].revents != 0 {
                // Every write end is closed, and only the death is still to come. Polled further,
                // the pipe would report that for ever.
                wait_only(&self.pidfd, if timed_out { None } else { deadline });
            }
            if !timed_out && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                timed_out = true;
                signal(-(child.id() as i32), libc::SIGKILL);
                signal(child.id() as i32, libc::SIGKILL);
            }
        }
    }
}

fn take(pipe: &mut File, inbox: &mut Inbox) {
    let mut buffer = [0; 16 << 10];
    // Readable was said, so this does not wait. An error leaves what is known already, and the
    // verdict then misses what it needs.
    if let Ok(n) = pipe.read(&mut buffer) {
        inbox.push(&buffer[..n]);
    }
}

fn wait_only(pidfd: &OwnedFd, deadline: Option<Instant>) {
    let mut fd = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let left = deadline.map_or(-1, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    });
    // SAFETY: one descriptor that lives as long as the call.
    unsafe { libc::poll(&raw mut fd, 1, left) };
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: plain numbers. The process or group is ours, and a failure means that it is gone.
    unsafe { libc::kill(pid, signal) };
}

/// How often the kernel's out-of-memory killer has struck since boot.
fn out_of_memory_kills() -> u64 {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    counters
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        .unwrap_or(0)
}
