//! Examines one file: by `stat` if that suffices, otherwise by its content.
//!
//! The recorded stat is the one taken *before* the content was read. A later change gives the file
//! a later ctime, so that a hash without the change is never reused; an earlier change is in the
//! hash.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::line_records::{self, RecordPosition};
use super::line_store::LineStoreWriter;
use super::snapshot::{FileEntry, Name, RELIABLE, UNKNOWN, UNREADABLE};
use super::syscalls::{self, Stat};

/// Read size for files too large for line counts.
const STREAM: usize = 256 << 10;
/// How often a name may change its type during reading before it counts as unreadable.
const TRIES: usize = 4;

/// How far a file's timestamp may lag behind the clock, in nanoseconds.
pub(super) const TICK: i64 = 10_000_000;

/// Constants of one scan.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanTime {
    /// Clock at the start of the scan.
    pub(super) start: i64,
    /// Ignore stats and hash everything.
    pub(super) exact: bool,
}

impl ScanTime {
    /// Kernels before 6.13 update file times once per tick, so a change right after the stat may
    /// leave the same times. Only files whose last change is well before the scan are reliable;
    /// file systems with coarse or remote clocks get a wider margin.
    pub(super) fn reliable(&self, stat: &Stat, local: bool) -> bool {
        let margin = if local { TICK } else { 2_000_000_000 };
        stat.ctime < self.start.saturating_sub(margin)
    }
}

/// What is known about a name before it is examined.
#[derive(Clone, Copy)]
pub(super) enum KnownBefore<'e> {
    /// The entry of the last snapshot.
    Known(&'e FileEntry),
    /// The directory lists it as a regular file.
    File,
    Other,
}

/// One worker's buffers for reading files.
pub(super) struct FileExaminer<'s> {
    pub(super) scan_time: ScanTime,
    buffer: Vec<u8>,
    lines: LineStoreWriter<'s>,
}

impl<'s> FileExaminer<'s> {
    pub(super) fn new(scan_time: ScanTime, lines: LineStoreWriter<'s>) -> Self {
        // Only used pages take memory. One byte beyond the limit distinguishes a file at the limit
        // from a larger one; the rest makes reads page-aligned, which is faster.
        Self { scan_time, buffer: vec![0; line_records::MAX_BYTES + 1 + PAGE], lines }
    }

    pub(super) fn finish(self) {
        self.lines.finish();
    }

    /// `None` if there is no file or link with that name (any more).
    pub(super) fn examine(
        &mut self,
        dir: BorrowedFd<'_>,
        name: Name,
        c_name: &CStr,
        listed: KnownBefore<'_>,
        local: bool,
    ) -> Option<FileEntry> {
        let unknown = FileEntry::new(name, Stat::default(), UNKNOWN | UNREADABLE);
        let known = match listed {
            KnownBefore::Known(known) => Some(known),
            KnownBefore::File | KnownBefore::Other => None,
        };
        for attempt in 0..TRIES {
            // A new file must be opened anyway, which provides its stat.
            let stat = if attempt > 0 || !matches!(listed, KnownBefore::File) {
                match syscalls::stat_at(dir, c_name) {
                    Ok(stat) => Some(stat),
                    Err(Errno::NOENT | Errno::NOTDIR) => return None,
                    Err(_) => return Some(unknown),
                }
            } else {
                None
            };
            if let (Some(known), Some(stat)) = (known, &stat)
                && known.stat == *stat
                && known.has(RELIABLE)
                && !known.has(UNREADABLE)
                && !self.scan_time.exact
            {
                // Its old name is stored in the old directory.
                return Some(known.named(name));
            }
            match stat.map(|stat| stat.kind()) {
                None | Some(FileType::RegularFile) => match self.read(dir, c_name, known) {
                    Ok(Some((stat, hash, lines))) => {
                        let reliable = self.scan_time.reliable(&stat, local);
                        let mut entry =
                            FileEntry::new(name, stat, if reliable { RELIABLE } else { 0 });
                        (entry.hash, entry.lines) = (hash, lines);
                        return Some(entry);
                    }
                    Ok(None) => {}
                    Err(Errno::NOENT) => return None,
                    // It has become a link, a socket or a directory: examine it again.
                    Err(Errno::LOOP | Errno::NXIO) => {}
                    Err(_) => match stat.map_or_else(|| syscalls::stat_at(dir, c_name), Ok) {
                        Ok(stat) if stat.kind() == FileType::RegularFile => {
                            return Some(FileEntry::new(name, stat, UNREADABLE));
                        }
                        Ok(_) => {}
                        Err(Errno::NOENT | Errno::NOTDIR) => return None,
                        Err(_) => return Some(unknown),
                    },
                },
                Some(FileType::Symlink) => match rustix::fs::readlinkat(dir, c_name, Vec::new()) {
                    Ok(target) => {
                        let stat = stat.unwrap_or_default();
                        let reliable = self.scan_time.reliable(&stat, local);
                        let mut entry =
                            FileEntry::new(name, stat, if reliable { RELIABLE } else { 0 });
                        entry.hash = *blake3::hash(target.as_bytes()).as_bytes();
                        return Some(entry);
                    }
                    Err(Errno::NOENT) => return None,
                    Err(Errno::INVAL) => {}
                    Err(_) => {
                        return Some(FileEntry::new(name, stat.unwrap_or_default(), UNREADABLE));
                    }
                },
                // Devices, FIFOs and sockets have no content, and opening them may have effects.
                Some(_) => return None,
            }
        }
        Some(unknown)
    }

    /// `None` if it is not a regular file.
    fn read(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        known: Option<&FileEntry>,
    ) -> Result<Option<(Stat, [u8; 32], RecordPosition)>, Errno> {
        let fd = syscalls::open_file(dir, name)?;
        let stat = syscalls::stat_of(fd.as_fd())?;
        if stat.kind() != FileType::RegularFile {
            return Ok(None);
        }
        let from = self.buffer.as_ptr().align_offset(PAGE).min(PAGE);
        let buffer = &mut self.buffer[from..=from + line_records::MAX_BYTES];
        let mut len = 0;
        loop {
            let read = read_once(fd.as_fd(), &mut buffer[len..])?;
            len += read;
            // A second read only to see the end would cost as much as the first.
            if read == 0 || (len as u64 == stat.size && len < buffer.len()) {
                let hash = *blake3::hash(&buffer[..len]).as_bytes();
                let kept =
                    known.filter(|known| known.hash == hash && known.lines != RecordPosition::NONE);
                let position = match kept {
                    Some(known) => known.lines,
                    None => self.lines.push(&buffer[..len], &hash),
                };
                return Ok(Some((stat, hash, position)));
            }
            if len == buffer.len() {
                break;
            }
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(buffer);
        loop {
            let read = read_once(fd.as_fd(), &mut buffer[..STREAM])?;
            if read == 0 {
                return Ok(Some((stat, *hasher.finalize().as_bytes(), RecordPosition::NONE)));
            }
            hasher.update(&buffer[..read]);
        }
    }
}

const PAGE: usize = 4096;

fn read_once(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut *buffer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::line_store::{LineStore, Segments};

    /// A known entry with the right stat and a wrong hash reveals whether the file was read.
    #[test]
    fn only_a_reliable_stat_is_believed() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("a"), "content").unwrap();
        let dir = syscalls::open_dir(rustix::fs::CWD, home.path().as_os_str().as_encoded_bytes());
        let dir = dir.unwrap();
        let stat = syscalls::stat_at(dir.as_fd(), c"a").unwrap();
        let sink = LineStore::new(Segments::seeded(0), None);
        let read = |known: FileEntry, exact: bool, local: bool| {
            let scan_time = ScanTime { start: stat.ctime + TICK + 1, exact };
            let mut examiner = FileExaminer::new(scan_time, LineStoreWriter::new(&sink));
            let name = Name { at: 7, len: 1 };
            let listed = KnownBefore::Known(&known);
            let entry = examiner.examine(dir.as_fd(), name, c"a", listed, local).unwrap();
            assert_eq!(entry.name(), name);
            (entry.hash != [0; 32], entry.has(RELIABLE))
        };
        let at = Name { at: 0, len: 1 };
        let known = |stat, flags| FileEntry::new(at, stat, flags);
        assert_eq!(read(known(stat, RELIABLE), false, true), (false, true));
        assert_eq!(read(known(stat, RELIABLE), true, true), (true, true), "exact");
        assert_eq!(read(known(stat, 0), false, true), (true, true), "racy");
        assert_eq!(
            read(known(stat, 0), false, false),
            (true, false),
            "racy for longer on other file systems"
        );
        assert_eq!(read(known(stat, RELIABLE | UNREADABLE), false, true), (true, true));
        for other in [
            Stat { dev: !stat.dev, ..stat },
            Stat { mode: stat.mode ^ 1, ..stat },
            Stat { ino: !stat.ino, ..stat },
            Stat { size: !stat.size, ..stat },
            Stat { mtime: !stat.mtime, ..stat },
            Stat { ctime: !stat.ctime, ..stat },
        ] {
            assert_eq!(read(known(other, RELIABLE), false, true), (true, true), "{other:?}");
        }
    }

    #[test]
    fn files_changed_just_before_the_scan_or_in_the_future_are_unreliable() {
        let scan_time = ScanTime { start: 1_000_000_000_000, exact: false };
        let reliable = |ctime| scan_time.reliable(&Stat { ctime, ..Stat::default() }, true);
        assert!(reliable(scan_time.start - TICK - 1));
        assert!(!reliable(scan_time.start - TICK));
        assert!(!reliable(scan_time.start + TICK));
        assert!(!reliable(i64::MAX));
    }
}
