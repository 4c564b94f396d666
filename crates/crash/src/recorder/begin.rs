//! The beginning of a call: whether it concerns the watched tree, and what has to be known about
//! it before it happens.
//!
//! Nothing is recorded here that the call could still fail to do.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;

use libc::pid_t;

use super::call::{At, Call, OpenFlags, Subject, What};
use super::failure::RecordError;
use super::file::{FileKind, Status};
use super::plan::{Pending, Plan};
use super::route::{self, Route};
use super::watch::{Opened, Watch};
use super::{mapped, memory};
use crate::marker::Marker;
use crate::operation::{Action, Entry, Node, WriteSync};

const RWF_DSYNC: u64 = 2;
const RWF_SYNC: u64 = 4;
const RWF_APPEND: u64 = 0x10;
const RWF_NOAPPEND: u64 = 0x20;

const RENAME_EXCHANGE: u64 = 2;
const RENAME_WHITEOUT: u64 = 4;

const KEEP_SIZE: u64 = 1;
const PUNCH_HOLE: u64 = 2;
const ZERO_RANGE: u64 = 0x10;
const UNSHARE: u64 = 0x40;
const WRITE_ZEROES: u64 = 0x80;

/// The attribute that says who may use a file. Setting it sets the mode, and one of this size or
/// less is nothing but a mode: `cp -p` and `sed -i` set it instead of the mode.
pub(super) const ACCESS_LIST: &str = "system.posix_acl_access";
const MODE_AS_LIST: usize = 4 + 3 * 8;

/// None lets the call pass.
type Begun = Result<Option<(Plan, bool)>, RecordError>;

fn exclusive(plan: Plan) -> Begun {
    Ok(Some((plan, true)))
}

/// The call will fail, or succeed and change nothing here, as long as no other task changes names
/// before it is made. Names outside count too: they may be moved in.
fn nothing() -> Begun {
    exclusive(Plan::Emit(Vec::new()))
}

/// What a call would work on.
enum Whereabouts<T> {
    Inside(T),
    /// An open file that is none of ours.
    Foreign,
    /// A path that leads out of the tree, or to nothing that the call could work on.
    Elsewhere,
}

impl<T> Whereabouts<T> {
    fn without_a_node(self) -> Begun {
        match self {
            Self::Foreign => Ok(None),
            _ => nothing(),
        }
    }
}

impl Watch {
    pub(super) fn begin(
        &mut self,
        pid: pid_t,
        call: &Call,
        arguments: [u64; 6],
    ) -> Result<Option<Pending>, RecordError> {
        let begun = self.plan(pid, call, &arguments)?;
        Ok(begun.map(|(plan, exclusive)| Pending { name: call.name, arguments, plan, exclusive }))
    }

    fn plan(&mut self, pid: pid_t, call: &Call, arguments: &[u64; 6]) -> Begun {
        let fd = arguments[0] as i32;
        match call.what {
            What::Write { vector, offset, flags } => {
                self.begin_write(pid, arguments, vector, offset, flags)
            }
            What::Sync { data_only } => {
                let Some((known, _)) = self.known(pid, fd)? else {
                    self.outside_synced(pid, fd)?;
                    return Ok(None);
                };
                exclusive(Plan::Emit(vec![Action::Sync { node: known.node, data_only }]))
            }
            What::Open { at, flags } => self.begin_open(pid, arguments, at, flags),
            What::Map => {
                let writable = arguments[2] & libc::PROT_WRITE as u64 != 0;
                match self.known(pid, arguments[4] as i32)? {
                    Some((known, opened))
                        if known.kind == FileKind::Regular && (writable || opened.writable()) =>
                    {
                        exclusive(Plan::Map)
                    }
                    _ => Ok(None),
                }
            }
            What::Protect => {
                if self.mappings.any_readable() {
                    let process = self.process(pid);
                    for stretch in mapped::shared(process, arguments[0], arguments[1]) {
                        self.mappings
                            .promote(stretch.inode)
                            .map_err(|source| RecordError::system("a mapped file", source))?;
                    }
                }
                Ok(None)
            }
            What::GetProcessors => match &self.pin {
                Some(pin) => {
                    pin.lift();
                    Ok(Some((Plan::Unpinned, false)))
                }
                None => Ok(None),
            },
            What::SetProcessors => {
                self.pin = None;
                Ok(None)
            }
            What::Close => {
                self.closing(pid, fd)?;
                self.reopened(Some(fd));
                Ok(None)
            }
            What::Descriptors => {
                self.reopened(None);
                Ok(None)
            }
            What::SyncMapping => {
                if arguments[2] & libc::MS_SYNC as u64 == 0 {
                    return Ok(None);
                }
                let stretches = mapped::shared(self.process(pid), arguments[0], arguments[1]);
                let mut actions: Vec<Action> = Vec::new();
                for mapped::Stretch { inode, offset, length } in stretches {
                    let id = super::file::Id { device: self.device, inode };
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
                if actions.is_empty() { Ok(None) } else { exclusive(Plan::Emit(actions)) }
            }
            What::TruncatePath => {
                let at = At { base: None, path: 0 };
                match self.node_at(pid, arguments, at, false)? {
                    Whereabouts::Inside(node) => {
                        exclusive(Plan::Emit(vec![Action::Truncate { node, size: arguments[1] }]))
                    }
                    other => other.without_a_node(),
                }
            }
            What::Truncate => {
                let Some((known, _)) = self.known(pid, fd)? else { return self.foreign(pid, fd) };
                let size = arguments[1];
                exclusive(Plan::Emit(vec![Action::Truncate { node: known.node, size }]))
            }
            What::Allocate => {
                let Some((known, _)) = self.known(pid, fd)? else { return self.foreign(pid, fd) };
                allocate(known.node, arguments)
            }
            What::SyncRange => {
                let Some((known, _)) = self.known(pid, fd)? else { return Ok(None) };
                let [_, offset, length, ..] = *arguments;
                let node = known.node;
                exclusive(Plan::Emit(vec![Action::SyncRange { node, offset, length }]))
            }
            What::SyncFileSystem => match self.opened(pid, fd)? {
                Some(opened) if opened.id.device == self.device => {
                    exclusive(Plan::Emit(vec![Action::SyncAll]))
                }
                _ => Ok(None),
            },
            What::SyncAll => exclusive(Plan::Emit(vec![Action::SyncAll])),
            What::CopyRange => self.begin_copy(pid, arguments[2], arguments[3], true),
            What::Sendfile => {
                let source = self.status(pid, arguments[1] as i32);
                let plain = source.is_some_and(|source| source.kind == FileKind::Regular);
                self.begin_copy(pid, arguments[0], 0, plain)
            }
            What::Splice => {
                let waits = self.is_empty_pipe(pid, arguments[0] as i32);
                self.begin_copy(pid, arguments[2], arguments[3], !waits)
            }
            What::Rename { from, to, flags } => self.begin_rename(pid, arguments, from, to, flags),
            What::Link { from, to, flags } => self.begin_link(pid, arguments, from, to, flags),
            What::Symlink { target, to } => {
                let target = text(pid, arguments[target])?;
                match self.vacant(pid, arguments, to)? {
                    Whereabouts::Inside(route) => exclusive(Plan::Symlink { target, route }),
                    other => other.without_a_node(),
                }
            }
            What::Unlink { at } => {
                let Some(route) = self.route(pid, arguments, at, false)? else { return nothing() };
                if self.nodes.directory(route.parent_id).is_none() {
                    return nothing();
                }
                let known = route.status.and_then(|status| self.nodes.get(status.id));
                match (route.status, known) {
                    (Some(status), Some(known)) => {
                        exclusive(Plan::Unlink { route, status, node: known.node })
                    }
                    _ => nothing(),
                }
            }
            What::MakeDirectory { at } | What::MakeNode { at } => {
                match self.vacant(pid, arguments, at)? {
                    Whereabouts::Inside(route) => exclusive(Plan::Make { route }),
                    other => other.without_a_node(),
                }
            }
            What::Mode(subject) => match self.subject(pid, arguments, subject)? {
                Whereabouts::Inside(node) => exclusive(Plan::Mode { node, subject, list: None }),
                other => other.without_a_node(),
            },
            What::SetAttribute { subject, name } => {
                let value = memory::bytes(pid, arguments[name + 1], arguments[name + 2] as usize);
                // Memory that is not there fails the call, too.
                let Ok(value) = value else { return Ok(None) };
                let name = text(pid, arguments[name])?;
                match self.subject(pid, arguments, subject)? {
                    Whereabouts::Inside(node) if name == ACCESS_LIST => {
                        let list = (value.len() > MODE_AS_LIST).then(|| value.into());
                        exclusive(Plan::Mode { node, subject, list })
                    }
                    Whereabouts::Inside(node) => {
                        let value = Some(value.into());
                        exclusive(Plan::Emit(vec![Action::Attribute { node, name, value }]))
                    }
                    other => other.without_a_node(),
                }
            }
            What::RemoveAttribute { subject, name } => {
                let name = text(pid, arguments[name])?;
                match self.subject(pid, arguments, subject)? {
                    Whereabouts::Inside(node) => {
                        exclusive(Plan::Emit(vec![Action::Attribute { node, name, value: None }]))
                    }
                    other => other.without_a_node(),
                }
            }
            What::Refuse(why) => {
                Err(RecordError::Refused { call: call.name.to_owned(), why: why.to_owned() })
            }
            What::RefuseSuccess(why) => {
                if call.number == libc::SYS_ioctl && self.known(pid, fd)?.is_none() {
                    return Ok(None);
                }
                Ok(Some((Plan::Refuse { why }, false)))
            }
        }
    }

    fn begin_write(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        vector: bool,
        offset: Option<usize>,
        flags: Option<usize>,
    ) -> Begun {
        if let Some(mark) = Marker::from_descriptor(arguments[0]) {
            // The call fails, as it is meant to: there is no such descriptor.
            let Ok(said) = memory::bytes(pid, arguments[1], arguments[2] as usize) else {
                return Ok(None);
            };
            self.look_at_mappings(pid, true)?;
            self.entries.push(match mark {
                Marker::Label => Entry::Label(String::from_utf8_lossy(&said).into_owned()),
                Marker::Acknowledgement => Entry::Acknowledgement(said),
            });
            return Ok(None);
        }
        let fd = arguments[0] as i32;
        let Some(opened) = self.opened(pid, fd)? else { return Ok(None) };
        if Some(opened.id) == self.stdout {
            return Ok(Some((Plan::Say { vector }, false)));
        }
        let Some(known) = self.confirmed(pid, fd, opened.id)? else {
            return self.foreign(pid, fd);
        };
        if known.kind != FileKind::Regular {
            return Ok(None);
        }
        let per_call = flags.map_or(0, |flags| arguments[flags]);
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
        let sync = sync(opened.flags, per_call);
        exclusive(Plan::Write { node: known.node, offset, vector, sync })
    }

    /// Where a descriptor stands now.
    fn position(
        &mut self,
        pid: pid_t,
        fd: i32,
        opened: &Opened,
    ) -> Result<Option<u64>, RecordError> {
        match opened.position {
            Some(position) => Ok(Some(position)),
            None => Ok(self.descriptor(pid, fd)?.and_then(|opened| opened.position)),
        }
    }

    fn begin_copy(&mut self, pid: pid_t, out: u64, offset: u64, plain: bool) -> Begun {
        let fd = out as i32;
        let Some((known, opened)) = self.known(pid, fd)? else { return self.foreign(pid, fd) };
        let offset = if opened.flags & libc::O_APPEND != 0 {
            self.status(pid, fd).map(|status| status.size)
        } else if offset == 0 {
            self.position(pid, fd, &opened)?
        } else {
            memory::word(pid, offset).ok()
        };
        let Some(offset) = offset else { return Ok(None) };
        let sync = sync(opened.flags, 0);
        if !plain {
            // Others may change the file before this call ends.
            self.unsure.push(known.node);
        }
        Ok(Some((Plan::Copied { node: known.node, fd, offset, sync }, plain)))
    }

    /// A change of a file outside the tree. One on the same file system may be moved in at any
    /// time, so it must be known whether this came before.
    fn foreign(&mut self, pid: pid_t, fd: i32) -> Begun {
        match self.opened(pid, fd)? {
            Some(Opened { id, .. }) if id.device == self.device => {
                let regular =
                    self.status(pid, fd).is_some_and(|status| status.kind == FileKind::Regular);
                if !regular {
                    return Ok(None);
                }
                self.outside_written(id);
                nothing()
            }
            _ => Ok(None),
        }
    }

    /// Whether reading would have to wait for another task.
    fn is_empty_pipe(&mut self, pid: pid_t, fd: i32) -> bool {
        let Ok(pipe) = self.reopen(pid, fd) else { return true };
        let mut available: libc::c_int = 0;
        // SAFETY: a descriptor we hold, and room for the answer.
        let asked = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut available) };
        asked < 0 || available == 0
    }

    fn begin_open(&mut self, pid: pid_t, arguments: &[u64; 6], at: At, flags: OpenFlags) -> Begun {
        let flags = match flags {
            OpenFlags::Argument(index) => arguments[index] as i32,
            #[cfg(target_arch = "x86_64")]
            OpenFlags::Fixed(flags) => flags,
            OpenFlags::How(index) => match memory::word(pid, arguments[index]) {
                Ok(flags) => flags as i32,
                Err(_) => return Ok(None),
            },
        };
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return match target(pid, arguments, at, false)? {
                Some(one) if self.nodes.directory(one.id).is_some() => {
                    exclusive(Plan::CreateUnnamed)
                }
                _ => nothing(),
            };
        }
        if flags & (libc::O_CREAT | libc::O_TRUNC) == 0 {
            return Ok(None);
        }
        let exclusively = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
        let follow = flags & libc::O_NOFOLLOW == 0 && !exclusively;
        let Some(route) = self.route(pid, arguments, at, follow)? else { return nothing() };
        let inside = self.nodes.directory(route.parent_id).is_some();
        match route.status {
            None if !inside || flags & libc::O_CREAT == 0 => nothing(),
            None => exclusive(Plan::Create { route }),
            // Opening a pipe may wait for its other end.
            Some(status) if status.kind == FileKind::Special => Ok(None),
            Some(_) if exclusively || flags & libc::O_TRUNC == 0 => nothing(),
            Some(status) if status.kind == FileKind::Regular => match self.nodes.get(status.id) {
                Some(known) => {
                    exclusive(Plan::Emit(vec![Action::Truncate { node: known.node, size: 0 }]))
                }
                None => nothing(),
            },
            Some(_) => nothing(),
        }
    }

    fn begin_rename(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        from: At,
        to: At,
        flags: Option<usize>,
    ) -> Begun {
        let flags = flags.map_or(0, |flags| arguments[flags]);
        let Some(from) = self.route(pid, arguments, from, false)? else { return nothing() };
        let Some(to) = self.route(pid, arguments, to, false)? else { return nothing() };
        let inside = |route: &Route| self.nodes.directory(route.parent_id).is_some();
        if from.status.is_none() || !(inside(&from) || inside(&to)) {
            return nothing();
        }
        if flags & RENAME_WHITEOUT != 0 {
            return Err(RecordError::Refused {
                call: "renameat2(RENAME_WHITEOUT)".to_owned(),
                why: "it leaves a device behind".to_owned(),
            });
        }
        exclusive(Plan::Rename { from, to, exchange: flags & RENAME_EXCHANGE != 0 })
    }

    fn begin_link(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        from: At,
        to: At,
        flags: Option<usize>,
    ) -> Begun {
        let flags = flags.map_or(0, |flags| arguments[flags]) as i32;
        let route = match self.vacant(pid, arguments, to)? {
            Whereabouts::Inside(route) => route,
            other => return other.without_a_node(),
        };
        let itself = flags & (libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) == 0;
        match target(pid, arguments, from, itself)? {
            Some(source) => exclusive(Plan::Link { source, route }),
            None => nothing(),
        }
    }

    fn route(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        at: At,
        follow: bool,
    ) -> Result<Option<Route>, RecordError> {
        let (base, path) = named(pid, arguments, at)?;
        Ok(route::find(pid, base, &path, follow))
    }

    /// A name inside the tree that nothing has yet.
    fn vacant(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        at: At,
    ) -> Result<Whereabouts<Route>, RecordError> {
        Ok(match self.route(pid, arguments, at, false)? {
            Some(route)
                if route.status.is_none() && self.nodes.directory(route.parent_id).is_some() =>
            {
                Whereabouts::Inside(route)
            }
            _ => Whereabouts::Elsewhere,
        })
    }

    fn node_at(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        at: At,
        itself: bool,
    ) -> Result<Whereabouts<Node>, RecordError> {
        let target = target(pid, arguments, at, itself)?;
        Ok(match target.and_then(|target| self.nodes.get(target.id)) {
            Some(known) => Whereabouts::Inside(known.node),
            None => Whereabouts::Elsewhere,
        })
    }

    fn subject(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        subject: Subject,
    ) -> Result<Whereabouts<Node>, RecordError> {
        match subject {
            Subject::Descriptor => Ok(match self.known(pid, arguments[0] as i32)? {
                Some((known, _)) => Whereabouts::Inside(known.node),
                None => Whereabouts::Foreign,
            }),
            Subject::Path { at, itself, flags } => {
                let flags = flags.map_or(0, |flags| arguments[flags]) as i32;
                let itself = itself || flags & libc::AT_SYMLINK_NOFOLLOW != 0;
                self.node_at(pid, arguments, at, itself)
            }
        }
    }

    /// What the subject of a call is by now.
    pub(super) fn subject_status(
        &mut self,
        pid: pid_t,
        arguments: &[u64; 6],
        subject: Subject,
    ) -> Result<Option<Status>, RecordError> {
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

fn sync(flags: i32, per_call: u64) -> WriteSync {
    if flags & libc::O_SYNC == libc::O_SYNC || per_call & RWF_SYNC != 0 {
        WriteSync::Full
    } else if flags & libc::O_DSYNC != 0 || per_call & RWF_DSYNC != 0 {
        WriteSync::Data
    } else {
        WriteSync::None
    }
}

fn allocate(node: Node, arguments: &[u64; 6]) -> Begun {
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
    exclusive(Plan::Emit(vec![action]))
}

/// What a call gives as a path, and the directory that it begins in.
fn named(pid: pid_t, arguments: &[u64; 6], at: At) -> Result<(i32, OsString), RecordError> {
    let base = at.base.map_or(libc::AT_FDCWD, |base| arguments[base] as i32);
    Ok((base, text(pid, arguments[at.path])?))
}

/// What lies where a call's path leads.
fn target(
    pid: pid_t,
    arguments: &[u64; 6],
    at: At,
    itself: bool,
) -> Result<Option<Status>, RecordError> {
    let (base, path) = named(pid, arguments, at)?;
    Ok(route::target(pid, base, &path, itself))
}

/// A path or name the task gave. Where it cannot be read, the call cannot read it either: the
/// empty path leads nowhere.
fn text(pid: pid_t, address: u64) -> Result<OsString, RecordError> {
    match memory::text(pid, address) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Err(RecordError::Forbidden { source: error })
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            Err(RecordError::system("process_vm_readv", error))
        }
        text => Ok(text.unwrap_or_default()),
    }
}
