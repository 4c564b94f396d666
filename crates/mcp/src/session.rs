//! What all calls of one connection share.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use retake_store::{Error, Store};
use retake_types::{CorrelationIds, Ending, Intent, Outcome, RunId, StartFailure};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::Trouble;
use super::live::Registry;
use super::policy::{Denied, Policy};
use super::pool::Pool;
use retake_runner::config::Config;
use retake_runner::run;
use retake_runner::project::Place;
use retake::record;
use retake_runner::worker::Slot;

pub(super) struct Session {
    pub(super) place: Place,
    pub(super) config: Config,
    pub(super) policy: Policy,
    pub(super) pool: Pool,
    pub(super) live: Registry,
    /// Where commands run unless told.
    pub(super) here: PathBuf,
    ids: CorrelationIds,
    calls: Arc<Semaphore>,
    background: Arc<Semaphore>,
}

impl Session {
    pub(super) fn new(
        place: Place,
        config: Config,
        policy: Policy,
        pool: Pool,
        here: PathBuf,
    ) -> Self {
        let number = |key| usize::try_from(config.number(key)).unwrap_or(usize::MAX);
        let calls = Arc::new(Semaphore::new(number("mcp.policy.max_parallel")));
        let background = Arc::new(Semaphore::new(number("mcp.policy.max_running")));
        let ids = ids();
        Self {
            place,
            config,
            policy,
            pool,
            live: Registry::default(),
            here,
            ids,
            calls,
            background,
        }
    }

    /// The ids that every run of this connection carries.
    pub(super) fn ids(&self) -> CorrelationIds {
        self.ids.clone()
    }

    /// The right to run a command; a call waits for it, what stays in the background does not.
    pub(super) async fn permit(&self, background: bool) -> Result<OwnedSemaphorePermit, Trouble> {
        let gone = || Trouble::Other("the server is about to end".to_owned());
        if !background {
            return self.calls.clone().acquire_owned().await.map_err(|_| gone());
        }
        self.background.clone().try_acquire_owned().map_err(|_| {
            Trouble::Other(match self.config.number("mcp.policy.max_running") {
                0 => "mcp.policy.max_running allows no command to stay in the background; use exec"
                    .to_owned(),
                1 => "a command runs in the background already, and mcp.policy.max_running allows one; end it with exec_stop".to_owned(),
                most => format!(
                    "{most} commands run in the background already, as many as mcp.policy.max_running allows; end one with exec_stop"
                ),
            })
        })
    }

    /// Lets nothing start any more.
    pub(super) fn close(&self) {
        self.calls.close();
        self.background.close();
    }

    /// Looks something up in the record, and afterwards tends it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Store) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let path = self.place.store.clone();
        let unusable = self.live.unusable();
        let (answer, answered) = tokio::sync::oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let opened = match Store::open_read_only(&path) {
                Err(Error::NoStore { .. }) => Err(Trouble::Other(match unusable {
                    Some(why) => format!("the record cannot be used: {why}"),
                    None => "nothing was recorded here yet".to_owned(),
                })),
                opened => opened.map_err(Trouble::from),
            };
            let (found, store) = match opened {
                Ok(store) => (look(&store), Some(store)),
                Err(trouble) => (Err(trouble), None),
            };
            // A call that was cancelled has nobody to answer.
            drop(answer.send(found));
            if let Some(store) = store {
                record::tend(store);
            }
        });
        answered.await.map_err(|_| Trouble::Other("the record could not be read".to_owned()))?
    }

    /// Puts a refusal on the record and says why.
    pub(super) fn deny(&self, slot: &mut Slot, intent: &Intent, denied: &Denied) -> Trouble {
        let reasons: Vec<String> =
            denied.reasons.iter().map(|reason| format!("refused by policy: {reason}")).collect();
        let written = slot.store().and_then(|store| {
            let recording = store.begin(intent)?;
            recording.finish(store, refused(reasons)).map(|_| ())
        });
        Trouble::Policy {
            reasons: denied.reasons.join("; "),
            advice: denied.advice.clone(),
            recorded: match written {
                Ok(()) => format!(" (on the record as run {})", intent.id().short()),
                Err(error) => format!(" (this could not be recorded: {error})"),
            },
        }
    }
}

/// Those that whoever started us gives; a session of our own if it gives none.
fn ids() -> CorrelationIds {
    let given = |name: &str| std::env::var(name).ok().filter(|id| !id.is_empty());
    CorrelationIds {
        run_id: given("RETAKE_RUN_ID"),
        session_id: given("RETAKE_SESSION_ID").or_else(|| Some(RunId::new().to_string())),
        task_id: given("RETAKE_TASK_ID"),
        step_id: given("RETAKE_STEP_ID"),
        tool_call_id: None,
        worktree_id: given("RETAKE_WORKTREE_ID"),
        repo_sha: given("RETAKE_REPO_SHA"),
    }
}

/// The ending of a run that was not allowed to begin.
fn refused(reasons: Vec<String>) -> Ending {
    let failure = StartFailure::Refused(reasons);
    let error = Some(run::refusal(&failure));
    Ending { error, ..Ending::bare(&Outcome::NotStarted(failure), Timestamp::now()) }
}
