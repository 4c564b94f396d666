//! Calls whose task died before they ended.
//!
//! A thread that is killed inside a call (most often by the end of its process) may have done
//! all, a part or nothing of it. The disk tells: names are checked immediately, while no other
//! task may change the tree, modes and bytes after everything has ended.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::pid_t;

use super::directory_scan::for_each_extent;
use super::error::RecordError;
use super::file::{FileKind, FileStatus, c_string, open_at};
use super::path_lookup::ResolvedPath;
use super::pending_call::{CallPlan, PendingCall};
use super::tracer::Tracer;
use crate::model::Tree;
use crate::operation::{Action, Node, WriteSync};
use crate::recorded_bytes::ByteStore;

const BLOCK: usize = 4096;

impl Tracer {
    /// The task is gone: determines what its call did.
    pub(super) fn interrupted(
        &mut self,
        pid: pid_t,
        pending: PendingCall,
    ) -> Result<(), RecordError> {
        let is = |resolved: &ResolvedPath, status: Option<FileStatus>| {
            let now = resolved.status_now().ok().flatten().map(|now| now.id);
            now == status.map(|status| status.id)
        };
        let happened = match &pending.plan {
            CallPlan::Create { resolved } => {
                if let Ok(Some(status)) = resolved.status_now() {
                    let kind = crate::operation::Kind::File;
                    self.created(pid, pending.name, status, Some(resolved), kind);
                }
                return Ok(());
            }
            CallPlan::Symlink { resolved, .. }
            | CallPlan::Make { resolved }
            | CallPlan::Link { resolved, .. } => !is(resolved, None),
            CallPlan::Unlink { resolved, status, .. } => !is(resolved, Some(*status)),
            CallPlan::Rename { from, to, .. } => is(to, from.status) && !is(to, to.status),
            CallPlan::Write { node, .. }
            | CallPlan::Copied { node, .. }
            | CallPlan::Mode { node, .. } => {
                self.unsure.push(*node);
                false
            }
            CallPlan::Emit(actions) => {
                self.unsure.extend(actions.iter().filter_map(|action| match action {
                    Action::Truncate { node, .. }
                    | Action::Allocate { node, .. }
                    | Action::Zero { node, .. } => Some(*node),
                    _ => None,
                }));
                false
            }
            _ => false,
        };
        if happened { self.finish(pid, pending, 0) } else { Ok(()) }
    }
}

/// The final mode and content of files of interrupted calls, as operations.
pub(super) fn reread(
    unsure: &[Node],
    tree: &Tree,
    root: &OwnedFd,
    bytes: &mut ByteStore,
) -> io::Result<Vec<Action>> {
    let mut actions = Vec::new();
    let mut done = Vec::new();
    for &node in unsure {
        // A file that cannot be reached any more does not matter.
        let Some(found) = tree.path(node).and_then(|path| tree.find(&path)) else { continue };
        if done.contains(&node) {
            continue;
        }
        done.push(node);
        let path = match node {
            Node::ROOT => c".".to_owned(),
            _ => c_string(found.path.as_os_str())?,
        };
        let status = FileStatus::at(root.as_raw_fd(), &path, libc::AT_SYMLINK_NOFOLLOW)?;
        if status.kind != FileKind::Symlink && status.mode != found.mode & 0o7777 {
            actions.push(Action::Mode { node, mode: status.mode });
        }
        let Some(view) = tree.file(node) else { continue };
        let file = File::from(open_at(root.as_raw_fd(), &path, libc::O_RDONLY)?);
        let size = FileStatus::of_descriptor(file.as_raw_fd())?.size;
        if size != view.size() {
            actions.push(Action::Truncate { node, size });
        }
        let mut known = [0; BLOCK];
        for_each_extent(&file, size, |start, data| {
            for (number, block) in data.chunks(BLOCK).enumerate() {
                let offset = start + (number * BLOCK) as u64;
                let known = &mut known[..block.len()];
                known.fill(0);
                view.read(offset, known);
                if known != block {
                    let (data, sync, mapped) = (bytes.keep(block)?, WriteSync::None, false);
                    actions.push(Action::Write { node, offset, data, sync, mapped });
                }
            }
            Ok(())
        })?;
    }
    Ok(actions)
}
