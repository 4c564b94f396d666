//! Restores the files of a checkpoint. The current files are saved first, so that nothing is lost
//! and a rollback can be undone; the intention is recorded first, so that an interrupted rollback
//! is finished or undone by the next.

use std::path::PathBuf;

use jiff::Timestamp;
use retake_types::loop_record::agent::Checkpoint;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{CheckpointChoice, CheckpointOwner};
use crate::files;
use crate::workspace::Workspace;

use super::git_checkpoints::{CheckpointError, GitCheckpoints};
use super::recorded_loop::KeptCheckpoint;

/// How many rollbacks the journal keeps.
const REMEMBERED: usize = 50;
const LARGEST_JOURNAL: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    #[error("there are no checkpoints")]
    NoCheckpoints,
    #[error("there is no checkpoint of {choice}; choose from {known}")]
    NoSuch { choice: CheckpointChoice, known: String },
    #[error("no rollback can be undone")]
    NothingToUndo,
    /// The last rollback was an undo; this repeats the undone one.
    #[error("the rollback was already undone")]
    AlreadyUndone { again: CheckpointChoice },
    #[error("no rollback was interrupted")]
    NothingToFinish,
    #[error("{}: {error}", .path.display())]
    Journal { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// The goal of a rollback.
#[derive(Clone, Debug)]
pub enum RollbackGoal {
    To(CheckpointChoice),
    /// Restore the files from before the last rollback.
    Undo,
    /// Finish the interrupted one.
    Finish,
}

/// One rollback in the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalEntry {
    pub at: Timestamp,
    /// The files when it began.
    pub before: Checkpoint,
    pub target: Checkpoint,
    /// The target of an undo: the files before the first of consecutive interrupted rollbacks.
    undo: Checkpoint,
    done: bool,
    /// The target of the rollback that this one undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    undoes: Option<Checkpoint>,
}

/// The rollbacks of one workspace, oldest first.
pub struct RollbackJournal {
    path: PathBuf,
    entries: Vec<JournalEntry>,
}

impl RollbackJournal {
    pub fn of(workspace: &Workspace) -> Result<Self, RollbackError> {
        let path = workspace.loop_state_dir().join("rollbacks.json");
        let entries = match files::read(&path, LARGEST_JOURNAL) {
            // An unreadable journal counts as empty: it is only needed to finish and to undo.
            Ok(content) => serde_json::from_slice(&content).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(RollbackError::Journal { path, error }),
        };
        Ok(Self { path, entries })
    }

    /// The last one, if it was interrupted.
    pub fn interrupted(&self) -> Option<&JournalEntry> {
        self.entries.last().filter(|last| !last.done)
    }

    /// The files saved before rollbacks, which are checkpoints as well.
    pub fn checkpoints(&self) -> impl Iterator<Item = KeptCheckpoint> {
        self.entries
            .iter()
            .map(|entry| KeptCheckpoint { at: entry.at, checkpoint: entry.before.clone() })
    }

    fn save(&self) -> Result<(), RollbackError> {
        let content = serde_json::to_vec(&self.entries).expect("plain data");
        files::replace(&self.path, &content)
            .map_err(|error| RollbackError::Journal { path: self.path.clone(), error })
    }

    /// All checkpoints to choose from, oldest first.
    fn all(&self, recorded: &[KeptCheckpoint]) -> Vec<Checkpoint> {
        let mut all: Vec<KeptCheckpoint> = recorded.to_vec();
        all.extend(self.checkpoints());
        all.sort_by_key(|kept| kept.at);
        all.into_iter().map(|kept| kept.checkpoint).collect()
    }

    fn target(
        &self,
        goal: &RollbackGoal,
        recorded: &[KeptCheckpoint],
    ) -> Result<Checkpoint, RollbackError> {
        match goal {
            RollbackGoal::Undo => {
                let last = self.entries.last().ok_or(RollbackError::NothingToUndo)?;
                match &last.undoes {
                    // An interrupted one can be reverted.
                    Some(target) if last.done => Err(RollbackError::AlreadyUndone {
                        again: choice_of(target, &self.all(recorded)),
                    }),
                    _ => Ok(last.undo.clone()),
                }
            }
            RollbackGoal::Finish => {
                let last = self.interrupted().ok_or(RollbackError::NothingToFinish)?;
                Ok(last.target.clone())
            }
            RollbackGoal::To(choice) => {
                let all = self.all(recorded);
                if all.is_empty() {
                    return Err(RollbackError::NoCheckpoints);
                }
                choice.find(&all).cloned().ok_or_else(|| RollbackError::NoSuch {
                    choice: choice.clone(),
                    known: known(&all),
                })
            }
        }
    }

    /// Restores the files of a checkpoint.
    pub fn roll_back(
        &mut self,
        git: &mut GitCheckpoints<'_>,
        owner: &CheckpointOwner,
        goal: &RollbackGoal,
        recorded: &[KeptCheckpoint],
    ) -> Result<JournalEntry, RollbackError> {
        let target = self.target(goal, recorded)?;
        let at = Timestamp::now();
        let maker = format!("rollback-{}", at.as_microsecond());
        let before = git.keep_before(owner, &maker, &target)?;
        let interrupted = self.interrupted();
        // Back to the files of the rollback, which can then be undone.
        let reverted =
            interrupted.filter(|last| last.undoes.is_some() && matches!(goal, RollbackGoal::Undo));
        let undo = match (reverted, interrupted) {
            (Some(reverted), _) => reverted.target.clone(),
            // An undo must not lead to a partial rollback.
            (None, Some(interrupted)) => interrupted.undo.clone(),
            (None, None) => before.clone(),
        };
        let undoes = match goal {
            RollbackGoal::Undo if reverted.is_none() => {
                self.entries.last().map(|last| last.target.clone())
            }
            RollbackGoal::Finish => interrupted.and_then(|last| last.undoes.clone()),
            _ => None,
        };
        let entry = JournalEntry { at, before, target, undo, done: false, undoes };
        self.entries.push(entry.clone());
        let excess = self.entries.len().saturating_sub(REMEMBERED);
        self.entries.drain(..excess);
        self.save()?;
        git.restore(&entry.target)?;
        if let Some(last) = self.entries.last_mut() {
            last.done = true;
        }
        self.save()?;
        Ok(entry)
    }
}

/// Selects a checkpoint by its number, unless that selects another one.
fn choice_of(checkpoint: &Checkpoint, all: &[Checkpoint]) -> CheckpointChoice {
    let number = CheckpointChoice::Iteration(checkpoint.number);
    match number.find(all) == Some(checkpoint) {
        true => number,
        false => CheckpointChoice::Commit(checkpoint.commit.clone()),
    }
}

/// `0, 1, 2, 5`: the iterations that have a checkpoint.
fn known(all: &[Checkpoint]) -> String {
    let mut numbers: Vec<u32> = all
        .iter()
        .filter(|one| {
            CheckpointChoice::Iteration(one.number).find(std::slice::from_ref(one)).is_some()
        })
        .map(|one| one.number)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
