//! Lists a directory without following links.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, Stat, openat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::TreeError;

pub(super) const NANOS: i64 = 1_000_000_000;

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EntryKind {
    Directory,
    File,
    Symlink,
    Fifo,
    /// A socket or a device: neither copied nor restored.
    Other,
}

/// The properties that show whether an entry was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EntryStat {
    pub(super) kind: EntryKind,
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    /// In nanoseconds since 1970.
    pub(super) mtime: i64,
    pub(super) ctime: i64,
    pub(super) inode: u64,
    pub(super) links: u64,
}

impl EntryStat {
    #[expect(clippy::unnecessary_cast, reason = "the widths of stat differ between machines")]
    fn of(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode as RawMode) {
            FileType::Directory => EntryKind::Directory,
            FileType::RegularFile => EntryKind::File,
            FileType::Symlink => EntryKind::Symlink,
            FileType::Fifo => EntryKind::Fifo,
            _ => EntryKind::Other,
        };
        let time = |seconds: i64, nanos: i64| seconds.saturating_mul(NANOS).saturating_add(nanos);
        Self {
            kind,
            mode: stat.st_mode as u32 & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size as u64,
            mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            ctime: time(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
            inode: stat.st_ino as u64,
            links: stat.st_nlink as u64,
        }
    }

    /// Whether it is untouched: every change of a file updates its `ctime`.
    pub(super) fn untouched(&self, now: &Self) -> bool {
        if self.kind == EntryKind::Directory {
            // Its entries are checked individually, and changing them changes its own times.
            return self.same_shape(now) && self.mtime == now.mtime;
        }
        self == now
    }

    /// Type, permissions and owner.
    pub(super) fn same_shape(&self, now: &Self) -> bool {
        let shape = |stat: &Self| (stat.kind, stat.mode, stat.uid, stat.gid);
        shape(self) == shape(now)
    }
}

/// The entry at a path; `None` if missing.
pub(super) fn stat(path: &Path) -> Result<Option<EntryStat>, TreeError> {
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(EntryStat::of(&stat))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(TreeError::at(path)(error)),
    }
}

/// An open directory during a walk.
pub(super) struct Directory {
    fd: OwnedFd,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self, TreeError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(TreeError::at(path))?;
        Ok(Self { fd })
    }

    /// Its entries by name, without those that disappear meanwhile.
    pub(super) fn entries(&self, path: &Path) -> Result<Vec<(OsString, EntryStat)>, TreeError> {
        let fd: BorrowedFd<'_> = self.fd.as_fd();
        let mut entries = Vec::new();
        for entry in Dir::read_from(fd).map_err(TreeError::at(path))? {
            let entry = entry.map_err(TreeError::at(path))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            match statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => entries.push((name.to_owned(), EntryStat::of(&stat))),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(TreeError::at(&path.join(name))(error)),
            }
        }
        Ok(entries)
    }
}
