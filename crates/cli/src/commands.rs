//! The command line: one file per subcommand.

pub(crate) mod again;
mod agent;
mod audit;
mod completions;
mod config;
mod crash;
mod doctor;
mod exec;
mod failure;
mod history;
mod init;
mod man;
mod matrix;
mod mcp;
mod run_one;
pub(crate) mod runs;
mod tour;
mod ui;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

pub(crate) use failure::Failure;

use retake_agent::driver::mock;

/// How the program ends.
pub(crate) enum Exit {
    Code(u8),
    /// By this signal, so that whoever waits for us sees that it was one.
    Signal(i32),
}

impl Exit {
    pub(crate) const OK: Self = Self::Code(0);
    /// Not found, broken, damaged: the answer is no.
    pub(crate) const FAILED: Self = Self::Code(1);
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

// Deferred: describing every option of every command costs a short run more than it gains.
#[derive(Subcommand)]
#[command(defer = true)]
enum Command {
    Exec(Box<exec::Args>),
    Runs(runs::Args),
    Agent(Box<agent::Args>),
    Matrix(matrix::Args),
    Crash(Box<crash::Args>),
    Mcp(mcp::Args),
    Again(again::Args),
    Tests(history::Args),
    Audit(audit::Args),
    Doctor(doctor::Args),
    Ui(ui::Args),
    Init(init::Args),
    Config(config::Args),
    Completions(completions::Args),
    Man(man::Args),
    Tour(tour::Args),
    #[command(name = "__mock-agent", hide = true)]
    MockAgent(MockAgent),
    #[command(name = "__run-one", hide = true)]
    RunOne(run_one::Args),
}

/// The agent of a dry run
#[derive(clap::Args)]
struct MockAgent {
    #[arg(last = true)]
    words: Vec<String>,
}

pub(crate) fn main() -> Exit {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&typed) {
        Ok(cli) => cli,
        Err(error) => return usage(error, &typed),
    };
    let store = cli.store.as_deref();
    let answered = match cli.command {
        Command::Exec(args) => return exec::exec(*args, store),
        Command::Again(args) => return again::again(&args, store),
        Command::Runs(args) => runs::runs(args, store),
        Command::Tests(args) => history::tests(&args, store),
        Command::Agent(args) => agent::agent(*args, store),
        Command::Matrix(args) => matrix::matrix(args, store),
        Command::Mcp(args) => mcp::mcp(args, store),
        Command::Crash(args) => crash::crash(*args, store),
        Command::MockAgent(args) => return mock::play(&args.words),
        Command::RunOne(args) => return run_one::run_one(&args),
        Command::Audit(args) => audit::audit(&args, store),
        Command::Doctor(args) => doctor::doctor(&args, store),
        Command::Ui(args) => ui::ui(&args, store),
        Command::Init(args) => init::init(&args),
        Command::Config(args) => config::config(&args, store),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => man::man(&args),
        Command::Tour(args) => tour::tour(&args),
    };
    answered.unwrap_or_else(|failure| failure.tell())
}

/// Help and versions are answers; anything else is a mistake, which `exec` answers in its own way.
fn usage(error: clap::Error, typed: &[OsString]) -> Exit {
    let error = in_full(error, typed);
    // A closed stdout or stderr means that nobody reads it.
    let print = || _ = error.print();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        print();
        return Exit::OK;
    }
    let options: Vec<_> = typed.iter().take_while(|word| *word != "--").collect();
    let executes = subcommand(&options).is_some_and(|name| name == "exec" || name == "again");
    if !executes {
        print();
        // So says the specification of agents.
        let agent = subcommand(&options).is_some_and(|name| name == "agent");
        return if agent { Exit::FAILED } else { Exit::USAGE };
    }
    if options.iter().any(|word| *word == "--json") {
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        return exec::refuse_usage(message, typed);
    }
    print();
    Exit::REFUSED
}

/// The first word that is neither an option nor the value of `--store`.
fn subcommand<'a>(options: &[&'a OsString]) -> Option<&'a OsString> {
    let mut words = options.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_encoded_bytes() {
            b"--store" => {
                words.next();
            }
            [b'-', ..] => {}
            _ => return Some(word),
        }
    }
    None
}

/// Help that lists commands needs what was deferred.
fn in_full(error: clap::Error, typed: &[OsString]) -> clap::Error {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            definition().try_get_matches_from(typed).err().unwrap_or(error)
        }
        _ => error,
    }
}

/// The whole command line, for help, completions and manual pages.
fn definition() -> clap::Command {
    let mut definition = Cli::command();
    definition.build();
    definition
}

/// A command line that retake itself makes, taken as if it were typed after `retake exec`.
fn exec_arguments(options: impl IntoIterator<Item = OsString>) -> Result<exec::Args, clap::Error> {
    let typed = ["retake".into(), "exec".into()].into_iter().chain(options);
    match Cli::try_parse_from(typed)?.command {
        Command::Exec(args) => Ok(*args),
        _ => unreachable!("it begins with exec"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        definition().debug_assert();
    }

    #[test]
    fn the_subcommand_is_found_behind_options() {
        let name = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            subcommand(&words.iter().collect::<Vec<_>>()).map(|w| w.to_string_lossy().into_owned())
        };
        assert_eq!(name("retake exec --json").as_deref(), Some("exec"));
        assert_eq!(name("retake --store exec again x").as_deref(), Some("again"));
        assert_eq!(name("retake --store=/x exec").as_deref(), Some("exec"));
        assert_eq!(name("retake --json"), None);
    }
}
