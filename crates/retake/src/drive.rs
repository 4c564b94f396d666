//! One run, on the record: intent, engine, redaction, capture, outcome, in that order.

use std::os::fd::AsFd;
use std::time::Duration;

use jiff::Timestamp;
use retake_engine::{Attach, Cancel, Event, Finished, Keeper};
use retake_store::redact::{Redactor, StreamRedactor};
use retake_store::{Recording, Store};
use retake_types::{
    Ending, ErrorCode, Intent, LeftFate, Outcome, Run, RunError, StartFailure, State, Stream,
    signal_name,
};

use crate::inline::Inline;
use crate::job::Job;
use crate::signals;
use crate::term;

/// What became of a job.
pub(crate) struct Done {
    pub(crate) run: Run,
    pub(crate) outcome: Outcome,
    /// The part of each stream that a result carries.
    pub(crate) output: [Vec<u8>; 2],
    /// The run was ended because the reader of its output is gone, like any program in a pipe.
    pub(crate) unread: bool,
    /// Bytes that were captured but that our own reader did not take in time.
    pub(crate) untaken: u64,
}

/// One stream on its way into the record.
struct Captured {
    redactor: StreamRedactor,
    inline: Inline,
    kept: u64,
    room: u64,
    raw: u64,
    over: bool,
}

/// Sees what a run writes, before redaction, and what came of it, before that is recorded.
pub(crate) trait Observer {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) {}

    /// What the run did, for the record.
    fn effects(&mut self, _finished: &Finished, _past: Past<'_>) -> Option<serde_json::Value> {
        None
    }
}

/// The run itself, and the record of those before it where there is one.
#[derive(Clone, Copy)]
pub(crate) struct Past<'a> {
    pub(crate) intent: &'a Intent,
    pub(crate) store: Option<&'a Store>,
}

/// Nobody.
impl Observer for () {}

/// What a run came to, before anyone has written it down.
pub(crate) struct Performed {
    pub(crate) intent: Intent,
    pub(crate) ending: Ending,
    pub(crate) finished: Finished,
    output: [Vec<u8>; 2],
    /// Bytes of each stream after redaction, for a run that is not recorded.
    kept: [u64; 2],
}

/// Runs the job. With a recording its intent is already committed.
pub(crate) fn run(
    job: Job,
    keeper: &mut Keeper,
    cancel: &Cancel,
    record: Option<(&mut Store, Recording)>,
    want_output: bool,
    observer: &mut dyn Observer,
) -> Done {
    let (mut store, mut recording) = match record {
        Some((store, recording)) => (Some(store), Some(recording)),
        None => (None, None),
    };
    let mut keep = |stream, bytes: &[u8]| {
        if let Some(recording) = &mut recording {
            recording.append(stream, bytes);
        }
    };
    let past = store.as_deref();
    let Performed { intent, mut ending, finished, output, kept } =
        perform(job, keeper, cancel, &mut keep, want_output, observer, past);
    let record = store.as_mut().zip(recording);
    let stored = record.map(|(store, recording)| recording.finish(store, ending.clone()));
    let recorded = matches!(stored, Some(Ok(_)));
    match stored {
        Some(Ok(stored)) => {
            ending = stored.ending;
            if let Some(error) = stored.error {
                let lost = stored.lost[0] + stored.lost[1];
                term::say(&format!("{lost} bytes of output are not in the record: {error}"));
            }
        }
        Some(Err(error)) => {
            term::say(&format!("the outcome of this run is not recorded: {error}"));
            ending.set_stored(kept.map(|bytes| (bytes, None)));
        }
        None => ending.set_stored(kept.map(|bytes| (bytes, None))),
    }
    let run = Run { intent, state: State::Finished, ending: Some(ending), recorded };
    Done {
        run,
        unread: finished.relay_error == Some(libc::EPIPE),
        untaken: finished.unread.iter().sum(),
        outcome: finished.outcome,
        output,
    }
}

/// Runs the job and gives every byte that is to be kept, redacted, to `keep`.
pub(crate) fn perform(
    job: Job,
    keeper: &mut Keeper,
    cancel: &Cancel,
    keep: &mut dyn FnMut(Stream, &[u8]),
    want_output: bool,
    observer: &mut dyn Observer,
    store: Option<&Store>,
) -> Performed {
    let inline =
        |keeps: bool| Inline::new(if want_output && keeps { job.inline_bytes as usize } else { 0 });
    let mut captured = Stream::BOTH.map(|stream| Captured {
        redactor: job.redactor.stream(),
        inline: inline(job.capture.keeps(stream)),
        kept: 0,
        room: job.capture_bytes,
        raw: 0,
        over: false,
    });
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    let attach = if job.pass {
        Attach { stdout: Some(stdout.as_fd()), stderr: Some(stderr.as_fd()) }
    } else {
        Attach::default()
    };
    let finished = keeper.run(&job.command, cancel, attach, &mut |event| match event {
        Event::Output { stream, bytes } => {
            let captured = &mut captured[stream.index()];
            captured.raw += bytes.len() as u64;
            observer.output(stream, bytes);
            if job.capture.keeps(stream) {
                captured.take(stream, Some(bytes), keep);
            }
        }
        Event::Suspended { by_child } => signals::stop(by_child),
        Event::Started { .. } | Event::Finished(_) => {}
    });
    let mut redactions = job.redactions;
    for stream in Stream::BOTH {
        let captured = &mut captured[stream.index()];
        captured.take(stream, None, keep);
        redactions += captured.redactor.count();
    }
    let over = captured.iter().any(|c| c.over || (!job.excerpt && c.kept > job.inline_bytes));
    let mut ending = ending(&finished, &job, over, &captured, redactions);
    let past = Past { intent: &job.intent, store };
    let effects = observer.effects(&finished, past);
    ending.effects = effects.map(|effects| redacted(effects, &job.redactor));
    let kept = [captured[0].kept, captured[1].kept];
    let output = captured.map(|c| c.inline.finish());
    Performed { intent: job.intent, ending, finished, output, kept }
}

impl Captured {
    /// Redacts and keeps bytes; `None` ends the stream.
    fn take(&mut self, stream: Stream, bytes: Option<&[u8]>, to: &mut dyn FnMut(Stream, &[u8])) {
        let Self { redactor, inline, kept, room, over, .. } = self;
        let mut keep = |clean: &[u8]| {
            *kept += clean.len() as u64;
            inline.push(clean);
            let fits = usize::try_from(*room).unwrap_or(usize::MAX).min(clean.len());
            *over |= fits < clean.len();
            *room -= fits as u64;
            to(stream, &clean[..fits]);
        };
        match bytes {
            Some(bytes) => redactor.push(bytes, &mut keep),
            None => redactor.finish(&mut keep),
        }
    }
}

/// What the runner knows; what is stored of each stream is known only afterwards.
fn ending(
    finished: &Finished,
    job: &Job,
    over: bool,
    captured: &[Captured; 2],
    redactions: u64,
) -> Ending {
    let start = job.intent.start_time;
    let duration_ms =
        u64::try_from(finished.duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
    Ending {
        exit_code: Some(exit_code(finished)),
        duration_ms,
        stdout_raw_bytes: captured[0].raw,
        stderr_raw_bytes: captured[1].raw,
        truncated: over,
        leaked: finished.leaked,
        left_processes: finished.left.clone(),
        error: explain(finished, job, over),
        usage: finished.usage,
        redactions,
        ..Ending::bare(&finished.outcome, end_time(start, finished.duration))
    }
}

/// Names and messages can hold secrets as well as output can.
pub(crate) fn redacted(value: serde_json::Value, redactor: &Redactor) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => Value::String(redactor.redact_str(&text).0.into_owned()),
        Value::Array(values) => values.into_iter().map(|value| redacted(value, redactor)).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(key, value)| {
                (redactor.redact_str(&key).0.into_owned(), redacted(value, redactor))
            })
            .collect(),
        other => other,
    }
}

fn end_time(start: Timestamp, duration: Duration) -> Timestamp {
    // Past the end of all calendars a start is as good an end as any.
    start.checked_add(duration).unwrap_or(start)
}

/// What retake exits with. Output that cannot be written, and a run whose keeper was killed, are
/// failures of retake's own.
fn exit_code(finished: &Finished) -> i32 {
    match finished.relay_error {
        None | Some(libc::EPIPE) => finished.outcome.exit_code().unwrap_or(125),
        Some(_) => 125,
    }
}

/// The one error of a run, if it has one: the first that applies.
fn explain(finished: &Finished, job: &Job, over: bool) -> Option<RunError> {
    let error = |code, message: String, hint: &str| {
        let hint = Some(hint.to_owned()).filter(|hint| !hint.is_empty());
        Some(RunError { code, message, hint, problems: Vec::new() })
    };
    match &finished.outcome {
        Outcome::NotStarted(failure) => Some(refusal(failure)),
        Outcome::LimitExceeded(limit, _) => error(
            ErrorCode::LimitExceeded,
            format!("the run exceeded its {limit} limit and was ended"),
            &format!("raise it with --limit {limit}=…, or make the command use less"),
        ),
        Outcome::Cancelled(libc::SIGPIPE) => error(
            ErrorCode::Cancelled,
            match finished.relay_error {
                None | Some(libc::EPIPE) => {
                    "nobody reads the output any more, so the run was ended".into()
                }
                Some(errno) => {
                    let why = std::io::Error::from_raw_os_error(errno);
                    format!("the output could not be passed on, so the run was ended: {why}")
                }
            },
            "use --quiet to run without passing output on",
        ),
        Outcome::Cancelled(signal) => {
            error(ErrorCode::Cancelled, format!("cancelled by {}", signal_name(*signal)), "")
        }
        Outcome::TimedOut => error(
            ErrorCode::Timeout,
            format!(
                "timed out after {}",
                term::duration(Duration::from_millis(job.intent.timeout_ms.unwrap_or(0)))
            ),
            "give it longer with --timeout, or look at the output for what it was waiting for",
        ),
        Outcome::Exited(0) if over => error(
            ErrorCode::OutputTooLarge,
            format!(
                "the output is larger than the result carries ({} KB per stream)",
                job.inline_bytes / 1024
            ),
            "raise --max-output-kb, or read all of it with `retake runs logs`",
        ),
        Outcome::Exited(0) => None,
        Outcome::Exited(code) => {
            error(ErrorCode::Failed, format!("the command exited with code {code}"), "")
        }
        Outcome::Signaled(signal) => error(
            ErrorCode::Failed,
            format!("the command was ended by {}", signal_name(*signal)),
            "",
        ),
        Outcome::Interrupted => error(
            ErrorCode::Failed,
            "the process that kept this run was killed, and the run with it".into(),
            "run it again",
        ),
    }
}

/// The error of a run that did not start.
pub(crate) fn refusal(failure: &StartFailure) -> RunError {
    let (code, hint) = match failure {
        StartFailure::Refused(_) => {
            (ErrorCode::InvalidRequest, "nothing was started; correct what is named above")
        }
        StartFailure::WorkingDirectory(_) => {
            (ErrorCode::WorkingDirectory, "nothing was started; --cwd names another directory")
        }
        StartFailure::NotFound(_) => (
            ErrorCode::NotFound,
            "check the spelling and PATH, give its full path, or use --shell true for a shell builtin",
        ),
        StartFailure::NotExecutable(_) | StartFailure::WrongFormat(_) => {
            (ErrorCode::NotFound, "give a program this system can run")
        }
        StartFailure::MissingInterpreter(_) => (
            ErrorCode::NotFound,
            "install the interpreter, or correct the first line of the script",
        ),
        StartFailure::NoResources(_) => {
            (ErrorCode::NoResources, "see the limits of this session with ulimit -a")
        }
    };
    RunError {
        code,
        message: failure.to_string(),
        hint: Some(hint.to_owned()),
        problems: match failure {
            StartFailure::Refused(problems) => problems.clone(),
            _ => Vec::new(),
        },
    }
}

/// What a person at the terminal should know about how the run ended.
pub(crate) fn report(done: &Done) {
    let Some(ending) = &done.run.ending else { return };
    for process in &ending.left_processes {
        let did = match process.fate {
            LeftFate::Ended => "was still running after the command had ended, and was ended",
            LeftFate::Kept => "is still running, as allowed",
            LeftFate::Survived => "is still running and could not be ended",
        };
        term::say(&format!("{} ({}) {did}", process.command, process.pid));
    }
    if ending.leaked && ending.left_processes.is_empty() {
        term::say(
            "the output was still held open by a process outside this run; the rest of it is not captured",
        );
    }
    if done.untaken > 0 && done.outcome == Outcome::TimedOut {
        let kept = if done.run.recorded { "; the record has them" } else { "" };
        term::say(&format!(
            "{} bytes of output were not taken by their reader in time{kept}",
            done.untaken
        ));
    }
    // A plain failure has said what it had to say itself, and where nobody reads nobody is told.
    let spoke = matches!(done.outcome, Outcome::Exited(_)) || done.unread;
    if let Some(error) = ending.error.as_ref().filter(|_| !spoke) {
        if error.problems.len() > 1 {
            error.problems.iter().for_each(|problem| term::say(problem));
        } else {
            term::say(&error.message);
        }
        if let Some(hint) = &error.hint {
            term::say(&format!("hint: {hint}"));
        }
    }
}
