//! State that all calls of a connection share.

use std::path::PathBuf;
use std::sync::Arc;

use retake_policy::{Policy, PolicyRefusal};
use retake_runner::context::RunContext;
use retake_runner::prepare::RefusedRun;
use retake_runner::worker::Worker;
use retake_runner::{recovery, run};
use retake_store::redact::Redactor;
use retake_store::{Error, Store};
use retake_types::config::PolicyConfig;
use retake_types::{CorrelationIds, Intent, Redacted, RefusalReason, RunId, StartFailure};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::call_thread::CallThread;
use super::policy_words;
use super::server_runs::ServerRuns;
use super::server_sandbox::ServerSandbox;
use super::tool_error::{ToolError, refusal_reason, store_error};
use super::worker_pool::WorkerPool;

pub(super) struct ClientSession {
    pub(super) context: Arc<RunContext>,
    pub(super) policy: Policy,
    pub(super) policy_config: PolicyConfig,
    /// The sandbox of every command.
    pub(super) sandbox: ServerSandbox,
    pub(super) workers: WorkerPool,
    /// Through which calls run their commands.
    pub(super) calls: CallThread,
    pub(super) runs: ServerRuns,
    /// The working directory of commands unless a call names another.
    pub(super) directory: PathBuf,
    ids: CorrelationIds,
    parallel: Arc<Semaphore>,
    background: Arc<Semaphore>,
}

impl ClientSession {
    pub(super) fn new(
        context: Arc<RunContext>,
        (policy, policy_config, sandbox): (Policy, PolicyConfig, ServerSandbox),
        (workers, calls): (WorkerPool, CallThread),
        directory: PathBuf,
    ) -> Self {
        let permits = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self {
            parallel: permits(policy_config.max_parallel),
            background: permits(policy_config.max_running),
            context,
            policy,
            policy_config,
            sandbox,
            workers,
            calls,
            runs: ServerRuns::default(),
            directory,
            ids: ids_from_environment(),
        }
    }

    /// The ids that every run of this connection carries.
    pub(super) fn ids(&self) -> CorrelationIds {
        self.ids.clone()
    }

    /// The permit to run a command; a call waits for it, a background run does not.
    pub(super) async fn permit(&self, background: bool) -> Result<OwnedSemaphorePermit, ToolError> {
        let gone = || ToolError::Other("the server is about to end".to_owned());
        if !background {
            return self.parallel.clone().acquire_owned().await.map_err(|_| gone());
        }
        self.background.clone().try_acquire_owned().map_err(|_| {
            ToolError::Other(match self.policy_config.max_running {
                0 => "mcp.policy.max_running allows no command to stay in the background; use exec"
                    .to_owned(),
                1 => "a command runs in the background already, and mcp.policy.max_running allows one; end it with exec_stop".to_owned(),
                most => format!(
                    "{most} commands run in the background already, as many as mcp.policy.max_running allows; end one with exec_stop"
                ),
            })
        })
    }

    /// Prevents further commands from starting.
    pub(super) fn close(&self) {
        self.parallel.close();
        self.background.close();
    }

    /// Queries the record, and maintains it afterwards.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Store) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        let project = self.context.project.clone();
        let notify = self.context.notify.clone();
        let unusable = self.runs.unusable();
        let (answer, answered) = tokio::sync::oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let opened = project.read_store();
            let opened = opened.and_then(|store| recovery::mark_dead_runs(store, &notify));
            let opened = match opened {
                Err(Error::NoStore { .. }) => Err(ToolError::Other(match unusable {
                    Some(why) => format!("the record cannot be used: {why}"),
                    None => "nothing was recorded here yet".to_owned(),
                })),
                opened => opened.map_err(ToolError::from),
            };
            let (found, store) = match opened {
                Ok(store) => (look(&store), Some(store)),
                Err(error) => (Err(error), None),
            };
            // A cancelled call has no receiver.
            drop(answer.send(found));
            if let Some(store) = store {
                recovery::tend(store, &notify);
            }
        });
        answered.await.map_err(|_| ToolError::Other("the record could not be read".to_owned()))?
    }

    /// Records a refusal.
    pub(super) fn refuse(
        &self,
        worker: &mut Worker,
        (intent, redactor): (&Redacted<Intent>, &Redactor),
        refusals: Vec<PolicyRefusal>,
    ) -> ToolError {
        let reasons = refusals
            .iter()
            .map(|refusal| format!("refused by policy: {}", policy_words::reason(refusal)))
            .collect();
        let failure = StartFailure::Refused(reasons);
        let recorded = record_refusal(worker, (intent, redactor), failure);
        ToolError::Policy { refusals, recorded: recorded.map_err(Box::new) }
    }

    /// Records an invalid request, if runs are recorded.
    pub(super) fn refuse_invalid(&self, worker: &mut Worker, refused: &RefusedRun) -> ToolError {
        let text = |reason: &RefusalReason| {
            refused.redactor.redact_str(&refusal_reason(reason)).0.into_owned()
        };
        let reasons: Vec<String> = refused.reasons.iter().map(text).collect();
        let records = self.context.execution.audit.enabled && refused.recordable;
        let recorded = records.then(|| {
            let failure = match refused.reasons.iter().all(RefusalReason::is_directory) {
                true => StartFailure::WorkingDirectory(reasons.join("; ")),
                false => StartFailure::Refused(reasons.clone()),
            };
            let intent = (&*refused.intent, &refused.redactor);
            record_refusal(worker, intent, failure).map_err(Box::new)
        });
        ToolError::InvalidRequest { reasons, recorded }
    }

    /// Remembers whether runs can be recorded; returns the reason if not.
    pub(super) fn check_record(&self, worker: &mut Worker) -> Option<String> {
        let problem = if self.context.execution.audit.enabled {
            worker.store().err().map(|error| store_error(&error))
        } else {
            Some("execution.audit.enabled is off".to_owned())
        };
        self.runs.set_unusable(problem.clone());
        problem
    }
}

/// The ids from the program that started the server; a new session if it gives none.
fn ids_from_environment() -> CorrelationIds {
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

/// Records a run that does not start.
fn record_refusal(
    worker: &mut Worker,
    (intent, redactor): (&Redacted<Intent>, &Redactor),
    failure: StartFailure,
) -> Result<RunId, Error> {
    let mut refused = run::not_started(intent.clone(), failure, redactor);
    refused.record_not_started(worker.store()?)?;
    Ok(intent.id())
}
