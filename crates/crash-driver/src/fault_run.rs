//! One run of the program in which a call fails.
//!
//! Theory of operation. The worker's keeper starts another retake in the worker's mount namespace,
//! where a copy of the directory is mounted at its own path, and that retake records the program there. A
//! thread of this process could not: without privileges only a process can enter a namespace. The
//! two communicate through files in the worker's directory: the recording, its variant as the disk would have
//! it after a failed sync, and an answer.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_crash::fault::{FaultSite, FaultSubject, FaultTarget, with_dropped_pages};
use retake_crash::model::{Tree, path_text};
use retake_crash::operation::{Entry, Recording};
use retake_crash::recorder::{RecordError, WorkloadOutcome};
use retake_engine::{Command, Launch, LiveOutput, ProcessEvent};
use retake_runner::head_tail::HeadTail;
use retake_runner::regular_file;
use retake_types::Outcome;
use serde::{Deserialize, Serialize};

use crate::check::CheckError;
use crate::check_worker::{CheckInput, CheckWorker};
use crate::error::{CrashTestError, outcome_text};
use crate::timeline::Names;

const RUN: &str = "run.log";
const DROPPED: &str = "dropped.log";
const ANSWER: &str = "answer.json";
const SAID: &str = "stderr";

/// How much of the program's stderr is kept.
const KEPT: u64 = 2048;

/// How much longer than the program the recording retake may take.
const MARGIN: Duration = Duration::from_secs(20);

/// A run to be recorded in another process.
pub struct FaultRun {
    pub root: PathBuf,
    pub program: Vec<OsString>,
    /// The call to make fail; `None` lists the calls that could fail.
    pub target: Option<FaultTarget>,
    pub timeout: Duration,
    /// The directory for the answer.
    pub directory: PathBuf,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultAnswer {
    pub outcome: FaultOutcome,
    /// The call that failed; `None` if the program did not make it.
    pub injected: Option<FaultCall>,
    /// The calls that could fail, if none had to.
    pub calls: Vec<FaultCall>,
    /// The end of the program's stderr.
    pub said: String,
}

/// How the program ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FaultOutcome {
    Exited(i32),
    Signaled(i32),
    /// The reason why there is no recording.
    NotRecorded(String),
}

impl FaultOutcome {
    /// How it ended, such as `exited with 3`.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Exited(code) => outcome_text(WorkloadOutcome::Exited(*code)),
            Self::Signaled(signal) => outcome_text(WorkloadOutcome::Signaled(*signal)),
            Self::NotRecorded(why) => format!("was not recorded: {why}"),
        }
    }
}

/// A call that can fail, with file names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultCall {
    pub call: String,
    pub occurrence: u32,
    /// Relative to the root; `.` is the root itself, and calls that concern everything.
    pub file: String,
    /// The target of a rename.
    pub to: Option<String>,
    /// How many operations preceded it.
    pub operations: u32,
    /// How many lines were acknowledged before it.
    pub acknowledgements: usize,
    /// Names of faults.
    pub faults: Vec<String>,
}

impl FaultRun {
    /// Records the program and writes the answer.
    pub fn perform(&self, cancel: OwnedFd) -> Result<(), CrashTestError> {
        let failed = |path: &Path, source| CrashTestError::File {
            action: "write",
            path: path.to_owned(),
            source,
        };
        let path = |name: &str| self.directory.join(name);
        let [program, arguments @ ..] = &self.program[..] else {
            let source = io::Error::from_raw_os_error(libc::ENOENT);
            return Err(RecordError::Start { program: OsString::new(), source }.into());
        };
        let said = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(path(SAID))
            .map_err(|source| failed(&path(SAID), source))?;
        let stderr = said.try_clone().map_err(|source| failed(&path(SAID), source))?;
        let recorded = retake_crash::record(program)
            .args(arguments.iter().cloned())
            .root(&self.root)
            .output(io::sink())
            .stderr(stderr)
            .timeout(self.timeout)
            .cancel_on(cancel)
            .fault(self.target.clone())
            .run();
        let said = tail(said).map_err(|source| failed(&path(SAID), source))?;
        let mut answer = FaultAnswer {
            outcome: FaultOutcome::Exited(0),
            injected: None,
            calls: Vec::new(),
            said,
        };
        match recorded {
            Ok(recorded) => {
                answer.outcome = match recorded.outcome {
                    WorkloadOutcome::Exited(code) => FaultOutcome::Exited(code),
                    WorkloadOutcome::Signaled(signal) => FaultOutcome::Signaled(signal),
                };
                let recording = &recorded.recording;
                write_log(&path(RUN), recording)?;
                if let Some(site) = &recorded.faults.injected {
                    answer.injected = named(recording, std::slice::from_ref(site)).pop();
                    if let Some(dropped) = with_dropped_pages(recording, site) {
                        write_log(&path(DROPPED), &dropped)?;
                    }
                }
                answer.calls = named(recording, &recorded.faults.sites);
            }
            Err(RecordError::Cancelled) => return Err(CrashTestError::Cancelled),
            Err(error) => answer.outcome = FaultOutcome::NotRecorded(error.to_string()),
        }
        let text = serde_json::to_vec(&answer).map_err(io::Error::other);
        text.and_then(|text| std::fs::write(path(ANSWER), text))
            .map_err(|source| failed(&path(ANSWER), source))
    }
}

fn write_log(path: &Path, recording: &Recording) -> Result<(), CrashTestError> {
    let written = File::create(path).and_then(|file| retake_crash::log::write(file, recording));
    written.map(drop).map_err(|source| CrashTestError::File {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

fn read_log(path: &Path) -> io::Result<Recording> {
    let file = regular_file::open(path)?;
    retake_crash::log::read(file).map_err(|error| io::Error::other(error.to_string()))
}

fn tail(mut file: File) -> io::Result<String> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(KEPT)))?;
    let mut bytes = Vec::new();
    file.take(KEPT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// Calls with the names that their files had at the time, in order.
fn named(recording: &Recording, sites: &[FaultSite]) -> Vec<FaultCall> {
    let mut names = Names::new(recording);
    let (mut at, mut operations, mut acknowledgements) = (0, 0, 0);
    let mut calls = Vec::new();
    for site in sites {
        for entry in &recording.entries[at..site.position.clamp(at, recording.entries.len())] {
            match entry {
                Entry::Operation(operation) => {
                    names.apply(&operation.action);
                    operations += 1;
                }
                Entry::Acknowledgement(_) => acknowledgements += 1,
                Entry::Label(_) => {}
            }
        }
        at = site.position.clamp(at, recording.entries.len());
        let (file, to) = match &site.subject {
            FaultSubject::Node(node) | FaultSubject::Range { node, .. } => {
                (names.path(*node), None)
            }
            FaultSubject::Name(name) => (names.at(name), None),
            FaultSubject::Names { from, to } => (names.at(from), Some(names.at(to))),
            FaultSubject::Everything => (PathBuf::new(), None),
        };
        calls.push(FaultCall {
            call: site.call.to_owned(),
            occurrence: site.occurrence,
            file: path_text(&file),
            to: to.map(|to| path_text(&to)),
            operations,
            acknowledgements,
            faults: site.faults.iter().map(|fault| fault.name().to_owned()).collect(),
        });
    }
    calls
}

/// How to start the program again.
pub struct FaultLaunch<'a> {
    /// The program as it was recorded, with its directory and variables.
    pub program: Launch,
    /// The command that performs a run; its arguments precede the program's own.
    pub command: &'a (dyn Fn(&FaultRun) -> Vec<OsString> + Sync),
}

/// A run that has ended, or why there is none.
pub(crate) enum EndedRun {
    Recorded {
        answer: Box<FaultAnswer>,
        recording: Box<Recording>,
        /// The same as the disk has it if the kernel dropped what it could not write.
        dropped: Option<Box<Recording>>,
    },
    NotRecorded(String),
    Cancelled,
}

impl CheckWorker {
    /// Runs the program in a directory with the content from before the recording.
    pub(crate) fn run_fault(
        &mut self,
        launch: &FaultLaunch<'_>,
        initial: &Tree,
        target: Option<FaultTarget>,
        timeout: Duration,
    ) -> Result<EndedRun, CheckError> {
        self.write_state(CheckInput { tree: initial, operation: 0, label: None, acks: &[] })?;
        let directory = self.directory().to_owned();
        for name in [RUN, DROPPED, ANSWER] {
            match std::fs::remove_file(directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        let program = launch.program.arguments.clone();
        let root = self.root().to_owned();
        let run = FaultRun { root, program, target, timeout, directory };
        let mut started = launch.program.clone();
        started.arguments = (launch.command)(&run);
        started.timeout = Some(timeout.saturating_add(MARGIN));
        let command = Command::new(started).map_err(CheckError::Refused)?;
        let mut output = HeadTail::new(KEPT as usize);
        let outcome = self.run(&command, LiveOutput::default(), &mut |event| {
            if let ProcessEvent::Output { bytes, .. } = event {
                output.push(bytes);
            }
        });
        match outcome {
            Outcome::Exited(0) => {}
            Outcome::Cancelled(_) => return Ok(EndedRun::Cancelled),
            Outcome::NotStarted(failure) => return Err(CheckError::NotStarted(failure)),
            Outcome::Interrupted => return Err(CheckError::KeeperKilled),
            _ => {
                let said = String::from_utf8_lossy(&output.finish()).trim_end().to_owned();
                return Ok(EndedRun::NotRecorded(said));
            }
        }
        let text = std::fs::read(run.directory.join(ANSWER))?;
        let answer: Box<FaultAnswer> = serde_json::from_slice(&text).map_err(io::Error::other)?;
        if let FaultOutcome::NotRecorded(why) = &answer.outcome {
            return Ok(EndedRun::NotRecorded(why.clone()));
        }
        let dropped = run.directory.join(DROPPED);
        let dropped = dropped.exists().then(|| read_log(&dropped).map(Box::new)).transpose()?;
        let recording = Box::new(read_log(&run.directory.join(RUN))?);
        Ok(EndedRun::Recorded { answer, recording, dropped })
    }
}
