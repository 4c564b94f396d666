//! The check server: a child of a test that stops right before its check, and forks a copy of itself
//! for every state to check.
//!
//! Starting a program costs several times what most checks do: a copy exists immediately, with
//! everything before the check done. Each check still has its own process.
//!
//! Theory of operation. The copy returns from [`serve`] and runs the check; the server itself stays
//! in it to the end. The copy for the next check is forked before that check is requested, and waits
//! for it: the orchestrator needs that time to write the state. The server is the subreaper of its copies' processes,
//! so when a copy has ended it kills and reaps its own children until it has none. If the server dies, the kernel
//! kills the copy; if the orchestrator dies, the server kills everything that carries its run id.
//!
//! A copy has only the thread that forked it. So a test that has started other threads before its
//! check, or processes, is not served: each of its checks is started as a program.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process;

use crate::channel::Announcer;
use crate::check_request::{CheckReply, CheckRequest, ExitKind, Frame, READY};
use crate::child_watch::{ChildWatch, OutOfMemoryKills};
use crate::variables::{ACKS, CRASH_LABEL, CRASH_POINT_ID, CRASH_TARGET, RUN_ID};
use retake_crash::fd::{pidfd, pipe};
use retake_crash::stray_processes::kill_by_run_id;

pub(crate) const REFUSED: u8 = b'N';

/// A copy that is about to check a state.
#[derive(Debug)]
pub(super) struct CheckCopy {
    pub(super) request: CheckRequest,
    pub(super) announcer: Announcer,
}

/// Whether a copy of this process would be complete: no threads but this one and, in a test
/// program, the one that waits for it; and no children. Called before this crate starts its own threads.
pub(super) fn can_copy() -> bool {
    // SAFETY: no arguments, no failure.
    let main_thread = unsafe { libc::getpid() == libc::gettid() };
    let usual = if main_thread { 1 } else { 2 };
    let threads = fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    // SAFETY: zero is a valid `siginfo_t`, and there is room for the answer. It fails without
    // children, and does not reap one that has ended.
    let child = unsafe {
        let mut found: libc::siginfo_t = std::mem::zeroed();
        let ended = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, &raw mut found, ended)
    };
    threads <= usual && child < 0
}

/// Exits, because nothing waits for this process's test.
fn leave(code: i32) -> ! {
    #[expect(clippy::exit, reason = "a child of a test ends with its phase")]
    process::exit(code)
}

/// Reports that this process cannot serve, and exits.
pub(super) fn refuse(socket: File) -> ! {
    // An orchestrator that is gone needs no answer.
    _ = io::Write::write_all(&mut &socket, &[REFUSED]);
    leave(0)
}

/// Serves until the orchestrator has no more requests. Returns in copies only.
pub(super) fn serve(socket: File) -> CheckCopy {
    // SAFETY: plain numbers. A kernel without it is older than what this crate needs.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    let run_id = std::env::var(RUN_ID).unwrap_or_default();
    let server = process::id() as i32;
    let out_of_memory = OutOfMemoryKills::new();
    if io::Write::write_all(&mut &socket, &[READY]).is_err() {
        leave(0);
    }
    loop {
        let Ok((announcements, announce)) = pipe() else { leave(1) };
        let Ok((asked, ask)) = pipe() else { leave(1) };
        let before = out_of_memory.count();
        // SAFETY: the copy has this thread alone, and uses nothing that another thread could hold:
        // the check above found no thread that holds anything.
        match unsafe { libc::fork() } {
            0 => {
                drop((socket, announcements, ask));
                return enter(asked, announce, server);
            }
            pid if pid > 0 => {
                drop((asked, announce));
                let Ok(watched) = pidfd(pid as u32) else { leave(1) };
                let request = next_request(&socket);
                // If the copy has died the send fails, which is noticed below.
                _ = request.send(File::from(ask));
                let watch = ChildWatch { pidfd: watched, announcements };
                let (announced, timed_out) =
                    watch.until_the_end(pid as u32, request.timeout, Some(&socket));
                let status = end(pid, &run_id);
                let killed = status == ExitKind::Signaled(libc::SIGKILL);
                let reply = CheckReply {
                    status,
                    timed_out,
                    out_of_memory: killed && out_of_memory.count() > before,
                    announced,
                };
                if reply.send(&socket).is_err() {
                    leave(0);
                }
            }
            _ => leave(1),
        }
    }
}

/// Waits for the next request. After the last one this process exits, and the
/// kernel kills the waiting copy.
fn next_request(socket: &File) -> CheckRequest {
    loop {
        match Frame::receive(socket) {
            Ok(Some(Frame::Check(request))) => return request,
            // It arrived just after the check had ended.
            Ok(Some(Frame::Cancel)) => {}
            Ok(None) | Err(_) => leave(0),
        }
    }
}

/// Reaps a copy that has ended, and kills everything that it left.
fn end(copy: i32, run_id: &str) -> ExitKind {
    let mut ended = ExitKind::Exited(0);
    let mut swept = false;
    // SAFETY: plain numbers. The copy has not been reaped, so the group id is still its own.
    unsafe { libc::kill(-copy, libc::SIGKILL) };
    loop {
        let mut status = 0;
        // SAFETY: room for the answer.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL) };
        match pid {
            // Processes of the group may take a moment to die.
            0 if !swept => {
                kill_by_run_id(run_id);
                swept = true;
            }
            0 => {
                // SAFETY: plain numbers.
                unsafe { libc::usleep(200) };
                swept = false;
            }
            pid if pid < 0 => return ended,
            pid if pid == copy => {
                ended = match libc::WIFEXITED(status) {
                    true => ExitKind::Exited(libc::WEXITSTATUS(status)),
                    false => ExitKind::Signaled(libc::WTERMSIG(status)),
                };
            }
            _ => {}
        }
    }
}

/// Waits for a check, and gives this copy the state of a program started for it.
fn enter(asked: OwnedFd, announce: OwnedFd, server: i32) -> CheckCopy {
    let prepared = || {
        // SAFETY: plain numbers.
        unsafe {
            libc::setpgid(0, 0);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != server {
                return Err(io::ErrorKind::NotConnected.into());
            }
        }
        let Some(Frame::Check(request)) = Frame::receive(File::from(asked))? else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        // SAFETY: the log stays open while it is copied, and there is no other thread that could read a
        // variable while it is set.
        unsafe {
            let log = OpenOptions::new().create(true).append(true).open(&request.log)?;
            for stream in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
                if libc::dup2(log.as_raw_fd(), stream) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            std::env::set_var(CRASH_POINT_ID, request.point_id.to_string());
            std::env::set_var(CRASH_TARGET, request.target.to_string());
            std::env::set_var(CRASH_LABEL, &request.label);
            std::env::set_var(ACKS, &request.acks);
        }
        Ok::<_, io::Error>(request)
    };
    // The orchestrator then reports that the check did not come to its test.
    let request = prepared().unwrap_or_else(|_| leave(125));
    CheckCopy { request, announcer: Announcer::new(File::from(announce)) }
}
