//! Looks at one file: by `stat` where that is enough, by its content where not.
//!
//! The stat that is recorded is the one taken *before* the content was read. A change after it
//! gives the file a later ctime, so a hash that missed the change is never believed again; a change
//! before it is in the hash.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::line_records::{self, RecordPosition};
use super::line_store::LineStoreWriter;
use super::snapshot::{FileEntry, Name, RELIABLE, UNKNOWN, UNREADABLE};
use super::syscalls::{self, Stat};

/// What is read at once of a file too large for line counts.
const STREAM: usize = 256 << 10;
/// How often a name may turn into something else while it is read before it is called unreadable.
const TRIES: usize = 4;

/// How far behind the clock the time stamped on a file may be, in nanoseconds.
pub(super) const TICK: i64 = 10_000_000;

/// What is the same for all files of a scan.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanTime {
    /// Clock at the start of the scan.
    pub(super) start: i64,
    /// Believe no stat: hash everything.
    pub(super) exact: bool,
}

impl ScanTime {
    /// Kernels before 6.13 stamp files once per tick, so a change right after the stat may leave
    /// the same times behind. Only what was last changed well before the scan is believed; file
    /// systems whose clocks are coarse or someone else's get a wider margin.
    pub(super) fn reliable(&self, stat: &Stat, local: bool) -> bool {
        let margin = if local { TICK } else { 2_000_000_000 };
        stat.ctime < self.start.saturating_sub(margin)
    }
}

/// What is known of a name before it is looked at.
#[derive(Clone, Copy)]
pub(super) enum KnownBefore<'e> {
    /// From the last snapshot.
    Known(&'e FileEntry),
    /// The directory says it is a regular file.
    File,
    Other,
}

/// One worker's means of reading files.
pub(super) struct FileExaminer<'s> {
    pub(super) scan_time: ScanTime,
    buffer: Vec<u8>,
    lines: LineStoreWriter<'s>,
}

impl<'s> FileExaminer<'s> {
    pub(super) fn new(scan_time: ScanTime, lines: LineStoreWriter<'s>) -> Self {
        // Only the pages that are used take memory. One byte more than the limit tells a file at
        // the limit from a larger one; the rest lets reads begin on a page, which is faster.
        Self { scan_time, buffer: vec![0; line_records::MAX_BYTES + 1 + PAGE], lines }
    }

    pub(super) fn finish(self) {
        self.lines.finish();
    }

    /// `None` if there is no file or link of that name (any more).
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
            // A file that was never seen has to be opened anyway, and then tells its stat.
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
                // Its old name lies in the old directory.
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
                    // Has become a link, a socket or a directory: look again.
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
                // Devices, FIFOs and sockets are no content, and opening them may do things.
                Some(_) => return None,
            }
        }
        Some(unknown)
    }

    /// `None` if it is no regular file.
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
            // A second read only to be told of the end would cost as much as the first.
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

    /// A known state with the right stat and a wrong hash shows whether the file was read.
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
    fn what_changed_at_the_last_moment_or_in_the_future_is_not_reliable() {
        let scan_time = ScanTime { start: 1_000_000_000_000, exact: false };
        let reliable = |ctime| scan_time.reliable(&Stat { ctime, ..Stat::default() }, true);
        assert!(reliable(scan_time.start - TICK - 1));
        assert!(!reliable(scan_time.start - TICK));
        assert!(!reliable(scan_time.start + TICK));
        assert!(!reliable(i64::MAX));
    }
}
