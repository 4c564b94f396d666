//! `retake crash`: checks every state that a crash could leave a program's files in.

pub(crate) mod bundle;
mod confirm;
mod explore;
mod fault;
mod newest;
mod options;
mod output;
mod progress;
mod record;
#[cfg(feature = "slurm")]
mod remote;
mod report_text;
mod repro;
mod run;
mod session;
#[cfg(feature = "slurm")]
mod share;
mod show;
mod usage_hint;

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

use clap::Subcommand;
use retake_crash::recorder::RecordError;
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::finding::FindingsError;
use retake_crash_driver::fresh_root::FreshRootError;
use retake_runner::signals;
use retake_types::text;

use crate::{Exit, Failure, term, words};

pub(crate) use usage_hint::with_hint;

/// Check every state that a crash or power loss during a program can leave
///
/// Runs the program once and records what it does to the directory, then builds every state that a
/// crash could have left and runs the check on each. Every line that the program prints is a promise:
/// whatever it acknowledged before the crash must survive. The check finds the state at the directory's
/// own path and in FIRST_WORK_DIR, and the printed lines in the file named by FIRST_ACKS; its exit
/// code 0 accepts the state. Exits with 0 if every state that was checked recovers, 1 with findings,
/// 125 if nothing, only a part of what --on sent to other machines, or not all of the data could be
/// tested.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::TestArgs,
}

#[derive(Subcommand)]
enum Command {
    Record(record::Args),
    Explore(explore::Args),
    Repro(repro::Args),
    Show(show::Args),
    Confirm(confirm::Args),
    #[command(hide = true)]
    Fault(fault::Args),
    #[cfg(feature = "slurm")]
    #[command(hide = true)]
    Share(share::Args),
}

pub(crate) fn crash(args: Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let answered = match args.command {
        Some(Command::Record(args)) => record::record(&args, store),
        Some(Command::Explore(args)) => explore::explore(&args, store),
        Some(Command::Repro(args)) => repro::repro(&args, store),
        Some(Command::Show(args)) => show::show(&args, store),
        Some(Command::Confirm(args)) => confirm::confirm(&args, store),
        Some(Command::Fault(args)) => fault::fault(args),
        #[cfg(feature = "slurm")]
        Some(Command::Share(args)) => share::share(&args),
        None => run::run(&args.run, store),
    };
    // A command that a signal interrupted failed because of it.
    if let Some(signal) = signals::received() {
        match &answered {
            Err(CrashFailure::NotTested(CrashTestError::Record(RecordError::Cancelled))) => {
                term::say("interrupted while the program was recorded: nothing was tested");
            }
            Err(_) => term::say("interrupted"),
            Ok(_) => {}
        }
        return Ok(Exit::Signal(signal));
    }
    answered.or_else(|failure| match failure {
        CrashFailure::Command(failure) => Err(failure),
        CrashFailure::NotTested(error) => {
            term::say(&error_text(&error));
            Ok(Exit::REFUSED)
        }
        CrashFailure::Refused(why) => {
            term::say(&why);
            Ok(Exit::REFUSED)
        }
    })
}

/// Why a command has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum CrashFailure {
    #[error(transparent)]
    Command(#[from] Failure),
    /// Nothing could be tested: exits with 125.
    #[error(transparent)]
    NotTested(#[from] CrashTestError),
    /// The requested finding, log or directory does not exist: exits with 125.
    #[error("{0}")]
    Refused(String),
}

impl From<std::io::Error> for CrashFailure {
    fn from(error: std::io::Error) -> Self {
        Self::Command(Failure::Output(error))
    }
}

/// The name of a file in this directory as a path, if a command without a slash has the name of one.
fn in_directory(command: &OsStr, directory: &Path) -> Option<String> {
    let plain = !command.is_empty() && Path::new(command).components().count() == 1;
    let plain = plain && !command.to_string_lossy().contains('/');
    (plain && directory.join(command).is_file()).then(|| format!("./{}", command.to_string_lossy()))
}

/// Why nothing was tested, with the options and commands that help.
fn error_text(error: &CrashTestError) -> String {
    match error {
        CrashTestError::ProgramFailed { run: Some(run), .. } => {
            format!("{error}; `retake runs logs {}` shows its output", run.short())
        }
        CrashTestError::Findings(FindingsError::Foreign { .. }) => {
            format!("{error}; `retake crash` did not write it")
        }
        CrashTestError::Record(RecordError::Start { program, source }) => match source.kind() {
            ErrorKind::PermissionDenied => format!("{error}; make it executable with chmod +x"),
            ErrorKind::NotFound => match in_directory(program, Path::new(".")) {
                Some(meant) => format!("{error}; did you mean {meant}?"),
                None => error.to_string(),
            },
            _ => error.to_string(),
        },
        CrashTestError::CheckNotRun { command, directory, code, .. } => {
            let word = command.split_whitespace().next().unwrap_or_default();
            match (code, in_directory(OsStr::new(word), directory)) {
                (127, Some(meant)) => format!("{error}; did you mean {meant}?"),
                (126, _) => format!("{error}; make it executable with chmod +x"),
                _ => format!("{error}; is it the right directory?"),
            }
        }
        CrashTestError::Record(RecordError::Root { source, .. }) => match source.kind() {
            ErrorKind::NotFound => format!("{error}; create it, or give another --root"),
            _ => error.to_string(),
        },
        CrashTestError::UncrashedFails { root, files: files @ 1.., .. } => {
            let here = std::env::current_dir().unwrap_or_default();
            let root = root.strip_prefix(&here).unwrap_or(root);
            let files = term::count(*files, "file");
            format!(
                "{}\n{} had {files} before the program started: --fresh starts with an empty directory",
                error.to_string().trim_end(),
                root.display()
            )
        }
        CrashTestError::FreshRoot(FreshRootError::Source { path, source }) => {
            format!("cannot copy {} (--fresh): {}", path.display(), text::plain(source))
        }
        CrashTestError::NothingWritten(_) => format!("{error}; is --root right?"),
        CrashTestError::Refused(reasons) => {
            reasons.iter().map(words::refusal).collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    }
}
