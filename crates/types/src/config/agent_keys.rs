//! The keys under `agent:`.

use super::keys::{Key, KeyKind};

const fn agent(
    path: &'static str,
    kind: KeyKind,
    default: &'static str,
    workspace: bool,
    about: &'static str,
) -> Key {
    Key { path, kind, default, about, workspace }
}

const COUNT: KeyKind = KeyKind::Number { min: 1, max: 1_000_000 };
const COUNT_TOKENS: KeyKind = KeyKind::Number { min: 1, max: 1_000_000_000_000 };
const FROM_ZERO: KeyKind = KeyKind::Number { min: 0, max: 1_000_000 };
const W: bool = true;
const P: bool = false;

pub(super) const KEYS: [Key; 63] = [
    agent("agent.workspacesDir", KeyKind::Text, ".agent/workspaces", P, "Where workspaces are"),
    agent(
        "agent.templatesDir",
        KeyKind::Text,
        ".agent/templates",
        P,
        "Where the project's templates are",
    ),
    agent("agent.archiveDir", KeyKind::Text, ".agent/archive", P, "Where archived workspaces are"),
    agent(
        "agent.promptsDir",
        KeyKind::Text,
        ".agent/prompts",
        P,
        "Where the project's own prompts are",
    ),
    agent("agent.globalTemplatesDir", KeyKind::Text, "", P, "Where templates for all projects are"),
    agent(
        "agent.worktreeInclude",
        KeyKind::Words,
        "",
        P,
        "Ignored files that each of several agents gets a copy of, as patterns of .gitignore",
    ),
    agent("agent.colors", KeyKind::Truth, "true", P, "Whether output on a terminal is coloured"),
    agent(
        "agent.defaultMaxIterations",
        COUNT,
        "",
        P,
        "Maximum iterations of a run (unset: 50 in loop mode, 20 in iterative)",
    ),
    agent("agent.defaultDelay", KeyKind::Duration, "2s", P, "Pause between iterations"),
    agent(
        "agent.defaultStagnationThreshold",
        FROM_ZERO,
        "2",
        P,
        "Iterations without work before an iterative run stops; 0 means never",
    ),
    agent(
        "agent.outputLevel",
        KeyKind::Word(&["quiet", "progress", "verbose"]),
        "progress",
        W,
        "How much output to show",
    ),
    agent("agent.notifyUrl", KeyKind::Text, "", W, "Where notifications are posted (ntfy)"),
    agent(
        "agent.notifyFormat",
        KeyKind::Word(&["ntfy", "json"]),
        "ntfy",
        W,
        "Format of notifications: for ntfy, or a JSON object",
    ),
    agent(
        "agent.on_blocked",
        KeyKind::Word(&["pause", "continue"]),
        "pause",
        W,
        "Whether the loop pauses when the agent reports blockers",
    ),
    agent("agent.notifyEvents", KeyKind::Words, "all", W, "Events to send notifications for"),
    agent("agent.notifyTimeout", KeyKind::Duration, "10s", P, "Timeout of one notification"),
    agent(
        "agent.notification.statusWatch.enabled",
        KeyKind::Truth,
        "true",
        P,
        "Whether to send a notification when the status changes",
    ),
    agent(
        "agent.notification.statusWatch.debounceMs",
        KeyKind::Number { min: 500, max: 10_000 },
        "2000",
        P,
        "How long a status must stay unchanged before it is sent",
    ),
    agent(
        "agent.notification.statusWatch.notifyOnlyMeaningful",
        KeyKind::Truth,
        "true",
        P,
        "Whether to ignore a status change that only updates the timestamp",
    ),
    agent(
        "agent.kind",
        KeyKind::Word(&["claude", "codex", "gemini", "opencode", "custom"]),
        "claude",
        W,
        "Which agent to run",
    ),
    agent("agent.command", KeyKind::Text, "", W, "The agent's program (unset: its own name)"),
    agent("agent.args", KeyKind::Words, "", W, "Arguments for the agent"),
    agent("agent.claude.command", KeyKind::Text, "claude", W, "The program of Claude Code"),
    agent("agent.claude.args", KeyKind::Words, "", W, "Arguments for Claude Code"),
    agent(
        "agent.fallback.kind",
        KeyKind::Word(&["none", "claude", "codex", "gemini", "opencode", "custom"]),
        "none",
        W,
        "Which agent takes over while the first one waits for its usage limit",
    ),
    agent(
        "agent.fallback.command",
        KeyKind::Text,
        "",
        W,
        "The program of the fallback agent (unset: its own name)",
    ),
    agent("agent.fallback.args", KeyKind::Words, "", W, "Arguments for the fallback agent"),
    agent("agent.timeout", KeyKind::Duration, "1800s", W, "Maximum duration of an iteration"),
    agent(
        "agent.resultGrace",
        KeyKind::Duration,
        "60s",
        W,
        "How long an agent may keep running after its result",
    ),
    agent("agent.env", KeyKind::Pairs, "", W, "Variables for the agent"),
    agent("agent.track_file_changes", KeyKind::Truth, "true", W, "Whether to detect changed files"),
    agent(
        "agent.parse_tests",
        KeyKind::Truth,
        "true",
        W,
        "Whether test results are read from the output",
    ),
    agent("agent.hooks.pre.run", KeyKind::Text, "", W, "A command before each iteration"),
    agent("agent.hooks.pre.timeout", KeyKind::Duration, "30s", W, "Timeout of the pre hook"),
    agent(
        "agent.hooks.pre.on_failure",
        KeyKind::Word(&["skip", "stop"]),
        "stop",
        W,
        "Whether a failure of the pre hook skips the iteration or stops the loop",
    ),
    agent("agent.hooks.post.run", KeyKind::Text, "", W, "A command after each iteration"),
    agent("agent.hooks.post.timeout", KeyKind::Duration, "30s", W, "Timeout of the post hook"),
    agent(
        "agent.hooks.post.on_failure",
        KeyKind::Word(&["skip", "stop"]),
        "stop",
        W,
        "Whether a failure of the post hook is ignored or stops the loop",
    ),
    agent("agent.hooks.end.run", KeyKind::Text, "", W, "A command after the loop"),
    agent("agent.hooks.end.timeout", KeyKind::Duration, "30s", W, "Timeout of the end hook"),
    agent(
        "agent.verification.autoVerify",
        KeyKind::Truth,
        "false",
        W,
        "Whether the agent verifies completion itself",
    ),
    agent(
        "agent.verification.command",
        KeyKind::Text,
        "",
        W,
        "A command that must pass before completion is accepted",
    ),
    agent("agent.verification.timeout", KeyKind::Duration, "1800s", W, "Timeout of verification"),
    agent(
        "agent.verification.resumeOnFail",
        KeyKind::Truth,
        "true",
        W,
        "Whether the loop continues when verification fails",
    ),
    agent(
        "agent.verification.maxAttempts",
        KeyKind::Number { min: 1, max: 10 },
        "2",
        W,
        "How often the loop may continue after a failed verification",
    ),
    agent(
        "agent.verification.reportFilename",
        KeyKind::Text,
        "verification-report.md",
        W,
        "The name of the report in reports/",
    ),
    agent(
        "agent.verification.depth",
        KeyKind::Word(&["quick", "standard", "deep"]),
        "standard",
        W,
        "How thoroughly the agent verifies",
    ),
    agent(
        "agent.verification.notifyOnVerification",
        KeyKind::Truth,
        "true",
        W,
        "Whether to send a notification with the verification's result",
    ),
    agent(
        "agent.todoFallback",
        KeyKind::Truth,
        "true",
        W,
        "Whether TODO.md decides completion while there is no valid status",
    ),
    agent("agent.maxCost", KeyKind::Money, "", W, "Maximum cost of a loop, in US dollars"),
    agent("agent.maxTokens", COUNT_TOKENS, "", W, "Maximum tokens of a loop"),
    agent("agent.maxTime", KeyKind::Duration, "", W, "Maximum duration of a loop"),
    agent(
        "agent.maxIterationCost",
        KeyKind::Money,
        "",
        W,
        "Maximum cost of an iteration, in US dollars",
    ),
    agent("agent.maxIterationTokens", COUNT_TOKENS, "", W, "Maximum tokens of an iteration"),
    agent(
        "agent.maxFailures",
        FROM_ZERO,
        "1",
        W,
        "Failures in a row before the loop stops; 0 means never",
    ),
    agent(
        "agent.maxNoProgress",
        FROM_ZERO,
        "0",
        W,
        "Iterations in a row without progress before the loop stops; 0 means never",
    ),
    agent(
        "agent.onLimit",
        KeyKind::Word(&["wait", "stop"]),
        "wait",
        W,
        "What to do when the account's limit is reached",
    ),
    agent(
        "agent.retry.first",
        KeyKind::Duration,
        "1s",
        W,
        "Wait before the first retry after an API error; doubles with each retry",
    ),
    agent("agent.retry.longest", KeyKind::Duration, "10m", W, "The longest wait between retries"),
    agent("agent.retry.tries", FROM_ZERO, "30", W, "Retries before the iteration counts as failed"),
    agent(
        "agent.checkpoint",
        KeyKind::Truth,
        "false",
        W,
        "Whether to save the project's files in git after each iteration",
    ),
    agent(
        "agent.failIncomplete",
        KeyKind::Truth,
        "false",
        W,
        "Whether a loop that stops before completion has a distinct exit code",
    ),
    agent(
        "agent.mcp",
        KeyKind::Truth,
        "false",
        P,
        "Whether agents are offered retake's MCP server to run their commands with",
    ),
];

/// The key with this path below `agent`.
pub fn agent_key(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path.strip_prefix("agent.") == Some(path))
}

/// The keys that configure an agent's loop, with their paths below `agent`.
pub fn agent_keys() -> impl Iterator<Item = (&'static str, &'static Key)> {
    let keys = KEYS.iter().filter_map(|key| Some((key.path.strip_prefix("agent.")?, key)));
    // `agent.mcp` is read before a loop starts, so a loop does not have it.
    keys.filter(|(path, _)| *path != "mcp")
}
