//! Files as the kernel identifies them: by number, and through descriptors and paths of other tasks.
//!
//! This process resolves paths on behalf of the task, starting where the task would start.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use libc::pid_t;

/// Device and inode number. Numbers are reused as soon as a file is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    Directory,
    Regular,
    Symlink,
    /// Sockets, pipes, devices: they hold no data of their own, and no model covers them.
    Special,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FileStatus {
    pub(crate) id: FileId,
    pub(crate) kind: FileKind,
    /// Permission bits, without the kind.
    pub(crate) mode: u32,
    pub(crate) links: u64,
    pub(crate) size: u64,
}

impl FileStatus {
    #[expect(clippy::unnecessary_cast, reason = "the widths differ between C libraries")]
    fn of(stat: &libc::stat) -> Self {
        let kind = match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFREG => FileKind::Regular,
            libc::S_IFLNK => FileKind::Symlink,
            _ => FileKind::Special,
        };
        Self {
            id: FileId { device: stat.st_dev as u64, inode: stat.st_ino as u64 },
            kind,
            mode: stat.st_mode & 0o7777,
            links: stat.st_nlink as u64,
            size: stat.st_size as u64,
        }
    }

    /// The file at the path, relative to the directory; `flags` are `AT_` flags.
    pub(crate) fn at(base: RawFd, path: &CStr, flags: i32) -> io::Result<Self> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: a finished string, and room for the answer.
        if unsafe { libc::fstatat(base, path.as_ptr(), stat.as_mut_ptr(), flags) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel filled it.
        Ok(Self::of(unsafe { stat.assume_init_ref() }))
    }

    pub(crate) fn of_descriptor(fd: RawFd) -> io::Result<Self> {
        Self::at(fd, c"", libc::AT_EMPTY_PATH)
    }
}

pub(crate) fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Opens without a mode: nothing is created here.
pub(crate) fn open_at(base: RawFd, path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: a finished string in, a new descriptor or -1 out.
    let fd = unsafe { libc::openat(base, path.as_ptr(), flags | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn read_link(base: RawFd, name: &CStr) -> io::Result<OsString> {
    let mut buffer = vec![0_u8; 4096];
    // SAFETY: room for as many bytes as we say.
    let n =
        unsafe { libc::readlinkat(base, name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    buffer.truncate(n as usize);
    Ok(OsString::from_vec(buffer))
}

/// The directory in which the kernel describes a task's descriptors.
#[derive(Debug)]
pub(super) struct Descriptors {
    pid: pid_t,
    directory: OwnedFd,
}

/// Fields of `/proc/<pid>/fdinfo/<fd>`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorInfo {
    pub(super) position: u64,
    pub(super) flags: i32,
    pub(super) mount: u64,
    /// Missing before Linux 5.14.
    pub(super) inode: Option<u64>,
}

impl Descriptors {
    pub(super) fn of(pid: pid_t) -> io::Result<Self> {
        let path = CString::new(format!("/proc/{pid}/fdinfo"))?;
        let directory = open_at(libc::AT_FDCWD, &path, libc::O_PATH | libc::O_DIRECTORY)?;
        Ok(Self { pid, directory })
    }

    /// `None` if the task has no such descriptor.
    pub(super) fn described(&self, fd: i32) -> io::Result<Option<DescriptorInfo>> {
        let mut name = [0_u8; 16];
        let file = match open_at(self.directory.as_raw_fd(), digits(fd, &mut name), libc::O_RDONLY)
        {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                return Ok(None);
            }
            file => file?,
        };
        let mut buffer = [0; 512];
        let n = File::from(file).read(&mut buffer)?;
        Ok(parse(&buffer[..n]))
    }

    /// The file behind a descriptor.
    pub(super) fn status(&self, fd: i32) -> io::Result<FileStatus> {
        FileStatus::at(libc::AT_FDCWD, &self.link(fd)?, 0)
    }

    /// The same file, opened again for reading by this process.
    pub(super) fn reopen(&self, fd: i32) -> io::Result<File> {
        open_at(libc::AT_FDCWD, &self.link(fd)?, libc::O_RDONLY | libc::O_NONBLOCK).map(File::from)
    }

    fn link(&self, fd: i32) -> io::Result<CString> {
        Ok(CString::new(format!("/proc/{}/fd/{fd}", self.pid))?)
    }
}

/// The number as text, without an allocation: this happens twice per call.
fn digits(number: i32, buffer: &mut [u8; 16]) -> &CStr {
    let mut at = buffer.len() - 1;
    let mut left = number.unsigned_abs();
    loop {
        at -= 1;
        buffer[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        buffer[at] = b'-';
    }
    CStr::from_bytes_until_nul(&buffer[at..]).unwrap_or_default()
}

fn parse(text: &[u8]) -> Option<DescriptorInfo> {
    let mut described = DescriptorInfo { position: 0, flags: 0, mount: 0, inode: None };
    for line in text.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = std::str::from_utf8(&line[colon + 1..]).ok()?.trim();
        match &line[..colon] {
            b"pos" => described.position = value.parse().ok()?,
            b"flags" => described.flags = i32::from_str_radix(value, 8).ok()?,
            b"mnt_id" => described.mount = value.parse().ok()?,
            b"ino" => {
                described.inode = Some(value.parse().ok()?);
                break;
            }
            _ => {}
        }
    }
    Some(described)
}

/// Whether files on this file system have the same device and number in `stat` as in `fdinfo`.
pub(super) fn has_plain_numbers(root: &OwnedFd) -> bool {
    const PLAIN: [i64; 4] = [0xef53, 0x0102_1994, 0x5846_5342, 0xf2f5_2010];
    let mut answer = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a descriptor we hold, and room for the answer.
    if unsafe { libc::fstatfs(root.as_raw_fd(), answer.as_mut_ptr()) } < 0 {
        return false;
    }
    // SAFETY: the kernel filled it.
    let kind = unsafe { answer.assume_init_ref() }.f_type;
    #[expect(clippy::unnecessary_cast, reason = "the widths differ between C libraries")]
    PLAIN.contains(&(kind as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_names() {
        for number in [0, 7, 10, 4096, i32::MAX, -1, i32::MIN] {
            let mut buffer = [0; 16];
            assert_eq!(digits(number, &mut buffer).to_str().unwrap(), number.to_string());
        }
    }

    #[test]
    fn a_descriptor_is_described() {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"seven b").unwrap();
        let own = Descriptors::of(std::process::id() as pid_t).unwrap();
        let described = own.described(file.as_raw_fd()).unwrap().unwrap();
        assert_eq!(described.position, 7);
        assert_eq!(described.flags & libc::O_ACCMODE, libc::O_RDWR);
        let status = own.status(file.as_raw_fd()).unwrap();
        assert!(described.inode.is_none_or(|inode| inode == status.id.inode));
        assert!(own.described(i32::MAX).unwrap().is_none());
    }
}
