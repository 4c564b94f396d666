//! Every message that a specification gives word for word, in one place.

use crate::adapters::Kind;
use crate::workspace::Name;

/// The agent's program cannot be found.
pub fn not_found(kind: Kind, command: &str) -> String {
    let title = kind.title();
    match kind {
        Kind::Custom => format!("Agent not found. Make sure '{command}' is installed and in PATH."),
        _ => format!("{title} CLI not found. Make sure '{command}' is installed and in PATH."),
    }
}

pub fn instructions_not_found(name: &Name) -> String {
    format!("Instructions not found. Run setup first: retake agent setup {name}")
}

pub fn iteration_failed(number: u32) -> String {
    format!("Iteration {number} failed")
}

pub fn running_iteration(number: u32) -> String {
    format!("Running iteration {number}...")
}

pub fn completed(iterations: u32) -> String {
    format!("✓ Task completed successfully after {}", counted(iterations, "iteration"))
}

pub fn items_remaining(remaining: u64) -> String {
    match remaining {
        1 => "(1 item remaining)".to_owned(),
        n => format!("({n} items remaining)"),
    }
}

pub fn max_iterations(most: u32) -> String {
    format!("⚠️ Reached maximum iterations ({most})")
}

/// What can be done after the maximum was reached: continue, increase the limit, look.
pub fn max_iterations_options(name: &Name, most: u32) -> [String; 3] {
    [
        format!("→ Continue: retake agent run {name}"),
        format!(
            "→ Increase the limit: retake agent run {name} --max-iterations {}",
            most.saturating_mul(2)
        ),
        format!("→ Check progress: retake agent show {name}"),
    ]
}

pub fn stagnation(iterations: u32) -> String {
    format!("⚠️ Stagnation detected: {iterations} consecutive iterations with no work")
}

pub fn permissions_skipped(kind: Kind) -> String {
    format!(
        "⚠️ --dangerously-skip-permissions: {} will not ask before it changes files or runs commands",
        kind.title()
    )
}

pub fn todo_fallback() -> &'static str {
    "⚠️ No valid .status.json: going by the check boxes in TODO.md"
}

pub fn stale_completion() -> &'static str {
    "⚠️ .status.json said complete before this run began; that does not count"
}

/// `--output`, `-v` and `-q` say the same thing in three ways.
pub fn conflicting_output() -> &'static str {
    "--verbose, --quiet and --output cannot be used together"
}

/// A budget that the agent cannot be held to.
pub fn unmeasurable(option: &str, kind: Kind) -> String {
    let what = if option.contains("cost") { "what it costs" } else { "the tokens it uses" };
    format!("{option} cannot be used with {kind}: it does not report {what}")
}

fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_the_letter() {
        let name = Name::new("my-task").unwrap();
        assert_eq!(
            not_found(Kind::Claude, "claude"),
            "Claude CLI not found. Make sure 'claude' is installed and in PATH."
        );
        assert_eq!(
            instructions_not_found(&name),
            "Instructions not found. Run setup first: retake agent setup my-task"
        );
        assert_eq!(iteration_failed(3), "Iteration 3 failed");
        assert_eq!(running_iteration(1), "Running iteration 1...");
        assert_eq!(completed(5), "✓ Task completed successfully after 5 iterations");
        assert_eq!(items_remaining(4), "(4 items remaining)");
        assert_eq!(max_iterations(50), "⚠️ Reached maximum iterations (50)");
        assert_eq!(stagnation(2), "⚠️ Stagnation detected: 2 consecutive iterations with no work");
    }
}
