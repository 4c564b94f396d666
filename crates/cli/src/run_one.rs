//! `retake __run-one`: executes requests that another retake wrote, on a machine that a scheduler chose.
//! For schedulers' scripts, not for people.

use std::ffi::OsString;
use std::path::PathBuf;

use retake_slurm::node::{self, NodeTask, NodeWords};

use crate::{Exit, context, slurm_words, term, words};

/// Execute the requests of a task and write one result for each
#[derive(clap::Args)]
pub(super) struct Args {
    /// The list of a submission, as BATCH/list/N
    list: PathBuf,
    /// The number of the task
    task: usize,
    /// How many requests a task has
    pack: usize,
}

impl Args {
    /// Reads the words after `__run-one` without clap; `None` if they need it.
    pub(super) fn read_directly(words: &[OsString]) -> Option<Self> {
        let [list, task, pack] = words else { return None };
        let number = |word: &OsString| word.to_str()?.parse().ok();
        Some(Self { list: list.into(), task: number(task)?, pack: number(pack)? })
    }
}

/// Succeeds once every request has a result, whatever the outcomes of the commands: a failure means
/// that the runner itself failed.
pub(super) fn run_one(args: &Args) -> Exit {
    let node_words = NodeWords {
        refusal: &words::refusal,
        failed: &|cell, error| {
            term::say(&format!("cell {cell}: {}", slurm_words::sentence(error)));
        },
        notify: context::notify(),
    };
    let task = match NodeTask::read(&args.list, args.task, args.pack) {
        Ok(task) => task,
        Err(error) => {
            term::say(&slurm_words::sentence(&error));
            return Exit::FAILED;
        }
    };
    match node::execute(&task, &node_words) {
        Ok(end) => Exit::Code(end.exit_code()),
        Err(error) => {
            term::say(&words::no_process(&error));
            Exit::FAILED
        }
    }
}
