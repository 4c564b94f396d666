//! Before the first poll: everything a child needs, opened and handed to the keeper.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use retake_types::{StartFailure, Usage};

use super::{Attach, Event, KEEPER_PATIENCE, Supervision, Typing};
use crate::cancel::Cancel;
use crate::command::{Command, Stdin, check_directory};
use crate::keeper::{Group, Keeper, Spawn, Stage};
use crate::relay::Relay;
use crate::terminal::{Pty, Raw, Terminal};
use crate::watch::{self, Watch};
use crate::{resolve, sys};

impl<'a> Supervision<'a> {
    pub(super) fn start(
        keeper: &'a mut Keeper,
        command: &'a Command,
        cancel: &'a Cancel,
        attach: Attach<'a>,
        observer: &'a mut dyn FnMut(Event<'_>),
        clock: Instant,
    ) -> Result<Self, StartFailure> {
        let request = &command.request;
        let system = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| {
                StartFailure::NoResources(format!("{what}: {}", crate::command::plain(&error)))
            }
        };
        keeper.revive().map_err(system("no process could be made"))?;

        let directory = open_directory(&request.cwd).map_err(|error| {
            directory_failure(&request.cwd, error.raw_os_error().unwrap_or(libc::EIO))
        })?;
        let directory_name = std::path::absolute(&request.cwd)
            .and_then(|path| Ok(CString::new(path.into_os_string().into_encoded_bytes())?))
            .map_err(|_| directory_failure(&request.cwd, libc::EINVAL))?;
        let program = command.locate()?;
        let program = CString::new(program.into_os_string().into_encoded_bytes())
            .map_err(|_| StartFailure::Refused(vec!["the program's path contains a NUL".into()]))?;
        let inherits_terminal = request.stdin == Stdin::Inherit
            // SAFETY: asks about a descriptor.
            && unsafe { libc::isatty(0) } == 1;
        let (pty, pty_end) = if request.pty {
            let (pty, end) = Pty::open(inherits_terminal).map_err(system("no pseudo-terminal"))?;
            (Some(pty), Some(end))
        } else {
            (None, None)
        };
        let typing = (pty.is_some() && inherits_terminal).then(|| Raw::enter(0)).flatten();
        let typing = typing.map(|raw| Typing { in_front: raw.in_front(), raw, keys: Vec::new() });
        let mut terminal =
            if inherits_terminal && pty.is_none() { Terminal::controlling(0) } else { None };

        let pipe = || sys::pipe().map_err(system("no pipe for the output"));
        let duplicate = |fd: &OwnedFd| fd.try_clone().map_err(system("no pseudo-terminal"));
        let (out, err, out_end, err_end) = match (&pty, &pty_end) {
            (Some(pty), Some(end)) => {
                (Some(duplicate(&pty.ours)?), None, duplicate(end)?, duplicate(end)?)
            }
            _ => {
                let (out, out_end) = pipe()?;
                let (err, err_end) = pipe()?;
                (Some(out), Some(err), out_end, err_end)
            }
        };
        let deadline = request.timeout.and_then(|timeout| clock.checked_add(timeout));
        let stdin = match (&request.stdin, pty_end.filter(|_| inherits_terminal)) {
            (Stdin::Null, _) => None,
            (Stdin::Inherit, Some(end)) => Some(end),
            (Stdin::Inherit, None) => Some(own_stdin().map_err(system("stdin"))?),
            (Stdin::Given(input), _) => Some(input.duplicate().map_err(system("stdin"))?),
            (Stdin::File(path), _) => {
                Some(open_input(path, deadline, cancel).map_err(system("stdin"))?)
            }
        };
        let watch = Watch::over(&request.limits, keeper.pid());
        let group = match (&terminal, &pty) {
            (Some(terminal), _) if terminal.in_front() => Group::Foreground,
            (_, Some(_)) if inherits_terminal => Group::Session,
            _ => Group::Own,
        };
        let cgroup_files = watch.as_ref().map(|watch| watch.cgroup().procs()).unwrap_or_default();
        keeper
            .spawn(&Spawn {
                program: &program,
                arguments: &command.arguments,
                environment: &command.environment,
                group,
                nice: request.nice,
                files: request.limits.files,
                fsize: request.limits.fsize_bytes,
                directory: directory.as_raw_fd(),
                directory_name: &directory_name,
                stdout: out_end.as_raw_fd(),
                stderr: err_end.as_raw_fd(),
                stdin: stdin.as_ref().map(AsRawFd::as_raw_fd),
                terminal: match (&terminal, &typing) {
                    (Some(terminal), _) if group == Group::Foreground => Some(terminal.as_lent()),
                    (_, Some(typing)) => Some(typing.raw.as_lent()),
                    _ => None,
                },
                cgroup_files: &cgroup_files,
            })
            .map_err(|error| {
                resolve::explain_exec(
                    request.arguments[0].as_ref(),
                    &request.cwd,
                    error.raw_os_error().unwrap_or(0),
                )
            })?;
        if group == Group::Foreground
            && let Some(terminal) = &mut terminal
        {
            terminal.lent();
        }
        Ok(Self {
            next_look: watch.as_ref().map(|_| clock + watch::EVERY),
            deadline,
            keeper,
            command,
            cancel,
            observer,
            clock,
            streams: [out, err],
            bytes: [0; 2],
            gather_until: [None; 2],
            relays: [attach.stdout.map(Relay::new), attach.stderr.map(Relay::new)],
            relay_error: None,
            watch,
            terminal,
            pty,
            typing,
            pid: None,
            pidfd: None,
            exit: None,
            failure: None,
            usage: Usage::default(),
            alone: false,
            cause: None,
            left: Vec::new(),
            held_open: false,
            lost_keeper: false,
            done: false,
            kill_at: None,
            drain_until: None,
            patience_until: None,
            owed: Some((clock + KEEPER_PATIENCE, false)),
        })
    }

    /// Says why the keeper could not start the program.
    pub(super) fn explain(&self, stage: Stage, errno: i32) -> StartFailure {
        let request = &self.command.request;
        let why = resolve::describe(errno);
        match stage {
            Stage::Exec => match self.command.locate() {
                Ok(program) => resolve::explain_exec(&program, &request.cwd, errno),
                Err(failure) => failure,
            },
            Stage::Directory => directory_failure(&request.cwd, errno),
            Stage::Clone => StartFailure::NoResources(format!("no process could be made: {why}")),
            Stage::Limit => StartFailure::NoResources(format!(
                "a limit or the priority could not be set: {why}; without privileges neither can be raised above what this session has"
            )),
            Stage::Session | Stage::Cgroup | Stage::Streams | Stage::Terminal => {
                StartFailure::NoResources(format!(
                    "the new process could not be set up ({stage:?}): {why}"
                ))
            }
        }
    }
}

/// Says what is wrong with a directory that was fine when the command was checked.
fn directory_failure(path: &Path, errno: i32) -> StartFailure {
    let why = || format!("working directory {}: {}", path.display(), resolve::describe(errno));
    StartFailure::WorkingDirectory(check_directory(path).map_or_else(why, |p| p.to_string()))
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    Ok(File::options().read(true).custom_flags(flags).open(path)?.into())
}

fn own_stdin() -> io::Result<OwnedFd> {
    // SAFETY: duplicates descriptor 0, which stays open; the copy is ours alone.
    unsafe {
        let fd = sys::check(libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Opens a file to read from. A FIFO is opened without waiting, and then waited for, until the
/// deadline or a cancel, to have a writer.
fn open_input(path: &Path, deadline: Option<Instant>, cancel: &Cancel) -> io::Result<OwnedFd> {
    use std::os::unix::fs::FileTypeExt;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = [entry(file.as_raw_fd()), entry(cancel.fd())];
        while polled[0].revents == 0 {
            if cancel.requested().is_some() || deadline.is_some_and(|at| at <= Instant::now()) {
                return Err(io::Error::other(format!("nobody wrote to {}", path.display())));
            }
            sys::poll(&mut polled, deadline);
        }
    }
    // SAFETY: the child expects to wait for input; the description is ours alone.
    sys::check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) })?;
    Ok(file.into())
}
