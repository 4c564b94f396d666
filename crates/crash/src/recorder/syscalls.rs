//! Which system calls the recorder stops at, and the meaning of their arguments.
//!
//! Every call that can change a directory tree is listed here, with its meaning or to be refused.
//! This file decides nothing else.

use libc::c_long;

/// How a call names a file: the descriptor that its path starts from, and the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathArgument {
    /// The argument with the descriptor; `None` means the working directory.
    pub(super) base: Option<usize>,
    pub(super) path: usize,
}

/// What a call operates on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject {
    Path {
        at: PathArgument,
        /// Does not follow a symbolic link at the end of the path.
        itself: bool,
        /// The argument with `AT_` flags.
        flags: Option<usize>,
    },
    Descriptor,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum OpenFlags {
    Argument(usize),
    /// `creat`, which newer architectures omit.
    #[cfg(target_arch = "x86_64")]
    Fixed(i32),
    /// The argument that points to an `open_how`.
    How(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CallMeaning {
    Open {
        at: PathArgument,
        flags: OpenFlags,
    },
    Write {
        vector: bool,
        offset: Option<usize>,
        flags: Option<usize>,
    },
    TruncatePath,
    Truncate,
    Allocate,
    CopyRange,
    Sendfile,
    Splice,
    Rename {
        from: PathArgument,
        to: PathArgument,
        flags: Option<usize>,
    },
    Link {
        from: PathArgument,
        to: PathArgument,
        flags: Option<usize>,
    },
    Symlink {
        target: usize,
        to: PathArgument,
    },
    Unlink {
        at: PathArgument,
    },
    MakeDirectory {
        at: PathArgument,
    },
    MakeNode {
        at: PathArgument,
    },
    Sync {
        data_only: bool,
    },
    SyncRange,
    SyncFileSystem,
    SyncAll,
    SyncMapping,
    Mode(Subject),
    SetAttribute {
        subject: Subject,
        name: usize,
    },
    RemoveAttribute {
        subject: Subject,
        name: usize,
    },
    Map,
    Protect,
    /// It changes nothing, but can fail.
    Read,
    Close,
    /// It may change which files descriptors refer to, or how.
    Descriptors,
    /// Queries which processors a task may use. The C library does so when it examines a stack.
    GetProcessors,
    SetProcessors,
    /// It may change files unnoticed by the recorder.
    Refuse(&'static str),
    /// The same, if it succeeds.
    RefuseSuccess(&'static str),
}

/// When the filter stops at a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum StopCondition {
    Always,
    /// Some of these bits are set in the argument.
    Bits {
        argument: usize,
        mask: u32,
    },
    /// Of these bits exactly those of `value` are set.
    Masked {
        argument: usize,
        mask: u32,
        value: u32,
    },
    /// The argument has this value.
    Equals {
        argument: usize,
        value: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Syscall {
    pub(super) number: c_long,
    pub(super) name: &'static str,
    pub(super) what: CallMeaning,
    pub(super) when: StopCondition,
}

/// The newest call when this table was written; later ones are refused if they succeed.
pub(super) const NEWEST: c_long = 470;

const fn call(number: c_long, name: &'static str, what: CallMeaning) -> Syscall {
    Syscall { number, name, what, when: StopCondition::Always }
}

const fn at(base: usize, path: usize) -> PathArgument {
    PathArgument { base: Some(base), path }
}

#[cfg(target_arch = "x86_64")]
const fn here(path: usize) -> PathArgument {
    PathArgument { base: None, path }
}

const fn named(path: PathArgument, flags: Option<usize>) -> Subject {
    Subject::Path { at: path, itself: false, flags }
}

const fn cwd(path: usize, itself: bool) -> Subject {
    Subject::Path { at: PathArgument { base: None, path }, itself, flags: None }
}

/// The flags with which an `open` can change something: creating, truncating or unnamed.
const CHANGES: u32 = (libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

const FOREIGN_IO: &str = "its writes happen inside the kernel, where the recorder does not see them; most programs have a \
     setting for ordinary calls, such as io_method=worker of PostgreSQL, innodb_use_native_aio=0 of MySQL \
     and UV_USE_IO_URING=0 of Node.js";
const FOREIGN_PATHS: &str = "it changes which files the paths of the workload lead to";
const CLONES: &str = "it shares blocks between files, which no model here understands";
const HANDLE: &str = "it truncates a file by its handle";

const OPEN_FLAGS: fn(usize) -> StopCondition =
    |argument| StopCondition::Bits { argument, mask: CHANGES };

/// Whether the numbers below are this processor's.
pub(super) const SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The calls to stop at if one of them must fail: calls that only read can fail, too.
pub(super) fn table_with_reads() -> Vec<Syscall> {
    let mut calls = table();
    for call in &mut calls {
        match call.what {
            CallMeaning::Open { .. } => call.when = StopCondition::Always,
            CallMeaning::Map => {
                let (argument, mask) = (3, libc::MAP_ANONYMOUS as u32);
                call.when = StopCondition::Masked { argument, mask, value: 0 };
            }
            _ => {}
        }
    }
    calls.extend([
        call(libc::SYS_read, "read", CallMeaning::Read),
        call(libc::SYS_pread64, "pread64", CallMeaning::Read),
        call(libc::SYS_readv, "readv", CallMeaning::Read),
        call(libc::SYS_preadv, "preadv", CallMeaning::Read),
        call(libc::SYS_preadv2, "preadv2", CallMeaning::Read),
    ]);
    calls
}

/// Stops when code is mapped, too: call stacks lead through it from then on.
pub(super) fn code_mapping() -> Syscall {
    let when = StopCondition::Bits { argument: 2, mask: libc::PROT_EXEC as u32 };
    Syscall { when, ..call(libc::SYS_mmap, "mmap", CallMeaning::Map) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn table() -> Vec<Syscall> {
    Vec::new()
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn table() -> Vec<Syscall> {
    [content_calls(), name_calls(), sync_and_attribute_calls(), refused_calls(), legacy()].concat()
}

/// Calls that change or sync the content of a file, or the target of a descriptor or a mapping.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn content_calls() -> Vec<Syscall> {
    use CallMeaning::*;
    let write = |vector, offset, flags| Write { vector, offset, flags };
    vec![
        call(libc::SYS_write, "write", write(false, None, None)),
        call(libc::SYS_pwrite64, "pwrite64", write(false, Some(3), None)),
        call(libc::SYS_writev, "writev", write(true, None, None)),
        call(libc::SYS_pwritev, "pwritev", write(true, Some(3), None)),
        call(libc::SYS_pwritev2, "pwritev2", write(true, Some(3), Some(5))),
        call(libc::SYS_fsync, "fsync", Sync { data_only: false }),
        call(libc::SYS_fdatasync, "fdatasync", Sync { data_only: true }),
        Syscall {
            when: OPEN_FLAGS(2),
            ..call(libc::SYS_openat, "openat", Open { at: at(0, 1), flags: OpenFlags::Argument(2) })
        },
        call(libc::SYS_openat2, "openat2", Open { at: at(0, 1), flags: OpenFlags::How(2) }),
        Syscall {
            // Shared, and of a file.
            when: StopCondition::Masked {
                argument: 3,
                mask: (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u32,
                value: libc::MAP_SHARED as u32,
            },
            ..call(libc::SYS_mmap, "mmap", Map)
        },
        Syscall {
            when: StopCondition::Bits { argument: 2, mask: libc::PROT_WRITE as u32 },
            ..call(libc::SYS_mprotect, "mprotect", Protect)
        },
        call(libc::SYS_close, "close", Close),
        call(libc::SYS_close_range, "close_range", Descriptors),
        call(libc::SYS_dup3, "dup3", Descriptors),
        Syscall {
            when: StopCondition::Equals { argument: 1, value: libc::F_SETFL as u32 },
            ..call(libc::SYS_fcntl, "fcntl(F_SETFL)", Descriptors)
        },
        call(libc::SYS_sched_getaffinity, "sched_getaffinity", GetProcessors),
        call(libc::SYS_sched_setaffinity, "sched_setaffinity", SetProcessors),
        call(libc::SYS_msync, "msync", SyncMapping),
        call(libc::SYS_truncate, "truncate", TruncatePath),
        call(libc::SYS_ftruncate, "ftruncate", Truncate),
        call(libc::SYS_fallocate, "fallocate", Allocate),
        call(libc::SYS_copy_file_range, "copy_file_range", CopyRange),
        call(libc::SYS_sendfile, "sendfile", Sendfile),
        call(libc::SYS_splice, "splice", Splice),
    ]
}

/// Calls that change the names in a directory.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn name_calls() -> Vec<Syscall> {
    use CallMeaning::*;
    vec![
        call(libc::SYS_renameat, "renameat", Rename { from: at(0, 1), to: at(2, 3), flags: None }),
        call(
            libc::SYS_renameat2,
            "renameat2",
            Rename { from: at(0, 1), to: at(2, 3), flags: Some(4) },
        ),
        call(libc::SYS_linkat, "linkat", Link { from: at(0, 1), to: at(2, 3), flags: Some(4) }),
        call(libc::SYS_symlinkat, "symlinkat", Symlink { target: 0, to: at(1, 2) }),
        call(libc::SYS_unlinkat, "unlinkat", Unlink { at: at(0, 1) }),
        call(libc::SYS_mkdirat, "mkdirat", MakeDirectory { at: at(0, 1) }),
        call(libc::SYS_mknodat, "mknodat", MakeNode { at: at(0, 1) }),
    ]
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn sync_and_attribute_calls() -> Vec<Syscall> {
    use CallMeaning::*;
    vec![
        call(libc::SYS_sync_file_range, "sync_file_range", SyncRange),
        call(libc::SYS_syncfs, "syncfs", SyncFileSystem),
        call(libc::SYS_sync, "sync", SyncAll),
        call(libc::SYS_fchmod, "fchmod", Mode(Subject::Descriptor)),
        call(libc::SYS_fchmodat, "fchmodat", Mode(named(at(0, 1), None))),
        call(452, "fchmodat2", Mode(named(at(0, 1), Some(3)))),
        call(libc::SYS_fchown, "fchown", Mode(Subject::Descriptor)),
        call(libc::SYS_fchownat, "fchownat", Mode(named(at(0, 1), Some(4)))),
        call(libc::SYS_setxattr, "setxattr", SetAttribute { subject: cwd(0, false), name: 1 }),
        call(libc::SYS_lsetxattr, "lsetxattr", SetAttribute { subject: cwd(0, true), name: 1 }),
        call(
            libc::SYS_fsetxattr,
            "fsetxattr",
            SetAttribute { subject: Subject::Descriptor, name: 1 },
        ),
        call(
            libc::SYS_removexattr,
            "removexattr",
            RemoveAttribute { subject: cwd(0, false), name: 1 },
        ),
        call(
            libc::SYS_lremovexattr,
            "lremovexattr",
            RemoveAttribute { subject: cwd(0, true), name: 1 },
        ),
        call(
            libc::SYS_fremovexattr,
            "fremovexattr",
            RemoveAttribute { subject: Subject::Descriptor, name: 1 },
        ),
    ]
}

/// Calls that no model understands.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn refused_calls() -> Vec<Syscall> {
    use CallMeaning::*;
    let mut calls = vec![
        call(463, "setxattrat", RefuseSuccess("it is too new for this recorder")),
        call(466, "removexattrat", RefuseSuccess("it is too new for this recorder")),
        call(libc::SYS_io_uring_setup, "io_uring_setup", Refuse(FOREIGN_IO)),
        call(libc::SYS_io_setup, "io_setup", Refuse(FOREIGN_IO)),
        call(libc::SYS_mount, "mount", RefuseSuccess(FOREIGN_PATHS)),
        call(libc::SYS_umount2, "umount2", RefuseSuccess(FOREIGN_PATHS)),
        call(libc::SYS_pivot_root, "pivot_root", RefuseSuccess(FOREIGN_PATHS)),
        call(libc::SYS_chroot, "chroot", RefuseSuccess(FOREIGN_PATHS)),
        call(libc::SYS_setns, "setns", RefuseSuccess(FOREIGN_PATHS)),
        call(libc::SYS_move_mount, "move_mount", RefuseSuccess(FOREIGN_PATHS)),
        Syscall {
            when: StopCondition::Bits { argument: 2, mask: libc::O_TRUNC as u32 },
            ..call(libc::SYS_open_by_handle_at, "open_by_handle_at", RefuseSuccess(HANDLE))
        },
    ];
    // FICLONE, FICLONERANGE, and ext4's exchange of extents.
    for value in [0x4004_9409, 0x4020_940d, 0xc028_660f] {
        let when = StopCondition::Equals { argument: 1, value };
        calls.push(Syscall {
            when,
            ..call(libc::SYS_ioctl, "ioctl(FICLONE)", RefuseSuccess(CLONES))
        });
    }
    calls
}

/// The calls that newer architectures omit.
#[cfg(target_arch = "x86_64")]
fn legacy() -> Vec<Syscall> {
    use CallMeaning::*;
    let creat = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
    vec![
        Syscall {
            when: OPEN_FLAGS(1),
            ..call(libc::SYS_open, "open", Open { at: here(0), flags: OpenFlags::Argument(1) })
        },
        call(libc::SYS_dup2, "dup2", Descriptors),
        call(libc::SYS_creat, "creat", Open { at: here(0), flags: OpenFlags::Fixed(creat) }),
        call(libc::SYS_rename, "rename", Rename { from: here(0), to: here(1), flags: None }),
        call(libc::SYS_link, "link", Link { from: here(0), to: here(1), flags: None }),
        call(libc::SYS_symlink, "symlink", Symlink { target: 0, to: here(1) }),
        call(libc::SYS_unlink, "unlink", Unlink { at: here(0) }),
        call(libc::SYS_rmdir, "rmdir", Unlink { at: here(0) }),
        call(libc::SYS_mkdir, "mkdir", MakeDirectory { at: here(0) }),
        call(libc::SYS_mknod, "mknod", MakeNode { at: here(0) }),
        call(libc::SYS_chmod, "chmod", Mode(cwd(0, false))),
        call(libc::SYS_chown, "chown", Mode(cwd(0, false))),
        call(libc::SYS_lchown, "lchown", Mode(cwd(0, true))),
    ]
}

#[cfg(target_arch = "aarch64")]
fn legacy() -> Vec<Syscall> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_call_number_is_listed_once() {
        let mut numbers: Vec<_> = table_with_reads()
            .iter()
            .filter(|call| call.number != libc::SYS_ioctl)
            .map(|call| call.number)
            .collect();
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all);
        assert!(numbers.iter().all(|number| *number <= NEWEST));
    }
}
