//! Runs a recorded command again at the request of a page, if the server was started with that option.
//!
//! A recorded request is run unchanged; a page can only choose which one. The
//! configuration is read again, and its sandbox applies. Requests that were recorded
//! elsewhere (by another user, another machine, an import, the inside of a sandbox) are refused: a
//! record from someone else must not make this machine run its commands.

use std::sync::Arc;
use std::time::Duration;

use retake_runner::again::{self, AgainRefusal};
use retake_runner::checkout::checkout;
use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::effects_watch::EffectsWatch;
use retake_runner::machine;
use retake_runner::notice::Notify;
use retake_runner::prepare::PreparedRun;
use retake_runner::project::Project;
use retake_runner::run::{Observer, OutputUse};
use retake_runner::worker::{EndedWorker, Worker};
use retake_types::config::SandboxedCommand;
use retake_types::request::StdinSource;
use retake_types::{Run, RunId, SandboxRequest};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::RequestError;
use crate::store_pool::{Store, StorePool};

/// The label of a run that a page started.
const VIA_LABEL: (&str, &str) = ("via", "page");
/// Maximum number of runs in progress that pages have started.
const AT_ONCE: usize = 4;
/// How long to wait for a run's intent in the record.
const APPEARS: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// What the server needs to run commands; provided by the program that starts it.
pub struct RunPermission {
    pub project: Project,
    pub notify: Notify,
    /// As in [`RunContext`].
    pub on_open: fn(&mut retake_store::Store, &Notify),
    /// Called after a run has ended.
    pub finish: fn(EndedWorker, &Config),
}

/// The permission, and the number of runs in progress.
pub(crate) struct Rerun {
    permission: RunPermission,
    turns: Arc<Semaphore>,
}

/// Why a run of the record is not this user's own.
fn foreign(store: &Store, run: &Run) -> Result<Option<&'static str>, RequestError> {
    let imported = match store.as_store() {
        Some(own) => own.is_imported(run.intent.id())?,
        None => true,
    };
    Ok(if run.intent.reported_by.is_some() {
        Some("it was reported from inside a sandbox, by a program that could report anything")
    } else if imported {
        Some("it was imported from another record")
    } else if run.intent.host != machine::host() {
        Some("it was recorded on another machine")
    } else if run.intent.user != machine::user() {
        Some("it was recorded by another user")
    } else {
        None
    })
}

impl Rerun {
    pub(crate) fn new(permission: RunPermission) -> Self {
        Self { permission, turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Whether a page may offer to run this command again.
    pub(crate) fn offers(&self, store: &Store, run: &Run) -> bool {
        matches!(foreign(store, run), Ok(None)) && again::again_request(run).is_ok()
    }

    /// Starts the run; returns its id once its intent is recorded.
    pub(crate) async fn start(
        &self,
        pool: &StorePool,
        find: impl FnOnce(&Store) -> Result<RunId, RequestError> + Send + 'static,
    ) -> Result<RunId, RequestError> {
        let turn = self.turns.clone().try_acquire_owned().map_err(|_| {
            RequestError::conflict(format!(
                "{AT_ONCE} runs started from pages are still running; wait for one of them"
            ))
        })?;
        let (run, mut again) = pool.read(|store| read_request(store, find)).await?;
        let config = Config::load(self.permission.project.root.as_deref())
            .map_err(|error| RequestError::conflict(error.to_string()))?;
        if !config.execution.audit.enabled {
            return Err(RequestError::conflict(
                "execution.audit.enabled is off: what a page starts must be on the record",
            ));
        }
        let request = &mut again.request;
        confine(&mut request.sandbox, &config);
        // A page cannot type into the server's terminal.
        if request.stdin == StdinSource::Inherit {
            request.stdin = StdinSource::Null;
        }
        request.label(VIA_LABEL.0, VIA_LABEL.1);
        let found = checkout(run.intent.request.cwd.as_path());
        request.correlation_ids.repo_sha = found.sha;
        request.correlation_ids.worktree_id = found.worktree;
        let id = request.id;
        let RunPermission { project, notify, on_open, finish } = &self.permission;
        let context = RunContext::new(project, &config, notify.clone(), *on_open);
        let prepared = PreparedRun::new(again.request, &context).map_err(|refused| {
            RequestError::conflict(refused.redactor.redact_str(&refused.listed()).0.into_owned())
        })?;
        let (ended, mut outcome) = tokio::sync::oneshot::channel();
        let finish = *finish;
        std::thread::Builder::new()
            .name("rerun".to_owned())
            .spawn(move || {
                let result = perform(prepared, &context, turn);
                // After the intent was seen there is no receiver any more.
                drop(ended.send(result.as_ref().err().cloned()));
                if let Ok(worker) = result {
                    finish(worker, &config);
                }
            })
            .map_err(|_| RequestError::internal("could not start a thread"))?;
        wait_for_intent(pool, id, &mut outcome).await
    }
}

/// The recorded request, unless it must not be run here.
fn read_request(
    store: &Store,
    find: impl FnOnce(&Store) -> Result<RunId, RequestError>,
) -> Result<(Run, again::AgainRequest), RequestError> {
    let run = store.get(find(store)?)?;
    if let Some(why) = foreign(store, &run)? {
        return Err(RequestError::forbidden(&format!(
            "a page does not run this: {why}; check the command, and run it with `retake exec` yourself"
        )));
    }
    let mut request = again::again_request(&run).map_err(|refusals| {
        let texts: Vec<String> = refusals.iter().map(refusal).collect();
        RequestError::conflict(texts.join("; "))
    })?;
    request.add_secrets(again::secrets_in_output(store, &run)?);
    Ok((run, request))
}

/// Applies the project's sandbox over that of the request, and never weakens it.
fn confine(asked: &mut SandboxRequest, config: &Config) {
    let configured =
        config.sandbox.request(SandboxedCommand::Exec, None, SandboxRequest::default());
    if configured.is_on() {
        *asked = std::mem::take(asked).with_rules(&configured);
        asked.mode = asked.mode.max(configured.mode);
    }
}

/// Runs it to its end; the error is shown on the page.
fn perform(
    prepared: PreparedRun,
    context: &Arc<RunContext>,
    _turn: OwnedSemaphorePermit,
) -> Result<EndedWorker, String> {
    let failed = |error: std::io::Error| format!("could not start a process: {error}");
    let mut worker = Worker::independent(context).map_err(failed)?;
    // Checked before anything starts: a page may not start unrecorded runs.
    worker.store().map_err(|error| format!("it cannot be recorded: {error}"))?;
    let request = &prepared.request;
    let watches = request.effects.watches();
    let mut watch = watches.then(|| EffectsWatch::begin(request, &prepared.redactor, context));
    let mut nobody = ();
    let observer: &mut dyn Observer = match &mut watch {
        Some(watch) => watch,
        None => &mut nobody,
    };
    worker.run(prepared, OutputUse::NONE, observer).map_err(|unrecorded| unrecorded.to_string())?;
    Ok(worker.end())
}

/// Waits until a run is recorded, or could not be started.
async fn wait_for_intent(
    pool: &StorePool,
    id: RunId,
    outcome: &mut tokio::sync::oneshot::Receiver<Option<String>>,
) -> Result<RunId, RequestError> {
    let until = tokio::time::Instant::now() + APPEARS;
    loop {
        // Read first: a run that has ended is already in the record.
        let over = outcome.try_recv();
        match pool.read(move |store| Ok(store.get(id)?)).await {
            Ok(_) => return Ok(id),
            Err(error) if !error.is_not_found() => return Err(error),
            Err(_) => {}
        }
        match over {
            Ok(Some(why)) => return Err(RequestError::conflict(why)),
            Ok(None) | Err(tokio::sync::oneshot::error::TryRecvError::Closed) => {
                return Err(RequestError::internal("the run ended but is not in the record"));
            }
            Err(tokio::sync::oneshot::error::TryRecvError::Empty) => {}
        }
        if tokio::time::Instant::now() > until {
            return Err(RequestError::busy(
                "the run is not in the record yet; it may still start: check the list of runs",
            ));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn refusal(refusal: &AgainRefusal) -> String {
    match refusal {
        AgainRefusal::VariableNotSet { name } => format!(
            "the variable {name} was redacted in the record and is not set for this server; set it and start `retake ui` again"
        ),
        AgainRefusal::RedactedPart(part) => {
            format!("{part} was redacted in the record, so its value is unknown")
        }
        AgainRefusal::RedactedArgument { position, text } => {
            format!(
                "argument {position} ({text}) was redacted in the record, so its value is unknown"
            )
        }
        AgainRefusal::Reported => "it was reported from inside a sandbox".to_owned(),
        AgainRefusal::NoArguments => "the record has no usable arguments".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use retake_types::{PathGrant, PathRule, SandboxMode};

    use super::*;

    #[test]
    fn a_repeated_run_gets_the_configured_sandbox_and_stays_confined() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(".agent")).unwrap();
        let load = |text: &str| {
            std::fs::write(directory.path().join(".agent/config.yml"), text).unwrap();
            Config::load(Some(directory.path())).unwrap()
        };
        let own = SandboxRequest {
            mode: SandboxMode::Strict,
            paths: vec![PathRule::new(PathGrant::DenyRead, "/own")],
            ..SandboxRequest::default()
        };
        let confined = |mut asked: SandboxRequest, config: &Config| {
            confine(&mut asked, config);
            asked
        };
        let off = load("");
        assert!(!confined(SandboxRequest::default(), &off).is_on());
        assert_eq!(confined(own.clone(), &off), own);
        let on = load("sandbox:\n  exec: strict\n");
        assert_eq!(confined(SandboxRequest::default(), &on).mode, SandboxMode::Strict);
        let both = confined(own.clone(), &on);
        assert!(both.is_on() && both.paths.starts_with(&own.paths));
    }
}
