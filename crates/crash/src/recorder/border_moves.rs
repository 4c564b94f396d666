//! Moves across the border of the watched tree.
//!
//! A file that moves in was written unobserved, so it is recorded as if it were newly written, and as
//! durable only if the workload synced it outside. It gets its name last, in one step, as by the
//! rename. A file that moves out is removed; later changes to it are not recorded.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::pid_t;

use super::directory_scan::{for_each_extent, names, open_directory};
use super::error::RecordError;
use super::file::{FileKind, FileStatus, c_string, open_at, read_link};
use super::path_lookup::ResolvedPath;
use super::tracer::Tracer;
use crate::operation::{Action, DirEntry, Kind, Node, WriteSync};

impl Tracer {
    /// The file that has this name now came from outside.
    pub(super) fn moved_in(
        &mut self,
        pid: pid_t,
        name: &str,
        resolved: &ResolvedPath,
    ) -> Result<(), RecordError> {
        let failed = |source| RecordError::system(name, source);
        let Some(status) = resolved.status_now().map_err(failed)? else { return Ok(()) };
        let Some(dir_entry) = self.dir_entry(resolved) else { return Ok(()) };
        let one =
            self.import(pid, name, &resolved.parent, &resolved.name, status).map_err(failed)?;
        if let Some(node) = one {
            self.nodes.set_nameless(status.id, false);
            self.push(pid, name, Action::Link { node, dir_entry });
        }
        Ok(())
    }

    /// Creates a file or directory with everything below it, still without a name.
    fn import(
        &mut self,
        pid: pid_t,
        call: &str,
        parent: &OwnedFd,
        name: &OsString,
        status: FileStatus,
    ) -> io::Result<Option<Node>> {
        if let Some(known) = self.nodes.get(status.id).filter(|known| !known.nameless) {
            return Ok(Some(known.node));
        }
        let c_name = c_string(name)?;
        let mode = status.mode;
        match status.kind {
            FileKind::Special => Ok(None),
            FileKind::Symlink => {
                let target = read_link(parent.as_raw_fd(), &c_name)?;
                let node = self.nodes.bind(status.id, status.kind, false);
                let kind = Kind::Symlink { target };
                self.push(pid, call, Action::Create { node, mode, kind, dir_entry: None });
                Ok(Some(node))
            }
            FileKind::Regular => {
                let flags = libc::O_RDONLY | libc::O_NOFOLLOW;
                let file = File::from(open_at(parent.as_raw_fd(), &c_name, flags)?);
                let node = self.nodes.bind(status.id, status.kind, false);
                let kind = Kind::File;
                self.push(pid, call, Action::Create { node, mode, kind, dir_entry: None });
                let mut extents = Vec::new();
                for_each_extent(&file, status.size, |offset, data| {
                    extents.push((offset, self.bytes.keep(data)?));
                    Ok(())
                })?;
                let end = extents.last().map_or(0, |(offset, data)| offset + data.len() as u64);
                if end != status.size {
                    // Before the bytes: a file system may write bytes when the size is set after them,
                    // and it is unknown whether this one did.
                    self.push(pid, call, Action::Truncate { node, size: status.size });
                }
                for (offset, data) in extents {
                    let (sync, mapped) = (WriteSync::None, false);
                    self.push(pid, call, Action::Write { node, offset, data, sync, mapped });
                }
                if self.outside_is_clean(status.id) {
                    self.push(pid, call, Action::Sync { node, data_only: false });
                }
                Ok(Some(node))
            }
            FileKind::Directory => {
                let directory = open_directory(parent.as_raw_fd(), &c_name)?;
                let node = self.nodes.bind(status.id, status.kind, false);
                let kind = Kind::Directory;
                self.push(pid, call, Action::Create { node, mode, kind, dir_entry: None });
                for name in names(directory.as_raw_fd())? {
                    let c_name = c_string(&name)?;
                    let flags = libc::AT_SYMLINK_NOFOLLOW;
                    let status = FileStatus::at(directory.as_raw_fd(), &c_name, flags)?;
                    if let Some(child) = self.import(pid, call, &directory, &name, status)? {
                        let dir_entry = DirEntry { directory: node, name };
                        self.push(pid, call, Action::Link { node: child, dir_entry });
                    }
                }
                Ok(Some(node))
            }
        }
    }

    /// The file named `from` is now named `to`, which is outside.
    pub(super) fn moved_out(
        &mut self,
        pid: pid_t,
        name: &str,
        from: &ResolvedPath,
        to: &ResolvedPath,
    ) -> Result<(), RecordError> {
        let Some(status) = from.status else { return Ok(()) };
        let Some(known) = self.nodes.get(status.id) else { return Ok(()) };
        if let Some(dir_entry) = self.dir_entry(from) {
            self.push(pid, name, Action::Remove { node: known.node, dir_entry });
        }
        let failed = |source| RecordError::system(name, source);
        if status.kind == FileKind::Directory {
            let moved = to.c_name().map_err(failed)?;
            let directory = open_directory(to.parent.as_raw_fd(), &moved).map_err(failed)?;
            self.forget_below(&directory).map_err(failed)?;
        }
        // Another name of the file may still be inside.
        if status.links <= 1 || status.kind == FileKind::Directory {
            self.nodes.forget(status.id);
        }
        Ok(())
    }

    fn forget_below(&mut self, directory: &OwnedFd) -> io::Result<()> {
        for name in names(directory.as_raw_fd())? {
            let name = c_string(&name)?;
            let status = FileStatus::at(directory.as_raw_fd(), &name, libc::AT_SYMLINK_NOFOLLOW)?;
            if status.kind == FileKind::Directory {
                self.forget_below(&open_directory(directory.as_raw_fd(), &name)?)?;
            }
            if status.links <= 1 || status.kind == FileKind::Directory {
                self.nodes.forget(status.id);
            }
        }
        Ok(())
    }
}
