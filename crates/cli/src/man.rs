//! `retake man`: manual pages, generated from the definition of the command line.

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;

use super::{Exit, Failure};
use crate::term;

/// Print the manual page, or write the pages of all commands into a directory
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write the pages
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// `definition` is the whole command line.
pub(super) fn man(args: &Args, definition: Command) -> Result<Exit, Failure> {
    match &args.directory {
        None => {
            let mut page = Vec::new();
            Man::new(definition).render(&mut page)?;
            term::data(&page)?;
        }
        Some(directory) => {
            let failed = |source| Failure::File {
                action: "write manual pages to",
                path: directory.clone(),
                source,
            };
            std::fs::create_dir_all(directory).map_err(failed)?;
            pages(definition, directory).map_err(failed)?;
        }
    }
    Ok(Exit::OK)
}

/// One page for each command, except internal ones. `help` gets none: it only prints the pages of the
/// others.
fn pages(command: Command, directory: &Path) -> io::Result<()> {
    let is_shown = |inner: &&Command| !inner.is_hide_set() && inner.get_name() != "help";
    for inner in command.get_subcommands().filter(is_shown) {
        pages(inner.clone(), directory)?;
    }
    Man::new(command).generate_to(directory)?;
    Ok(())
}
