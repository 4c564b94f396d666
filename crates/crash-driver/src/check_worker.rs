//! A worker that checks crash states: a directory with one state at a time, and a keeper that
//! runs the user's command on it. No process of a check outlives it.
//!
//! With crashes during recovery the same worker also records a check: the same state in the same
//! directory with the same variables, but started by the recorder, because only a tracing parent
//! sees what its child does.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_crash::model::{CrashState, Tree};
use retake_crash::mount_namespace::MountNamespace;
use retake_crash::operation::Recording;
use retake_crash::recorder::{RecordError, WorkloadOutcome};
use retake_crash::variables;
use retake_engine::{
    Cancel, Command, Keeper, KeeperSession, KeeperSettings, LiveOutput, ProcessEvent, Variable,
};
use retake_runner::head_tail::HeadTail;
use retake_runner::signals;
use retake_types::{Outcome, text};

use crate::check::{Check, CheckError, CheckOutcome, FailedCheck};
use crate::check_sandbox::CheckSandbox;
use crate::mount_namespace::OriginalNamespace;
use crate::scratch::StateScratch;

/// How much of a check's output is kept.
const OUTPUT: usize = 4096;

/// The input of a check.
#[derive(Clone, Copy)]
pub struct CheckInput<'a> {
    pub tree: &'a Tree,
    /// The number of the operation before the crash.
    pub operation: u32,
    pub label: Option<&'a str>,
    /// The program's acknowledgements before the crash.
    pub acks: &'a [&'a [u8]],
}

impl<'a> CheckInput<'a> {
    /// A state of a recording, whose acknowledgements are `acks`.
    pub fn new(state: &'a CrashState, acks: &'a [&'a [u8]]) -> Self {
        Self {
            tree: &state.tree,
            operation: state.key.point.operation,
            label: state.label.as_deref(),
            acks: &acks[..state.acks.min(acks.len())],
        }
    }
}

pub struct CheckWorker {
    keeper: Keeper,
    cancel: Cancel,
    /// The directory with the state.
    state: PathBuf,
    /// The directory that was recorded.
    root: PathBuf,
    /// Whether the keeper finds the state at the recorded directory's own path.
    at_root: bool,
    acks: PathBuf,
    /// How many acknowledgements the file contains now.
    acks_written: Option<usize>,
    /// Whether the state directory must be emptied first.
    used: bool,
}

/// All workers, and their scratch directory.
pub struct CheckWorkers {
    pub workers: Vec<CheckWorker>,
    /// Why checks cannot see the recorded path, if so.
    pub other_path: Option<String>,
    // Must be last: dropped when everything that uses it has ended.
    _scratch: StateScratch,
}

impl CheckWorkers {
    /// Only for a process without threads and open records: keepers are forks. `owns_children` says
    /// that nothing else will start processes here.
    pub fn start(count: usize, recording: &Recording, owns_children: bool) -> io::Result<Self> {
        Self::start_confined(count, recording, owns_children, None)
    }

    /// The same with confined checks.
    pub fn start_confined(
        count: usize,
        recording: &Recording,
        owns_children: bool,
        sandbox: Option<CheckSandbox<'_>>,
    ) -> io::Result<Self> {
        let root = &recording.root;
        let bytes = recording.largest_state().saturating_mul(count as u64);
        let scratch = StateScratch::new(root, bytes)?;
        let dispositions = signals::original();
        let original = if root.is_dir() {
            OriginalNamespace::new().map_err(|error| {
                format!("a mount namespace cannot be created here ({})", text::plain(&error))
            })
        } else {
            Err(format!("{} does not exist any more", root.display()))
        };
        let at_root = original.is_ok();
        let settings = KeeperSettings {
            session: KeeperSession::Own,
            dispositions,
            owns_children,
            own_mounts: at_root,
        };
        let mut keepers = Vec::new();
        for number in 0..count {
            let directory = scratch.path().join(number.to_string());
            let state = directory.join("state");
            std::fs::create_dir_all(&state)?;
            if let Ok(original) = &original {
                original.enter_new_with(&state, root)?;
            }
            let seen = if at_root { root } else { &state };
            let keeper = match sandbox {
                None => Keeper::start(settings),
                Some(sandbox) => sandbox.keeper(seen, &directory, settings),
            };
            if let Ok(original) = &original {
                original.restore()?;
            }
            keepers.push((keeper?, state, directory.join("acks")));
        }
        let cancels = signals::install(count)?;
        let workers = keepers.into_iter().zip(cancels).map(|((keeper, state, acks), cancel)| {
            let (cancel, root) = (cancel.clone(), root.to_owned());
            let (acks_written, used) = (None, false);
            CheckWorker { keeper, cancel, state, root, at_root, acks, acks_written, used }
        });
        Ok(Self { workers: workers.collect(), other_path: original.err(), _scratch: scratch })
    }
}

impl CheckWorker {
    /// The recorded directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The worker's directory beside the state.
    pub(crate) fn directory(&self) -> &Path {
        self.acks.parent().unwrap_or(&self.acks)
    }

    /// The next acknowledgements belong to another recording.
    pub(crate) fn forget_acks(&mut self) {
        self.acks_written = None;
    }

    /// Runs a command in this worker's mount namespace.
    pub(crate) fn run(
        &mut self,
        command: &Command,
        output: LiveOutput,
        observe: &mut dyn FnMut(ProcessEvent<'_>),
    ) -> Outcome {
        self.keeper.run(command, &self.cancel, output, observe).outcome
    }

    /// Runs the check on a state.
    pub fn check(
        &mut self,
        check: &Check,
        input: CheckInput<'_>,
    ) -> Result<CheckOutcome, CheckError> {
        self.write_state(input)?;
        let seen = if self.at_root { &self.root } else { &self.state };
        let mut launch = check.launch(self.variables(seen, input));
        if let Some(confinement) = self.keeper.confinement() {
            for (name, value) in confinement.variables() {
                launch.set((name, value).into());
            }
        }
        let command = Command::new(launch).map_err(CheckError::Refused)?;
        let mut output = HeadTail::new(OUTPUT);
        let result = self.keeper.run(&command, &self.cancel, LiveOutput::default(), &mut |event| {
            if let ProcessEvent::Output { bytes, .. } = event {
                output.push(bytes);
            }
        });
        match result.outcome {
            Outcome::Exited(0) => Ok(CheckOutcome::Passed),
            Outcome::Cancelled(_) => Ok(CheckOutcome::Cancelled),
            Outcome::NotStarted(failure) => Err(CheckError::NotStarted(failure)),
            Outcome::Interrupted => Err(CheckError::KeeperKilled),
            outcome => {
                let output = String::from_utf8_lossy(&output.finish()).trim_end().to_owned();
                Ok(CheckOutcome::Failed(FailedCheck { outcome, timeout: check.timeout(), output }))
            }
        }
    }

    /// Runs the check on a state and records what it does to it; `None` if it does not pass, or after
    /// a signal.
    pub fn record(
        &mut self,
        check: &Check,
        input: CheckInput<'_>,
    ) -> Result<Option<Recording>, CheckError> {
        self.write_state(input)?;
        // Without privileges a traced process cannot be given its own mount namespace.
        let mounts = self.at_root && rustix::process::geteuid().is_root();
        let seen = if mounts { &self.root } else { &self.state };
        let launch = check.launch(self.variables(seen, input));
        let [program, arguments @ ..] = &launch.arguments[..] else { return Ok(None) };
        let mut recorder = retake_crash::record(program)
            .args(arguments)
            .current_dir(&launch.cwd)
            .root(seen)
            .acknowledge_lines(false)
            // As in an unrecorded check, processes that it leaves running are terminated immediately.
            .linger(Duration::ZERO)
            .output(io::sink())
            .stderr(File::options().write(true).open("/dev/null")?)
            .cancel_on(signals::end_descriptor()?)
            .env_clear();
        for variable in &launch.environment {
            recorder = recorder.env(variable.name(), variable.value());
        }
        if let Some(timeout) = launch.timeout {
            recorder = recorder.timeout(timeout);
        }
        if mounts {
            recorder = recorder.inside(MountNamespace::new(&self.state, &self.root)?);
        }
        match recorder.run() {
            Ok(recorded) if recorded.outcome == WorkloadOutcome::Exited(0) => {
                Ok(Some(recorded.recording))
            }
            Ok(_) | Err(RecordError::Cancelled) => Ok(None),
            Err(error) => Err(CheckError::Record(error)),
        }
    }

    /// Replaces the content of the state directory, and writes the acknowledgements if they changed.
    pub(crate) fn write_state(&mut self, input: CheckInput<'_>) -> io::Result<()> {
        if self.used {
            retake_crash::scratch::clear_dir(&self.state)?;
        }
        self.used = true;
        retake_crash::materialise(input.tree, &self.state)?;
        if self.acks_written != Some(input.acks.len()) {
            let mut file = BufWriter::new(File::create(&self.acks)?);
            for ack in input.acks {
                file.write_all(ack)?;
                file.write_all(b"\n")?;
            }
            file.flush()?;
            self.acks_written = Some(input.acks.len());
        }
        Ok(())
    }

    /// The variables of a check, besides those of every run.
    fn variables(&self, seen: &Path, input: CheckInput<'_>) -> [Variable; 4] {
        let label = input.label.unwrap_or_default().replace('\0', " ");
        [
            Variable::new(variables::WORK_DIR, seen),
            Variable::new(variables::ACKS, &self.acks),
            Variable::new(variables::CRASH_POINT_ID, input.operation.to_string()),
            Variable::new(variables::CRASH_LABEL, label),
        ]
    }
}
