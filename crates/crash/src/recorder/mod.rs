//! Runs a workload once and records everything it does to a directory, so that every state a
//! crash could have left can be built afterwards without running it again.
//!
//! ```no_run
//! let recorded = retake_crash::record("./server").arg("--once").root("/tmp/data").run()?;
//! println!("{} entries", recorded.recording.entries.len());
//! # Ok::<(), retake_crash::recorder::RecordError>(())
//! ```
//!
//! The workload's tasks are traced with ptrace; a seccomp filter stops them only at calls that can
//! change files. Nothing is simulated: the workload runs on the real directory, best on a file
//! system in memory, because durability is determined by the models and not by this run. Anything that cannot be
//! recorded faithfully fails the recording; an incomplete log is never returned. No model is applied
//! here.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::fault::{FaultTarget, FaultTrace};
use crate::fd;
use crate::model::Tree;
use crate::mount_namespace::MountNamespace;
use crate::operation::{Entry, Operation, Recording};
use crate::recorded_bytes::{ByteStore, MEMORY};
use crate::scratch::ScratchDir;
use crate::variables;

mod border_moves;
mod call_entry;
mod call_exit;
mod compare;
mod cpu_pinning;
mod directory_scan;
mod error;
mod fault_injection;
mod file;
mod interrupted_call;
mod last_close;
mod launch;
mod left_running;
mod mapped_files;
mod nodes;
mod outside_files;
mod path_lookup;
mod pending_call;
mod ptrace;
mod python_line;
mod seccomp_filter;
mod stack_capture;
mod syscalls;
mod task_memory;
mod tracer;
mod watchdog;

pub use error::RecordError;
pub(crate) use file::c_string;
pub use left_running::LINGER;
use tracer::Tracer;
pub use tracer::WorkloadOutcome;

/// Starts to describe a recording of a program.
pub fn record(program: impl Into<OsString>) -> Recorder {
    Recorder {
        program: program.into(),
        arguments: Vec::new(),
        environment: std::env::vars_os().collect(),
        directory: None,
        root: None,
        output: None,
        stderr: None,
        acknowledge: true,
        inherit: Vec::new(),
        limit: None,
        linger: LINGER,
        cancel: None,
        namespace: None,
        faults: None,
        stacks: false,
        memory: MEMORY,
    }
}

/// What to record, and how.
#[must_use = "nothing is recorded before `.run()`"]
pub struct Recorder {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    root: Option<PathBuf>,
    output: Option<Box<dyn Write + Send>>,
    stderr: Option<File>,
    acknowledge: bool,
    inherit: Vec<RawFd>,
    limit: Option<Duration>,
    linger: Duration,
    cancel: Option<OwnedFd>,
    namespace: Option<MountNamespace>,
    faults: Option<Option<FaultTarget>>,
    stacks: bool,
    memory: u64,
}

/// The result of recording a workload.
#[derive(Debug)]
#[non_exhaustive]
pub struct Recorded {
    /// What the workload did.
    pub recording: Recording,
    /// How it ended.
    pub outcome: WorkloadOutcome,
    /// The watched directory, if none was given.
    pub scratch: Option<ScratchDir>,
    /// Empty unless faults were requested.
    pub faults: FaultTrace,
}

impl Recorder {
    /// Adds an argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable. The rest of the environment is inherited, unless cleared.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        let name = name.into();
        self.environment.retain(|(other, _)| *other != name);
        self.environment.push((name, value.into()));
        self
    }

    /// Removes a variable.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.environment.retain(|(other, _)| other != name.as_ref());
        self
    }

    /// Removes all variables.
    pub fn env_clear(mut self) -> Self {
        self.environment.clear();
        self
    }

    /// The workload's working directory; by default this process's.
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// The directory to watch. It must exist; its content counts as durable. By default, a
    /// new directory in memory is created, which is removed with the [`Recorded`].
    pub fn root(mut self, root: impl Into<PathBuf>) -> Self {
        self.root = Some(root.into());
        self
    }

    /// Where the workload's stdout is copied to; by default this process's stdout.
    pub fn output(mut self, output: impl Write + Send + 'static) -> Self {
        self.output = Some(Box::new(output));
        self
    }

    /// The workload's stderr; by default this process's.
    pub fn stderr(mut self, stderr: File) -> Self {
        self.stderr = Some(stderr);
        self
    }

    /// Whether each line on stdout is an acknowledgement; on by default.
    pub fn acknowledge_lines(mut self, yes: bool) -> Self {
        self.acknowledge = yes;
        self
    }

    /// Keeps a descriptor of this process open in the workload, under the same number.
    pub fn inherit(mut self, fd: RawFd) -> Self {
        self.inherit.push(fd);
        self
    }

    /// Terminates the workload, and fails the recording, if it takes longer.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// How long processes that outlive the workload's first one may take to end by themselves,
    /// [`LINGER`] by default, and never longer than the time limit. What they do is recorded; those
    /// that do not end are terminated, and counted in [`Recording::left_running`].
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// Terminates the workload, and fails the recording, when this descriptor becomes readable.
    pub fn cancel_on(mut self, descriptor: OwnedFd) -> Self {
        self.cancel = Some(descriptor);
        self
    }

    /// Records inside a mount namespace, which the recorder enters with its workload.
    pub fn inside(mut self, namespace: MountNamespace) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// Makes a call fail, or without a target lists the calls that could.
    pub fn fault(mut self, target: Option<FaultTarget>) -> Self {
        self.faults = Some(target);
        self
    }

    /// Whether to keep the call stack of each operation; off by default.
    pub fn stacks(mut self, yes: bool) -> Self {
        self.stacks = yes;
        self
    }

    /// How many bytes of the directory's content and of the workload's writes are kept in
    /// memory, [`MEMORY`] by default. The rest is kept in a file on disk.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Runs the workload to its end. No process it started is alive afterwards.
    ///
    /// The workload gets the watched directory in `FIRST_WORK_DIR`.
    pub fn run(self) -> Result<Recorded, RecordError> {
        // Only the thread that starts a process can trace it, and it must not wait for anything else.
        let name = thread::Builder::new().name("first-record".into());
        let recording = name
            .spawn(move || self.record())
            .map_err(|source| RecordError::system("a thread", source))?;
        match recording.join() {
            Ok(recorded) => recorded,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn record(self) -> Result<Recorded, RecordError> {
        if !syscalls::SUPPORTED {
            let why = format!("no system calls are known for {}", std::env::consts::ARCH);
            return Err(RecordError::Unsupported { why });
        }
        if let Some(namespace) = &self.namespace {
            namespace.enter().map_err(|source| RecordError::system("a namespace", source))?;
        }
        let scratch = match &self.root {
            Some(_) => None,
            None => Some(ScratchDir::new(None).map_err(|s| RecordError::system("a directory", s))?),
        };
        let chosen = scratch.as_ref().map(|scratch| scratch.path().to_owned());
        let root = self.root.clone().or(chosen).unwrap_or_default();
        let failed = |source| RecordError::Root { path: root.clone(), source };
        let root = root.canonicalize().map_err(failed)?;
        let failed = |source| RecordError::Root { path: root.clone(), source };
        let handle = open_root(&root).map_err(failed)?;
        let mut nodes = nodes::Nodes::default();
        let mut bytes = ByteStore::new(self.memory, None);
        let into =
            &mut directory_scan::ScanBytes { bytes: &mut bytes, cancel: self.cancel.as_ref() };
        let initial =
            directory_scan::scan(&handle, &mut nodes, into).map_err(|source| {
                match source.kind() {
                    io::ErrorKind::Interrupted => RecordError::Cancelled,
                    _ => failed(source),
                }
            })?;

        let system = |source| RecordError::system("pipe", source);
        let (reader, writer) = fd::pipe().map_err(system)?;
        let stdout = file::FileStatus::of_descriptor(writer.as_raw_fd()).map_err(system)?.id;
        let stdout = self.acknowledge.then_some(stdout);
        let every_call = launch::filter_is_overruled();
        let mut table = match self.faults {
            Some(_) => syscalls::table_with_reads(),
            None => syscalls::table(),
        };
        if self.stacks {
            table.push(syscalls::code_mapping());
        }
        let filter = (!every_call).then(|| seccomp_filter::program(&table));
        let mut tracer =
            Tracer::new(&handle, nodes, bytes, stdout, table, every_call).map_err(failed)?;
        tracer.stacks = self.stacks.then(stack_capture::StackCapture::default);
        tracer.faults = self.faults.clone().map(fault_injection::FaultWatch::new);
        let environment = self.environment(&root);
        let launch = launch::WorkloadLaunch {
            program: &self.program,
            arguments: &self.arguments,
            environment: &environment,
            directory: self.directory.as_deref(),
            stdout: writer.as_raw_fd(),
            stderr: self.stderr.as_ref().map(AsRawFd::as_raw_fd),
            inherit: &self.inherit,
            filter,
        };
        let started = launch::start(&launch)?;
        drop(writer);
        let watchdog = watchdog::Watchdog::new(&started.pidfd, self.limit, self.cancel.as_ref());
        let limits = left_running::LingerLimits {
            linger: self.linger,
            deadline: self.limit.and_then(|limit| Instant::now().checked_add(limit)),
            cancel: self.cancel.as_ref(),
        };
        let outcome = thread::scope(|scope| {
            scope.spawn(|| forward_output(File::from(reader), self.output));
            scope.spawn(|| watchdog.run());
            tracer.run(started.pid, limits)
        });
        if let Some(error) = watchdog.exceeded() {
            return Err(error);
        }
        let outcome = outcome?;
        if let Some(error) = launch::complaint(&started.complaint, &self.program) {
            return Err(error);
        }
        let now = open_root(&root).and_then(|now| file::FileStatus::of_descriptor(now.as_raw_fd()));
        let before = file::FileStatus::of_descriptor(handle.as_raw_fd()).map_err(failed)?;
        if !now.is_ok_and(|now| now.id == before.id) {
            return Err(RecordError::Moved { path: root });
        }
        let stacks = tracer.stacks.map(stack_capture::StackCapture::into_stacks);
        let directory = self.directory.clone().or_else(|| std::env::current_dir().ok());
        let directory = directory.unwrap_or_default();
        let directory = directory.canonicalize().unwrap_or(directory);
        let mut recording = Recording {
            root: root.clone(),
            initial,
            entries: tracer.entries,
            stacks: stacks.unwrap_or_default(),
            left_running: tracer.left_running,
            outside: tracer.outside_files.finish(&root, &directory),
            initial_is_copy: false,
        };
        let mut tree = compare::replayed(&recording);
        let reread = interrupted_call::reread(&tracer.unsure, &tree, &handle, &mut tracer.bytes);
        for action in reread.map_err(failed)? {
            tree.apply(&action);
            let call = "exit".to_owned();
            recording.entries.push(Entry::Operation(Operation { task: 0, call, action }));
        }
        let differences = compare::differences(&tree, &handle).map_err(failed)?;
        if !differences.is_empty() {
            return Err(RecordError::Differs { differences });
        }
        let faults = tracer.faults.map(fault_injection::FaultWatch::into_trace).unwrap_or_default();
        Ok(Recorded { recording, outcome, scratch, faults })
    }

    fn environment(&self, root: &Path) -> Vec<(OsString, OsString)> {
        let own = [variables::RECORDING, variables::WORK_DIR];
        let mut environment: Vec<_> = self
            .environment
            .iter()
            .filter(|(name, _)| !own.iter().any(|own| name == own))
            .cloned()
            .collect();
        environment.push((variables::RECORDING.into(), "1".into()));
        environment.push((variables::WORK_DIR.into(), root.into()));
        environment
    }
}

fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let path = c_string(root.as_os_str())?;
    file::open_at(libc::AT_FDCWD, &path, libc::O_RDONLY | libc::O_DIRECTORY)
}

/// How long lines are collected before they are passed on together.
const GATHER: Duration = Duration::from_millis(2);

/// Copies the workload's output until its last writer is gone. A closed output must not stop
/// the workload, so the rest is read and dropped.
fn forward_output(mut reader: File, output: Option<Box<dyn Write + Send>>) {
    let mut output = output.unwrap_or_else(|| Box::new(io::stdout()));
    let mut buffer = vec![0; 64 << 10];
    let mut broken = false;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) if !broken => {
                broken = output.write_all(&buffer[..n]).and_then(|()| output.flush()).is_err();
                // Lines arrive one by one, and waking up for each costs more than passing it on.
                thread::sleep(GATHER);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// The content of a directory.
pub fn tree_of(directory: &Path) -> io::Result<Tree> {
    let root = open_root(directory)?;
    let into = &mut directory_scan::ScanBytes { bytes: &mut ByteStore::default(), cancel: None };
    Ok(Tree::new(&directory_scan::scan(&root, &mut nodes::Nodes::default(), into)?))
}

/// The differences between a directory and a tree, one sentence each.
#[cfg(test)]
pub(crate) fn differences(tree: &Tree, directory: &Path) -> io::Result<Vec<String>> {
    compare::differences(tree, &open_root(directory)?)
}
