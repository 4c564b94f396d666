//! `retake __run-one`: executes requests that another retake wrote, on a machine that a scheduler chose.
//! For schedulers' scripts, not for people.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Once};

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
    /// Where messages go; made for the first one
    log: Option<PathBuf>,
}

impl Args {
    /// Reads the words after `__run-one` without clap; `None` if they need it.
    pub(super) fn read_directly(words: &[OsString]) -> Option<Self> {
        let (words, log) = words.split_at_checked(3)?;
        let [list, task, pack] = words else { return None };
        let log = match log {
            [] => None,
            [log] => Some(log.into()),
            _ => return None,
        };
        let number = |word: &OsString| word.to_str()?.parse().ok();
        Some(Self { list: list.into(), task: number(task)?, pack: number(pack)?, log })
    }
}

/// Succeeds once every request has a result, whatever the outcomes of the commands: a failure means
/// that the runner itself failed.
pub(super) fn run_one(args: &Args) -> Exit {
    let log = Arc::new(MessageLog { path: args.log.clone(), opened: Once::new() });
    let notify = context::notify();
    let node_words = NodeWords {
        refusal: &words::refusal,
        failed: &|cell, error| {
            log.say(&format!("cell {cell}: {}", slurm_words::sentence(error)));
        },
        notify: {
            let log = log.clone();
            Arc::new(move |notice| {
                log.open();
                notify(notice);
            })
        },
    };
    let task = match NodeTask::read(&args.list, args.task, args.pack) {
        Ok(task) => task,
        Err(error) => {
            log.say(&slurm_words::sentence(&error));
            return Exit::FAILED;
        }
    };
    match node::execute(&task, &node_words) {
        Ok(end) => Exit::Code(end.exit_code()),
        Err(error) => {
            log.say(&words::no_process(&error));
            Exit::FAILED
        }
    }
}

/// Makes a file the standard error before the first message: a task that has nothing to say leaves no file.
struct MessageLog {
    path: Option<PathBuf>,
    opened: Once,
}

impl MessageLog {
    fn open(&self) {
        self.opened.call_once(|| {
            let Some(path) = &self.path else { return };
            let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
            // Otherwise messages stay where the scheduler's script sends them.
            _ = opened.map(rustix::stdio::dup2_stderr);
        });
    }

    fn say(&self, text: &str) {
        self.open();
        term::say(text);
    }
}
