//! The `retake agent run` commands that messages suggest. They repeat the options that protect, so
//! that a user who follows them loses neither the sandbox nor the gate nor a budget.

use retake_agent::queue::TaskOptions;
use retake_engine::quote;

use super::messages;
use crate::exec::SandboxArgs;

/// The command that runs a task, on which suggestions to repeat it depend.
#[derive(Clone, Debug)]
pub(super) enum Invocation {
    /// `run`, with its command line.
    Run(Vec<String>),
    /// `queue run`, where every task has its own options, except for the sandbox.
    Queue,
    /// Another one, such as for a single iteration.
    Other,
}

const MAX_ITERATIONS: &str = "--max-iterations";

/// The options of a call that the next one has to repeat: sandbox, verification, agents, budgets and
/// checkpoints.
pub(super) fn repeated(options: &TaskOptions, sandbox: &SandboxArgs) -> Vec<String> {
    let mut words = sandbox.words();
    for (path, flag) in messages::FLAGS {
        if let Some(value) = options.settings.get(path) {
            words.extend(option(flag, value));
        }
    }
    if options.settings.contains_key("checkpoint") {
        words.push("--checkpoint".to_owned());
    }
    if let Some(most) = options.max_iterations {
        words.extend(option(MAX_ITERATIONS, &most.to_string()));
    }
    words
}

/// An option with its value; one that looks like an option is attached.
pub(super) fn option(flag: &str, value: &str) -> Vec<String> {
    match value.starts_with('-') {
        true => vec![format!("{flag}={value}")],
        false => vec![flag.to_owned(), value.to_owned()],
    }
}

/// The command that runs a task again, for a shell.
pub(super) fn run_again(name: &str, options: &[String]) -> String {
    let words = ["retake", "agent", "run", name].into_iter();
    quote(words.chain(options.iter().map(String::as_str)))
}

/// The command line of this process.
pub(super) fn typed() -> Vec<String> {
    let mut words: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(program) = words.first_mut() {
        // As the other suggestions, which assume that it is on PATH.
        let name = std::path::Path::new(program).file_name();
        *program = name.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    }
    words
}

/// A command line of `run` with those options of the last run that it lacks, for a shell.
/// `sandbox` is whether it lacks the sandbox, which it may have switched off.
pub(super) fn run_protected(typed: &[String], last: &[String], sandbox: bool) -> String {
    let off = |word: &str| sandbox && flag_of(word) == "--sandbox";
    let mut words: Vec<String> = typed.iter().filter(|word| !off(word)).cloned().collect();
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let given = |flag: &str| words[..end].iter().any(|word| is_flag(word, flag));
    let mut missing = Vec::new();
    let mut left = last.iter().peekable();
    while let Some(word) = left.next() {
        // A value that looks like an option is attached to its own.
        let value = left.next_if(|next| !next.starts_with('-'));
        if !given(flag_of(word)) {
            missing.push(word.clone());
            missing.extend(value.cloned());
        }
    }
    words.splice(end..end, missing);
    quote(words.iter().map(String::as_str))
}

/// `--verify` of `--verify=-x`.
fn flag_of(word: &str) -> &str {
    word.split_once('=').map_or(word, |(flag, _)| flag)
}

/// Whether a typed word is this option, in any of its forms.
fn is_flag(word: &str, flag: &str) -> bool {
    let is_short = || flag == MAX_ITERATIONS && word.starts_with("-m") && !word.starts_with("--");
    flag_of(word) == flag || is_short()
}

/// The same with another maximum of iterations.
pub(super) fn run_longer(name: &str, options: &[String], most: u32) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut given = options.iter();
    while let Some(word) = given.next() {
        match word == MAX_ITERATIONS {
            true => _ = given.next(),
            false => words.push(word.clone()),
        }
    }
    words.extend(option(MAX_ITERATIONS, &most.to_string()));
    run_again(name, &words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_repeated_for_a_shell() {
        let given = [("maxTime", "5m"), ("verification.command", "a && b"), ("checkpoint", "true")];
        let settings = given.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let options = TaskOptions { settings, max_iterations: Some(1), again: true };
        let options = repeated(&options, &SandboxArgs::default());
        assert_eq!(
            run_again("task", &options),
            "retake agent run task --verify 'a && b' --max-time 5m --checkpoint --max-iterations 1"
        );
        assert_eq!(
            run_longer("task", &options, 2),
            "retake agent run task --verify 'a && b' --max-time 5m --checkpoint --max-iterations 2"
        );
        assert_eq!(option("--verify", "-x"), ["--verify=-x"]);
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let last = words("--sandbox --allow-write /x --verify=-t --max-cost 5 --max-iterations 3");
        for (typed, sandbox, suggested) in [
            (
                "task --again",
                true,
                "task --again --sandbox --allow-write /x --verify=-t --max-cost 5 --max-iterations 3",
            ),
            (
                "-m9 --max-cost=1 task",
                true,
                "-m9 --max-cost=1 task --sandbox --allow-write /x --verify=-t",
            ),
            (
                "--sandbox=off -m 9 -- task",
                true,
                "-m 9 --sandbox --allow-write /x --verify=-t --max-cost 5 -- task",
            ),
            (
                "task --sandbox -m 9",
                false,
                "task --sandbox -m 9 --allow-write /x --verify=-t --max-cost 5",
            ),
        ] {
            assert_eq!(run_protected(&words(typed), &last, sandbox), suggested);
        }
        assert_eq!(run_longer("task", &[], 4), "retake agent run task --max-iterations 4");
    }
}
