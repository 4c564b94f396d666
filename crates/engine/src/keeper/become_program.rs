//! The new process between clone and exec. It shares the keeper's memory, under the rules of
//! `serve.rs`: no allocation, no lock, no panic.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use super::SignalDispositions;
use super::protocol::{ProcessGroup, SpawnHead, SpawnStage};
use crate::syscalls::{self, MAX_FDS};

/// What the new process needs between clone and exec.
pub(super) struct Start<'a> {
    pub(super) head: *mut SpawnHead,
    pub(super) fds: [RawFd; MAX_FDS],
    pub(super) original: &'a SignalDispositions,
    pub(super) keeper: i32,
    /// Whether the keeper is already in the working directory, or why it could not enter it.
    pub(super) entered: Option<Result<(), i32>>,
}

/// The child before exec. It shares the keeper's memory, so it only makes system calls and records
/// which one failed.
pub(super) extern "C" fn become_program(start: *mut c_void) -> c_int {
    // SAFETY: the keeper passed a `Start` that lives until exec or exit.
    let start = unsafe { &*start.cast::<Start>() };
    // SAFETY: the keeper is suspended; nothing else accesses the block.
    let head = unsafe { &mut *start.head };
    head.failed = Some(steps(start, head).err().unwrap_or((SpawnStage::Exec, syscalls::errno())));
    127
}

/// Returns only if a step fails; `Ok` means that the last step, exec, failed.
fn steps(start: &Start, head: &SpawnHead) -> Result<(), (SpawnStage, i32)> {
    let step = |stage: SpawnStage, result: c_int| {
        if result < 0 { Err((stage, syscalls::errno())) } else { Ok(()) }
    };
    let [directory, stdout, stderr, ref rest @ ..] = start.fds;
    // Without its own stdin the child reads the keeper's, which is /dev/null.
    let (stdin, rest) =
        if head.has_stdin { (Some(rest[0]), &rest[1..]) } else { (None, &rest[..]) };
    let cgroups = if head.terminal.is_some() { &rest[1..] } else { rest };
    // SAFETY: plain system calls on this process, which has not started yet. Pointers in the head
    // are complete C arrays in shared memory.
    unsafe {
        // If the keeper is killed, the program must die too. The keeper was the parent a moment
        // ago; if it no longer is, it died in between.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != start.keeper {
            return Err((SpawnStage::Session, libc::ESRCH));
        }
        match head.group {
            ProcessGroup::Own | ProcessGroup::Foreground => {
                step(SpawnStage::Session, libc::setpgid(0, 0))?
            }
            ProcessGroup::Session => step(SpawnStage::Session, libc::setsid())?,
        }
        for &file in &cgroups[..head.cgroup_files] {
            step(SpawnStage::Cgroup, libc::write(file, c"0".as_ptr().cast(), 1) as c_int)?;
        }
        match start.entered {
            Some(entered) => entered.map_err(|errno| (SpawnStage::Directory, errno))?,
            None if head.directory.is_null() => {
                step(SpawnStage::Directory, libc::fchdir(directory))?
            }
            // A descriptor would lead to the mounts of the runner.
            None => step(SpawnStage::Directory, libc::chdir(head.directory))?,
        }
        if let Some(stdin) = stdin {
            step(SpawnStage::Streams, libc::dup2(stdin, 0))?;
        }
        step(SpawnStage::Streams, libc::dup2(stdout, 1))?;
        step(SpawnStage::Streams, libc::dup2(stderr, 2))?;
        match head.group {
            ProcessGroup::Own => {}
            ProcessGroup::Foreground => {
                // All signals are still blocked, so this cannot stop the process.
                step(SpawnStage::Terminal, libc::tcsetpgrp(0, libc::getpid()))?;
            }
            ProcessGroup::Session => {
                step(SpawnStage::Terminal, libc::ioctl(1, libc::TIOCSCTTY, 0))?
            }
        }
        for (resource, limit) in
            [(libc::RLIMIT_NOFILE, head.files), (libc::RLIMIT_FSIZE, head.fsize)]
        {
            if let Some(limit) = limit {
                let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                step(SpawnStage::Limit, libc::setrlimit(resource, &raw const limit))?;
            }
        }
        if let Some(nice) = head.nice {
            step(SpawnStage::Limit, libc::setpriority(libc::PRIO_PROCESS, 0, nice))?;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction =
            if start.original.ignores(libc::SIGCHLD) { libc::SIG_IGN } else { libc::SIG_DFL };
        libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut());
        libc::sigprocmask(libc::SIG_SETMASK, &raw const start.original.mask, std::ptr::null_mut());
        libc::execve(head.program, head.argv, head.envp);
    }
    Ok(())
}
