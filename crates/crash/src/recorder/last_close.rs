//! The last descriptor of a file that was open for writing: some file systems act when it is closed.

use std::fs;
use std::os::fd::AsRawFd;

use libc::pid_t;

use super::error::RecordError;
use super::file::{FileId, FileKind, FileStatus, c_string, open_at};
use super::tracer::Tracer;
use crate::operation::Action;

impl Tracer {
    /// A descriptor is about to be closed.
    pub(super) fn closing(&mut self, pid: pid_t, fd: i32) -> Result<(), RecordError> {
        let Some((known, opened)) = self.known(pid, fd)? else { return Ok(()) };
        if known.kind != FileKind::Regular || !opened.writable() {
            return Ok(());
        }
        let Some(status) = self.status(pid, fd) else { return Ok(()) };
        let process = self.process(pid);
        let but = |other: pid_t, number: i32| (other, number) == (process, fd);
        if !self.open_elsewhere(status.id, &but) {
            self.push(pid, "close", Action::Close { node: known.node });
        }
        Ok(())
    }

    /// The last thread of a process ends, which closes all its descriptors.
    pub(super) fn exiting(&mut self, pid: pid_t) -> Result<(), RecordError> {
        let process = self.process(pid);
        if self.threads(process) > 1 {
            return Ok(());
        }
        let mut closed = Vec::new();
        for fd in writable(process) {
            let Some((known, _)) = self.known(pid, fd)? else { continue };
            let Some(status) = self.status(pid, fd) else { continue };
            let but = |other: pid_t, _: i32| other == process;
            if known.kind == FileKind::Regular
                && !closed.contains(&known.node)
                && !self.open_elsewhere(status.id, &but)
            {
                closed.push(known.node);
            }
        }
        for node in closed {
            self.push(pid, "exit", Action::Close { node });
        }
        Ok(())
    }

    /// Whether a file is open for writing in any process, except through the given descriptors.
    fn open_elsewhere(&self, id: FileId, but: &dyn Fn(pid_t, i32) -> bool) -> bool {
        self.processes().into_iter().any(|process| {
            let Ok(path) = c_string(format!("/proc/{process}/fd").as_ref()) else { return false };
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            let Ok(directory) = open_at(libc::AT_FDCWD, &path, flags) else { return false };
            writable(process).into_iter().any(|fd| {
                !but(process, fd)
                    && c_string(fd.to_string().as_ref())
                        .and_then(|name| FileStatus::at(directory.as_raw_fd(), &name, 0))
                        .is_ok_and(|status| status.id == id)
            })
        })
    }
}

/// The descriptors of a process that can write.
fn writable(process: pid_t) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // The link's own mode says how the descriptor was opened.
            let mode = std::os::unix::fs::MetadataExt::mode(&entry.metadata().ok()?);
            if mode & 0o200 == 0 { None } else { entry.file_name().to_str()?.parse().ok() }
        })
        .collect()
}
