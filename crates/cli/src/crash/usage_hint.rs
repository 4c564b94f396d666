//! Advice for a command line with a word where none belongs.

use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Most often the word is a mistyped command, the program without `--`, or the value of an option
/// without `=`. `definition` is the whole command line.
pub(crate) fn with_hint(
    mut error: clap::Error,
    typed: &[OsString],
    definition: fn() -> Command,
) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return error };
    if word.starts_with('-') {
        return error;
    }
    let place = typed.iter().position(|one| one == OsStr::new(word));
    let before = place.and_then(|place| typed.get(place.checked_sub(1)?));
    let before = before.map(|before| before.to_string_lossy().into_owned()).unwrap_or_default();
    let advice = match &*before {
        "crash" => match similar_command(word, &definition()) {
            Some(meant) => return unknown_command(&error, (word.clone(), meant), &definition()),
            None if word == "last" || word.ends_with(".log") => {
                format!("a log follows a command: retake crash show {word}")
            }
            None => after_hyphens(word),
        },
        "--fresh" | "--faults" => format!("a value of this option follows '=': {before}={word}"),
        _ => after_hyphens(word),
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    error
}

fn after_hyphens(word: &str) -> String {
    format!("the program and its arguments go after '--': retake crash … -- {word}")
}

/// The command of `retake crash` that was mistyped: with one wrong letter, or pair of letters, in three.
fn similar_command(word: &str, definition: &Command) -> Option<String> {
    let crash = definition.find_subcommand("crash")?;
    let names = crash.get_subcommands().filter(|command| !command.is_hide_set());
    let names = names.map(Command::get_name);
    let names = names.map(|name| (strsim::damerau_levenshtein(word, name), name));
    let (distance, name) = names.min()?;
    (distance <= word.chars().count() / 3).then(|| name.to_owned())
}

/// The error that clap itself gives for commands without arguments of their own.
fn unknown_command(
    error: &clap::Error,
    (word, meant): (String, String),
    definition: &Command,
) -> clap::Error {
    let mut unknown = clap::Error::new(ErrorKind::InvalidSubcommand).with_cmd(definition);
    unknown.insert(ContextKind::InvalidSubcommand, ContextValue::String(word));
    unknown.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![meant]));
    if let Some(usage) = error.get(ContextKind::Usage) {
        unknown.insert(ContextKind::Usage, usage.clone());
    }
    unknown
}
