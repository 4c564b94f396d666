//! The thread that answers notifications, and whether the kernel supports it.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use retake_types::DeniedOperation;

use super::call::{self, Call};
use super::judge::{self, Judge, Verdict};
use super::recent::Recent;
use super::{Noted, Watched, lock};
use crate::set_id;

/// How long the first call may take, on a loaded machine for example.
const PATIENCE: Duration = Duration::from_secs(10);

/// The kernel wakes the waiting process on the processor that sent the answer.
const SYNC_WAKE_UP: u64 = 1;

/// Enables notification for this process and everything it starts. `None` if the kernel refuses,
/// for example because there is a listener already. Allocates nothing. Needs `no_new_privs`.
pub(crate) fn install(program: &[libc::sock_filter]) -> Option<OwnedFd> {
    let program = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_ptr().cast_mut(),
    };
    // On kernels with this flag, a signal does not repeat a notification.
    let listening = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let flags = [listening | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, listening];
    flags.into_iter().find_map(|flags| {
        // SAFETY: the program outlives the call; the descriptor is new and owned only here.
        unsafe {
            let fd = libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            );
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as RawFd))
        }
    })
}

/// Makes one harmless notified call. If another process holds the listener, that process learns
/// from it whether calls can be answered, before anything depends on it.
pub fn first_call() {
    // SAFETY: no descriptor has this number, so nothing is connected and no address is read.
    unsafe { libc::connect(-1, std::ptr::null(), 0) };
}

/// Answers the call of [`first_call`]. Unanswerable notifications would make every call of the
/// sandbox fail.
pub(super) fn answer_first(listener: &OwnedFd) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut polled = [readable(listener.as_raw_fd())];
        let left = until.saturating_duration_since(Instant::now()).as_millis();
        // SAFETY: one structure, as stated.
        unsafe { libc::poll(polled.as_mut_ptr(), 1, left as libc::c_int) };
        if polled[0].revents & libc::POLLIN != 0 {
            return go_on(listener, next(listener)?.id);
        }
        if polled[0].revents != 0 || left == 0 {
            // No process is left inside, or no call arrives.
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
    }
}

/// Starts the thread. It ends when the returned descriptor is closed, and when no process is left
/// to notify.
pub(super) fn start(
    begun: Receiver<Watched>,
    judge: Arc<Judge>,
    noted: Arc<Mutex<Noted>>,
) -> io::Result<(OwnedFd, JoinHandle<()>)> {
    let (stopped, stop): (PipeReader, PipeWriter) = io::pipe()?;
    let watch = move || {
        let Ok(Watched { listener, root }) = begun.recv() else { return };
        // SAFETY: a descriptor and a number. An older kernel rejects it, and is only slower.
        unsafe {
            libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP);
        }
        let recent = Recent::default();
        Watcher { listener, root, judge, noted, recent }.watch(&stopped.into());
    };
    let thread = std::thread::Builder::new().name("denials".to_owned()).spawn(watch)?;
    Ok((stop.into(), thread))
}

struct Watcher {
    listener: OwnedFd,
    root: OwnedFd,
    judge: Arc<Judge>,
    noted: Arc<Mutex<Noted>>,
    recent: Recent,
}

impl Watcher {
    fn watch(&mut self, stopped: &OwnedFd) {
        loop {
            let mut polled = [readable(self.listener.as_raw_fd()), readable(stopped.as_raw_fd())];
            wait(&mut polled);
            let [listener, stopped] = polled;
            if stopped.revents != 0 {
                return;
            }
            if listener.revents & libc::POLLIN == 0 {
                if listener.revents != 0 {
                    // No process is left inside.
                    return;
                }
                continue;
            }
            // The process may have been killed meanwhile.
            let Ok(notified) = next(&self.listener) else { continue };
            let handled = catch_unwind(AssertUnwindSafe(|| self.handle(&notified)));
            if handled.is_err() {
                // Whatever happens here, the call must continue.
                _ = go_on(&self.listener, notified.id);
            }
        }
    }

    /// Continues the call, and records it if the sandbox denies it. The process waits only until
    /// its call is read, and its name if the call looks denied: a denied call changes nothing, so
    /// its verdict can be determined afterwards.
    fn handle(&mut self, notified: &libc::seccomp_notif) {
        // Held until everything is recorded, so that a reader after the process's end sees
        // everything.
        let noted = self.noted.clone();
        let mut noted = lock(&noted);
        if call::changes_files(notified) {
            noted.note_changing();
            let (call, arguments) = (i64::from(notified.data.nr), &notified.data.args);
            noted.set_group_id |= set_id::asks_for_group(call, arguments);
        }
        self.recent.begin(notified.pid, call::moves(notified), Instant::now());
        let call = call::read(notified, &mut self.recent).filter(|call| !self.is_harmless(call));
        let suspect = match &call {
            None => false,
            Some(Call::Files { operation, paths }) => {
                paths.iter().any(|path| self.judge.suspects(*operation, path))
            }
            Some(Call::ConnectPath(_)) => true,
            Some(Call::ConnectAddress(address)) => self.judge.out_of_reach(*address),
        };
        let program = suspect.then(|| call::program(notified.pid));
        _ = go_on(&self.listener, notified.id);
        let Some(call) = call else { return };
        if !suspect && self.is_named_truly(&call) {
            self.note_harmless(call);
        } else if let Some((operation, path)) = self.denied(call) {
            let program = program.unwrap_or_else(|| call::program(notified.pid));
            noted.add(operation, path.into(), program);
        }
    }

    /// Whether the same call was found harmless a moment ago.
    fn is_harmless(&self, call: &Call) -> bool {
        match call {
            Call::Files { paths, .. } => match &paths[..] {
                [path] => self.recent.is_harmless(path),
                _ => false,
            },
            Call::ConnectPath(_) | Call::ConnectAddress(_) => false,
        }
    }

    fn note_harmless(&mut self, call: Call) {
        // At one of the levels, metadata changes are harmless everywhere.
        if let Call::Files { operation, mut paths } = call
            && operation != DeniedOperation::Change
            && paths.len() == 1
        {
            self.recent.note_harmless(paths.remove(0));
        }
    }

    /// Whether the paths of a call contain no symbolic link that leads elsewhere.
    fn is_named_truly(&self, call: &Call) -> bool {
        match call {
            Call::Files { paths, .. } => {
                paths.iter().all(|path| judge::is_without_links(self.root.as_fd(), path))
            }
            Call::ConnectPath(_) => false,
            Call::ConnectAddress(_) => true,
        }
    }

    fn denied(&self, call: Call) -> Option<(DeniedOperation, std::ffi::OsString)> {
        match call {
            Call::Files { operation, paths } => {
                for path in &paths {
                    match self.judge.judge(self.root.as_fd(), operation, path) {
                        Verdict::Fails => return None,
                        Verdict::Allowed => {}
                        Verdict::Denied(path) => return Some((operation, path.into())),
                    }
                }
                None
            }
            Call::ConnectPath(path) => {
                let hidden = self.judge.hides_socket(self.root.as_fd(), &path);
                hidden.then(|| (DeniedOperation::Connect, path.into()))
            }
            Call::ConnectAddress(address) => {
                let denied = self.judge.out_of_reach(address);
                denied.then(|| (DeniedOperation::Connect, address.to_string().into()))
            }
        }
    }
}

fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Waits until one of them is ready.
fn wait(polled: &mut [libc::pollfd]) {
    // SAFETY: as many structures as stated. After an interruption none is ready, and the caller
    // checks again.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
}

/// The next waiting call.
fn next(listener: &OwnedFd) -> io::Result<libc::seccomp_notif> {
    // SAFETY: zero is a valid value, as the kernel requires; it is overwritten.
    unsafe {
        let mut notified: libc::seccomp_notif = std::mem::zeroed();
        let fd = listener.as_raw_fd();
        match libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notified) {
            0 => Ok(notified),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Lets the kernel continue the call.
fn go_on(listener: &OwnedFd, id: u64) -> io::Result<()> {
    // SAFETY: the structure outlives the call.
    unsafe {
        let mut response: libc::seccomp_notif_resp = std::mem::zeroed();
        response.id = id;
        response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let fd = listener.as_raw_fd();
        match libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
