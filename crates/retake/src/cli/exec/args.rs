//! The options of `retake exec`.

use std::ffi::OsString;
use std::path::PathBuf;

/// Run one command: captured byte for byte, limited, timed out cleanly, nothing left running
///
/// The command is either one string, which goes through a shell only if it needs one, or a program
/// with its arguments after `--`, which never does. Its output passes through live; its exit code
/// becomes retake's own (124 timed out, 125 refused or retake's own failure, 126 not executable,
/// 127 not found, 128+n ended by signal n).
#[derive(clap::Args)]
#[command(
    override_usage = "retake exec [OPTIONS] \"COMMAND\" [OPTIONS]\n       retake exec [OPTIONS] -- PROGRAM [ARGUMENT]..."
)]
pub(crate) struct Args {
    /// The command as one string
    #[arg(value_name = "COMMAND", hide = true)]
    pub(super) line: Vec<OsString>,
    /// The program and its arguments, passed on exactly as they are
    #[arg(last = true, value_name = "PROGRAM", hide = true)]
    pub(super) program: Vec<OsString>,

    /// End the run after this time: seconds, or 500ms, 90s, 5m, 2h [default: 300, from configuration]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Time and limits")]
    pub(super) timeout: Option<String>,
    /// Never time out
    #[arg(long, conflicts_with = "timeout", help_heading = "Time and limits")]
    pub(super) no_timeout: bool,
    /// Between asking the tree to end (TERM) and killing it [default: 5]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Time and limits")]
    pub(super) grace: Option<String>,
    /// memory=512M, cpu=10s, procs=64 for the whole tree; files=256, fsize=1G for each process.
    /// Repeatable; K, M and G are powers of 1024
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Time and limits")]
    pub(super) limit: Vec<String>,
    /// Scheduling priority, -20 (first) to 19 (last)
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = "Time and limits")]
    pub(super) nice: Option<String>,

    /// Run in this directory
    #[arg(long, value_name = "DIR", help_heading = "Surroundings")]
    pub(super) cwd: Option<PathBuf>,
    /// Set a variable; repeatable
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Surroundings")]
    pub(super) env: Vec<OsString>,
    /// Set the variables in a file of NAME=VALUE lines; repeatable
    #[arg(long, value_name = "FILE", help_heading = "Surroundings")]
    pub(super) env_file: Vec<PathBuf>,
    /// Remove a variable; repeatable
    #[arg(long, value_name = "NAME", help_heading = "Surroundings")]
    pub(super) unset: Vec<OsString>,
    /// What variables start from: inherit (all of ours), merge (without secrets and dangerous
    /// ones), replace (only the given ones) [default: inherit]
    #[arg(long, value_name = "MODE", help_heading = "Surroundings")]
    pub(super) env_mode: Option<String>,
    /// Whether a command given as one string may use a shell: auto, true or false [default: auto]
    #[arg(long, value_name = "MODE", help_heading = "Surroundings")]
    pub(super) shell: Option<String>,
    /// What the command reads: null, inherit, or a file [default: null]
    #[arg(long, value_name = "FROM", help_heading = "Surroundings")]
    pub(super) stdin: Option<OsString>,
    /// Give the command a terminal of its own; stdout and stderr become one
    #[arg(long, help_heading = "Surroundings")]
    pub(super) pty: bool,
    /// Run on another machine: slurm, or slurm:PARTITION; see the configuration under slurm
    #[arg(long, value_name = "WHERE", help_heading = "Surroundings")]
    pub(super) on: Option<String>,
    /// Let processes that the command leaves behind go on
    #[arg(long, help_heading = "Surroundings")]
    pub(super) detach_ok: bool,

    /// Look which files the run changes, in this directory and below [default: where it runs]
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        require_equals = true,
        help_heading = "Effects"
    )]
    pub(super) track: Option<Option<PathBuf>>,
    /// With --track: read every file instead of trusting sizes and timestamps
    #[arg(long, requires = "track", help_heading = "Effects")]
    pub(super) exact: bool,
    /// Read test results from what the run prints and from report files it writes
    #[arg(long, help_heading = "Effects")]
    pub(super) tests: bool,

    /// Print the result as one JSON object instead of passing output through
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
    /// Pass nothing through
    #[arg(long, short, help_heading = "Output")]
    pub(super) quiet: bool,
    /// Which streams to keep: all, stdout, stderr or none [default: all]
    #[arg(long, value_name = "STREAMS", help_heading = "Output")]
    pub(super) capture: Option<String>,
    /// How much of each stream the JSON result carries [default: 1024]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = "Output")]
    pub(super) max_output_kb: Option<String>,
    /// Treat the value of this variable as a secret; repeatable
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    pub(super) secret: Vec<String>,
    /// Keep secrets in what is recorded and printed as JSON
    #[arg(long, help_heading = "Output")]
    pub(super) no_redact: bool,

    /// A label for the record; repeatable
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Record")]
    pub(super) label: Vec<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_RUN_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "Whose run this belongs to, in the caller's terms"
    )]
    pub(super) run_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_SESSION_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The caller's session"
    )]
    pub(super) session_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_TASK_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The caller's task"
    )]
    pub(super) task_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_STEP_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The step of that task"
    )]
    pub(super) step_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_TOOL_CALL_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The tool call that asked for this run"
    )]
    pub(super) tool_call_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_WORKTREE_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The worktree [default: found from git]"
    )]
    pub(super) worktree_id: Option<String>,
    #[arg(
        long,
        value_name = "SHA",
        env = "RETAKE_REPO_SHA",
        hide_env_values = true,
        help_heading = "Record",
        help = "The commit [default: found from git]"
    )]
    pub(super) repo_sha: Option<String>,
}
