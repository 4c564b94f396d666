//! Facts found at the beginning of a call that are needed when its result is known.

use std::ffi::OsString;
use std::sync::Arc;

use super::file::FileStatus;
use super::path_lookup::ResolvedPath;
use super::syscalls::Subject;
use crate::operation::{Action, Node, WriteSync};

#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) name: &'static str,
    pub(super) arguments: [u64; 6],
    pub(super) plan: CallPlan,
    /// No other call of the workload may change the tree before this one has ended. Not set for calls that
    /// may wait for another task: holding that task back would deadlock.
    pub(super) exclusive: bool,
    /// The fault that is injected, if any.
    pub(super) fault: Option<Injection>,
}

/// How a call is made to fail.
#[derive(Clone, Copy, Debug)]
pub(super) enum Injection {
    /// It is not made, and returns this error.
    Skip { code: i32 },
    /// It is made, and returns this error.
    Misreport { code: i32 },
    /// A different call that writes less is made instead.
    Shorten { number: i64, buffer: u64, length: u64 },
}

#[derive(Debug)]
pub(super) enum CallPlan {
    /// Output, from a buffer or a vector of buffers.
    Print {
        vector: bool,
    },
    /// An `open` that creates its file.
    Create {
        resolved: ResolvedPath,
    },
    /// An `open` of a directory for an unnamed file.
    CreateUnnamed,
    Write {
        node: Node,
        offset: u64,
        vector: bool,
        sync: WriteSync,
    },
    /// The kernel copies the bytes itself; they are read back.
    Copied {
        node: Node,
        fd: i32,
        offset: u64,
        sync: WriteSync,
    },
    Rename {
        from: ResolvedPath,
        to: ResolvedPath,
        exchange: bool,
    },
    Link {
        source: FileStatus,
        resolved: ResolvedPath,
    },
    Symlink {
        target: OsString,
        resolved: ResolvedPath,
    },
    Unlink {
        resolved: ResolvedPath,
        status: FileStatus,
        node: Node,
    },
    /// `mkdir` and `mknod`.
    Make {
        resolved: ResolvedPath,
    },
    /// Everything is known: these happen if the call succeeds.
    Emit(Vec<Action>),
    Mode {
        node: Node,
        subject: Subject,
        /// The access list that is set with it.
        list: Option<Arc<[u8]>>,
    },
    Map,
    /// The task temporarily has all its processors while it queries them.
    Unpinned,
    /// The recording fails if the call succeeds.
    Refuse {
        why: &'static str,
    },
    /// The recording fails unless the kernel does not know the call either.
    RefuseUnknown {
        number: i64,
    },
}
