//! The `retake agent run` commands that messages suggest. They repeat the options that protect, so
//! that a user who follows them loses neither the sandbox nor the gate nor a budget.

use retake_agent::queue::TaskOptions;
use retake_engine::quote;

use super::messages;
use crate::exec::SandboxArgs;

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
        assert_eq!(run_longer("task", &[], 4), "retake agent run task --max-iterations 4");
    }
}
