//! A network of one's own, made by a second process while the first one makes the mounts.
//!
//! To make a network takes the kernel as long as everything else together. The second process
//! shares memory and descriptors with the first, which makes starting it cheap; it allocates
//! nothing, and ends before the first one gives up any right. Both share the place where libc notes
//! the reason of a failed call, too: where one of them fails the reason may be that of the other,
//! and nothing else, since any failure ends the set-up.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use retake_types::SandboxPart;

use crate::enter::{self, SetupFailure, part};
use crate::network::{Listeners, Network};

/// Memory that the second process runs on, made before both.
#[derive(Debug)]
pub(crate) struct HelperStack(Box<[MaybeUninit<u8>]>);

impl HelperStack {
    /// More than a dozen calls need. Untouched pages cost nothing.
    const SIZE: usize = 64 << 10;

    pub(crate) fn new() -> Self {
        Self(Box::new_uninit_slice(Self::SIZE))
    }
}

/// The new network, and the sockets that were made in it.
type Made = Result<(OwnedFd, Listeners), SetupFailure>;

/// The network of a process that is being confined.
pub(crate) struct OwnNetwork<'a> {
    network: &'a Network,
    /// `/proc` as it is before the mounts change.
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

    /// Begins to make it. `self` must stay where it is until [`Self::enter`].
    pub(crate) fn begin(&mut self, stack: &mut HelperStack) -> Result<(), SetupFailure> {
        // The stack grows down from the end, which must be aligned.
        let top = stack.0.as_mut_ptr_range().end.map_addr(|end| end & !63);
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: it runs on its own stack and writes nothing but what it has made, which is not
        // looked at before it has ended. Should this process fail, both end.
        let helper = unsafe { libc::clone(make, top.cast(), flags, (&raw mut *self).cast()) };
        if helper < 0 {
            return Err(part(SandboxPart::Namespaces)(io::Error::last_os_error()));
        }
        self.helper = helper;
        Ok(())
    }

    /// The user namespace, which the network belongs to.
    pub(crate) fn user_namespace(&self) -> Result<OwnedFd, SetupFailure> {
        enter::open_namespace(self.proc.as_fd(), c"self/ns/user")
            .map_err(part(SandboxPart::Namespaces))
    }

    /// Becomes a member of it. Gives it and the sockets that were made in it.
    pub(crate) fn enter(&mut self) -> Made {
        // SAFETY: waits for our own child.
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
    // SAFETY: `begin` passed a network that stays where it is until this process has ended.
    let network = unsafe { &*network.cast::<OwnNetwork<'_>>() };
    let made = network.make();
    // SAFETY: nobody else looks at it until this process has ended.
    unsafe { *network.made.get() = Some(made) };
    0
}
