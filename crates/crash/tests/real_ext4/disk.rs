//! An ext4 of its own on a loop device, and a crash of it: the kernel shuts the file system down
//! at once, without writing its journal, and it is mounted again.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) struct Disk {
    directory: tempfile::TempDir,
    /// The mount options besides `loop`.
    options: &'static str,
    mounted: bool,
}

impl Disk {
    /// None, with words, where loop devices cannot be mounted.
    pub(crate) fn new(options: &'static str) -> Result<Self, String> {
        alone().map_err(|error| format!("a mount namespace: {error}"))?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let disk = Self { directory, options, mounted: false };
        let image = File::create(disk.image()).map_err(|error| error.to_string())?;
        image.set_len(48 << 20).map_err(|error| error.to_string())?;
        fs::create_dir(disk.mount_point()).map_err(|error| error.to_string())?;
        run(Command::new("mkfs.ext4").args(["-q", "-b", "4096"]).arg(disk.image()))?;
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

    /// The power goes, and comes back.
    pub(crate) fn crash(&mut self) -> Result<(), String> {
        shut_down(&self.mount_point()).map_err(|error| format!("FS_IOC_SHUTDOWN: {error}"))?;
        self.unmount()?;
        self.mount()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            // A test that fails leaves files open; the mount goes with the last of them.
            // The namespace ends with the thread and takes what is left along.
            let _unmounted = run(Command::new("umount").arg("-l").arg(self.mount_point()));
        }
    }
}

/// A copy of the mount in somebody else's namespace would keep the dead file system alive.
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
