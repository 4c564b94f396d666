//! The command line: one file per subcommand.

mod exec;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::term;

/// How the program ends.
pub(crate) enum Exit {
    Code(u8),
    /// By this signal, so that whoever waits for us sees that it was one.
    Signal(i32),
}

impl Exit {
    pub(crate) const OK: Self = Self::Code(0);
    pub(crate) const USAGE: Self = Self::Code(2);
    /// A refused `exec`, or retake's own failure in one.
    pub(crate) const REFUSED: Self = Self::Code(125);
}

/// Run it again, on the record: every command captured, limited, ended cleanly and recorded.
#[derive(Parser)]
#[command(name = "retake", version, max_term_width = 100)]
struct Cli {
    /// Keep the record in this directory instead of the project's own
    #[arg(long, global = true, value_name = "DIR", env = "RETAKE_STORE", hide_env_values = true)]
    store: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Exec(Box<exec::Args>),
}

pub(crate) fn main() -> Exit {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&typed) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &typed),
    };
    match cli.command {
        Command::Exec(args) => exec::exec(*args, cli.store.as_deref()),
    }
}

/// Help and versions are answers; anything else is a mistake, which `exec` answers in its own way.
fn usage(error: &clap::Error, typed: &[OsString]) -> Exit {
    // A closed stdout or stderr means that nobody reads it.
    let print = || _ = error.print();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        print();
        return Exit::OK;
    }
    let options: Vec<_> = typed.iter().take_while(|word| *word != "--").collect();
    let executes = ["exec", "again"].iter().any(|name| options.get(1).is_some_and(|w| *w == name))
        || options.iter().position(|word| *word == "exec").is_some_and(|at| {
            options[1..at].iter().all(|word| word.as_encoded_bytes().starts_with(b"--store"))
                || at == 3 && options[1] == "--store"
        });
    if !executes {
        print();
        return Exit::USAGE;
    }
    if options.iter().any(|word| *word == "--json") {
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        return exec::refuse_usage(message, typed);
    }
    print();
    Exit::REFUSED
}

/// The whole command line, for completions and manual pages.
#[expect(dead_code, reason = "used by the generators")]
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

/// Ends a command that could not do its work.
#[expect(dead_code, reason = "used by the commands that read the record")]
pub(crate) fn failed(message: &str) -> Exit {
    term::say(message);
    Exit::Code(1)
}
