//! The options of `exec`, as data: the parser, the help, the manual page and the command policy all
//! read this table.

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagValue {
    /// A switch without a value.
    None,
    /// One value, with its name in help.
    One(&'static str),
    /// One value; the option can be repeated.
    Many(&'static str),
    /// A value only after `=`.
    Optional(&'static str),
}

/// Names an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExecFlag {
    Timeout,
    NoTimeout,
    Grace,
    Limit,
    Nice,
    Cwd,
    Env,
    EnvFile,
    Unset,
    EnvMode,
    Shell,
    Stdin,
    Pty,
    On,
    DetachOk,
    Sandbox,
    AllowWrite,
    DenyWrite,
    AllowRead,
    DenyRead,
    AllowSocket,
    AllowNet,
    Quarantine,
    SandboxSettings,
    Track,
    Exact,
    Tests,
    Json,
    Quiet,
    Capture,
    MaxOutputKb,
    Secret,
    NoRedact,
    Label,
    RunId,
    SessionId,
    TaskId,
    StepId,
    ToolCallId,
    WorktreeId,
    RepoSha,
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct FlagDefinition {
    pub flag: ExecFlag,
    /// Without the leading `--`.
    pub long: &'static str,
    pub short: Option<char>,
    pub value: FlagValue,
    pub heading: &'static str,
    pub help: &'static str,
    /// The environment variable that supplies a default.
    pub variable: Option<&'static str>,
    /// Another option that this one requires.
    pub requires: Option<ExecFlag>,
    pub conflicts_with: Option<ExecFlag>,
    /// Whether a value may begin with a hyphen.
    pub hyphen_values: bool,
}

impl FlagDefinition {
    /// Whether `typed` is this option: `--quiet`, `-q`.
    #[must_use]
    pub fn is_named(&self, typed: &str) -> bool {
        match typed.strip_prefix("--") {
            Some(long) => long == self.long,
            None => typed.strip_prefix('-').is_some_and(|letter| {
                let mut letters = letter.chars();
                letters.next() == self.short && self.short.is_some() && letters.next().is_none()
            }),
        }
    }
}

const TIME: &str = "Time and limits";
const ENVIRONMENT: &str = "Environment";
const SANDBOX: &str = "Sandbox";
const EFFECTS: &str = "Effects";
const OUTPUT: &str = "Output";
const RECORD: &str = "Record";

const fn flag(
    flag: ExecFlag,
    long: &'static str,
    value: FlagValue,
    heading: &'static str,
    help: &'static str,
) -> FlagDefinition {
    FlagDefinition {
        flag,
        long,
        short: None,
        value,
        heading,
        help,
        variable: None,
        requires: None,
        conflicts_with: None,
        hyphen_values: false,
    }
}

const fn from_variable(
    flag_: ExecFlag,
    long: &'static str,
    value: &'static str,
    variable: &'static str,
    help: &'static str,
) -> FlagDefinition {
    let definition = flag(flag_, long, FlagValue::One(value), RECORD, help);
    FlagDefinition { variable: Some(variable), ..definition }
}

const fn with_hyphens(definition: FlagDefinition) -> FlagDefinition {
    FlagDefinition { hyphen_values: true, ..definition }
}

const fn in_sandbox(definition: FlagDefinition) -> FlagDefinition {
    FlagDefinition { requires: Some(ExecFlag::Sandbox), ..definition }
}

/// Every option of `exec`, in the order of its help.
pub const EXEC_FLAGS: [FlagDefinition; 41] = [
    with_hyphens(flag(
        ExecFlag::Timeout,
        "timeout",
        FlagValue::One("TIME"),
        TIME,
        "End the run after this time: seconds, or 500ms, 90s, 5m, 2h [default: 300, from configuration]",
    )),
    FlagDefinition {
        conflicts_with: Some(ExecFlag::Timeout),
        ..flag(ExecFlag::NoTimeout, "no-timeout", FlagValue::None, TIME, "Never time out")
    },
    with_hyphens(flag(
        ExecFlag::Grace,
        "grace",
        FlagValue::One("TIME"),
        TIME,
        "Time between SIGTERM and SIGKILL [default: 5]",
    )),
    flag(
        ExecFlag::Limit,
        "limit",
        FlagValue::Many("NAME=VALUE"),
        TIME,
        "memory=512M, cpu=10s, procs=64 for the whole tree; files=256, fsize=1G for each process. Repeatable; K, M and G are powers of 1024",
    ),
    with_hyphens(flag(
        ExecFlag::Nice,
        "nice",
        FlagValue::One("N"),
        TIME,
        "Scheduling priority, -20 (highest) to 19 (lowest)",
    )),
    flag(ExecFlag::Cwd, "cwd", FlagValue::One("DIR"), ENVIRONMENT, "Run in this directory"),
    flag(
        ExecFlag::Env,
        "env",
        FlagValue::Many("NAME=VALUE"),
        ENVIRONMENT,
        "Set a variable; repeatable",
    ),
    flag(
        ExecFlag::EnvFile,
        "env-file",
        FlagValue::Many("FILE"),
        ENVIRONMENT,
        "Set the variables in a file of NAME=VALUE lines; repeatable",
    ),
    flag(
        ExecFlag::Unset,
        "unset",
        FlagValue::Many("NAME"),
        ENVIRONMENT,
        "Remove a variable; repeatable",
    ),
    flag(
        ExecFlag::EnvMode,
        "env-mode",
        FlagValue::One("MODE"),
        ENVIRONMENT,
        "Variables that the command starts with: inherit (all of retake's), merge (all but secrets and dangerous ones), replace (only those given) [default: inherit]",
    ),
    flag(
        ExecFlag::Shell,
        "shell",
        FlagValue::One("MODE"),
        ENVIRONMENT,
        "Whether a command given as one string may use a shell: auto, true or false [default: auto]",
    ),
    flag(
        ExecFlag::Stdin,
        "stdin",
        FlagValue::One("FROM"),
        ENVIRONMENT,
        "What the command reads: null, inherit, or a file [default: null]",
    ),
    flag(
        ExecFlag::Pty,
        "pty",
        FlagValue::None,
        ENVIRONMENT,
        "Connect stdout and stderr to a terminal of the command's own (one stream); stdin stays empty unless --stdin inherit",
    ),
    flag(
        ExecFlag::On,
        "on",
        FlagValue::One("WHERE"),
        ENVIRONMENT,
        "Run on another machine: slurm, or slurm:PARTITION; see the configuration under slurm",
    ),
    flag(
        ExecFlag::DetachOk,
        "detach-ok",
        FlagValue::None,
        ENVIRONMENT,
        "Leave background processes running",
    ),
    flag(
        ExecFlag::Sandbox,
        "sandbox",
        FlagValue::Optional("MODE"),
        SANDBOX,
        "Confine the command: it writes only in the project and a private temporary directory, has no network, and does not see secrets. strict refuses to start where this machine cannot enforce that; best-effort confines with what the machine has (at least Landlock) and records what is not enforced; off disables it [default: strict]",
    ),
    in_sandbox(flag(
        ExecFlag::AllowWrite,
        "allow-write",
        FlagValue::Many("PATH"),
        SANDBOX,
        "With --sandbox: let it write here; repeatable. The most specific path wins; on a tie, a denial wins",
    )),
    in_sandbox(flag(
        ExecFlag::DenyWrite,
        "deny-write",
        FlagValue::Many("PATH"),
        SANDBOX,
        "With --sandbox: don't let it write here; repeatable",
    )),
    in_sandbox(flag(
        ExecFlag::AllowRead,
        "allow-read",
        FlagValue::Many("PATH"),
        SANDBOX,
        "With --sandbox: let it read here, such as a file hidden by default; repeatable",
    )),
    in_sandbox(flag(
        ExecFlag::DenyRead,
        "deny-read",
        FlagValue::Many("PATH"),
        SANDBOX,
        "With --sandbox: hide this path; repeatable",
    )),
    in_sandbox(flag(
        ExecFlag::AllowSocket,
        "allow-socket",
        FlagValue::Many("PATH"),
        SANDBOX,
        "With --sandbox: let it connect to this Unix socket; repeatable",
    )),
    in_sandbox(flag(
        ExecFlag::AllowNet,
        "allow-net",
        FlagValue::Many("HOST[:PORT]"),
        SANDBOX,
        "With --sandbox: let it reach this host through retake's proxy: a name, *.example.com, an address, localhost:PORT for a port of this machine, or all for every public host; repeatable",
    )),
    in_sandbox(flag(
        ExecFlag::Quarantine,
        "quarantine",
        FlagValue::None,
        SANDBOX,
        "With --sandbox: after the run, move aside files it left that this machine may execute later, such as git hooks",
    )),
    in_sandbox(flag(
        ExecFlag::SandboxSettings,
        "sandbox-settings",
        FlagValue::One("FILE"),
        SANDBOX,
        "With --sandbox: take the rules from a settings file of @anthropic-ai/sandbox-runtime, with the same meaning: only paths it lists are writable, and its denials win",
    )),
    flag(
        ExecFlag::Track,
        "track",
        FlagValue::Optional("DIR"),
        EFFECTS,
        "Report files changed under DIR [default: where it runs]",
    ),
    FlagDefinition {
        requires: Some(ExecFlag::Track),
        ..flag(
            ExecFlag::Exact,
            "exact",
            FlagValue::None,
            EFFECTS,
            "With --track: read every file instead of trusting sizes and timestamps",
        )
    },
    flag(
        ExecFlag::Tests,
        "tests",
        FlagValue::None,
        EFFECTS,
        "Read test results from what the run prints and from report files it writes: junit.xml, report.xml, \
         pytest.xml, results.xml, test-results/, test-reports/, target/surefire-reports/, TestResults/*.trx and the \
         like, the file of --junitxml, and those that tests.reports names",
    ),
    flag(
        ExecFlag::Json,
        "json",
        FlagValue::None,
        OUTPUT,
        "Print the result as one JSON object instead of passing output through",
    ),
    FlagDefinition {
        short: Some('q'),
        ..flag(ExecFlag::Quiet, "quiet", FlagValue::None, OUTPUT, "Don't forward output")
    },
    flag(
        ExecFlag::Capture,
        "capture",
        FlagValue::One("STREAMS"),
        OUTPUT,
        "Which streams to keep: all, stdout, stderr or none [default: all]",
    ),
    with_hyphens(flag(
        ExecFlag::MaxOutputKb,
        "max-output-kb",
        FlagValue::One("N"),
        OUTPUT,
        "Size of each stream in the JSON result, in KiB [default: 1024]",
    )),
    flag(
        ExecFlag::Secret,
        "secret",
        FlagValue::Many("NAME"),
        OUTPUT,
        "Treat the value of this variable as a secret; repeatable",
    ),
    flag(
        ExecFlag::NoRedact,
        "no-redact",
        FlagValue::None,
        OUTPUT,
        "Keep secrets in what is recorded and printed as JSON",
    ),
    flag(
        ExecFlag::Label,
        "label",
        FlagValue::Many("KEY=VALUE"),
        RECORD,
        "A label for the record; repeatable",
    ),
    from_variable(ExecFlag::RunId, "run-id", "ID", "RETAKE_RUN_ID", "Caller's run ID"),
    from_variable(
        ExecFlag::SessionId,
        "session-id",
        "ID",
        "RETAKE_SESSION_ID",
        "The caller's session",
    ),
    from_variable(ExecFlag::TaskId, "task-id", "ID", "RETAKE_TASK_ID", "The caller's task"),
    from_variable(ExecFlag::StepId, "step-id", "ID", "RETAKE_STEP_ID", "The step of that task"),
    from_variable(
        ExecFlag::ToolCallId,
        "tool-call-id",
        "ID",
        "RETAKE_TOOL_CALL_ID",
        "The tool call that asked for this run",
    ),
    from_variable(
        ExecFlag::WorktreeId,
        "worktree-id",
        "ID",
        "RETAKE_WORKTREE_ID",
        "The worktree [default: found from git]",
    ),
    from_variable(
        ExecFlag::RepoSha,
        "repo-sha",
        "SHA",
        "RETAKE_REPO_SHA",
        "The commit [default: found from git]",
    ),
];

/// The definition of an option.
pub fn exec_flag(flag: ExecFlag) -> &'static FlagDefinition {
    EXEC_FLAGS.iter().find(|known| known.flag == flag).expect("every option is in the table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_there_once() {
        for (at, one) in EXEC_FLAGS.iter().enumerate() {
            assert_eq!(exec_flag(one.flag).long, one.long);
            let twice = |other: &FlagDefinition| other.long == one.long || other.flag == one.flag;
            assert!(!EXEC_FLAGS[at + 1..].iter().any(twice), "{}", one.long);
        }
    }
}
