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
        let text = term::width().map(|width| fitted(topic.text, width));
        term::page(text.as_deref().unwrap_or(topic.text))?;
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

/// A topic in lines of at most `width` columns. A paragraph, or an entry of a list with its continuation
/// lines, that fits stays as it is.
fn fitted(text: &str, width: usize) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut fitted = String::new();
    let mut lines = text.lines().peekable();
    while let Some(first) = lines.next() {
        let own = indent(first);
        let mut block = vec![first];
        let continues = |line: &&str| match own {
            _ if first.is_empty() || line.is_empty() => false,
            0 => indent(line) == 0,
            own => indent(line) > own,
        };
        while let Some(line) = lines.next_if(continues) {
            block.push(line);
        }
        if block.iter().all(|line| line.chars().count() <= width) {
            block.iter().for_each(|line| fitted.extend([line, "\n"]));
            continue;
        }
        // Of an entry of a list, continuation lines begin below what follows its name.
        let name = first[own..].find("  ").map_or(own, |end| own + end);
        let hanging = name + indent(&first[name..]);
        let words = first[hanging..].split_whitespace();
        let words = words.chain(block[1..].iter().flat_map(|line| line.split_whitespace()));
        let mut line = first[..hanging].to_owned();
        let mut begun = false;
        for word in words {
            if begun && line.chars().count() + 1 + word.chars().count() > width {
                fitted.extend([&line, "\n"]);
                (line, begun) = (" ".repeat(hanging), false);
            }
            line.extend(begun.then_some(' '));
            line.push_str(word);
            begun = true;
        }
        fitted.extend([&line, "\n"]);
    }
    fitted
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_fit_into_the_terminal_and_lose_no_word() {
        for topic in &TOPICS {
            assert_eq!(fitted(topic.text, 80), topic.text, "{}", topic.name);
            for width in [40, 60] {
                let fitted = fitted(topic.text, width);
                assert!(fitted.split_whitespace().eq(topic.text.split_whitespace()));
                let is_long = |line: &&str| line.chars().count() > width;
                let long: Vec<&str> = fitted.lines().filter(is_long).collect();
                // A word that is longer, in its own line.
                assert!(
                    long.iter().all(|line| line.trim().split("  ").count() > 1
                        || line.split_whitespace().count() == 1),
                    "{long:?}"
                );
            }
        }
        let text = "Two words more\nof it\n\n  name  what it\n        means\n  x     y\n";
        assert_eq!(
            fitted(text, 12),
            "Two words\nmore of it\n\n  name  what\n        it\n        means\n  x     y\n"
        );
    }
}
