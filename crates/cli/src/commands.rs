//! The command line: one file per subcommand.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser, Subcommand};

#[cfg(feature = "mcp")]
use crate::mcp;
#[cfg(feature = "slurm")]
use crate::run_one;
#[cfg(feature = "web")]
use crate::ui;
use crate::{
    again, agent, audit, build, completions, config, crash, doctor, exec, help, init, invoked_as,
    man, matrix, report_runs, runs, self_test, term, test_history, tour, usage_advice,
};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// How the program ends.
pub(crate) enum Exit {
    Code(u8),
    /// End by this signal, so that the parent process sees it.
    Signal(i32),
}

impl Exit {
    pub(crate) const OK: Self = Self::Code(0);
    /// Not found, broken or damaged: a negative answer.
    pub(crate) const FAILED: Self = Self::Code(1);
    pub(crate) const USAGE: Self = Self::Code(2);
    /// `exec` was refused, or retake itself failed in it.
    pub(crate) const REFUSED: Self = Self::Code(125);
}

/// Run it again, on the record: run commands under control, and find, compare and repeat every run.
#[derive(Parser)]
#[command(
    name = "retake",
    version,
    long_version = build::LONG_VERSION,
    disable_help_subcommand = true,
    after_help = help::topics()
)]
struct Cli {
    /// Keep the record in this directory instead of the project's own
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "RETAKE_STORE",
        hide_env_values = true,
        value_parser = OsStringValueParser::new().map(PathBuf::from)
    )]
    store: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

// Deferred: building the definition of every option of every command costs a short run more than it gains.
#[derive(Subcommand)]
#[command(defer = true)]
enum Command {
    Exec(Box<exec::Args>),
    Runs(runs::Args),
    Agent(Box<agent::Args>),
    Matrix(matrix::Args),
    Crash(Box<crash::Args>),
    #[cfg(feature = "mcp")]
    Mcp(mcp::Args),
    Again(again::Args),
    Tests(test_history::Args),
    Audit(audit::Args),
    Doctor(doctor::Args),
    #[cfg(feature = "web")]
    Ui(ui::Args),
    Init(init::Args),
    Config(config::Args),
    Completions(completions::Args),
    Man(man::Args),
    Tour(tour::Args),
    SelfTest(self_test::Args),
    Help(help::Args),
    #[command(name = "__mock-agent", hide = true)]
    MockAgent(MockAgent),
    #[command(name = "__report-runs", hide = true)]
    ReportRuns(report_runs::Args),
    #[cfg(feature = "slurm")]
    #[command(name = "__run-one", hide = true)]
    RunOne(run_one::Args),
}

/// The agent of a dry run.
#[derive(clap::Args)]
struct MockAgent {
    #[arg(last = true)]
    words: Vec<String>,
}

impl Cli {
    /// Reads the command line. A plain `retake exec`, by far the most frequent command, does not wait for
    /// clap, and neither does a plain `retake runs list` or a task of a scheduler.
    fn read(typed: &[OsString]) -> Result<Self, clap::Error> {
        Self::read_directly(typed).map_or_else(|| Self::try_parse_from(typed), Ok)
    }

    /// A command line that can be read without clap.
    fn read_directly(typed: &[OsString]) -> Option<Self> {
        let (_, words) = typed.split_first()?;
        // `--store` may also precede the command.
        let (named, words) = match words {
            [option, directory, words @ ..] if option == "--store" => {
                (vec![option.clone(), directory.clone()], words)
            }
            words => (Vec::new(), words),
        };
        let (command, store) = match words {
            [exec, words @ ..] if exec == "exec" => {
                let (args, store) = exec::Args::read_directly(&[&named, words].concat())?;
                (Command::Exec(Box::new(args)), store)
            }
            [runs, words @ ..] if runs == "runs" => {
                let args = runs::Args::read_directly(words)?;
                (Command::Runs(args), directory(&named)?)
            }
            #[cfg(feature = "slurm")]
            [run_one, words @ ..] if run_one == "__run-one" => {
                (Command::RunOne(run_one::Args::read_directly(words)?), directory(&named)?)
            }
            _ => return None,
        };
        let store = store.or_else(|| std::env::var_os("RETAKE_STORE")).map(PathBuf::from);
        Some(Self { store, command })
    }
}

/// The directory after `--store`, if it is given. A value that is empty or looks like an option is left
/// for clap to refuse.
fn directory(named: &[OsString]) -> Option<Option<OsString>> {
    let Some(directory) = named.get(1) else { return Some(None) };
    let plain = !directory.is_empty() && !directory.as_encoded_bytes().starts_with(b"-");
    plain.then(|| Some(directory.clone()))
}

pub(crate) fn main() -> Exit {
    let typed = invoked_as::in_full(std::env::args_os().collect());
    let cli = match Cli::read(&typed) {
        Ok(cli) => cli,
        Err(error) => return usage(error, &typed),
    };
    // An empty variable counts as unset; an empty option is an error.
    let store = cli.store.as_deref().filter(|store| !store.as_os_str().is_empty());
    let unset = std::env::var_os("RETAKE_STORE").is_some_and(|value| value.is_empty());
    if cli.store.is_some() && store.is_none() && !unset {
        return usage(
            Cli::command().error(ErrorKind::InvalidValue, "--store: name a directory"),
            &typed,
        );
    }
    match cli.command {
        Command::Exec(args) => exec::exec(*args, store),
        Command::Runs(args) => runs::runs(args, store).unwrap_or_else(|failure| failure.tell()),
        other => carry_out(other, store),
    }
}

/// Every other command. A separate function keeps their values off the stack of a plain `exec`.
#[inline(never)]
fn carry_out(command: Command, store: Option<&Path>) -> Exit {
    let answered = match command {
        // Handled by the caller.
        Command::Exec(args) => return exec::exec(*args, store),
        Command::Runs(args) => runs::runs(args, store),
        Command::Again(args) => return again::again(&args, store),
        Command::Tests(args) => test_history::tests(&args, store),
        Command::Agent(args) => agent::agent(*args, store),
        Command::Matrix(args) => matrix::matrix(args, store),
        #[cfg(feature = "mcp")]
        Command::Mcp(args) => mcp::mcp(args, store),
        Command::Crash(args) => crash::crash(*args, store),
        Command::MockAgent(args) => return agent::mock(&args.words),
        Command::ReportRuns(args) => report_runs::report_runs(&args, store),
        #[cfg(feature = "slurm")]
        Command::RunOne(args) => return run_one::run_one(&args),
        Command::Audit(args) => audit::audit(&args, store),
        Command::Doctor(args) => doctor::doctor(&args, store),
        #[cfg(feature = "web")]
        Command::Ui(args) => ui::ui(&args, store),
        Command::Init(args) => init::init(&args),
        Command::Config(args) => config::config(&args, store),
        Command::Completions(args) => completions::completions(&args, definition()),
        Command::Man(args) => man::man(&args, definition()),
        Command::Tour(args) => tour::tour(&args),
        Command::SelfTest(args) => self_test::self_test(&args),
        Command::Help(args) => help::help(&args, definition()),
    };
    answered.unwrap_or_else(|failure| failure.tell())
}

/// Help and versions are results; anything else is a usage error, which `exec` reports in its own way.
fn usage(error: clap::Error, typed: &[OsString]) -> Exit {
    let error = in_full(error, typed);
    // A closed stdout or stderr has no reader.
    let print = || _ = error.print();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        print();
        return Exit::OK;
    }
    let options: Vec<_> = typed.iter().take_while(|word| *word != "--").collect();
    let executes = subcommand(&options).is_some_and(|name| name == "exec" || name == "again");
    if !executes {
        print();
        // Required by the specification of agents.
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

/// Help that lists commands needs the deferred definitions, and so do suggestions.
fn in_full(error: clap::Error, typed: &[OsString]) -> clap::Error {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            definition().try_get_matches_from(typed).err().unwrap_or(error)
        }
        ErrorKind::InvalidSubcommand => usage_advice::of_command(suggesting(error)),
        ErrorKind::UnknownArgument => {
            let command = subcommand(&typed.iter().collect::<Vec<_>>());
            let is = |name: &str| command.is_some_and(|command| command == name);
            let error = usage_advice::of_option(error, typed, is("exec"), definition);
            if is("crash") { crash::with_hint(error, typed, definition) } else { error }
        }
        _ => error,
    }
}

/// An unknown command, with suggestions that never include an internal command.
fn suggesting(mut error: clap::Error) -> clap::Error {
    let text = |value: &ContextValue| match value {
        ContextValue::String(text) => vec![text.clone()],
        ContextValue::Strings(all) => all.clone(),
        _ => Vec::new(),
    };
    let typed = error.get(ContextKind::InvalidSubcommand).map(text).unwrap_or_default();
    let similar = error.get(ContextKind::SuggestedSubcommand).map(text).unwrap_or_default();
    let mut suggested: Vec<String> = match &typed[..] {
        [word] => help::commands_named(&definition(), word),
        _ => Vec::new(),
    };
    suggested.extend(similar.into_iter().filter(|name| !name.starts_with("__")));
    error.remove(ContextKind::SuggestedSubcommand);
    if !suggested.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(suggested));
    }
    error
}

/// Help is not wider than this.
const HELP_WIDTH: usize = 100;

/// The whole command line, for help, completions and manual pages.
pub(crate) fn definition() -> clap::Command {
    // clap takes a terminal without a number of lines, as in some CI systems, for none.
    let width = term::width().map_or(HELP_WIDTH, |width| width.min(HELP_WIDTH));
    let mut definition = Cli::command().term_width(width);
    definition.build();
    definition
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Words for command lines of `exec`: every option in each of its forms, values, and errors.
    fn words() -> Vec<String> {
        let mut words: Vec<String> =
            ["-q", "-qq", "--", "-", "", "echo hi", "5", "a=b", "-1", "--help"]
                .map(String::from)
                .to_vec();
        for flag in retake_types::exec_flags::EXEC_FLAGS.iter().map(|flag| flag.long) {
            words.extend(["", "=", "=5", "=a=b", "=-1"].map(|value| format!("--{flag}{value}")));
            words.push(format!("--{}", &flag[..flag.len() - 1]));
        }
        words.extend(["--store", "--store=x", "--store=", "-V"].map(String::from));
        words
    }

    fn exec_args(cli: Cli) -> Option<(Option<PathBuf>, exec::Args)> {
        match cli.command {
            Command::Exec(args) => Some((cli.store, *args)),
            _ => None,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]
        #[test]
        fn reading_directly_gives_the_same_as_clap(
            words in proptest::collection::vec(proptest::sample::select(words()), 0..7),
            end in proptest::collection::vec("[a-z-]{1,3}", 0..3),
            with_store in any::<bool>(),
        ) {
            let before: &[&str] = match with_store {
                true => &["retake", "--store", "dir", "exec"],
                false => &["retake", "exec"],
            };
            let separator = ["--".to_owned()];
            let words = words.iter().chain(&separator).chain(&end).cloned();
            let line: Vec<OsString> =
                before.iter().map(ToString::to_string).chain(words).map(OsString::from).collect();
            if let Some(read) = Cli::read_directly(&line) {
                let clap = Cli::try_parse_from(&line);
                let clap = clap.map_err(|error| TestCaseError::fail(format!("{line:?}: {error}")))?;
                prop_assert_eq!(exec_args(read), exec_args(clap), "{:?}", line);
            }
        }
    }

    #[test]
    fn usual_lines_are_read_directly() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for line in [
            "retake exec -- true",
            "retake exec true",
            "retake --store dir exec --quiet -- ls -l --color",
            "retake exec --json --timeout 5m --limit memory=4G --limit cpu=5s --tests -- cargo test",
            "retake exec --sandbox --allow-net=localhost --label a=b -q -- make",
        ] {
            let read = Cli::read_directly(&words(line)).and_then(exec_args);
            let clap = Cli::try_parse_from(words(line)).ok().and_then(exec_args);
            assert!(read.is_some() && read == clap, "{line}");
        }
        // Errors are left for clap to explain.
        for line in ["retake exec --timeout", "retake exec --exact -- x", "retake exec --no -- x"] {
            assert!(Cli::read_directly(&words(line)).is_none(), "{line}");
        }
    }

    fn list_args(cli: Cli) -> Option<(Option<PathBuf>, impl PartialEq + std::fmt::Debug)> {
        match cli.command {
            Command::Runs(args) => Some((cli.store, args.into_list()?)),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn a_list_that_is_read_directly_is_what_clap_reads(
            words in proptest::collection::vec(
                proptest::sample::select(vec![
                    "--limit", "-n", "-n5", "--limit=7", "50", "0", "x", "-1", "+3", "", "--json", "--failed",
                    "--json=", "--status", "--status=ok", "--", "--store", "dir", "--help",
                ]),
                0..5,
            ),
            with_store in any::<bool>(),
        ) {
            let before: &[&str] = match with_store {
                true => &["retake", "--store", "dir", "runs", "list"],
                false => &["retake", "runs", "list"],
            };
            let line: Vec<_> = before.iter().chain(&words).map(OsString::from).collect();
            if let Some(read) = Cli::read_directly(&line) {
                let clap = Cli::try_parse_from(&line);
                let clap = clap.map_err(|error| TestCaseError::fail(format!("{line:?}: {error}")))?;
                prop_assert_eq!(list_args(read), list_args(clap), "{:?}", line);
            }
        }
    }

    #[test]
    fn usual_lists_are_read_directly() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for line in [
            "retake runs list",
            "retake runs list --limit 50 --json",
            "retake --store dir runs list -n 5 --failed",
        ] {
            let read = Cli::read_directly(&words(line)).and_then(list_args);
            let clap = Cli::try_parse_from(words(line)).ok().and_then(list_args);
            assert!(read.is_some() && read == clap, "{line}");
        }
        for line in ["retake runs", "retake runs list --limit", "retake runs list --since 3d"] {
            assert!(Cli::read_directly(&words(line)).is_none(), "{line}");
        }
    }

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

    #[test]
    fn an_unknown_command_suggests_what_was_meant_and_nothing_internal() {
        let said = |word: &str| {
            let error = Cli::try_parse_from(["retake", word, "x"]).err().expect("no such command");
            suggesting(error).to_string()
        };
        let run = said("run");
        assert!(run.contains("'exec', 'agent run', 'matrix run', 'runs'"), "{run}");
        assert!(said("bisect").contains("'matrix bisect'"), "{}", said("bisect"));
        assert!(!said("_run-one").contains("'__run-one'"), "{}", said("_run-one"));
        assert!(!said("zzz").contains("tip:"), "{}", said("zzz"));
    }

    #[test]
    fn an_option_of_the_command_itself_is_sent_behind_the_dashes_with_its_command() {
        let said = |words: &[&str]| {
            let typed: Vec<OsString> = words.iter().map(OsString::from).collect();
            let error = Cli::try_parse_from(&typed).err().expect("no such option");
            in_full(error, &typed).to_string()
        };
        let list = said(&["retake", "exec", "ls", "-l"]);
        assert!(list.contains("retake exec -- PROGRAM [ARGUMENT]..."), "{list}");
        assert!(!list.contains("'-- -l'"), "{list}");
        let misspelt = said(&["retake", "exec", "--timout", "3", "ls"]);
        assert!(misspelt.contains("'--timeout'"), "{misspelt}");
        assert!(!misspelt.contains("'-- --timout'"), "{misspelt}");
    }
}
