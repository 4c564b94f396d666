//! Runs a check on crash states, several at a time, each under the path it was recorded at.
//!
//! A check is a command: it gets `FIRST_WORK_DIR`, `FIRST_ACKS` (a file, one promise per line),
//! `FIRST_CRASH_POINT_ID` and `FIRST_CRASH_LABEL`, and its exit code says whether the state is
//! good. Which states there are, and what a failure means, is decided elsewhere.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::materialise::materialise;
use crate::model::Tree;
use crate::mount_namespace::MountNamespace;
use crate::recorder::{RecordError, Recorded};
use crate::scratch::{ScratchDir, empty_dir};
use crate::variables;

mod check_process;
#[cfg(test)]
mod tests;

pub use check_process::{CheckFailure, CheckResult};

/// Longer than any check of a small state takes, but short enough to wait for.
const LIMIT: Duration = Duration::from_secs(30);

/// A state to check.
#[derive(Clone, Copy, Debug)]
pub struct StateToCheck<'a> {
    /// The files.
    pub tree: &'a Tree,
    /// The number of the crash point.
    pub point: u64,
    /// The label of that crash point.
    pub label: &'a str,
    /// What was promised before the crash.
    pub acks: &'a [Vec<u8>],
}

/// What to run, before the machine's abilities are known.
#[derive(Debug)]
#[must_use = "nothing is verified before `.prepare()`"]
pub struct Verifier {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    root: PathBuf,
    scratch: Option<PathBuf>,
    limit: Duration,
    mount: bool,
}

impl Verifier {
    /// `root` is the path that the workload saw.
    pub fn new(program: impl Into<OsString>, root: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: std::env::vars_os().collect(),
            directory: None,
            root: root.into(),
            scratch: None,
            limit: LIMIT,
            mount: true,
        }
    }

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

    /// Sets a variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The check's working directory; by default this process's.
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// The directory for states; by default in memory.
    pub fn scratch(mut self, directory: impl Into<PathBuf>) -> Self {
        self.scratch = Some(directory.into());
        self
    }

    /// A check that takes longer has failed; 30 s by default.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Whether states are mounted at the path they were recorded at, which is the default if it is
    /// possible.
    pub fn mount(mut self, yes: bool) -> Self {
        self.mount = yes;
        self
    }

    /// Determines what this machine allows.
    pub fn prepare(self) -> io::Result<VerifierPool> {
        let scratch = ScratchDir::new(self.scratch.as_deref())?;
        let note = if self.mount { self.obstacle(&scratch) } else { None };
        let mounted = self.mount && note.is_none();
        Ok(VerifierPool { verifier: self, scratch, mounted, note })
    }

    /// Why a state cannot be mounted over the recorded path.
    fn obstacle(&self, scratch: &ScratchDir) -> Option<String> {
        try_mount(scratch.path(), &self.root).err().map(|error| {
            format!(
                "states are checked in a fresh directory and not at {}: no mount namespace ({error})",
                self.root.display()
            )
        })
    }
}

/// Ready to check states.
#[derive(Debug)]
pub struct VerifierPool {
    verifier: Verifier,
    scratch: ScratchDir,
    mounted: bool,
    note: Option<String>,
}

impl VerifierPool {
    /// A note for people about a limitation.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Checks one state. Simultaneous calls need different slots.
    pub fn verify(&self, slot: usize, case: &StateToCheck<'_>) -> io::Result<CheckResult> {
        let files = self.prepare_slot(slot, case)?;
        let namespace = self
            .mounted
            .then(|| MountNamespace::new(&files.state, &self.verifier.root))
            .transpose()?;
        let mut environment = self.environment(&files, case);
        environment.push((variables::WORK_DIR, self.path_of_state(&files).into()));
        check_process::run(&check_process::CheckLaunch {
            program: &self.verifier.program,
            arguments: &self.verifier.arguments,
            inherited: &self.verifier.environment,
            set: &environment,
            directory: self.verifier.directory.as_deref(),
            namespace,
            output: &files.output,
            limit: self.verifier.limit,
        })
    }

    /// Records the check of one state, for crashes during recovery. Its outcome contains the verdict.
    pub fn record(&self, slot: usize, case: &StateToCheck<'_>) -> Result<Recorded, RecordError> {
        let failed = |source| RecordError::system("a state to recover", source);
        let files = self.prepare_slot(slot, case).map_err(failed)?;
        // SAFETY: cannot fail.
        let root = unsafe { libc::geteuid() } == 0;
        let target = &self.verifier.root;
        let namespace = (self.mounted && root).then(|| MountNamespace::new(&files.state, target));
        let seen = if namespace.is_some() { target } else { &files.state };
        let output = fs::File::create(&files.output).map_err(failed)?;
        let mut recorder = crate::recorder::record(self.verifier.program.clone())
            .args(self.verifier.arguments.iter().cloned())
            .root(seen.clone())
            .acknowledge_lines(false)
            .output(output.try_clone().map_err(failed)?)
            .stderr(output)
            .timeout(self.verifier.limit);
        if let Some(namespace) = namespace {
            recorder = recorder.inside(namespace.map_err(failed)?);
        }
        if let Some(directory) = &self.verifier.directory {
            recorder = recorder.current_dir(directory);
        }
        for (name, value) in &self.verifier.environment {
            recorder = recorder.env(name, value);
        }
        for (name, value) in self.environment(&files, case) {
            recorder = recorder.env(name, value);
        }
        recorder.run()
    }

    /// Checks many states with `jobs` children at a time. `tell` is called on this thread, in the
    /// order in which checks end, until it breaks.
    pub fn run<T: Send>(
        &self,
        jobs: usize,
        states: impl IntoIterator<Item = T>,
        case: impl Fn(&T) -> StateToCheck<'_> + Sync,
        mut tell: impl FnMut(T, CheckResult) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let mut failed = Ok(());
        in_parallel(
            jobs,
            states,
            |slot, state| self.verify(slot, &case(state)),
            |state, verdict| match verdict {
                Ok(verdict) => tell(state, verdict),
                Err(error) => {
                    failed = Err(error);
                    ControlFlow::Break(())
                }
            },
        );
        failed
    }

    fn prepare_slot(&self, slot: usize, case: &StateToCheck<'_>) -> io::Result<SlotFiles> {
        let base = self.scratch.path().join(format!("job-{slot}"));
        let files = SlotFiles {
            state: base.join("state"),
            acks: base.join("acks"),
            output: base.join("output"),
        };
        match fs::create_dir(&base) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => empty_dir(&files.state)?,
        }
        materialise(case.tree, &files.state)?;
        fs::write(&files.acks, ack_lines(case.acks))?;
        Ok(files)
    }

    fn environment(
        &self,
        files: &SlotFiles,
        case: &StateToCheck<'_>,
    ) -> Vec<(&'static str, OsString)> {
        vec![
            (variables::ACKS, files.acks.clone().into()),
            (variables::CRASH_POINT_ID, case.point.to_string().into()),
            (variables::CRASH_LABEL, case.label.replace('\0', " ").into()),
        ]
    }

    fn path_of_state<'a>(&'a self, files: &'a SlotFiles) -> &'a OsStr {
        let path: &Path = if self.mounted { &self.verifier.root } else { &files.state };
        path.as_os_str()
    }
}

/// Calls `work` on `jobs` threads, each with its own slot number. `tell` is called with each
/// result on this thread until it breaks; work in progress is then finished and its result dropped.
pub fn in_parallel<T: Send, R: Send>(
    jobs: usize,
    items: impl IntoIterator<Item = T>,
    work: impl Fn(usize, &T) -> R + Sync,
    mut tell: impl FnMut(T, R) -> ControlFlow<()>,
) {
    let jobs = jobs.max(1);
    let (to_do, waiting) = mpsc::channel::<T>();
    let (done, results) = mpsc::channel();
    let waiting = Mutex::new(waiting);
    thread::scope(|scope| {
        for slot in 0..jobs {
            let (waiting, done, work) = (&waiting, done.clone(), &work);
            scope.spawn(move || {
                loop {
                    let item = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(item) = item else { return };
                    let result = work(slot, &item);
                    if done.send((item, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        // Dropped at the end of this closure, which is what the workers wait for.
        let to_do = to_do;
        let mut items = items.into_iter();
        let mut busy = 0;
        loop {
            // One more than there are workers, so that none waits for the next item.
            while busy < jobs + 1
                && let Some(item) = items.next()
                && to_do.send(item).is_ok()
            {
                busy += 1;
            }
            if busy == 0 {
                return;
            }
            let Ok((item, result)) = results.recv() else { return };
            busy -= 1;
            if tell(item, result).is_break() {
                return;
            }
        }
    });
}

/// Whether a child can have one directory mounted over another.
pub fn try_mount(source: &Path, target: &Path) -> io::Result<()> {
    // It is the mount point; the workload may have removed the directory.
    fs::create_dir_all(target)?;
    check_process::can_enter(MountNamespace::new(source, target)?)
}

/// The files of one check.
struct SlotFiles {
    state: PathBuf,
    acks: PathBuf,
    output: PathBuf,
}

/// One promise per line; a line break inside one is written as `\n`.
pub fn ack_lines(acks: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::new();
    for ack in acks {
        for byte in ack {
            match byte {
                b'\n' => text.extend_from_slice(b"\\n"),
                other => text.push(*other),
            }
        }
        text.push(b'\n');
    }
    text
}
