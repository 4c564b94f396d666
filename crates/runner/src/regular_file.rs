//! Reads files of users' projects: regular files only. A FIFO of the same name would block forever,
//! and a device may never end or act on being opened.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file, also through a link; anything else is an error at once.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked first, because opening a device can have effects.
    check(&fs::metadata(path)?)?;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.read_to_end(&mut content)?;
    Ok(content)
}

pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// At most the first `most` bytes of a text.
pub fn read_text_start(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        for path in [&fifo, Path::new("/dev/zero"), Path::new("/dev/tty"), dir.path()] {
            assert!(read(path).is_err(), "{}", path.display());
        }
        let file = dir.path().join("file");
        fs::write(&file, "text").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_text(&link).unwrap(), "text");
        assert_eq!(read_text_start(&file, 2).unwrap(), "te");
    }
}
