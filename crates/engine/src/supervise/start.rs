//! Before the first poll: opens everything a child needs and passes it to the keeper.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use retake_types::StartFailure;
use rustix::stdio;

use super::keyboard::Keyboard;
use super::output::OutputStream;
use super::phase::{Phase, ReportDue, Timers};
use super::reports::KEEPER_PATIENCE;
use super::{Child, LiveOutput, ProcessEvent, Supervision, Terminals};
use crate::cancel::Cancel;
use crate::command::{Command, Stdin, check_directory, plain};
use crate::keeper::{Keeper, ProcessGroup, Spawn, SpawnStage};
use crate::limit_watch::{LimitWatch, WATCH_INTERVAL};
use crate::output_relay::OutputRelay;
use crate::terminal::{Pty, RawMode, UserTerminal};
use crate::{program_file, syscalls};

/// The streams of a child: its ends and retake's.
struct Streams {
    ours: [Option<OwnedFd>; 2],
    stdout: OwnedFd,
    stderr: OwnedFd,
    /// `None` is an empty stdin.
    stdin: Option<OwnedFd>,
}

impl<'a> Supervision<'a> {
    pub(super) fn start(
        keeper: &'a mut Keeper,
        command: &'a Command,
        cancel: &'a Cancel,
        live: LiveOutput<'a>,
        observer: &'a mut dyn FnMut(ProcessEvent<'_>),
        clock: Instant,
    ) -> Result<Self, StartFailure> {
        let launch = &command.launch;
        keeper.restart_if_lost().map_err(no_resources("could not start a process"))?;
        let (directory, mut directory_name) = open_directory(&launch.cwd)?;
        if let Some(inside) = &command.directory_inside {
            directory_name = name_of(inside)?;
        }
        let program = command.locate()?;
        let program = CString::new(program.into_os_string().into_encoded_bytes())
            .map_err(|_| StartFailure::Refused(vec!["the program's path contains a NUL".into()]))?;
        let typed = launch.stdin == Stdin::Inherit && stdio::stdin().is_terminal();
        let (mut terminals, pty_end) = Terminals::open(launch.pty, typed)?;
        let deadline = launch.timeout.and_then(|timeout| clock.checked_add(timeout));
        let given_stdin = match (&launch.stdin, pty_end.as_ref().filter(|_| typed)) {
            (Stdin::Inherit, Some(end)) => Some(duplicate(end)?),
            (stdin, _) => open_stdin(stdin, deadline, cancel).map_err(no_resources("stdin"))?,
        };
        let streams = Streams::open(&terminals, pty_end, given_stdin)?;
        let limit_watch = LimitWatch::over(&launch.limits, keeper.pid());
        let cgroup_files =
            limit_watch.as_ref().map(|watch| watch.cgroup().procs()).unwrap_or_default();
        let group = terminals.group(typed);
        keeper
            .spawn(&Spawn {
                program: &program,
                arguments: &command.arguments,
                environment: &launch.environment,
                group,
                nice: launch.nice,
                files: launch.limits.files,
                fsize: launch.limits.fsize_bytes,
                directory: directory.as_raw_fd(),
                directory_name: &directory_name,
                stdout: streams.stdout.as_raw_fd(),
                stderr: streams.stderr.as_raw_fd(),
                stdin: streams.stdin.as_ref().map(AsRawFd::as_raw_fd),
                terminal: match (&terminals.lent, &terminals.keyboard) {
                    (Some(terminal), _) if group == ProcessGroup::Foreground => {
                        Some(terminal.as_lent())
                    }
                    (_, Some(keyboard)) => Some(keyboard.raw.as_lent()),
                    _ => None,
                },
                cgroup_files: &cgroup_files,
            })
            .map_err(|error| {
                program_file::explain_exec(
                    launch.arguments[0].as_ref(),
                    &launch.cwd,
                    error.raw_os_error().unwrap_or(0),
                )
            })?;
        if group == ProcessGroup::Foreground
            && let Some(terminal) = &mut terminals.lent
        {
            terminal.lent();
        }
        let [stdout, stderr] = streams.ours;
        Ok(Self {
            keeper,
            command,
            cancel,
            observer,
            clock,
            phase: Phase::Starting,
            timers: Timers {
                deadline,
                limit_check: limit_watch.as_ref().map(|_| clock + WATCH_INTERVAL),
                relay_until: None,
                report_due: Some(ReportDue { at: clock + KEEPER_PATIENCE, reminded: false }),
            },
            cause: None,
            child: Child::default(),
            output: [
                OutputStream::new(stdout, live.stdout.map(OutputRelay::new)),
                OutputStream::new(stderr, live.stderr.map(OutputRelay::new)),
            ],
            relay_error: None,
            limit_watch,
            terminals,
            left: Vec::new(),
            held_open: false,
            lost_keeper: false,
        })
    }

    /// Explains why the keeper could not start the program.
    pub(super) fn explain(&self, stage: SpawnStage, errno: i32) -> StartFailure {
        let launch = &self.command.launch;
        let why = program_file::describe(errno);
        match stage {
            SpawnStage::Exec => match self.command.locate() {
                Ok(program) => program_file::explain_exec(&program, &launch.cwd, errno),
                Err(failure) => failure,
            },
            SpawnStage::Directory => directory_failure(&launch.cwd, errno),
            SpawnStage::Clone => {
                StartFailure::NoResources(format!("could not start a process: {why}"))
            }
            SpawnStage::Limit => StartFailure::NoResources(format!(
                "a limit or the priority could not be set: {why}; without privileges neither can be raised above what this session has"
            )),
            SpawnStage::Session
            | SpawnStage::Cgroup
            | SpawnStage::Streams
            | SpawnStage::Terminal => StartFailure::NoResources(format!(
                "the new process could not be set up ({stage:?}): {why}"
            )),
        }
    }
}

impl Terminals {
    /// The terminals of a run, and the child's end of the pseudo-terminal if it has one. `typed`
    /// says that the child reads from the user's terminal.
    fn open(with_pty: bool, typed: bool) -> Result<(Self, Option<OwnedFd>), StartFailure> {
        if with_pty {
            let (pty, end) = Pty::open(typed).map_err(no_resources("no pseudo-terminal"))?;
            let raw = if typed { RawMode::enter(0) } else { None };
            let keyboard = raw.map(Keyboard::new);
            return Ok((Self { lent: None, pty: Some(pty), keyboard }, Some(end)));
        }
        let lent = if typed { UserTerminal::controlling(0) } else { None };
        Ok((Self { lent, pty: None, keyboard: None }, None))
    }

    fn group(&self, typed: bool) -> ProcessGroup {
        match (&self.lent, &self.pty) {
            (Some(terminal), _) if terminal.in_foreground() => ProcessGroup::Foreground,
            (_, Some(_)) if typed => ProcessGroup::Session,
            _ => ProcessGroup::Own,
        }
    }
}

impl Streams {
    /// Both streams of a pseudo-terminal are one, read from retake's side.
    fn open(
        terminals: &Terminals,
        pty_end: Option<OwnedFd>,
        stdin: Option<OwnedFd>,
    ) -> Result<Self, StartFailure> {
        if let (Some(pty), Some(end)) = (&terminals.pty, pty_end) {
            let (ours, stderr) = (duplicate(&pty.ours)?, duplicate(&end)?);
            return Ok(Self { ours: [Some(ours), None], stdout: end, stderr, stdin });
        }
        let pipe = || io::pipe().map_err(no_resources("no pipe for the output"));
        let (out, stdout) = pipe()?;
        let (err, stderr) = pipe()?;
        let ours = [Some(out.into()), Some(err.into())];
        Ok(Self { ours, stdout: stdout.into(), stderr: stderr.into(), stdin })
    }
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, StartFailure> {
    fd.try_clone().map_err(no_resources("no pseudo-terminal"))
}

/// The system lacks a resource for the run.
fn no_resources(what: &'static str) -> impl Fn(io::Error) -> StartFailure {
    move |error| StartFailure::NoResources(format!("{what}: {}", plain(&error)))
}

/// Explains the failure of a directory that was usable when the command was checked.
fn directory_failure(path: &Path, errno: i32) -> StartFailure {
    let why = || format!("working directory {}: {}", path.display(), program_file::describe(errno));
    StartFailure::WorkingDirectory(check_directory(path).map_or_else(why, |p| p.to_string()))
}

/// Opens the working directory; also returns its absolute path.
fn open_directory(path: &Path) -> Result<(OwnedFd, CString), StartFailure> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let directory = File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(|error| directory_failure(path, error.raw_os_error().unwrap_or(libc::EIO)))?;
    Ok((directory.into(), name_of(path)?))
}

fn name_of(directory: &Path) -> Result<CString, StartFailure> {
    std::path::absolute(directory)
        .and_then(|path| Ok(CString::new(path.into_os_string().into_encoded_bytes())?))
        .map_err(|_| directory_failure(directory, libc::EINVAL))
}

fn open_stdin(
    stdin: &Stdin,
    deadline: Option<Instant>,
    cancel: &Cancel,
) -> io::Result<Option<OwnedFd>> {
    match stdin {
        Stdin::Null => Ok(None),
        Stdin::Inherit => stdio::stdin().try_clone_to_owned().map(Some),
        Stdin::Given(input) => input.duplicate().map(Some),
        Stdin::File(path) => open_input(path, deadline, cancel).map(Some),
    }
}

/// Opens a file for reading. A FIFO is opened without blocking; then waits for its writer until the
/// deadline or a cancel.
fn open_input(path: &Path, deadline: Option<Instant>, cancel: &Cancel) -> io::Result<OwnedFd> {
    use std::os::unix::fs::FileTypeExt;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = [entry(file.as_raw_fd()), entry(cancel.fd())];
        while polled[0].revents == 0 {
            if cancel.requested().is_some() || deadline.is_some_and(|at| at <= Instant::now()) {
                return Err(io::Error::other(format!("no writer for {}", path.display())));
            }
            syscalls::poll(&mut polled, deadline);
        }
    }
    // The child expects blocking reads; the open file description is not shared.
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty())?;
    Ok(file.into())
}
