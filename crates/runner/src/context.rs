//! State that all runs of one invocation share.

use std::sync::{Arc, Mutex};

use retake_sandbox::SharedNetwork;
use retake_store::Store;
use retake_types::config::{ExecutionConfig, RedactionConfig};

use crate::config::Config;
use crate::notice::Notify;
use crate::policy_cache::PolicyCache;
use crate::project::Project;

/// A network that the first confined worker creates and the others join.
pub type WorkerNetwork = Arc<Mutex<Option<Arc<SharedNetwork>>>>;

/// The project, the configuration that affects runs, and the destination of notices.
#[derive(Clone)]
pub struct RunContext {
    pub project: Project,
    pub execution: ExecutionConfig,
    pub redaction: RedactionConfig,
    pub tracking_ignore: Vec<String>,
    pub test_reports: Vec<String>,
    pub policies: PolicyCache,
    /// The shared network of confined workers, once one of them has created it.
    pub network: Option<WorkerNetwork>,
    pub notify: Notify,
    /// Called when a worker opens the record, after dead runs were marked; collects results of runs
    /// on other machines.
    pub on_open: fn(&mut Store, &Notify),
}

impl RunContext {
    pub fn new(
        project: &Project,
        config: &Config,
        notify: Notify,
        on_open: fn(&mut Store, &Notify),
    ) -> Arc<Self> {
        Arc::new(Self {
            project: project.clone(),
            execution: config.execution.clone(),
            redaction: config.redaction.clone(),
            tracking_ignore: config.tracking_ignore.clone(),
            test_reports: config.test_reports.clone(),
            policies: PolicyCache::default(),
            network: None,
            notify,
            on_open,
        })
    }

    /// The same context with a shared network: a server in one confined worker can be reached from
    /// the others.
    #[must_use]
    pub fn with_one_network(&self) -> Arc<Self> {
        Arc::new(Self { network: Some(WorkerNetwork::default()), ..self.clone() })
    }
}

impl std::fmt::Debug for RunContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunContext").field("project", &self.project).finish_non_exhaustive()
    }
}
