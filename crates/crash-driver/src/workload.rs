//! The program under test, run once and recorded: a run in the record like any other, and a
//! [`Recording`] of everything it did to its directory.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_crash::operation::Recording;
use retake_crash::recorder::{RecordError, Recorded, WorkloadOutcome};
use retake_engine::{Launch, quote};
use retake_runner::context::RunContext;
use retake_runner::prepare::PreparedRun;
use retake_runner::run::start_error;
use retake_runner::signals;
use retake_store::redact::{CountingRedactor, RedactedBytes, Redactor, StreamRedactor};
use retake_store::{Recording as RunRecording, Store};
use retake_types::request::{CommandRequest, LoopPosition};
use retake_types::{
    ErrorCode, Kind, LoopId, OsText, Outcome, Redacted, Redactions, RunError, RunId, RunOutcome,
    RunRequest, StartFailure, Stream, signal_name,
};

use crate::error::{CrashTestError, outcome_text};
use crate::event::{CrashEvent, CrashObserver};

/// What to record.
pub struct Workload {
    /// The directory to watch.
    pub root: PathBuf,
    /// The program and its arguments.
    pub request: RunRequest,
    /// Receives the program's output as it is written.
    pub forward: Option<fn(Stream, &[u8])>,
    /// Whether to keep the call stack of each operation.
    pub stacks: bool,
    /// Whether the content of the directory was put there for this recording.
    pub root_is_copy: bool,
}

/// A program that was recorded.
pub struct RecordedProgram {
    pub recording: Recording,
    /// Its run, if it is recorded.
    pub run: Option<RunId>,
}

impl Workload {
    /// The request for a program that is recorded.
    pub fn request(
        arguments: &[OsString],
        cwd: impl Into<OsText>,
        timeout: Option<Duration>,
    ) -> RunRequest {
        let words: Vec<String> =
            arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let text = quote(words.iter().map(String::as_str));
        let command = CommandRequest::arguments(text, arguments.iter().cloned());
        let position = LoopPosition { kind: Kind::Crash, id: LoopId::new(), iteration: 0 };
        let mut request = RunRequest::new(position, command, cwd);
        request.set_timeout(timeout);
        request
    }

    /// The command as one line, for people.
    pub fn command_text(&self) -> &str {
        &self.request.command.text
    }

    /// Runs the program to its end, as a run of this loop. No process it started is alive afterwards.
    pub fn record(
        &self,
        loop_id: LoopId,
        context: &RunContext,
        mut store: Option<&mut Store>,
        observer: &dyn CrashObserver,
        cancel: OwnedFd,
    ) -> Result<RecordedProgram, CrashTestError> {
        let mut request = self.request.clone();
        request.position.id = loop_id;
        let mut prepared = PreparedRun::new(request, context)
            .map_err(|refused| CrashTestError::Refused(refused.reasons))?;
        prepared.intent.set_start_time(Timestamp::now());
        let recording = match store.as_mut().map(|store| store.begin(&prepared.intent)) {
            Some(Ok(recording)) => Some(recording),
            Some(Err(error)) => {
                observer.event(CrashEvent::RunNotRecorded(&error));
                None
            }
            None => None,
        };
        let run = recording.is_some().then(|| prepared.intent.id());
        let capture = Capture::new(&prepared.redactor, recording, self.forward);
        let capture = Arc::new(Mutex::new(capture));
        let begun = Instant::now();
        let recorded = self.run(prepared.command.launch(), &capture, cancel);
        let took = begun.elapsed();
        if let Some(store) = store {
            let outcome = self.outcome(&recorded);
            let finished = lock(&capture).finish(store, &prepared, &outcome, took);
            if let Err(error) = finished {
                observer.event(CrashEvent::OutcomeNotRecorded(&error));
            }
        }
        let recorded = recorded?;
        match recorded.outcome {
            WorkloadOutcome::Exited(0) => {
                let mut recording = recorded.recording;
                recording.initial_is_copy = self.root_is_copy;
                Ok(RecordedProgram { recording, run })
            }
            outcome => Err(CrashTestError::ProgramFailed { outcome, run }),
        }
    }

    /// How the program is started, for runs that are not recorded.
    pub fn launch(&self, context: &RunContext) -> Result<Launch, CrashTestError> {
        let prepared = PreparedRun::new(self.request.clone(), context)
            .map_err(|refused| CrashTestError::Refused(refused.reasons))?;
        Ok(prepared.command.launch().clone())
    }

    /// The outcome of the run, for its record.
    fn outcome(&self, recorded: &Result<Recorded, RecordError>) -> Outcome {
        match recorded {
            Ok(recorded) => match recorded.outcome {
                WorkloadOutcome::Exited(code) => Outcome::Exited(code),
                WorkloadOutcome::Signaled(signal) => Outcome::Signaled(signal),
            },
            Err(RecordError::TimedOut { .. }) => Outcome::TimedOut,
            Err(RecordError::Cancelled) => {
                Outcome::Cancelled(signals::received().unwrap_or(libc::SIGTERM))
            }
            Err(RecordError::Start { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Outcome::NotStarted(StartFailure::NotFound(self.command_text().to_owned()))
            }
            Err(error) => Outcome::NotStarted(StartFailure::Refused(vec![error.to_string()])),
        }
    }

    fn run(
        &self,
        launch: &Launch,
        capture: &Arc<Mutex<Capture>>,
        cancel: OwnedFd,
    ) -> Result<Recorded, RecordError> {
        let system = |source| RecordError::System { what: "a pipe".to_owned(), source };
        let (said, stderr) = io::pipe().map_err(system)?;
        let [program, arguments @ ..] = &launch.arguments[..] else {
            let source = io::Error::from_raw_os_error(libc::ENOENT);
            return Err(RecordError::Start { program: OsString::new(), source });
        };
        let mut recorder = retake_crash::record(program)
            .args(arguments.iter().cloned())
            .root(&self.root)
            .current_dir(&launch.cwd)
            .stacks(self.stacks)
            .env_clear()
            .output(Tap { capture: Arc::clone(capture), stream: Stream::Stdout })
            .stderr(File::from(OwnedFd::from(stderr)))
            .cancel_on(cancel);
        for variable in &launch.environment {
            recorder = recorder.env(variable.name(), variable.value());
        }
        if let Some(timeout) = launch.timeout {
            recorder = recorder.timeout(timeout);
        }
        std::thread::scope(|scope| {
            let mut tap = Tap { capture: Arc::clone(capture), stream: Stream::Stderr };
            scope.spawn(move || {
                let (mut said, mut buffer) = (said, vec![0; 64 << 10]);
                while let Ok(count @ 1..) = said.read(&mut buffer) {
                    // A tap never fails.
                    _ = tap.write_all(&buffer[..count]);
                }
            });
            recorder.run()
        })
    }
}

/// Both streams, on their way into the record.
struct Capture {
    streams: [StreamRedactor; 2],
    raw: [u64; 2],
    kept: [u64; 2],
    recording: Option<RunRecording>,
    forward: Option<fn(Stream, &[u8])>,
}

impl Capture {
    fn new(
        redactor: &Redactor,
        recording: Option<RunRecording>,
        forward: Option<fn(Stream, &[u8])>,
    ) -> Self {
        let streams = [redactor.stream(), redactor.stream()];
        Self { streams, raw: [0; 2], kept: [0; 2], recording, forward }
    }

    fn take(&mut self, stream: Stream, bytes: Option<&[u8]>) {
        let at = stream.index();
        let Self { streams, raw, kept, recording, .. } = self;
        let mut keep = |clean: RedactedBytes<'_>| {
            kept[at] += clean.len() as u64;
            if let Some(recording) = recording {
                recording.append(stream, clean);
            }
        };
        match bytes {
            Some(bytes) => {
                raw[at] += bytes.len() as u64;
                streams[at].push(bytes, &mut keep);
            }
            None => streams[at].finish(&mut keep),
        }
    }

    fn finish(
        &mut self,
        store: &mut Store,
        prepared: &PreparedRun,
        outcome: &Outcome,
        took: Duration,
    ) -> retake_store::Result<()> {
        self.take(Stream::Stdout, None);
        self.take(Stream::Stderr, None);
        let Some(recording) = self.recording.take() else { return Ok(()) };
        let mut redactions: Redactions = prepared.redactions.clone();
        self.streams.iter().for_each(|stream| redactions.add_all(&stream.redactions()));
        let start = prepared.intent.start_time;
        let ended = start.checked_add(took).unwrap_or(start);
        let outcome = RunOutcome {
            exit_code: Some(outcome.exit_code().unwrap_or(125)),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1),
            stdout_bytes: self.kept[0],
            stderr_bytes: self.kept[1],
            stdout_raw_bytes: self.raw[0],
            stderr_raw_bytes: self.raw[1],
            error: error(outcome),
            ..RunOutcome::bare(outcome, ended)
        };
        let mut redactor = CountingRedactor::new(prepared.redactor.clone());
        let mut outcome = Redacted::new(outcome, &mut redactor);
        redactions.add_all(redactor.redactions());
        outcome.set_redactions(redactions);
        recording.finish(store, outcome).map(drop)
    }
}

fn error(outcome: &Outcome) -> Option<RunError> {
    let (code, message) = match outcome {
        Outcome::Exited(0) => return None,
        Outcome::Exited(code) => (ErrorCode::Failed, outcome_text(WorkloadOutcome::Exited(*code))),
        Outcome::Signaled(signal) => {
            (ErrorCode::Failed, outcome_text(WorkloadOutcome::Signaled(*signal)))
        }
        Outcome::TimedOut => (ErrorCode::Timeout, "did not end in time".to_owned()),
        Outcome::Cancelled(signal) => {
            (ErrorCode::Cancelled, format!("cancelled by {}", signal_name(*signal)))
        }
        Outcome::NotStarted(failure) => return Some(start_error(failure)),
        Outcome::LimitExceeded(..) | Outcome::Interrupted => return None,
    };
    Some(RunError {
        code,
        detail: None,
        message: format!("the program {message}"),
        hint: None,
        problems: Vec::new(),
    })
}

/// Receives one stream.
struct Tap {
    capture: Arc<Mutex<Capture>>,
    stream: Stream,
}

impl Write for Tap {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut capture = lock(&self.capture);
        capture.take(self.stream, Some(bytes));
        if let Some(forward) = capture.forward {
            forward(self.stream, bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock(capture: &Mutex<Capture>) -> MutexGuard<'_, Capture> {
    capture.lock().unwrap_or_else(PoisonError::into_inner)
}
