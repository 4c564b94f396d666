//! A directory's state as one number: equal states need one check.
//!
//! Includes names, kinds, modes, owners, contents, link targets, which names are one file, and
//! extended attributes. Excludes times: they differ in every run, and equal states would be rare.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::hash::{BuildHasher, Hash, Hasher};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

/// Only comparable within the process that made it: its keys are random.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DirectoryDigest(pub(crate) u64, pub(crate) u64);

/// Blocks of zeros count as holes, wherever the file system has holes.
const BLOCK: usize = 64 << 10;

/// Computes digests that can be compared with each other.
#[derive(Debug, Default)]
pub(crate) struct DirectoryHasher {
    // Two independent keys: with only 64 bits, a false match among many states is conceivable,
    // and it would hide a failure.
    keys: [RandomState; 2],
}

impl DirectoryHasher {
    pub(crate) fn digest(&self, directory: &Path) -> io::Result<DirectoryDigest> {
        let mut walk = Walk {
            hashers: TwoHashers(self.keys.each_ref().map(BuildHasher::build_hasher)),
            seen: HashMap::new(),
        };
        walk.entry(directory, &fs::symlink_metadata(directory)?)?;
        let [one, two] = walk.hashers.0.map(|hasher| hasher.finish());
        Ok(DirectoryDigest(one, two))
    }
}

struct TwoHashers<H>([H; 2]);

impl<H: Hasher> TwoHashers<H> {
    fn add(&mut self, value: impl Hash) {
        self.0.iter_mut().for_each(|hasher| value.hash(hasher));
    }
}

struct Walk<H> {
    hashers: TwoHashers<H>,
    /// Files with several names, by their first one.
    seen: HashMap<(u64, u64), usize>,
}

impl<H: Hasher> Walk<H> {
    fn entry(&mut self, path: &Path, metadata: &Metadata) -> io::Result<()> {
        // The mode includes the kind.
        self.hashers.add((metadata.mode(), metadata.uid(), metadata.gid()));
        self.attributes(path)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            return self.directory(path);
        }
        if metadata.nlink() > 1 {
            let next = self.seen.len();
            let first = *self.seen.entry((metadata.dev(), metadata.ino())).or_insert(next);
            self.hashers.add(("link", first));
            if first != next {
                return Ok(());
            }
        }
        if kind.is_file() {
            self.contents(path, metadata.len())?;
        } else if kind.is_symlink() {
            self.hashers.add(fs::read_link(path)?.as_os_str().as_bytes());
        } else if kind.is_block_device() || kind.is_char_device() {
            self.hashers.add(metadata.rdev());
        }
        Ok(())
    }

    fn directory(&mut self, path: &Path) -> io::Result<()> {
        let mut entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        self.hashers.add(entries.len());
        for entry in entries {
            self.hashers.add(entry.file_name().as_bytes());
            self.entry(&entry.path(), &entry.metadata()?)?;
        }
        Ok(())
    }

    fn contents(&mut self, path: &Path, length: u64) -> io::Result<()> {
        self.hashers.add(length);
        let file = File::open(path)?;
        let mut buffer = vec![0; BLOCK];
        let mut at = 0;
        while let Some(data) = next_data(&file, at, length) {
            at = data - data % BLOCK as u64;
            let size = BLOCK.min((length - at) as usize);
            let block = &mut buffer[..size];
            file.read_exact_at(block, at)?;
            if block.iter().any(|byte| *byte != 0) {
                self.hashers.add((at, &*block));
            }
            at += size as u64;
        }
        Ok(())
    }

    fn attributes(&mut self, path: &Path) -> io::Result<()> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: a finished string; the kernel writes at most the size it is given.
        let names = attribute(|buffer, size| unsafe {
            libc::llistxattr(path.as_ptr(), buffer.cast(), size)
        })?;
        let mut names: Vec<&[u8]> =
            names.split_inclusive(|byte| *byte == 0).filter(|name| name.len() > 1).collect();
        names.sort_unstable();
        self.hashers.add(names.len());
        for name in names {
            let name = std::ffi::CStr::from_bytes_with_nul(name).map_err(io::Error::other)?;
            // SAFETY: as above.
            let value = attribute(|buffer, size| unsafe {
                libc::lgetxattr(path.as_ptr(), name.as_ptr(), buffer, size)
            })?;
            self.hashers.add((name, value));
        }
        Ok(())
    }
}

/// The offset of the next byte that is not in a hole.
fn next_data(file: &File, at: u64, length: u64) -> Option<u64> {
    if at >= length {
        return None;
    }
    // SAFETY: an open descriptor; only its position changes, which nothing here uses.
    let data = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
    if data >= 0 {
        return Some(data as u64);
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::ENXIO) => None,
        // A file system without support for holes: everything is data.
        _ => Some(at),
    }
}

/// The result of a call of the `xattr` family, of any size.
fn attribute(call: impl Fn(*mut libc::c_void, usize) -> isize) -> io::Result<Vec<u8>> {
    let size = call(std::ptr::null_mut(), 0);
    if size > 0 {
        let mut value = vec![0; size as usize];
        let size = call(value.as_mut_ptr().cast(), value.len());
        if size >= 0 {
            value.truncate(size as usize);
            return Ok(value);
        }
    } else if size == 0 {
        return Ok(Vec::new());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // No attributes on this file system, or on this kind of file.
        Some(libc::ENOTSUP | libc::EPERM | libc::ENODATA) => Ok(Vec::new()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn build(dir: &Path) {
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(dir.join("a"), "one").unwrap();
        fs::write(dir.join("sub/b"), "two").unwrap();
        symlink("a", dir.join("l")).unwrap();
    }

    #[test]
    fn equal_directories_are_equal_and_every_change_counts() {
        let root = tempfile::tempdir().unwrap();
        let hasher = DirectoryHasher::default();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        build(&one);
        build(&two);
        let state = hasher.digest(&one).unwrap();
        assert_eq!(hasher.digest(&two).unwrap(), state);
        type Change = (&'static str, fn(&Path));
        let changes: [Change; 10] = [
            ("content", |d| fs::write(d.join("a"), "onf").unwrap()),
            ("length", |d| fs::write(d.join("a"), "one\0").unwrap()),
            ("name", |d| fs::rename(d.join("a"), d.join("c")).unwrap()),
            ("place", |d| fs::rename(d.join("a"), d.join("sub/a")).unwrap()),
            ("new", |d| fs::write(d.join("z"), "").unwrap()),
            ("directory", |d| fs::create_dir(d.join("z")).unwrap()),
            ("mode", |d| {
                fs::set_permissions(d.join("a"), fs::Permissions::from_mode(0o600)).unwrap();
            }),
            ("link target", |d| {
                fs::remove_file(d.join("l")).unwrap();
                symlink("sub/b", d.join("l")).unwrap();
            }),
            ("kind", |d| {
                fs::remove_file(d.join("l")).unwrap();
                fs::write(d.join("l"), "a").unwrap();
            }),
            ("one file or two", |d| {
                fs::copy(d.join("a"), d.join("m")).unwrap();
            }),
        ];
        for (what, change) in changes {
            fs::remove_dir_all(&two).unwrap();
            build(&two);
            change(&two);
            assert_ne!(hasher.digest(&two).unwrap(), state, "{what}");
        }
        let copied = {
            fs::remove_dir_all(&two).unwrap();
            build(&two);
            fs::copy(two.join("a"), two.join("m")).unwrap();
            hasher.digest(&two).unwrap()
        };
        fs::hard_link(one.join("a"), one.join("m")).unwrap();
        assert_ne!(hasher.digest(&one).unwrap(), copied);
    }

    #[test]
    fn a_hole_is_zeros() {
        let root = tempfile::tempdir().unwrap();
        let hasher = DirectoryHasher::default();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        for dir in [&one, &two] {
            fs::create_dir(dir).unwrap();
        }
        let length = 3 * BLOCK as u64 + 5;
        let holes = File::create(one.join("f")).unwrap();
        holes.set_len(length).unwrap();
        holes.write_at(b"x", 2 * BLOCK as u64 + 7).unwrap();
        let mut zeros = vec![0; length as usize];
        zeros[2 * BLOCK + 7] = b'x';
        fs::write(two.join("f"), &zeros).unwrap();
        assert_eq!(hasher.digest(&one).unwrap(), hasher.digest(&two).unwrap());
        holes.write_at(b"y", length - 1).unwrap();
        assert_ne!(hasher.digest(&one).unwrap(), hasher.digest(&two).unwrap());
    }

    #[test]
    fn an_extended_attribute_counts() {
        let root = tempfile::tempdir().unwrap();
        let hasher = DirectoryHasher::default();
        fs::write(root.path().join("f"), "x").unwrap();
        let before = hasher.digest(root.path()).unwrap();
        let path = CString::new(root.path().join("f").as_os_str().as_bytes()).unwrap();
        // SAFETY: finished strings, and a value as long as we say.
        let set = unsafe {
            libc::setxattr(path.as_ptr(), c"user.first".as_ptr(), b"v".as_ptr().cast(), 1, 0)
        };
        if set < 0 {
            assert!(
                std::env::var_os("CI").is_none(),
                "no extended attributes in the temp directory"
            );
            return;
        }
        assert_ne!(hasher.digest(root.path()).unwrap(), before);
    }
}
