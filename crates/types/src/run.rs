//! The record of one run: the intent before it, the outcome after it, and both as one JSON object.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::outcome::{Outcome, signal_name};
use crate::request::EnvironmentRequest;
use crate::{
    CorrelationIds, Disturbance, Effects, Intent, LoopId, OsText, OutcomeKind, Redacted,
    Redactions, RunError, RunId, SandboxReport, Usage,
};

/// One of the child's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// The index in a pair: 0 for stdout, 1 for stderr.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Limits of a run; `None` leaves the resource unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Memory of the whole tree, in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU time of the whole tree.
    pub cpu_ms: Option<u64>,
    /// Processes and threads of the whole tree.
    pub procs: Option<u64>,
    /// Open files of each process.
    pub files: Option<u64>,
    /// Size of any file a process writes, in bytes.
    pub fsize_bytes: Option<u64>,
}

/// A process that was still running after the child had ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftProcess {
    pub pid: i32,
    pub command: String,
    pub fate: LeftFate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftFate {
    /// retake ended it.
    Ended,
    /// It was allowed to stay.
    Kept,
    /// It could not be ended (stuck in the kernel, or retake may not signal it).
    Survived,
}

/// How many left processes were ended, kept or survived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeftCounts {
    pub ended: u64,
    pub kept: u64,
    pub survived: u64,
}

impl LeftCounts {
    pub fn of(left: &[LeftProcess]) -> Self {
        let count = |fate| left.iter().filter(|left| left.fate == fate).count() as u64;
        Self {
            ended: count(LeftFate::Ended),
            kept: count(LeftFate::Kept),
            survived: count(LeftFate::Survived),
        }
    }

    pub fn total(self) -> u64 {
        self.ended + self.kept + self.survived
    }

    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// Those of one fate.
    pub fn with_fate(self, fate: LeftFate) -> u64 {
        match fate {
            LeftFate::Ended => self.ended,
            LeftFate::Kept => self.kept,
            LeftFate::Survived => self.survived,
        }
    }
}

impl LeftFate {
    pub const ALL: [Self; 3] = [Self::Ended, Self::Kept, Self::Survived];
}

/// What kind of loop a run belongs to; `exec` is a loop of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Exec,
    Matrix,
    Agent,
    Crash,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Exec, Self::Matrix, Self::Agent, Self::Crash];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Matrix => "matrix",
            Self::Agent => "agent",
            Self::Crash => "crash",
        }
    }
}

/// The environment that a command starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvMode {
    /// The parent's variables plus the given ones.
    #[default]
    Inherit,
    /// Only the given ones.
    Replace,
    /// Like `inherit`, without variables that could hijack a child and without secrets that are not
    /// allowed.
    Merge,
}

impl EnvMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inherit => "inherit",
            Self::Replace => "replace",
            Self::Merge => "merge",
        }
    }
}

/// Whether a command given as one string may go through a shell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShellMode {
    /// Only if the line needs one.
    #[default]
    Auto,
    Always,
    Never,
}

/// How the environment of a run was built, as `--json` shows it. Values are redacted.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EnvPolicy {
    mode: EnvMode,
    set: BTreeMap<String, String>,
    unset: Vec<String>,
}

impl EnvPolicy {
    fn of(environment: &EnvironmentRequest) -> Self {
        let text = |text: &OsText| text.to_string_lossy().into_owned();
        Self {
            mode: environment.mode,
            set: environment.set.iter().map(|(name, value)| (text(name), text(value))).collect(),
            unset: environment.unset.iter().map(text).collect(),
        }
    }
}

/// Everything known of a run once it is over. Committed before the result is printed, as a
/// [`Redacted`] value; only that has a JSON form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct RunOutcome {
    #[serde(rename = "outcome")]
    pub kind: OutcomeKind,
    pub exit_code: Option<i32>,
    pub signal: Option<String>,
    pub end_time: Timestamp,
    /// Monotonic, rounded up, never 0. For an interrupted run a lower bound, as is the end, unless
    /// its end was observed.
    pub duration_ms: u64,
    /// Whether the end of an interrupted run was observed: its times are exact.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end_known: bool,
    /// Bytes as stored, after redaction.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Bytes as the child wrote them.
    pub stdout_raw_bytes: u64,
    pub stderr_raw_bytes: u64,
    /// BLAKE3 of each stream as stored, in hex; `None` if it was not captured.
    pub stdout_blake3: Option<String>,
    pub stderr_blake3: Option<String>,
    /// BLAKE3 of the order in which both streams arrived, in hex; `None` if nothing was captured,
    /// and in records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_blake3: Option<String>,
    pub truncated: bool,
    pub leaked: bool,
    /// The listed ones, at most [`RunOutcome::LEFT_LISTED`].
    pub left_processes: Vec<LeftProcess>,
    /// Counts of the unlisted ones.
    #[serde(default, skip_serializing_if = "LeftCounts::is_empty")]
    pub left_unlisted: LeftCounts,
    pub error: Option<RunError>,
    pub usage: Usage,
    /// How many secrets were replaced, in arguments, environment and output together.
    pub redactions: u64,
    /// The same by the names of the secrets and of the rules that found them.
    #[serde(default, skip_serializing_if = "Redactions::is_empty")]
    pub redactions_by_name: Redactions,
    /// What the run did: changed files, test results. `None` if not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<Effects>,
    /// How it was confined, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
    /// Where it ran, if on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_on: Option<RanOn>,
}

impl RunOutcome {
    /// How many left processes are listed; the rest are counted.
    pub const LEFT_LISTED: usize = 20;

    /// Lists left processes up to the limit, and counts the rest.
    pub fn set_left(&mut self, mut left: Vec<LeftProcess>) {
        let unlisted = left.split_off(left.len().min(Self::LEFT_LISTED));
        self.left_unlisted = LeftCounts::of(&unlisted);
        self.left_processes = left;
    }

    /// How many processes were left behind, listed or not.
    pub fn left_counts(&self) -> LeftCounts {
        let LeftCounts { ended, kept, survived } = LeftCounts::of(&self.left_processes);
        let more = self.left_unlisted;
        LeftCounts {
            ended: ended + more.ended,
            kept: kept + more.kept,
            survived: survived + more.survived,
        }
    }

    /// Whether `duration_ms` is exact, not only a lower bound.
    pub fn duration_is_exact(&self) -> bool {
        self.kind != OutcomeKind::Interrupted || self.end_known
    }

    /// Only how a run ended; all else is empty.
    pub fn bare(outcome: &Outcome, end_time: Timestamp) -> Self {
        Self {
            kind: outcome.kind(),
            exit_code: outcome.exit_code(),
            signal: outcome.signal().map(signal_name),
            end_time,
            duration_ms: 1,
            end_known: false,
            stdout_bytes: 0,
            stderr_bytes: 0,
            stdout_raw_bytes: 0,
            stderr_raw_bytes: 0,
            stdout_blake3: None,
            stderr_blake3: None,
            order_blake3: None,
            truncated: false,
            leaked: false,
            left_processes: Vec::new(),
            left_unlisted: LeftCounts::default(),
            error: None,
            usage: Usage::default(),
            redactions: 0,
            redactions_by_name: Redactions::default(),
            effects: None,
            sandbox: None,
            ran_on: None,
        }
    }

    /// Sets what was stored of stdout and stderr: bytes and hex hash of each, and the hash of the
    /// order in which they arrived.
    pub fn set_stored(
        &mut self,
        [stdout, stderr]: [(u64, Option<String>); 2],
        order: Option<String>,
    ) {
        (self.stdout_bytes, self.stdout_blake3) = stdout;
        (self.stderr_bytes, self.stderr_blake3) = stderr;
        self.order_blake3 = order;
    }

    pub fn set_redactions(&mut self, redactions: Redactions) {
        self.redactions = redactions.total();
        self.redactions_by_name = redactions;
    }
}

impl<'de> Deserialize<'de> for RunOutcome {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(deserializer)
    }
}

impl Serialize for Redacted<RunOutcome> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RunOutcome::serialize(self, serializer)
    }
}

/// The machine and attempt that produced a run's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RanOn {
    /// What placed it there, such as `slurm`.
    pub executor: String,
    /// `None` if it never reached a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The executor's id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Distinguishes executions of one run; the first one with a result counts.
    pub attempt: String,
    /// When the command started, by that machine's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// Properties of that machine that may affect a measurement: name and value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// What disturbed a measurement there, as far as the machine reports it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbances: Vec<Disturbance>,
}

/// Whether a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    Finished,
    Interrupted,
}

/// A run as `--json` shows it: the intent, and the ending once there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub intent: Redacted<Intent>,
    pub state: State,
    pub outcome: Option<Redacted<RunOutcome>>,
    pub recorded: bool,
}

impl Run {
    pub fn success(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| {
            outcome.kind == OutcomeKind::Exited && outcome.exit_code == Some(0)
        })
    }
}

/// The document's keys, in display order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunDocument<'a> {
    id: RunId,
    command: &'a str,
    arguments: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_base64: Option<Vec<String>>,
    shell: bool,
    working_directory: String,
    state: State,
    outcome: Option<OutcomeKind>,
    exit_code: Option<i32>,
    signal: Option<&'a str>,
    success: bool,
    timed_out: bool,
    error: Option<&'a RunError>,
    start_time: Timestamp,
    end_time: Option<Timestamp>,
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    duration_is_lower_bound: bool,
    stdout_bytes: Option<u64>,
    stderr_bytes: Option<u64>,
    stdout_raw_bytes: Option<u64>,
    stderr_raw_bytes: Option<u64>,
    stdout_blake3: Option<&'a str>,
    stderr_blake3: Option<&'a str>,
    truncated: bool,
    redactions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redactions_by_name: Option<&'a Redactions>,
    redacted: bool,
    leaked: bool,
    left_processes: &'a [LeftProcess],
    #[serde(skip_serializing_if = "LeftCounts::is_empty")]
    left_unlisted: LeftCounts,
    usage: Option<&'a Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effects: Option<&'a Effects>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<&'a SandboxReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ran_on: Option<&'a RanOn>,
    timeout_ms: Option<u64>,
    limits: &'a Limits,
    environment: EnvPolicy,
    correlation_ids: &'a CorrelationIds,
    labels: &'a BTreeMap<String, String>,
    kind: Kind,
    loop_id: LoopId,
    iteration: u64,
    parent_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reported_by: Option<RunId>,
    recorded: bool,
    host: &'a str,
    user: &'a str,
    version: &'a str,
}

impl Serialize for Run {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (intent, outcome) = (&self.intent, self.outcome.as_deref());
        let request = &intent.request;
        RunDocument {
            id: request.id,
            command: &request.command.text,
            arguments: intent.arguments(),
            arguments_base64: intent.arguments_base64(),
            shell: request.command.is_shell(),
            working_directory: intent.working_directory(),
            state: self.state,
            outcome: match (outcome, self.state) {
                (Some(outcome), _) => Some(outcome.kind),
                (None, State::Interrupted) => Some(OutcomeKind::Interrupted),
                (None, _) => None,
            },
            exit_code: outcome.and_then(|e| e.exit_code),
            signal: outcome.and_then(|e| e.signal.as_deref()),
            success: self.success(),
            timed_out: outcome.is_some_and(|e| e.kind == OutcomeKind::TimedOut),
            error: outcome.and_then(|e| e.error.as_ref()),
            start_time: intent.start_time,
            end_time: outcome.map(|e| e.end_time),
            duration_ms: outcome.map(|e| e.duration_ms),
            duration_is_lower_bound: outcome.is_some_and(|e| !e.duration_is_exact()),
            stdout_bytes: outcome.map(|e| e.stdout_bytes),
            stderr_bytes: outcome.map(|e| e.stderr_bytes),
            stdout_raw_bytes: outcome.map(|e| e.stdout_raw_bytes),
            stderr_raw_bytes: outcome.map(|e| e.stderr_raw_bytes),
            stdout_blake3: outcome.and_then(|e| e.stdout_blake3.as_deref()),
            stderr_blake3: outcome.and_then(|e| e.stderr_blake3.as_deref()),
            truncated: outcome.is_some_and(|e| e.truncated),
            redactions: outcome.map(|e| e.redactions),
            redactions_by_name: outcome
                .map(|e| &e.redactions_by_name)
                .filter(|by_name| !by_name.is_empty()),
            redacted: request.redaction.enabled,
            leaked: outcome.is_some_and(|e| e.leaked),
            left_processes: outcome.map_or(&[], |e| &e.left_processes),
            left_unlisted: outcome.map_or_else(LeftCounts::default, |e| e.left_unlisted),
            usage: outcome.map(|e| &e.usage),
            effects: outcome.and_then(|e| e.effects.as_ref()),
            sandbox: outcome.and_then(|e| e.sandbox.as_ref()),
            ran_on: outcome.and_then(|e| e.ran_on.as_ref()),
            timeout_ms: request.timeout_ms,
            limits: &request.limits,
            environment: EnvPolicy::of(&request.environment),
            correlation_ids: &request.correlation_ids,
            labels: &request.labels,
            kind: request.position.kind,
            loop_id: request.position.id,
            iteration: request.position.iteration,
            parent_id: intent.parent_id,
            reported_by: intent.reported_by,
            recorded: self.recorded,
            host: &intent.host,
            user: &intent.user,
            version: &intent.version,
        }
        .serialize(serializer)
    }
}
