//! Files that the workload has mapped for writing: stores are not calls, so they are found by
//! comparing the file with its known content.
//!
//! The order of stores between two comparisons is lost, and so are overwritten stores. The
//! content comes from the page cache, which the mapping shares, so no
//! addresses need to be known, and nothing is lost when a process ends.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use libc::pid_t;

use super::directory_scan::next_data;
use super::file::{FileId, FileStatus};
use crate::operation::{Action, Node, WriteSync};
use crate::recorded_bytes::ByteStore;

const PAGE: usize = 4096;
static ZEROS: [u8; PAGE] = [0; PAGE];
const CHUNK: usize = 64 << 10;

/// Up to this size can be compared before every single operation.
const AFFORDABLE: u64 = 256 << 10;

/// After this many comparisons without a change the recorder checks whether the mapping still exists.
const QUIET: u32 = 64;

#[derive(Debug)]
struct MappedFile {
    node: Node,
    id: FileId,
    file: File,
    /// The known pages that are not all zeros.
    pages: HashMap<u64, Box<[u8]>>,
    size: u64,
    quiet: u32,
}

#[derive(Debug, Default)]
pub(super) struct Mappings {
    written: Vec<MappedFile>,
    /// Mapped for reading through a descriptor that could write.
    readable: Vec<(Node, FileId, File)>,
    total: u64,
    /// Read buffer; allocated once, because it is used before every operation.
    buffer: Vec<u8>,
}

impl Mappings {
    pub(super) fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// Whether comparing before every operation is cheap.
    pub(super) fn affordable(&self) -> bool {
        self.total <= AFFORDABLE
    }

    pub(super) fn any_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    /// The file can be written to from now on. Its current content is what was recorded.
    pub(super) fn add(&mut self, node: Node, id: FileId, file: File) -> io::Result<()> {
        if self.written.iter().any(|mapped| mapped.node == node) {
            return Ok(());
        }
        let mut mapped = MappedFile { node, id, file, pages: HashMap::new(), size: 0, quiet: 0 };
        self.buffer.resize(CHUNK, 0);
        mapped.look(&mut self.buffer, &mut |_, _| Ok(()))?;
        self.written.push(mapped);
        self.count();
        Ok(())
    }

    pub(super) fn add_readable(&mut self, node: Node, id: FileId, file: File) {
        if !self.readable.iter().any(|(other, ..)| *other == node) {
            self.readable.push((node, id, file));
        }
    }

    /// Whether this range covers the whole file.
    pub(super) fn ends_within(&self, node: Node, offset: u64, length: u64) -> bool {
        let size = self.written.iter().find(|mapped| mapped.node == node).map(|mapped| mapped.size);
        offset == 0 && size.is_some_and(|size| size <= length)
    }

    /// A readable mapping became writable.
    pub(super) fn promote(&mut self, inode: u64) -> io::Result<()> {
        let found = self.readable.iter().position(|(_, id, _)| id.inode == inode);
        let Some(found) = found else { return Ok(()) };
        let (node, id, file) = self.readable.swap_remove(found);
        self.add(node, id, file)
    }

    /// A recorded operation changes the known content, too.
    pub(super) fn observe(&mut self, action: &Action) {
        let node = match action {
            Action::Write { node, mapped: false, .. }
            | Action::Truncate { node, .. }
            | Action::Allocate { node, keep_size: false, .. }
            | Action::Zero { node, .. } => *node,
            _ => return,
        };
        if let Some(mapped) = self.written.iter_mut().find(|mapped| mapped.node == node) {
            mapped.apply(action);
            self.count();
        }
    }

    /// The stores since the last comparison, as writes.
    pub(super) fn changes(
        &mut self,
        bytes: &mut ByteStore,
        found: &mut Vec<Action>,
    ) -> io::Result<()> {
        for mapped in &mut self.written {
            let node = mapped.node;
            let before = found.len();
            mapped.look(&mut self.buffer, &mut |offset, data| {
                let (sync, mapped) = (WriteSync::None, true);
                let data = bytes.keep(data)?;
                found.push(Action::Write { node, offset, data, sync, mapped });
                Ok(())
            })?;
            mapped.quiet = if found.len() == before { mapped.quiet + 1 } else { 0 };
        }
        Ok(())
    }

    /// Removes files that no process has mapped any more. Their last stores have been reported.
    pub(super) fn retire(&mut self, processes: &[pid_t]) {
        if self.written.iter().all(|mapped| mapped.quiet < QUIET) {
            return;
        }
        self.written.retain_mut(|mapped| {
            if mapped.quiet < QUIET {
                return true;
            }
            mapped.quiet = 0;
            processes.iter().any(|pid| maps(*pid, mapped.id.inode))
        });
        self.count();
    }

    fn count(&mut self) {
        self.total = self.written.iter().map(|mapped| mapped.size).sum();
    }
}

/// Receives the stored bytes and their offset.
type Tell<'a> = dyn FnMut(u64, &[u8]) -> io::Result<()> + 'a;

impl MappedFile {
    fn apply(&mut self, action: &Action) {
        match action {
            Action::Write { offset, data, .. } => self.store(*offset, data),
            Action::Truncate { size, .. } => self.resize(*size),
            Action::Allocate { offset, length, .. } => self.size = self.size.max(offset + length),
            Action::Zero { offset, length, keep_size, .. } => {
                let end = offset + length;
                self.zero(*offset, end.min(self.size.max(*offset)));
                if !keep_size {
                    self.size = self.size.max(end);
                }
            }
            _ => {}
        }
    }

    /// Compares with the file, updates the known content, and reports changes.
    fn look(&mut self, buffer: &mut [u8], tell: &mut Tell<'_>) -> io::Result<()> {
        if self.size < buffer.len() as u64 {
            // A single read suffices for a small file, and also shows that it is not small any more.
            let read = self.file.read_at(buffer, 0)?;
            if read < buffer.len() {
                self.size = read as u64;
                self.compare(0, &buffer[..read], tell)?;
                return Ok(());
            }
        }
        let size = FileStatus::of_descriptor(self.file.as_raw_fd())?.size;
        self.size = size;
        let mut at = 0;
        while let Some((start, end)) = next_data(&self.file, at, size)? {
            at = start;
            while at < end {
                let wanted = buffer.len().min((end - at) as usize);
                let n = self.file.read_at(&mut buffer[..wanted], at)?;
                if n == 0 {
                    return Ok(());
                }
                self.compare(at, &buffer[..n], tell)?;
                at += n as u64;
            }
        }
        Ok(())
    }

    fn compare(&mut self, mut at: u64, mut data: &[u8], tell: &mut Tell<'_>) -> io::Result<()> {
        while !data.is_empty() {
            let within = at as usize % PAGE;
            let (piece, rest) = data.split_at(data.len().min(PAGE - within));
            let known = self.pages.get(&(at / PAGE as u64)).map_or(&ZEROS[..], |page| page);
            let known = &known[within..within + piece.len()];
            if known != piece {
                let differs = |index: &usize| piece[*index] != known[*index];
                let first = (0..piece.len()).find(differs).unwrap_or(0);
                let last = (0..piece.len()).rfind(differs).unwrap_or(piece.len() - 1);
                tell(at + first as u64, &piece[first..=last])?;
                self.store(at, piece);
            }
            at += piece.len() as u64;
            data = rest;
        }
        Ok(())
    }

    fn store(&mut self, mut at: u64, mut data: &[u8]) {
        self.size = self.size.max(at + data.len() as u64);
        while !data.is_empty() {
            let within = at as usize % PAGE;
            let (piece, rest) = data.split_at(data.len().min(PAGE - within));
            let page = self.pages.entry(at / PAGE as u64).or_insert_with(|| vec![0; PAGE].into());
            page[within..within + piece.len()].copy_from_slice(piece);
            at += piece.len() as u64;
            data = rest;
        }
    }

    fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size);
        }
        self.size = size;
    }

    fn zero(&mut self, from: u64, to: u64) {
        let page = PAGE as u64;
        self.pages.retain(|number, _| number * page < from || (number + 1) * page > to);
        for number in [from / page, to / page] {
            if let Some(bytes) = self.pages.get_mut(&number) {
                let start = from.saturating_sub(number * page).min(page) as usize;
                let end = to.saturating_sub(number * page).min(page) as usize;
                if start < end {
                    bytes[start..end].fill(0);
                }
            }
        }
    }
}

/// A line of `/proc/<pid>/maps`.
struct MapsLine {
    start: u64,
    end: u64,
    shared: bool,
    writable: bool,
    offset: u64,
    inode: u64,
}

fn maps_lines(pid: pid_t) -> Vec<MapsLine> {
    // A process that is gone has nothing mapped.
    let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let line = |line: &[u8]| {
        let line = std::str::from_utf8(&line[..line.len().min(120)]).ok()?;
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        Some(MapsLine {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            shared: rights.contains('s'),
            writable: rights.contains('w'),
            offset: u64::from_str_radix(words.next()?, 16).ok()?,
            inode: words.nth(1)?.parse().ok()?,
        })
    };
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// Whether a process can store into a file through a mapping.
pub(super) fn maps(pid: pid_t, inode: u64) -> bool {
    maps_lines(pid).iter().any(|line| line.shared && line.writable && line.inode == inode)
}

/// A part of a file that a process has mapped.
pub(super) struct MappedRange {
    pub(super) inode: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// The shared mappings of a process in this range of addresses; whole pages count.
pub(super) fn shared(pid: pid_t, address: u64, length: u64) -> Vec<MappedRange> {
    let page = PAGE as u64;
    let start = address / page * page;
    let end = address.saturating_add(length.max(1)).next_multiple_of(page);
    maps_lines(pid)
        .iter()
        .filter(|line| line.shared && line.inode != 0 && line.start < end && line.end > start)
        .map(|line| {
            let from = start.max(line.start);
            let offset = line.offset + (from - line.start);
            MappedRange { inode: line.inode, offset, length: end.min(line.end) - from }
        })
        .collect()
}

/// The bytes of a file, read back after the kernel wrote them itself.
pub(super) fn read_back(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, offset)?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(mappings: &mut Mappings) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        mappings.changes(&mut ByteStore::default(), &mut found).unwrap();
        let told = |action| match action {
            Action::Write { offset, data, mapped: true, .. } => (offset, data.to_vec()),
            other => panic!("{other:?}"),
        };
        found.into_iter().map(told).collect()
    }

    #[test]
    fn stores_are_found_and_operations_are_not_stores() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(20_000).unwrap();
        file.write_all_at(b"start", 0).unwrap();
        let id = FileStatus::of_descriptor(file.as_raw_fd()).unwrap().id;
        let mut mappings = Mappings::default();
        mappings.add(Node(1), id, file.try_clone().unwrap()).unwrap();
        assert!(told(&mut mappings).is_empty());
        file.write_all_at(b"stXrY", 0).unwrap();
        file.write_all_at(b"end", 19_997).unwrap();
        assert_eq!(told(&mut mappings), [(2, b"XrY".to_vec()), (19_997, b"end".to_vec())]);
        file.write_all_at(b"call", 4094).unwrap();
        mappings.observe(&Action::Write {
            node: Node(1),
            offset: 4094,
            data: b"call"[..].into(),
            sync: WriteSync::None,
            mapped: false,
        });
        file.set_len(4096).unwrap();
        file.set_len(30_000).unwrap();
        mappings.observe(&Action::Truncate { node: Node(1), size: 4096 });
        mappings.observe(&Action::Truncate { node: Node(1), size: 30_000 });
        assert!(told(&mut mappings).is_empty());
    }

    #[test]
    fn an_idle_unmapped_file_is_released() {
        let file = tempfile::tempfile().unwrap();
        let id = FileStatus::of_descriptor(file.as_raw_fd()).unwrap().id;
        let mut mappings = Mappings::default();
        mappings.add(Node(1), id, file).unwrap();
        for _ in 0..QUIET {
            mappings.retire(&[std::process::id() as pid_t]);
            assert!(!mappings.is_empty());
            told(&mut mappings);
        }
        mappings.retire(&[std::process::id() as pid_t]);
        assert!(mappings.is_empty());
    }
}
