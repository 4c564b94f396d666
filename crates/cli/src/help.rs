//! `retake help`: the help of a command, or a topic that concerns all of them.

use std::fmt::Write;

use clap::Command;
use clap::error::ErrorKind;

use super::{Exit, Failure};
use crate::term;
use crate::term::Palette;

/// Print the help of a command, or of a topic: exit-codes, environment, configuration, times, ids
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A command, such as `agent run`, or a topic
    #[arg(value_name = "COMMAND|TOPIC")]
    words: Vec<String>,
}

/// Help about something that all commands share.
pub(crate) struct Topic {
    pub(crate) name: &'static str,
    about: &'static str,
    pub(crate) text: &'static str,
}

pub(crate) const TOPICS: [Topic; 5] = [
    Topic {
        name: "exit-codes",
        about: "What each exit code means",
        text: include_str!("help/exit_codes.txt"),
    },
    Topic {
        name: "environment",
        about: "Variables that retake reads, and those it sets for commands",
        text: include_str!("help/environment.txt"),
    },
    Topic {
        name: "configuration",
        about: "Where configuration comes from, and how to change it",
        text: include_str!("help/configuration.txt"),
    },
    Topic {
        name: "times",
        about: "How to write durations, points in time, and sizes",
        text: include_str!("help/times.txt"),
    },
    Topic { name: "ids", about: "How to name a run", text: include_str!("help/ids.txt") },
];

/// The list of topics at the end of the program's help.
pub(crate) fn topics() -> String {
    let width = TOPICS.iter().map(|topic| topic.name.len()).max().unwrap_or(0);
    let mut text = "Topics, for `retake help TOPIC`:\n".to_owned();
    for Topic { name, about, .. } in &TOPICS {
        let _ = writeln!(text, "  {name:width$}  {about}");
    }
    text
}

/// `definition` is the whole command line.
pub(super) fn help(args: &Args, mut definition: Command) -> Result<Exit, Failure> {
    if let [word] = &args.words[..]
        && let Some(topic) = topic(word)
    {
        term::page(topic.text)?;
        return Ok(Exit::OK);
    }
    match find(&mut definition, &args.words) {
        Ok(command) => {
            let text = command.render_long_help();
            let coloured = Palette::of_stdout().is_on();
            term::page(&if coloured { text.ansi().to_string() } else { text.to_string() })?;
            Ok(Exit::OK)
        }
        Err(word) => {
            let topics = TOPICS.map(|topic| topic.name).join(", ");
            let mut message = format!("'{word}' is neither a command nor a topic ({topics})");
            let similar = commands_named(&definition, word);
            if !similar.is_empty() {
                let _ = write!(message, "; did you mean {}?", similar.join(", "));
            }
            let error = definition.error(ErrorKind::InvalidValue, message);
            // A closed stderr has no reader.
            _ = error.print();
            Ok(Exit::USAGE)
        }
    }
}

/// Subcommands of other commands that have this name, and the command that runs a program.
pub(crate) fn commands_named(definition: &Command, word: &str) -> Vec<String> {
    let mut found = Vec::new();
    if word == "run" {
        found.push("exec".to_owned());
    }
    for outer in definition.get_subcommands().filter(|outer| !outer.is_hide_set()) {
        if outer.get_subcommands().any(|inner| inner.get_name() == word && !inner.is_hide_set()) {
            found.push(format!("{} {word}", outer.get_name()));
        }
    }
    found
}

/// A topic, also in the singular.
fn topic(word: &str) -> Option<&'static Topic> {
    TOPICS.iter().find(|topic| topic.name == word || topic.name.strip_suffix('s') == Some(word))
}

/// The command that these words name, or the first word that names none.
pub(crate) fn find<'a, 'b>(
    command: &'a mut Command,
    words: &'b [String],
) -> Result<&'a mut Command, &'b str> {
    match words {
        [] => Ok(command),
        [word, rest @ ..] => find(command.find_subcommand_mut(word).ok_or(word.as_str())?, rest),
    }
}
