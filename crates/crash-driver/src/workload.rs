//! The program under test, run once and watched: a run of the record like any other, and a
//! [`Recording`] of everything it did to its directory.

use retake_runner::terminal;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_crash::operation::Recording;
use retake_crash::recorder::{RecordError, WorkloadOutcome};
use retake_engine::quote;
use retake_store::redact::{Redactor, StreamRedactor};
use retake_store::{Recording as Spool, Store};
use retake_types::{
    Ending, ErrorCode, Intent, Kind, LoopId, Outcome, RunError, RunId, StartFailure, Stream,
    signal_name,
};

use super::untested::{Untested, ended};
use retake_runner::config::Config;
use retake_runner::prepare::Spec;
use retake_runner::prepare::lossy;
use retake_runner::request::Problems;


/// What to record.
pub struct Workload {
    pub root: PathBuf,
    /// The program and its arguments.
    pub arguments: Vec<OsString>,
    pub limit: Option<Duration>,
    /// Whether the program's output is shown, too.
    pub pass: bool,
}

/// A program that was recorded.
pub struct Watched {
    pub recording: Recording,
    /// Its run, where it is on the record.
    pub run: Option<RunId>,
}

impl Workload {
    fn spec(&self, loop_id: LoopId) -> Spec {
        let words: Vec<String> = self.arguments.iter().map(|word| lossy(word)).collect();
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let mut spec = Spec::new(Kind::Crash, quote(words.iter().map(String::as_str)), here);
        spec.arguments = self.arguments.clone();
        spec.loop_id = loop_id;
        spec.timeout = self.limit;
        spec
    }

    /// The command as one line, for people.
    pub fn shown(&self) -> String {
        self.spec(LoopId::new()).shown
    }

    /// Runs the program to its end. Nothing it started is alive afterwards.
    pub fn record(
        &self,
        config: &Config,
        place: &Path,
        mut store: Option<&mut Store>,
        loop_id: LoopId,
        cancel: OwnedFd,
    ) -> Result<Watched, Untested> {
        let spec = self.spec(loop_id);
        let (shown, id) = (spec.shown.clone(), spec.id);
        let environment = spec.environment(config, place);
        let mut job = spec.job(environment.clone(), config, Problems::default()).map_err(
            |(_, problems)| Untested::Refused(retake_types::RefusalReason::listed(&problems)),
        )?;
        job.intent.start_time = Timestamp::now();
        let spool = match store.as_mut().map(|store| store.begin(&job.intent)) {
            Some(Ok(spool)) => Some(spool),
            Some(Err(error)) => {
                terminal::say(&format!("this run is not recorded: {error}"));
                None
            }
            None => None,
        };
        let on_record = spool.is_some();
        let capture = Arc::new(Mutex::new(Capture::new(&job.redactor, spool, self.pass)));
        let begun = Instant::now();
        let recorded = self.watch(environment, &capture, cancel);
        let took = begun.elapsed();
        let outcome = match &recorded {
            Ok(recorded) => match recorded.outcome {
                WorkloadOutcome::Exited(code) => Outcome::Exited(code),
                WorkloadOutcome::Signaled(signal) => Outcome::Signaled(signal),
            },
            Err(RecordError::TimedOut { .. }) => Outcome::TimedOut,
            Err(RecordError::Cancelled) => {
                Outcome::Cancelled(retake_runner::signals::received().unwrap_or(libc::SIGTERM))
            }
            Err(RecordError::Start { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Outcome::NotStarted(StartFailure::NotFound(shown))
            }
            Err(error) => Outcome::NotStarted(StartFailure::Refused(vec![error.to_string()])),
        };
        if let Some(store) = store {
            lock(&capture).finish(store, &job.intent, &outcome, took, job.redactions);
        }
        let recorded = recorded?;
        match recorded.outcome {
            WorkloadOutcome::Exited(0) => {}
            how => {
                let run = on_record.then(|| id.short().to_string());
                return Err(Untested::Failed { how, run });
            }
        }
        Ok(Watched { recording: recorded.recording, run: on_record.then_some(id) })
    }

    fn watch(
        &self,
        environment: Vec<(OsString, OsString)>,
        capture: &Arc<Mutex<Capture>>,
        cancel: OwnedFd,
    ) -> Result<retake_crash::recorder::Recorded, RecordError> {
        let system = |source| RecordError::System { what: "a pipe".to_owned(), source };
        let (said, stderr) = io::pipe().map_err(system)?;
        let [program, arguments @ ..] = &self.arguments[..] else {
            let source = io::Error::from_raw_os_error(libc::ENOENT);
            return Err(RecordError::Start { program: OsString::new(), source });
        };
        let mut recorder = retake_crash::record(program)
            .args(arguments.iter().cloned())
            .root(&self.root)
            .env_clear()
            .output(Tap { capture: Arc::clone(capture), stream: Stream::Stdout })
            .stderr(File::from(OwnedFd::from(stderr)))
            .cancel_on(cancel);
        for (name, value) in environment {
            recorder = recorder.env(name, value);
        }
        if let Some(limit) = self.limit {
            recorder = recorder.timeout(limit);
        }
        std::thread::scope(|scope| {
            let mut tap = Tap { capture: Arc::clone(capture), stream: Stream::Stderr };
            scope.spawn(move || {
                let (mut said, mut buffer) = (said, vec![0; 64 << 10]);
                while let Ok(count @ 1..) = said.read(&mut buffer) {
                    // A tap takes everything.
                    _ = tap.write_all(&buffer[..count]);
                }
            });
            recorder.run()
        })
    }
}

/// Both streams on their way into the record.
struct Capture {
    streams: [StreamRedactor; 2],
    raw: [u64; 2],
    kept: [u64; 2],
    spool: Option<Spool>,
    pass: bool,
}

impl Capture {
    fn new(redactor: &Redactor, spool: Option<Spool>, pass: bool) -> Self {
        let streams = [redactor.stream(), redactor.stream()];
        Self { streams, raw: [0; 2], kept: [0; 2], spool, pass }
    }

    fn take(&mut self, stream: Stream, bytes: Option<&[u8]>) {
        let at = stream.index();
        let Self { streams, raw, kept, spool, .. } = self;
        let mut keep = |clean: &[u8]| {
            kept[at] += clean.len() as u64;
            if let Some(spool) = spool {
                spool.append(stream, clean);
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
        intent: &Intent,
        outcome: &Outcome,
        took: Duration,
        redactions: u64,
    ) {
        self.take(Stream::Stdout, None);
        self.take(Stream::Stderr, None);
        let Some(spool) = self.spool.take() else { return };
        let redactions = redactions + self.streams.iter().map(StreamRedactor::count).sum::<u64>();
        let ended = intent.start_time.checked_add(took).unwrap_or(intent.start_time);
        let ending = Ending {
            exit_code: Some(outcome.exit_code().unwrap_or(125)),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1),
            stdout_bytes: self.kept[0],
            stderr_bytes: self.kept[1],
            stdout_raw_bytes: self.raw[0],
            stderr_raw_bytes: self.raw[1],
            error: error(outcome),
            redactions,
            ..Ending::bare(outcome, ended)
        };
        if let Err(error) = spool.finish(store, ending) {
            terminal::say(&format!("the outcome of this run is not recorded: {error}"));
        }
    }
}

fn error(outcome: &Outcome) -> Option<RunError> {
    let (code, message) = match outcome {
        Outcome::Exited(0) => return None,
        Outcome::Exited(code) => (ErrorCode::Failed, ended(WorkloadOutcome::Exited(*code))),
        Outcome::Signaled(signal) => (ErrorCode::Failed, ended(WorkloadOutcome::Signaled(*signal))),
        Outcome::TimedOut => (ErrorCode::Timeout, "did not end in time".to_owned()),
        Outcome::Cancelled(signal) => {
            (ErrorCode::Cancelled, format!("cancelled by {}", signal_name(*signal)))
        }
        Outcome::NotStarted(failure) => return Some(retake_runner::run::refusal(failure)),
        Outcome::LimitExceeded(..) | Outcome::Interrupted => return None,
    };
    Some(RunError {
        code,
        message: format!("the program {message}"),
        hint: None,
        problems: Vec::new(),
    })
}

/// Takes one stream.
struct Tap {
    capture: Arc<Mutex<Capture>>,
    stream: Stream,
}

impl Write for Tap {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut capture = lock(&self.capture);
        capture.take(self.stream, Some(bytes));
        if capture.pass {
            // Whoever shows no interest any more does not stop the program.
            match self.stream {
                Stream::Stdout => drop(terminal::data(bytes)),
                Stream::Stderr => drop(io::stderr().write_all(bytes)),
            }
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
