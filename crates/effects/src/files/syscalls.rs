//! The system calls of the tracker. Nothing here follows a symbolic link, or opens anything but
//! directories and regular files.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Flags for [`std::fs::OpenOptions`].
pub(super) const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();
pub(super) const NON_BLOCKING: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// What distinguishes two states of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stat {
    pub(super) dev: u32,
    pub(super) mode: u32,
    pub(super) ino: u64,
    pub(super) size: u64,
    pub(super) mtime: i64,
    pub(super) ctime: i64,
}

impl Stat {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

impl From<rustix::fs::Stat> for Stat {
    fn from(stat: rustix::fs::Stat) -> Self {
        Self {
            // The kernel's device numbers have 32 bits; the xor matters only if that changes.
            dev: (stat.st_dev ^ (stat.st_dev >> 32)) as u32,
            mode: stat.st_mode,
            ino: stat.st_ino,
            size: stat.st_size.cast_unsigned(),
            // Anyone can set an mtime beyond the year 2262; it is only compared for equality.
            mtime: stat
                .st_mtime
                .wrapping_mul(1_000_000_000)
                .wrapping_add(stat.st_mtime_nsec.cast_signed()),
            ctime: stat
                .st_ctime
                .saturating_mul(1_000_000_000)
                .saturating_add(stat.st_ctime_nsec.cast_signed()),
        }
    }
}

pub(super) fn stat_at(dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat, Errno> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(Stat::from)
}

pub(super) fn stat_of(fd: BorrowedFd<'_>) -> Result<Stat, Errno> {
    rustix::fs::fstat(fd).map(Stat::from)
}

/// Opens for reading. If the name has become a FIFO or a device since it was listed, this neither
/// blocks nor makes it a controlling terminal; the caller checks the type.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory below `root`, refusing symbolic links in every component: a directory replaced
/// by a link during the walk must not lead out of the tree.
pub(super) fn open_dir(root: BorrowedFd<'_>, relative: &[u8]) -> Result<OwnedFd, Errno> {
    if relative.is_empty() {
        return rustix::fs::openat(root, ".", DIRECTORY, Mode::empty());
    }
    match rustix::fs::openat2(root, relative, DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Kernels before 5.6, filters that reject openat2, and paths longer than PATH_MAX.
        Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => open_stepwise(root, relative),
        result => result,
    }
}

fn open_stepwise(root: BorrowedFd<'_>, relative: &[u8]) -> Result<OwnedFd, Errno> {
    let mut here: Option<OwnedFd> = None;
    for component in relative.split(|byte| *byte == b'/') {
        let parent = here.as_ref().map_or(root, |fd| fd.as_fd());
        here = Some(rustix::fs::openat(parent, component, DIRECTORY, Mode::empty())?);
    }
    here.ok_or(Errno::INVAL)
}

/// Whether a change of a directory's entries always shows in its times. True for known local file
/// systems; on others, directories are read every time.
pub(super) fn keeps_directory_times(fd: BorrowedFd<'_>) -> bool {
    const KNOWN: [u32; 6] = [
        0xef53,      // ext2, ext3, ext4
        0x5846_5342, // xfs
        0x9123_683e, // btrfs
        0x0102_1994, // tmpfs
        0xf2f5_2010, // f2fs
        0xca45_1a4e, // bcachefs
    ];
    // Magic numbers have 32 bits, in a field whose width and sign differ between machines.
    rustix::fs::fstatfs(fd).is_ok_and(|found| KNOWN.contains(&(found.f_type as u32)))
}

/// The clock for file timestamps, in nanoseconds.
pub(super) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

pub(super) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stepwise_refuses_links_and_opens_what_is_there() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", home.path().join("link")).unwrap();
        let root = open_dir(rustix::fs::CWD, home.path().as_os_str().as_encoded_bytes()).unwrap();
        for open in [open_dir, open_stepwise] {
            let found = stat_of(open(root.as_fd(), b"a/b").unwrap().as_fd()).unwrap();
            assert_eq!(found, stat_at(root.as_fd(), c"a/b").unwrap());
            assert!(open(root.as_fd(), b"link/b").is_err());
            assert!(open(root.as_fd(), b"link").is_err());
        }
        std::os::unix::fs::symlink("/etc/passwd", home.path().join("file")).unwrap();
        assert_eq!(open_file(root.as_fd(), c"file").unwrap_err(), Errno::LOOP);
    }
}
