//! Builds the request of a run from the arguments of a call, or from a recorded run.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use retake_engine::{check_variable, quote};
use retake_policy::RunMode;
use retake_runner::again::AgainRequest;
use retake_runner::{checkout, prepare};
use retake_types::request::{CommandForm, CommandRequest, LoopPosition, StdinSource, millis};
use retake_types::{
    CorrelationIds, Limits, PathGrant, PathRule, RefusalReason, RunRequest, SandboxRequest,
    ShellMode,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::ClientSession;
use crate::server_sandbox::SandboxState;

/// The label of all runs of this server.
const VIA_LABEL: (&str, &str) = ("via", "mcp");

/// A command to run.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::tools) struct ExecArguments {
    /// The command as one line, such as "cargo test --all". Give this or argv
    #[serde(default)]
    command: Option<String>,
    /// The program and its arguments, passed on exactly as they are
    #[serde(default)]
    argv: Option<Vec<String>>,
    /// The working directory, relative to the project, which is the default
    #[serde(default)]
    cwd: Option<String>,
    /// Variables to set; null removes one
    #[serde(default)]
    env: BTreeMap<String, Option<String>>,
    /// Terminate it after this many seconds
    #[serde(default)]
    timeout_seconds: Option<f64>,
    #[serde(default)]
    limits: LimitArguments,
    /// true: bash (or sh) reads the line. false: never. Default: only if it needs a shell and the policy allows it
    #[serde(default)]
    shell: Option<bool>,
    /// Report which files the run changed below cwd
    #[serde(default)]
    track_changes: bool,
    /// Report test results. Default: true
    #[serde(default)]
    parse_tests: Option<bool>,
    /// Maximum number of characters of output. Default: 8000
    #[serde(default)]
    pub(super) max_chars: Option<usize>,
    /// The task this run belongs to, in your own terms
    #[serde(default)]
    task_id: Option<String>,
    /// The step of the task
    #[serde(default)]
    step_id: Option<String>,
}

/// Limits for the whole process tree; without a number a resource is unlimited.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct LimitArguments {
    memory_mb: Option<u64>,
    cpu_seconds: Option<f64>,
    processes: Option<u64>,
    /// Open files of each process
    open_files: Option<u64>,
    /// Maximum size of any file that a process writes
    file_size_mb: Option<u64>,
}

/// The request of a call, and the problems with its arguments.
pub(super) struct CallRequest {
    pub(super) request: RunRequest,
    pub(super) reasons: Vec<RefusalReason>,
    pub(super) mode: RunMode,
}

impl CallRequest {
    /// The request for the arguments of `exec` and `exec_start`.
    pub(super) fn from_arguments(
        arguments: &ExecArguments,
        mode: RunMode,
        ids: CorrelationIds,
        session: &ClientSession,
    ) -> Self {
        let mut reasons = Vec::new();
        let cwd = directory(&session.directory, arguments.cwd.as_deref());
        let command = command(arguments, &mut reasons);
        let mut request = RunRequest::new(LoopPosition::exec(), command, cwd.as_os_str());
        request.environment.mode = session.policy.environment_mode();
        request.sandbox = session.sandbox.request.clone();
        for (name, value) in &arguments.env {
            match value {
                Some(value) => request.environment.set(name, value),
                None => {
                    reasons.extend(check_variable(OsStr::new(name), OsStr::new("")));
                    request.environment.unset.push(name.into());
                }
            }
        }
        if mode == RunMode::Background {
            request.stdin = StdinSource::Provided;
        }
        prefer_bash(&mut request);
        let asked = timeout(arguments.timeout_seconds, &mut reasons);
        let usual = session.context.execution.default_timeout;
        let usual = || session.policy.default_timeout(mode, usual);
        request.set_timeout(Some(asked.unwrap_or_else(usual)));
        request.limits = limits(&arguments.limits, &mut reasons);
        request.effects.track = arguments.track_changes.then(|| cwd.as_os_str().into());
        request.effects.tests = arguments.parse_tests.unwrap_or(true);
        request.label(VIA_LABEL.0, VIA_LABEL.1);
        request.correlation_ids = ids;
        let ids = &mut request.correlation_ids;
        ids.task_id = arguments.task_id.clone().or(ids.task_id.take());
        ids.step_id = arguments.step_id.clone().or(ids.step_id.take());
        Self { request, reasons, mode }
    }

    /// Repeats a recorded run, with some differences for clients: the environment starts from no more than
    /// the policy passes on, secrets are always redacted, and stdin, which carries the protocol, is not
    /// read.
    pub(super) fn from_record(
        again: AgainRequest,
        ids: CorrelationIds,
        session: &ClientSession,
    ) -> Self {
        let mut request = again.request;
        let environment = &mut request.environment;
        environment.mode = session.policy.stricter_environment_mode(environment.mode);
        // A confined run stays confined, and its rules that deny stay in force.
        if session.sandbox.request.is_on() {
            let denied = stricter_rules(std::mem::take(&mut request.sandbox));
            request.sandbox = denied.with_rules(&session.sandbox.request);
            request.sandbox.mode = request.sandbox.mode.max(session.sandbox.request.mode);
        } else if let SandboxState::Enclosed(_) = session.sandbox.state {
            request.sandbox = SandboxRequest::default();
        }
        request.redaction.enabled = true;
        if request.stdin == StdinSource::Inherit {
            request.stdin = StdinSource::Null;
        }
        request.label(VIA_LABEL.0, VIA_LABEL.1);
        request.correlation_ids = ids;
        Self { request, reasons: Vec::new(), mode: RunMode::Foreground }
    }

    /// Adds the commit that it runs on, unless the client gave it. Reads files.
    pub(super) fn find_checkout(&mut self) {
        let cwd = self.request.directory();
        let ids = &mut self.request.correlation_ids;
        if ids.repo_sha.is_none() || ids.worktree_id.is_none() {
            let found = checkout::checkout(&cwd);
            ids.repo_sha = ids.repo_sha.take().or(found.sha);
            ids.worktree_id = ids.worktree_id.take().or(found.worktree);
        }
    }
}

/// Lets bash read a line that needs a shell, if it is installed: agents write for bash.
fn prefer_bash(request: &mut RunRequest) {
    const BASH: &str = "/bin/bash";
    let CommandForm::Line(mode) = request.command.form else { return };
    let line = &request.command.text;
    // A line that cannot run is refused when it is parsed.
    if line.trim().is_empty() || line.contains('\0') || !Path::new(BASH).is_file() {
        return;
    }
    let path = request.environment.set.iter().rfind(|(name, _)| name.as_os_str() == "PATH");
    let path = path.map(|(_, value)| value.as_os_str());
    let read = prepare::command_arguments(line, mode, path, request.cwd.as_path());
    if let Ok(CommandForm::ShellArguments(mut arguments)) = read
        && let Some(shell) = arguments.first_mut()
    {
        *shell = BASH.into();
        request.command.form = CommandForm::ShellArguments(arguments);
    }
}

/// The rules of a request that deny, without those that allow.
fn stricter_rules(mut asked: SandboxRequest) -> SandboxRequest {
    let denies = |rule: &PathRule| matches!(rule.grant, PathGrant::DenyRead | PathGrant::DenyWrite);
    asked.paths.retain(denies);
    asked.sockets.clear();
    asked.network.allow.clear();
    asked
}

/// Without `.` and doubled slashes, so that the record can be searched for the directory.
pub(super) fn directory(from: &Path, given: Option<&str>) -> PathBuf {
    let path: PathBuf =
        given.map_or_else(|| from.to_owned(), |given| from.join(given)).components().collect();
    // In a sandbox the parent directories may not exist.
    match path.components().any(|part| part == Component::ParentDir) {
        true => path.canonicalize().unwrap_or(path),
        false => path,
    }
}

fn command(arguments: &ExecArguments, reasons: &mut Vec<RefusalReason>) -> CommandRequest {
    let mut refuse = |why: &str| reasons.push(RefusalReason::Other(why.to_owned()));
    match (&arguments.command, &arguments.argv) {
        (Some(line), None) => {
            let mode = match arguments.shell {
                None => ShellMode::Auto,
                Some(true) => ShellMode::Always,
                Some(false) => ShellMode::Never,
            };
            return CommandRequest::line(line, mode);
        }
        (None, Some(argv)) => {
            if arguments.shell == Some(true) {
                refuse("argv never goes through a shell; give the line as command instead");
            }
            let text = quote(argv.iter().map(String::as_str));
            return CommandRequest::arguments(text, argv.iter().map(String::as_str));
        }
        (Some(_), Some(_)) => refuse("give command or argv, not both"),
        (None, None) => refuse("there is nothing to run; give command or argv"),
    }
    CommandRequest::arguments("", [""; 0])
}

fn timeout(seconds: Option<f64>, reasons: &mut Vec<RefusalReason>) -> Option<Duration> {
    let seconds = seconds?;
    let timeout = Duration::try_from_secs_f64(seconds);
    if timeout.is_err() {
        let why = format!("timeout_seconds: {seconds} is not a number of seconds");
        reasons.push(RefusalReason::Other(why));
    }
    timeout.ok()
}

fn limits(given: &LimitArguments, reasons: &mut Vec<RefusalReason>) -> Limits {
    let mut refuse = |name: &str, value: &dyn std::fmt::Display| {
        let why = format!("limits.{name}: {value} is not a usable limit");
        reasons.push(RefusalReason::Other(why));
    };
    let mut whole = |name: &str, value: Option<u64>, unit: u64| {
        let value = value?;
        let scaled = value.checked_mul(unit).filter(|scaled| *scaled > 0);
        if scaled.is_none() {
            refuse(name, &value);
        }
        scaled
    };
    let mut limits = Limits {
        memory_bytes: whole("memory_mb", given.memory_mb, 1 << 20),
        procs: whole("processes", given.processes, 1),
        files: whole("open_files", given.open_files, 1),
        fsize_bytes: whole("file_size_mb", given.file_size_mb, 1 << 20),
        cpu_ms: None,
    };
    if let Some(seconds) = given.cpu_seconds {
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() => limits.cpu_ms = Some(millis(time).max(1)),
            _ => refuse("cpu_seconds", &seconds),
        }
    }
    limits
}
