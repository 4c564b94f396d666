//! `--on slurm`: where the shares of an exploration are checked.

use std::io;

use retake_crash_driver::remote_exploration::{RemoteExploration, RemoteExplorer};
use retake_runner::worker::Worker;

use super::options::CrashProject;
use super::share;
use crate::Failure;

/// Tells a share how many processors the scheduler gave it.
pub(super) const PROCESSORS: &str = "RETAKE_PROCESSORS";

/// What `--on` asks for.
pub(super) struct RemoteTarget {
    shared: retake_slurm::shared::Shared,
    target: retake_slurm::slurm::Target,
}
