//! Moves files that the host could execute aside: renames them in their directory to a name that
//! nothing acts on. One `mv` restores them.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use retake_types::LeftFile;
use rustix::fs::{FileType, Mode, OFlags, RenameFlags, ResolveFlags};

use super::set_id::SET_ID;

/// Part of every quarantined name.
pub(super) const MARK: &str = ".quarantined";

/// Moves one file or directory aside; a file with known earlier content is restored to it. What
/// cannot be moved stays in place and is listed without a new path.
pub(super) fn move_aside<'a>(
    root: &'a Path,
    git_dirs: impl Iterator<Item = &'a Path>,
    file: &mut LeftFile,
    before: Option<&[u8]>,
) {
    let path = file.path.as_path().to_owned();
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return };
    let Some(directory) = git_dirs.chain([root]).find_map(|base| open_below(base, dir)) else {
        return;
    };
    for number in 0..1000 {
        let mut aside: OsString = name.to_owned();
        aside.push(MARK);
        if number > 0 {
            aside.push(format!("-{number}"));
        }
        match rustix::fs::renameat_with(
            &directory,
            name,
            &directory,
            &aside,
            RenameFlags::NOREPLACE,
        ) {
            Ok(()) => {
                file.moved_to = Some(dir.join(&aside).into());
                take_set_id(&directory, &aside);
                if let Some(before) = before {
                    restore(&directory, name, before);
                }
                return;
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(_) => return,
        }
    }
}

/// Removes set-ID bits from a file: they work under any name.
fn take_set_id(directory: &OwnedFd, name: &OsStr) {
    // By path, since the owner may lack read permission.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(directory, name, flags, Mode::empty()) else { return };
    let Ok(stat) = rustix::fs::fstat(&file) else { return };
    if FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_mode & SET_ID != 0 {
        let without = PermissionsExt::from_mode(stat.st_mode & 0o7777 & !SET_ID);
        // A failure cannot be reported here; the file is listed in any case.
        _ = std::fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), without);
    }
}

/// Opens a directory at or below another one without following links.
fn open_below(base: &Path, dir: &Path) -> Option<OwnedFd> {
    let below = dir.strip_prefix(base).ok()?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = rustix::fs::open(base, flags | OFlags::NOFOLLOW, Mode::empty()).ok()?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(&base, below, flags, Mode::empty(), resolve).ok()
}

/// Writes a file with its content from before the run. After a failure the file is missing; its
/// quarantined copy exists.
fn restore(directory: &OwnedFd, name: &OsStr, content: &[u8]) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    if let Ok(file) = rustix::fs::openat(directory, name, flags, mode) {
        // Root may work in another user's project.
        if rustix::process::geteuid().is_root()
            && let Ok(owner) = rustix::fs::fstat(directory)
        {
            let uid = rustix::fs::Uid::from_raw(owner.st_uid);
            let gid = rustix::fs::Gid::from_raw(owner.st_gid);
            // Fails harmlessly on a file system without owners.
            _ = rustix::fs::fchown(&file, Some(uid), Some(gid));
        }
        // A failure cannot be reported here; the copy is listed in any case.
        _ = std::fs::File::from(file).write_all(content);
    }
}
