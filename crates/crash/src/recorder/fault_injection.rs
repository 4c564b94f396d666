//! Calls that could fail, and the one that must fail: which errors its manual page allows, and how the
//! error is injected.
//!
//! A call is counted when it is about to be made, so that a task which waits for another is not
//! counted twice. A failing call is not recorded, because it did nothing.

use std::collections::HashMap;

use libc::pid_t;

use super::call_entry::{open_flags, target};
use super::error::RecordError;
use super::file::FileKind;
use super::pending_call::{CallPlan, Injection, PendingCall};
use super::ptrace;
use super::syscalls::{CallMeaning, Syscall};
use super::task_memory;
use super::tracer::Tracer;
use crate::fault::{Fault, FaultSite, FaultSubject, FaultTarget, FaultTrace};
use crate::operation::{Action, Node};

/// The calls made so far, and the one that must fail.
#[derive(Debug, Default)]
pub(super) struct FaultWatch {
    target: Option<FaultTarget>,
    counts: HashMap<&'static str, u32>,
    trace: FaultTrace,
}

impl FaultWatch {
    pub(super) fn new(target: Option<FaultTarget>) -> Self {
        Self { target, ..Self::default() }
    }

    pub(super) fn into_trace(self) -> FaultTrace {
        self.trace
    }
}

impl Tracer {
    /// A call is about to be made. If it must fail, it is changed, and `pending` says so.
    pub(super) fn consider_fault(
        &mut self,
        pid: pid_t,
        call: &Syscall,
        arguments: [u64; 6],
        pending: Option<PendingCall>,
    ) -> Result<Option<PendingCall>, RecordError> {
        if self.faults.is_none() {
            return Ok(pending);
        }
        let plan = pending.as_ref().map(|pending| &pending.plan);
        let Some((subject, creates)) = self.fault_subject(pid, call, &arguments, plan)? else {
            return Ok(pending);
        };
        let shortened = shortened(pid, call, &arguments);
        let faults: Vec<Fault> = allowed(call.what, creates)
            .iter()
            .copied()
            .filter(|fault| *fault != Fault::ShortWrite || shortened.is_some())
            .collect();
        let position = self.entries.len();
        let Some(watch) = &mut self.faults else { return Ok(pending) };
        if faults.is_empty() {
            return Ok(pending);
        }
        let count = watch.counts.entry(call.name).or_default();
        *count += 1;
        let site = FaultSite { call: call.name, occurrence: *count, subject, position, faults };
        let wanted = watch.target.as_ref().filter(|target| {
            target.call == site.call
                && target.occurrence == site.occurrence
                && site.faults.contains(&target.fault)
        });
        let Some(fault) = wanted.map(|target| target.fault) else {
            if watch.target.is_none() {
                watch.trace.sites.push(site);
            }
            return Ok(pending);
        };
        watch.trace.injected = Some(site);
        let injection = match (fault.code(), shortened) {
            // The descriptor is closed nevertheless.
            (Some(code), _) if matches!(call.what, CallMeaning::Close) => {
                Injection::Misreport { code }
            }
            (Some(code), _) => Injection::Skip { code },
            (None, Some(shortened)) => shortened,
            (None, None) => return Ok(pending),
        };
        let gone = |source| RecordError::system("ptrace", source);
        match injection {
            Injection::Skip { .. } => {
                ptrace::change_call(pid, -1, arguments[1], arguments[2]).map_err(gone)?;
            }
            Injection::Shorten { number, buffer, length } => {
                ptrace::change_call(pid, number, buffer, length).map_err(gone)?;
            }
            Injection::Misreport { .. } => {}
        }
        let pending = pending.unwrap_or(PendingCall {
            name: call.name,
            arguments,
            plan: CallPlan::Emit(Vec::new()),
            exclusive: false,
            fault: None,
        });
        Ok(Some(PendingCall { fault: Some(injection), ..pending }))
    }

    /// Makes a call that must fail return its error. Returns the injected result.
    pub(super) fn answer_fault(
        &self,
        pid: pid_t,
        pending: &PendingCall,
        result: i64,
    ) -> Result<i64, RecordError> {
        let result = match pending.fault {
            None => return Ok(result),
            Some(Injection::Skip { code } | Injection::Misreport { code }) => -i64::from(code),
            Some(Injection::Shorten { .. }) => result,
        };
        let [_, second, third, ..] = pending.arguments;
        ptrace::change_result(pid, result, second, third)
            .map_err(|source| RecordError::system("ptrace", source))?;
        Ok(result)
    }

    /// The file of the watched directory that a call operates on, and whether it creates a new one.
    fn fault_subject(
        &mut self,
        pid: pid_t,
        call: &Syscall,
        arguments: &[u64; 6],
        plan: Option<&CallPlan>,
    ) -> Result<Option<(FaultSubject, bool)>, RecordError> {
        let fd = arguments[0] as i32;
        let of_node = |node: Node| Ok(Some((FaultSubject::Node(node), false)));
        match (call.what, plan) {
            (CallMeaning::Open { at, flags }, plan) => {
                if let Some(CallPlan::Create { resolved }) = plan {
                    let name = self.dir_entry(resolved);
                    return Ok(name.map(|name| (FaultSubject::Name(name), true)));
                }
                let Some(flags) = open_flags(pid, arguments, flags) else { return Ok(None) };
                let itself = flags & libc::O_NOFOLLOW != 0;
                let found = target(pid, arguments, at, itself)?;
                let known = found.and_then(|status| self.nodes.get(status.id));
                let creates = matches!(plan, Some(CallPlan::CreateUnnamed));
                Ok(known.map(|known| (FaultSubject::Node(known.node), creates)))
            }
            (CallMeaning::Read, _) => match self.known(pid, fd)? {
                Some((known, _)) if known.kind == FileKind::Regular => of_node(known.node),
                _ => Ok(None),
            },
            (CallMeaning::Close, _) => {
                let found = self.known(pid, fd)?;
                // About to be closed: it must not be cached.
                self.reopened(Some(fd));
                match found {
                    Some((known, opened))
                        if known.kind == FileKind::Regular && opened.writable() =>
                    {
                        of_node(known.node)
                    }
                    _ => Ok(None),
                }
            }
            (CallMeaning::Map, _) => match self.known(pid, arguments[4] as i32)? {
                Some((known, _)) if known.kind == FileKind::Regular => of_node(known.node),
                _ => Ok(None),
            },
            (_, Some(plan)) => Ok(self.planned_subject(plan).map(|subject| (subject, false))),
            (_, None) => Ok(None),
        }
    }

    fn planned_subject(&self, plan: &CallPlan) -> Option<FaultSubject> {
        match plan {
            CallPlan::Write { node, .. }
            | CallPlan::Copied { node, .. }
            | CallPlan::Mode { node, .. } => Some(FaultSubject::Node(*node)),
            CallPlan::Rename { from, to, .. } => match (self.dir_entry(from), self.dir_entry(to)) {
                (Some(from), Some(to)) => Some(FaultSubject::Names { from, to }),
                (Some(one), None) | (None, Some(one)) => Some(FaultSubject::Name(one)),
                (None, None) => None,
            },
            CallPlan::Link { resolved, .. }
            | CallPlan::Symlink { resolved, .. }
            | CallPlan::Unlink { resolved, .. }
            | CallPlan::Make { resolved } => self.dir_entry(resolved).map(FaultSubject::Name),
            CallPlan::Emit(actions) => match actions.first()? {
                Action::SyncPart { node, offset, length }
                | Action::SyncRange { node, offset, length } => {
                    let (node, offset, length) = (*node, *offset, *length);
                    Some(FaultSubject::Range { node, offset, length })
                }
                Action::SyncAll => Some(FaultSubject::Everything),
                Action::Truncate { node, .. }
                | Action::Allocate { node, .. }
                | Action::Zero { node, .. }
                | Action::Attribute { node, .. }
                | Action::Mode { node, .. }
                | Action::Sync { node, .. } => Some(FaultSubject::Node(*node)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// How a call may fail according to its manual page. `docs/guides/crash.md` has the same table.
fn allowed(what: CallMeaning, creates: bool) -> &'static [Fault] {
    use Fault::{Edquot, Eio, Emfile, Enomem, Enospc, Eopnotsupp, ShortWrite};
    match what {
        CallMeaning::Open { .. } if creates => &[Enospc, Edquot, Emfile],
        CallMeaning::Open { .. } => &[Emfile],
        CallMeaning::Write { .. } => &[Enospc, Edquot, Eio, ShortWrite],
        CallMeaning::CopyRange => &[Enospc, Eio],
        CallMeaning::Sendfile | CallMeaning::Read => &[Eio],
        CallMeaning::Splice | CallMeaning::Map => &[Enomem],
        CallMeaning::Sync { .. } | CallMeaning::SyncFileSystem | CallMeaning::Close => {
            &[Eio, Enospc, Edquot]
        }
        CallMeaning::SyncMapping | CallMeaning::TruncatePath | CallMeaning::Truncate => &[Eio],
        CallMeaning::SyncRange => &[Eio, Enospc],
        CallMeaning::Allocate => &[Enospc, Eio, Eopnotsupp],
        CallMeaning::Rename { .. } | CallMeaning::Link { .. } | CallMeaning::Symlink { .. } => {
            &[Enospc, Edquot, Eio]
        }
        CallMeaning::MakeDirectory { .. }
        | CallMeaning::MakeNode { .. }
        | CallMeaning::SetAttribute { .. } => &[Enospc, Edquot],
        CallMeaning::Unlink { .. } | CallMeaning::Mode(_) => &[Eio],
        // `sync` cannot fail.
        _ => &[],
    }
}

/// A call that writes a part of what a call would write; `None` if there is no such part.
fn shortened(pid: pid_t, call: &Syscall, arguments: &[u64; 6]) -> Option<Injection> {
    let CallMeaning::Write { vector, offset, flags } = call.what else { return None };
    let half = |number, buffer, length: u64| {
        let length = length / 2;
        (length > 0).then_some(Injection::Shorten { number, buffer, length })
    };
    if !vector {
        return half(call.number, arguments[1], arguments[2]);
    }
    // The first buffer, or half of it, by a call that takes one buffer.
    if flags.is_some_and(|flags| arguments[flags] != 0) {
        return None;
    }
    let number = match offset.map(|offset| arguments[offset]) {
        None | Some(u64::MAX) => libc::SYS_write,
        Some(_) => libc::SYS_pwrite64,
    };
    let buffer = task_memory::word(pid, arguments[1]).ok()?;
    let length = task_memory::word(pid, arguments[1] + 8).ok()?;
    match arguments[2] {
        0 => None,
        1 => half(number, buffer, length),
        _ if length > 0 => Some(Injection::Shorten { number, buffer, length }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::syscalls::table_with_reads;

    #[test]
    fn every_call_that_changes_a_file_can_fail() {
        let without: Vec<&str> = table_with_reads()
            .iter()
            .filter(|call| allowed(call.what, true).is_empty())
            .map(|call| call.name)
            .collect();
        let changes = ["write", "fsync", "rename", "fallocate", "ftruncate", "mmap", "read"];
        for name in changes {
            assert!(!without.contains(&name), "{name}");
        }
        assert!(without.contains(&"sync") && without.contains(&"dup2"), "{without:?}");
    }
}
