//! The beginning of a call: whether it concerns the watched tree, and what must be known about
//! it before it is made.
//!
//! Nothing is recorded here, because the call can still fail.

use std::ffi::OsString;
use std::io;

use libc::pid_t;

use super::error::RecordError;
use super::file::FileKind;
use super::pending_call::{CallPlan, PendingCall};
use super::syscalls::{CallMeaning, Syscall};
use super::task_memory;
use super::tracer::Tracer;
use crate::operation::Action;

mod attributes;
mod content;
mod names;

pub(super) use attributes::ACCESS_LIST;
pub(super) use names::{open_flags, target};

/// `None` lets the call pass.
type Planned = Result<Option<(CallPlan, bool)>, RecordError>;

fn exclusive(plan: CallPlan) -> Planned {
    Ok(Some((plan, true)))
}

/// The call will fail, or succeed and change nothing here, unless another task changes names
/// before it is made. Names outside count too: they may be moved in.
fn nothing() -> Planned {
    exclusive(CallPlan::Emit(Vec::new()))
}

/// The file that a call would operate on.
enum Target<T> {
    Inside(T),
    /// An open file outside of the tree.
    OutsideDescriptor,
    /// A path that leads out of the tree, or to nothing that the call could operate on.
    OutsidePath,
}

impl<T> Target<T> {
    fn without_a_node(self) -> Planned {
        match self {
            Self::OutsideDescriptor => Ok(None),
            _ => nothing(),
        }
    }
}

impl Tracer {
    pub(super) fn begin(
        &mut self,
        pid: pid_t,
        call: &Syscall,
        arguments: [u64; 6],
    ) -> Result<Option<PendingCall>, RecordError> {
        let begun = self.plan(pid, call, &arguments)?;
        Ok(begun.map(|(plan, exclusive)| PendingCall {
            name: call.name,
            arguments,
            plan,
            exclusive,
            fault: None,
        }))
    }

    fn plan(&mut self, pid: pid_t, call: &Syscall, arguments: &[u64; 6]) -> Planned {
        let fd = arguments[0] as i32;
        match call.what {
            CallMeaning::Write { vector, offset, flags } => {
                self.begin_write(pid, arguments, vector, offset, flags)
            }
            CallMeaning::Sync { data_only } => self.begin_sync(pid, fd, data_only),
            CallMeaning::Open { at, flags } => self.begin_open(pid, arguments, at, flags),
            CallMeaning::Map => self.begin_map(pid, arguments),
            CallMeaning::Protect => self.begin_protect(pid, arguments),
            CallMeaning::GetProcessors => match &self.pin {
                Some(pin) => {
                    pin.suspend();
                    Ok(Some((CallPlan::Unpinned, false)))
                }
                None => Ok(None),
            },
            CallMeaning::SetProcessors => {
                self.pin = None;
                Ok(None)
            }
            CallMeaning::Read => Ok(None),
            CallMeaning::Close => {
                self.closing(pid, fd)?;
                self.reopened(Some(fd));
                Ok(None)
            }
            CallMeaning::Descriptors => {
                self.reopened(None);
                Ok(None)
            }
            CallMeaning::SyncMapping => self.begin_sync_mapping(pid, arguments),
            CallMeaning::TruncatePath => self.begin_truncate_path(pid, arguments),
            CallMeaning::Truncate => self.begin_truncate(pid, fd, arguments[1]),
            CallMeaning::Allocate => self.begin_allocate(pid, fd, arguments),
            CallMeaning::SyncRange => self.begin_sync_range(pid, fd, arguments),
            CallMeaning::SyncFileSystem => match self.opened(pid, fd)? {
                Some(opened) if opened.id.device == self.device => {
                    exclusive(CallPlan::Emit(vec![Action::SyncAll]))
                }
                _ => Ok(None),
            },
            CallMeaning::SyncAll => exclusive(CallPlan::Emit(vec![Action::SyncAll])),
            CallMeaning::CopyRange => self.begin_copy(pid, arguments[2], arguments[3], true),
            CallMeaning::Sendfile => {
                let source = self.status(pid, arguments[1] as i32);
                let plain = source.is_some_and(|source| source.kind == FileKind::Regular);
                self.begin_copy(pid, arguments[0], 0, plain)
            }
            CallMeaning::Splice => {
                let waits = self.is_empty_pipe(pid, arguments[0] as i32);
                self.begin_copy(pid, arguments[2], arguments[3], !waits)
            }
            CallMeaning::Rename { from, to, flags } => {
                self.begin_rename(pid, arguments, from, to, flags)
            }
            CallMeaning::Link { from, to, flags } => {
                self.begin_link(pid, arguments, from, to, flags)
            }
            CallMeaning::Symlink { target, to } => self.begin_symlink(pid, arguments, target, to),
            CallMeaning::Unlink { at } => self.begin_unlink(pid, arguments, at),
            CallMeaning::MakeDirectory { at } | CallMeaning::MakeNode { at } => {
                self.begin_make(pid, arguments, at)
            }
            CallMeaning::Mode(subject) => self.begin_mode(pid, arguments, subject),
            CallMeaning::SetAttribute { subject, name } => {
                self.begin_set_attribute(pid, arguments, subject, name)
            }
            CallMeaning::RemoveAttribute { subject, name } => {
                self.begin_remove_attribute(pid, arguments, subject, name)
            }
            CallMeaning::Refuse(why) => {
                Err(RecordError::Refused { call: call.name.to_owned(), why: why.to_owned() })
            }
            CallMeaning::RefuseSuccess(why) => {
                if call.number == libc::SYS_ioctl && self.known(pid, fd)?.is_none() {
                    return Ok(None);
                }
                Ok(Some((CallPlan::Refuse { why }, false)))
            }
        }
    }
}

/// A path or name that the task gave. If it cannot be read, the call cannot read it either: the
/// empty path leads nowhere.
fn text(pid: pid_t, address: u64) -> Result<OsString, RecordError> {
    match task_memory::text(pid, address) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Err(RecordError::Forbidden { source: error })
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            Err(RecordError::system("process_vm_readv", error))
        }
        text => Ok(text.unwrap_or_default()),
    }
}
