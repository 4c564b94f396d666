//! `retake help`: the help of a command, or a topic that concerns all of them.

use std::fmt::Write;

use clap::Command;
use clap::error::ErrorKind;

use super::{Exit, Failure};
use crate::commands;
use crate::term;
use crate::term::Palette;

/// Print the help of a command, or of a topic: exit-codes, environment, configuration, times, ids
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A command, such as `agent run`, or a topic
    #[arg(value_name = "COMMAND|TOPIC")]
    words: Vec<String>,
}

/// Something to know about every command.
struct Topic {
    name: &'static str,
    about: &'static str,
    text: &'static str,
}

const TOPICS: [Topic; 5] = [
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

/// The end of the program's own help.
pub(crate) fn topics() -> String {
    let width = TOPICS.iter().map(|topic| topic.name.len()).max().unwrap_or(0);
    let mut text = "Topics, for `retake help TOPIC`:\n".to_owned();
    for Topic { name, about, .. } in &TOPICS {
        let _ = writeln!(text, "  {name:width$}  {about}");
    }
    text
}

pub(super) fn help(args: &Args) -> Result<Exit, Failure> {
    let mut definition = commands::definition();
    if let [word] = &args.words[..]
        && let Some(topic) = TOPICS.iter().find(|topic| topic.name == word)
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
            let message = format!("'{word}' is neither a command nor a topic");
            let error = definition.error(ErrorKind::InvalidValue, message);
            // A closed stderr means that nobody reads it.
            _ = error.print();
            Ok(Exit::USAGE)
        }
    }
}

/// The command that these words name, or the first word that names none.
fn find<'a, 'b>(command: &'a mut Command, words: &'b [String]) -> Result<&'a mut Command, &'b str> {
    match words {
        [] => Ok(command),
        [word, rest @ ..] => find(command.find_subcommand_mut(word).ok_or(word.as_str())?, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_fit_a_terminal_and_name_no_unknown_command() {
        let mut definition = commands::definition();
        for topic in &TOPICS {
            assert!(topic.text.ends_with('\n'), "{}", topic.name);
            for line in topic.text.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", topic.name);
            }
            for command in topic.text.split("`retake ").skip(1) {
                let line = command.split('`').next().unwrap_or_default();
                let words: Vec<String> = line
                    .split(' ')
                    .take_while(|w| w.starts_with(char::is_lowercase))
                    .map(Into::into)
                    .collect();
                assert!(
                    find(&mut definition, &words[..words.len().min(1)]).is_ok(),
                    "{}: retake {line}",
                    topic.name
                );
            }
        }
    }

    #[test]
    fn commands_are_found_by_their_words() {
        let mut definition = commands::definition();
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            find(&mut definition, &words("agent run")).map(|c| c.get_name().to_owned()),
            Ok("run".into())
        );
        assert_eq!(find(&mut definition, &words("agent fly")).map(|_| ()), Err("fly"));
    }
}
