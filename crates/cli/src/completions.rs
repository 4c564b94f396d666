//! `retake completions`: generated from the definition of the command line.

use std::path::PathBuf;

use clap::Command;
use clap_complete::{Shell, generate};

use super::{Exit, Failure};
use crate::term;

/// Print the completion script of a shell, or install it
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    /// The shell to complete in
    #[arg(value_enum, required = true)]
    shell: Option<Shell>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Install the script for bash, zsh or fish, in the user's own directories
    Install {
        /// The shell to complete in [default: from SHELL]
        #[arg(value_enum)]
        shell: Option<Shell>,
    },
}

/// `definition` is the whole command line.
pub(super) fn completions(args: &Args, definition: Command) -> Result<Exit, Failure> {
    if let Some(Action::Install { shell }) = &args.action {
        let shell = shell.or_else(Shell::from_env).ok_or_else(|| {
            Failure::Usage("SHELL names an unknown shell; choose bash, zsh or fish".into())
        })?;
        return install(shell, &script(shell, definition));
    }
    if let Some(shell) = args.shell {
        term::data(&script(shell, definition))?;
    }
    Ok(Exit::OK)
}

fn script(shell: Shell, mut definition: Command) -> Vec<u8> {
    // Into memory first: the generator panics if the pipe is closed.
    let mut script = Vec::new();
    generate(shell, &mut definition, "retake", &mut script);
    script
}

/// Where a shell looks for a user's scripts, and what else it needs.
fn destination(shell: Shell) -> Result<(PathBuf, &'static str), Failure> {
    let home = std::env::home_dir()
        .filter(|home| home.is_absolute())
        .ok_or_else(|| Failure::Refused("there is no home directory; set HOME".into()))?;
    let below = |variable: &str, default: &str| {
        let given = std::env::var_os(variable).map(PathBuf::from);
        given.filter(|path| path.is_absolute()).unwrap_or_else(|| home.join(default))
    };
    match shell {
        Shell::Bash => Ok((
            below("XDG_DATA_HOME", ".local/share").join("bash-completion/completions/retake"),
            "new shells load it if the package bash-completion is installed",
        )),
        Shell::Zsh => Ok((
            below("ZDOTDIR", "").join(".zfunc/_retake"),
            "new shells load it if .zshrc has, before compinit: fpath+=(${ZDOTDIR:-$HOME}/.zfunc)",
        )),
        Shell::Fish => Ok((
            below("XDG_CONFIG_HOME", ".config").join("fish/completions/retake.fish"),
            "new shells load it",
        )),
        other => Err(Failure::Usage(format!(
            "there is no directory for scripts of {other}; `retake completions {other}` prints the script"
        ))),
    }
}

fn install(shell: Shell, script: &[u8]) -> Result<Exit, Failure> {
    let (path, then) = destination(shell)?;
    let failed = |source| Failure::File { action: "write", path: path.clone(), source };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    std::fs::write(&path, script).map_err(failed)?;
    term::data(format!("{}\n{then}\n", path.display()).as_bytes())?;
    Ok(Exit::OK)
}
