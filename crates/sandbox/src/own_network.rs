//! A private network, created by a second process while the first one makes the mounts.
//!
//! Creating a network takes the kernel as long as everything else together. The second process
//! shares memory and descriptors with the first, so starting it is cheap; it allocates nothing, and
//! ends before the first one drops any right. Both also share libc's errno: if one fails, its errno
//! may be the other's, but nothing worse happens, because any failure ends the setup.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use retake_types::SandboxPart;

use crate::enter::{self, SetupFailure, part};
use crate::network::{Listeners, Network};

/// The stack of the second process, allocated in advance.
#[derive(Debug)]
pub(crate) struct HelperStack(Box<[MaybeUninit<u8>]>);

impl HelperStack {
    /// More than a dozen calls need. Untouched pages cost nothing.
    const SIZE: usize = 64 << 10;

    pub(crate) fn new() -> Self {
        Self(Box::new_uninit_slice(Self::SIZE))
    }
}

/// The new network, and the sockets created in it.
type Made = Result<(OwnedFd, Listeners), SetupFailure>;

/// The network of a process during confinement.
pub(crate) struct OwnNetwork<'a> {
    network: &'a Network,
    /// `/proc` before the mounts change.
    proc: OwnedFd,
    helper: libc::pid_t,
    /// Written by the second process.
    made: UnsafeCell<Option<Made>>,
}

impl<'a> OwnNetwork<'a> {
    pub(crate) fn new(network: &'a Network) -> Result<Self, SetupFailure> {
        let proc = enter::open(c"/proc").map_err(part(SandboxPart::Proc))?;
        Ok(Self { network, proc, helper: 0, made: UnsafeCell::new(None) })
    }

    /// Starts creating it. `self` must not move until [`Self::enter`].
    pub(crate) fn begin(&mut self, stack: &mut HelperStack) -> Result<(), SetupFailure> {
        // The stack grows down from its end, which must be aligned.
        let top = stack.0.as_mut_ptr_range().end.map_addr(|end| end & !63);
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: it runs on its own stack and writes only its result, which is not read before it
        // has ended. If this process fails, both end.
        let helper = unsafe { libc::clone(make, top.cast(), flags, (&raw mut *self).cast()) };
        if helper < 0 {
            return Err(part(SandboxPart::Namespaces)(io::Error::last_os_error()));
        }
        self.helper = helper;
        Ok(())
    }

    /// The user namespace that owns the network.
    pub(crate) fn user_namespace(&self) -> Result<OwnedFd, SetupFailure> {
        enter::open_namespace(self.proc.as_fd(), c"self/ns/user")
            .map_err(part(SandboxPart::Namespaces))
    }

    /// Joins the network. Returns it and the sockets created in it.
    pub(crate) fn enter(&mut self) -> Made {
        // SAFETY: waits for this process's child.
        while unsafe { libc::waitpid(self.helper, std::ptr::null_mut(), libc::__WALL) } < 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(part(SandboxPart::Namespaces)(error));
            }
        }
        let lost = || part(SandboxPart::Namespaces)(io::Error::from_raw_os_error(libc::ECHILD));
        let (namespace, sockets) = self.made.get_mut().take().unwrap_or_else(|| Err(lost()))?;
        enter::join_namespace(&namespace, libc::CLONE_NEWNET)
            .map_err(part(SandboxPart::Namespaces))?;
        Ok((namespace, sockets))
    }

    fn make(&self) -> Made {
        let namespaces = || part(SandboxPart::Namespaces);
        enter::new_network().map_err(namespaces())?;
        enter::raise_loopback().map_err(part(SandboxPart::Loopback))?;
        let sockets = self.network.listen().map_err(part(SandboxPart::Loopback))?;
        let namespace =
            enter::open_namespace(self.proc.as_fd(), c"self/ns/net").map_err(namespaces())?;
        Ok((namespace, sockets))
    }
}

extern "C" fn make(network: *mut c_void) -> c_int {
    // SAFETY: `begin` passed a network that does not move until this process has ended.
    let network = unsafe { &*network.cast::<OwnNetwork<'_>>() };
    let made = network.make();
    // SAFETY: nothing else accesses it until this process has ended.
    unsafe { *network.made.get() = Some(made) };
    0
}
