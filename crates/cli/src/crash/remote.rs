//! `--on slurm`: where the shares of an exploration are checked.

use std::io;

use retake_crash_driver::remote_exploration::{RemoteExploration, RemoteExplorer};
use retake_runner::worker::Worker;
use retake_slurm::{Error, SlurmExecutor};

use super::options::CrashProject;
use super::share;
use crate::Failure;

/// What `--on` asks for.
pub(super) struct RemoteTarget {
    executor: SlurmExecutor,
}

impl RemoteTarget {
    pub(super) fn find(on: &str, project: &CrashProject) -> Result<Self, Failure> {
        let notify = project.context.notify.clone();
        let executor = SlurmExecutor::new(on, &project.config.slurm, notify)
            .map_err(|error| Failure::Usage(error_text(&error)))?;
        if !project.config.execution.audit.enabled {
            let why = "what runs elsewhere is collected by the record, and \
                       execution.audit.enabled is false";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(Self { executor })
    }

    /// Each share gets this many processors, or as many as the scheduler gives.
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

fn error_text(error: &Error) -> String {
    match error {
        Error::UnknownTarget(target) => {
            format!("--on takes slurm or slurm:PARTITION, not {target}")
        }
        Error::NoSharedDir => "--on slurm needs a directory that this machine and every node see; \
                               name it as slurm.shared_dir in .agent/config.yml, or in \
                               $RETAKE_SLURM__SHARED_DIR"
            .to_owned(),
        other => other.to_string(),
    }
}
