//! Executes and records one run: intent, engine, redaction, capture, outcome, in that order.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use retake_engine::{Cancel, LiveOutput, ProcessEvent, ProcessResult};
use retake_sandbox::{Confinement, DenialWatch, WatchedCalls};
use retake_store::redact::{CountingRedactor, RedactedBytes, Redactor, StreamRedactor};
use retake_store::{EndedRecording, FinishedRecording, Recording, Store};
use retake_types::request::StdinSource;
use retake_types::{
    Effects, ErrorCode, ErrorDetail, Intent, LeftForHost, Outcome, Redacted, Redactions, Run,
    RunError, RunOutcome, SandboxFailure, SandboxPart, StartFailure, State, Stream, signal_name,
    text,
};

use crate::confined::RunKeeper;
use crate::context::RunContext;
use crate::head_tail::HeadTail;
use crate::left_for_host::HostFiles;
use crate::notice::Notice;
use crate::prepare::PreparedRun;
use crate::signals;

/// A finished run, as recorded.
#[derive(Debug)]
pub struct FinishedRun {
    pub run: Run,
    pub outcome: Outcome,
    /// The part of each stream that the caller requested.
    pub output: [Vec<u8>; 2],
    /// Whether the run was ended because the reader of its output closed it, like any program in a
    /// pipe.
    pub reader_gone: bool,
    /// Bytes that were captured, but not read in time by retake's own reader.
    pub unread_bytes: u64,
}

impl FinishedRun {
    /// Records a run that did not start, with the reasons.
    pub fn record_not_started(&mut self, store: &mut Store) -> retake_store::Result<()> {
        let Some(outcome) = &self.run.outcome else { return Ok(()) };
        store.begin(&self.run.intent)?.finish(store, outcome.clone())?;
        self.run.recorded = true;
        Ok(())
    }

    /// The same in the record of this context, if it records runs. A failure is only a notice,
    /// because nothing was run.
    pub fn record_refusal(&mut self, context: &RunContext) {
        if !context.execution.audit.enabled {
            return;
        }
        let opened = context.project.open_store(&context.notify);
        if let Err(error) = opened.and_then(|mut store| self.record_not_started(&mut store)) {
            (context.notify)(Notice::NotRecorded(error));
        }
    }
}

/// How much of the output the caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// As much as the request says; more output than that is an error of the run.
    Requested,
    /// Beginning and end, this much of each stream.
    Excerpt(u64),
    Nothing,
}

/// How the caller uses a run's output.
#[derive(Clone, Copy, Debug)]
pub struct OutputUse {
    pub carry: Carry,
    /// Whether output is forwarded to retake's own stdout and stderr.
    pub forward: bool,
}

impl OutputUse {
    pub const NONE: Self = Self { carry: Carry::Nothing, forward: false };

    pub fn excerpt(bytes: u64) -> Self {
        Self { carry: Carry::Excerpt(bytes), forward: false }
    }
}

/// Observes the output of a run before redaction, and contributes its effects before they are
/// recorded.
pub trait Observer {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) {}

    /// The effects of the run, for the record.
    fn effects(&mut self, _result: &ProcessResult, _past: Past<'_>) -> Option<Effects> {
        None
    }
}

/// The run, and the record of earlier runs if there is one.
#[derive(Clone, Copy)]
pub struct Past<'a> {
    pub intent: &'a Intent,
    pub store: Option<&'a Store>,
}

/// Observes nothing.
impl Observer for () {}

/// One stream during capture.
struct CapturedStream {
    redactor: StreamRedactor,
    carried: HeadTail,
    kept: u64,
    room: u64,
    raw: u64,
    over: bool,
}

/// A finished run that is not recorded yet.
pub struct ExecutedRun {
    pub intent: Redacted<Intent>,
    /// With its secrets, for callers that add to it.
    pub outcome: RunOutcome,
    pub result: ProcessResult,
    redactor: Redactor,
    redactions: Redactions,
    output: [Vec<u8>; 2],
    /// Bytes of each stream after redaction, for a run that is not recorded.
    kept: [u64; 2],
}

impl ExecutedRun {
    /// The outcome without secrets; its own redactions are counted.
    pub fn redacted_outcome(&self) -> Redacted<RunOutcome> {
        redacted(self.outcome.clone(), &self.redactor, self.redactions.clone())
    }
}

/// Redacts an outcome; adds its redactions to those of the run.
fn redacted(
    outcome: RunOutcome,
    redactor: &Redactor,
    mut redactions: Redactions,
) -> Redacted<RunOutcome> {
    let mut redactor = CountingRedactor::new(redactor.clone());
    let mut outcome = Redacted::new(outcome, &mut redactor);
    redactions.add_all(redactor.redactions());
    outcome.set_redactions(redactions);
    outcome
}

/// A finished run with a recording whose outcome is not committed.
pub(crate) struct EndedRun {
    /// The result, valid once the outcome is committed.
    pub(crate) finished: FinishedRun,
    pub(crate) recording: Option<EndedRecording>,
    /// Bytes of each stream after redaction.
    kept: [u64; 2],
}

impl EndedRun {
    /// Commits the outcome.
    pub(crate) fn commit(self, store: Option<&mut Store>, context: &RunContext) -> FinishedRun {
        let Self { mut finished, recording, kept } = self;
        let (Some(store), Some(recording)) = (store, recording) else { return finished };
        match recording.commit(store) {
            Ok(stored) => finished.run.outcome = Some(committed_outcome(stored, context)),
            Err(error) => {
                (context.notify)(Notice::OutcomeNotRecorded(error));
                if let Some(outcome) = &mut finished.run.outcome {
                    outcome.set_stored(kept.map(|bytes| (bytes, None)), None);
                }
                finished.run.recorded = false;
            }
        }
        finished
    }
}

/// Takes the committed outcome, and reports output that could not be stored.
pub(crate) fn committed_outcome(
    stored: FinishedRecording,
    context: &RunContext,
) -> Redacted<RunOutcome> {
    if let Some(error) = stored.error {
        let bytes = stored.lost[0] + stored.lost[1];
        (context.notify)(Notice::OutputLost { bytes, error });
    }
    stored.outcome
}

/// Executes a run. With a recording, its intent is committed already; the caller commits the
/// outcome.
pub(crate) fn run_to_end(
    prepared: PreparedRun,
    context: &RunContext,
    (mut keeper, cancel): (Result<RunKeeper<'_>, StartFailure>, &Cancel),
    (store, mut recording): (Option<&mut Store>, Option<Recording>),
    output_use: OutputUse,
    observer: &mut dyn Observer,
) -> EndedRun {
    let death_mark = recording.as_ref().and_then(Recording::death_mark);
    if let Ok(RunKeeper { keeper, .. }) = &mut keeper {
        keeper.mark_death_in(death_mark.map(Into::into));
    }
    let mut keep = |stream, bytes: RedactedBytes<'_>| {
        if let Some(recording) = &mut recording {
            recording.append(stream, bytes);
        }
    };
    let executed =
        execute(prepared, context, (keeper, cancel), &mut keep, output_use, observer, store);
    let ExecutedRun { intent, outcome, result, redactor, redactions, output, kept } = executed;
    let mut outcome = redacted(outcome, &redactor, redactions);
    let (recording, outcome) = match recording {
        Some(recording) => {
            let ended = recording.end(outcome);
            let outcome = ended.outcome().clone();
            (Some(ended), outcome)
        }
        None => {
            outcome.set_stored(kept.map(|bytes| (bytes, None)), None);
            (None, outcome)
        }
    };
    let recorded = recording.is_some();
    let run = Run { intent, state: State::Finished, outcome: Some(outcome), recorded };
    let finished = FinishedRun {
        run,
        reader_gone: result.relay_error == Some(libc::EPIPE),
        unread_bytes: result.unread.iter().sum(),
        outcome: result.outcome,
        output,
    };
    EndedRun { finished, recording, kept }
}

/// Executes a run and passes every byte to keep, redacted, to `keep`.
pub fn execute(
    prepared: PreparedRun,
    context: &RunContext,
    (keeper, cancel): (Result<RunKeeper<'_>, StartFailure>, &Cancel),
    keep: &mut dyn FnMut(Stream, RedactedBytes<'_>),
    output_use: OutputUse,
    observer: &mut dyn Observer,
    mut store: Option<&mut Store>,
) -> ExecutedRun {
    let capture = prepared.request.output.capture;
    let limit = prepared.request.output.max_bytes.unwrap_or(context.execution.max_output_bytes);
    let carried = match output_use.carry {
        Carry::Requested => limit,
        Carry::Excerpt(bytes) => bytes,
        Carry::Nothing => 0,
    };
    let mut captured = Stream::BOTH.map(|stream| CapturedStream {
        redactor: prepared.redactor.stream(),
        carried: HeadTail::new(if capture.keeps(stream) { carried as usize } else { 0 }),
        kept: 0,
        room: context.execution.max_capture_bytes,
        raw: 0,
        over: false,
    });
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    let live = if output_use.forward {
        LiveOutput { stdout: Some(stdout.as_fd()), stderr: Some(stderr.as_fd()) }
    } else {
        LiveOutput::default()
    };
    let mut sandbox = None;
    let mut on_event = |event: ProcessEvent<'_>| match event {
        ProcessEvent::Output { stream, bytes } => {
            let captured = &mut captured[stream.index()];
            captured.raw += bytes.len() as u64;
            observer.output(stream, bytes);
            if capture.keeps(stream) {
                captured.take(stream, Some(bytes), keep);
            }
        }
        ProcessEvent::Suspended { by_child } => signals::stop(by_child),
        ProcessEvent::Started { .. } | ProcessEvent::Finished(_) => {}
    };
    let result = match keeper {
        Ok(on) if prepared.policy.is_some() && on.keeper.confinement().is_none() => {
            let (part, errno) = (SandboxPart::Namespaces, libc::EOPNOTSUPP);
            let failure = SandboxFailure::Missing { part, errno };
            ProcessResult::not_started(StartFailure::Sandbox(failure))
        }
        Ok(RunKeeper { keeper, nested }) => {
            // If it cannot be replaced, the run fails below.
            _ = keeper.restart_if_lost();
            keeper.confinement().inspect(|confinement| confinement.begin_run());
            let before = keeper.confinement().and_then(|_| host_files(keeper.denials(), &prepared));
            let result = keeper.run(&prepared.command, cancel, live, &mut on_event);
            sandbox = keeper.confinement().map(Confinement::end_run);
            if let Some(report) = &mut sandbox {
                let calls = keeper.denials().map(DenialWatch::take);
                report.reported = nested.zip(store.as_deref_mut()).and_then(|(nested, store)| {
                    let ended = (&mut *keeper, &result.outcome);
                    nested.take_over(ended, store, &prepared, &context.notify)
                });
                report.left_for_host = match &calls {
                    // No call changed anything.
                    Some(WatchedCalls { changing: 0, .. }) => None,
                    _ => {
                        // Without notifications it is unknown.
                        let set_id = calls.as_ref().is_none_or(|calls| calls.set_group_id);
                        before.and_then(|before| before.after(set_id))
                    }
                };
                let WatchedCalls { denied, unlisted, .. } = calls.unwrap_or_default();
                (report.denied, report.denied_unlisted) = (denied, unlisted);
            }
            result
        }
        Err(failure) => ProcessResult::not_started(failure),
    };
    let mut redactions = prepared.redactions.clone();
    for stream in Stream::BOTH {
        let captured = &mut captured[stream.index()];
        captured.take(stream, None, keep);
        redactions.add_all(&captured.redactor.redactions());
    }
    let larger = output_use.carry == Carry::Requested;
    let over = captured.iter().any(|c| c.over || (larger && c.kept > limit));
    let mut outcome = outcome(&result, &prepared, over, &captured);
    outcome.sandbox = sandbox;
    outcome.error = explain(&result, &prepared, over.then_some(limit));
    let past = Past { intent: &prepared.intent, store: store.as_deref() };
    outcome.effects = observer.effects(&result, past);
    let kept = [captured[0].kept, captured[1].kept];
    let output = captured.map(|c| c.carried.finish());
    let PreparedRun { intent, redactor, .. } = prepared;
    ExecutedRun { intent, outcome, result, redactor, redactions, output, kept }
}

/// The state of a confined run's project before the run.
enum FilesBefore {
    Noted(Box<HostFiles>),
    /// Collected right before the first call that can change a file: most runs of a loop make none.
    BeforeChange(Arc<OnceLock<HostFiles>>),
}

impl FilesBefore {
    /// `set_id`: there may be new set-ID files.
    fn after(self, set_id: bool) -> Option<LeftForHost> {
        match self {
            Self::Noted(files) => files.after(set_id),
            Self::BeforeChange(noted) => Arc::into_inner(noted)?.into_inner()?.after(set_id),
        }
    }
}

/// Collects the state of a confined run's project, or arranges for it in time. Clears earlier
/// denials, which are in the record of their run.
fn host_files(calls: Option<&DenialWatch>, prepared: &PreparedRun) -> Option<FilesBefore> {
    let policy = prepared.policy.clone();
    let cwd = prepared.request.directory();
    let quarantine = prepared.request.sandbox.quarantine;
    let note = move || {
        let policy = policy?;
        let before = HostFiles::before(policy.workspace()?, &cwd, quarantine);
        Some(before.with_missing(policy.missing()))
    };
    match calls {
        // An inherited open file can be changed without a notified call.
        Some(calls) if prepared.request.stdin == StdinSource::Null => {
            let noted = Arc::new(OnceLock::new());
            let place = noted.clone();
            calls.before_change(Box::new(move || {
                if let Some(files) = note() {
                    // Called only once.
                    _ = place.set(files);
                }
            }));
            Some(FilesBefore::BeforeChange(noted))
        }
        _ => {
            _ = calls.map(DenialWatch::take);
            note().map(|files| FilesBefore::Noted(Box::new(files)))
        }
    }
}

impl CapturedStream {
    /// Redacts and stores bytes; `None` ends the stream.
    fn take(
        &mut self,
        stream: Stream,
        bytes: Option<&[u8]>,
        to: &mut dyn FnMut(Stream, RedactedBytes<'_>),
    ) {
        let Self { redactor, carried, kept, room, over, .. } = self;
        let mut keep = |clean: RedactedBytes<'_>| {
            *kept += clean.len() as u64;
            carried.push(&clean);
            let fits = usize::try_from(*room).unwrap_or(usize::MAX).min(clean.len());
            *over |= fits < clean.len();
            *room -= fits as u64;
            to(stream, clean.first(fits));
        };
        match bytes {
            Some(bytes) => redactor.push(bytes, &mut keep),
            None => redactor.finish(&mut keep),
        }
    }
}

/// The outcome without what was stored of each stream, which is known only later.
fn outcome(
    result: &ProcessResult,
    prepared: &PreparedRun,
    over: bool,
    captured: &[CapturedStream; 2],
) -> RunOutcome {
    let start = prepared.intent.start_time;
    let duration_ms =
        u64::try_from(result.duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
    let mut outcome = RunOutcome {
        exit_code: Some(exit_code(result)),
        duration_ms,
        stdout_raw_bytes: captured[0].raw,
        stderr_raw_bytes: captured[1].raw,
        truncated: over,
        leaked: result.leaked,
        end_known: result.outcome == Outcome::Interrupted,
        usage: result.usage,
        ..RunOutcome::bare(&result.outcome, end_time(start, result.duration))
    };
    outcome.set_left(result.left.clone());
    outcome
}

fn end_time(start: Timestamp, duration: Duration) -> Timestamp {
    // Beyond the calendar's range the start serves as the end.
    start.checked_add(duration).unwrap_or(start)
}

/// retake's exit code. Output that cannot be written and a killed keeper count as retake's own
/// failures.
fn exit_code(result: &ProcessResult) -> i32 {
    match result.relay_error {
        None | Some(libc::EPIPE) => result.outcome.exit_code().unwrap_or(125),
        Some(_) => 125,
    }
}

/// The error of a run, if any: the first that applies. The front end adds what to do about it.
fn explain(result: &ProcessResult, prepared: &PreparedRun, over: Option<u64>) -> Option<RunError> {
    let (code, detail, message) = match &result.outcome {
        Outcome::NotStarted(failure) => return Some(start_error(failure)),
        Outcome::LimitExceeded(limit, _) => (
            ErrorCode::LimitExceeded,
            Some(ErrorDetail::Limit(*limit)),
            format!("the run exceeded its {limit} limit and was terminated"),
        ),
        Outcome::Cancelled(libc::SIGPIPE) => match result.relay_error {
            None | Some(libc::EPIPE) => (
                ErrorCode::Cancelled,
                Some(ErrorDetail::ReaderGone),
                "the reader of the output is gone, so the run was terminated".to_owned(),
            ),
            Some(errno) => {
                let why = std::io::Error::from_raw_os_error(errno);
                (
                    ErrorCode::Cancelled,
                    Some(ErrorDetail::OutputNotWritable),
                    format!("the output could not be forwarded, so the run was terminated: {why}"),
                )
            }
        },
        Outcome::Cancelled(signal) => {
            (ErrorCode::Cancelled, None, format!("cancelled by {}", signal_name(*signal)))
        }
        Outcome::TimedOut => {
            let timeout = prepared.request.timeout().unwrap_or_default();
            (ErrorCode::Timeout, None, format!("timed out after {}", text::duration(timeout)))
        }
        Outcome::Exited(0) => {
            let kb = over? / 1024;
            let message =
                format!("the output is larger than the result carries ({kb} KB per stream)");
            (ErrorCode::OutputTooLarge, None, message)
        }
        Outcome::Exited(code) => {
            (ErrorCode::Failed, None, format!("the command exited with code {code}"))
        }
        Outcome::Signaled(signal) => (
            ErrorCode::Failed,
            None,
            format!("the command was terminated by {}", signal_name(*signal)),
        ),
        Outcome::Interrupted => (
            ErrorCode::Failed,
            Some(ErrorDetail::KeeperKilled),
            "the run's keeper process was killed, and the run with it".to_owned(),
        ),
    };
    Some(RunError { code, detail, message, hint: None, problems: Vec::new() })
}

/// The error of a run that did not start.
pub fn start_error(failure: &StartFailure) -> RunError {
    let (code, detail) = match failure {
        StartFailure::Refused(_) => (ErrorCode::InvalidRequest, None),
        StartFailure::WorkingDirectory(_) => (ErrorCode::WorkingDirectory, None),
        StartFailure::NotFound(_) => (ErrorCode::NotFound, None),
        StartFailure::NotExecutable(_) => (ErrorCode::NotFound, Some(ErrorDetail::NotExecutable)),
        StartFailure::WrongFormat(_) => (ErrorCode::NotFound, Some(ErrorDetail::WrongFormat)),
        StartFailure::MissingInterpreter(_) => {
            (ErrorCode::NotFound, Some(ErrorDetail::MissingInterpreter))
        }
        StartFailure::NoResources(_) => (ErrorCode::NoResources, None),
        StartFailure::Sandbox(failure) => (ErrorCode::Sandbox, sandbox_detail(failure)),
    };
    RunError {
        code,
        detail,
        message: failure.to_string(),
        hint: None,
        problems: match failure {
            StartFailure::Refused(problems) => problems.clone(),
            _ => Vec::new(),
        },
    }
}

fn sandbox_detail(failure: &SandboxFailure) -> Option<ErrorDetail> {
    match failure {
        SandboxFailure::Missing { part, .. } => Some(ErrorDetail::SandboxPart(*part)),
        SandboxFailure::Neither { .. } => Some(ErrorDetail::NoSandbox),
        SandboxFailure::Drops { .. } => Some(ErrorDetail::SandboxDrops),
        SandboxFailure::Path { .. } => None,
    }
}

/// The result of a run that did not start.
pub fn not_started(
    intent: Redacted<Intent>,
    failure: StartFailure,
    redactor: &Redactor,
) -> FinishedRun {
    let error = Some(start_error(&failure));
    let outcome = Outcome::NotStarted(failure);
    let shown = RunOutcome { error, ..RunOutcome::bare(&outcome, Timestamp::now()) };
    let shown = Redacted::new(shown, &mut redactor.clone());
    let run = Run { intent, state: State::Finished, outcome: Some(shown), recorded: false };
    FinishedRun { run, outcome, output: Default::default(), reader_gone: false, unread_bytes: 0 }
}
