//! What was typed after `retake exec`: the options as their table defines them, read by clap.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use retake_types::exec_flags::{EXEC_FLAGS, ExecFlag, FlagDefinition, FlagValue, exec_flag};

/// The options and the command, as typed.
pub(crate) struct Args {
    /// The command as one string; several words are a mistake.
    pub(super) line: Vec<OsString>,
    /// The program and its arguments, passed on exactly as they are.
    pub(super) program: Vec<OsString>,
    matches: ArgMatches,
}

const LINE: &str = "line";
const PROGRAM: &str = "program";

impl Args {
    pub(super) fn given(&self, flag: ExecFlag) -> bool {
        match exec_flag(flag).value {
            FlagValue::None => self.matches.get_flag(exec_flag(flag).long),
            _ => self.matches.contains_id(exec_flag(flag).long),
        }
    }

    /// The value of an option, exactly.
    pub(super) fn value(&self, flag: ExecFlag) -> Option<&OsString> {
        self.matches.get_one(exec_flag(flag).long)
    }

    /// The value of an option as text; what is not UTF-8 is replaced, and refused by what reads it.
    pub(super) fn text(&self, flag: ExecFlag) -> Option<String> {
        self.value(flag).map(|value| value.to_string_lossy().into_owned())
    }

    pub(super) fn path(&self, flag: ExecFlag) -> Option<PathBuf> {
        self.value(flag).map(PathBuf::from)
    }

    /// Every value of an option that may be repeated.
    pub(super) fn values(&self, flag: ExecFlag) -> impl Iterator<Item = &OsString> {
        self.matches.get_many(exec_flag(flag).long).into_iter().flatten()
    }

    pub(super) fn texts(&self, flag: ExecFlag) -> Vec<String> {
        self.values(flag).map(|value| value.to_string_lossy().into_owned()).collect()
    }
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let command = command
            .about("Run one command: captured byte for byte, limited, timed out cleanly, nothing left running")
            .long_about(
                "Run one command: captured byte for byte, limited, timed out cleanly, nothing left running\n\n\
                 The command is either one string, which goes through a shell only if it needs one, or a program \
                 with its arguments after `--`, which never does. Its output passes through live; its exit code \
                 becomes retake's own (124 timed out, 125 refused or retake's own failure, 126 not executable, \
                 127 not found, 128+n ended by signal n).",
            )
            .override_usage(
                "retake exec [OPTIONS] \"COMMAND\" [OPTIONS]\n       retake exec [OPTIONS] -- PROGRAM [ARGUMENT]...",
            )
            .arg(
                Arg::new(LINE)
                    .value_name("COMMAND")
                    .help("The command as one string")
                    .num_args(0..)
                    .value_parser(clap::value_parser!(OsString))
                    .hide(true),
            )
            .arg(
                Arg::new(PROGRAM)
                    .value_name("PROGRAM")
                    .help("The program and its arguments, passed on exactly as they are")
                    .num_args(0..)
                    .last(true)
                    .value_parser(clap::value_parser!(OsString))
                    .hide(true),
            );
        command.args(EXEC_FLAGS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let words = |name: &str| -> Vec<OsString> {
            matches.get_many(name).into_iter().flatten().cloned().collect()
        };
        Ok(Self { line: words(LINE), program: words(PROGRAM), matches: matches.clone() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The options of a sandbox, for every command that has one.
#[derive(Clone)]
pub(crate) struct SandboxArgs(ArgMatches);

impl SandboxArgs {
    pub(super) fn args(&self) -> Args {
        Args { line: Vec::new(), program: Vec::new(), matches: self.0.clone() }
    }

    /// Whether the command line says how to confine.
    pub(crate) fn has_mode(&self) -> bool {
        self.args().given(ExecFlag::Sandbox)
    }
}

impl clap::Args for SandboxArgs {
    fn augment_args(command: Command) -> Command {
        let sandbox = exec_flag(ExecFlag::Sandbox).heading;
        command.args(EXEC_FLAGS.iter().filter(|flag| flag.heading == sandbox).map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SandboxArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(matches.clone()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// An option for clap.
fn argument(definition: &FlagDefinition) -> Arg {
    let arg = Arg::new(definition.long)
        .long(definition.long)
        .help(definition.help)
        .help_heading(definition.heading)
        .allow_hyphen_values(definition.hyphen_values);
    let arg = match definition.value {
        FlagValue::None => arg.action(ArgAction::SetTrue),
        FlagValue::One(name) => arg.value_name(name).value_parser(clap::value_parser!(OsString)),
        FlagValue::Many(name) => arg
            .value_name(name)
            .action(ArgAction::Append)
            .value_parser(clap::value_parser!(OsString)),
        FlagValue::Optional(name) => arg
            .value_name(name)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("")
            .value_parser(clap::value_parser!(OsString)),
    };
    let arg = match definition.short {
        Some(short) => arg.short(short),
        None => arg,
    };
    let arg = match definition.variable {
        Some(variable) => arg.env(variable).hide_env_values(true),
        None => arg,
    };
    // A sandbox may also be configured; that is known later.
    let requires = definition.requires.filter(|other| *other != ExecFlag::Sandbox);
    let arg = match requires {
        Some(other) => arg.requires(exec_flag(other).long),
        None => arg,
    };
    match definition.conflicts_with {
        Some(other) => arg.conflicts_with(exec_flag(other).long),
        None => arg,
    }
}
