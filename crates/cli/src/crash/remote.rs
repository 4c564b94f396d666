//! `--on slurm`: checks the shares of an exploration on other machines.

use std::io;

use retake_crash_driver::remote_exploration::{RemoteExploration, RemoteExplorer};
use retake_runner::worker::Worker;
use retake_slurm::SlurmExecutor;

use super::options::CrashProject;
use super::share;
use crate::{Failure, slurm_words};

/// The target of `--on`.
pub(super) struct RemoteTarget {
    executor: SlurmExecutor,
}

impl RemoteTarget {
    pub(super) fn find(on: &str, project: &CrashProject) -> Result<Self, Failure> {
        let notify = project.context.notify.clone();
        let executor = SlurmExecutor::new(on, &project.config.slurm, notify)
            .map_err(|error| Failure::Usage(slurm_words::sentence(&error)))?;
        if !project.config.execution.audit.enabled {
            let why =
                "runs on other machines need the record, and execution.audit.enabled is false";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(Self { executor })
    }

    /// Each share gets this many processors, or as many as the scheduler assigns.
    pub(super) fn explorer<'a>(
        self,
        project: &'a CrashProject,
        jobs: Option<u16>,
    ) -> io::Result<Box<dyn RemoteExplorer + 'a>> {
        Ok(Box::new(RemoteExploration {
            executor: self.executor.with_processors(jobs),
            worker: Worker::independent(&project.context)?,
            context: &project.context,
            jobs,
            arguments: share::arguments,
        }))
    }
}
