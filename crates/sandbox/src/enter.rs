//! Executes a plan in the process to be confined.
//!
//! This code runs in a fork of a possibly threaded program: it must not allocate, lock or panic,
//! and may use only system calls and memory that was set aside before. Mounts are made on
//! descriptors, and no path is resolved through a symbolic link.

use std::ffi::{CStr, CString, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use retake_types::SandboxPart;

use crate::landlock::{self, Handled, Rights};
use crate::step::Step;

const OPEN_TREE_CLONE: u32 = 1;
const AT_RECURSIVE: u32 = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;
const MOVE_MOUNT_T_EMPTY_PATH: u32 = 0x40;
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NODEV: u64 = 4;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
/// The covers of hidden paths, in the memory file system at `MEMORY`.
const MASK_FILE: &CStr = c"/proc/f";
const MASK_DIRECTORY: &CStr = c"/proc/d";

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// The step that failed.
#[derive(Clone, Copy, Debug)]
pub struct SetupFailure {
    pub(crate) at: FailedStep,
    pub(crate) errno: i32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FailedStep {
    Part(SandboxPart),
    /// The index of the step in the plan.
    Planned(usize),
}

pub(crate) type Setup = Result<(), SetupFailure>;

pub(crate) fn part(part: SandboxPart) -> impl Fn(io::Error) -> SetupFailure {
    move |error| SetupFailure { at: FailedStep::Part(part), errno: errno_of(&error) }
}

pub(crate) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn check(result: libc::c_long) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as c_int) }
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, owned only here.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Closes every descriptor except stdin, stdout, stderr and `kept`, which is sorted.
pub(crate) fn close_all_but(kept: &[RawFd]) -> io::Result<()> {
    let mut from = 3;
    for &fd in kept {
        if fd > from {
            close_range(from as u32, fd as u32 - 1)?;
        }
        from = from.max(fd + 1);
    }
    close_range(from as u32, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: closes descriptors that are no longer used.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) }).map(drop)
}

/// Maps the user's id to itself in the namespace.
pub(crate) fn map_ids(uid: &[u8], gid: &[u8]) -> io::Result<()> {
    write_file(c"/proc/self/setgroups", b"deny")?;
    write_file(c"/proc/self/uid_map", uid)?;
    write_file(c"/proc/self/gid_map", gid)
}

fn write_file(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: a C string, and a buffer of the stated length.
    unsafe {
        let fd = owned(libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC).into())?;
        check(libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) as _).map(drop)
    }
}

/// Opens a namespace of the calling process, by its path below `/proc`.
pub(crate) fn open_namespace(proc: BorrowedFd<'_>, path: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a C string, and an open descriptor.
    owned(unsafe { libc::openat(proc.as_raw_fd(), path.as_ptr(), flags) }.into())
}

/// Moves this process to a new network.
pub(crate) fn new_network() -> io::Result<()> {
    // SAFETY: plain number.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into()).map(drop)
}

/// Joins a namespace. A process that gains rights by joining becomes unreadable for others, and
/// could not write its own id maps either.
pub(crate) fn join_namespace(namespace: &OwnedFd, kind: c_int) -> io::Result<()> {
    // SAFETY: plain system calls on this process.
    unsafe {
        check(libc::setns(namespace.as_raw_fd(), kind).into())?;
        check(libc::prctl(libc::PR_SET_DUMPABLE, 1).into()).map(drop)
    }
}

/// Executes the steps. `slots` has room for what they save.
pub(crate) fn carry_out(
    steps: &[Step<'_>],
    slots: &mut [Option<OwnedFd>],
    abi: u32,
) -> Result<Option<OwnedFd>, SetupFailure> {
    // Created files get exactly the mode of the plan. If a step fails, the process ends.
    // SAFETY: plain numbers, no failure.
    let mask = unsafe { libc::umask(0) };
    let ruleset = carry_out_unmasked(steps, slots, abi)?;
    // SAFETY: as above.
    unsafe { libc::umask(mask) };
    Ok(ruleset)
}

fn carry_out_unmasked(
    steps: &[Step<'_>],
    slots: &mut [Option<OwnedFd>],
    abi: u32,
) -> Result<Option<OwnedFd>, SetupFailure> {
    // Mounts here must not propagate.
    let private = libc::MS_REC | libc::MS_PRIVATE;
    mount(None, c"/", None, private).map_err(part(SandboxPart::Mounts))?;
    let ruleset = match abi {
        0 => None,
        abi => Some(
            landlock::ruleset(Handled::Writing, false, abi).map_err(part(SandboxPart::Landlock))?,
        ),
    };
    for (index, step) in steps.iter().enumerate() {
        one(step, slots, ruleset.as_ref(), abi).map_err(|error| SetupFailure {
            at: FailedStep::Planned(index),
            errno: errno_of(&error),
        })?;
    }
    Ok(ruleset)
}

fn one(
    step: &Step<'_>,
    slots: &mut [Option<OwnedFd>],
    ruleset: Option<&OwnedFd>,
    abi: u32,
) -> io::Result<()> {
    let saved = |slots: &[Option<OwnedFd>], slot: usize| {
        let fd = slots.get(slot).and_then(Option::as_ref);
        fd.map(AsRawFd::as_raw_fd).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    };
    let mut save = |slot: usize, held: OwnedFd| {
        if let Some(place) = slots.get_mut(slot) {
            *place = Some(held);
        }
        Ok(())
    };
    match step {
        Step::Save { path, slot, read_only } => {
            let tree = clone_tree(path)?;
            if *read_only {
                make_read_only(tree.as_raw_fd(), c"", AT_RECURSIVE)?;
            }
            save(*slot, tree)
        }
        Step::SaveDevice { path, slot } => save(*slot, clone_here(libc::AT_FDCWD, path)?),
        Step::Hold { path, slot } => save(*slot, open(path)?),
        Step::Freeze => {
            // Root owns device nodes, anywhere.
            let set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV;
            set_attributes(libc::AT_FDCWD, c"/", AT_RECURSIVE, (set, 0))
        }
        Step::MakeMemory => make_memory(),
        Step::MakeArea { place, mode, slot } => save(*slot, make_area(place, *mode)?),
        Step::SealMemory => make_read_only(libc::AT_FDCWD, c"/proc", 0),
        Step::Directory { path, mode } => make_directory(path, *mode),
        Step::File(path) => make_file(path, 0o444),
        Step::Link { target, path } => {
            // SAFETY: both are C strings.
            check(unsafe { libc::symlink(target.as_ptr(), path.as_ptr()).into() }).map(drop)
        }
        Step::SaveLayer { lower, upper, work, slot } => save(*slot, layer(lower, upper, work)?),
        Step::Pin(path) => attach(clone_tree(path)?.as_raw_fd(), path),
        Step::Attach { path, slot } => attach(saved(slots, *slot)?, path),
        Step::AttachMade { path, slot } => attach_here(saved(slots, *slot)?, libc::AT_FDCWD, path),
        Step::Mask { path, directory } => {
            let mask = if *directory { MASK_DIRECTORY } else { MASK_FILE };
            match attach(clone_here(libc::AT_FDCWD, mask)?.as_raw_fd(), path) {
                // A socket that is gone by now needs no cover.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                other => other,
            }
        }
        Step::Terminals(path) => mount_data(
            c"devpts",
            path,
            libc::MS_NOSUID | libc::MS_NOEXEC,
            c"newinstance,ptmxmode=0666,mode=620",
        ),
        Step::Seal { slot } => make_read_only(saved(slots, *slot)?, c"", 0),
        Step::Proc { read_only } => make_proc(read_only),
        Step::Rule { path, directory, rights } => match ruleset {
            Some(ruleset) => {
                let place = open(path)?;
                add_rule(ruleset, place.as_raw_fd(), *directory, *rights, abi)
            }
            None => Ok(()),
        },
        Step::SavedRule { slot, directory, rights } => match ruleset {
            Some(ruleset) => add_rule(ruleset, saved(slots, *slot)?, *directory, *rights, abi),
            None => Ok(()),
        },
    }
}

/// Mounts `/proc` over the memory file system, which stays below it: unmounting it would wait for
/// all processors. All read-only entries become read-only at once.
fn make_proc(read_only: &[&CStr]) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount(Some(c"proc"), c"/proc", Some(c"proc"), flags)?;
    let proc = open(c"/proc")?;
    let mut covered = false;
    for path in read_only {
        // In one call, since only the kernel has created files here.
        match mount(Some(path), path, None, libc::MS_BIND) {
            // Not every name exists in every namespace.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
            Ok(()) => covered = true,
        }
    }
    if covered {
        make_read_only(proc.as_raw_fd(), c"", AT_RECURSIVE)?;
        // Except for the files about processes.
        make_writable(proc.as_raw_fd())?;
    }
    Ok(())
}

fn add_rule(
    ruleset: &OwnedFd,
    path: RawFd,
    directory: bool,
    rights: Rights,
    abi: u32,
) -> io::Result<()> {
    landlock::allow(ruleset.as_raw_fd(), path, directory, rights, (Handled::Writing, abi))
}

/// Opens a path without following any link in it. A final link is opened itself.
pub(crate) fn open(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: zero is a valid `open_how`.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: a C string, and a structure of the stated length.
    owned(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    })
}

/// Whether a path exists inside another root, without following links.
pub(crate) fn exists_below(root: BorrowedFd<'_>, path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: zero is a valid `open_how`.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS;
    let size = size_of::<libc::open_how>();
    // SAFETY: a C string, and a structure of the stated length.
    let opened = owned(unsafe {
        libc::syscall(libc::SYS_openat2, root.as_raw_fd(), path.as_ptr(), &raw const how, size)
    });
    opened.is_ok()
}

/// A copy of the mounts at and below a path.
fn clone_tree(path: &CStr) -> io::Result<OwnedFd> {
    let place = open(path)?;
    open_tree(place.as_raw_fd(), c"", AT_RECURSIVE | libc::AT_EMPTY_PATH as u32)
}

/// A copy of the mount at a path that only root can have changed, without the mounts below it.
fn clone_here(directory: RawFd, path: &CStr) -> io::Result<OwnedFd> {
    open_tree(directory, path, libc::AT_SYMLINK_NOFOLLOW as u32)
}

fn open_tree(directory: RawFd, path: &CStr, flags: u32) -> io::Result<OwnedFd> {
    let flags = flags | OPEN_TREE_CLONE | libc::O_CLOEXEC as u32;
    // SAFETY: a C string.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, directory, path.as_ptr(), flags) })
}

fn make_read_only(directory: RawFd, path: &CStr, flags: u32) -> io::Result<()> {
    set_attributes(directory, path, flags, (MOUNT_ATTR_RDONLY, 0))
}

/// Makes one mount that was created here writable again.
fn make_writable(mount: RawFd) -> io::Result<()> {
    set_attributes(mount, c"", 0, (0, MOUNT_ATTR_RDONLY))
}

/// An empty path selects the descriptor.
fn set_attributes(
    directory: RawFd,
    path: &CStr,
    flags: u32,
    (set, clear): (u64, u64),
) -> io::Result<()> {
    let attributes = MountAttributes { set, clear, propagation: 0, userns: 0 };
    // SAFETY: a C string; the attributes outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory,
            path.as_ptr(),
            flags | libc::AT_EMPTY_PATH as u32,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    })
    .map(drop)
}

fn attach(tree: RawFd, path: &CStr) -> io::Result<()> {
    let place = open(path)?;
    move_mount(tree, place.as_raw_fd(), c"", MOVE_MOUNT_T_EMPTY_PATH)
}

/// At a path whose components, except the root directory, were all created here.
fn attach_here(tree: RawFd, directory: RawFd, path: &CStr) -> io::Result<()> {
    move_mount(tree, directory, path, 0)
}

fn move_mount(tree: RawFd, directory: RawFd, path: &CStr, flags: u32) -> io::Result<()> {
    let flags = flags | MOVE_MOUNT_F_EMPTY_PATH;
    // SAFETY: C strings; the empty path selects the tree's descriptor.
    check(unsafe {
        libc::syscall(libc::SYS_move_mount, tree, c"".as_ptr(), directory, path.as_ptr(), flags)
    })
    .map(drop)
}

/// An empty file system in memory, not mounted yet.
fn temporary(mode: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: C strings, and an open descriptor.
    unsafe {
        let context = owned(libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 1u32))?;
        let set = |command: u32, key: *const libc::c_char, value: *const libc::c_char| {
            let fd = context.as_raw_fd();
            check(libc::syscall(libc::SYS_fsconfig, fd, command, key, value, 0))
        };
        set(FSCONFIG_SET_STRING, c"mode".as_ptr(), mode.as_ptr())?;
        set(FSCONFIG_CMD_CREATE, std::ptr::null(), std::ptr::null())?;
        // FSMOUNT_CLOEXEC; no set-user-ID programs and no devices.
        owned(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1u32, 2u32 | 4))
    }
}

/// A writable layer over a directory, not mounted yet.
fn layer(lower: &CStr, upper: &CStr, work: &CStr) -> io::Result<OwnedFd> {
    const FSCONFIG_SET_FLAG: u32 = 0;
    // SAFETY: C strings, and an open descriptor.
    unsafe {
        let context = owned(libc::syscall(libc::SYS_fsopen, c"overlay".as_ptr(), 1u32))?;
        let set = |command: u32, key: *const libc::c_char, value: *const libc::c_char| {
            let fd = context.as_raw_fd();
            check(libc::syscall(libc::SYS_fsconfig, fd, command, key, value, 0))
        };
        set(FSCONFIG_SET_STRING, c"lowerdir".as_ptr(), lower.as_ptr())?;
        set(FSCONFIG_SET_STRING, c"upperdir".as_ptr(), upper.as_ptr())?;
        set(FSCONFIG_SET_STRING, c"workdir".as_ptr(), work.as_ptr())?;
        // Avoids attributes that only the initial user namespace may use.
        set(FSCONFIG_SET_FLAG, c"userxattr".as_ptr(), std::ptr::null())?;
        set(FSCONFIG_CMD_CREATE, std::ptr::null(), std::ptr::null())?;
        owned(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1u32, 2u32 | 4))
    }
}

fn make_memory() -> io::Result<()> {
    attach_here(temporary(c"0755")?.as_raw_fd(), libc::AT_FDCWD, c"/proc")?;
    make_file(MASK_FILE, 0)?;
    make_directory(MASK_DIRECTORY, 0)
}

/// An empty directory, not mounted at its place yet.
fn make_area(place: &CStr, mode: libc::mode_t) -> io::Result<OwnedFd> {
    make_directory(place, mode)?;
    clone_here(libc::AT_FDCWD, place)
}

fn make_directory(path: &CStr, mode: libc::mode_t) -> io::Result<()> {
    // SAFETY: a C string.
    match check(unsafe { libc::mkdir(path.as_ptr(), mode).into() }) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other.map(drop),
    }
}

fn make_file(path: &CStr, mode: libc::mode_t) -> io::Result<()> {
    // SAFETY: a C string.
    check(unsafe { libc::mknod(path.as_ptr(), libc::S_IFREG | mode, 0).into() }).map(drop)
}

fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
) -> io::Result<()> {
    let text = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: C strings or null.
    check(unsafe {
        libc::mount(text(source), target.as_ptr(), text(kind), flags, std::ptr::null()).into()
    })
    .map(drop)
}

fn mount_data(kind: &CStr, target: &CStr, flags: libc::c_ulong, data: &CStr) -> io::Result<()> {
    // SAFETY: C strings.
    check(unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            data.as_ptr().cast::<c_void>(),
        )
        .into()
    })
    .map(drop)
}

pub(crate) fn raise_loopback() -> io::Result<()> {
    // SAFETY: zero is a valid `ifreq`; its name ends with a zero byte.
    unsafe {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        let socket = owned(libc::socket(libc::AF_INET, kind, 0).into())?;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let fd = socket.as_raw_fd();
        check(libc::ioctl(fd, libc::SIOCSIFFLAGS as _, &raw const request).into()).map(drop)
    }
}

/// Drops all capabilities, and prevents regaining any by exec.
pub(crate) fn drop_privileges() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const SETPCAP: u32 = 8;
    let header = Header { version: 0x2008_0522, pid: 0 };
    let mut sets = [Sets { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: the structures have the layout of the kernel's third version.
    unsafe {
        check(libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()))?;
        // Without this capability there is nothing to drop, and with `no_new_privs` nothing can be
        // regained.
        if sets[0].effective & (1 << SETPCAP) != 0 {
            let mut capability = 0;
            while libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0 {
                capability += 1;
            }
            let bits = libc::SECBIT_NOROOT
                | libc::SECBIT_NOROOT_LOCKED
                | libc::SECBIT_NO_SETUID_FIXUP
                | libc::SECBIT_NO_SETUID_FIXUP_LOCKED
                | libc::SECBIT_KEEP_CAPS_LOCKED
                | libc::SECBIT_NO_CAP_AMBIENT_RAISE
                | libc::SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
            check(libc::prctl(libc::PR_SET_SECUREBITS, bits, 0, 0, 0).into())?;
        }
        check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0).into())?;
        sets = [Sets { effective: 0, permitted: 0, inheritable: 0 }; 2];
        check(libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()))?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into()).map(drop)
    }
}

pub(crate) fn install_filter(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as libc::c_ushort,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the program outlives the call.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0u32, &raw const program)
    })
    .map(drop)
}

pub(crate) fn change_directory(path: &CStr) -> io::Result<()> {
    // SAFETY: a C string.
    check(unsafe { libc::chdir(path.as_ptr()).into() }).map(drop)
}

/// Prevents processes inside from tracing this process or reading its memory.
pub(crate) fn forbid_tracing() -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into() }).map(drop)
}
