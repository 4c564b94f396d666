//! The recorder's loop: waits for the workload's tasks, lets one change the tree at a time, and
//! keeps the log.
//!
//! Theory of operation. A call that concerns the tree stops its task twice, before and after. While
//! one task is between the two, every other task that comes to such a call waits at its beginning,
//! so the log has the order in which things happened, and facts found before a
//! call are still true when it is made.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::pid_t;

use super::cpu_pinning::CpuPin;
use super::error::RecordError;
use super::fault_injection::FaultWatch;
use super::file::{DescriptorInfo, Descriptors, FileId, FileStatus, has_plain_numbers};
use super::mapped_files::{self, Mappings};
use super::nodes::{KnownFile, Nodes};
use super::outside_files::OutsideFiles;
use super::pending_call::{CallPlan, PendingCall};
use super::ptrace::{self, Event, StoppedCall};
use super::seccomp_filter;
use super::stack_capture::StackCapture;
use super::syscalls::Syscall;
use crate::operation::{Action, Entry, LeftRunning, Node, Operation};
use crate::recorded_bytes::ByteStore;

/// Maximum number of unsynced files outside of the tree to remember, which only matters if they are moved in.
const OUTSIDE: usize = 100_000;

#[derive(Debug)]
pub(super) struct Task {
    /// In order of appearance.
    number: u32,
    pub(super) process: pid_t,
    descriptors: Option<Descriptors>,
    pending: Option<PendingCall>,
}

#[derive(Debug)]
pub(super) struct Tracer {
    pub(super) nodes: Nodes,
    pub(super) device: u64,
    /// Whether a descriptor's inode number identifies the file without its device.
    plain: bool,
    devices: HashMap<u64, u64>,
    /// Open files by descriptor, as long as there is one task and it changes none of them.
    opened: HashMap<i32, OpenFile>,
    table: Vec<Syscall>,
    calls: HashMap<i64, Syscall>,
    /// The kernel stops at every call, because a filter would be ineffective.
    every_call: bool,
    pub(super) tasks: HashMap<pid_t, Task>,
    appeared: u32,
    pub(super) pin: Option<CpuPin>,
    /// The task inside a call that concerns the tree.
    holder: Option<pid_t>,
    waiting: VecDeque<(pid_t, StoppedCall)>,
    pub(super) mappings: Mappings,
    outside: HashSet<FileId>,
    /// Files outside that were mapped for writing: stores to them are not observed.
    mapped_outside: HashSet<FileId>,
    /// Files outside that were written to, for people.
    pub(super) outside_files: OutsideFiles,
    /// The file that gets the workload's lines, if they are acknowledgements.
    pub(super) stdout: Option<FileId>,
    pub(super) line: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    /// The bytes they write.
    pub(super) bytes: ByteStore,
    /// Files that a task was changing when it died.
    pub(super) unsure: Vec<Node>,
    /// Calls that could fail, if one must.
    pub(super) faults: Option<FaultWatch>,
    /// Where operations are called from, if requested.
    pub(super) stacks: Option<StackCapture>,
    pub(super) left_running: LeftRunning,
}

/// The file behind a descriptor, and how it was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub(super) id: FileId,
    pub(super) flags: i32,
    /// Only known if it was just looked up: every read and write moves it.
    pub(super) position: Option<u64>,
}

impl OpenFile {
    pub(super) fn writable(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }
}

/// How the workload's first process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkloadOutcome {
    /// It exited with this code.
    Exited(i32),
    /// This signal terminated it.
    Signaled(i32),
}

impl Tracer {
    pub(super) fn new(
        root: &OwnedFd,
        nodes: Nodes,
        bytes: ByteStore,
        stdout: Option<FileId>,
        table: Vec<Syscall>,
        every_call: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            nodes,
            device: FileStatus::of_descriptor(root.as_raw_fd())?.id.device,
            plain: has_plain_numbers(root),
            devices: HashMap::new(),
            opened: HashMap::new(),
            calls: table.iter().map(|call| (call.number, *call)).collect(),
            table,
            every_call,
            tasks: HashMap::new(),
            appeared: 0,
            pin: None,
            holder: None,
            waiting: VecDeque::new(),
            mappings: Mappings::default(),
            outside: HashSet::new(),
            mapped_outside: HashSet::new(),
            outside_files: OutsideFiles::default(),
            stdout,
            line: Vec::new(),
            entries: Vec::new(),
            bytes,
            unsure: Vec::new(),
            faults: None,
            stacks: None,
            left_running: LeftRunning::default(),
        })
    }

    pub(super) fn step(&mut self, pid: pid_t, event: Event) -> Result<(), RecordError> {
        let system = refused;
        if let Some(stacks) = &mut self.stacks {
            stacks.forget_current();
        }
        match event {
            Event::Exited(_) | Event::Killed(_) => {
                let pending = self.tasks.get_mut(&pid).and_then(|task| task.pending.take());
                let settled = pending.map_or(Ok(()), |pending| self.interrupted(pid, pending));
                self.tasks.remove(&pid);
                if let Some(stacks) = &mut self.stacks {
                    stacks.task_ends(pid);
                }
                self.waiting.retain(|(waiting, _)| *waiting != pid);
                settled.and(self.release(pid))
            }
            Event::CallBegins => {
                let Some(stopped) = ptrace::stopped(pid).map_err(system)? else { return Ok(()) };
                self.call_begins(pid, stopped)
            }
            Event::CallEnds => {
                if self.every_call
                    && let Some((call, arch)) = ptrace::entered(pid).map_err(system)?
                {
                    return self.call_entered(pid, call, arch);
                }
                let pending = self.tasks.get_mut(&pid).and_then(|task| task.pending.take());
                if let Some(pending) = pending {
                    let Some(result) = ptrace::returned(pid).map_err(system)? else {
                        // Just killed; the next event is its end.
                        if let Some(task) = self.tasks.get_mut(&pid) {
                            task.pending = Some(pending);
                        }
                        return Ok(());
                    };
                    let result = self.answer_fault(pid, &pending, result)?;
                    self.finish(pid, pending, result)?;
                }
                self.resume(pid, 0).map_err(system)?;
                self.release(pid)
            }
            Event::NewTask => {
                // If this fails it is gone already; its own stops report the new task, too.
                if let Ok(new) = ptrace::message(pid) {
                    self.appear(new as pid_t);
                }
                self.resume(pid, 0).map_err(system)
            }
            Event::Executed => {
                self.reopened(None);
                self.executed(pid)?;
                self.resume(pid, 0).map_err(system)
            }
            Event::Exiting => {
                self.exiting(pid)?;
                self.resume(pid, 0).map_err(system)
            }
            Event::Resumed => {
                self.appear(pid);
                self.resume(pid, 0).map_err(system)
            }
            Event::GroupStop => ptrace::stay_stopped(pid).map_err(system),
            Event::Signal(signal) => {
                let in_call = self.tasks.get(&pid).is_some_and(|task| task.pending.is_some());
                if in_call {
                    ptrace::resume_to_exit(pid, signal).map_err(system)
                } else {
                    self.resume(pid, signal).map_err(system)
                }
            }
        }
    }

    /// Resumes a task until the next relevant stop.
    fn resume(&self, pid: pid_t, signal: i32) -> io::Result<()> {
        match self.every_call {
            true => ptrace::resume_to_exit(pid, signal),
            false => ptrace::resume(pid, signal),
        }
    }

    /// Does the work of the filter.
    fn call_entered(
        &mut self,
        pid: pid_t,
        call: StoppedCall,
        arch: u32,
    ) -> Result<(), RecordError> {
        match seccomp_filter::reason(&self.table, arch, call.number, &call.arguments) {
            Some(reason) => self.call_begins(pid, StoppedCall { reason, ..call }),
            None => ptrace::resume_to_exit(pid, 0).map_err(refused),
        }
    }

    fn call_begins(&mut self, pid: pid_t, stopped: StoppedCall) -> Result<(), RecordError> {
        let system = refused;
        let mut listed = None;
        let pending = match stopped.reason {
            seccomp_filter::UNKNOWN => Some(PendingCall {
                name: "",
                arguments: stopped.arguments,
                plan: CallPlan::RefuseUnknown { number: stopped.number },
                exclusive: false,
                fault: None,
            }),
            seccomp_filter::LISTED => match self.calls.get(&stopped.number).copied() {
                Some(call) => {
                    listed = Some(call);
                    self.begin(pid, &call, stopped.arguments)?
                }
                None => None,
            },
            _ => {
                return Err(RecordError::Refused {
                    call: format!("system call {} of another architecture", stopped.number),
                    why: "a 32-bit program cannot be recorded by a 64-bit one".to_owned(),
                });
            }
        };
        if let Some(pending) = pending.as_ref().filter(|pending| pending.exclusive) {
            if self.holder.is_some() {
                self.waiting.push_back((pid, stopped));
                return Ok(());
            }
            self.holder = Some(pid);
            let thorough = matches!(
                &pending.plan,
                CallPlan::Emit(actions)
                    if actions.iter().any(is_sync)
            );
            self.record_mapped_writes(pid, thorough)?;
        }
        let pending = match listed {
            Some(call) => self.consider_fault(pid, &call, stopped.arguments, pending)?,
            None => pending,
        };
        let Some(pending) = pending else { return self.resume(pid, 0).map_err(system) };
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.pending = Some(pending);
        }
        ptrace::resume_to_exit(pid, 0).map_err(system)
    }

    /// If the task was inside such a call, the next one may begin.
    fn release(&mut self, pid: pid_t) -> Result<(), RecordError> {
        if let Some(stacks) = &mut self.stacks {
            stacks.forget_current();
        }
        if self.holder == Some(pid) {
            self.holder = None;
        }
        while self.holder.is_none()
            && let Some((next, stopped)) = self.waiting.pop_front()
        {
            // All facts are determined again: the tree has changed in the meantime.
            self.call_begins(next, stopped)?;
        }
        Ok(())
    }

    pub(super) fn appear(&mut self, pid: pid_t) {
        if self.tasks.contains_key(&pid) {
            return;
        }
        self.appeared += 1;
        self.reopened(None);
        if let Some(pin) = self.pin.take() {
            pin.release_task(pid);
        }
        let task = Task {
            number: self.appeared,
            process: process_of(pid),
            descriptors: None,
            pending: None,
        };
        self.tasks.insert(pid, task);
    }

    /// A program was executed: all other threads are gone, and the calling one has the
    /// process's number now.
    fn executed(&mut self, pid: pid_t) -> Result<(), RecordError> {
        if let Some(stacks) = &mut self.stacks {
            stacks.code_changes(pid);
        }
        let former = ptrace::message(pid).map_or(pid, |former| former as pid_t);
        if former == pid {
            return Ok(());
        }
        let leader = self.tasks.get_mut(&pid).and_then(|task| task.pending.take());
        if let Some(pending) = leader {
            self.interrupted(pid, pending)?;
        }
        self.tasks.remove(&pid);
        self.waiting.retain(|(waiting, _)| *waiting != pid);
        if let Some(mut task) = self.tasks.remove(&former) {
            task.descriptors = None;
            self.tasks.insert(pid, task);
        }
        self.release(pid)
    }

    pub(super) fn process(&self, pid: pid_t) -> pid_t {
        self.tasks.get(&pid).map_or(pid, |task| task.process)
    }

    /// How many threads a process has.
    pub(super) fn threads(&self, process: pid_t) -> usize {
        self.tasks.values().filter(|task| task.process == process).count()
    }

    pub(super) fn processes(&self) -> Vec<pid_t> {
        let mut processes: Vec<_> = self.tasks.values().map(|task| task.process).collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    pub(super) fn push(&mut self, pid: pid_t, call: &str, action: Action) {
        if !self.mappings.is_empty() {
            self.mappings.observe(&action);
        }
        let task = self.tasks.get(&pid).map_or(0, |task| task.number);
        let process = self.process(pid);
        if let Some(stacks) = &mut self.stacks {
            // Stores are found when the task is somewhere else already.
            match matches!(action, Action::Write { mapped: true, .. }) {
                true => stacks.operation_without_stack(),
                false => stacks.operation(pid, process),
            }
        }
        self.entries.push(Entry::Operation(Operation { task, call: call.to_owned(), action }));
    }

    /// Records stores to mapped files. Large files are only compared where it matters most.
    pub(super) fn record_mapped_writes(
        &mut self,
        pid: pid_t,
        thorough: bool,
    ) -> Result<(), RecordError> {
        if self.mappings.is_empty() || !(thorough || self.mappings.affordable()) {
            return Ok(());
        }
        let mut found = Vec::new();
        self.mappings
            .changes(&mut self.bytes, &mut found)
            .map_err(|source| RecordError::system("a mapped file", source))?;
        for action in found {
            self.push(pid, "mmap", action);
        }
        let processes = self.processes();
        self.mappings.retire(&processes);
        Ok(())
    }

    /// Every complete line that the workload prints is a promise.
    pub(super) fn printed(&mut self, pid: pid_t, bytes: &[u8]) -> Result<(), RecordError> {
        self.record_mapped_writes(pid, true)?;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) => {
                    self.line.extend_from_slice(end);
                    let line = std::mem::take(&mut self.line);
                    self.entries.push(Entry::Acknowledgement(line));
                }
                None => self.line.extend_from_slice(piece),
            }
        }
        Ok(())
    }

    fn descriptors(&mut self, pid: pid_t) -> io::Result<&Descriptors> {
        let Some(task) = self.tasks.get_mut(&pid) else {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        };
        if task.descriptors.is_none() {
            task.descriptors = Some(Descriptors::of(pid)?);
        }
        task.descriptors.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
    }

    /// The file behind a task's descriptor. Only `/proc` tells, which costs as
    /// much as a call of the workload, so it is cached if no other task can change it.
    pub(super) fn opened(&mut self, pid: pid_t, fd: i32) -> Result<Option<OpenFile>, RecordError> {
        if let Some(opened) = self.opened.get(&fd) {
            return Ok(Some(*opened));
        }
        let opened = self.descriptor(pid, fd)?;
        if let Some(opened) = opened.filter(|_| self.tasks.len() == 1) {
            self.opened.insert(fd, OpenFile { position: None, ..opened });
        }
        Ok(opened)
    }

    /// A descriptor may refer to something else from now on: this one, or any.
    pub(super) fn reopened(&mut self, fd: Option<i32>) {
        match fd {
            Some(fd) => _ = self.opened.remove(&fd),
            None => self.opened.clear(),
        }
    }

    /// The same, without the cache.
    pub(super) fn descriptor(
        &mut self,
        pid: pid_t,
        fd: i32,
    ) -> Result<Option<OpenFile>, RecordError> {
        let failed = |source| RecordError::system(format!("/proc/{pid}/fdinfo/{fd}"), source);
        if fd < 0 {
            return Ok(None);
        }
        // A task that was killed in the meantime has none.
        let Ok(descriptors) = self.descriptors(pid) else { return Ok(None) };
        let Some(described) = descriptors.described(fd).map_err(failed)? else {
            return Ok(None);
        };
        let DescriptorInfo { position, flags, mount, inode } = described;
        let device = self.devices.get(&mount).copied().filter(|_| self.plain);
        let id = match (device, inode) {
            (Some(device), Some(inode)) => FileId { device, inode },
            _ => {
                let Some(status) = self.status(pid, fd) else { return Ok(None) };
                self.devices.insert(mount, status.id.device);
                status.id
            }
        };
        Ok(Some(OpenFile { id, flags, position: Some(position) }))
    }

    /// The node behind a task's descriptor.
    pub(super) fn known(
        &mut self,
        pid: pid_t,
        fd: i32,
    ) -> Result<Option<(KnownFile, OpenFile)>, RecordError> {
        let Some(opened) = self.opened(pid, fd)? else { return Ok(None) };
        Ok(self.confirmed(pid, fd, opened.id)?.map(|known| (known, opened)))
    }

    /// The node with this number, if it is still the same file.
    pub(super) fn confirmed(
        &mut self,
        pid: pid_t,
        fd: i32,
        id: FileId,
    ) -> Result<Option<KnownFile>, RecordError> {
        let Some(known) = self.nodes.get(id) else { return Ok(None) };
        if known.nameless && self.status(pid, fd).is_none_or(|status| status.links > 0) {
            self.nodes.forget(id);
            return Ok(None);
        }
        Ok(Some(known))
    }

    pub(super) fn status(&mut self, pid: pid_t, fd: i32) -> Option<FileStatus> {
        self.descriptors(pid).ok()?.status(fd).ok()
    }

    pub(super) fn reopen(&mut self, pid: pid_t, fd: i32) -> io::Result<File> {
        self.descriptors(pid)?.reopen(fd)
    }

    pub(super) fn outside_written(&mut self, id: FileId) {
        if self.outside.len() < OUTSIDE {
            self.outside.insert(id);
        }
    }

    pub(super) fn outside_mapped(&mut self, id: FileId) {
        if self.mapped_outside.len() < OUTSIDE {
            self.mapped_outside.insert(id);
        }
    }

    pub(super) fn outside_synced(&mut self, pid: pid_t, fd: i32) -> Result<(), RecordError> {
        if let Some(opened) = self.opened(pid, fd)? {
            self.outside.remove(&opened.id);
            // As long as it is mapped, stores are possible after this.
            let processes = self.processes();
            let inode = opened.id.inode;
            if self.mapped_outside.contains(&opened.id)
                && !processes.iter().any(|pid| mapped_files::maps(*pid, inode))
            {
                self.mapped_outside.remove(&opened.id);
            }
        }
        Ok(())
    }

    /// Whether everything that the workload wrote to a file outside was synced.
    pub(super) fn outside_is_clean(&self, id: FileId) -> bool {
        let clean = |files: &HashSet<FileId>| files.len() < OUTSIDE && !files.contains(&id);
        clean(&self.outside) && clean(&self.mapped_outside)
    }
}

fn is_sync(action: &Action) -> bool {
    matches!(action, Action::Sync { .. } | Action::SyncPart { .. } | Action::SyncAll)
}

fn refused(source: io::Error) -> RecordError {
    match source.raw_os_error() {
        // The answer of older kernels to an unknown request.
        Some(libc::EIO) => RecordError::Unsupported { why: "it needs Linux 5.3".to_owned() },
        _ => RecordError::system("ptrace", source),
    }
}

/// The process that contains a task.
fn process_of(pid: pid_t) -> pid_t {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    group.unwrap_or(pid)
}
