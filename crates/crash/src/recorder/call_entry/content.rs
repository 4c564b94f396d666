//! Calls on descriptors and mappings: what they write to a file, allocate, cut and sync.

use std::os::fd::AsRawFd;

use libc::pid_t;

use super::{Planned, exclusive, nothing};
use crate::marker::Marker;
use crate::operation::{Action, Entry, Node, WriteSync};
use crate::recorder::error::RecordError;
use crate::recorder::file::{FileId, FileKind};
use crate::recorder::pending_call::CallPlan;
use crate::recorder::tracer::{OpenFile, Tracer};
use crate::recorder::{mapped_files, task_memory};

const RWF_DSYNC: u64 = 2;
const RWF_SYNC: u64 = 4;
const RWF_APPEND: u64 = 0x10;
const RWF_NOAPPEND: u64 = 0x20;

const KEEP_SIZE: u64 = 1;
const PUNCH_HOLE: u64 = 2;
const ZERO_RANGE: u64 = 0x10;
const UNSHARE: u64 = 0x40;
const WRITE_ZEROES: u64 = 0x80;

impl Tracer {
    pub(super) fn begin_write(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        vector: bool,
        offset: Option<usize>,
        flags: Option<usize>,
    ) -> Planned {
        if let Some(mark) = Marker::from_descriptor(arguments[0]) {
            // The call fails as intended: there is no such descriptor.
            let Ok(said) = task_memory::bytes(pid, arguments[1], arguments[2] as usize) else {
                return Ok(None);
            };
            self.record_mapped_writes(pid, true)?;
            self.entries.push(match mark {
                Marker::Label => Entry::Label(String::from_utf8_lossy(&said).into_owned()),
                Marker::Acknowledgement => Entry::Acknowledgement(said),
            });
            return Ok(None);
        }
        let fd = arguments[0] as i32;
        let Some(opened) = self.opened(pid, fd)? else { return Ok(None) };
        if Some(opened.id) == self.stdout {
            return Ok(Some((CallPlan::Print { vector }, false)));
        }
        let per_call = flags.map_or(0, |flags| arguments[flags]);
        let sync = sync(opened.flags, per_call);
        let Some(known) = self.confirmed(pid, fd, opened.id)? else {
            return self.foreign(pid, fd, sync);
        };
        if known.kind != FileKind::Regular {
            return Ok(None);
        }
        let always = opened.flags & libc::O_APPEND != 0 && per_call & RWF_NOAPPEND == 0;
        let offset = if always || per_call & RWF_APPEND != 0 {
            self.status(pid, fd).map(|status| status.size)
        } else {
            match offset.map(|offset| arguments[offset]) {
                // `pwritev2` with -1 is `writev`.
                Some(u64::MAX) | None => self.position(pid, fd, &opened)?,
                offset => offset,
            }
        };
        let Some(offset) = offset else { return Ok(None) };
        exclusive(CallPlan::Write { node: known.node, offset, vector, sync })
    }

    /// The current position of a descriptor.
    fn position(
        &mut self,
        pid: pid_t,
        fd: i32,
        opened: &OpenFile,
    ) -> Result<Option<u64>, RecordError> {
        match opened.position {
            Some(position) => Ok(Some(position)),
            None => Ok(self.descriptor(pid, fd)?.and_then(|opened| opened.position)),
        }
    }

    pub(super) fn begin_copy(&mut self, pid: pid_t, out: u64, offset: u64, plain: bool) -> Planned {
        let fd = out as i32;
        let Some((known, opened)) = self.known(pid, fd)? else {
            return self.foreign(pid, fd, WriteSync::None);
        };
        let offset = if opened.flags & libc::O_APPEND != 0 {
            self.status(pid, fd).map(|status| status.size)
        } else if offset == 0 {
            self.position(pid, fd, &opened)?
        } else {
            task_memory::word(pid, offset).ok()
        };
        let Some(offset) = offset else { return Ok(None) };
        let sync = sync(opened.flags, 0);
        if !plain {
            // Other tasks may change the file before this call ends.
            self.unsure.push(known.node);
        }
        Ok(Some((CallPlan::Copied { node: known.node, fd, offset, sync }, plain)))
    }

    /// A change of a file outside of the tree. A file on the same file system may be moved in at any
    /// time, so the recorder must know whether it was synced since.
    fn foreign(&mut self, pid: pid_t, fd: i32, sync: WriteSync) -> Planned {
        let opened = self.opened(pid, fd)?;
        if let Some(opened) = opened {
            self.written_outside(pid, fd, opened.id);
        }
        match opened {
            Some(OpenFile { id, .. }) if id.device == self.device => {
                let regular =
                    self.status(pid, fd).is_some_and(|status| status.kind == FileKind::Regular);
                if !regular {
                    return Ok(None);
                }
                // A write that waits for the device is durable when it returns; any other write makes the file
                // unsynced.
                if sync == WriteSync::None {
                    self.outside_written(id);
                }
                nothing()
            }
            _ => Ok(None),
        }
    }

    /// Whether reading would have to wait for another task.
    pub(super) fn is_empty_pipe(&mut self, pid: pid_t, fd: i32) -> bool {
        let Ok(pipe) = self.reopen(pid, fd) else { return true };
        let mut available: libc::c_int = 0;
        // SAFETY: a descriptor we hold, and room for the answer.
        let asked = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut available) };
        asked < 0 || available == 0
    }

    pub(super) fn begin_sync(&mut self, pid: pid_t, fd: i32, data_only: bool) -> Planned {
        let Some((known, _)) = self.known(pid, fd)? else {
            self.outside_synced(pid, fd)?;
            return Ok(None);
        };
        exclusive(CallPlan::Emit(vec![Action::Sync { node: known.node, data_only }]))
    }

    pub(super) fn begin_sync_range(
        &mut self,
        pid: pid_t,
        fd: i32,
        arguments: &[u64; 6],
    ) -> Planned {
        let Some((known, _)) = self.known(pid, fd)? else { return Ok(None) };
        let [_, offset, length, ..] = *arguments;
        let node = known.node;
        exclusive(CallPlan::Emit(vec![Action::SyncRange { node, offset, length }]))
    }

    pub(super) fn begin_truncate(&mut self, pid: pid_t, fd: i32, size: u64) -> Planned {
        let Some((known, _)) = self.known(pid, fd)? else {
            return self.foreign(pid, fd, WriteSync::None);
        };
        exclusive(CallPlan::Emit(vec![Action::Truncate { node: known.node, size }]))
    }

    pub(super) fn begin_allocate(&mut self, pid: pid_t, fd: i32, arguments: &[u64; 6]) -> Planned {
        let Some((known, _)) = self.known(pid, fd)? else {
            return self.foreign(pid, fd, WriteSync::None);
        };
        allocate(known.node, arguments)
    }

    pub(super) fn begin_map(&mut self, pid: pid_t, arguments: &[u64; 6]) -> Planned {
        if arguments[2] & libc::PROT_EXEC as u64 != 0 {
            let process = self.process(pid);
            if let Some(stacks) = &mut self.stacks {
                stacks.code_changes(process);
            }
        }
        if arguments[3] & libc::MAP_SHARED as u64 == 0 {
            return Ok(None);
        }
        let writable = arguments[2] & libc::PROT_WRITE as u64 != 0;
        match self.known(pid, arguments[4] as i32)? {
            Some((known, opened))
                if known.kind == FileKind::Regular && (writable || opened.writable()) =>
            {
                exclusive(CallPlan::Map)
            }
            Some(_) => Ok(None),
            None => {
                if let Some(opened) = self.opened(pid, arguments[4] as i32)?
                    && opened.writable()
                {
                    if writable {
                        self.written_outside(pid, arguments[4] as i32, opened.id);
                    }
                    if opened.id.device == self.device {
                        self.outside_mapped(opened.id);
                    }
                }
                Ok(None)
            }
        }
    }

    pub(super) fn begin_protect(&mut self, pid: pid_t, arguments: &[u64; 6]) -> Planned {
        if self.mappings.any_readable() {
            let process = self.process(pid);
            for range in mapped_files::shared(process, arguments[0], arguments[1]) {
                self.mappings
                    .promote(range.inode)
                    .map_err(|source| RecordError::system("a mapped file", source))?;
            }
        }
        Ok(None)
    }

    pub(super) fn begin_sync_mapping(&mut self, pid: pid_t, arguments: &[u64; 6]) -> Planned {
        if arguments[2] & libc::MS_SYNC as u64 == 0 {
            return Ok(None);
        }
        let ranges = mapped_files::shared(self.process(pid), arguments[0], arguments[1]);
        let mut actions: Vec<Action> = Vec::new();
        for mapped_files::MappedRange { inode, offset, length } in ranges {
            let id = FileId { device: self.device, inode };
            if let Some(known) = self.nodes.get(id) {
                let node = known.node;
                let action = match self.mappings.ends_within(node, offset, length) {
                    true => Action::Sync { node, data_only: true },
                    false => Action::SyncPart { node, offset, length },
                };
                if !actions.contains(&action) {
                    actions.push(action);
                }
            }
        }
        if actions.is_empty() { Ok(None) } else { exclusive(CallPlan::Emit(actions)) }
    }
}

fn sync(flags: i32, per_call: u64) -> WriteSync {
    if flags & libc::O_SYNC == libc::O_SYNC || per_call & RWF_SYNC != 0 {
        WriteSync::Full
    } else if flags & libc::O_DSYNC != 0 || per_call & RWF_DSYNC != 0 {
        WriteSync::Data
    } else {
        WriteSync::None
    }
}

fn allocate(node: Node, arguments: &[u64; 6]) -> Planned {
    let [_, mode, offset, length, ..] = *arguments;
    let keep_size = mode & KEEP_SIZE != 0;
    let action = match mode & !KEEP_SIZE {
        0 => Action::Allocate { node, offset, length, keep_size },
        UNSHARE => return Ok(None),
        PUNCH_HOLE => Action::Zero { node, offset, length, keep_size, hole: true },
        ZERO_RANGE | WRITE_ZEROES => Action::Zero { node, offset, length, keep_size, hole: false },
        other => {
            return Err(RecordError::Refused {
                call: format!("fallocate(mode {other:#x})"),
                why: "it moves the bytes behind a range, which no model here understands"
                    .to_owned(),
            });
        }
    };
    exclusive(CallPlan::Emit(vec![action]))
}
