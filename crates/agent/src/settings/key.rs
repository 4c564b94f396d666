//! The keys under `agent:`: name, kind, default, and what each is for.
//!
//! One table for whoever reads configuration, prints it, or writes a commented file.

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Text,
    /// Whole, within these bounds.
    Number {
        min: u64,
        max: u64,
    },
    /// US dollars, more than nothing.
    Money,
    Truth,
    Duration,
    Word(&'static [&'static str]),
    Words,
    /// Names with values.
    Pairs,
}

#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Without the `agent.` in front.
    pub path: &'static str,
    pub takes: Takes,
    /// Empty: unset.
    pub default: &'static str,
    /// Whether a workspace may set it in the `config` object of its metadata.
    pub workspace: bool,
    pub about: &'static str,
}

const fn key(
    path: &'static str,
    takes: Takes,
    default: &'static str,
    workspace: bool,
    about: &'static str,
) -> Key {
    Key { path, takes, default, workspace, about }
}

const COUNT: Takes = Takes::Number { min: 1, max: 1_000_000 };
const FROM_ZERO: Takes = Takes::Number { min: 0, max: 1_000_000 };
const W: bool = true;
const P: bool = false;

pub const KEYS: [Key; 54] = [
    key("workspacesDir", Takes::Text, ".agent/workspaces", P, "Where workspaces are"),
    key("templatesDir", Takes::Text, ".agent/templates", P, "Where the project's templates are"),
    key("archiveDir", Takes::Text, ".agent/archive", P, "Where archived workspaces are"),
    key("promptsDir", Takes::Text, ".agent/prompts", P, "Where the project's own prompts are"),
    key("globalTemplatesDir", Takes::Text, "", P, "Where templates for all projects are"),
    key("colors", Takes::Truth, "true", P, "Whether output on a terminal is coloured"),
    key(
        "defaultMaxIterations",
        COUNT,
        "",
        P,
        "Iterations of a run (unset: 50 in loop mode, 20 in iterative)",
    ),
    key("defaultDelay", Takes::Duration, "2s", P, "Pause between iterations"),
    key(
        "defaultStagnationThreshold",
        FROM_ZERO,
        "2",
        P,
        "Iterations without work before an iterative run stops; 0 is never",
    ),
    key(
        "outputLevel",
        Takes::Word(&["quiet", "progress", "verbose"]),
        "progress",
        W,
        "How much is shown",
    ),
    key("notifyUrl", Takes::Text, "", W, "Where notifications are posted (ntfy)"),
    key("notifyEvents", Takes::Words, "all", W, "Which events are notified"),
    key("notifyTimeout", Takes::Duration, "10s", P, "How long one notification may take"),
    key(
        "notification.statusWatch.enabled",
        Takes::Truth,
        "true",
        P,
        "Whether changes of the status are notified",
    ),
    key(
        "notification.statusWatch.debounceMs",
        Takes::Number { min: 500, max: 10_000 },
        "2000",
        P,
        "How long a status must rest before it is passed on",
    ),
    key(
        "notification.statusWatch.notifyOnlyMeaningful",
        Takes::Truth,
        "true",
        P,
        "Whether a new time stamp alone is passed over",
    ),
    key(
        "kind",
        Takes::Word(&["claude", "codex", "gemini", "opencode", "custom"]),
        "claude",
        W,
        "Which agent",
    ),
    key("command", Takes::Text, "", W, "The agent's program (unset: its own name)"),
    key("args", Takes::Words, "", W, "Arguments for the agent"),
    key("claude.command", Takes::Text, "claude", W, "The program of Claude Code"),
    key("claude.args", Takes::Words, "", W, "Arguments for Claude Code"),
    key("timeout", Takes::Duration, "1800s", W, "An iteration is ended after this time"),
    key("resultGrace", Takes::Duration, "60s", W, "How long an agent may live on after its result"),
    key("env", Takes::Pairs, "", W, "Variables for the agent"),
    key("track_file_changes", Takes::Truth, "true", W, "Whether changed files are found out"),
    key("parse_tests", Takes::Truth, "true", W, "Whether test results are read from the output"),
    key("hooks.pre.run", Takes::Text, "", W, "A command before each iteration"),
    key("hooks.pre.timeout", Takes::Duration, "30s", W, "How long it may take"),
    key(
        "hooks.pre.on_failure",
        Takes::Word(&["skip", "stop"]),
        "stop",
        W,
        "Whether its failure leaves the iteration out or ends the loop",
    ),
    key("hooks.post.run", Takes::Text, "", W, "A command after each iteration"),
    key("hooks.post.timeout", Takes::Duration, "30s", W, "How long it may take"),
    key(
        "hooks.post.on_failure",
        Takes::Word(&["skip", "stop"]),
        "stop",
        W,
        "Whether its failure is passed over or ends the loop",
    ),
    key(
        "verification.autoVerify",
        Takes::Truth,
        "false",
        W,
        "Whether the agent itself verifies completion",
    ),
    key(
        "verification.command",
        Takes::Text,
        "",
        W,
        "A command that must pass before completion is accepted",
    ),
    key("verification.timeout", Takes::Duration, "1800s", W, "How long verification may take"),
    key(
        "verification.resumeOnFail",
        Takes::Truth,
        "true",
        W,
        "Whether the loop goes on when verification fails",
    ),
    key(
        "verification.maxAttempts",
        Takes::Number { min: 1, max: 10 },
        "2",
        W,
        "How often the loop goes on after a failed verification",
    ),
    key(
        "verification.reportFilename",
        Takes::Text,
        "verification-report.md",
        W,
        "The name of the report in reports/",
    ),
    key(
        "verification.depth",
        Takes::Word(&["quick", "standard", "deep"]),
        "standard",
        W,
        "How closely the agent looks",
    ),
    key(
        "verification.notifyOnVerification",
        Takes::Truth,
        "true",
        W,
        "Whether the result is notified",
    ),
    key(
        "todoFallback",
        Takes::Truth,
        "true",
        W,
        "Whether TODO.md decides while there is no valid status",
    ),
    key("maxCost", Takes::Money, "", W, "What a loop may cost, in US dollars"),
    key("maxTokens", COUNT_TOKENS, "", W, "How many tokens a loop may use"),
    key("maxTime", Takes::Duration, "", W, "How long a loop may take"),
    key("maxIterationCost", Takes::Money, "", W, "What one iteration may cost, in US dollars"),
    key("maxIterationTokens", COUNT_TOKENS, "", W, "How many tokens one iteration may use"),
    key("maxFailures", FROM_ZERO, "1", W, "Failures in a row before the loop stops; 0 is never"),
    key(
        "maxNoProgress",
        FROM_ZERO,
        "0",
        W,
        "Iterations in a row without progress before the loop stops; 0 is never",
    ),
    key(
        "onLimit",
        Takes::Word(&["wait", "stop"]),
        "wait",
        W,
        "What to do when the account's limit is reached",
    ),
    key(
        "retry.first",
        Takes::Duration,
        "1s",
        W,
        "Wait before the first new try after an API error; doubles",
    ),
    key("retry.longest", Takes::Duration, "60s", W, "The longest such wait"),
    key("retry.tries", FROM_ZERO, "10", W, "New tries before the iteration counts as failed"),
    key(
        "checkpoint",
        Takes::Truth,
        "false",
        W,
        "Whether the tree's state is kept in git after each iteration",
    ),
    key(
        "failIncomplete",
        Takes::Truth,
        "false",
        W,
        "Whether a stop without completion has an exit code of its own",
    ),
];

const COUNT_TOKENS: Takes = Takes::Number { min: 1, max: 1_000_000_000_000 };
