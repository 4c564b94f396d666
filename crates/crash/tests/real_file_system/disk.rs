//! A file system on a loop device, and a crash of it: the kernel shuts it down immediately,
//! without writing its journal, and it is mounted again. btrfs cannot be shut down: its disk at that moment
//! is copied, and the copy is mounted.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
    Btrfs,
}

impl FileSystem {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The minimum that its `mkfs` accepts, and some space.
    fn size(self) -> u64 {
        let mebibytes = match self {
            Self::Ext4 => 48,
            Self::Xfs => 384,
            Self::Btrfs => 160,
        };
        mebibytes << 20
    }

    fn make(self, image: &Path) -> Result<(), String> {
        let mut command = Command::new(format!("mkfs.{}", self.name()));
        command.arg("-q");
        if self == Self::Ext4 {
            command.args(["-b", "4096"]);
        }
        run(command.arg(image))
    }

    /// Its magic number in `statfs`.
    pub(crate) fn magic(self) -> i64 {
        match self {
            Self::Ext4 => 0xef53,
            Self::Xfs => 0x5846_5342,
            Self::Btrfs => 0x9123_683e,
        }
    }

    /// Commits the running transaction, without bytes that were not written back: what the kernel
    /// does by itself every few seconds.
    pub(crate) fn commit(self, noise: &File) -> io::Result<()> {
        if self != Self::Btrfs {
            let size = noise.metadata()?.len();
            noise.set_len(if size > 1 << 20 { 0 } else { size + 1 })?;
            return noise.sync_all();
        }
        // A sync of a file would only write the log. BTRFS_IOC_START_SYNC, BTRFS_IOC_WAIT_SYNC.
        const START: libc::Ioctl = 0x8008_9418_u32 as libc::Ioctl;
        const WAIT: libc::Ioctl = 0x4008_9416_u32 as libc::Ioctl;
        let mut transaction = 0_u64;
        for request in [START, WAIT] {
            // SAFETY: both take the address of one u64, and the descriptor is open.
            if unsafe { libc::ioctl(noise.as_raw_fd(), request, &raw mut transaction) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

pub(crate) struct Disk {
    pub(crate) kind: FileSystem,
    directory: tempfile::TempDir,
    /// The mount options besides `loop`.
    options: &'static str,
    mounted: bool,
}

impl Disk {
    /// An error with a message if loop devices cannot be mounted.
    pub(crate) fn new(kind: FileSystem, options: &'static str) -> Result<Self, String> {
        alone().map_err(|error| format!("a mount namespace: {error}"))?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let disk = Self { kind, directory, options, mounted: false };
        let image = File::create(disk.image()).map_err(|error| error.to_string())?;
        image.set_len(kind.size()).map_err(|error| error.to_string())?;
        fs::create_dir(disk.mount_point()).map_err(|error| error.to_string())?;
        kind.make(&disk.image())?;
        let mut disk = disk;
        disk.mount()?;
        Ok(disk)
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    pub(crate) fn mount_point(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    pub(crate) fn mount(&mut self) -> Result<(), String> {
        let options = match self.options {
            "" => "loop".to_owned(),
            options => format!("loop,{options}"),
        };
        run(Command::new("mount")
            .args(["-o", &options])
            .arg(self.image())
            .arg(self.mount_point()))?;
        self.mounted = true;
        Ok(())
    }

    pub(crate) fn unmount(&mut self) -> Result<(), String> {
        self.mounted = false;
        run(Command::new("umount").arg(self.mount_point()))
    }

    /// Simulates a power failure and a restart.
    pub(crate) fn crash(&mut self) -> Result<(), String> {
        if self.kind == FileSystem::Btrfs {
            return self.crash_by_copy();
        }
        shut_down(&self.mount_point()).map_err(|error| format!("FS_IOC_SHUTDOWN: {error}"))?;
        self.unmount()?;
        self.mount()
    }
}

impl Disk {
    /// Data written during the copy could be in it without earlier data, so it
    /// is copied until two copies are equal.
    fn crash_by_copy(&mut self) -> Result<(), String> {
        let copies = ["one", "other"].map(|name| self.directory.path().join(name));
        let copy =
            |to: &Path| run(Command::new("cp").arg("--sparse=always").arg(self.image()).arg(to));
        let mut at = 0;
        copy(&copies[1])?;
        loop {
            copy(&copies[at % 2])?;
            if run(Command::new("cmp").arg("-s").args(&copies)).is_ok() {
                break;
            }
            at += 1;
        }
        self.unmount()?;
        fs::rename(&copies[0], self.image()).map_err(|error| error.to_string())?;
        self.mount()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            // A failed test leaves files open; the mount is removed with the last of them.
            // The namespace ends with the thread and removes the rest.
            let _unmounted = run(Command::new("umount").arg("-l").arg(self.mount_point()));
        }
    }
}

/// A copy of the mount in another namespace would keep the dead file system alive.
fn alone() -> io::Result<()> {
    // SAFETY: only this thread changes its namespace, and the strings end in NUL.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        let none = std::ptr::null();
        if libc::mount(none, c"/".as_ptr(), none, flags, none.cast()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

fn shut_down(mount_point: &Path) -> io::Result<()> {
    const FS_IOC_SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
    const WITHOUT_THE_JOURNAL: u32 = 2;
    let directory = File::open(mount_point)?;
    // SAFETY: the request reads one u32 and the descriptor is open.
    match unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_SHUTDOWN, &WITHOUT_THE_JOURNAL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
