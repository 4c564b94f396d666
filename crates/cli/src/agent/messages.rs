//! The messages of agent commands; many of them are given word for word by a specification.

use std::time::Duration;

use retake_agent::adapters::AgentKind;
use retake_agent::checkpoint::CheckpointChoice;
use retake_agent::display;
use retake_agent::driver::git_checkpoints::CheckpointError;
use retake_agent::driver::rollback::RollbackError;
use retake_agent::driver::{ReportError, StartError, StoppedLoop, TaskError};
use retake_agent::plan::{AgentRole, AgentStopReason};
use retake_agent::settings::{SettingError, SettingsErrors, UnsupportedSetting};
use retake_agent::workspace::{Name, Workspace, WorkspaceProblem};
use retake_engine::quote;
use retake_types::RunId;
use retake_types::loop_record::agent::Spent;

use super::run_command::{Invocation, run_again, run_longer, run_protected};
use crate::{term, words};

/// Settings that `run` has a flag for: the key's path and the flag.
pub(super) const FLAGS: [(&str, &str); 12] = [
    ("outputLevel", "--output"),
    ("kind", "--agent"),
    ("fallback.kind", "--fallback-agent"),
    ("verification.command", "--verify"),
    ("maxCost", "--max-cost"),
    ("maxTokens", "--max-tokens"),
    ("maxTime", "--max-time"),
    ("maxIterationCost", "--max-iteration-cost"),
    ("maxIterationTokens", "--max-iteration-tokens"),
    ("maxFailures", "--max-failures"),
    ("maxNoProgress", "--max-no-progress"),
    ("onLimit", "--on-limit"),
];

fn flag(path: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(known, _)| *known == path).map(|(_, flag)| *flag)
}

/// What is wrong with the settings, one line each. A value that came from a flag is named by the flag.
pub(super) fn settings_errors(errors: &SettingsErrors, by_flag: &dyn Fn(&str) -> bool) -> String {
    let line = |error: &SettingError| match error {
        SettingError::Invalid { path, reason } => match flag(path).filter(|_| by_flag(path)) {
            Some(flag) => format!("{flag}: {reason}"),
            None => error.to_string(),
        },
        SettingError::UnknownKey { .. } => error.to_string(),
    };
    errors.0.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A setting that the chosen agent does not support.
pub(super) fn unsupported(setting: &UnsupportedSetting) -> String {
    match setting {
        UnsupportedSetting::CostNotReported { path, kind } => unmeasurable(path, *kind, "its cost"),
        UnsupportedSetting::TokensNotReported { path, kind } => {
            unmeasurable(path, *kind, "its tokens")
        }
        UnsupportedSetting::ProgressNotTracked => {
            "--max-no-progress needs agent.track_file_changes, which is off".to_owned()
        }
        UnsupportedSetting::NoCommand { path } => format!(
            "a custom agent needs agent.{path}; set it with `retake agent config {path} PROGRAM`"
        ),
        UnsupportedSetting::FallbackIsSame { kind } => format!(
            "--fallback-agent {kind} would meet the same limit; name another agent, or set \
             agent.fallback.command or agent.fallback.args for another account"
        ),
    }
}

/// A budget that cannot be enforced with this agent.
fn unmeasurable(path: &str, kind: AgentKind, what: &str) -> String {
    let option = flag(path).unwrap_or(path);
    format!(
        "{option} cannot be used with {kind}, which does not report {what}; use --max-time or \
         --max-iterations"
    )
}

/// Why a task cannot be opened.
pub(super) fn task_error(error: &TaskError, name: &Name) -> String {
    match error {
        TaskError::NoInstructions => no_instructions(name),
        TaskError::Workspace(error) => error.to_string(),
    }
}

/// Why a session cannot start.
pub(super) fn start_error(error: &StartError) -> String {
    match error {
        StartError::NoProcess(error) => words::no_process(error),
        StartError::RootRefused => root_refused().to_owned(),
        StartError::AgentNotFound { kind, command } => no_agent(*kind, command),
        StartError::Refused(reasons) => {
            let lines: Vec<String> = reasons.iter().map(words::refusal).collect();
            lines.join("\n")
        }
        StartError::NotConfined(failure) => words::not_confined(failure),
        StartError::Checkpoint(error) => checkpoint_error(error),
        StartError::CheckpointsUnrecorded => {
            "--checkpoint needs the record, which says what belongs to which iteration".to_owned()
        }
        StartError::RollbackInterrupted { target } => format!(
            "a rollback to {} was interrupted, and the files are a mix of both states; \
             `retake agent rollback NAME` finishes it, `--undo` reverts it",
            target.number
        ),
        error => error.to_string(),
    }
}

/// Why there is no report.
pub(super) fn report_error(error: &ReportError) -> String {
    match error {
        ReportError::Start(error) => start_error(error),
        error => error.to_string(),
    }
}

/// Why a workspace cannot be run.
pub(super) fn workspace_problem(problem: &WorkspaceProblem, workspace: &Workspace) -> String {
    match problem {
        WorkspaceProblem::NoInstructions => no_instructions(workspace.name()),
        problem => problem.to_string(),
    }
}

/// Claude Code refuses to skip permissions for root.
fn root_refused() -> &'static str {
    "Claude refuses --dangerously-skip-permissions to root. Run as another user, set \
     IS_SANDBOX=1 if this is a sandbox, or allow tools by name with claude.args: \
     [--allowedTools, Bash]."
}

/// Why a loop ended.
pub(super) fn stop_reason(reason: AgentStopReason) -> &'static str {
    match reason {
        AgentStopReason::Completed => "the task is complete",
        AgentStopReason::MaxIterations => "the maximum number of iterations is reached",
        AgentStopReason::Stagnation => "no work is being done",
        AgentStopReason::NoProgress => "no progress",
        AgentStopReason::Failed => "an iteration failed",
        AgentStopReason::BudgetCost => "cost budget exhausted",
        AgentStopReason::BudgetTokens => "token budget exhausted",
        AgentStopReason::BudgetTime => "time budget exhausted",
        AgentStopReason::RateLimit => "the account's limit is reached",
        AgentStopReason::VerifyFailed => "verification does not pass",
        AgentStopReason::Stopped => "stopped on request",
        AgentStopReason::Interrupted => "interrupted",
    }
}

/// The same with what the loop itself knows.
pub(super) fn why_stopped(stopped: &StoppedLoop<'_>) -> String {
    match stopped.reason {
        AgentStopReason::Failed if stopped.failures > 1 => {
            format!("{} failed in a row", term::count(stopped.failures.into(), "iteration"))
        }
        AgentStopReason::VerifyFailed if stopped.gate_cannot_run => {
            "the verification command cannot be run".to_owned()
        }
        reason => stop_reason(reason).to_owned(),
    }
}

pub(super) fn verification_failed(cannot_run: bool) -> &'static str {
    match cannot_run {
        true => "⚠️ The verification command cannot be run, which the agent cannot change",
        false => "⚠️ Verification failed: the task is not accepted as complete",
    }
}

pub(super) const DRY_RUN: &str =
    "Dry run: a mock agent works on a copy of the workspace, and nothing is recorded";

pub(super) fn continued(last_iteration: u32) -> String {
    format!("Continuing the loop that was interrupted after iteration {last_iteration}")
}

pub(super) fn not_accepted() -> &'static str {
    "Verification does not pass: the task is not accepted as complete"
}

/// The agent's program was not found; how to choose another one.
pub(super) fn no_agent(kind: AgentKind, command: &str) -> String {
    let hint = match kind {
        _ if command.contains(char::is_whitespace) => {
            "the whole text is the name of the program; put its arguments in agent.args"
        }
        AgentKind::Custom => "name another program with `retake agent config command PROGRAM`",
        _ => {
            "choose another agent with `retake agent config kind KIND`: claude, codex, gemini, \
             opencode or custom; `retake agent run NAME --dry-run` needs none"
        }
    };
    format!("{}\nhint: {hint}", not_found(kind, command))
}

/// There are no instructions; how to write them.
pub(super) fn no_instructions(name: &Name) -> String {
    format!(
        "{}\nhint: or write INSTRUCTIONS.md yourself; `retake agent show {name}` prints the directory",
        instructions_not_found(name)
    )
}

fn not_found(kind: AgentKind, command: &str) -> String {
    let title = kind.title();
    match kind {
        AgentKind::Custom => {
            format!("Agent not found. Make sure '{command}' is installed and in PATH.")
        }
        _ => format!("{title} CLI not found. Make sure '{command}' is installed and in PATH."),
    }
}

fn instructions_not_found(name: &Name) -> String {
    format!("Instructions not found. Run setup first: retake agent setup {name}")
}

pub(super) fn iteration_failed(number: u32) -> String {
    format!("Iteration {number} failed")
}

pub(super) fn running_iteration(number: u32) -> String {
    format!("Running iteration {number}...")
}

pub(super) fn completed(iterations: u32) -> String {
    format!("✓ Task completed successfully after {}", term::count(iterations.into(), "iteration"))
}

/// The message after a loop was started in the background.
pub(super) fn detached(name: &str) -> impl Fn(i32) -> String {
    move |pid| {
        format!(
            "✓ {name} runs in the background (pid {pid})\n\
             → Follow it: retake agent attach {name}\n\
             → Stop it: retake agent stop {name}\n"
        )
    }
}

/// The message after a person stops following a loop.
pub(super) fn left_running(name: &str) -> String {
    format!(
        "{name} continues to run\n\
         → Follow it again: retake agent attach {name}\n\
         → Stop it: retake agent stop {name}\n"
    )
}

pub(super) fn runner_died(name: &str, options: &[String]) -> String {
    format!("its retake process died; `{}` continues it", run_again(name, options))
}

pub(super) fn not_running(name: &str) -> String {
    format!("{name} is not running; `retake agent show {name}` shows what it did")
}

pub(super) fn agent_changed(kind: AgentKind, role: AgentRole) -> String {
    let title = kind.title();
    match role {
        AgentRole::Fallback => format!("⚠️ The account's limit is reached: {title} takes over"),
        AgentRole::First => format!("{title} works again"),
    }
}

pub(super) fn already_complete(name: &str, options: &[String]) -> String {
    let command = run_again(name, options);
    format!("✓ {name} is already complete\n→ Run it again: {command} --again\n")
}

pub(super) fn items_remaining(remaining: u64) -> String {
    format!("({} remaining)", term::count(remaining, "item"))
}

pub(super) fn max_iterations(most: u32) -> String {
    format!("⚠️ Reached maximum iterations ({most})")
}

/// How to run a task again.
pub(super) fn continue_with(name: &Name, options: &[String]) -> String {
    format!("→ Continue: {}", run_again(name.as_str(), options))
}

/// The same after a gate that cannot be run.
pub(super) fn correct_gate(name: &Name, options: &[String]) -> String {
    let command = run_again(name.as_str(), options);
    format!("→ Correct the verification command, then continue: {command}")
}

/// What several tasks had used before their process died.
pub(super) fn used_before(spent: Spent, time: Duration) -> String {
    let time = display::time(time);
    match spent == Spent::default() {
        true => format!("worked for {time}; no cost was reported"),
        false => format!("used {} in {time}", display::spent(spent)),
    }
}

/// The last run of a task was protected, and this one is not. `options` are those of the last run, and
/// `now` is the command that runs it this time.
pub(super) fn protections_dropped(
    (sandbox, verification): (bool, bool),
    name: &Name,
    options: &[String],
    now: &Invocation,
) -> String {
    let mut lines = Vec::new();
    if sandbox {
        lines.push("⚠️ the last run was confined; this one is not: add --sandbox".to_owned());
    }
    if verification {
        let verify = options.iter().position(|word| word == "--verify");
        let command = verify.and_then(|at| options.get(at + 1));
        let command = command.map_or("COMMAND".to_owned(), |command| quote([command.as_str()]));
        lines.push(format!(
            "⚠️ completion of the last run had to pass a verification; this run accepts it without: \
             add --verify {command}"
        ));
    }
    let command = match now {
        _ if options.is_empty() => None,
        Invocation::Run(typed) => Some(run_protected(typed, options, sandbox)),
        Invocation::Queue => None,
        Invocation::Other => Some(run_again(name.as_str(), options)),
    };
    if let Some(command) = command {
        lines.push(format!("→ With the options of the last run: {command}"));
    } else if sandbox && matches!(now, Invocation::Queue) {
        lines.push("→ Confine it: retake agent queue run --sandbox".to_owned());
    }
    lines.join("\n")
}

/// The first iteration did nothing, and nothing ends a loop of such iterations.
pub(super) fn nothing_done(number: u32) -> String {
    format!(
        "⚠️ Iteration {number} changed no file and wrote no .status.json. Iterations without progress do not \
         end this loop; --max-no-progress 3 ends it after three in a row"
    )
}

/// Where the whole output of a run is.
pub(super) fn see_output(run: RunId) -> String {
    format!("→ Its output: retake runs logs {}", run.short())
}

/// What to do after the maximum was reached: continue, increase the limit, check progress.
pub(super) fn max_iterations_options(name: &Name, options: &[String], most: u32) -> [String; 3] {
    [
        continue_with(name, options),
        format!(
            "→ Increase the limit: {}",
            run_longer(name.as_str(), options, most.saturating_mul(2))
        ),
        format!("→ Check progress: retake agent show {name}"),
    ]
}

/// Why files could not be restored.
pub(super) fn checkpoint_error(error: &CheckpointError) -> String {
    match error {
        CheckpointError::NoRepository(_) => {
            format!("{error}; checkpoints are kept in git: run `git init` first")
        }
        CheckpointError::NotRestored(_) => {
            format!("{error}. Something else changes them: stop it, then run `rollback` again")
        }
        other => other.to_string(),
    }
}

pub(super) fn rollback_error(error: &RollbackError, name: &Name) -> String {
    match error {
        RollbackError::NoCheckpoints => no_checkpoints(name),
        RollbackError::NoSuch { choice, known } => {
            format!("{}; choose from {known}", no_such_checkpoint(name, choice))
        }
        RollbackError::NothingToUndo => format!("{name} was not rolled back"),
        RollbackError::AlreadyUndone { again } => {
            let to = match again {
                CheckpointChoice::Iteration(number) => number.to_string(),
                CheckpointChoice::Commit(commit) => commit.clone(),
            };
            format!(
                "the rollback was already undone; `retake agent rollback {name} --to {to}` does it again"
            )
        }
        RollbackError::NothingToFinish => {
            format!("choose a checkpoint with --to; `retake agent checkpoints {name}` lists them")
        }
        RollbackError::Checkpoint(error) => checkpoint_error(error),
        RollbackError::Journal { .. } => error.to_string(),
    }
}

pub(super) fn no_such_iteration(name: &Name, number: u32) -> String {
    format!("{name} has no iteration {number}; `retake agent show {name}` lists them")
}

pub(super) fn no_checkpoints(name: &Name) -> String {
    format!("{name} has no checkpoints; run it with --checkpoint")
}

pub(super) fn no_such_checkpoint(name: &Name, choice: &CheckpointChoice) -> String {
    format!("{name} has no checkpoint of {choice}")
}

pub(super) fn nothing_before(number: &str) -> String {
    format!("there is no checkpoint before {number}")
}

pub(super) fn stagnation(iterations: u32) -> String {
    format!(
        "⚠️ Stagnation detected: {} with no work",
        term::count(iterations.into(), "consecutive iteration")
    )
}

pub(super) fn permissions_skipped(kind: AgentKind) -> String {
    format!(
        "⚠️ --dangerously-skip-permissions: {} will not ask before it changes files or runs commands",
        kind.title()
    )
}

pub(super) fn todo_fallback() -> &'static str {
    "⚠️ No valid .status.json: using the check boxes in TODO.md"
}

pub(super) fn stale_completion() -> &'static str {
    "⚠️ .status.json said complete before this run began; that does not count"
}

/// `--output`, `-v` and `-q` set the same value.
pub(super) fn conflicting_output() -> &'static str {
    "--verbose, --quiet and --output cannot be used together"
}

#[cfg(test)]
mod tests {
    use retake_agent::settings::{Settings, Value};

    use super::*;

    #[test]
    fn to_the_letter() {
        let name = Name::new("my-task").unwrap();
        assert_eq!(
            not_found(AgentKind::Claude, "claude"),
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

    #[test]
    fn values_are_named_by_the_flag_that_gave_them() {
        let given = [("maxCost".to_owned(), Value::from("much"))];
        let errors = Settings::read(&given.into()).unwrap_err();
        let by_flag = settings_errors(&errors, &|path| path == "maxCost");
        assert_eq!(by_flag, "--max-cost: \"much\" is not an amount of money above 0");
        let by_file = settings_errors(&errors, &|_| false);
        assert_eq!(by_file, "agent.maxCost: \"much\" is not an amount of money above 0");
    }

    #[test]
    fn messages_about_unsupported_settings_name_the_option() {
        let cost = UnsupportedSetting::CostNotReported { path: "maxCost", kind: AgentKind::Codex };
        assert_eq!(
            unsupported(&cost),
            "--max-cost cannot be used with codex, which does not report its cost; use --max-time or \
             --max-iterations"
        );
        let tokens =
            UnsupportedSetting::TokensNotReported { path: "maxTokens", kind: AgentKind::Custom };
        assert!(unsupported(&tokens).contains("--max-tokens cannot be used with custom"));
        let none = UnsupportedSetting::NoCommand { path: "fallback.command" };
        assert!(unsupported(&none).contains("agent.fallback.command"));
        assert!(unsupported(&UnsupportedSetting::ProgressNotTracked).contains("--max-no-progress"));
        assert!(start_error(&StartError::RootRefused).contains("IS_SANDBOX=1"));
    }
}
