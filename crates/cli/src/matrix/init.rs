//! `retake matrix init`: writes a first configuration.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use retake_matrix::config::{FILES, TemplatePlace, template};
use retake_runner::checkout;
use serde::Serialize;

use super::open;
use crate::{Exit, Failure, term};

/// Write matrix.yml, and create the project that records the results
#[derive(clap::Args)]
pub(super) struct Args {
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    /// Print what was created as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    created: Vec<PathBuf>,
}

pub(super) fn init(args: &Args) -> Result<Exit, Failure> {
    let path = open::here()?.join(FILES[0]);
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    if args.force {
        options.truncate(true)
    } else {
        options.create_new(true)
    };
    let place = place(&open::here()?);
    let template = template(&place);
    options.open(&path).and_then(|mut file| file.write_all(template.as_bytes())).map_err(
        |source| match source.kind() {
            ErrorKind::AlreadyExists => {
                Failure::Refused(format!("{} exists; --force overwrites it", path.display()))
            }
            _ => Failure::File { action: "write", path: path.clone(), source },
        },
    )?;
    let mut created = vec![path];
    created.extend(open::make_project()?);
    if args.json {
        term::document(&Document { created })?;
    } else {
        created.iter().for_each(|path| term::say(&format!("created {}", path.display())));
        let keys = match place {
            TemplatePlace::Repository { .. } => "command and code.refs",
            TemplatePlace::NoRepository => "command",
        };
        term::say(&format!("next: set {keys} in {}, then `retake matrix run`", FILES[0]));
    }
    Ok(Exit::OK)
}

fn place(here: &Path) -> TemplatePlace {
    if !here.ancestors().any(|directory| directory.join(".git").exists()) {
        return TemplatePlace::NoRepository;
    }
    let commit = || checkout::checkout(here).sha;
    let checked_out = checkout::branch(here).or_else(commit);
    TemplatePlace::Repository { checked_out: checked_out.unwrap_or_else(|| "HEAD".to_owned()) }
}
