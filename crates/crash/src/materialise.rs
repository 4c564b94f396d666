//! Writes a tree from memory to a disk: holes stay holes, hard links stay links.
//!
//! The directory must exist and be empty. Owners and times are not restored.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::model::{FileView, Tree, TreeEntry, TreeEntryKind};
use crate::operation::Node;

/// Maximum number of buffers that the kernel accepts in one call.
const PIECES: usize = 1024;

/// Makes the directory contain exactly the tree.
pub fn materialise(tree: &Tree, directory: &Path) -> io::Result<()> {
    let root = File::open(directory)?;
    let base = root.as_raw_fd();
    let mut first_names: HashMap<Node, CString> = HashMap::new();
    let mut directories: Vec<(CString, u32)> = Vec::new();
    for found in tree.walk() {
        let path = c_path(&found.path)?;
        if found.path.as_os_str().is_empty() {
            directories.push((c".".to_owned(), found.mode));
            attributes(&root, &found)?;
            continue;
        }
        if found.links > 1 {
            if let Some(first) = first_names.get(&found.node) {
                // SAFETY: finished strings and a descriptor we hold.
                done(unsafe { libc::linkat(base, first.as_ptr(), base, path.as_ptr(), 0) })?;
                continue;
            }
            first_names.insert(found.node, path.clone());
        }
        match found.kind {
            TreeEntryKind::Directory => {
                // Writable for this process until the directory is filled.
                // SAFETY: a finished string and a descriptor we hold.
                done(unsafe { libc::mkdirat(base, path.as_ptr(), 0o700) })?;
                if !found.attributes.is_empty() {
                    attributes(&open(base, &path, libc::O_RDONLY | libc::O_DIRECTORY)?, &found)?;
                }
                directories.push((path, found.mode));
            }
            TreeEntryKind::Symlink(target) => {
                let target = CString::new(target.as_bytes())?;
                // SAFETY: finished strings and a descriptor we hold.
                done(unsafe { libc::symlinkat(target.as_ptr(), base, path.as_ptr()) })?;
            }
            TreeEntryKind::File(view) => {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
                let file = File::from(open(base, &path, flags)?);
                contents(&file, view)?;
                attributes(&file, &found)?;
                // SAFETY: a descriptor we hold and a plain number.
                done(unsafe { libc::fchmod(file.as_raw_fd(), found.mode) })?;
            }
        }
    }
    // Innermost first: the mode of a directory may forbid entering it.
    for (path, mode) in directories.into_iter().rev() {
        // SAFETY: a finished string and a descriptor we hold.
        done(unsafe { libc::fchmodat(base, path.as_ptr(), mode, 0) })?;
    }
    Ok(())
}

fn contents(file: &File, view: FileView<'_>) -> io::Result<()> {
    let mut pieces: Vec<libc::iovec> = Vec::new();
    let mut start = 0;
    let mut end = 0;
    for (offset, bytes) in view.extents() {
        if offset != end || pieces.len() == PIECES {
            write(file, &mut pieces, start, end)?;
            start = offset;
        }
        end = offset + bytes.len() as u64;
        pieces
            .push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
    }
    write(file, &mut pieces, start, end)?;
    if end < view.size() {
        file.set_len(view.size())?;
    }
    Ok(())
}

/// Writes the pieces one after the other, and empties the list.
fn write(file: &File, pieces: &mut Vec<libc::iovec>, start: u64, end: u64) -> io::Result<()> {
    let mut at = start;
    let mut from = 0;
    while from < pieces.len() {
        let left = &pieces[from..];
        // SAFETY: every piece points to bytes of the tree, which outlives this call; the kernel
        // only reads them.
        let n =
            unsafe { libc::pwritev(file.as_raw_fd(), left.as_ptr(), left.len() as i32, at as i64) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        at += n as u64;
        let mut written = n as usize;
        while let Some(piece) = pieces.get_mut(from)
            && written >= piece.iov_len
        {
            written -= piece.iov_len;
            from += 1;
        }
        if let Some(piece) = pieces.get_mut(from) {
            // SAFETY: still inside the piece.
            piece.iov_base = unsafe { piece.iov_base.cast::<u8>().add(written) }.cast();
            piece.iov_len -= written;
        }
        if n == 0 && at < end {
            return Err(io::Error::from(io::ErrorKind::WriteZero));
        }
    }
    pieces.clear();
    Ok(())
}

fn attributes(on: &impl AsRawFd, found: &TreeEntry<'_>) -> io::Result<()> {
    for (name, value) in found.attributes {
        let name = CString::new(name.as_bytes())?;
        // SAFETY: a finished string, and a value as long as we say.
        let set = unsafe {
            let value_at = value.as_ptr().cast();
            libc::fsetxattr(on.as_raw_fd(), name.as_ptr(), value_at, value.len(), 0)
        };
        done(set)?;
    }
    Ok(())
}

fn open(base: RawFd, path: &CString, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: a finished string in, a new descriptor or -1 out.
    let fd = unsafe { libc::openat(base, path.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
    done(fd)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::recorder::{differences, tree_of};

    #[test]
    fn a_materialised_tree_equals_the_original() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| from.path().join(name);
        fs::create_dir_all(path("closed/inner")).unwrap();
        fs::write(path("closed/inner/file"), vec![7; 300_000]).unwrap();
        fs::hard_link(path("closed/inner/file"), path("again")).unwrap();
        symlink("../nowhere", path("link")).unwrap();
        fs::write(path("empty"), "").unwrap();
        let sparse = File::create(path("sparse")).unwrap();
        sparse.set_len(64 << 20).unwrap();
        sparse.write_all_at(b"deep", 40 << 20).unwrap();
        fs::set_permissions(path("closed"), PermissionsExt::from_mode(0o500)).unwrap();
        fs::set_permissions(path("empty"), PermissionsExt::from_mode(0o000)).unwrap();
        let tree = tree_of(from.path()).unwrap();
        materialise(&tree, to.path()).unwrap();
        assert_eq!(differences(&tree, to.path()).unwrap(), [""; 0]);
        let sparse = fs::metadata(to.path().join("sparse")).unwrap();
        assert!(sparse.blocks() < 1000, "{}", sparse.blocks());
        for dir in [from.path(), to.path()] {
            fs::set_permissions(dir.join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
        }
    }
}
