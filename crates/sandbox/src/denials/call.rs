//! The subject of a notified system call, read from the calling process.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use retake_types::DeniedOperation;

use super::recent::Recent;
use crate::seccomp::{SYS_FCHMODAT2, WRITING};

/// The permission that a call needs to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wants {
    /// To change an existing file.
    File,
    /// To set an existing file's times to now.
    Touch,
    /// To write to a file, or to create it.
    FileOrNew,
    /// To create a missing entry.
    NewEntry,
    /// To remove an existing entry.
    OldEntry,
    /// To create an entry, or to replace it.
    Entry,
}

/// One path of a call, as passed by the process.
#[derive(Clone, Copy, Debug)]
struct Named {
    directory: i32,
    pointer: u64,
    wants: Wants,
    follow: bool,
}

/// One path of a call, absolute, with symbolic links and `..` unresolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallPath {
    pub(super) path: PathBuf,
    pub(super) wants: Wants,
    pub(super) follow: bool,
}

/// A call, with all data read from its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Files {
        operation: DeniedOperation,
        paths: Vec<CallPath>,
    },
    /// To the socket of a file.
    ConnectPath(PathBuf),
    ConnectAddress(SocketAddr),
}

const HERE: i32 = libc::AT_FDCWD;

/// Reads a call. `None` if it concerns no path, or if its path cannot be read: unknown calls are
/// not reported.
pub(super) fn read(notified: &libc::seccomp_notif, recent: &mut Recent) -> Option<Call> {
    let pid = notified.pid;
    if i64::from(notified.data.nr) == libc::SYS_connect {
        return connection(pid, &notified.data.args, recent);
    }
    let (operation, named) = named(i64::from(notified.data.nr), &notified.data.args)?;
    let mut paths = Vec::with_capacity(2);
    for Named { directory, pointer, wants, follow } in named.into_iter().flatten() {
        let name = read_string(pid, pointer)?;
        if name.is_empty() {
            return None;
        }
        let name = Path::new(OsStr::from_bytes(&name));
        let path = match name.is_absolute() {
            true => name.to_owned(),
            false => base(pid, directory, recent)?.join(name),
        };
        paths.push(CallPath { path, wants, follow });
    }
    Some(Call::Files { operation, paths })
}

/// Whether a call can change a file.
pub(super) fn changes_files(notified: &libc::seccomp_notif) -> bool {
    let no = [libc::SYS_connect, libc::SYS_chdir, libc::SYS_fchdir];
    !no.contains(&i64::from(notified.data.nr))
}

/// Whether a call can change the working directory of a process, change what a path leads to, or
/// create a symbolic link.
pub(super) fn moves(notified: &libc::seccomp_notif) -> bool {
    #[cfg(target_arch = "x86_64")]
    let legacy = [libc::SYS_rename, libc::SYS_link, libc::SYS_symlink];
    #[cfg(not(target_arch = "x86_64"))]
    let legacy = [];
    let number = i64::from(notified.data.nr);
    let always = [
        libc::SYS_chdir,
        libc::SYS_fchdir,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
    ];
    always.contains(&number) || legacy.contains(&number)
}

type TwoNames = [Option<Named>; 2];

fn named(number: libc::c_long, args: &[u64; 6]) -> Option<(DeniedOperation, TwoNames)> {
    use DeniedOperation::{Change, Create, Remove, Rename, Write};
    let at = |index: usize, wants: Wants, follow: bool| Named {
        directory: args[index] as i32,
        pointer: args[index + 1],
        wants,
        follow,
    };
    let one = |operation, name: Named| Some((operation, [Some(name), None]));
    let no_follow = |flags: u64| flags & libc::AT_SYMLINK_NOFOLLOW as u64 == 0;
    match number {
        libc::SYS_openat => one(Write, opened(args[0] as i32, args[1], args[2])?),
        libc::SYS_truncate => one(Write, here(args[0], Wants::File, true)),
        libc::SYS_mkdirat | libc::SYS_mknodat => one(Create, at(0, Wants::NewEntry, false)),
        libc::SYS_symlinkat => one(Create, at(1, Wants::NewEntry, false)),
        libc::SYS_linkat => one(Create, at(2, Wants::NewEntry, false)),
        libc::SYS_unlinkat => one(Remove, at(0, Wants::OldEntry, false)),
        libc::SYS_renameat | libc::SYS_renameat2 => {
            let names = [at(0, Wants::OldEntry, false), at(2, Wants::Entry, false)];
            Some((Rename, names.map(Some)))
        }
        libc::SYS_fchmodat => one(Change, at(0, Wants::File, true)),
        SYS_FCHMODAT2 => one(Change, at(0, Wants::File, no_follow(args[3]))),
        libc::SYS_utimensat => one(Change, at(0, times(args[2]), no_follow(args[3]))),
        libc::SYS_fchownat => one(Change, at(0, Wants::File, no_follow(args[4]))),
        libc::SYS_setxattr | libc::SYS_removexattr => one(Change, here(args[0], Wants::File, true)),
        libc::SYS_lsetxattr | libc::SYS_lremovexattr => {
            one(Change, here(args[0], Wants::File, false))
        }
        _ => legacy(number, args),
    }
}

/// Calls that newer architectures lack.
#[cfg(target_arch = "x86_64")]
fn legacy(number: libc::c_long, args: &[u64; 6]) -> Option<(DeniedOperation, TwoNames)> {
    use DeniedOperation::{Change, Create, Remove, Rename, Write};
    let one = |operation, name: Named| Some((operation, [Some(name), None]));
    match number {
        libc::SYS_open => one(Write, opened(HERE, args[0], args[1])?),
        libc::SYS_creat => one(Write, here(args[0], Wants::FileOrNew, true)),
        libc::SYS_mkdir | libc::SYS_mknod => one(Create, here(args[0], Wants::NewEntry, false)),
        libc::SYS_symlink | libc::SYS_link => one(Create, here(args[1], Wants::NewEntry, false)),
        libc::SYS_unlink | libc::SYS_rmdir => one(Remove, here(args[0], Wants::OldEntry, false)),
        libc::SYS_rename => {
            let names = [here(args[0], Wants::OldEntry, false), here(args[1], Wants::Entry, false)];
            Some((Rename, names.map(Some)))
        }
        libc::SYS_chmod | libc::SYS_chown => one(Change, here(args[0], Wants::File, true)),
        libc::SYS_utime | libc::SYS_utimes => one(Change, here(args[0], times(args[1]), true)),
        libc::SYS_lchown => one(Change, here(args[0], Wants::File, false)),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn legacy(_: libc::c_long, _: &[u64; 6]) -> Option<(DeniedOperation, TwoNames)> {
    None
}

/// Without times, both times become the current time.
fn times(pointer: u64) -> Wants {
    if pointer == 0 { Wants::Touch } else { Wants::File }
}

fn here(pointer: u64, wants: Wants, follow: bool) -> Named {
    Named { directory: HERE, pointer, wants, follow }
}

fn opened(directory: i32, pointer: u64, flags: u64) -> Option<Named> {
    let flag = |flag: i32| flags & flag as u64 == flag as u64;
    if flags & u64::from(WRITING) == 0 || flag(libc::O_PATH) {
        return None;
    }
    let exclusive = flag(libc::O_CREAT | libc::O_EXCL);
    let wants = match (flag(libc::O_CREAT), exclusive) {
        (_, true) => Wants::NewEntry,
        (true, false) => Wants::FileOrNew,
        (false, false) => Wants::File,
    };
    let follow = !exclusive && !flag(libc::O_NOFOLLOW);
    Some(Named { directory, pointer, wants, follow })
}

/// The directory that a relative path starts at.
fn base(pid: u32, directory: i32, recent: &mut Recent) -> Option<PathBuf> {
    let read = |link: String| std::fs::read_link(link).ok().filter(|path| path.is_absolute());
    if directory != HERE {
        return read(format!("/proc/{pid}/fd/{directory}"));
    }
    if let Some(known) = recent.directory(pid) {
        return Some(known.to_owned());
    }
    let found = read(format!("/proc/{pid}/cwd"))?;
    recent.note_directory(pid, &found);
    Some(found)
}

fn connection(pid: u32, args: &[u64; 6], recent: &mut Recent) -> Option<Call> {
    let mut bytes = [0_u8; 128];
    let length = (args[2] as usize).min(bytes.len());
    let got = read_memory(pid, args[1], &mut bytes[..length])?;
    let bytes = &bytes[..got];
    let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let port = |bytes: &[u8]| Some(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?));
    match family {
        libc::AF_UNIX => {
            let name = bytes[2..].split(|byte| *byte == 0).next()?;
            if name.is_empty() {
                return None;
            }
            let path = Path::new(OsStr::from_bytes(name));
            let path = match path.is_absolute() {
                true => path.to_owned(),
                false => base(pid, HERE, recent)?.join(path),
            };
            Some(Call::ConnectPath(path))
        }
        libc::AF_INET => {
            let address: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some(Call::ConnectAddress((Ipv4Addr::from(address), port(bytes)?).into()))
        }
        libc::AF_INET6 => {
            let address: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            Some(Call::ConnectAddress((Ipv6Addr::from(address), port(bytes)?).into()))
        }
        _ => None,
    }
}

/// A path in the memory of a process, without its NUL.
fn read_string(pid: u32, at: u64) -> Option<Vec<u8>> {
    // Most are short and fit into a single page.
    let mut short = [0_u8; 256];
    let got = read_memory(pid, at, &mut short)?;
    if let Some(end) = short[..got].iter().position(|byte| *byte == 0) {
        return Some(short[..end].to_vec());
    }
    let mut long = vec![0; libc::PATH_MAX as usize];
    let got = read_memory(pid, at, &mut long)?;
    let end = long[..got].iter().position(|byte| *byte == 0)?;
    long.truncate(end);
    Some(long)
}

/// Reads as much as is mapped: a path may end right before an unmapped page, and the kernel copies
/// only whole pieces.
fn read_memory(pid: u32, at: u64, buffer: &mut [u8]) -> Option<usize> {
    const PAGE: u64 = 4096;
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 3];
    let (mut from, mut left, mut pieces) = (at, buffer.len() as u64, 0);
    for piece in &mut remote {
        if left == 0 {
            break;
        }
        let here = left.min(PAGE - from % PAGE);
        *piece = libc::iovec { iov_base: from as *mut _, iov_len: here as usize };
        from = from.checked_add(here)?;
        left -= here;
        pieces += 1;
    }
    // SAFETY: writes at most the buffer's length into it; the kernel checks the addresses of the
    // other process.
    let got = unsafe {
        libc::process_vm_readv(pid as libc::pid_t, &raw const local, 1, remote.as_ptr(), pieces, 0)
    };
    usize::try_from(got).ok().filter(|got| *got > 0)
}

/// The name of a thread: its program's, unless it chose another.
pub(super) fn program(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}
