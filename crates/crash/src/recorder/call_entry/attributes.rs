//! Calls that change a mode, an owner or an extended attribute.

use libc::pid_t;

use super::names::target;
use super::{Planned, Target, exclusive, text};
use crate::operation::{Action, Node};
use crate::recorder::error::RecordError;
use crate::recorder::file::FileStatus;
use crate::recorder::pending_call::CallPlan;
use crate::recorder::syscalls::Subject;
use crate::recorder::task_memory;
use crate::recorder::tracer::Tracer;

/// The attribute with a file's access list. Setting it sets the mode, and a value of this size or
/// less is only a mode: `cp -p` and `sed -i` set it instead of the mode.
pub(in crate::recorder) const ACCESS_LIST: &str = "system.posix_acl_access";
const MODE_AS_LIST: usize = 4 + 3 * 8;

impl Tracer {
    pub(super) fn begin_mode(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        subject: Subject,
    ) -> Planned {
        match self.subject(pid, arguments, subject)? {
            Target::Inside(node) => exclusive(CallPlan::Mode { node, subject, list: None }),
            other => other.without_a_node(),
        }
    }

    pub(super) fn begin_set_attribute(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        subject: Subject,
        name: usize,
    ) -> Planned {
        let value = task_memory::bytes(pid, arguments[name + 1], arguments[name + 2] as usize);
        // Unreadable memory makes the call fail, too.
        let Ok(value) = value else { return Ok(None) };
        let name = text(pid, arguments[name])?;
        match self.subject(pid, arguments, subject)? {
            Target::Inside(node) if name == ACCESS_LIST => {
                let list = (value.len() > MODE_AS_LIST).then(|| value.into());
                exclusive(CallPlan::Mode { node, subject, list })
            }
            Target::Inside(node) => {
                let value = Some(value.into());
                exclusive(CallPlan::Emit(vec![Action::Attribute { node, name, value }]))
            }
            other => other.without_a_node(),
        }
    }

    pub(super) fn begin_remove_attribute(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        subject: Subject,
        name: usize,
    ) -> Planned {
        let name = text(pid, arguments[name])?;
        match self.subject(pid, arguments, subject)? {
            Target::Inside(node) => {
                exclusive(CallPlan::Emit(vec![Action::Attribute { node, name, value: None }]))
            }
            other => other.without_a_node(),
        }
    }

    fn subject(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        subject: Subject,
    ) -> Result<Target<Node>, RecordError> {
        match subject {
            Subject::Descriptor => Ok(match self.known(pid, arguments[0] as i32)? {
                Some((known, _)) => Target::Inside(known.node),
                None => Target::OutsideDescriptor,
            }),
            Subject::Path { at, itself, flags } => {
                let flags = flags.map_or(0, |flags| arguments[flags]) as i32;
                let itself = itself || flags & libc::AT_SYMLINK_NOFOLLOW != 0;
                self.node_at(pid, arguments, at, itself)
            }
        }
    }

    /// The current status of a call's subject.
    pub(in crate::recorder) fn subject_status(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        subject: Subject,
    ) -> Result<Option<FileStatus>, RecordError> {
        match subject {
            Subject::Descriptor => Ok(self.status(pid, arguments[0] as i32)),
            Subject::Path { at, itself, flags } => {
                let flags = flags.map_or(0, |flags| arguments[flags]) as i32;
                let itself = itself || flags & libc::AT_SYMLINK_NOFOLLOW != 0;
                target(pid, arguments, at, itself)
            }
        }
    }
}
