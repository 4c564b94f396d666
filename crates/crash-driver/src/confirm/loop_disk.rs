//! A file system on a loop device, and a crash of it: the kernel shuts the file system
//! down immediately, without writing its journal, and it is mounted again.
//!
//! For a thread with its own mount namespace: a copy of the mount in another one would keep
//! the dead file system alive.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const LOOP_CTL_GET_FREE: u32 = 0x4c82;
const LOOP_CONFIGURE: u32 = 0x4c0a;
const AUTOCLEAR: u32 = 4;
const FS_IOC_SHUTDOWN: u32 = 0x8004_587d;
const WITHOUT_THE_JOURNAL: u32 = 2;

/// `struct loop_config` of linux/loop.h, of which only a few fields are set.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// The first fields of `struct loop_info64`.
    info: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// Why a loop device cannot be used here.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct DiskError {
    what: String,
    source: io::Error,
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> DiskError {
    let what = what.into();
    move |source| DiskError { what, source }
}

/// A mounted image.
pub(crate) struct LoopDisk {
    /// Kept open, so that the device stays while nothing is mounted. It is free again when this is closed.
    _device: File,
    device_path: PathBuf,
    mount_point: PathBuf,
    kind: &'static str,
    options: String,
    mounted: bool,
}

impl LoopDisk {
    /// Attaches an image with a file system, and mounts it at a directory.
    pub(crate) fn mount(
        image: &Path,
        mount_point: &Path,
        kind: &'static str,
        options: &str,
    ) -> Result<Self, DiskError> {
        let (device, device_path) = attach(image)?;
        let mut disk = Self {
            _device: device,
            device_path,
            mount_point: mount_point.to_owned(),
            kind,
            options: options.to_owned(),
            mounted: false,
        };
        disk.mount_again()?;
        Ok(disk)
    }

    fn mount_again(&mut self) -> Result<(), DiskError> {
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
        let mount = || -> io::Result<()> {
            let (device, point) = (text(&self.device_path)?, text(&self.mount_point)?);
            let (kind, options) = (CString::new(self.kind)?, CString::new(self.options.as_str())?);
            // SAFETY: finished strings.
            done(unsafe {
                let options = options.as_ptr().cast();
                libc::mount(
                    device.as_ptr(),
                    point.as_ptr(),
                    kind.as_ptr(),
                    libc::MS_NOATIME,
                    options,
                )
            })
        };
        mount().map_err(failed(format!("mount of an {} on a loop device", self.kind)))?;
        self.mounted = true;
        Ok(())
    }

    fn unmount(&mut self, flags: i32) -> Result<(), DiskError> {
        self.mounted = false;
        let unmount = || -> io::Result<()> {
            let point = CString::new(self.mount_point.as_os_str().as_bytes())?;
            // SAFETY: a finished string.
            done(unsafe { libc::umount2(point.as_ptr(), flags) })
        };
        unmount().map_err(failed("umount"))
    }

    /// Simulates a power failure and a restart. No file on it may be open.
    pub(crate) fn crash(&mut self) -> Result<(), DiskError> {
        let shut_down = || -> io::Result<()> {
            let directory = File::open(&self.mount_point)?;
            let how = WITHOUT_THE_JOURNAL;
            // SAFETY: the request reads one number, and the descriptor is open.
            done(unsafe {
                libc::ioctl(directory.as_raw_fd(), FS_IOC_SHUTDOWN as libc::Ioctl, &how)
            })
        };
        shut_down().map_err(failed("FS_IOC_SHUTDOWN"))?;
        self.unmount(0)?;
        self.mount_again()
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        if self.mounted {
            // The namespace ends with the thread and removes the rest.
            drop(self.unmount(libc::MNT_DETACH));
        }
    }
}

/// A mount namespace for this thread alone.
pub(crate) fn enter_own_namespace() -> Result<(), DiskError> {
    let enter = || -> io::Result<()> {
        let none = std::ptr::null();
        // SAFETY: only this thread changes its namespace; the string is finished.
        unsafe {
            done(libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS))?;
            let private = libc::MS_REC | libc::MS_PRIVATE;
            done(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))
        }
    };
    enter().map_err(failed("a mount namespace"))
}

fn attach(image: &Path) -> Result<(File, PathBuf), DiskError> {
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    let control = Path::new("/dev/loop-control");
    let control = open(control).map_err(failed("/dev/loop-control"))?;
    let backing = open(image).map_err(failed(image.display().to_string()))?;
    loop {
        // SAFETY: no argument is read.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as libc::Ioctl) };
        done(number).map_err(failed("a free loop device"))?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path).map_err(failed(path.display().to_string()))?;
        // SAFETY: numbers and bytes, for which zeros are valid.
        let mut config: LoopConfig = unsafe { MaybeUninit::zeroed().assume_init() };
        config.fd = backing.as_raw_fd() as u32;
        config.flags = AUTOCLEAR;
        // SAFETY: the request reads the structure, which is as long as the kernel's.
        let configured = done(unsafe {
            libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as libc::Ioctl, &raw const config)
        });
        match configured {
            Ok(()) => return Ok((device, path)),
            // Another process took the device.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(failed("a loop device")(error)),
        }
    }
}

/// An empty, sparse image of this size.
pub(crate) fn create_image(path: &Path, size: u64) -> Result<(), DiskError> {
    let create = || File::create(path)?.set_len(size);
    create().map_err(failed(path.display().to_string()))
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_that_of_the_kernel() {
        // struct loop_config: 4 + 4 + 232 + 64.
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(std::mem::offset_of!(LoopConfig, flags), 8 + 52);
    }
}
