//! What was found out at the beginning of a call, for when its result is known.

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
    /// No other call of the workload may touch the tree before this one has ended. Calls that may
    /// wait for another task are not: holding that task back would never end.
    pub(super) exclusive: bool,
    /// It is made to fail.
    pub(super) fault: Option<Injection>,
}

/// What is done to a call that has to fail.
#[derive(Clone, Copy, Debug)]
pub(super) enum Injection {
    /// It is not made, and answers with this error.
    Skip { code: i32 },
    /// It is made, and answers with this error.
    Misreport { code: i32 },
    /// Another call is made instead, which writes less.
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
    /// An `open` of a directory for a file without a name.
    CreateUnnamed,
    Write {
        node: Node,
        offset: u64,
        vector: bool,
        sync: WriteSync,
    },
    /// The kernel moves the bytes itself; they are read back.
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
    /// All is known: these happen if the call succeeds.
    Emit(Vec<Action>),
    Mode {
        node: Node,
        subject: Subject,
        /// The access list that comes with it.
        list: Option<Arc<[u8]>>,
    },
    Map,
    /// The task was given all its processors for as long as it asks for them.
    Unpinned,
    /// The recording ends if the call succeeds.
    Refuse {
        why: &'static str,
    },
    /// The recording ends unless the kernel does not know the call either.
    RefuseUnknown {
        number: i64,
    },
}
