//! Advice about options and commands that do not exist, but that a user of other tools expects.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue};

const LINES: &str = "`--tail N` prints the last N lines, `--head N` the first";

/// Options by the command they are typed after (all of these words), and what does the same.
const OPTIONS: [(&[&str], &str, &str); 13] = [
    (&["runs", "logs"], "-n", LINES),
    (&["runs", "logs"], "--lines", LINES),
    (&["runs", "logs"], "--limit", LINES),
    (
        &["exec"],
        "--retries",
        "exec has no retries; `retake again last` repeats a run, `retake matrix run` repeats many times",
    ),
    (&["exec"], "--shard", "`retake matrix run --shard K/N` divides runs over CI jobs"),
    (&["exec"], "--junit", "`retake runs export --format junit last` prints a JUnit report"),
    (&["exec"], "--junitxml", "`retake runs export --format junit last` prints a JUnit report"),
    (
        &["queue", "run"],
        "--no-delay",
        "`retake agent config defaultDelay 0s` removes the pause between iterations",
    ),
    (&["runs"], "--format", "--json prints JSON; `retake runs export --format FORMAT` has others"),
    (&["tests"], "--format", "--json prints JSON"),
    (&["runs", "export"], "--output", "it prints to stdout: redirect it, as in `> FILE`"),
    (&["runs", "export"], "-o", "it prints to stdout: redirect it, as in `> FILE`"),
    (
        &["agent"],
        "--timeout",
        "`retake agent config timeout TIME` sets the timeout of an iteration; `--max-time` limits the loop",
    ),
];

/// An unknown option. `is_exec` is whether it was typed after `retake exec`; `definition` is the whole command
/// line.
pub(crate) fn of_option(
    mut error: clap::Error,
    typed: &[OsString],
    is_exec: bool,
    definition: fn() -> Command,
) -> clap::Error {
    let words: Vec<String> =
        typed.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let own = words.iter().take_while(|word| *word != "--");
    let own: Vec<&str> = own.map(String::as_str).collect();
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => {
            text.split([' ', '=']).next().unwrap_or_default().to_owned()
        }
        _ => String::new(),
    };
    let advice = OPTIONS.iter().find(|(command, option, _)| {
        *option == unknown && command.iter().all(|word| own.contains(word))
    });
    if let Some((.., advice)) = advice {
        return advise(without_similar(error, &own, definition), advice);
    }
    if !takes_text(&own) {
        // clap suggests to put the option after `--`, where it would name a run, a file or an agent.
        error.remove(ContextKind::Suggested);
    }
    let unsafe_one = matches!(
        error.get(ContextKind::SuggestedArg),
        Some(ContextValue::String(option)) if option.starts_with("--no-redact")
    );
    if unsafe_one && !unknown.contains("redact") {
        error = without_similar(error, &own, definition);
    }
    // `-timeout` is read as `-t -i …`.
    let long = own.iter().find(|word| is_long_with_one_hyphen(word) && word.starts_with(&unknown));
    if let Some(long) = long.filter(|_| is_exec) {
        return advise(error, &format!("did you mean '-{long}'?"));
    }
    if is_exec && error.get(ContextKind::SuggestedArg).is_none() && own.len() == words.len() {
        let advice =
            "a command that has options goes after '--': retake exec -- PROGRAM [ARGUMENT]...";
        return advise(error, advice);
    }
    error
}

/// Removes the option that clap takes for the meant one, also from the usage.
fn without_similar(
    mut error: clap::Error,
    own: &[&str],
    definition: fn() -> Command,
) -> clap::Error {
    if error.remove(ContextKind::SuggestedArg).is_some() {
        let mut definition = definition();
        let mut command = &mut definition;
        for word in own {
            if command.find_subcommand(word).is_some() {
                command = command.find_subcommand_mut(word).expect("it was found");
            }
        }
        error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    }
    error
}

/// Whether the command takes any text as its argument, also one that looks like an option.
fn takes_text(own: &[&str]) -> bool {
    own.windows(2).any(|words| words == ["runs", "search"])
}

/// Whether a word is an option of `exec` that lacks its second hyphen.
fn is_long_with_one_hyphen(word: &str) -> bool {
    let name = word.strip_prefix('-').map(|name| name.split('=').next().unwrap_or_default());
    name.is_some_and(|name| {
        name.len() > 1 && retake_types::exec_flags::EXEC_FLAGS.iter().any(|flag| flag.long == name)
    })
}

/// An unknown command.
pub(crate) fn of_command(error: clap::Error) -> clap::Error {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if word == "version" => {
            let mut error = error;
            error.remove(ContextKind::SuggestedSubcommand);
            advise(error, "`retake --version` prints the version")
        }
        _ => error,
    }
}

fn advise(mut error: clap::Error, advice: &str) -> clap::Error {
    let advice = ContextValue::StyledStrs(vec![advice.to_owned().into()]);
    error.insert(ContextKind::Suggested, advice);
    error
}
