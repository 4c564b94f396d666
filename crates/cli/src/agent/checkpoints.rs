//! Checkpoints: lists and compares them, rolls back to one, and removes them with their workspace.

use std::io::IsTerminal;

use jiff::Timestamp;
use retake_agent::checkpoint::{CheckpointChoice, CheckpointOwner};
use retake_agent::driver::git_checkpoints::{CheckpointError, GitCheckpoints};
use retake_agent::driver::recorded_loop::{self, KeptCheckpoint};
use retake_agent::driver::rollback::{RollbackGoal, RollbackJournal};
use retake_agent::workspace::Workspace;
use retake_runner::worker::Worker;
use retake_types::loop_record::agent::{Checkpoint, CheckpointTime};
use serde::Serialize;

use super::project::AgentProject;
use super::workspaces::held;
use super::{messages, refused};
use crate::term::{Column, Palette, Table};
use crate::{Exit, Failure, term};

/// How many digits of a commit are shown.
const SHORT: usize = 12;

/// All known checkpoints of a workspace, oldest first.
fn all(workspace: &Workspace, project: &AgentProject) -> Result<Vec<KeptCheckpoint>, Failure> {
    let mut all = recorded(workspace, project)?;
    let journal = RollbackJournal::of(workspace).map_err(refused)?;
    all.extend(journal.checkpoints());
    all.sort_by_key(|kept| kept.at);
    Ok(all)
}

/// The checkpoints that loops made.
fn recorded(workspace: &Workspace, project: &AgentProject) -> Result<Vec<KeptCheckpoint>, Failure> {
    let metadata = workspace.metadata().map_err(refused)?;
    let loops = match project.project.read_store() {
        Ok(store) => recorded_loop::read(&store, workspace, &metadata)?,
        Err(retake_store::Error::NoStore { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    Ok(loops.into_iter().flat_map(|one| one.checkpoints).collect())
}

fn owner(workspace: &Workspace) -> Result<CheckpointOwner, Failure> {
    let metadata = workspace.metadata().map_err(refused)?;
    Ok(recorded_loop::checkpoint_owner(workspace, &metadata))
}

/// Runs git with the workspace locked.
fn with_git<T>(
    workspace: &Workspace,
    project: &AgentProject,
    command: &str,
    work: impl FnOnce(&mut GitCheckpoints<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut worker = project.worker()?;
    let lock = held(workspace, command)?;
    let answered = GitCheckpoints::new(&mut worker, &project.root, workspace.loop_state_dir())
        .map_err(failed)
        .and_then(|mut git| work(&mut git));
    drop(lock);
    drop(worker.end());
    answered
}

fn failed(error: CheckpointError) -> Failure {
    refused(messages::checkpoint_error(&error))
}

/// List the checkpoints of a workspace, and what changed from one to the next
#[derive(clap::Args)]
pub(super) struct List {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// Print an array as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    #[serde(flatten)]
    kept: KeptCheckpoint,
    /// Files that differ from the previous checkpoint.
    files: u64,
    added: u64,
    removed: u64,
}

pub(super) fn list(args: &List, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let all = all(&workspace, project)?;
    if all.is_empty() {
        if args.json {
            term::document(&Vec::<Row>::new())?;
        } else {
            term::say(&messages::no_checkpoints(workspace.name()));
        }
        return Ok(Exit::OK);
    }
    let rows = with_git(&workspace, project, "checkpoints", |git| {
        let mut rows: Vec<Row> = Vec::new();
        for kept in all {
            let before = rows.last().map(|row| row.kept.checkpoint.tree.clone());
            // A checkpoint that was removed from the repository is listed too, without counts.
            let counts = before.and_then(|before| git.counts(&before, &kept.checkpoint.tree).ok());
            let (files, added, removed) = counts.unwrap_or_default();
            rows.push(Row { kept, files, added, removed });
        }
        Ok(rows)
    })?;
    if args.json {
        term::document(&rows)?;
        return Ok(Exit::OK);
    }
    let terminal = std::io::stdout().is_terminal();
    let now = Timestamp::now();
    let mut table = Table::new([
        Column::new("CHECKPOINT"),
        Column::new("COMMIT").spare(2),
        Column::new(if terminal { "WHEN" } else { "TIME" }).spare(1),
        Column::new("FILES").right(),
        Column::new("LINES"),
    ]);
    for row in &rows {
        let lines = match (row.added, row.removed) {
            (0, 0) => String::new(),
            (added, removed) => format!("+{added} -{removed}"),
        };
        table.row([
            name_of(&row.kept.checkpoint).into(),
            row.kept.checkpoint.commit[..SHORT].to_owned().into(),
            match terminal {
                true => term::ago(row.kept.at, now).into(),
                false => term::moment(row.kept.at).into(),
            },
            row.files.to_string().into(),
            lines.into(),
        ]);
    }
    term::page(&table.render(term::width(), Palette::of_stdout()))?;
    Ok(Exit::OK)
}

/// `start`, `3`, `before a rollback to 1`.
fn name_of(checkpoint: &Checkpoint) -> String {
    match checkpoint.time {
        CheckpointTime::Start if checkpoint.number == 0 => "0 (start)".to_owned(),
        CheckpointTime::Start => format!("start after {}", checkpoint.number),
        CheckpointTime::Iteration => checkpoint.number.to_string(),
        CheckpointTime::Rollback => "before a rollback".to_owned(),
    }
}

/// Show what iterations changed
#[derive(clap::Args)]
pub(super) struct Diff {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// An iteration, or two checkpoints as N..M [default: everything since the start]
    #[arg(value_name = "N[..M]")]
    range: Option<String>,
}

pub(super) fn diff(args: &Diff, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let all: Vec<Checkpoint> =
        all(&workspace, project)?.into_iter().map(|kept| kept.checkpoint).collect();
    let find = |text: &str| -> Result<&Checkpoint, Failure> {
        let choice: CheckpointChoice = text.parse().map_err(refused)?;
        let found = choice.find(&all);
        found.ok_or_else(|| refused(messages::no_such_checkpoint(workspace.name(), &choice)))
    };
    let made_by_loops =
        || all.iter().filter(|checkpoint| checkpoint.time != CheckpointTime::Rollback);
    let (Some(first), Some(last)) = (made_by_loops().next(), made_by_loops().next_back()) else {
        return Err(refused(messages::no_checkpoints(workspace.name())));
    };
    let (from, to) = match args.range.as_deref().map(|range| (range, range.split_once(".."))) {
        None => (first, last),
        Some((_, Some((from, to)))) => (find(from)?, find(to)?),
        Some((one, None)) => {
            let to = find(one)?;
            let place = all.iter().rposition(|checkpoint| checkpoint == to).unwrap_or(0);
            let before = all[..place].iter().rev().find(|c| c.time != CheckpointTime::Rollback);
            let before = before.ok_or_else(|| refused(messages::nothing_before(one)))?;
            (before, to)
        }
    };
    let colour = Palette::of_stdout().is_on();
    let text = with_git(&workspace, project, "diff", |git| {
        git.diff(&from.tree, &to.tree, colour).map_err(failed)
    })?;
    term::page(&String::from_utf8_lossy(&text))?;
    Ok(Exit::OK)
}

/// Restore the project's files from a checkpoint; the current files are saved as a checkpoint first
#[derive(clap::Args)]
pub(super) struct Rollback {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// The iteration, 0 for the start, or a commit that `agent checkpoints` lists
    #[arg(long, value_name = "N", conflicts_with = "undo")]
    to: Option<CheckpointChoice>,
    /// Undo the last rollback
    #[arg(long)]
    undo: bool,
}

pub(super) fn rollback(args: &Rollback, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let goal = match (&args.to, args.undo) {
        (Some(choice), _) => RollbackGoal::To(choice.clone()),
        (None, true) => RollbackGoal::Undo,
        // Without an option this can only finish a rollback that was interrupted.
        (None, false) => RollbackGoal::Finish,
    };
    let recorded = recorded(&workspace, project)?;
    let owner = owner(&workspace)?;
    let done = with_git(&workspace, project, "rollback", |git| {
        RollbackJournal::of(&workspace)
            .and_then(|mut journal| journal.roll_back(git, &owner, &goal, &recorded))
            .map_err(|error| refused(messages::rollback_error(&error, workspace.name())))
    })?;
    let target = &done.target;
    let what = match target.time {
        CheckpointTime::Iteration => format!("as after iteration {}", target.number),
        CheckpointTime::Start => format!("as before iteration {}", target.number + 1),
        CheckpointTime::Rollback => "as before the rollback".to_owned(),
    };
    term::data(format!("✓ Files are {what} ({})\n", &target.commit[..SHORT]).as_bytes())?;
    if !target.not_covered.is_empty() {
        let list = target.not_covered.join(", ");
        term::data(format!("  Left as they are: {list} (repositories of their own)\n").as_bytes())?;
    }
    let name = &args.name;
    // Another `--undo` would repeat the rollback that was just undone.
    if !args.undo {
        term::data(format!("→ Undo: retake agent rollback {name} --undo\n").as_bytes())?;
    }
    Ok(Exit::OK)
}

/// Removes the checkpoints of workspaces that are deleted.
pub(super) struct Removal<'a> {
    project: &'a AgentProject,
    /// `None` without a repository, where there is nothing to remove.
    worker: Option<Worker>,
}

impl<'a> Removal<'a> {
    /// Forks a process: call this while nothing is locked.
    pub(super) fn of(project: &'a AgentProject) -> Result<Self, Failure> {
        if !project.root.ancestors().any(|dir| dir.join(".git").exists()) {
            return Ok(Self { project, worker: None });
        }
        Ok(Self { project, worker: Some(project.worker()?) })
    }

    /// Returns how many checkpoints were removed. An error of git is reported and does not keep the
    /// workspace itself from being removed.
    pub(super) fn remove(&mut self, owner: &CheckpointOwner) -> usize {
        let Some(worker) = &mut self.worker else { return 0 };
        // The workspace, or another copy of it, may still exist and need them.
        if recorded_loop::has_checkpoint_owner(&self.project.directories, owner) {
            return 0;
        }
        let Some(scratch) = &self.project.directories.loop_state else { return 0 };
        let removed = GitCheckpoints::new(worker, &self.project.root, scratch)
            .and_then(|mut git| git.remove(owner));
        removed.unwrap_or_else(|error| {
            term::say(&format!("checkpoints of {} were not removed: {error}", owner.workspace));
            0
        })
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            drop(worker.end());
        }
    }
}
