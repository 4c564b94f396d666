//! One child: started so that it cannot outlive the orchestrator, watched until its end, and all processes
//! that it left running are killed.
//!
//! Theory of operation. The child gets two pipe ends. It sends its messages over one. The
//! other never carries a byte: its end-of-file, when the orchestrator dies in any way, is what
//! [`parent_death`] waits for in the child. Until that thread of the child runs, the
//! kernel's parent-death signal has the same effect; that signal follows the *thread* that started the
//! child, so the thread that starts a child here also waits for it.
//!
//! The child leads a process group. The group is killed before the dead leader is reaped,
//! so that its id cannot belong to another group. Processes that left the group are found by their run id.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::check_server::CheckServer;
use super::verdict::ChildOutcome;
use crate::channel::Inbox;
use crate::check_request::{CheckRequest, ExitKind, Frame};
use crate::child_watch::{ChildWatch, OutOfMemoryKills, signal};
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
    /// The file for both of its output streams.
    pub(crate) log: PathBuf,
    pub(crate) timeout: Duration,
    /// The mount namespace that shows it its directory.
    pub(crate) namespace: Option<MountNamespace>,
    /// A descriptor that it inherits, besides those of every child.
    pub(crate) inherit: Option<RawFd>,
}

/// The children that are running now, so that those whose results are not needed can be killed.
#[derive(Debug)]
pub(crate) struct RunningChildren {
    table: Mutex<ChildTable>,
}

#[derive(Debug)]
struct ChildTable {
    bound: usize,
    children: HashMap<usize, Running>,
}

/// How to kill a running child.
#[derive(Debug)]
enum Running {
    Process(u32),
    /// A copy of a check server, which the server kills.
    Served(OwnedFd),
}

impl Running {
    fn end(&self) {
        match self {
            Self::Process(pid) => signal(*pid as i32, libc::SIGKILL),
            Self::Served(socket) => {
                // If the server is gone, its check is, too.
                _ = socket.try_clone().map(File::from).and_then(Frame::cancel);
            }
        }
    }
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
        for (target, running) in &table.children {
            if *target > table.bound {
                running.end();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChildTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a child to its end. No process it started is alive afterwards.
    pub(crate) fn run(
        &self,
        command: &ChildCommand<'_>,
    ) -> io::Result<Result<ChildOutcome, Unwanted>> {
        let run_id = new_run_id();
        let out_of_memory = OutOfMemoryKills::new();
        let before = out_of_memory.count();
        let StartedChild { mut child, watch, parent_alive: _parent_alive } = {
            let mut table = self.lock();
            if command.target > table.bound {
                return Ok(Err(Unwanted));
            }
            let started = start(command, &run_id)?;
            table.children.insert(command.target, Running::Process(started.child.id()));
            started
        };
        let (announced, timed_out) = watch.until_the_end(child.id(), command.timeout, None);
        signal(-(child.id() as i32), libc::SIGKILL);
        // From here on the pid may be reused.
        self.lock().children.remove(&command.target);
        let status = child.wait()?;
        kill_by_run_id(&run_id);
        if command.target > self.lock().bound {
            return Ok(Err(Unwanted));
        }
        let killed = status.signal() == Some(libc::SIGKILL);
        let inbox = Inbox::of(&announced);
        Ok(Ok(ChildOutcome {
            status: match status.code() {
                Some(code) => ExitKind::Exited(code),
                None => ExitKind::Signaled(status.signal().unwrap_or_default()),
            },
            timed_out: timed_out.then_some(command.timeout),
            out_of_memory: killed && out_of_memory.count() > before,
            garbled: inbox.garbled,
            messages: inbox.messages,
        }))
    }

    /// Lets a check server run a check to its end, and runs `meanwhile`. An error concerns the server, which must be
    /// given up then.
    pub(crate) fn run_served(
        &self,
        server: &mut CheckServer,
        target: usize,
        request: &CheckRequest,
        meanwhile: &dyn Fn(),
    ) -> io::Result<Result<ChildOutcome, Unwanted>> {
        {
            let mut table = self.lock();
            if target > table.bound {
                return Ok(Err(Unwanted));
            }
            table.children.insert(target, Running::Served(server.socket()?));
        }
        let reply = server.check(request, meanwhile);
        self.lock().children.remove(&target);
        if target > self.lock().bound {
            return Ok(Err(Unwanted));
        }
        let reply = reply?;
        let inbox = Inbox::of(&reply.announced);
        Ok(Ok(ChildOutcome {
            status: reply.status,
            timed_out: reply.timed_out.then_some(request.timeout),
            out_of_memory: reply.out_of_memory,
            garbled: inbox.garbled,
            messages: inbox.messages,
        }))
    }
}

/// A child that runs.
pub(super) struct StartedChild {
    pub(super) child: Child,
    pub(super) watch: ChildWatch,
    /// Kept open as long as the child may live.
    pub(super) parent_alive: OwnedFd,
}

pub(super) fn start(asked: &ChildCommand<'_>, run_id: &str) -> io::Result<StartedChild> {
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
    let (namespace, inherit) = (asked.namespace.clone(), asked.inherit);
    let adopt = move || {
        // SAFETY: async-signal-safe calls on plain numbers.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, death_signal);
            if libc::getppid() != own as i32 {
                libc::_exit(1);
            }
            for fd in [Some(channel.parent_alive), Some(channel.announce), inherit] {
                if fd.is_some_and(|fd| libc::fcntl(fd, libc::F_SETFD, 0) < 0) {
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
        Ok(pidfd) => {
            let watch = ChildWatch { pidfd, announcements };
            Ok(StartedChild { child, watch, parent_alive })
        }
        Err(error) => {
            signal(-(child.id() as i32), libc::SIGKILL);
            child.wait()?;
            let message = format!("cannot watch a process, which needs Linux 5.3: {error}");
            Err(io::Error::new(error.kind(), message))
        }
    }
}

/// Runs a child to its end and records everything it does to a directory. Processes that it leaves
/// running may take up to `linger` to end by themselves.
pub(crate) fn record(
    command: &ChildCommand<'_>,
    root: &Path,
    linger: Duration,
) -> Result<(Recorded, ChildOutcome), RecordError> {
    let failed = |source| RecordError::system("a child", source);
    let run_id = new_run_id();
    let out_of_memory = OutOfMemoryKills::new();
    let before = out_of_memory.count();
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
        .linger(linger)
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
            // After an error only the messages so far are known, and the verdict reports what is missing.
            while let Ok(n) = pipe.read(&mut buffer)
                && n > 0
            {
                inbox.push(&buffer[..n]);
            }
            inbox
        });
        let recorded = recorder.run();
        // The last writers: now the inbox gets end-of-file.
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
        out_of_memory: killed && out_of_memory.count() > before,
        garbled: inbox.garbled,
        messages: inbox.messages,
    };
    Ok((recorded, outcome))
}
