//! The content of a directory before the workload starts, and of directories that are moved in later.
//!
//! Sockets, pipes and devices are left out: they hold nothing that a crash could lose.

use std::collections::HashMap;
use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

use super::file::{FileId, FileKind, FileStatus, c_string, open_at, read_link};
use super::nodes::Nodes;
use crate::operation::{Content, DirEntry, Initial};
use crate::recorded_bytes::ByteStore;

const BLOCK: usize = 4096;
const CHUNK: usize = 1 << 20;

/// Keeps the bytes that are read, and knows whether the recording was cancelled.
pub(super) struct ScanBytes<'a> {
    pub(super) bytes: &'a mut ByteStore,
    pub(super) cancel: Option<&'a OwnedFd>,
}

impl ScanBytes<'_> {
    fn wanted(&self) -> io::Result<()> {
        let fd = self.cancel.map_or(-1, AsRawFd::as_raw_fd);
        let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor that lives as long as the call; a negative one is not polled.
        unsafe { libc::poll(&raw mut asked, 1, 0) };
        if asked.revents == 0 { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
    }
}

/// The tree below an open directory. The root is bound first, so it is node 0.
pub(super) fn scan(
    root: &OwnedFd,
    nodes: &mut Nodes,
    into: &mut ScanBytes<'_>,
) -> io::Result<Vec<Initial>> {
    let status = FileStatus::of_descriptor(root.as_raw_fd())?;
    let node = nodes.bind(status.id, FileKind::Directory, false);
    let mut found = vec![Initial {
        node,
        mode: status.mode,
        dir_entries: Vec::new(),
        content: Content::Directory,
    }];
    let mut index: HashMap<FileId, usize> = HashMap::new();
    let mut directories = vec![(root.try_clone()?, node)];
    while let Some((directory, node)) = directories.pop() {
        for name in names(directory.as_raw_fd())? {
            into.wanted()?;
            let dir_entry = DirEntry { directory: node, name };
            let c_name = c_string(&dir_entry.name)?;
            let fd = directory.as_raw_fd();
            let status = FileStatus::at(fd, &c_name, libc::AT_SYMLINK_NOFOLLOW)?;
            if let Some(&earlier) = index.get(&status.id) {
                let initial: &mut Initial = &mut found[earlier];
                initial.dir_entries.push(dir_entry);
                continue;
            }
            let content = match status.kind {
                FileKind::Special => continue,
                FileKind::Directory => Content::Directory,
                FileKind::Regular => file(fd, &c_name, into)?,
                FileKind::Symlink => Content::Symlink { target: read_link(fd, &c_name)? },
            };
            let node = nodes.bind(status.id, status.kind, false);
            if status.kind == FileKind::Directory {
                directories.push((open_directory(fd, &c_name)?, node));
            } else {
                index.insert(status.id, found.len());
            }
            found.push(Initial { node, mode: status.mode, dir_entries: vec![dir_entry], content });
        }
    }
    // Any directory may contain another name of a file that was found before it.
    found.sort_by_key(|initial| initial.content != Content::Directory);
    Ok(found)
}

pub(super) fn open_directory(base: RawFd, name: &CStr) -> io::Result<OwnedFd> {
    open_at(base, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW)
}

fn file(base: RawFd, name: &CStr, into: &mut ScanBytes<'_>) -> io::Result<Content> {
    let file = File::from(open_at(base, name, libc::O_RDONLY | libc::O_NOFOLLOW)?);
    let size = FileStatus::of_descriptor(file.as_raw_fd())?.size;
    let mut extents = Vec::new();
    for_each_extent(&file, size, |offset, data| {
        into.wanted()?;
        extents.push((offset, into.bytes.keep(data)?));
        Ok(())
    })?;
    Ok(Content::File { size, extents })
}

/// The bytes of a file, without blocks of zeros, piece by piece.
pub(crate) fn for_each_extent(
    file: &File,
    size: u64,
    mut tell: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while let Some((start, end)) = next_data(file, at, size)? {
        at = start;
        while at < end {
            let wanted = CHUNK.min((end - at) as usize);
            let chunk = &mut buffer[..wanted];
            file.read_exact_at(chunk, at)?;
            for run in runs(chunk) {
                tell(at + run.start as u64, &chunk[run])?;
            }
            at += wanted as u64;
        }
    }
    Ok(())
}

/// Ranges of blocks that are not all zeros.
fn runs(chunk: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (number, block) in chunk.chunks(BLOCK).enumerate() {
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        let start = number * BLOCK;
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = start + block.len(),
            _ => runs.push(start..start + block.len()),
        }
    }
    runs
}

/// The next part of a file that is not a hole, widened to whole blocks.
pub(crate) fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let seek = |at: u64, whence| {
        // SAFETY: a descriptor we hold and plain numbers.
        let found = unsafe { libc::lseek(file.as_raw_fd(), at as i64, whence) };
        if found < 0 { Err(io::Error::last_os_error()) } else { Ok(found as u64) }
    };
    let start = match seek(at, libc::SEEK_DATA) {
        Ok(start) => start - start % BLOCK as u64,
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
        // A file system without support for holes.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(Some((at, size))),
        Err(error) => return Err(error),
    };
    let start = start.max(at);
    Ok(Some((start, seek(start, libc::SEEK_HOLE)?.min(size))))
}

/// The names in a directory, without `.` and `..`, sorted.
pub(crate) fn names(directory: RawFd) -> io::Result<Vec<OsString>> {
    // A separate handle: reading moves the position.
    let own = open_at(directory, c".", libc::O_RDONLY | libc::O_DIRECTORY)?;
    // SAFETY: the descriptor is given away; the stream closes it.
    let stream = unsafe { libc::fdopendir(std::os::fd::IntoRawFd::into_raw_fd(own)) };
    if stream.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    loop {
        // SAFETY: the stream is owned and used by this thread alone; the entry lives until the next
        // read, and its name ends with NUL.
        let name = unsafe {
            *libc::__errno_location() = 0;
            let entry = libc::readdir64(stream);
            if entry.is_null() {
                break;
            }
            CStr::from_ptr((&raw const (*entry).d_name).cast())
        };
        if name != c"." && name != c".." {
            names.push(OsString::from_vec(name.to_bytes().to_vec()));
        }
    }
    let error = io::Error::last_os_error();
    // SAFETY: opened above and closed once.
    unsafe { libc::closedir(stream) };
    if error.raw_os_error() != Some(0) {
        return Err(error);
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Seek, SeekFrom, Write};
    use std::path::Path;

    use super::*;
    use crate::model::{Tree, TreeEntryKind};
    use crate::operation::Node;

    fn scanned(path: &Path) -> Vec<Initial> {
        let path = c_string(path.as_os_str()).unwrap();
        let root = open_at(libc::AT_FDCWD, &path, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let into = &mut ScanBytes { bytes: &mut ByteStore::default(), cancel: None };
        scan(&root, &mut Nodes::default(), into).unwrap()
    }

    #[test]
    fn everything_is_found_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("a/b")).unwrap();
        fs::write(path("a/b/file"), "text").unwrap();
        fs::hard_link(path("a/b/file"), path("again")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let found = scanned(dir.path());
        assert_eq!(found[0].node, Node::ROOT);
        let tree = Tree::new(&found);
        let paths: Vec<_> = tree.walk().map(|one| one.path.display().to_string()).collect();
        assert_eq!(paths, ["", "a", "a/b", "a/b/file", "again", "link"]);
        let file = tree.find(Path::new("again")).unwrap();
        assert_eq!(file.links, 2);
        let mut text = [0; 9];
        assert!(matches!(file.kind, TreeEntryKind::File(view) if view.read(0, &mut text) == 4));
        assert_eq!(&text[..4], b"text");
    }

    #[test]
    fn holes_and_zeros_are_left_out() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        file.write_all(&[0; 3 * BLOCK]).unwrap();
        file.write_all(b"x").unwrap();
        let mut extents = Vec::new();
        for_each_extent(&file, 64 << 20, |offset, data| {
            extents.push((offset, data.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(extents.len(), 1);
        let (offset, data) = &extents[0];
        assert_eq!((*offset, data.len()), ((1 << 20) + 3 * BLOCK as u64, BLOCK));
        assert_eq!(data[0], b'x');
    }

    #[test]
    fn a_scan_that_is_not_wanted_any_more_ends() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("large"), vec![b'x'; 3 << 20]).unwrap();
        let root = crate::recorder::open_root(dir.path()).unwrap();
        let (readable, writer) = crate::fd::pipe().unwrap();
        drop(writer);
        let mut bytes = ByteStore::default();
        let into = &mut ScanBytes { bytes: &mut bytes, cancel: Some(&readable) };
        let refused = scan(&root, &mut Nodes::default(), into).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Interrupted);
    }
}
