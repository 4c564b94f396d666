//! Archived workspaces.

use jiff::Timestamp;
use retake_agent::driver::recorded_loop;
use retake_agent::workspace::Name;

use super::checkpoints::Removal;
use super::project::{AgentProject, named};
use super::refused;
use super::workspaces::{agreed, gone, held};
use crate::term::{Column, Palette, Table};
use crate::{Exit, Failure, term};

/// Archive and restore workspaces
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Archive a workspace
    Save {
        /// The workspace
        #[arg(value_name = "WORKSPACE")]
        workspace: String,
        /// Keep the workspace as well
        #[arg(long)]
        keep: bool,
    },
    /// List archived workspaces
    List {
        /// Print an array as JSON
        #[arg(long)]
        json: bool,
    },
    /// Restore an archived workspace
    Restore {
        /// The archived workspace, as `archive list` names it
        #[arg(value_name = "ARCHIVE")]
        archive: String,
        /// The workspace's new name [default: its name when archived]
        #[arg(value_name = "WORKSPACE")]
        workspace: Option<String>,
    },
    /// Show an archived workspace
    Show {
        /// The archived workspace, as `archive list` names it
        #[arg(value_name = "ARCHIVE")]
        archive: String,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete an archived workspace
    #[command(alias = "rm")]
    Delete {
        /// The archived workspace, as `archive list` names it
        #[arg(value_name = "ARCHIVE")]
        archive: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        force: bool,
    },
}

/// The archive of this name, or the only one whose name begins with it.
fn unique(text: &str, project: &AgentProject) -> Result<Name, Failure> {
    let name = named(text)?;
    if project.directories.archived(&name).is_ok() {
        return Ok(name);
    }
    let all = project.directories.archives().map_err(refused)?;
    let names: Vec<&str> = all.iter().map(|archived| archived.archive_name.as_str()).collect();
    let found: Vec<&str> = names.into_iter().filter(|name| name.starts_with(text)).collect();
    match found.as_slice() {
        [one] => named(one),
        [] => Err(refused(format!(
            "Archive not found: {text}\nhint: `retake agent archive list` shows the archives"
        ))),
        many => Err(refused(format!(
            "{text} is the beginning of several archives: {}; write more of the name",
            many.join(", ")
        ))),
    }
}

pub(super) fn archive(command: Command, project: &AgentProject) -> Result<Exit, Failure> {
    let directories = &project.directories;
    match command {
        Command::Save { workspace, keep } => {
            let workspace = project.workspace(&workspace)?;
            let lock = held(&workspace, "archive save")?;
            let archived =
                directories.archive(&workspace, Timestamp::now(), keep).map_err(refused)?;
            drop(lock);
            let archive = &archived.archive_name;
            term::data(format!("✓ Archived as {archive}\n").as_bytes())?;
            if !keep {
                let text = format!(
                    "  The workspace was moved to the archive and is no longer listed (--keep leaves it in place)\n\
                     → Restore it: retake agent archive restore {archive}\n"
                );
                term::data(text.as_bytes())?;
            }
        }
        Command::List { json } => {
            let all = directories.archives().map_err(refused)?;
            if json {
                term::document(&all)?;
            } else if all.is_empty() {
                term::say("nothing was archived");
            } else {
                let mut table = Table::new([
                    Column::new("ARCHIVE"),
                    Column::new("WORKSPACE"),
                    Column::new("ARCHIVED"),
                ]);
                let now = Timestamp::now();
                for archived in all {
                    table.row([
                        archived.archive_name.into(),
                        archived.original_name.into(),
                        term::ago(archived.archived_at, now).into(),
                    ]);
                }
                term::page(&table.render(term::width(), Palette::of_stdout()))?;
            }
        }
        Command::Restore { archive, workspace } => {
            let archive = unique(&archive, project)?;
            let workspace = workspace.as_deref().map(named).transpose()?;
            let restored = directories.restore(&archive, workspace.as_ref()).map_err(refused)?;
            term::data(format!("✓ Workspace restored: {}\n", restored.name()).as_bytes())?;
        }
        Command::Show { archive, json } => {
            let archived = directories.archived(&unique(&archive, project)?).map_err(refused)?;
            if json {
                term::document(&archived)?;
            } else {
                let text = format!(
                    "archive     {}\nworkspace   {}\narchived    {}\nfrom        {}\n",
                    archived.archive_name,
                    archived.original_name,
                    archived.archived_at,
                    archived.archived_from.display()
                );
                term::data(text.as_bytes())?;
            }
        }
        Command::Delete { archive, force } => {
            let name = named(&archive)?;
            directories.archived(&name).map_err(refused)?;
            if force || agreed(&format!("Remove archive {name} for good?"))? {
                let mut removal = Removal::of(project)?;
                let owner = recorded_loop::archived_checkpoint_owner(directories, &name);
                directories.delete_archive(&name).map_err(refused)?;
                if let Some(owner) = owner {
                    gone(removal.remove(&owner))?;
                }
                term::data(format!("✓ Archive removed: {name}\n").as_bytes())?;
            }
        }
    }
    Ok(Exit::OK)
}
