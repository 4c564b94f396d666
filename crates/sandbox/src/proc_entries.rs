//! The entries of `/proc` that are not processes.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The paths of everything writable in `/proc` that is not about a process: root still owns it even
/// without capabilities.
pub(crate) fn writable() -> Vec<PathBuf> {
    let Ok(proc) = File::open("/proc") else { return Vec::new() };
    let found = entries(&proc).into_iter();
    let found = found
        .filter_map(|(name, kind)| Some((CString::new(name.into_encoded_bytes()).ok()?, kind)));
    let writable = found.filter(|(name, kind)| match *kind {
        libc::DT_DIR => true,
        libc::DT_LNK => false,
        _ => is_writable(&proc, name),
    });
    let path = |name: CString| Path::new("/proc").join(OsStr::from_bytes(name.as_bytes()));
    writable.map(|(name, _)| path(name)).collect()
}

fn is_writable(proc: &File, name: &CStr) -> bool {
    // SAFETY: zero is a valid value to be filled; a C string, and an open descriptor.
    let mode = unsafe {
        let mut meta: libc::stat = std::mem::zeroed();
        let no_follow = libc::AT_SYMLINK_NOFOLLOW;
        match libc::fstatat(proc.as_raw_fd(), name.as_ptr(), &raw mut meta, no_follow) {
            0 => meta.st_mode,
            _ => return false,
        }
    };
    match mode & libc::S_IFMT {
        libc::S_IFDIR => true,
        libc::S_IFREG => mode & 0o222 != 0,
        _ => false,
    }
}

/// The non-process entries of `/proc`: names and kinds. The kernel lists them first, and listing a
/// process costs more than all of them; so it reads in small pieces, and stops early.
fn entries(directory: &File) -> Vec<(OsString, u8)> {
    /// Aligned like the kernel's entries.
    #[repr(align(8))]
    struct Entries([u8; 1024]);
    const NAME: usize = std::mem::offset_of!(libc::dirent64, d_name);
    const LENGTH: usize = std::mem::offset_of!(libc::dirent64, d_reclen);
    const KIND: usize = std::mem::offset_of!(libc::dirent64, d_type);
    let (mut found, mut entries) = (Vec::new(), Entries([0; 1024]));
    loop {
        // SAFETY: fills at most the length of the buffer.
        let got = unsafe {
            let (fd, buffer) = (directory.as_raw_fd(), entries.0.as_mut_ptr());
            libc::syscall(libc::SYS_getdents64, fd, buffer, entries.0.len())
        };
        let mut rest = match usize::try_from(got) {
            Ok(1..) => &entries.0[..got as usize],
            _ => return found,
        };
        while let Some(&[low, high]) = rest.get(LENGTH..LENGTH + 2) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let Some((entry, others)) = rest.split_at_checked(length).filter(|_| length > NAME)
            else {
                return found;
            };
            rest = others;
            let name = entry[NAME..].split(|byte| *byte == 0).next().unwrap_or_default();
            // The process entries start with the two links to the current process.
            if name == b"self" || name == b"thread-self" || name.iter().all(u8::is_ascii_digit) {
                return found;
            }
            if !name.starts_with(b".") {
                found.push((OsStr::from_bytes(name).to_owned(), entry[KIND]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_of_proc_but_those_of_processes_are_found() {
        let listed = std::fs::read_dir("/proc").unwrap().flatten();
        let mut all: Vec<OsString> = listed
            .map(|entry| entry.file_name())
            .filter(|name| !name.as_bytes().iter().all(u8::is_ascii_digit))
            .filter(|name| name != "self" && name != "thread-self")
            .collect();
        let found = entries(&File::open("/proc").unwrap()).into_iter();
        let mut found: Vec<OsString> = found.map(|(name, _)| name).collect();
        all.sort();
        found.sort();
        assert_eq!(found, all);
    }
}
