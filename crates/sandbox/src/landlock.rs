//! Landlock: irrevocable rights on file hierarchies, for a process and everything it starts.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::c_long;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// Removing and creating: directories, files, devices, sockets, pipes, links.
const CHANGE_DIR: u64 = 0x1ff0;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const SCOPES: u64 = 3;
const BIND_TCP: u64 = 1;
const CONNECT_TCP: u64 = 2;

/// The rights that a rule grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Listing directories.
    List,
    /// Reading and executing files.
    Read,
    /// Writing to existing files.
    Write,
    /// Everything below a directory.
    All,
}

/// The rights that are denied unless a rule grants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    Writing,
    ReadingAndWriting,
}

#[repr(C)]
struct RulesetAttributes {
    handled_fs: u64,
    handled_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

#[repr(C)]
struct NetPort {
    allowed: u64,
    port: u64,
}

/// This kernel's Landlock version; 0 without Landlock.
pub(crate) fn abi() -> u32 {
    // SAFETY: only queries the version.
    let version: c_long = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, 1u32)
    };
    u32::try_from(version).unwrap_or(0)
}

/// The rights that this version supports.
fn handled(handled: Handled, abi: u32) -> u64 {
    let mut rights = WRITE_FILE | CHANGE_DIR;
    if handled == Handled::ReadingAndWriting {
        rights |= EXECUTE | READ_FILE | READ_DIR;
    }
    if abi >= 2 {
        rights |= REFER;
    }
    if abi >= 3 {
        rights |= TRUNCATE;
    }
    rights
}

/// Creates an empty ruleset, also for TCP if requested, which needs version 4. Does not allocate.
pub(crate) fn ruleset(what: Handled, tcp: bool, abi: u32) -> io::Result<OwnedFd> {
    let attributes = RulesetAttributes {
        handled_fs: handled(what, abi),
        handled_net: if tcp { BIND_TCP | CONNECT_TCP } else { 0 },
        scoped: if abi >= 6 { SCOPES } else { 0 },
    };
    // Older kernels accept only the beginning.
    let size = match abi {
        0..=3 => 8,
        4..=5 => 16,
        _ => size_of::<RulesetAttributes>(),
    };
    // SAFETY: the attributes outlive the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size, 0u32)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, owned only here.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Grants rights at and below an open path. Does not allocate.
pub(crate) fn allow(
    ruleset: RawFd,
    path: RawFd,
    directory: bool,
    rights: Rights,
    (what, abi): (Handled, u32),
) -> io::Result<()> {
    let wanted = match rights {
        Rights::List => READ_DIR,
        Rights::Read => EXECUTE | READ_FILE | READ_DIR,
        Rights::Write => WRITE_FILE | TRUNCATE,
        Rights::All => u64::MAX,
    };
    let of_files = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE;
    let allowed = wanted & handled(what, abi) & if directory { u64::MAX } else { of_files };
    if allowed == 0 {
        return Ok(());
    }
    let rule = PathBeneath { allowed, parent: path };
    // SAFETY: the rule outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset, 1u32, &raw const rule, 0u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Allows connections to a port, at any address.
pub(crate) fn allow_port(ruleset: RawFd, port: u16) -> io::Result<()> {
    let rule = NetPort { allowed: CONNECT_TCP, port: port.into() };
    // SAFETY: the rule outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset, 2u32, &raw const rule, 0u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Confines the calling thread. Needs `no_new_privs`.
pub(crate) fn restrict(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain numbers.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
