//! Starts a run of this server: request, caps of the policy, preparation, judgement of the
//! policy, and then the run on its own worker.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use retake_engine::{Cancel, Input, Variable};
use retake_policy::{PolicyRefusal, ProposedCommand, RunMode};
use retake_runner::effects_watch::EffectsWatch;
use retake_runner::prepare::{PreparedRun, Provided};
use retake_runner::run::OutputUse;
use retake_runner::worker::Worker;
use retake_types::RunRequest;
use tokio::sync::oneshot;

use super::run_request::CallRequest;
use super::{ClientSession, ToolError};
use crate::policy_words;
use crate::server_runs::{EndedRun, ProgressObserver, ServerRun};

/// How much of each stream is available without reading the record.
const CARRIED: u64 = 128 << 10;

/// A run that was started.
pub(super) struct LaunchedRun {
    pub(super) run: Arc<ServerRun>,
    /// Why it was not run, or notes about its result.
    pub(super) outcome: oneshot::Receiver<Result<Vec<String>, ToolError>>,
}

/// A run that the policy permits, and what the policy changed in it.
struct PermittedRun {
    prepared: PreparedRun,
    notes: Vec<String>,
}

/// Starts a run on its own worker.
pub(super) async fn launch(
    session: &Arc<ClientSession>,
    call: CallRequest,
) -> Result<LaunchedRun, ToolError> {
    let background = call.mode == RunMode::Background;
    let permit = session.permit(background).await?;
    let cancel = Cancel::new().map_err(ToolError::NoProcess)?;
    let run = ServerRun::new(call.request.id, cancel, background);
    let mut input = None;
    if background {
        let (read, write) = std::io::pipe().map_err(ToolError::NoProcess)?;
        run.connect_input(write.into()).await.map_err(ToolError::NoProcess)?;
        input = Some(Input::new(read.into()));
    }
    session.runs.add(&run);
    let (shared, ours) = (session.clone(), run.clone());
    let work = move || {
        let taken = shared.workers.take(call.mode).map_err(ToolError::NoProcess);
        let result = taken.and_then(|mut taken| {
            let result = run_on(&shared, &mut taken.worker, &ours, call, input);
            shared.workers.give_back(taken);
            result
        });
        if result.is_err() {
            ours.end(None);
        }
        shared.runs.retire(&ours);
        drop(permit);
        result
    };
    let outcome = match background {
        true => session.calls.run_apart(work),
        false => session.calls.run(work),
    };
    Ok(LaunchedRun { run, outcome })
}

fn run_on(
    session: &ClientSession,
    worker: &mut Worker,
    run: &ServerRun,
    call: CallRequest,
    input: Option<Input>,
) -> Result<Vec<String>, ToolError> {
    let PermittedRun { prepared, notes } = permit(session, worker, call, input)?;
    // The call that starts it is answered before it ends.
    run.notes.get_or_init(|| notes.clone());
    let effects = &prepared.request.effects;
    let watch = effects
        .watches()
        .then(|| EffectsWatch::begin(&prepared.request, &prepared.redactor, &session.context));
    let mut observer = ProgressObserver { run, watch, tracks: effects.track.is_some() };
    worker.arm(run.cancel.clone());
    run.intent.get_or_init(|| prepared.intent.clone());
    // A call that waits for it need not find out from the record.
    if let Some(problem) = session.check_record(worker) {
        run.unrecorded.get_or_init(|| problem);
    }
    let finished = worker
        .run(prepared, OutputUse::excerpt(CARRIED), &mut observer)
        .map_err(|unrecorded| ToolError::NotRecordable(unrecorded.error))?;
    let outcome = finished.run.outcome.as_ref();
    let bytes = outcome.map_or([0; 2], |outcome| [outcome.stdout_bytes, outcome.stderr_bytes]);
    let mut sizes = run.progress().sizes;
    sizes.iter_mut().zip(bytes).for_each(|(size, bytes)| size.bytes = bytes);
    run.end(Some(EndedRun {
        run: finished.run,
        streams: finished.output,
        complete: bytes.map(|bytes| bytes <= CARRIED),
        sizes,
    }));
    Ok(notes)
}

/// Limits a request to the caps of the policy, prepares it and lets the policy judge it. The policy comes
/// first: a request that it refuses is recorded as refused, even if it is invalid for other reasons.
fn permit(
    session: &ClientSession,
    worker: &mut Worker,
    mut call: CallRequest,
    input: Option<Input>,
) -> Result<PermittedRun, ToolError> {
    call.find_checkout();
    let CallRequest { mut request, reasons, mode } = call;
    let caps = session.policy.apply_caps(&mut request, mode);
    let provided = Provided { input, reasons, ..Provided::default() };
    match PreparedRun::with(request, &session.context, provided) {
        Ok(prepared) => {
            let environment = &prepared.command.launch().environment;
            let path = environment.iter().find(|known| known.name() == "PATH");
            let path = path.map(Variable::value);
            let file = prepared.command.file();
            if let Err(refusals) = judge(session, &prepared.request, path, file) {
                let refused = (&prepared.intent, &prepared.redactor);
                return Err(session.refuse(worker, refused, refusals));
            }
            let notes = caps.iter().map(policy_words::applied_cap).collect();
            Ok(PermittedRun { prepared, notes })
        }
        Err(refused) => {
            let own = std::env::var_os("PATH");
            match judge(session, &refused.intent.request, own.as_deref(), None) {
                Err(refusals) => {
                    let intent = (&*refused.intent, &refused.redactor);
                    Err(session.refuse(worker, intent, refusals))
                }
                Ok(()) => Err(session.refuse_invalid(worker, &refused)),
            }
        }
    }
}

/// The policy's judgement of a request whose command line was parsed.
fn judge(
    session: &ClientSession,
    request: &RunRequest,
    path: Option<&OsStr>,
    file: Option<&Path>,
) -> Result<(), Vec<PolicyRefusal>> {
    let arguments: Vec<OsString> =
        request.command.argv().iter().map(|argument| argument.as_os_str().to_owned()).collect();
    // A shell executes the argument, not the displayed text.
    let line = match &arguments[..] {
        [_, option, line] if request.command.is_shell() && option == "-c" => line.to_str(),
        _ => None,
    };
    let set = request.environment.set.iter();
    let set: Vec<(OsString, OsString)> = set
        .map(|(name, value)| (name.as_os_str().to_owned(), value.as_os_str().to_owned()))
        .collect();
    session.policy.judge(&ProposedCommand {
        arguments: &arguments,
        line,
        cwd: request.cwd.as_path(),
        set: &set,
        path,
        file,
    })
}
