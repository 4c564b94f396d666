//! The end of a call: what it did, as entries of the log.

use std::io;

use libc::pid_t;

use super::failure::RecordError;
use super::file::{FileKind, Status};
use super::plan::{Pending, Plan};
use super::route::Route;
use super::watch::{Opened, Watch};
use super::{begin, mapped, memory};
use crate::operation::{Action, DirEntry, Kind};

impl Watch {
    /// `result` is what the call returned.
    pub(super) fn finish(
        &mut self,
        pid: pid_t,
        pending: Pending,
        result: i64,
    ) -> Result<(), RecordError> {
        let Pending { name, arguments, plan, .. } = pending;
        match plan {
            Plan::RefuseUnknown { number } if result != -i64::from(libc::ENOSYS) => {
                return Err(RecordError::Refused {
                    call: format!("system call {number}"),
                    why: "this recorder does not know what it does".to_owned(),
                });
            }
            Plan::Unpinned => {
                if let Some(pin) = &self.pin {
                    pin.again();
                }
            }
            _ if result < 0 => return Ok(()),
            Plan::Refuse { why } => {
                return Err(RecordError::Refused { call: name.to_owned(), why: why.to_owned() });
            }
            Plan::Say { vector } => {
                if result > 0 {
                    let said = gather(pid, &arguments, vector, result as usize)
                        .map_err(|source| RecordError::system(name, source))?;
                    self.said(pid, &said)?;
                }
            }
            Plan::Write { node, offset, vector, sync } => {
                if result > 0 {
                    let data = gather(pid, &arguments, vector, result as usize);
                    // Another thread may have unmapped the buffer since; the file has the bytes.
                    let data = data.map(Into::into).or_else(|_| {
                        self.read_back(pid, arguments[0] as i32, offset, result as usize)
                    });
                    let data = data.map_err(|source| RecordError::system(name, source))?;
                    let mapped = false;
                    self.push(pid, name, Action::Write { node, offset, data, sync, mapped });
                }
            }
            Plan::Copied { node, fd, offset, sync } => {
                if result > 0 {
                    match self.read_back(pid, fd, offset, result as usize) {
                        Ok(data) => {
                            let mapped = false;
                            self.push(
                                pid,
                                name,
                                Action::Write { node, offset, data, sync, mapped },
                            );
                        }
                        // Cut short by another task meanwhile.
                        Err(_) if self.unsure.contains(&node) => {}
                        Err(source) => return Err(RecordError::system(name, source)),
                    }
                }
            }
            Plan::Emit(actions) => {
                for action in actions {
                    self.push(pid, name, action);
                }
            }
            Plan::Create { route } => {
                let status = self.status(pid, result as i32);
                if let Some(status) = status.filter(|status| status.kind == FileKind::Regular) {
                    self.created(pid, name, status, Some(&route), Kind::File);
                }
            }
            Plan::CreateUnnamed => {
                if let Some(status) = self.status(pid, result as i32) {
                    self.created(pid, name, status, None, Kind::File);
                }
            }
            Plan::Symlink { target, route } => {
                if let Some(status) = looked(name, &route)? {
                    self.created(pid, name, status, Some(&route), Kind::Symlink { target });
                }
            }
            Plan::Make { route } => {
                let status = looked(name, &route)?;
                let kind = match status.map(|status| status.kind) {
                    Some(FileKind::Directory) => Kind::Directory,
                    Some(FileKind::Regular) => Kind::File,
                    _ => return Ok(()),
                };
                if let Some(status) = status {
                    self.created(pid, name, status, Some(&route), kind);
                }
            }
            Plan::Unlink { route, status, node } => {
                if status.links <= 1 || status.kind == FileKind::Directory {
                    self.nodes.set_nameless(status.id, true);
                }
                if let Some(dir_entry) = self.dir_entry(&route) {
                    self.push(pid, name, Action::Remove { node, dir_entry });
                }
            }
            Plan::Link { source, route } => self.linked(pid, name, source, &route)?,
            Plan::Rename { from, to, exchange } => {
                self.renamed(pid, name, &from, &to, exchange)?;
            }
            Plan::Mode { node, subject, list } => {
                if list.is_some() {
                    let attribute = begin::ACCESS_LIST.into();
                    let action = Action::Attribute { node, name: attribute, value: list };
                    self.push(pid, name, action);
                }
                if let Some(status) = self.subject_status(pid, &arguments, subject)? {
                    self.push(pid, name, Action::Mode { node, mode: status.mode });
                }
            }
            Plan::Map => self.map(pid, &arguments)?,
            Plan::RefuseUnknown { .. } => {}
        }
        Ok(())
    }

    pub(super) fn dir_entry(&self, route: &Route) -> Option<DirEntry> {
        let directory = self.nodes.directory(route.parent_id)?;
        Some(DirEntry { directory, name: route.name.clone() })
    }

    pub(super) fn created(
        &mut self,
        pid: pid_t,
        name: &str,
        status: Status,
        route: Option<&Route>,
        kind: Kind,
    ) {
        let dir_entry = route.and_then(|route| self.dir_entry(route));
        let node = self.nodes.bind(status.id, status.kind, dir_entry.is_none());
        self.push(pid, name, Action::Create { node, mode: status.mode, kind, dir_entry });
    }

    fn linked(
        &mut self,
        pid: pid_t,
        name: &str,
        source: Status,
        route: &Route,
    ) -> Result<(), RecordError> {
        // A nameless node is doubted: the file may be another one with its number.
        let known = self.nodes.get(source.id).filter(|known| known.nameless == (source.links == 0));
        match known {
            Some(known) => {
                self.nodes.set_nameless(source.id, false);
                if let Some(dir_entry) = self.dir_entry(route) {
                    self.push(pid, name, Action::Link { node: known.node, dir_entry });
                }
                Ok(())
            }
            None => self.moved_in(pid, name, route),
        }
    }

    fn renamed(
        &mut self,
        pid: pid_t,
        name: &str,
        from: &Route,
        to: &Route,
        exchange: bool,
    ) -> Result<(), RecordError> {
        let Some(moved) = from.status else { return Ok(()) };
        // Two names of one file: the call succeeds and does nothing.
        if to.status.is_some_and(|there| there.id == moved.id) {
            return Ok(());
        }
        let node = |status: Option<Status>| {
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
            // A socket or a pipe moves about; what it replaces is gone all the same.
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

    /// What had this name lost it.
    pub(super) fn overwritten(&mut self, route: &Route) {
        if let Some(status) = route.status
            && (status.links <= 1 || status.kind == FileKind::Directory)
        {
            self.nodes.set_nameless(status.id, true);
        }
    }

    fn map(&mut self, pid: pid_t, arguments: &[u64; 6]) -> Result<(), RecordError> {
        let fd = arguments[4] as i32;
        let Some((known, Opened { id, .. })) = self.known(pid, fd)? else { return Ok(()) };
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
    ) -> io::Result<std::sync::Arc<[u8]>> {
        mapped::read_back(&self.reopen(pid, fd)?, offset, length)
    }
}

fn looked(name: &str, route: &Route) -> Result<Option<Status>, RecordError> {
    route.look().map_err(|source| RecordError::system(name, source))
}

fn gather(pid: pid_t, arguments: &[u64; 6], vector: bool, length: usize) -> io::Result<Vec<u8>> {
    if vector {
        memory::vector(pid, arguments[1], arguments[2], length)
    } else {
        memory::bytes(pid, arguments[1], length)
    }
}
