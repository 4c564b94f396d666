//! A recorded run once more, at the request of a page: only where the server was started for it.
//!
//! What runs is a request of the record, unchanged; a page cannot say anything but which one. The
//! configuration is read anew, and the sandbox that it asks for applies. Requests that were recorded
//! by somebody else (another user, another machine, an import, the inside of a sandbox) are refused: a
//! record that somebody hands over must not make this machine run its commands.

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

/// The label by which a run says that a page asked for it.
const VIA_LABEL: (&str, &str) = ("via", "page");
/// Runs that pages have asked for and that are not over.
const AT_ONCE: usize = 4;
/// How long the record is looked at for the intent of a run.
const APPEARS: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// What the server needs to run something; made by the program that starts it.
pub struct RunPermission {
    pub project: Project,
    pub notify: Notify,
    /// As in [`RunContext`].
    pub on_open: fn(&mut retake_store::Store, &Notify),
    /// Called when a run is over.
    pub finish: fn(EndedWorker, &Config),
}

/// The permission, and how many runs there are.
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

    /// Whether a page may offer it for this run.
    pub(crate) fn offers(&self, store: &Store, run: &Run) -> bool {
        matches!(foreign(store, run), Ok(None)) && again::again_request(run).is_ok()
    }

    /// Starts the run once more; gives its id once its intent is on the record.
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
        // The terminal of the server is nothing that a page can type into.
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
                // Nobody waits any more once the intent was seen.
                drop(ended.send(result.as_ref().err().cloned()));
                if let Ok(worker) = result {
                    finish(worker, &config);
                }
            })
            .map_err(|_| RequestError::internal("could not start a thread"))?;
        wait_for_intent(pool, id, &mut outcome).await
    }
}

/// The recorded request, unless it is not ours to run.
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

/// The project's sandbox over that of the request. What was confined stays so.
fn confine(asked: &mut SandboxRequest, config: &Config) {
    let configured =
        config.sandbox.request(SandboxedCommand::Exec, None, SandboxRequest::default());
    if configured.is_on() {
        *asked = std::mem::take(asked).with_rules(&configured);
        asked.mode = asked.mode.max(configured.mode);
    }
}

/// Runs it to its end; the error is for the page.
fn perform(
    prepared: PreparedRun,
    context: &Arc<RunContext>,
    _turn: OwnedSemaphorePermit,
) -> Result<EndedWorker, String> {
    let failed = |error: std::io::Error| format!("could not start a process: {error}");
    let mut worker = Worker::independent(context).map_err(failed)?;
    // Before anything starts: what cannot be recorded is not run for a page.
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

/// Waits until a run is on the record, or could not be started.
async fn wait_for_intent(
    pool: &StorePool,
    id: RunId,
    outcome: &mut tokio::sync::oneshot::Receiver<Option<String>>,
) -> Result<RunId, RequestError> {
    let until = tokio::time::Instant::now() + APPEARS;
    loop {
        // Before the look: a run that is over is on the record.
        let over = outcome.try_recv();
        match pool.read(move |store| Ok(store.get(id)?)).await {
            Ok(_) => return Ok(id),
            Err(error) if !error.is_not_found() => return Err(error),
            Err(_) => {}
        }
        match over {
            Ok(Some(why)) => return Err(RequestError::conflict(why)),
            Ok(None) | Err(tokio::sync::oneshot::error::TryRecvError::Closed) => {
                return Err(RequestError::internal("the run ended and is not on the record"));
            }
            Err(tokio::sync::oneshot::error::TryRecvError::Empty) => {}
        }
        if tokio::time::Instant::now() > until {
            return Err(RequestError::busy(
                "the run is not on the record yet; it may still begin: look at the list of runs",
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
            format!("{part} was redacted in the record, so it is not known")
        }
        AgainRefusal::RedactedArgument { position, text } => {
            format!("argument {position} ({text}) was redacted in the record, so it is not known")
        }
        AgainRefusal::Reported => "it was reported from inside a sandbox".to_owned(),
        AgainRefusal::NoArguments => "the record has no usable arguments of it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use retake_types::{PathGrant, PathRule, SandboxMode};

    use super::*;

    #[test]
    fn the_configured_sandbox_applies_and_what_was_confined_stays_so() {
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
