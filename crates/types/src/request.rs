//! Everything that can be asked of a run, as one serialisable value.
//!
//! Every front end and every loop fills a [`RunRequest`]; the intent keeps it without secrets, a
//! request file carries it to another machine, and running it again starts from the recorded one.
//! How much output a caller wants to see is not part of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Better, CorrelationIds, EnvMode, Kind, Limits, LoopId, OsText, RunId, SandboxRequest,
    ShellMode, Stream,
};

/// What to run, where, with which environment and limits, and what to record of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRequest {
    pub id: RunId,
    #[serde(rename = "loop")]
    pub position: LoopPosition,
    pub command: CommandRequest,
    pub cwd: OsText,
    #[serde(default, skip_serializing_if = "is_default")]
    pub environment: EnvironmentRequest,
    #[serde(default, skip_serializing_if = "is_default")]
    pub stdin: StdinSource,
    /// Give the command its own terminal; both streams become one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pty: bool,
    /// Leave background processes running.
    #[serde(default, skip_serializing_if = "is_default")]
    pub detach: bool,
    /// `None` never times out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL; `None` uses the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub sandbox: SandboxRequest,
    #[serde(default, skip_serializing_if = "is_default")]
    pub output: OutputRequest,
    #[serde(default, skip_serializing_if = "is_default")]
    pub redaction: RedactionRequest,
    #[serde(default, skip_serializing_if = "is_default")]
    pub effects: EffectsRequest,
    #[serde(default, skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub correlation_ids: CorrelationIds,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The loop of a run, and the run's number in it. An `exec` is a loop of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopPosition {
    pub kind: Kind,
    pub id: LoopId,
    pub iteration: u64,
}

/// The command: as it was written, and as it is executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandRequest {
    /// As one line, for people.
    pub text: String,
    #[serde(flatten)]
    pub form: CommandForm,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CommandForm {
    /// A command line that is not parsed yet; the mode decides whether a shell reads it.
    Line(ShellMode),
    /// Program and arguments, exactly.
    Arguments(Vec<OsText>),
    /// Program and arguments of a shell that reads the text.
    ShellArguments(Vec<OsText>),
}

/// How the command's environment is built.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvironmentRequest {
    pub mode: EnvMode,
    /// Variables to set, in order; a later one replaces an earlier one of the same name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<(OsText, OsText)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unset: Vec<OsText>,
    /// The variables to start from, instead of those of the executing process: a request for
    /// another machine carries the variables of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Vec<(OsText, OsText)>>,
    /// Secret variables whose values must exist on the executing machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from_host: Vec<String>,
}

/// What the command reads from standard input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StdinSource {
    /// Nothing.
    #[default]
    Null,
    /// retake's own stdin.
    Inherit,
    File(OsText),
    /// A descriptor from the caller; its contents are not kept.
    Provided,
}

/// Which streams are kept, and how much of them a result carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutputRequest {
    #[serde(skip_serializing_if = "is_default")]
    pub capture: Capture,
    /// `None` uses the configured limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// Which streams are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capture {
    #[default]
    All,
    Stdout,
    Stderr,
    None,
}

impl Capture {
    pub const ALL: [Self; 4] = [Self::All, Self::Stdout, Self::Stderr, Self::None];

    pub fn keeps(self, stream: Stream) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Stdout => stream == Stream::Stdout,
            Self::Stderr => stream == Stream::Stderr,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::None => "none",
        }
    }
}

/// Whether secrets are replaced in the record, and which variables are secret regardless of their
/// names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedactionRequest {
    pub enabled: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
}

impl Default for RedactionRequest {
    fn default() -> Self {
        Self { enabled: true, secrets: Vec::new() }
    }
}

/// What to observe of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EffectsRequest {
    /// Report the files that change below this directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub track: Option<OsText>,
    /// Read every file instead of trusting sizes and timestamps.
    #[serde(skip_serializing_if = "is_default")]
    pub exact: bool,
    /// Read test results from the output and from report files.
    #[serde(skip_serializing_if = "is_default")]
    pub tests: bool,
    /// Collect metrics that the command reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsRequest>,
}

impl EffectsRequest {
    /// Whether files or tests are observed.
    pub fn watches(&self) -> bool {
        self.track.is_some() || self.tests
    }
}

/// What is known of a measuring run before it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsRequest {
    /// How many runs of its cell were planned with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<u64>,
    /// Metrics without which the run measures nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<WantedMetric>,
}

/// A metric that a command must report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WantedMetric {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub better: Option<Better>,
    #[serde(default)]
    pub source: MetricSource,
}

/// Where to find the number of a metric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "from")]
pub enum MetricSource {
    /// The command reports it itself.
    #[default]
    Reported,
    /// In a line of its output: the group `value` of a pattern, its first group, or the whole
    /// match. The last matching line counts. Without a stream, both are searched.
    #[serde(rename_all = "camelCase")]
    Output { stream: Option<Stream>, pattern: String },
    /// In a line of a file; a relative path starts at the working directory.
    #[serde(rename_all = "camelCase")]
    FilePattern { path: String, pattern: String },
    /// At a JSON pointer in a file.
    #[serde(rename_all = "camelCase")]
    FilePointer { path: String, pointer: String },
}

impl MetricSource {
    fn texts_mut(&mut self) -> Vec<&mut String> {
        match self {
            Self::Reported => Vec::new(),
            Self::Output { stream: _, pattern } => vec![pattern],
            Self::FilePattern { path, pattern } => vec![path, pattern],
            Self::FilePointer { path, pointer } => vec![path, pointer],
        }
    }
}

impl MetricsRequest {
    /// Every text in it that a user wrote.
    pub(crate) fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        self.wanted.iter_mut().flat_map(|wanted| {
            let WantedMetric { name, unit, better: _, source } = wanted;
            [name].into_iter().chain(unit).chain(source.texts_mut())
        })
    }
}

impl LoopPosition {
    /// A loop of one.
    pub fn exec() -> Self {
        Self { kind: Kind::Exec, id: LoopId::new(), iteration: 0 }
    }
}

impl CommandRequest {
    /// A line, parsed as `mode` says.
    pub fn line(text: impl Into<String>, mode: ShellMode) -> Self {
        Self { text: text.into(), form: CommandForm::Line(mode) }
    }

    /// A line that `/bin/sh` reads.
    pub fn shell(text: impl Into<String>) -> Self {
        let text = text.into();
        let arguments = ["/bin/sh", "-c", &text].map(OsText::from).to_vec();
        Self { form: CommandForm::ShellArguments(arguments), text }
    }

    pub fn arguments<T: Into<OsText>>(
        text: impl Into<String>,
        arguments: impl IntoIterator<Item = T>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self { text: text.into(), form: CommandForm::Arguments(arguments) }
    }

    /// Program and arguments; empty while the line is unparsed.
    pub fn argv(&self) -> &[OsText] {
        match &self.form {
            CommandForm::Line(_) => &[],
            CommandForm::Arguments(arguments) | CommandForm::ShellArguments(arguments) => arguments,
        }
    }

    pub fn is_shell(&self) -> bool {
        matches!(self.form, CommandForm::ShellArguments(_))
    }
}

impl EnvironmentRequest {
    pub fn set(&mut self, name: impl Into<OsText>, value: impl Into<OsText>) {
        self.set.push((name.into(), value.into()));
    }
}

impl RunRequest {
    /// A plain run: no limits, no timeout, all of retake's variables.
    pub fn new(position: LoopPosition, command: CommandRequest, cwd: impl Into<OsText>) -> Self {
        Self {
            id: RunId::new(),
            position,
            command,
            cwd: cwd.into(),
            environment: EnvironmentRequest::default(),
            stdin: StdinSource::Null,
            pty: false,
            detach: false,
            timeout_ms: None,
            grace_ms: None,
            limits: Limits::default(),
            nice: None,
            sandbox: SandboxRequest::default(),
            output: OutputRequest::default(),
            redaction: RedactionRequest::default(),
            effects: EffectsRequest::default(),
            labels: BTreeMap::new(),
            correlation_ids: CorrelationIds::default(),
        }
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    /// A timeout below a millisecond is rounded up to one.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        let least = |timeout: Duration| if timeout.is_zero() { 0 } else { millis(timeout).max(1) };
        self.timeout_ms = timeout.map(least);
    }

    pub fn set_grace(&mut self, grace: Option<Duration>) {
        self.grace_ms = grace.map(millis);
    }

    pub fn directory(&self) -> PathBuf {
        self.cwd.as_path().to_owned()
    }

    pub fn label(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.labels.insert(key.into(), value.into());
    }
}

/// In whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
