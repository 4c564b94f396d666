//! The command line of `retake exec`: its options as their table defines them, read by clap or, for
//! valid command lines, directly.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use retake_types::exec_flags::{EXEC_FLAGS, ExecFlag, FlagDefinition, FlagValue, exec_flag};

/// The options and the command, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    /// The command as one string; more than one word is an error.
    pub(super) line: Vec<OsString>,
    /// The program and its arguments, passed on exactly as they are.
    pub(super) program: Vec<OsString>,
    /// In the order of the table; an option without a value has an empty one.
    options: Vec<(ExecFlag, OsString)>,
}

const LINE: &str = "line";
const PROGRAM: &str = "program";

impl Args {
    pub(super) fn given(&self, flag: ExecFlag) -> bool {
        self.value(flag).is_some()
    }

    /// The value of an option, exactly as typed.
    pub(super) fn value(&self, flag: ExecFlag) -> Option<&OsString> {
        self.values(flag).next()
    }

    /// The value of an option as text; invalid UTF-8 is replaced, and refused by the code that parses it.
    pub(super) fn text(&self, flag: ExecFlag) -> Option<String> {
        self.value(flag).map(|value| value.to_string_lossy().into_owned())
    }

    pub(super) fn path(&self, flag: ExecFlag) -> Option<PathBuf> {
        self.value(flag).map(PathBuf::from)
    }

    /// Every value of an option that may be repeated.
    pub(super) fn values(&self, flag: ExecFlag) -> impl Iterator<Item = &OsString> {
        self.options.iter().filter(move |(given, _)| *given == flag).map(|(_, value)| value)
    }

    pub(super) fn texts(&self, flag: ExecFlag) -> Vec<String> {
        self.values(flag).map(|value| value.to_string_lossy().into_owned()).collect()
    }

    /// The first option that was given without the value that it may have after `=`.
    pub(super) fn without_value(&self) -> Option<&'static str> {
        let definitions = self.options.iter().map(|(flag, value)| (exec_flag(*flag), value));
        definitions
            .filter(|(definition, value)| {
                matches!(definition.value, FlagValue::Optional(_)) && value.is_empty()
            })
            .map(|(definition, _)| definition.long)
            .next()
    }

    /// The options of these definitions, as read by clap.
    fn options<'a>(
        matches: &ArgMatches,
        definitions: impl Iterator<Item = &'a FlagDefinition>,
    ) -> Vec<(ExecFlag, OsString)> {
        let mut options = Vec::new();
        for definition in definitions {
            let (flag, long) = (definition.flag, definition.long);
            match definition.value {
                FlagValue::None => {
                    options.extend(matches.get_flag(long).then(|| (flag, OsString::new())));
                }
                _ => {
                    let values = matches.get_many::<OsString>(long).into_iter().flatten();
                    options.extend(values.map(|value| (flag, value.clone())));
                }
            }
        }
        options
    }

    /// Reads the words after `retake exec` without clap, which builds the definition of every option before
    /// it reads one: a tenth of a short run. Also returns the value of `--store`. `None` for every command line
    /// that clap might refuse or read differently.
    pub(crate) fn read_directly(words: &[OsString]) -> Option<(Self, Option<OsString>)> {
        let (mut args, mut store) = (Self::default(), None);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_str()?;
            if text == "--" {
                args.program = words.cloned().collect();
                break;
            }
            if !text.starts_with('-') {
                args.line.push(word.clone());
                continue;
            }
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(OsStr::new(value))),
                None => (text, None),
            };
            // A value as a separate word, which must not look like an option.
            let mut value_or_next = || {
                let value = value.or_else(|| words.next().map(OsString::as_os_str))?;
                let plain = !value.is_empty() && !value.as_encoded_bytes().starts_with(b"-");
                plain.then(|| value.to_owned())
            };
            if name == "--store" {
                let again = store.replace(value_or_next()?).is_some();
                (!again).then_some(())?;
                continue;
            }
            let definition = EXEC_FLAGS.iter().find(|definition| definition.is_named(name))?;
            let value = match (definition.value, value) {
                (FlagValue::None | FlagValue::Optional(_), None) => OsString::new(),
                (FlagValue::None, Some(_)) => return None,
                (FlagValue::Optional(_), Some(value)) => {
                    (!value.is_empty()).then(|| value.to_owned())?
                }
                (FlagValue::One(_) | FlagValue::Many(_), _) => value_or_next()?,
            };
            let once = !matches!(definition.value, FlagValue::Many(_));
            (!(once && args.given(definition.flag))).then_some(())?;
            args.options.push((definition.flag, value));
        }
        args.add_variables();
        args.options.sort_by_key(|(flag, _)| *flag);
        args.is_consistent().then_some((args, store))
    }

    /// Adds the values of variables for options that were not given.
    fn add_variables(&mut self) {
        for definition in &EXEC_FLAGS {
            let Some(variable) = definition.variable else { continue };
            if let (false, Some(value)) = (self.given(definition.flag), std::env::var_os(variable))
            {
                self.options.push((definition.flag, value));
            }
        }
    }

    /// Whether each option has the options that it requires, and none that it excludes.
    fn is_consistent(&self) -> bool {
        self.options.iter().all(|(flag, _)| {
            let FlagDefinition { requires, conflicts_with, .. } = *exec_flag(*flag);
            // A sandbox may also be configured.
            let requires = requires.filter(|other| *other != ExecFlag::Sandbox);
            requires.is_none_or(|other| self.given(other))
                && !conflicts_with.is_some_and(|other| self.given(other))
        })
    }
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let command = command
            .about("Run a command with a timeout and limits, record its output, and leave no process running")
            .long_about(
                "Run a command with a timeout and limits, record its output, and leave no process running\n\n\
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
        let options = Self::options(matches, EXEC_FLAGS.iter());
        Ok(Self { line: words(LINE), program: words(PROGRAM), options })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The options of a sandbox, for every command that confines its runs.
#[derive(Clone, Default)]
pub(crate) struct SandboxArgs(Args);

impl SandboxArgs {
    pub(super) fn args(&self) -> &Args {
        &self.0
    }

    /// Whether the command line sets the mode of the sandbox.
    #[cfg(feature = "mcp")]
    pub(crate) fn has_mode(&self) -> bool {
        self.0.given(ExecFlag::Sandbox)
    }

    /// The options as words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let word = |(flag, value): &(ExecFlag, OsString)| {
            let definition = exec_flag(*flag);
            let long = format!("--{}", definition.long);
            let value = value.to_string_lossy().into_owned();
            match definition.value {
                FlagValue::None => vec![long],
                FlagValue::Optional(_) if value.is_empty() => vec![long],
                FlagValue::Optional(_) => vec![format!("{long}={value}")],
                _ if value.starts_with('-') => vec![format!("{long}={value}")],
                _ => vec![long, value],
            }
        };
        self.0.options.iter().flat_map(word).collect()
    }

    fn definitions() -> impl Iterator<Item = &'static FlagDefinition> {
        let sandbox = exec_flag(ExecFlag::Sandbox).heading;
        EXEC_FLAGS.iter().filter(move |flag| flag.heading == sandbox)
    }
}

impl clap::Args for SandboxArgs {
    fn augment_args(command: Command) -> Command {
        command.args(Self::definitions().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SandboxArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let options = Args::options(matches, Self::definitions());
        Ok(Self(Args { options, ..Args::default() }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The definition of an option for clap.
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
    // A sandbox may also be configured, which is unknown here.
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
