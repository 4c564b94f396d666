//! The end of a call: its effect, as entries of the log.

use std::io;

use libc::pid_t;

use super::error::RecordError;
use super::file::{FileKind, FileStatus};
use super::path_lookup::ResolvedPath;
use super::pending_call::{CallPlan, PendingCall};
use super::tracer::{OpenFile, Tracer};
use super::{call_entry, mapped_files, task_memory};
use crate::operation::{Action, DirEntry, Kind};
use crate::recorded_bytes::RecordedBytes;

impl Tracer {
    /// `result` is the return value of the call.
    pub(super) fn finish(
        &mut self,
        pid: pid_t,
        pending: PendingCall,
        result: i64,
    ) -> Result<(), RecordError> {
        let PendingCall { name, arguments, plan, .. } = pending;
        match plan {
            CallPlan::RefuseUnknown { number } if result != -i64::from(libc::ENOSYS) => {
                return Err(RecordError::Refused {
                    call: format!("system call {number}"),
                    why: "this recorder does not know what it does".to_owned(),
                });
            }
            CallPlan::Unpinned => {
                if let Some(pin) = &self.pin {
                    pin.restore();
                }
            }
            _ if result < 0 => return Ok(()),
            CallPlan::Refuse { why } => {
                return Err(RecordError::Refused { call: name.to_owned(), why: why.to_owned() });
            }
            CallPlan::Print { vector } => {
                if result > 0 {
                    let said = gather(pid, &arguments, vector, result as usize)
                        .map_err(|source| RecordError::system(name, source))?;
                    self.printed(pid, &said)?;
                }
            }
            CallPlan::Write { node, offset, vector, sync } if result > 0 => {
                let data = gather(pid, &arguments, vector, result as usize);
                // Another thread may have unmapped the buffer since; the file has the bytes.
                let data = match data {
                    Ok(data) => self.bytes.keep_all(data),
                    Err(_) => self.read_back(pid, arguments[0] as i32, offset, result as usize),
                };
                let data = data.map_err(|source| RecordError::system(name, source))?;
                let mapped = false;
                self.push(pid, name, Action::Write { node, offset, data, sync, mapped });
            }
            CallPlan::Copied { node, fd, offset, sync } if result > 0 => {
                match self.read_back(pid, fd, offset, result as usize) {
                    Ok(data) => {
                        let mapped = false;
                        self.push(pid, name, Action::Write { node, offset, data, sync, mapped });
                    }
                    // Another task has cut it in the meantime.
                    Err(_) if self.unsure.contains(&node) => {}
                    Err(source) => return Err(RecordError::system(name, source)),
                }
            }
            // Nothing was written.
            CallPlan::Write { .. } | CallPlan::Copied { .. } => {}
            CallPlan::Emit(actions) => {
                for action in actions {
                    self.push(pid, name, action);
                }
            }
            CallPlan::Create { resolved } => {
                let status = self.status(pid, result as i32);
                if let Some(status) = status.filter(|status| status.kind == FileKind::Regular) {
                    self.created(pid, name, status, Some(&resolved), Kind::File);
                }
            }
            CallPlan::CreateUnnamed => {
                if let Some(status) = self.status(pid, result as i32) {
                    self.created(pid, name, status, None, Kind::File);
                }
            }
            CallPlan::Symlink { target, resolved } => {
                if let Some(status) = status_now(name, &resolved)? {
                    self.created(pid, name, status, Some(&resolved), Kind::Symlink { target });
                }
            }
            CallPlan::Make { resolved } => self.made(pid, name, &resolved)?,
            CallPlan::Unlink { resolved, status, node } => {
                self.unlinked(status);
                if let Some(dir_entry) = self.dir_entry(&resolved) {
                    self.push(pid, name, Action::Remove { node, dir_entry });
                }
            }
            CallPlan::Link { source, resolved } => self.linked(pid, name, source, &resolved)?,
            CallPlan::Rename { from, to, exchange } => {
                self.renamed(pid, name, &from, &to, exchange)?;
            }
            CallPlan::Mode { node, subject, list } => {
                if let Some(list) = list {
                    let (attribute, value) = (call_entry::ACCESS_LIST.into(), Some(list));
                    self.push(pid, name, Action::Attribute { node, name: attribute, value });
                }
                if let Some(status) = self.subject_status(pid, &arguments, subject)? {
                    self.push(pid, name, Action::Mode { node, mode: status.mode });
                }
            }
            CallPlan::Map => self.map(pid, &arguments)?,
            CallPlan::RefuseUnknown { .. } => {}
        }
        Ok(())
    }

    pub(super) fn dir_entry(&self, resolved: &ResolvedPath) -> Option<DirEntry> {
        let directory = self.nodes.directory(resolved.parent_id)?;
        Some(DirEntry { directory, name: resolved.name.clone() })
    }

    /// `mkdir` or `mknod`.
    fn made(&mut self, pid: pid_t, name: &str, resolved: &ResolvedPath) -> Result<(), RecordError> {
        let Some(status) = status_now(name, resolved)? else { return Ok(()) };
        let kind = match status.kind {
            FileKind::Directory => Kind::Directory,
            FileKind::Regular => Kind::File,
            _ => return Ok(()),
        };
        self.created(pid, name, status, Some(resolved), kind);
        Ok(())
    }

    pub(super) fn created(
        &mut self,
        pid: pid_t,
        name: &str,
        status: FileStatus,
        resolved: Option<&ResolvedPath>,
        kind: Kind,
    ) {
        let dir_entry = resolved.and_then(|resolved| self.dir_entry(resolved));
        let node = self.nodes.bind(status.id, status.kind, dir_entry.is_none());
        self.push(pid, name, Action::Create { node, mode: status.mode, kind, dir_entry });
    }

    fn linked(
        &mut self,
        pid: pid_t,
        name: &str,
        source: FileStatus,
        resolved: &ResolvedPath,
    ) -> Result<(), RecordError> {
        // A nameless node is checked again: its number may belong to another file by now.
        let known = self.nodes.get(source.id).filter(|known| known.nameless == (source.links == 0));
        match known {
            Some(known) => {
                self.nodes.set_nameless(source.id, false);
                if let Some(dir_entry) = self.dir_entry(resolved) {
                    self.push(pid, name, Action::Link { node: known.node, dir_entry });
                }
                Ok(())
            }
            None => self.moved_in(pid, name, resolved),
        }
    }

    fn renamed(
        &mut self,
        pid: pid_t,
        name: &str,
        from: &ResolvedPath,
        to: &ResolvedPath,
        exchange: bool,
    ) -> Result<(), RecordError> {
        let Some(moved) = from.status else { return Ok(()) };
        // Two names of one file: the call succeeds and does nothing.
        if to.status.is_some_and(|there| there.id == moved.id) {
            return Ok(());
        }
        let node = |status: Option<FileStatus>| {
            status.and_then(|status| self.nodes.get(status.id)).map(|known| known.node)
        };
        let (first, second) = (node(from.status), node(to.status));
        let dir_entries = (self.dir_entry(from), self.dir_entry(to));
        let (Some(from_entry), Some(to_entry)) = dir_entries else {
            return match (self.dir_entry(from).is_some(), exchange) {
                (true, false) => self.moved_out(pid, name, from, to),
                (true, true) => {
                    self.moved_out(pid, name, from, to)?;
                    self.moved_in(pid, name, from)
                }
                (false, false) => {
                    self.overwritten(to);
                    self.moved_in(pid, name, to)
                }
                (false, true) => {
                    self.moved_out(pid, name, to, from)?;
                    self.moved_in(pid, name, to)
                }
            };
        };
        let action = match (first, second) {
            // A socket or a pipe is renamed, which is not recorded, but the file it replaces is gone.
            (None, Some(node)) if !exchange => {
                self.overwritten(to);
                Action::Remove { node, dir_entry: to_entry }
            }
            (None, _) => return Ok(()),
            (Some(first), Some(second)) if exchange => {
                Action::Exchange { first, first_entry: from_entry, second, second_entry: to_entry }
            }
            (Some(node), replaced) => {
                self.overwritten(to);
                Action::Rename { node, from: from_entry, to: to_entry, replaced }
            }
        };
        self.push(pid, name, action);
        Ok(())
    }

    /// The file that had this name lost it.
    pub(super) fn overwritten(&mut self, resolved: &ResolvedPath) {
        if let Some(status) = resolved.status {
            self.unlinked(status);
        }
    }

    /// A file lost one of its names.
    fn unlinked(&mut self, before: FileStatus) {
        if before.links <= 1 || before.kind == FileKind::Directory {
            self.nodes.set_nameless(before.id, true);
        }
    }

    fn map(&mut self, pid: pid_t, arguments: &[u64; 6]) -> Result<(), RecordError> {
        let fd = arguments[4] as i32;
        let Some((known, OpenFile { id, .. })) = self.known(pid, fd)? else { return Ok(()) };
        let system = |source| RecordError::system("a mapped file cannot be watched", source);
        let file = self.reopen(pid, fd).map_err(system)?;
        if arguments[2] & libc::PROT_WRITE as u64 != 0 {
            self.mappings.add(known.node, id, file).map_err(system)
        } else {
            self.mappings.add_readable(known.node, id, file);
            Ok(())
        }
    }

    fn read_back(
        &mut self,
        pid: pid_t,
        fd: i32,
        offset: u64,
        length: usize,
    ) -> io::Result<RecordedBytes> {
        let read = mapped_files::read_back(&self.reopen(pid, fd)?, offset, length)?;
        self.bytes.keep_all(read)
    }
}

fn status_now(name: &str, resolved: &ResolvedPath) -> Result<Option<FileStatus>, RecordError> {
    resolved.status_now().map_err(|source| RecordError::system(name, source))
}

fn gather(pid: pid_t, arguments: &[u64; 6], vector: bool, length: usize) -> io::Result<Vec<u8>> {
    if vector {
        task_memory::vector(pid, arguments[1], arguments[2], length)
    } else {
        task_memory::bytes(pid, arguments[1], length)
    }
}
