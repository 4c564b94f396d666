//! Reads and replaces small files that other processes read and write concurrently.

use retake_types::text;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use retake_runner::regular_file;

/// Replaces a file atomically: a reader, and a crash, sees either the old or the new content.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with(path, content, 0o666)
}

/// The same with a file that only its owner can read.
pub fn replace_private(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with(path, content, 0o600)
}

fn replace_with(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let staged = stage(path, content, mode)?;
    std::fs::rename(&staged, path).inspect_err(|_| forget(&staged))?;
    sync_directory(path)
}

/// Creates a file with its content, or fails if it exists.
pub fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    let staged = stage(path, content, 0o666)?;
    let linked = std::fs::hard_link(&staged, path);
    forget(&staged);
    linked?;
    sync_directory(path)
}

fn stage(path: &Path, content: &[u8], mode: u32) -> io::Result<std::path::PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let staged = path.with_file_name(format!(".{name}.{}-{count}.tmp", std::process::id()));
    let created = OpenOptions::new().write(true).create_new(true).mode(mode).open(&staged);
    let written = created.and_then(|mut f| {
        f.write_all(content)?;
        f.sync_all()
    });
    match written {
        Ok(()) => Ok(staged),
        Err(error) => {
            forget(&staged);
            Err(error)
        }
    }
}

fn forget(staged: &Path) {
    // A remaining file is harmless, and the original error matters more.
    let _ = std::fs::remove_file(staged);
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

/// Reads a regular file of at most `most` bytes. Refuses a pipe, which would block.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    regular_file::open(path)?.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        let why = format!("it is larger than {}", text::count(most, "byte"));
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_a_file_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(read(&path, 10).unwrap(), b"two");
        assert_eq!(create(&path, b"three").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path, 10).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        replace_private(&path, b"four").unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap());
        assert_eq!((mode & 0o777, read(&path, 10).unwrap()), (0o600, b"four".to_vec()));
    }

    #[test]
    fn pipes_and_giants_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a valid string; the result is checked.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(read(&path, 10).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let path = dir.path().join("big");
        std::fs::write(&path, [0; 11]).unwrap();
        assert!(read(&path, 10).is_err() && read(&path, 11).is_ok());
    }
}
