//! One check as a process: started in its namespace, with a time limit, and terminated with all it started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::fd::{pidfd, pipe};
use crate::mount_namespace::MountNamespace;
use crate::stray_processes::{kill_by_run_id, new_run_id};
use crate::variables;

/// How much of a failed check's output is kept.
const TAIL: u64 = 4 << 10;
/// How long killed processes may take to be gone before they are searched for.
const PATIENCE: Duration = Duration::from_millis(100);

/// The verdict of a check on a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckResult {
    /// The state is sound.
    Passed,
    /// The state is not sound.
    Failed {
        /// How the check ended.
        failure: CheckFailure,
        /// The end of what the check printed.
        output: String,
    },
}

/// How a failed check ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckFailure {
    /// It exited with this code.
    Exited(i32),
    /// This signal terminated it.
    Signaled(i32),
    /// It did not end within this time.
    TimedOut(Duration),
}

pub(super) struct CheckLaunch<'a> {
    pub(super) program: &'a OsStr,
    pub(super) arguments: &'a [OsString],
    pub(super) inherited: &'a [(OsString, OsString)],
    pub(super) set: &'a [(&'static str, OsString)],
    pub(super) directory: Option<&'a Path>,
    pub(super) namespace: Option<MountNamespace>,
    pub(super) output: &'a Path,
    pub(super) limit: Duration,
}

/// Whether a child can enter the namespace.
pub(super) fn can_enter(namespace: MountNamespace) -> io::Result<()> {
    let mut command = Command::new("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: entering allocates nothing and takes no lock.
    unsafe { command.pre_exec(move || namespace.enter()) };
    command.spawn()?.wait()?;
    Ok(())
}

pub(super) fn run(launch: &CheckLaunch<'_>) -> io::Result<CheckResult> {
    let (alive, held) = pipe()?;
    let run_id = new_run_id();
    let output =
        File::options().create(true).truncate(true).read(true).write(true).open(launch.output)?;
    let mut child = start(launch, &output, held.as_raw_fd(), &run_id)?;
    drop(held);
    let ended = wait(&mut child, launch.limit);
    // The leader is not reaped yet, so the group's number is still valid.
    // SAFETY: plain numbers; the group is the child's.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let status = child.wait()?;
    // Every process of the check holds the pipe, in any group or session.
    if !readable(&alive, PATIENCE) {
        kill_by_run_id(&run_id);
    }
    let failure = match ended? {
        false => CheckFailure::TimedOut(launch.limit),
        true if status.success() => return Ok(CheckResult::Passed),
        true => failure(status),
    };
    Ok(CheckResult::Failed { failure, output: tail(output)? })
}

fn failure(status: ExitStatus) -> CheckFailure {
    match (status.code(), status.signal()) {
        (None, Some(signal)) => CheckFailure::Signaled(signal),
        (code, _) => CheckFailure::Exited(code.unwrap_or_default()),
    }
}

fn start(launch: &CheckLaunch<'_>, output: &File, held: RawFd, run_id: &str) -> io::Result<Child> {
    let mut command = Command::new(launch.program);
    command
        .args(launch.arguments)
        .env_clear()
        .envs(launch.inherited.iter().map(|(name, value)| (name, value)))
        .env_remove(variables::RECORDING)
        .envs(launch.set.iter().map(|(name, value)| (name, value)))
        .env(variables::RUN_ID, run_id)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0);
    let parent = std::process::id() as i32;
    let namespace = launch.namespace.clone();
    let directory =
        launch.directory.map(|path| crate::recorder::c_string(path.as_os_str())).transpose()?;
    let prepare = move || {
        // SAFETY: async-signal-safe calls on plain numbers.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != parent {
                libc::_exit(1);
            }
            if libc::fcntl(held, libc::F_SETFD, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if let Some(namespace) = &namespace {
            namespace.enter()?;
        }
        // Only now: the directory may be the mounted one.
        if let Some(directory) = &directory
            // SAFETY: a finished string.
            && unsafe { libc::chdir(directory.as_ptr()) } < 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Whether the child ended by itself. In either case it is dead, or about to be.
fn wait(child: &mut Child, limit: Duration) -> io::Result<bool> {
    let pidfd = pidfd(child.id())?;
    let ended = readable(&pidfd, limit);
    if !ended {
        child.kill()?;
    }
    Ok(ended)
}

/// Whether there is data, or end-of-file, within this time.
fn readable(fd: &OwnedFd, limit: Duration) -> bool {
    let deadline = Instant::now().checked_add(limit);
    loop {
        let left = deadline.map_or(-1, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
        });
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor that lives as long as the call.
        unsafe { libc::poll(&raw mut poll, 1, left) };
        if poll.revents != 0 {
            return true;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
    }
}

fn tail(mut output: File) -> io::Result<String> {
    let length = output.seek(SeekFrom::End(0))?;
    output.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    output.take(TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
