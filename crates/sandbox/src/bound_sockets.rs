//! Finds the machine's sockets with a name in the file system: a process that sees the socket file
//! can connect to it even without write permission for it.
//!
//! The kernel lists the names that sockets were bound to. A name may be relative to the working
//! directory at that time, and the file may have been renamed since: `ssh` binds the socket of a
//! shared connection to a temporary name and links it into place. Sockets of other network
//! namespaces, such as those of containers, are not listed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Maximum directory entries to examine for a socket that is not at its listed name.
const MOST_ENTRIES: usize = 10_000;

/// Every path at which a socket of this machine is found.
pub(crate) fn paths() -> BTreeSet<PathBuf> {
    found(names(&list().unwrap_or_default()), working_directories)
}

/// The kernel's list. Its length is unknown, and each read makes the kernel walk all sockets again.
fn list() -> std::io::Result<Vec<u8>> {
    let mut list = Vec::with_capacity(64 << 10);
    File::open("/proc/net/unix")?.read_to_end(&mut list)?;
    Ok(list)
}

/// The files of sockets with these names. `directories` are the possible bases of relative names;
/// called only if there is such a name.
fn found(
    names: BTreeSet<PathBuf>,
    directories: impl Fn() -> BTreeSet<PathBuf>,
) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut searched = BTreeSet::new();
    let mut add = |path: PathBuf| {
        if is_socket(&path) {
            found.insert(path);
        } else if let Some(parent) = path.parent()
            && searched.insert(parent.to_owned())
        {
            found.extend(sockets_in(parent));
        }
    };
    let (absolute, relative): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| name.is_absolute());
    absolute.into_iter().for_each(&mut add);
    if !relative.is_empty() {
        for directory in directories() {
            let here = relative.iter().map(|name| directory.join(name));
            found.extend(here.filter(|path| is_socket(path)));
        }
    }
    found
}

fn is_socket(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket())
}

fn sockets_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().take(MOST_ENTRIES);
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.map(|entry| entry.path()).collect()
}

/// The working directories of processes, as far as this user can read them.
fn working_directories() -> BTreeSet<PathBuf> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes
        .filter(|entry| entry.file_name().as_bytes().iter().all(|byte| byte.is_ascii_digit()));
    numbered.filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok()).collect()
}

/// The names in the kernel's list, without abstract ones. A name may contain any byte but NUL,
/// including newlines.
fn names(list: &[u8]) -> BTreeSet<PathBuf> {
    let mut lines: Vec<Vec<u8>> = Vec::new();
    for line in list.split(|byte| *byte == b'\n').skip(1) {
        match (begins_entry(line), lines.last_mut()) {
            (false, Some(last)) => {
                last.push(b'\n');
                last.extend_from_slice(line);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    // The rest after the last newline belongs to no name.
    if let Some(last) = lines.last_mut()
        && last.ends_with(b"\n")
    {
        last.pop();
    }
    let path = |line: &Vec<u8>| {
        let name = name(line).filter(|name| !name.starts_with(b"@"))?;
        Some(PathBuf::from(OsStr::from_bytes(name)))
    };
    lines.iter().filter_map(path).collect()
}

/// `Num RefCount Protocol Flags Type St Inode Path`
fn begins_entry(line: &[u8]) -> bool {
    line.get(16) == Some(&b':') && line[..16].iter().all(u8::is_ascii_hexdigit)
}

fn name(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line;
    for _ in 0..7 {
        let start = rest.iter().position(|byte| *byte != b' ')?;
        let end = rest[start..].iter().position(|byte| *byte == b' ')?;
        rest = &rest[start + end..];
    }
    rest.strip_prefix(b" ").filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn names_are_read_whatever_is_in_them() {
        let list = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01  9135 /run/a b\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 10250\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 12345 @abstract\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 12 rel/s\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 13 /two\nlines\n";
        let expected = ["/run/a b", "/two\nlines", "rel/s"].map(PathBuf::from);
        assert_eq!(names(list).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_relative_name_and_one_that_is_not_there_any_more_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let _held = ["moved", "relative", "elsewhere"].map(|name| {
            std::fs::create_dir(at(name)).unwrap();
            UnixListener::bind(at(name).join("socket")).unwrap()
        });
        std::fs::write(at("moved").join("file"), "").unwrap();
        let names = [at("moved").join("temporary"), PathBuf::from("socket")].into();
        let found = found(names, || [at("relative")].into());
        let expected = ["moved", "relative"].map(|name| at(name).join("socket"));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
