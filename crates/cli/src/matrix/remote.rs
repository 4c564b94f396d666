//! `retake matrix run --on`: runs cells on other machines.

use retake_matrix::driver::{MatrixProject, MatrixRunError};
use retake_runner::config::Config;
use retake_runner::loop_driver::remote::RemoteExecutor;
use retake_runner::notice::Notify;

use crate::Failure;
#[cfg(feature = "slurm")]
use crate::slurm_words;

#[cfg(feature = "slurm")]
pub(super) use retake_slurm::SlurmExecutor as Executor;

#[cfg(not(feature = "slurm"))]
pub(super) use retake_runner::loop_driver::remote::NoRemoteExecutor as Executor;

/// `on` is the value of `--on`. Code and browsers are kept in the shared directory.
#[cfg(feature = "slurm")]
pub(super) fn open(
    on: &str,
    config: &Config,
    project: &mut MatrixProject,
    notify: Notify,
) -> Result<Executor, Failure> {
    let executor = Executor::new(on, &config.slurm, notify)
        .map_err(|error| Failure::Usage(slurm_words::sentence(&error)))?;
    let shared = executor.shared_dir();
    project.shared = Some(retake_matrix::driver::SharedDirectories {
        worktrees: shared.worktrees(&project.agent_directory),
        browsers: shared.browsers(),
    });
    Ok(executor)
}

#[cfg(not(feature = "slurm"))]
pub(super) fn open(
    on: &str,
    _config: &Config,
    _project: &mut MatrixProject,
    _notify: Notify,
) -> Result<Executor, Failure> {
    Err(Failure::Usage(format!("--on {on}: this retake was built without slurm")))
}

/// Records runs whose results cannot be reached as lost.
#[cfg(feature = "slurm")]
pub(super) fn give_up(project: &MatrixProject) -> Result<(), Failure> {
    use retake_slurm::abandoned_batches::{RecordAsLost, record_missing};

    let mut store = project.context.project.open_store(&project.context.notify)?;
    let found = record_missing(&mut store, RecordAsLost::All)
        .map_err(|error| Failure::Refused(slurm_words::sentence(&error)))?;
    for recorded in &found.recorded {
        crate::term::say(&slurm_words::recorded_as_lost(recorded));
    }
    Ok(())
}

#[cfg(not(feature = "slurm"))]
pub(super) fn give_up(_project: &MatrixProject) -> Result<(), Failure> {
    Err(Failure::Usage("--give-up: this retake was built without slurm".to_owned()))
}

/// Why a run ended early, with the options that help.
pub(super) fn failure(error: MatrixRunError<<Executor as RemoteExecutor>::Error>) -> Failure {
    match error {
        MatrixRunError::Matrix(error) => error.into(),
        #[cfg(feature = "slurm")]
        MatrixRunError::Executor(error) => Failure::Refused(slurm_words::sentence(&error)),
        #[cfg(not(feature = "slurm"))]
        MatrixRunError::Executor(error) => match error {},
    }
}
