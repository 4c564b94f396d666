//! A confined keeper: how it is started, and how it reports success to the runner.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use retake_sandbox::{Confinement, DenialWatch, SharedNetwork};
use retake_types::{SandboxFailure, SandboxPart};

use super::protocol::{KeeperOrder, RawReport};
use super::{Keeper, KeeperSettings};
use crate::syscalls::{self, MAX_FDS, Received};

/// How long a keeper may take to confine itself, on a slow disk for example.
const SETUP_PATIENCE: Duration = Duration::from_secs(30);

/// Why a confined keeper could not be started.
#[derive(Debug)]
pub enum ConfineError {
    /// No process could be started.
    Process(io::Error),
    Sandbox(SandboxFailure),
}

/// Whether the notified calls of a confined keeper are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    /// All notified calls are answered; without notifications, no answers are needed.
    AsFarAsPossible,
    /// Calls are notified but cannot be answered.
    No,
}

/// Like `fork`, with these new namespaces.
///
/// # Safety
///
/// As for `fork`: only calls that are safe after forking a threaded program in the child.
pub(super) unsafe fn clone_process(flags: i32) -> libc::pid_t {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: no stack, no addresses: a copy of this process.
    unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) as libc::pid_t }
}

/// The same in an existing network. Only a process that joins the owning user namespace may enter
/// it, so an intermediate process joins, creates the process as its sibling, and exits.
///
/// # Safety
///
/// As for [`clone_process`].
pub(super) unsafe fn clone_joined(flags: i32, network: &SharedNetwork) -> libc::pid_t {
    let mut ends = [-1; 2];
    // SAFETY: plain system calls; the intermediate process makes no others and ends by `_exit`.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
            return -1;
        }
        let between = libc::fork();
        if between == 0 {
            let made = match network.join() {
                Ok(()) => clone_process(flags | libc::CLONE_PARENT),
                Err(_) => -1,
            };
            if made == 0 {
                // The new process.
                libc::close(ends[0]);
                libc::close(ends[1]);
                return 0;
            }
            let answer = if made < 0 { -syscalls::errno() } else { made };
            libc::write(ends[1], (&raw const answer).cast(), size_of_val(&answer));
            libc::_exit(0);
        }
        let errno = syscalls::errno();
        libc::close(ends[1]);
        let mut answer: libc::pid_t = -errno;
        if between > 0 {
            answer = -libc::EPROTO;
            let size = size_of_val(&answer);
            while libc::read(ends[0], (&raw mut answer).cast(), size) < 0
                && syscalls::errno() == libc::EINTR
            {}
            while libc::waitpid(between, std::ptr::null_mut(), 0) < 0
                && syscalls::errno() == libc::EINTR
            {}
        }
        libc::close(ends[0]);
        if answer < 0 {
            *libc::__errno_location() = -answer;
            return -1;
        }
        answer
    }
}

impl Keeper {
    /// Starts a keeper that is confined before it starts anything, as is everything it starts.
    /// Fails if it cannot be confined.
    pub fn start_confined(
        settings: KeeperSettings,
        confinement: Confinement,
    ) -> Result<Self, ConfineError> {
        // Its mounts differ, so it enters directories by path.
        let settings = KeeperSettings { own_mounts: true, ..settings };
        let mut keeper = Self::fork_confined(settings, confinement)?;
        if keeper.confined()? == Watched::No {
            // A keeper with notified calls is unusable if nothing answers them.
            keeper.end_and_reap();
            let lost = || ConfineError::Process(io::Error::from_raw_os_error(libc::EPROTO));
            let mut confinement = keeper.confinement.take().ok_or_else(lost)?;
            confinement.give_up_watching();
            keeper = Self::fork_confined(settings, confinement)?;
            keeper.confined()?;
        }
        Ok(keeper)
    }

    fn fork_confined(
        settings: KeeperSettings,
        confinement: Confinement,
    ) -> Result<Self, ConfineError> {
        let namespaces = confinement.clone_flags() != 0;
        let mut keeper = Self::fork(settings, Some(confinement)).map_err(|error| {
            let refused = [libc::EPERM, libc::ENOSPC, libc::EINVAL, libc::ENOSYS];
            match error.raw_os_error().filter(|errno| namespaces && refused.contains(errno)) {
                Some(errno) => ConfineError::Sandbox(SandboxFailure::Missing {
                    part: SandboxPart::Namespaces,
                    errno,
                }),
                None => ConfineError::Process(error),
            }
        })?;
        let Some(confinement) = &mut keeper.confinement else { return Ok(keeper) };
        // The process has begun by now. If it failed, its report says so.
        if confinement.plan().map_err(ConfineError::Process)? {
            keeper.order(KeeperOrder::Confine);
        }
        if let Some(confinement) = &mut keeper.confinement {
            confinement.prepare().map_err(ConfineError::Process)?;
        }
        Ok(keeper)
    }

    /// Waits for the first report of a confined keeper.
    fn confined(&mut self) -> Result<Watched, ConfineError> {
        let until = Instant::now() + SETUP_PATIENCE;
        loop {
            let socket = self.socket();
            match syscalls::receive::<RawReport>(socket) {
                Received::Message(RawReport::Confined { notified, shared }, fds) => {
                    return self.entered((notified, shared), fds);
                }
                Received::Message(RawReport::NotConfined(failure), _) => {
                    let explain = |confinement: &Confinement| confinement.explain(failure);
                    let failure = self.confinement.as_ref().map(explain);
                    return Err(failure.map_or_else(
                        || ConfineError::Process(io::Error::from_raw_os_error(libc::EPROTO)),
                        ConfineError::Sandbox,
                    ));
                }
                Received::Message(..) | Received::Closed => {
                    return Err(ConfineError::Process(io::Error::from_raw_os_error(libc::EPROTO)));
                }
                Received::Nothing if Instant::now() >= until => {
                    return Err(ConfineError::Process(io::Error::from_raw_os_error(
                        libc::ETIMEDOUT,
                    )));
                }
                Received::Nothing => {
                    let events = libc::POLLIN;
                    syscalls::poll(
                        &mut [libc::pollfd { fd: socket, events, revents: 0 }],
                        Some(until),
                    );
                }
            }
        }
    }

    /// Starts answering the notifications of a confined keeper: unanswered, its calls would fail.
    fn entered(
        &mut self,
        (notified, shared): (bool, bool),
        fds: [RawFd; MAX_FDS],
    ) -> Result<Watched, ConfineError> {
        // SAFETY: received with the message; owned only here.
        let owned = |fd: RawFd| unsafe { OwnedFd::from_raw_fd(fd) };
        let mut sockets: Vec<OwnedFd> = fds.into_iter().filter(|fd| *fd >= 0).map(owned).collect();
        let Some(confinement) = &mut self.confinement else { return Ok(Watched::AsFarAsPossible) };
        let mut further = sockets.split_off(confinement.sockets().min(sockets.len())).into_iter();
        if shared {
            let namespaces = further.next().zip(further.next());
            self.shared_network =
                namespaces.map(|(user, network)| Arc::new(SharedNetwork::new([user, network])));
        }
        confinement.open_network(sockets).map_err(ConfineError::Process)?;
        let (root, listener) = (further.next(), further.next());
        // None arrives if this program is out of descriptors.
        let missing = || ConfineError::Process(io::Error::from_raw_os_error(libc::EMFILE));
        let root = root.ok_or_else(missing)?;
        if notified {
            let watched = root.try_clone().map_err(ConfineError::Process)?;
            let Ok(watch) = confinement.watch(listener.ok_or_else(missing)?, watched) else {
                return Ok(Watched::No);
            };
            self.denials = Some(watch);
        }
        self.root = Some(root);
        Ok(Watched::AsFarAsPossible)
    }

    /// Whether a retake inside the confinement has recorded anything.
    pub fn has_nested_record(&self) -> bool {
        let parts = self.confinement.as_ref().zip(self.root.as_ref());
        parts.is_some_and(|(confinement, root)| confinement.has_nested_record(root.as_fd()))
    }

    /// The confinement of its runs.
    pub fn confinement(&self) -> Option<&Confinement> {
        self.confinement.as_ref()
    }

    /// The network of its runs, if others may join it.
    pub fn shared_network(&self) -> Option<&Arc<SharedNetwork>> {
        self.shared_network.as_ref()
    }

    /// Observes what its runs are denied; `None` without confinement or notifications.
    pub fn denials(&self) -> Option<&DenialWatch> {
        self.denials.as_ref()
    }
}
