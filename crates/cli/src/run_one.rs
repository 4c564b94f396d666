//! `retake __run-one`: executes request files that another retake wrote, on the machine that a
//! scheduler chose. For schedulers' scripts, not for people.

use std::path::PathBuf;

use retake_slurm::node::{self, NodeWords};

use crate::{Exit, context, slurm_words, term, words};

/// Execute request files of a batch and leave one result for each
#[derive(clap::Args)]
pub(super) struct Args {
    /// The request files, as BATCH/order/N.json
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Succeeds once every request file has a result, whatever the outcomes of the commands: a failure
/// means that the runner itself failed.
pub(super) fn run_one(args: &Args) -> Exit {
    let node_words = NodeWords {
        refusal: &words::refusal,
        failed: &|file, error| {
            term::say(&format!("{}: {}", file.display(), slurm_words::sentence(error)));
        },
        notify: context::notify(),
    };
    match node::execute(&args.files, &node_words) {
        Ok(end) => Exit::Code(end.exit_code()),
        Err(error) => {
            term::say(&words::no_process(&error));
            Exit::FAILED
        }
    }
}
