//! Storage of one stream: the spool file, its hashes, and the whole stream in memory while it is
//! small enough for the database.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use crate::base::block_hashes::{OutputHash, OutputHasher};
use crate::read::output::INLINE_LIMIT;

/// During the run, the kernel is asked to write the file to disk in pieces of this size, so that
/// the final sync is short. Smaller pieces cost requests, larger ones leave the disk idle.
const WRITE_BEHIND: u64 = 8 << 20;

#[derive(Debug, Default)]
pub(super) struct Spool {
    pub(super) file: Option<File>,
    hasher: Option<OutputHasher>,
    pub(super) bytes: u64,
    pub(super) lost: u64,
    /// The whole stream while it is small enough for the database.
    pub(super) small: Vec<u8>,
    /// Whether writing the file failed; a small stream can still be kept in the database.
    pub(super) broken: bool,
    /// Bytes of the file that the kernel was asked to write.
    behind: u64,
}

impl Spool {
    /// Counts and hashes exactly the bytes that were written, also after a partial write.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(file) = &mut self.file else { break };
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.note(&rest[..written]);
                    rest = &rest[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.write_behind();
        Ok(())
    }

    /// Starts writing whole pieces to disk. The last page is never included: appending to it would
    /// have to wait for the disk.
    fn write_behind(&mut self) {
        let whole = self.bytes / WRITE_BEHIND * WRITE_BEHIND;
        if whole == self.behind {
            return;
        }
        if let Some(file) = &self.file
            && let (Ok(from), Ok(length)) =
                (i64::try_from(self.behind), i64::try_from(whole - self.behind))
        {
            let begin = libc::SYNC_FILE_RANGE_WRITE;
            // SAFETY: passes plain numbers. The final sync reports errors, and writes everything on
            // file systems without this call.
            unsafe { libc::sync_file_range(file.as_raw_fd(), from, length, begin) };
        }
        self.behind = whole;
    }

    /// Keeps bytes that the file rejected, if the whole stream fits into the database.
    pub(super) fn keep_in_memory(&mut self, rest: &[u8]) {
        // A stream ends at its first lost byte: a gap would go unnoticed.
        let room = if self.lost == 0 { INLINE_LIMIT.saturating_sub(self.bytes) } else { 0 };
        let kept = usize::try_from(room).unwrap_or(usize::MAX).min(rest.len());
        self.note(&rest[..kept]);
        self.lost += (rest.len() - kept) as u64;
    }

    fn note(&mut self, stored: &[u8]) {
        if stored.is_empty() {
            return;
        }
        self.bytes += stored.len() as u64;
        self.hasher.get_or_insert_default().update(stored);
        if self.bytes <= INLINE_LIMIT {
            self.small.extend_from_slice(stored);
        } else {
            self.small = Vec::new();
        }
    }

    /// The hash of what was stored; `None` if that is nothing.
    pub(super) fn hash(&self) -> Option<OutputHash> {
        self.hasher.as_ref().map(OutputHasher::finish)
    }

    /// Gives up output that only the database could have held, because the disk is full.
    pub(super) fn give_up_small(&mut self) {
        if self.bytes <= INLINE_LIMIT {
            self.lost += self.bytes;
            (self.bytes, self.hasher, self.small) = (0, None, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Early writes are whole pieces before the last page, whatever the sizes of writes.
    #[test]
    fn early_writes_of_a_spool_are_whole_pieces() {
        let mut spool = Spool { file: Some(tempfile::tempfile().unwrap()), ..Spool::default() };
        let line = b"a line of a log\n".repeat(70_001);
        let mut all = blake3::Hasher::new();
        for _ in 0..19 {
            spool.write(&line).unwrap();
            all.update(&line);
            assert!(spool.behind <= spool.bytes && spool.bytes - spool.behind < WRITE_BEHIND);
            assert_eq!(spool.behind % WRITE_BEHIND, 0);
        }
        assert_eq!(spool.behind, 2 * WRITE_BEHIND);
        let stored = spool.hash().unwrap();
        assert_eq!((stored.bytes, stored.hash), (19 * line.len() as u64, all.finalize()));
    }
}
