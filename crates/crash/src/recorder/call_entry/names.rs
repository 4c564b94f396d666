//! Calls on paths: what they create, rename, link and remove, and where their paths lead.

use std::ffi::OsString;

use libc::pid_t;

use super::{Planned, Target, exclusive, nothing, text};
use crate::operation::{Action, Node};
use crate::recorder::error::RecordError;
use crate::recorder::file::{FileKind, FileStatus};
use crate::recorder::path_lookup::{self, ResolvedPath};
use crate::recorder::pending_call::CallPlan;
use crate::recorder::syscalls::{OpenFlags, PathArgument};
use crate::recorder::task_memory;
use crate::recorder::tracer::Tracer;

const RENAME_EXCHANGE: u64 = 2;
const RENAME_WHITEOUT: u64 = 4;

impl Tracer {
    pub(super) fn begin_open(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        at: PathArgument,
        flags: OpenFlags,
    ) -> Planned {
        let Some(flags) = open_flags(pid, arguments, flags) else { return Ok(None) };
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return match target(pid, arguments, at, false)? {
                Some(one) if self.nodes.directory(one.id).is_some() => {
                    exclusive(CallPlan::CreateUnnamed)
                }
                _ => nothing(),
            };
        }
        if flags & (libc::O_CREAT | libc::O_TRUNC) == 0 {
            return Ok(None);
        }
        let exclusively = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
        let follow = flags & libc::O_NOFOLLOW == 0 && !exclusively;
        let Some(resolved) = self.resolve(pid, arguments, at, follow)? else { return nothing() };
        let inside = self.nodes.directory(resolved.parent_id).is_some();
        match resolved.status {
            None if !inside || flags & libc::O_CREAT == 0 => nothing(),
            None => exclusive(CallPlan::Create { resolved }),
            // Opening a pipe may wait for its other end.
            Some(status) if status.kind == FileKind::Special => Ok(None),
            Some(_) if exclusively || flags & libc::O_TRUNC == 0 => nothing(),
            Some(status) if status.kind == FileKind::Regular => match self.nodes.get(status.id) {
                Some(known) => {
                    exclusive(CallPlan::Emit(vec![Action::Truncate { node: known.node, size: 0 }]))
                }
                None => nothing(),
            },
            Some(_) => nothing(),
        }
    }

    pub(super) fn begin_rename(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        from: PathArgument,
        to: PathArgument,
        flags: Option<usize>,
    ) -> Planned {
        let flags = flags.map_or(0, |flags| arguments[flags]);
        let Some(from) = self.resolve(pid, arguments, from, false)? else { return nothing() };
        let Some(to) = self.resolve(pid, arguments, to, false)? else { return nothing() };
        let inside = |resolved: &ResolvedPath| self.nodes.directory(resolved.parent_id).is_some();
        if from.status.is_none() || !(inside(&from) || inside(&to)) {
            return nothing();
        }
        if flags & RENAME_WHITEOUT != 0 {
            return Err(RecordError::Refused {
                call: "renameat2(RENAME_WHITEOUT)".to_owned(),
                why: "it leaves a device behind".to_owned(),
            });
        }
        exclusive(CallPlan::Rename { from, to, exchange: flags & RENAME_EXCHANGE != 0 })
    }

    pub(super) fn begin_link(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        from: PathArgument,
        to: PathArgument,
        flags: Option<usize>,
    ) -> Planned {
        let flags = flags.map_or(0, |flags| arguments[flags]) as i32;
        let resolved = match self.vacant(pid, arguments, to)? {
            Target::Inside(resolved) => resolved,
            other => return other.without_a_node(),
        };
        let itself = flags & (libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) == 0;
        match target(pid, arguments, from, itself)? {
            Some(source) => exclusive(CallPlan::Link { source, resolved }),
            None => nothing(),
        }
    }

    fn resolve(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        at: PathArgument,
        follow: bool,
    ) -> Result<Option<ResolvedPath>, RecordError> {
        let (base, path) = named(pid, arguments, at)?;
        Ok(path_lookup::find(pid, base, &path, follow))
    }

    /// A name inside the tree that does not exist yet.
    fn vacant(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        at: PathArgument,
    ) -> Result<Target<ResolvedPath>, RecordError> {
        Ok(match self.resolve(pid, arguments, at, false)? {
            Some(resolved)
                if resolved.status.is_none()
                    && self.nodes.directory(resolved.parent_id).is_some() =>
            {
                Target::Inside(resolved)
            }
            _ => Target::OutsidePath,
        })
    }

    pub(super) fn node_at(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        at: PathArgument,
        itself: bool,
    ) -> Result<Target<Node>, RecordError> {
        let target = target(pid, arguments, at, itself)?;
        Ok(match target.and_then(|target| self.nodes.get(target.id)) {
            Some(known) => Target::Inside(known.node),
            None => Target::OutsidePath,
        })
    }

    pub(super) fn begin_truncate_path(&mut self, pid: pid_t, arguments: &[u64; 6]) -> Planned {
        let at = PathArgument { base: None, path: 0 };
        match self.node_at(pid, arguments, at, false)? {
            Target::Inside(node) => {
                exclusive(CallPlan::Emit(vec![Action::Truncate { node, size: arguments[1] }]))
            }
            other => other.without_a_node(),
        }
    }

    pub(super) fn begin_symlink(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        target: usize,
        to: PathArgument,
    ) -> Planned {
        let target = text(pid, arguments[target])?;
        match self.vacant(pid, arguments, to)? {
            Target::Inside(resolved) => exclusive(CallPlan::Symlink { target, resolved }),
            other => other.without_a_node(),
        }
    }

    pub(super) fn begin_unlink(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        at: PathArgument,
    ) -> Planned {
        let Some(resolved) = self.resolve(pid, arguments, at, false)? else { return nothing() };
        if self.nodes.directory(resolved.parent_id).is_none() {
            return nothing();
        }
        let known = resolved.status.and_then(|status| self.nodes.get(status.id));
        match (resolved.status, known) {
            (Some(status), Some(known)) => {
                exclusive(CallPlan::Unlink { resolved, status, node: known.node })
            }
            _ => nothing(),
        }
    }

    pub(super) fn begin_make(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        at: PathArgument,
    ) -> Planned {
        match self.vacant(pid, arguments, at)? {
            Target::Inside(resolved) => exclusive(CallPlan::Make { resolved }),
            other => other.without_a_node(),
        }
    }
}

/// The flags of an `open`; `None` if its memory cannot be read, which makes the call fail.
pub(in crate::recorder) fn open_flags(
    pid: pid_t,
    arguments: &[u64; 6],
    flags: OpenFlags,
) -> Option<i32> {
    match flags {
        OpenFlags::Argument(index) => Some(arguments[index] as i32),
        #[cfg(target_arch = "x86_64")]
        OpenFlags::Fixed(flags) => Some(flags),
        OpenFlags::How(index) => {
            task_memory::word(pid, arguments[index]).ok().map(|flags| flags as i32)
        }
    }
}

/// The path of a call, and the directory that it starts from.
fn named(
    pid: pid_t,
    arguments: &[u64; 6],
    at: PathArgument,
) -> Result<(i32, OsString), RecordError> {
    let base = at.base.map_or(libc::AT_FDCWD, |base| arguments[base] as i32);
    Ok((base, text(pid, arguments[at.path])?))
}

/// The file at a call's path.
pub(in crate::recorder) fn target(
    pid: pid_t,
    arguments: &[u64; 6],
    at: PathArgument,
    itself: bool,
) -> Result<Option<FileStatus>, RecordError> {
    let (base, path) = named(pid, arguments, at)?;
    Ok(path_lookup::target(pid, base, &path, itself))
}
