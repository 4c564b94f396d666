//! `retake completions`: for the shells, from the one definition of the command line.

use clap::Command;
use clap_complete::{Shell, generate};

use super::{Exit, Failure};
use crate::term;

/// Print the completion script of a shell
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell to complete in
    #[arg(value_enum)]
    shell: Shell,
}

/// `definition` is the whole command line.
pub(super) fn completions(args: &Args, mut definition: Command) -> Result<Exit, Failure> {
    // Into memory first: the generator would panic at a closed pipe.
    let mut script = Vec::new();
    generate(args.shell, &mut definition, "retake", &mut script);
    term::data(&script)?;
    Ok(Exit::OK)
}
