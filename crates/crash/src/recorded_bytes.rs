//! The bytes of a recording: in memory as long as they are few, and after that in an unnamed file on
//! disk.
//!
//! The file is mapped, so that it is read like memory and the kernel can drop its pages when
//! memory is scarce. Nothing is ever written through the mapping: a full disk is then an error of a
//! call, and does not kill the process with a signal.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Digests of shorter ones are computed each time.
const LONG: usize = 64 << 10;

/// How much of a recording is kept in memory by default.
pub const MEMORY: u64 = 256 << 20;

/// The file is mapped in segments of this size, or of one longer piece.
const SEGMENT: usize = 64 << 20;
const PAGE: usize = 4096;

/// Some bytes, which copies and parts share.
#[derive(Clone)]
pub struct RecordedBytes {
    owner: Owner,
    start: usize,
    length: usize,
    /// Set for long ones, and shared by their copies.
    pages: Option<Arc<OnceLock<PageDigests>>>,
}

/// The digests of the whole pages of some bytes, at an offset in a file. States of a large write are
/// built by the thousand, and reading all its bytes for each of them would take most of the time.
struct PageDigests {
    offset: u64,
    digests: Box<[u128]>,
}

#[derive(Clone)]
enum Owner {
    Memory(Arc<[u8]>),
    File(Arc<Segment>),
}

impl RecordedBytes {
    /// A part of these bytes.
    ///
    /// # Panics
    ///
    /// If the range is out of bounds, as for a slice.
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.length,
            "{range:?} of {}",
            self.length
        );
        Self {
            owner: self.owner.clone(),
            start: self.start + range.start,
            length: range.len(),
            pages: None,
        }
    }

    fn new(owner: Owner, start: usize, length: usize) -> Self {
        let pages = (length >= LONG).then(Arc::default);
        Self { owner, start, length, pages }
    }

    /// The digests of the whole pages that these bytes fill if they begin at an offset, computed once,
    /// for the first requested offset. `None` for other offsets and for short bytes.
    pub(crate) fn page_digests(
        &self,
        offset: u64,
        count: impl FnOnce(&[u8]) -> Box<[u128]>,
    ) -> Option<&[u128]> {
        let pages = self.pages.as_ref()?.get_or_init(|| {
            let digests = count(self);
            self.release();
            PageDigests { offset, digests }
        });
        (pages.offset == offset).then_some(&pages.digests)
    }

    /// They are not needed for a while: bytes in the file need not stay in this process's memory.
    pub(crate) fn release(&self) {
        if let Owner::File(segment) = &self.owner {
            segment.release(self.start, self.start + self.length);
        }
    }

    /// Whether they occupy memory until their last owner is dropped.
    pub fn in_memory(&self) -> bool {
        matches!(self.owner, Owner::Memory(_))
    }
}

impl Deref for RecordedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all = match &self.owner {
            Owner::Memory(bytes) => bytes,
            Owner::File(segment) => segment.bytes(),
        };
        &all[self.start..self.start + self.length]
    }
}

impl From<&[u8]> for RecordedBytes {
    fn from(bytes: &[u8]) -> Self {
        Self::new(Owner::Memory(bytes.into()), 0, bytes.len())
    }
}

impl From<Vec<u8>> for RecordedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self::new(Owner::Memory(bytes.into()), 0, length)
    }
}

impl PartialEq for RecordedBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for RecordedBytes {}

impl fmt::Debug for RecordedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A part of the file, mapped read-only.
struct Segment {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is only read, by any thread, until the last owner is gone.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    fn new(file: &File, offset: u64, length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe {
            let (rights, flags) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), length, rights, flags, file.as_raw_fd(), offset as i64)
        };
        match NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(Self { start, length }),
            None => Err(io::Error::last_os_error()),
        }
    }

    /// Releases the pages of a range to the kernel, which has them in the file. Of small pieces in one
    /// page, only a piece that spans two pages does so.
    fn release(&self, from: usize, to: usize) {
        let (from, to) = (from / PAGE * PAGE, to.next_multiple_of(PAGE).min(self.length));
        if to.saturating_sub(from) > PAGE {
            // SAFETY: inside the mapping, which is shared: later reads return the same bytes. A
            // kernel that refuses keeps the pages.
            unsafe {
                let start = self.start.as_ptr().add(from);
                libc::madvise(start.cast(), to - from, libc::MADV_DONTNEED);
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, and the file has this length and is never cut: it has no name, and only the store
        // has a descriptor of it. Bytes are written once, before their range is handed out.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by this segment, and there are no references to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Keeps the bytes of one recording.
#[derive(Debug)]
pub struct ByteStore {
    memory_left: u64,
    directory: Option<PathBuf>,
    file: Option<ByteFile>,
}

#[derive(Debug)]
struct ByteFile {
    file: File,
    /// The offset of the next segment.
    end: u64,
    segment: Arc<Segment>,
    /// The offset of the segment, and how much of it is used.
    at: u64,
    used: usize,
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Default for ByteStore {
    fn default() -> Self {
        Self::new(MEMORY, None)
    }
}

impl ByteStore {
    /// The first `memory` bytes are kept in memory, the rest in a file in `directory`, by default in
    /// the directory for temporary files.
    pub fn new(memory: u64, directory: Option<PathBuf>) -> Self {
        Self { memory_left: memory, directory, file: None }
    }

    /// Keeps a copy of these bytes.
    pub fn keep(&mut self, bytes: &[u8]) -> io::Result<RecordedBytes> {
        match self.room_in_memory(bytes.len()) {
            true => Ok(bytes.into()),
            false => self.keep_in_file(bytes),
        }
    }

    /// The same for bytes that are owned already.
    pub fn keep_all(&mut self, bytes: Vec<u8>) -> io::Result<RecordedBytes> {
        match self.room_in_memory(bytes.len()) {
            true => Ok(bytes.into()),
            false => self.keep_in_file(&bytes),
        }
    }

    fn room_in_memory(&mut self, length: usize) -> bool {
        let left = self.memory_left.checked_sub(length as u64);
        self.memory_left = left.unwrap_or(self.memory_left);
        left.is_some()
    }

    fn keep_in_file(&mut self, bytes: &[u8]) -> io::Result<RecordedBytes> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(ByteFile::new(self.directory.as_deref(), bytes.len())?),
        };
        file.keep(bytes)
    }
}

impl ByteFile {
    fn new(directory: Option<&Path>, length: usize) -> io::Result<Self> {
        let file = match directory {
            Some(directory) => nameless(directory)?,
            None => nameless(&large_files())?,
        };
        let (segment, end) = grow(&file, 0, length)?;
        Ok(Self { file, end, segment, at: 0, used: 0 })
    }

    fn keep(&mut self, bytes: &[u8]) -> io::Result<RecordedBytes> {
        if bytes.len() > self.segment.length - self.used {
            self.at = self.end;
            (self.segment, self.end) = grow(&self.file, self.end, bytes.len())?;
            self.used = 0;
        }
        self.file.write_all_at(bytes, self.at + self.used as u64)?;
        let start = self.used;
        self.used += bytes.len();
        let owner = Owner::File(Arc::clone(&self.segment));
        Ok(RecordedBytes::new(owner, start, bytes.len()))
    }
}

/// Makes the file longer by a segment of at least this size, and returns its end.
fn grow(file: &File, from: u64, length: usize) -> io::Result<(Arc<Segment>, u64)> {
    let length = length.next_multiple_of(PAGE).max(SEGMENT);
    let end = from + length as u64;
    file.set_len(end)?;
    Ok((Arc::new(Segment::new(file, from, length)?), end))
}

/// A directory for a file that may be larger than memory: not on a file system in memory.
fn large_files() -> PathBuf {
    let temporary = std::env::temp_dir();
    match is_in_memory(&temporary) && !is_in_memory(Path::new("/var/tmp")) {
        true => PathBuf::from("/var/tmp"),
        false => temporary,
    }
}

/// Whether a directory is on a file system in memory, or does not exist.
pub fn is_in_memory(directory: &Path) -> bool {
    let Ok(directory) = File::open(directory) else { return true };
    let mut answer = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a descriptor we hold, and room for the answer.
    if unsafe { libc::fstatfs(directory.as_raw_fd(), answer.as_mut_ptr()) } < 0 {
        return true;
    }
    // SAFETY: the kernel filled it.
    let kind = unsafe { answer.assume_init_ref() }.f_type;
    #[expect(clippy::unnecessary_cast, reason = "the widths differ between C libraries")]
    [libc::TMPFS_MAGIC as i64, 0x8584_58f6].contains(&(kind as i64))
}

/// An unnamed file, which need not be removed.
fn nameless(directory: &Path) -> io::Result<File> {
    let open = |flags: i32, path: &Path| {
        OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(path)
    };
    let made = open(libc::O_TMPFILE, directory).or_else(|_| {
        // A file system without support for unnamed files.
        let path = directory.join(format!("first-{}.bytes", crate::stray_processes::new_run_id()));
        let file = open(libc::O_CREAT | libc::O_EXCL, &path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    });
    made.map_err(|error: io::Error| {
        let what = format!("a file for what the workload writes, in {}", directory.display());
        io::Error::new(error.kind(), format!("{what}: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_memory_limit_are_stored_in_a_file_and_read_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = ByteStore::new(10_000, Some(directory.path().to_owned()));
        let pieces: Vec<Vec<u8>> =
            (0..200_u32).map(|n| n.to_le_bytes().repeat(n as usize * 10)).collect();
        let kept: Vec<RecordedBytes> =
            pieces.iter().map(|piece| store.keep(piece).unwrap()).collect();
        let in_memory: usize = kept.iter().filter(|one| one.in_memory()).map(|one| one.len()).sum();
        assert!((5000..=10_000).contains(&in_memory), "{in_memory}");
        assert!(!kept[199].in_memory());
        // A piece that is longer than a segment gets its own segment.
        let long = vec![7; SEGMENT + 5];
        let kept_long = store.keep(&long).unwrap();
        assert!(kept_long[..] == long[..]);
        let after = store.keep(b"after").unwrap();
        drop(store);
        for (piece, kept) in pieces.iter().zip(&kept) {
            assert_eq!(**kept, piece[..]);
        }
        assert_eq!(*after, *b"after");
        assert_eq!(*kept[199].part(4..8), 199_u32.to_le_bytes());
        assert_eq!(*after.part(1..3).part(1..2), *b"t");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        // Released bytes still exist, but do not count as this process's memory any more.
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let own = format!("{:x}-", kept_long.as_ptr() as usize / PAGE * PAGE);
            let mut lines = text.lines().skip_while(|line| !line.starts_with(&own));
            let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
            rss.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
        };
        assert!(kept_long[..] == long[..] && resident() > 60 << 10, "{}", resident());
        kept_long.release();
        assert!(resident() < 1 << 10, "{}", resident());
        assert!(kept_long[..] == long[..]);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let mut store = ByteStore::new(0, Some("/proc".into()));
        let said = store.keep(b"x").unwrap_err().to_string();
        assert!(said.contains("/proc"), "{said}");
    }
}
