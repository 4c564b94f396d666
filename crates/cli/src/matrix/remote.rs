//! Where the cells of `retake matrix run --on` run.

use retake_matrix::driver::MatrixProject;
use retake_runner::config::Config;

use crate::Failure;

#[cfg(feature = "slurm")]
pub(super) use retake_slurm::SlurmExecutor as Executor;

#[cfg(not(feature = "slurm"))]
pub(super) use retake_runner::loop_driver::remote::NoRemoteExecutor as Executor;

/// `on` is what `--on` says. Code and browsers are then kept where every machine sees them.
#[cfg(feature = "slurm")]
pub(super) fn open(
    on: &str,
    config: &Config,
    project: &mut MatrixProject,
) -> Result<Executor, Failure> {
    use retake_matrix::driver::SharedDirectories;
    use retake_slurm::{SharedDir, SlurmTarget};

    let target = SlurmTarget::of(on, config).map_err(Failure::Usage)?;
    let shared = SharedDir::of(config).map_err(|error| Failure::Usage(error.to_string()))?;
    project.shared = Some(SharedDirectories {
        worktrees: shared.worktrees(&project.agent_directory),
        browsers: shared.browsers(),
    });
    Ok(Executor::new(shared, target))
}

#[cfg(not(feature = "slurm"))]
pub(super) fn open(on: &str, _: &Config, _: &mut MatrixProject) -> Result<Executor, Failure> {
    Err(Failure::Usage(format!("--on {on}: this retake was built without slurm")))
}
