//! The queue of a project: tasks that are run one after another.
//!
//! It is a small file next to the record, replaced atomically. The process that runs the queue
//! reads it again before each task, so it can be changed meanwhile. The results and costs of tasks
//! are in the record: the loops of one run of the queue name it in their plan.

mod plan;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use retake_runner::file_lock::{FileLock, LockError};
use retake_store::crash_point;
use retake_types::LoopId;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::plan::AgentStopReason;
use crate::workspace::{Name, WorkspaceDirectories, pretty};

pub use plan::{QueuePlan, QueueStep, QueueStopReason, TaskAllowance, TaskOutcome, TaskReport};

/// More than any queue needs.
const LARGEST: u64 = 16 << 20;

/// The common budget of one run of the queue, and what happens when a task fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueRules {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_time: Option<Duration>,
    pub stop_on_failure: bool,
}

/// A run of the queue that has not ended, or whose process died.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueRun {
    /// Names the run in the plans of its loops.
    pub id: String,
    pub started: Timestamp,
    #[serde(flatten)]
    pub rules: QueueRules,
}

/// One task of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedTask {
    pub name: String,
    pub added: Timestamp,
    #[serde(default)]
    pub options: TaskOptions,
    #[serde(default)]
    pub state: TaskState,
}

/// The options of a task, in addition to its workspace's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskOptions {
    /// Settings by path, such as `maxCost`, in the form of the configuration.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    /// Run it although it is complete.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TaskState {
    #[default]
    Waiting,
    /// It runs, or the process that ran it died.
    Running { since: Timestamp },
    Ended {
        #[serde(default)]
        since: Option<Timestamp>,
        at: Timestamp,
        #[serde(flatten)]
        end: TaskEnd,
    },
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TaskEnd {
    Stopped {
        reason: AgentStopReason,
        loop_id: Option<LoopId>,
    },
    /// Its task was complete already.
    AlreadyComplete,
    NotStarted {
        why: String,
    },
}

impl TaskEnd {
    /// The task is complete.
    pub fn completed(&self) -> bool {
        match self {
            Self::Stopped { reason, .. } => *reason == AgentStopReason::Completed,
            Self::AlreadyComplete => true,
            Self::NotStarted { .. } => false,
        }
    }

    pub fn failed(&self) -> bool {
        match self {
            Self::Stopped { reason, .. } => reason.exit_code(false) != Some(0),
            Self::AlreadyComplete => false,
            Self::NotStarted { .. } => true,
        }
    }
}

/// The whole queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueContent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<QueueRun>,
    /// In execution order.
    pub tasks: Vec<QueuedTask>,
}

#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} is not valid: {why}", .path.display())]
    Invalid { path: PathBuf, why: String },
    #[error("the queue is run by {holder}")]
    Held { holder: String },
    #[error("{0} is already in the queue")]
    Queued(String),
    #[error("{0} is not in the queue")]
    NotQueued(String),
    #[error("{0} runs now")]
    Runs(String),
}

/// The place of a project's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    dir: PathBuf,
}

/// The lock for running the queue, held until dropped.
#[derive(Debug)]
pub struct QueueLock(#[expect(dead_code, reason = "held, not read")] FileLock);

impl Queue {
    /// The queue of a directory of workspaces.
    pub fn of(directories: &WorkspaceDirectories) -> Self {
        Self {
            dir: match &directories.loop_state {
                // No workspace can have this name.
                Some(base) => base.join(format!(".queue-{}", directories.fingerprint())),
                None => directories.workspaces.join(".queue"),
            },
        }
    }

    /// The directory of its clock and requests.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn file(&self) -> PathBuf {
        self.dir.join("queue.json")
    }

    pub fn read(&self) -> Result<QueueContent, QueueError> {
        let path = self.file();
        let bytes = match files::read(&path, LARGEST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
            Err(error) => return Err(QueueError::Io { path, error }),
        };
        serde_json::from_slice(&bytes)
            .map_err(|error| QueueError::Invalid { path, why: error.to_string() })
    }

    /// Changes the queue, one process at a time. An error changes nothing.
    pub fn edit<T>(
        &self,
        change: impl FnOnce(&mut QueueContent) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        let _turn = self.take_turn()?;
        let mut content = self.read()?;
        let before = content.clone();
        let answer = change(&mut content)?;
        if content != before {
            let path = self.file();
            crash_point("loop: before a change of the queue");
            files::replace(&path, &pretty(&content)).map_err(at(&path))?;
            crash_point("loop: queue changed");
        }
        Ok(answer)
    }

    /// Waits for other processes that change the queue; a dead one does not block it.
    fn take_turn(&self) -> Result<File, QueueError> {
        self.make()?;
        let path = self.dir.join("edit.lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(at(&path))?;
        file.lock().map_err(at(&path))?;
        Ok(file)
    }

    fn make(&self) -> Result<(), QueueError> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(at(&self.dir))
    }

    /// Locks the queue for running.
    pub fn lock(&self) -> Result<QueueLock, QueueError> {
        self.make()?;
        match FileLock::acquire(&self.runner(), "retake agent queue run") {
            Ok(lock) => Ok(QueueLock(lock)),
            Err(LockError::Held { holder }) => Err(QueueError::Held { holder }),
            Err(LockError::Io { path, error }) => Err(QueueError::Io { path, error }),
        }
    }

    /// The current holder's description of itself.
    pub fn holder(&self) -> Option<String> {
        FileLock::holder(&self.runner())
    }

    fn runner(&self) -> PathBuf {
        self.dir.join("runner.lock")
    }

    /// Adds tasks at the end, or before all waiting ones. An ended task is queued again. Returns
    /// whether the queue is running and will run them.
    pub fn add(&self, tasks: Vec<QueuedTask>, first: bool) -> Result<bool, QueueError> {
        self.edit(|content| {
            for task in &tasks {
                match content.tasks.iter().find(|known| known.name == task.name) {
                    Some(QueuedTask { state: TaskState::Ended { .. }, .. }) | None => {}
                    Some(_) => return Err(QueueError::Queued(task.name.clone())),
                }
            }
            let named = |name: &str| tasks.iter().any(|task| task.name == name);
            content.tasks.retain(|known| !named(&known.name));
            let place = match first {
                true => content.tasks.iter().position(|task| task.state == TaskState::Waiting),
                false => None,
            };
            let place = place.unwrap_or(content.tasks.len());
            content.tasks.splice(place..place, tasks);
            Ok(self.holder().is_some())
        })
    }

    /// Removes a task from the queue; a running one stays.
    pub fn remove(&self, names: &[Name]) -> Result<(), QueueError> {
        let runs = self.holder().is_some();
        self.edit(|content| {
            for name in names {
                let name = name.as_str();
                match content.tasks.iter().find(|task| task.name == name) {
                    None => return Err(QueueError::NotQueued(name.to_owned())),
                    Some(QueuedTask { state: TaskState::Running { .. }, .. }) if runs => {
                        return Err(QueueError::Runs(name.to_owned()));
                    }
                    Some(_) => content.tasks.retain(|task| task.name != name),
                }
            }
            Ok(())
        })
    }

    /// Removes all ended tasks; returns their number.
    pub fn remove_ended(&self) -> Result<usize, QueueError> {
        self.edit(|content| {
            let before = content.tasks.len();
            content.tasks.retain(|task| !matches!(task.state, TaskState::Ended { .. }));
            Ok(before - content.tasks.len())
        })
    }

    /// Marks a waiting task as running; `false` if it no longer waits.
    pub(crate) fn begin_task(&self, name: &str, state: &TaskState) -> Result<bool, QueueError> {
        self.edit(|content| {
            let waits =
                |task: &&mut QueuedTask| task.name == name && task.state == TaskState::Waiting;
            let task = content.tasks.iter_mut().find(waits);
            Ok(task.map(|task| task.state = state.clone()).is_some())
        })
    }

    /// Sets the state of a task. A task that was removed meanwhile stays removed.
    pub fn set_state(&self, name: &str, state: &TaskState) -> Result<(), QueueError> {
        self.edit(|content| {
            if let Some(task) = content.tasks.iter_mut().find(|task| task.name == name) {
                task.state = state.clone();
            }
            Ok(())
        })
    }

    /// Requests that no further task starts.
    pub fn request_stop(&self) -> Result<(), QueueError> {
        self.make()?;
        let path = self.dir.join("stop");
        files::replace(&path, b"").map_err(at(&path))
    }

    pub fn is_stop_requested(&self) -> bool {
        self.dir.join("stop").symlink_metadata().is_ok()
    }

    /// Discards a stop request to an earlier run.
    pub fn forget_stop(&self) -> Result<(), QueueError> {
        let path = self.dir.join("stop");
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&path)(error)),
            _ => Ok(()),
        }
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> QueueError {
    let path = path.to_owned();
    move |error| QueueError::Io { path, error }
}
