//! `retake __run-one`: carries out orders that another retake wrote, on the machine that a scheduler
//! chose. For schedulers' scripts, not for people.

use std::path::PathBuf;

use super::Exit;
use crate::term;
use retake_slurm::node;

/// Carry out orders of a batch and leave one result for each
#[derive(clap::Args)]
pub(super) struct Args {
    /// The orders, as BATCH/order/N.json
    #[arg(value_name = "FILE", required = true)]
    orders: Vec<PathBuf>,
}

/// Succeeds once every order has a result, whatever became of the commands: a failure means that
/// the runner itself failed.
pub(super) fn run_one(args: &Args) -> Exit {
    match node::carry_out(&args.orders) {
        Ok(true) => Exit::OK,
        Ok(false) => Exit::FAILED,
        Err(error) => {
            term::say(&format!("no process could be made: {}", term::plain(&error)));
            Exit::FAILED
        }
    }
}
