//! Values without secrets: the only way into the record and into `--json`.
//!
//! A [`Redacted`] value can be made only by passing every text of it through a [`TextRedactor`].
//! The record accepts nothing else, and the parts of a run have a JSON form only as redacted
//! values, so that a field or front end that would leak a secret does not compile. Each type lists
//! its texts by destructuring itself, so that a new field must be handled.

use std::collections::BTreeMap;
use std::ops::Deref;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::request::{
    CommandForm, CommandRequest, EffectsRequest, EnvironmentRequest, MetricsRequest,
    RedactionRequest, StdinSource,
};
use crate::{
    CorrelationIds, Denial, HostPattern, Intent, LeftFile, LeftProcess, NetworkRequest,
    NetworkRule, OsText, ProgramFile, RanOn, RedactedParts, RunError, RunId, RunOutcome,
    RunRequest, SandboxReport, SandboxRequest,
};

/// Replaces secrets. `None` means that there was none.
pub trait TextRedactor {
    fn redact(&mut self, text: &[u8]) -> Option<Vec<u8>>;

    /// The value of a variable, whose name may mark the whole value as secret.
    fn redact_variable(&mut self, name: &str, value: &[u8]) -> Option<Vec<u8>>;

    /// Each argument of a command; an option may mark its value as secret.
    fn redact_arguments(&mut self, arguments: &[&[u8]]) -> Vec<Option<Vec<u8>>>;

    /// The same for a command as one line.
    fn redact_command(&mut self, line: &[u8]) -> Option<Vec<u8>>;
}

/// A value that holds texts, some of which may be secret.
pub trait Redact {
    /// Replaces the secrets in all of its texts.
    fn redact(&mut self, redactor: &mut dyn TextRedactor);
}

/// A value without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redacted<T>(T);

impl<T: Redact> Redacted<T> {
    pub fn new(mut value: T, redactor: &mut dyn TextRedactor) -> Self {
        value.redact(redactor);
        Self(value)
    }
}

impl<T> Deref for Redacted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl Redacted<Value> {
    /// Any value as JSON.
    pub fn json(
        value: &impl Serialize,
        redactor: &mut dyn TextRedactor,
    ) -> serde_json::Result<Self> {
        serde_json::to_value(value).map(|value| Self::new(value, redactor))
    }
}

impl Redacted<Intent> {
    pub fn set_start_time(&mut self, time: Timestamp) {
        self.0.start_time = time;
    }

    /// Marks the run as reported by `reporter`, not observed here.
    pub fn set_reported_by(&mut self, reporter: RunId) {
        self.0.reported_by = Some(reporter);
    }
}

impl Redacted<RunOutcome> {
    /// Sets what was stored of stdout and stderr: bytes and hex hash of each, and the hash of the
    /// order in which they arrived.
    pub fn set_stored(&mut self, stored: [(u64, Option<String>); 2], order: Option<String>) {
        self.0.set_stored(stored, order);
    }

    /// Part of the output is missing.
    pub fn set_truncated(&mut self) {
        self.0.truncated = true;
    }

    /// Sets the count of replaced secrets, which is final only after the outcome itself is
    /// redacted.
    pub fn set_redactions(&mut self, redactions: Redactions) {
        self.0.set_redactions(redactions);
    }

    /// Sets what to do about the error, in the words of a front end.
    pub fn set_hint(&mut self, hint: &'static str) {
        if let Some(error) = &mut self.0.error {
            error.hint = Some(hint.to_owned());
        }
    }

    /// The same for a hint that names something of the user's.
    pub fn set_redacted_hint(&mut self, hint: Redacted<String>) {
        if let Some(error) = &mut self.0.error {
            error.hint = Some(hint.0);
        }
    }
}

impl Serialize for Redacted<Value> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A record, export or request file was redacted when it was written.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for Redacted<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self)
    }
}

/// How many secrets were replaced, by the name of the variable, the option or the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Redactions(BTreeMap<String, u64>);

impl Redactions {
    pub fn add(&mut self, name: &str, count: u64) {
        if count == 0 {
            return;
        }
        match self.0.get_mut(name) {
            Some(known) => *known += count,
            None => _ = self.0.insert(name.to_owned(), count),
        }
    }

    pub fn add_all(&mut self, others: &Self) {
        others.iter().for_each(|(name, count)| self.add(name, count));
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }
}

impl Redact for String {
    fn redact(&mut self, redactor: &mut dyn TextRedactor) {
        if let Some(clean) = redactor.redact(self.as_bytes()) {
            *self = lossy(clean);
        }
    }
}

impl Redact for OsText {
    fn redact(&mut self, redactor: &mut dyn TextRedactor) {
        if let Some(clean) = redactor.redact(self.as_bytes()) {
            *self = Self::from_bytes(clean);
        }
    }
}

impl<T: Redact> Redact for Option<T> {
    fn redact(&mut self, redactor: &mut dyn TextRedactor) {
        if let Some(value) = self {
            value.redact(redactor);
        }
    }
}

impl<T: Redact> Redact for Vec<T> {
    fn redact(&mut self, redactor: &mut dyn TextRedactor) {
        self.iter_mut().for_each(|value| value.redact(redactor));
    }
}

impl Redact for BTreeMap<String, String> {
    fn redact(&mut self, redactor: &mut dyn TextRedactor) {
        let redacted = std::mem::take(self).into_iter().map(|(mut name, mut value)| {
            name.redact(redactor);
            value.redact(redactor);
            (name, value)
        });
        *self = redacted.collect();
    }
}

impl Redact for Value {
    fn redact(&mut self, redactor: &mut dyn TextRedactor) {
        match self {
            Self::String(text) => text.redact(redactor),
            Self::Array(values) => values.redact(redactor),
            Self::Object(members) => {
                let redacted = std::mem::take(members).into_iter().map(|(mut key, mut value)| {
                    key.redact(redactor);
                    value.redact(redactor);
                    (key, value)
                });
                *members = redacted.collect();
            }
            Self::Null | Self::Bool(_) | Self::Number(_) => {}
        }
    }
}

impl Redact for Intent {
    fn redact(&mut self, redactor: &mut dyn TextRedactor) {
        let Self {
            request,
            redacted,
            parent_id: _,
            reported_by: _,
            start_time: _,
            host,
            user,
            version: _,
            program,
            variables: _,
            inherited_secrets,
        } = self;
        redacted.add(redact_request(request, redactor));
        inherited_secrets.redact(redactor);
        host.redact(redactor);
        user.redact(redactor);
        if let Some(ProgramFile { path, bytes: _, modified: _ }) = program {
            path.redact(redactor);
        }
    }
}

/// Replaces the secrets of a request, and returns which of the parts needed to run it again held
/// one.
fn redact_request(request: &mut RunRequest, redactor: &mut dyn TextRedactor) -> RedactedParts {
    let RunRequest {
        id: _,
        position: _,
        command: CommandRequest { text, form },
        cwd,
        environment,
        stdin,
        pty: _,
        detach: _,
        timeout_ms: _,
        grace_ms: _,
        limits: _,
        nice: _,
        output: _,
        redaction: RedactionRequest { enabled: _, secrets },
        effects: EffectsRequest { track, exact: _, tests: _, metrics },
        sandbox:
            SandboxRequest {
                mode: _,
                paths,
                sockets,
                network,
                quarantine: _,
                withheld: _,
                listed_writes: _,
                shown_at,
            },
        labels,
        correlation_ids,
    } = request;
    let mut parts = RedactedParts::default();
    if let Some(clean) = redactor.redact_command(text.as_bytes()) {
        *text = lossy(clean);
    }
    if let CommandForm::Arguments(arguments) | CommandForm::ShellArguments(arguments) = form {
        let given: Vec<&[u8]> = arguments.iter().map(OsText::as_bytes).collect();
        let clean = redactor.redact_arguments(&given);
        for (at, (argument, clean)) in arguments.iter_mut().zip(clean).enumerate() {
            if let Some(clean) = clean {
                parts.arguments.push(at);
                *argument = OsText::from_bytes(clean);
            }
        }
    }
    redact_environment(environment, redactor, &mut parts);
    parts.cwd = redact_path(cwd, redactor);
    if let StdinSource::File(file) = stdin {
        parts.stdin = redact_path(file, redactor);
    }
    if let Some(track) = track {
        parts.track = redact_path(track, redactor);
    }
    for text in metrics.iter_mut().flat_map(MetricsRequest::texts_mut) {
        text.redact(redactor);
    }
    let shown = shown_at.iter_mut().flat_map(|shown| [&mut shown.path, &mut shown.at]);
    for path in paths.iter_mut().map(|rule| &mut rule.path).chain(sockets).chain(shown) {
        parts.sandbox |= redact_path(path, redactor);
    }
    let NetworkRequest { allow, deny } = network;
    for NetworkRule { host, port: _ } in allow.iter_mut().chain(deny) {
        if let HostPattern::Name(name) | HostPattern::Below(name) = host
            && let Some(clean) = redactor.redact(name.as_bytes())
        {
            parts.sandbox = true;
            *name = lossy(clean);
        }
    }
    secrets.redact(redactor);
    labels.redact(redactor);
    let CorrelationIds {
        run_id,
        session_id,
        task_id,
        step_id,
        tool_call_id,
        worktree_id,
        repo_sha,
    } = correlation_ids;
    for id in [run_id, session_id, task_id, step_id, tool_call_id, worktree_id, repo_sha] {
        id.redact(redactor);
    }
    parts
}

fn redact_environment(
    environment: &mut EnvironmentRequest,
    redactor: &mut dyn TextRedactor,
    parts: &mut RedactedParts,
) {
    let EnvironmentRequest { mode: _, set, unset, base, from_host } = environment;
    for (name, value) in set {
        if redact_variable(name, value, redactor) {
            parts.variables.push(name.to_string_lossy().into_owned());
        }
    }
    for (name, value) in base.iter_mut().flatten() {
        redact_variable(name, value, redactor);
    }
    unset.redact(redactor);
    from_host.redact(redactor);
}

/// Whether the variable held a secret. The record shows its name in place of the value; the name
/// itself may hold another secret.
fn redact_variable(name: &mut OsText, value: &mut OsText, redactor: &mut dyn TextRedactor) -> bool {
    let clean = redactor.redact_variable(&name.to_string_lossy(), value.as_bytes());
    let held = clean.is_some();
    if let Some(clean) = clean {
        *value = OsText::from_bytes(clean);
    }
    redact_path(name, redactor) || held
}

/// Whether the path held a secret.
fn redact_path(path: &mut OsText, redactor: &mut dyn TextRedactor) -> bool {
    let clean = redactor.redact(path.as_bytes());
    let held = clean.is_some();
    if let Some(clean) = clean {
        *path = OsText::from_bytes(clean);
    }
    held
}

impl Redact for RunOutcome {
    fn redact(&mut self, redactor: &mut dyn TextRedactor) {
        let Self {
            kind: _,
            exit_code: _,
            signal: _,
            end_time: _,
            duration_ms: _,
            end_known: _,
            stdout_bytes: _,
            stderr_bytes: _,
            stdout_raw_bytes: _,
            stderr_raw_bytes: _,
            stdout_blake3: _,
            stderr_blake3: _,
            order_blake3: _,
            truncated: _,
            leaked: _,
            left_processes,
            left_unlisted: _,
            error,
            usage: _,
            redactions: _,
            redactions_by_name: _,
            effects,
            sandbox,
            ran_on,
        } = self;
        for LeftProcess { pid: _, command, fate: _ } in left_processes {
            if let Some(clean) = redactor.redact_command(command.as_bytes()) {
                *command = lossy(clean);
            }
        }
        if let Some(RunError { code: _, detail: _, message, hint, problems }) = error {
            message.redact(redactor);
            hint.redact(redactor);
            problems.redact(redactor);
        }
        if let Some(effects) = effects {
            effects.map_strings(|text| match redactor.redact(text.as_bytes()) {
                Some(clean) => lossy(clean),
                None => text.to_owned(),
            });
        }
        if let Some(report) = sandbox {
            redact_sandbox(report, redactor);
        }
        if let Some(ran_on) = ran_on {
            // Disturbances are numbers and the kernel's own words.
            let RanOn {
                executor: _,
                node,
                job,
                attempt: _,
                start_time: _,
                environment,
                disturbances: _,
            } = ran_on;
            node.redact(redactor);
            job.redact(redactor);
            environment.redact(redactor);
        }
    }
}

fn redact_sandbox(report: &mut SandboxReport, redactor: &mut dyn TextRedactor) {
    let SandboxReport {
        level: _,
        landlock_abi: _,
        dropped: _,
        denied,
        denied_unlisted: _,
        left_for_host,
        network,
        network_unlisted: _,
        reported: _,
    } = report;
    for used in network {
        used.host.redact(redactor);
    }
    for Denial { operation: _, path, program, count: _ } in denied {
        redact_path(path, redactor);
        program.redact(redactor);
    }
    for file in left_for_host.iter_mut().flat_map(|left| &mut left.files) {
        let LeftFile { kind: _, path, names, moved_to } = file;
        redact_path(path, redactor);
        names.redact(redactor);
        if let Some(path) = moved_to {
            redact_path(path, redactor);
        }
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
