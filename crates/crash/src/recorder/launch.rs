//! Starts the workload: forked, seized, filtered, and only then executed.
//!
//! The child waits until it is seized, because a filter without a tracer makes calls fail. The
//! code between fork and exec allocates nothing and takes no lock.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libc::{c_char, pid_t};

use super::error::RecordError;
use super::file::c_string;
use super::ptrace;
use crate::fd::pipe;

/// Everything the child needs, prepared before the fork.
pub(super) struct WorkloadLaunch<'a> {
    pub(super) program: &'a OsStr,
    pub(super) arguments: &'a [OsString],
    pub(super) environment: &'a [(OsString, OsString)],
    pub(super) directory: Option<&'a Path>,
    pub(super) stdout: RawFd,
    pub(super) stderr: Option<RawFd>,
    /// Kept open in the workload under the same numbers.
    pub(super) inherit: &'a [RawFd],
    /// `None` if every call stops.
    pub(super) filter: Option<Vec<libc::sock_filter>>,
}

struct Prepared {
    candidates: Vec<CString>,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    directory: Option<CString>,
    stdin: OwnedFd,
    /// Owns the memory behind the pointers.
    _strings: Vec<CString>,
}

/// The workload's first process, seized and about to execute.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) pid: pid_t,
    pub(super) pidfd: OwnedFd,
    /// Reports why the program could not be executed; empty if it could.
    pub(super) complaint: File,
}

/// Must be called on the thread that will trace.
pub(super) fn start(launch: &WorkloadLaunch<'_>) -> Result<Started, RecordError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |source| RecordError::System { what, source }
    };
    let prepared = prepare(launch)
        .map_err(|source| RecordError::Start { program: launch.program.to_owned(), source })?;
    let (gate, open) = pipe().map_err(system("pipe"))?;
    let mut open = File::from(open);
    let (complaint, complain) = pipe().map_err(system("pipe"))?;
    // SAFETY: the child calls async-signal-safe functions only, until it executes or exits.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => return Err(RecordError::system("fork", io::Error::last_os_error())),
        0 => child(launch, &prepared, gate.as_raw_fd(), open.as_raw_fd(), complain.as_raw_fd()),
        _ => drop((gate, complain)),
    }
    // SAFETY: plain numbers in, a new descriptor or -1 out. The child is not waited for yet.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let ready = if pidfd < 0 {
        Err(RecordError::system("pidfd_open", io::Error::last_os_error()))
    } else {
        ptrace::seize(pid).map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => RecordError::Forbidden { source },
            _ => RecordError::system("ptrace", source),
        })
    };
    let ready = ready.and_then(|()| open.write_all(b"g").map_err(system("pipe")));
    if let Err(error) = ready {
        // SAFETY: this process's child, which has not been waited for.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL);
        }
        return Err(error);
    }
    // SAFETY: the descriptor is new and nobody else's.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) };
    Ok(Started { pid, pidfd, complaint: complaint.into() })
}

/// The child's report before it exited: the step it failed at, and why.
pub(super) fn complaint(mut pipe: &File, program: &OsStr) -> Option<RecordError> {
    let mut said = [0; 8];
    pipe.read_exact(&mut said).ok()?;
    let [step, code] = [&said[..4], &said[4..]]
        .map(|half| half.iter().rev().fold(0, |value, byte| value << 8 | i32::from(*byte)));
    let source = io::Error::from_raw_os_error(code);
    Some(match step {
        FILTER => RecordError::Forbidden { source },
        _ => RecordError::Start { program: program.to_owned(), source },
    })
}

const FILTER: i32 = 1;
const EXECUTE: i32 = 2;
const PREPARE: i32 = 3;

fn child(
    launch: &WorkloadLaunch<'_>,
    prepared: &Prepared,
    gate: RawFd,
    own: RawFd,
    complain: RawFd,
) -> ! {
    let give_up = |step: i32| -> ! {
        // SAFETY: plain memory and numbers.
        unsafe {
            let said = [step.to_le(), (*libc::__errno_location()).to_le()];
            libc::write(complain, said.as_ptr().cast(), 8);
            libc::_exit(127)
        }
    };
    // SAFETY: async-signal-safe calls on memory that was prepared before the fork.
    unsafe {
        // An open copy of the other end would keep the pipe from ending when the parent dies.
        libc::close(own);
        let mut byte = 0_u8;
        if libc::read(gate, (&raw mut byte).cast(), 1) != 1 {
            libc::_exit(127);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        // Rust programs ignore SIGPIPE; the workload must not inherit that.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        let stderr = launch.stderr.unwrap_or(libc::STDERR_FILENO);
        let streams = [prepared.stdin.as_raw_fd(), launch.stdout, stderr];
        for (number, fd) in streams.into_iter().enumerate() {
            if libc::dup2(fd, number as RawFd) < 0 {
                give_up(PREPARE);
            }
            if fd == number as RawFd {
                libc::fcntl(fd, libc::F_SETFD, 0);
            }
        }
        for fd in launch.inherit {
            if libc::fcntl(*fd, libc::F_SETFD, 0) < 0 {
                give_up(PREPARE);
            }
        }
        if libc::setpgid(0, 0) < 0 {
            give_up(PREPARE);
        }
        if let Some(directory) = &prepared.directory
            && libc::chdir(directory.as_ptr()) < 0
        {
            give_up(PREPARE);
        }
        if let Some(filter) = &launch.filter
            && !install(filter)
        {
            give_up(FILTER);
        }
        let mut code = libc::ENOENT;
        for candidate in &prepared.candidates {
            libc::execve(
                candidate.as_ptr(),
                prepared.arguments.as_ptr(),
                prepared.environment.as_ptr(),
            );
            match *libc::__errno_location() {
                libc::ENOENT | libc::ENOTDIR => {}
                other => code = other,
            }
        }
        *libc::__errno_location() = code;
        give_up(EXECUTE)
    }
}

/// Whether a filter that stops calls for a tracer would be ineffective: a filter outside of this process
/// that notifies a listener of calls, as in a sandbox that reports denials, takes
/// precedence in the kernel.
pub(super) fn filter_is_overruled() -> bool {
    // There can be only one listener, so a refusal means that another one exists. A filter applies
    // to one thread, and this one ends immediately.
    let attempt = std::thread::spawn(|| {
        let mut allow = [libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        }];
        let program = libc::sock_fprog { len: 1, filter: allow.as_mut_ptr() };
        // SAFETY: the program lives during the calls; a returned descriptor is new and owned here alone.
        unsafe {
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
                return false;
            }
            let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
            let program = &raw const program;
            let listener =
                libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, program);
            let errno = io::Error::last_os_error().raw_os_error();
            if listener >= 0 {
                drop(OwnedFd::from_raw_fd(listener as RawFd));
            }
            listener < 0 && errno == Some(libc::EBUSY)
        }
    });
    attempt.join().unwrap_or(false)
}

/// Installs the filter; returns whether that succeeded. Async-signal-safe.
fn install(filter: &[libc::sock_filter]) -> bool {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let program = &raw const program;
    // SAFETY: the program lives during the calls, which copy it.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return false;
        }
        // Without that flag, older kernels slow the whole process down.
        [libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0].into_iter().any(|flags| {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, program) == 0
        })
    }
}

fn prepare(launch: &WorkloadLaunch<'_>) -> io::Result<Prepared> {
    let mut strings = Vec::new();
    let mut arguments = Vec::new();
    for argument in
        std::iter::once(launch.program).chain(launch.arguments.iter().map(AsRef::as_ref))
    {
        let argument = c_string(argument)?;
        arguments.push(argument.as_ptr());
        strings.push(argument);
    }
    arguments.push(std::ptr::null());
    let mut environment = Vec::new();
    for (name, value) in launch.environment {
        let mut entry = name.clone();
        entry.push("=");
        entry.push(value);
        let entry = c_string(&entry)?;
        environment.push(entry.as_ptr());
        strings.push(entry);
    }
    environment.push(std::ptr::null());
    let stdin = File::open("/dev/null")?;
    Ok(Prepared {
        candidates: candidates(launch)?,
        arguments,
        environment,
        directory: launch.directory.map(|path| c_string(path.as_os_str())).transpose()?,
        // Above the numbers it is copied to.
        stdin: OwnedFd::from(stdin).try_clone()?,
        _strings: strings,
    })
}

/// Paths at which the program may be, searched as by a shell.
fn candidates(launch: &WorkloadLaunch<'_>) -> io::Result<Vec<CString>> {
    if launch.program.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(launch.program)?]);
    }
    let path = launch.environment.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or_else(|| OsString::from("/bin:/usr/bin"), |(_, value)| value.clone());
    std::env::split_paths(&path)
        .map(|directory: PathBuf| c_string(directory.join(launch.program).as_os_str()))
        .collect()
}
