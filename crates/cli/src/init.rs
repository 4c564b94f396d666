//! `retake init`: makes a directory a project.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use retake_runner::notice::Notice;
use retake_runner::project::Project;
use retake_runner::project_identity;
use retake_types::config::commented_defaults;
use serde::Serialize;

use super::{Exit, Failure};
use crate::{context, term};

/// Files to keep out of version control. Instructions, prompts, templates and logs are for the user to
/// commit.
const IGNORE: &str = "\
# Data, locks and caches; everything else here is yours to commit.
/data
/data.moved/
/matrix-setup/
/matrix.lock
/tmp/
/worktrees/
.lock
";

/// Make the current directory a project: .agent/ with commented default settings
///
/// Runs below it are recorded in .agent/data, or in a git repository in its git directory. Earlier
/// runs below it are copied there.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print what was created as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    created: Vec<PathBuf>,
}

pub(super) fn init(args: &Args) -> Result<Exit, Failure> {
    let here = std::env::current_dir().map_err(|source| Failure::File {
        action: "find",
        path: PathBuf::from("."),
        source,
    })?;
    // Refuses an .agent/ that belongs to someone else.
    let before = Project::find(&here, None)?;
    let created = make(&here)?;
    let moves = Project::find(&here, None)?.store().ok() != before.store().ok();
    let outer = before.root.filter(|root| *root != here && moves);
    if args.json {
        term::document(&Document { created })?;
    } else {
        for path in &created {
            term::say(&format!("created {}", path.display()));
        }
        if let Some(outer) = outer {
            term::say(&format!(
                "runs below this directory are no longer recorded in {}",
                outer.join(".agent").display()
            ));
        }
    }
    Ok(Exit::OK)
}

/// Makes a directory a project, and copies earlier runs below it. Returns the files and directories that
/// were created.
pub(super) fn make(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let agent = root.join(".agent");
    fs::create_dir_all(&agent).map_err(failed("create", &agent))?;
    let file = agent.join("config.yml");
    if !create(&file, &commented_defaults())? {
        return Err(Failure::Refused(format!(
            "this is already a project: {} exists; edit it, or remove it first",
            file.display()
        )));
    }
    let mut created = vec![file];
    let ignore = agent.join(".gitignore");
    if create(&ignore, IGNORE)? {
        created.push(ignore);
    }
    // Identifies the project in the team's database if it has no remote repository.
    created.extend(project_identity::make_id(root).map_err(failed("create", &agent))?);
    let notify = context::notify();
    if let Err(error) = Project::find(root, None)?.take_over_earlier(&notify) {
        notify(Notice::NotTakenOver(error));
    }
    Ok(created)
}

/// `false` if a file of that name exists.
fn create(path: &Path, text: &str) -> Result<bool, Failure> {
    let opened = OpenOptions::new().write(true).create_new(true).open(path);
    match opened.and_then(|mut file| file.write_all(text.as_bytes())) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed("create", path)(error)),
    }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Failure {
    let path = path.to_owned();
    move |source| Failure::File { action, path: path.clone(), source }
}
