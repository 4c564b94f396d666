//! A run before it starts: its request without secrets, and where and when it was requested.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::request::{
    Capture, CommandForm, CommandRequest, EffectsRequest, EnvironmentRequest, LoopPosition,
    OutputRequest, RedactionRequest, RunRequest, StdinSource,
};
use crate::{
    CorrelationIds, EnvMode, Kind, Limits, LoopId, OsText, Redacted, RunId, SandboxRequest,
};

/// Everything known of a run before it starts. Committed before the spawn as a
/// [`Redacted`](crate::Redacted) value; only that has a JSON form.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "StoredIntent")]
pub struct Intent {
    /// The request. In a redacted intent a mark replaces each secret.
    pub request: RunRequest,
    pub redacted: RedactedParts,
    pub parent_id: Option<RunId>,
    /// The run in whose sandbox this one was recorded. Nothing outside observed it: its record is
    /// only what the confined program claims.
    pub reported_by: Option<RunId>,
    pub start_time: Timestamp,
    pub host: String,
    pub user: String,
    pub version: String,
    /// The program's file, if found.
    pub program: Option<ProgramFile>,
    /// A short hash of each variable's name and value, without secrets: enough to name what
    /// changed, too little to recover a value.
    pub variables: Option<String>,
    /// Names of the secret variables that the command inherited.
    pub inherited_secrets: Vec<String>,
}

/// The JSON form of a redacted intent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IntentDocument<'a> {
    request: &'a RunRequest,
    #[serde(skip_serializing_if = "RedactedParts::is_empty")]
    redacted: &'a RedactedParts,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reported_by: Option<RunId>,
    start_time: Timestamp,
    host: &'a str,
    user: &'a str,
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<&'a ProgramFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variables: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    inherited_secrets: &'a [String],
}

impl Serialize for Redacted<Intent> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        IntentDocument {
            request: &self.request,
            redacted: &self.redacted,
            parent_id: self.parent_id,
            reported_by: self.reported_by,
            start_time: self.start_time,
            host: &self.host,
            user: &self.user,
            version: &self.version,
            program: self.program.as_ref(),
            variables: self.variables.as_deref(),
            inherited_secrets: &self.inherited_secrets,
        }
        .serialize(serializer)
    }
}

/// Parts of a recorded request that differ from the original because they held a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedactedParts {
    /// Places in the argument vector.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<usize>,
    /// Names of variables that were set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
    /// The working directory.
    #[serde(skip_serializing_if = "is_false")]
    pub cwd: bool,
    /// The file that standard input is read from.
    #[serde(skip_serializing_if = "is_false")]
    pub stdin: bool,
    /// The directory whose files are tracked.
    #[serde(skip_serializing_if = "is_false")]
    pub track: bool,
    /// A path in a rule of the sandbox.
    #[serde(skip_serializing_if = "is_false")]
    pub sandbox: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl RedactedParts {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds parts that held a secret to those known already.
    pub(crate) fn add(&mut self, more: Self) {
        let Self { arguments, variables, cwd, stdin, track, sandbox } = more;
        self.arguments.extend(arguments);
        self.arguments.sort_unstable();
        self.arguments.dedup();
        for name in variables {
            if !self.variables.contains(&name) {
                self.variables.push(name);
            }
        }
        self.cwd |= cwd;
        self.stdin |= stdin;
        self.track |= track;
        self.sandbox |= sandbox;
    }
}

/// Identifies a program's file, to tell it from a later one of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramFile {
    pub path: String,
    pub bytes: u64,
    pub modified: Timestamp,
}

impl Intent {
    pub fn id(&self) -> RunId {
        self.request.id
    }

    pub fn kind(&self) -> Kind {
        self.request.position.kind
    }

    pub fn loop_id(&self) -> LoopId {
        self.request.position.id
    }

    pub fn iteration(&self) -> u64 {
        self.request.position.iteration
    }

    /// The command as one line.
    pub fn command(&self) -> &str {
        &self.request.command.text
    }

    /// The arguments for people; invalid UTF-8 is replaced.
    pub fn arguments(&self) -> Vec<String> {
        let arguments = self.request.command.argv().iter();
        arguments.map(|argument| argument.to_string_lossy().into_owned()).collect()
    }

    pub fn working_directory(&self) -> String {
        self.request.cwd.to_string_lossy().into_owned()
    }

    /// The exact arguments, encoded; `None` where [`arguments`](Self::arguments) is exact already.
    pub(crate) fn arguments_base64(&self) -> Option<Vec<String>> {
        let arguments = self.request.command.argv();
        let exact = arguments.iter().all(|argument| argument.as_str().is_some());
        let encode = |argument: &OsText| BASE64_STANDARD.encode(argument.as_bytes());
        (!exact).then(|| arguments.iter().map(encode).collect())
    }
}

/// What replaces a secret in a record, followed by the secret's name.
pub const REDACTION_MARK: &str = "[redacted:";

/// An intent as any version of retake wrote it: the request as one value, or, until 0.1.0, its
/// parts as separate keys.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredIntent {
    request: Option<RunRequest>,
    #[serde(default)]
    redacted: StoredRedacted,
    parent_id: Option<RunId>,
    reported_by: Option<RunId>,
    start_time: Timestamp,
    host: String,
    user: String,
    version: String,
    program: Option<ProgramFile>,
    variables: Option<String>,
    #[serde(default)]
    inherited_secrets: Vec<String>,

    id: Option<RunId>,
    kind: Option<Kind>,
    loop_id: Option<LoopId>,
    #[serde(default)]
    iteration: u64,
    #[serde(default)]
    command: String,
    #[serde(default)]
    arguments: Vec<String>,
    arguments_base64: Option<Vec<String>>,
    #[serde(default)]
    shell: bool,
    #[serde(default)]
    working_directory: String,
    #[serde(default)]
    environment: OldEnvironment,
    timeout_ms: Option<u64>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    correlation_ids: CorrelationIds,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    terms: OldTerms,
}

/// Which parts are redacted, or, until 0.1.0, whether redaction was on.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredRedacted {
    Parts(RedactedParts),
    Enabled(bool),
}

impl Default for StoredRedacted {
    fn default() -> Self {
        Self::Parts(RedactedParts::default())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OldEnvironment {
    mode: EnvMode,
    set: BTreeMap<String, String>,
    unset: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OldTerms {
    program: Option<ProgramFile>,
    variables: Option<String>,
    stdin: Option<String>,
    pty: bool,
    nice: Option<i32>,
    grace_ms: Option<u64>,
    capture: Option<String>,
    detach: bool,
    secrets: Vec<String>,
}

impl From<StoredIntent> for Intent {
    fn from(mut stored: StoredIntent) -> Self {
        let (redacted, enabled) = match std::mem::take(&mut stored.redacted) {
            StoredRedacted::Parts(parts) => (parts, true),
            StoredRedacted::Enabled(enabled) => (stored.old_redacted(enabled), enabled),
        };
        Self {
            redacted,
            parent_id: stored.parent_id,
            reported_by: stored.reported_by,
            start_time: stored.start_time,
            host: std::mem::take(&mut stored.host),
            user: std::mem::take(&mut stored.user),
            version: std::mem::take(&mut stored.version),
            program: stored.program.take().or_else(|| stored.terms.program.take()),
            variables: stored.variables.take().or_else(|| stored.terms.variables.take()),
            inherited_secrets: std::mem::take(&mut stored.inherited_secrets),
            request: stored.request.take().unwrap_or_else(|| stored.old_request(enabled)),
        }
    }
}

impl StoredIntent {
    /// In older records only the marks show what was replaced.
    fn old_redacted(&self, enabled: bool) -> RedactedParts {
        if !enabled {
            return RedactedParts::default();
        }
        let marked = |text: &str| text.contains(REDACTION_MARK);
        let arguments = self.arguments.iter().enumerate().filter(|(_, text)| marked(text));
        let variables = self.environment.set.iter().filter(|(_, value)| marked(value));
        RedactedParts {
            arguments: arguments.map(|(at, _)| at).collect(),
            variables: variables.map(|(name, _)| name.clone()).collect(),
            ..RedactedParts::default()
        }
    }

    fn old_request(self, redact: bool) -> RunRequest {
        let exact = self.arguments_base64.as_ref().and_then(|encoded| {
            let decode = |text: &String| BASE64_STANDARD.decode(text).map(OsText::from_bytes);
            encoded.iter().map(decode).collect::<Result<Vec<_>, _>>().ok()
        });
        let arguments = exact.unwrap_or_else(|| self.arguments.iter().map(OsText::from).collect());
        let form = match self.shell {
            true => CommandForm::ShellArguments(arguments),
            false => CommandForm::Arguments(arguments),
        };
        let capture = self
            .terms
            .capture
            .as_deref()
            .and_then(|word| Capture::ALL.into_iter().find(|capture| capture.as_str() == word));
        RunRequest {
            id: self.id.unwrap_or_else(|| RunId::from_bytes([0; 16])),
            position: LoopPosition {
                kind: self.kind.unwrap_or(Kind::Exec),
                id: self.loop_id.unwrap_or_else(|| LoopId::from_bytes([0; 16])),
                iteration: self.iteration,
            },
            command: CommandRequest { text: self.command, form },
            cwd: self.working_directory.into(),
            environment: EnvironmentRequest {
                mode: self.environment.mode,
                set: self.environment.set.iter().map(|(n, v)| (n.into(), v.into())).collect(),
                unset: self.environment.unset.iter().map(OsText::from).collect(),
                ..EnvironmentRequest::default()
            },
            stdin: match self.terms.stdin.as_deref() {
                None => StdinSource::Null,
                Some("inherit") => StdinSource::Inherit,
                Some(file) => StdinSource::File(file.into()),
            },
            pty: self.terms.pty,
            detach: self.terms.detach,
            timeout_ms: self.timeout_ms,
            grace_ms: self.terms.grace_ms,
            limits: self.limits,
            nice: self.terms.nice,
            sandbox: SandboxRequest::default(),
            output: OutputRequest { capture: capture.unwrap_or_default(), max_bytes: None },
            redaction: RedactionRequest { enabled: redact, secrets: self.terms.secrets },
            effects: EffectsRequest::default(),
            labels: self.labels,
            correlation_ids: self.correlation_ids,
        }
    }
}
