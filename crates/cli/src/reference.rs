//! `docs/commands.md` and `docs/configuration.md`, generated from the definitions of the command line
//! and of the keys. A stale page fails the test; `cargo xtask docs` regenerates them.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Command};
use retake_types::config::{KeyKind, keys};

use crate::help;

/// Set by `cargo xtask docs`.
const WRITE: &str = "RETAKE_WRITE_DOCS";

#[test]
fn the_reference_pages_say_what_the_program_says() {
    check("commands.md", &commands());
    check("configuration.md", &configuration());
}

#[test]
fn topics_fit_a_terminal_and_name_no_unknown_command() {
    let mut definition = crate::commands::definition();
    for topic in &help::TOPICS {
        assert!(topic.text.ends_with('\n'), "{}", topic.name);
        for line in topic.text.lines() {
            assert!(line.chars().count() <= 80, "{}: {line}", topic.name);
        }
        for command in topic.text.split("`retake ").skip(1) {
            let words: Vec<String> = command.split([' ', '`']).take(1).map(Into::into).collect();
            assert!(help::find(&mut definition, &words).is_ok(), "{}: {words:?}", topic.name);
        }
    }
}

#[test]
fn commands_are_found_by_their_words() {
    let mut definition = crate::commands::definition();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let run = words("agent run");
    let found = help::find(&mut definition, &run).map(|found| found.get_name().to_owned());
    assert_eq!(found, Ok("run".to_owned()));
    assert_eq!(help::find(&mut definition, &words("agent fly")).map(|_| ()), Err("fly"));
}

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os(WRITE).is_some() {
        return std::fs::write(&path, text).expect("the page is written");
    }
    let present = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(present == text, "docs/{name} is stale: run `cargo xtask docs`");
}

fn commands() -> String {
    let mut page = "# Commands\n\n`cargo xtask docs` writes this page from the definition of the \
                    command line. `retake COMMAND --help` prints the same.\n"
        .to_owned();
    command(&mut page, &crate::commands::definition(), "");
    page
}

fn command(page: &mut String, command: &Command, outer: &str) {
    let path = format!("{outer}{}", command.get_name());
    let _ = write!(page, "\n## {path}\n\n");
    let about = command.get_long_about().or(command.get_about());
    let _ = writeln!(page, "{}\n", about.map(ToString::to_string).unwrap_or_default().trim_end());
    let usage = command.clone().render_usage().to_string();
    let usage =
        usage.trim_start_matches("Usage:").lines().map(|line| format!("    {}\n", line.trim()));
    page.extend(usage);
    // The same for all commands; listed once, at the top.
    let inherited = |arg: &&Arg| !outer.is_empty() && (arg.is_global_set() || standard(arg));
    let own: Vec<&Arg> =
        command.get_arguments().filter(|arg| !arg.is_hide_set() && !inherited(arg)).collect();
    if !own.is_empty() {
        page.push_str("\n| option | meaning |\n|---|---|\n");
        for arg in own {
            let _ = writeln!(page, "| {} | {} |", spelling(arg), meaning(arg));
        }
    }
    let inner = command.get_subcommands();
    for inner in inner.filter(|inner| !inner.is_hide_set() && inner.get_name() != "help") {
        self::command(page, inner, &format!("{path} "));
    }
}

fn standard(arg: &Arg) -> bool {
    matches!(arg.get_id().as_str(), "help" | "version")
}

fn spelling(arg: &Arg) -> String {
    let values: Vec<String> =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let takes = arg.get_action().takes_values();
    let value = if takes && !values.is_empty() { values.join(" ") } else { String::new() };
    let mut names = Vec::new();
    names.extend(arg.get_short().map(|short| format!("-{short}")));
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    match (names.is_empty(), value.is_empty()) {
        (true, _) => format!("`{}`", cell(&value)),
        (false, true) => format!("`{}`", names.join(", ")),
        (false, false) if arg.is_require_equals_set() => {
            format!("`{}[={}]`", names.join(", "), cell(&value))
        }
        (false, false) => format!("`{} {}`", names.join(", "), cell(&value)),
    }
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let paragraphs: Vec<String> = help.split("\n\n").map(cell).collect();
    let mut text = paragraphs.join(". ");
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() && arg.get_action().takes_values() {
        let _ = write!(text, " ({})", values.join(", "));
    }
    text
}

/// Escaped for a cell of a table.
fn cell(text: &str) -> String {
    let joined: Vec<&str> = text.split_whitespace().collect();
    joined.join(" ").replace('|', "\\|").replace('<', "&lt;")
}

fn configuration() -> String {
    let mut page = "# Configuration\n\n`cargo xtask docs` writes this page from the definition of the \
         keys. `retake help configuration` says where values come from; `retake config --explain` \
         shows the values in force and their sources.\n\nA key is written in `.agent/config.yml` under its section, or \
         set by a variable: `execution.max_output_kb` is `RETAKE_EXECUTION__MAX_OUTPUT_KB`. Keys \
         marked with * can also be set for one workspace of an agent (`retake agent config`).\n"
        .to_owned();
    let mut section = None;
    for key in keys() {
        if section != Some(key.section()) {
            section = Some(key.section());
            let _ = write!(page, "\n## {}\n\n", key.section());
            page.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
        }
        let mark = if key.workspace { " *" } else { "" };
        let default = match key.default {
            "" => String::new(),
            default => format!("`{}`", cell(default)),
        };
        let (name, about) = (key.name(), cell(key.about));
        let _ = writeln!(page, "| `{name}`{mark} | {} | {default} | {about} |", kind(key.kind));
    }
    page
}

fn kind(kind: KeyKind) -> String {
    match kind {
        KeyKind::Number { min, max } if max > u64::from(u32::MAX) => format!("a number from {min}"),
        KeyKind::Number { min, max } => format!("a number from {min} to {max}"),
        KeyKind::Truth => "`true` or `false`".to_owned(),
        KeyKind::Word(words) => {
            words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
        }
        KeyKind::Words => "a list of words".to_owned(),
        KeyKind::Text => "text".to_owned(),
        KeyKind::Money => "US dollars".to_owned(),
        KeyKind::Duration => "a duration".to_owned(),
        KeyKind::Pairs => "names with values".to_owned(),
    }
}
