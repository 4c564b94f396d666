//! `retake exec`: runs one command with a timeout and limits, and records it.

mod args;
mod parse;
#[cfg(feature = "slurm")]
mod remote;
mod request;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use retake_engine::{KeeperSession, quote};
use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::effects_watch::EffectsWatch;
use retake_runner::prepare::{PreparedRun, Provided, RefusedRun, refused_intent};
use retake_runner::project::Project;
use retake_runner::run::{self, Carry, FinishedRun, Observer, OutputUse};
use retake_runner::worker::{EarlyKeeper, EndedWorker, Worker};
use retake_store::redact::Redactor;
use retake_types::request::{CommandRequest, LoopPosition, StdinSource};
use retake_types::{
    Intent, Outcome, Redacted, RedactedParts, RefusalReason, Run, RunRequest, StartFailure,
};
use serde::Serialize;

use crate::{Exit, context, term, words};

pub(crate) use args::{Args, SandboxArgs};
use request::Typed;
pub(crate) use request::sandbox_of;
#[cfg(feature = "mcp")]
pub(crate) use request::sandbox_or;

/// The result that `--json` prints: the run, and the part of its output that a result carries.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(flatten)]
    run: &'a Run,
    stdout: String,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
}

impl<'a> Document<'a> {
    fn new(run: &'a Run, [stdout, stderr]: [Vec<u8>; 2]) -> Self {
        // Valid UTF-8 as text; anything else also as exact bytes.
        let split = |bytes: Vec<u8>| match String::from_utf8(bytes) {
            Ok(text) => (text, None),
            Err(error) => (
                String::from_utf8_lossy(error.as_bytes()).into_owned(),
                Some(BASE64_STANDARD.encode(error.as_bytes())),
            ),
        };
        let ((stdout, stdout_base64), (stderr, stderr_base64)) = (split(stdout), split(stderr));
        Self { run, stdout, stderr, stdout_base64, stderr_base64 }
    }
}

/// How the result is shown.
#[derive(Clone, Copy)]
pub(crate) struct Display {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

impl Display {
    fn output_use(self) -> OutputUse {
        let carry = if self.json { Carry::Requested } else { Carry::Nothing };
        OutputUse { carry, forward: !self.json && !self.quiet }
    }
}

/// A checked request, with everything that is needed to run and record it.
pub(crate) struct Prepared {
    pub(crate) run: Box<PreparedRun>,
    pub(crate) context: Arc<RunContext>,
    pub(crate) config: Config,
    pub(crate) display: Display,
    /// Started while the rest is prepared; `None` for a run on another machine, or one that may be refused.
    pub(crate) keeper: Option<std::io::Result<EarlyKeeper>>,
}

/// A request that was refused: the intent of its run, and the reason.
pub(crate) struct Refused {
    pub(crate) intent: Box<Redacted<Intent>>,
    pub(crate) failure: StartFailure,
    /// Removes secrets from the failure's text.
    pub(crate) redactor: Redactor,
    /// The record to write it to; `None` if no request could be read, or no record opened.
    pub(crate) context: Option<Arc<RunContext>>,
    /// What to do about it; `None` for the usual advice.
    pub(crate) hint: Option<String>,
}

pub(crate) fn exec(args: Args, store: Option<&Path>) -> Exit {
    let typed = Typed::read(&args);
    let display = typed.display;
    let on = typed.on.clone();
    match prepare(typed, store) {
        Ok(prepared) => match on {
            Some(on) => run_remotely(prepared, &on),
            None => run_and_show(prepared, |_| {}),
        },
        Err(refused) => refused.show(display.json),
    }
}

#[cfg(feature = "slurm")]
fn run_remotely(prepared: Prepared, on: &str) -> Exit {
    remote::run_and_show(prepared, on)
}

#[cfg(not(feature = "slurm"))]
fn run_remotely(prepared: Prepared, on: &str) -> Exit {
    let failure = StartFailure::Refused(vec![format!("--on {on}: built without Slurm")]);
    let json = prepared.display.json;
    let context = Some(prepared.context);
    let PreparedRun { intent, redactor, .. } = *prepared.run;
    Refused { intent: Box::new(intent), failure, redactor, context, hint: None }.show(json)
}

/// Opens the project and checks the request.
fn prepare(typed: Typed, store: Option<&Path>) -> Result<Prepared, Refused> {
    let Typed { mut request, mut reasons, display, configured, on } = typed;
    // Early, while this process has little memory; the keeper starts while the project and record are opened.
    let here = on.is_none() && reasons.is_empty();
    let keeper = here.then(|| EarlyKeeper::start(keeper_session(&request)));
    let (project, config) = open(&request, store)?;
    configured.apply(&mut request, &config);
    if on.is_some() && request.sandbox.is_on() {
        reasons.push(RefusalReason::Other(words::SANDBOX_IS_LOCAL.to_owned()));
    }
    let context = context::run_context(&project, &config);
    let provided = Provided { reasons, ..Provided::default() };
    let run = PreparedRun::with(request, &context, provided)
        .map_err(|refused| Refused::new(refused, &context))?;
    let run = Box::new(run);
    Ok(Prepared { run, context, config, display, keeper })
}

/// The same for a complete request, which has no configured defaults.
pub(crate) fn prepare_request(
    request: RunRequest,
    display: Display,
    store: Option<&Path>,
) -> Result<Prepared, Refused> {
    let (project, config) = open(&request, store)?;
    let context = context::run_context(&project, &config);
    let run =
        PreparedRun::new(request, &context).map_err(|refused| Refused::new(refused, &context))?;
    let run = Box::new(run);
    Ok(Prepared { run, context, config, display, keeper: None })
}

/// Whether the command gets this process's terminal.
fn has_terminal(request: &RunRequest) -> bool {
    request.stdin == StdinSource::Inherit && std::io::stdin().is_terminal()
}

fn keeper_session(request: &RunRequest) -> KeeperSession {
    match has_terminal(request) && !request.pty {
        true => KeeperSession::Shared,
        false => KeeperSession::Own,
    }
}

fn open(request: &RunRequest, store: Option<&Path>) -> Result<(Project, Config), Refused> {
    context::open(store).map_err(|failure| {
        let refusal = StartFailure::Refused(failure.problems());
        let redacted = RedactedParts::default();
        let refused = Refused::without_configuration(request.clone(), redacted, refusal);
        Refused { hint: failure.hint(), ..refused }
    })
}

/// Runs a prepared request, prints the result, and then does the work that can wait until it is printed.
/// `remark` is called with the finished run before the result.
pub(crate) fn run_and_show(prepared: Prepared, remark: impl FnOnce(&Run)) -> Exit {
    let Prepared { run, context, config, display, keeper } = prepared;
    match perform((run, keeper), &context, display) {
        Ok((finished, had_terminal, ended)) => {
            remark(&finished.run);
            let exit = show(finished, display.json, had_terminal);
            context::finish(ended, &config);
            exit
        }
        Err(refused) => refused.show(display.json),
    }
}

/// Runs it. Returns whether the command had the terminal.
fn perform(
    (prepared, keeper): (Box<PreparedRun>, Option<std::io::Result<EarlyKeeper>>),
    context: &Arc<RunContext>,
    display: Display,
) -> Result<(FinishedRun, bool, EndedWorker), Refused> {
    let request = &prepared.request;
    let had_terminal = has_terminal(request);
    let keeper = keeper.unwrap_or_else(|| EarlyKeeper::start(keeper_session(request)));
    let worker = keeper.and_then(|keeper| Worker::with_keeper(keeper, context));
    let mut worker = worker.map_err(|error| Refused {
        intent: Box::new(prepared.intent.clone()),
        redactor: prepared.redactor.clone(),
        failure: StartFailure::NoResources(words::no_process(&error)),
        context: Some(context.clone()),
        hint: None,
    })?;
    let watches = request.effects.watches();
    let mut watch = watches.then(|| EffectsWatch::begin(request, &prepared.redactor, context));
    let mut nobody = ();
    let observer: &mut dyn Observer = match &mut watch {
        Some(watch) => watch,
        None => &mut nobody,
    };
    let finished =
        worker.run(*prepared, display.output_use(), observer).map_err(|unrecorded| Refused {
            failure: StartFailure::Refused(vec![format!(
                "it cannot be recorded, and execution.audit.required is set: {}",
                words::store_error(&unrecorded.error)
            )]),
            intent: Box::new(unrecorded.prepared.intent),
            redactor: unrecorded.prepared.redactor,
            context: None,
            hint: None,
        })?;
    Ok((finished, had_terminal, worker.end()))
}

fn show(mut finished: FinishedRun, json: bool, had_terminal: bool) -> Exit {
    finished.run = words::with_hint(finished.run);
    words::say_outcome(&finished);
    words::say_no_tests(&finished.run);
    if !json && std::io::stderr().is_terminal() {
        words::say_where_more_is(&finished.run);
    }
    if json && let Err(error) = term::document(&Document::new(&finished.run, finished.output)) {
        term::say(&format!("the result could not be printed: {}", term::plain(&error)));
        return Exit::REFUSED;
    }
    let code = finished.run.outcome.as_ref().and_then(|outcome| outcome.exit_code).unwrap_or(125);
    match finished.outcome {
        Outcome::Cancelled(signal) if code == 128 + signal => Exit::Signal(signal),
        // The terminal sent the signal to the command alone; a shell loop around retake must stop as well.
        Outcome::Signaled(signal @ (libc::SIGINT | libc::SIGQUIT)) if had_terminal => {
            Exit::Signal(signal)
        }
        _ => Exit::Code(code.clamp(0, 255) as u8),
    }
}

impl Refused {
    fn new(refused: RefusedRun, context: &Arc<RunContext>) -> Self {
        let text = |reason: &RefusalReason| {
            refused.redactor.redact_str(&words::refusal(reason)).0.into_owned()
        };
        let texts: Vec<_> = refused.reasons.iter().map(text).collect();
        let failure = if refused.reasons.iter().all(RefusalReason::is_directory) {
            StartFailure::WorkingDirectory(texts.join("; "))
        } else {
            StartFailure::Refused(texts)
        };
        let context = refused.recordable.then(|| context.clone());
        Self { intent: refused.intent, failure, redactor: refused.redactor, context, hint: None }
    }

    /// A request for which no project could be opened. `redacted` names the parts that were redacted before.
    pub(crate) fn without_configuration(
        request: RunRequest,
        redacted: RedactedParts,
        failure: StartFailure,
    ) -> Self {
        let (intent, redactor) = refused_intent(request, redacted);
        Self { intent, failure, redactor, context: None, hint: None }
    }

    /// Records the refusal and prints it.
    pub(crate) fn show(self, json: bool) -> Exit {
        let mut refused = run::not_started(*self.intent, self.failure, &self.redactor);
        if let (Some(hint), Some(outcome)) = (self.hint, &mut refused.run.outcome) {
            outcome.set_redacted_hint(Redacted::new(hint, &mut self.redactor.clone()));
        }
        if let Some(context) = &self.context {
            refused.record_refusal(context);
        }
        show(refused, json, false)
    }
}

/// A command line that could not be parsed; with `--json` the answer is JSON all the same.
pub(crate) fn refuse_usage(message: &str, typed: &[OsString]) -> Exit {
    let words: Vec<_> = typed.iter().skip(2).map(|word| word.to_string_lossy()).collect();
    let line = quote(words.iter().map(AsRef::as_ref));
    let command = CommandRequest::arguments(line, Vec::<OsString>::new());
    let request = RunRequest::new(LoopPosition::exec(), command, context::here());
    let failure = StartFailure::Refused(vec![message.to_owned()]);
    Refused::without_configuration(request, RedactedParts::default(), failure).show(true)
}
