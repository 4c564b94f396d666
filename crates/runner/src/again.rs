//! Runs a recorded run again: rebuilds its request, names what is unknown by now, and compares the
//! new run with the old one.
//!
//! The request is the complete recorded one; no front end rebuilds it. The record has no secret
//! values: a redacted variable gets its value from the current environment and is a secret again; a
//! run with a redacted argument is refused, because the argument is unknown.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::time::Duration;

use retake_engine::Variable;
use retake_store::RecordReader;
use retake_types::request::{LoopPosition, StdinSource};
use retake_types::{
    CorrelationIds, Intent, OsText, ProgramFile, REDACTION_MARK, Run, RunId, RunOutcome,
    RunRequest, Stream,
};

use crate::checkout::checkout;
use crate::{fingerprint, machine, run_text};

/// The label of the new run that names the old one.
pub const AGAIN_LABEL: &str = "again";

/// The request of a recorded run, ready to run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgainRequest {
    /// Has a new id and loop. Its correlation ids are empty: the front end fills them in, and the
    /// commit.
    pub request: RunRequest,
    /// Redacted variables, which get their values from the current environment.
    pub from_environment: Vec<String>,
    /// Secret variables of the recorded run that are not set now.
    pub secrets_not_set: Vec<String>,
}

/// Why a recorded run cannot run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgainRefusal {
    /// The variable was redacted in the record and is not set now.
    VariableNotSet { name: String },
    /// The argument was redacted in the record, so it is unknown.
    RedactedArgument { position: usize, text: String },
    /// The part was redacted in the record, so it is unknown.
    RedactedPart(RequestPart),
    /// The record has no arguments: the run was refused before its command line was read.
    NoArguments,
    /// Only the claim of a confined program, so it may be anything.
    Reported,
}

/// A part of a request that is a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestPart {
    WorkingDirectory,
    InputFile,
    TrackedDirectory,
    SandboxPath,
}

impl fmt::Display for RequestPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WorkingDirectory => "the working directory",
            Self::InputFile => "the input file",
            Self::TrackedDirectory => "the tracked directory",
            Self::SandboxPath => "a path of the sandbox",
        })
    }
}

/// The recorded request, or every reason why it cannot run again.
pub fn again_request(run: &Run) -> Result<AgainRequest, Vec<AgainRefusal>> {
    again_request_in(run, |name| std::env::var_os(name))
}

/// The same with `variable` as the current environment.
fn again_request_in(
    run: &Run,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<AgainRequest, Vec<AgainRefusal>> {
    let Intent { request: recorded, redacted, .. } = &*run.intent;
    let mut refusals = Vec::new();
    let mut request = recorded.clone();
    request.id = RunId::new();
    request.position = LoopPosition::exec();
    request.correlation_ids = CorrelationIds::default();
    request.label(AGAIN_LABEL, recorded.id.to_string());
    // Input written by the caller is not kept.
    if request.stdin == StdinSource::Provided {
        request.stdin = StdinSource::Null;
    }
    let environment = &mut request.environment;
    // A request for another machine carries the variables of its day; this run uses the current
    // ones.
    environment.base = None;
    let mut secrets: BTreeSet<String> = request.redaction.secrets.drain(..).collect();
    secrets.extend(environment.from_host.drain(..));
    let mut from_environment = Vec::new();
    for (name, value) in &mut environment.set {
        let name = name.to_string_lossy().into_owned();
        if !redacted.variables.contains(&name) {
            continue;
        }
        match variable(&name) {
            Some(current) => *value = OsText::from(current),
            None => refusals.push(AgainRefusal::VariableNotSet { name: name.clone() }),
        }
        secrets.insert(name.clone());
        from_environment.push(name);
    }
    // A secret variable that is not set has no value to hide.
    let set = |name: &str| environment.set.iter().any(|(n, _)| n.as_str() == Some(name));
    let available = |name: &String| variable(name).is_some() || set(name);
    let mut had: BTreeSet<String> = secrets.clone();
    had.extend(run.intent.inherited_secrets.iter().cloned());
    let secrets_not_set = had.into_iter().filter(|name| !available(name)).collect();
    secrets.retain(available);
    request.redaction.secrets = secrets.into_iter().collect();
    let arguments = request.command.argv();
    for &position in &redacted.arguments {
        let text = arguments.get(position).map(|argument| argument.to_string_lossy().into_owned());
        let text = text.unwrap_or_default();
        refusals.push(AgainRefusal::RedactedArgument { position, text });
    }
    let parts = [
        (redacted.cwd, RequestPart::WorkingDirectory),
        (redacted.stdin, RequestPart::InputFile),
        (redacted.track, RequestPart::TrackedDirectory),
        (redacted.sandbox, RequestPart::SandboxPath),
    ];
    let unknown = parts.into_iter().filter(|(redacted, _)| *redacted);
    refusals.extend(unknown.map(|(_, part)| AgainRefusal::RedactedPart(part)));
    if arguments.is_empty() {
        refusals.push(AgainRefusal::NoArguments);
    }
    if run.intent.reported_by.is_some() {
        refusals = vec![AgainRefusal::Reported];
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    Ok(AgainRequest { request, from_environment, secrets_not_set })
}

impl AgainRequest {
    /// Adds secrets that older records name only in the output. Unset ones are left out.
    pub fn add_secrets(&mut self, names: impl IntoIterator<Item = String>) {
        let secrets = &mut self.request.redaction.secrets;
        for name in names {
            if std::env::var_os(&name).is_some() && !secrets.contains(&name) {
                secrets.push(name);
            }
        }
    }
}

/// The names of the secrets that were replaced in the output of a run: a variable that was a secret
/// then still is.
pub fn secrets_in_output(
    store: &dyn RecordReader,
    run: &Run,
) -> retake_store::Result<BTreeSet<String>> {
    let id = run.intent.id();
    let mut names = BTreeSet::new();
    let redacts = run.intent.request.redaction.enabled;
    if redacts && run.outcome.as_ref().is_none_or(|outcome| outcome.redactions > 0) {
        for stream in Stream::BOTH {
            let mut output = store.read_output(id, stream)?;
            collect_names(&mut output, &mut names)
                .map_err(|error| retake_store::Error::reading(id, error))?;
        }
    }
    Ok(names)
}

/// The names in `[redacted:NAME]` marks.
fn collect_names(output: &mut impl Read, names: &mut BTreeSet<String>) -> io::Result<()> {
    const LONGEST: usize = 256;
    let mut block = Vec::new();
    loop {
        let read = output.by_ref().take(64 * 1024).read_to_end(&mut block)?;
        for at in 0..block.len() {
            let Some(rest) = block[at..].strip_prefix(REDACTION_MARK.as_bytes()) else { continue };
            let Some(end) = rest.iter().take(LONGEST).position(|&byte| byte == b']') else {
                continue;
            };
            names.extend(std::str::from_utf8(&rest[..end]).map(str::to_owned));
        }
        if read == 0 {
            return Ok(());
        }
        block.drain(..block.len().saturating_sub(LONGEST));
    }
}

/// One difference from the time when a run was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedCondition {
    Commit(ThenAndNow<Option<String>>),
    Worktree(ThenAndNow<Option<String>>),
    Host(ThenAndNow<String>),
    User(ThenAndNow<String>),
    /// The version of retake.
    Version(ThenAndNow<String>),
    /// The program's name resolves to another file.
    ProgramPath(ThenAndNow<String>),
    /// The program's file has changed.
    ProgramFile(ThenAndNow<ProgramFile>),
    VariablesChanged(Vec<String>),
    /// Variables that were not set then.
    VariablesAdded(Vec<String>),
    /// How many are no longer set; their names are not kept.
    VariablesRemoved(usize),
    /// The variable was redacted and has its current value.
    FromEnvironment(String),
    /// The variable was not UTF-8, and an older record kept it only approximately.
    Approximate(String),
}

/// A value at both times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThenAndNow<T> {
    pub then: T,
    pub now: T,
}

impl<T: PartialEq> ThenAndNow<T> {
    pub fn is_same(&self) -> bool {
        self.then == self.now
    }
}

/// Everything that differs, as far as the record shows. `now` is the intent of the new run and
/// `environment` the variables of its command.
pub fn changed_conditions(
    then: &Run,
    now: &Intent,
    environment: &[Variable],
) -> Vec<ChangedCondition> {
    use ChangedCondition as Changed;
    let old = &then.intent;
    let mut found = Vec::new();
    let found_checkout = checkout(old.request.cwd.as_path());
    let ids = &old.request.correlation_ids;
    let commit = ThenAndNow { then: ids.repo_sha.clone(), now: found_checkout.sha };
    found.extend((!commit.is_same()).then_some(Changed::Commit(commit)));
    let worktree = ThenAndNow { then: ids.worktree_id.clone(), now: found_checkout.worktree };
    found.extend((!worktree.is_same()).then_some(Changed::Worktree(worktree)));
    let host = ThenAndNow { then: old.host.clone(), now: machine::host() };
    found.extend((!host.is_same()).then_some(Changed::Host(host)));
    let user = ThenAndNow { then: old.user.clone(), now: machine::user() };
    found.extend((!user.is_same()).then_some(Changed::User(user)));
    let version = ThenAndNow { then: old.version.clone(), now: now.version.clone() };
    found.extend((!version.is_same()).then_some(Changed::Version(version)));
    found.extend(changed_program(old, now));
    found.extend(changed_variables(old, environment));
    for (name, value) in &old.request.environment.set {
        let name = name.to_string_lossy().into_owned();
        if old.redacted.variables.contains(&name) {
            found.push(Changed::FromEnvironment(name));
        } else if value.as_str().is_some_and(|value| value.contains('\u{fffd}')) {
            found.push(Changed::Approximate(name));
        }
    }
    found
}

fn changed_program(then: &Intent, now: &Intent) -> Option<ChangedCondition> {
    let (then, now) = (then.program.clone()?, now.program.clone()?);
    if then.path != now.path {
        return Some(ChangedCondition::ProgramPath(ThenAndNow { then: then.path, now: now.path }));
    }
    (then != now).then_some(ChangedCondition::ProgramFile(ThenAndNow { then, now }))
}

fn changed_variables(
    then: &Intent,
    environment: &[Variable],
) -> impl Iterator<Item = ChangedCondition> {
    let secrets = &then.request.redaction.secrets;
    let changes = then
        .variables
        .as_deref()
        .and_then(|variables| fingerprint::compare(variables, environment, secrets))
        .unwrap_or_default();
    let found = [
        (!changes.other.is_empty()).then_some(ChangedCondition::VariablesChanged(changes.other)),
        (!changes.new.is_empty()).then_some(ChangedCondition::VariablesAdded(changes.new)),
        (changes.gone > 0).then_some(ChangedCondition::VariablesRemoved(changes.gone)),
    ];
    found.into_iter().flatten()
}

/// Compares a run with the one it repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgainComparison {
    /// The outcomes, as lists show them.
    pub outcome: ThenAndNow<String>,
    pub duration: ThenAndNow<Duration>,
    /// `None` if the output of one of them is unknown.
    pub same_output: Option<bool>,
}

impl AgainComparison {
    pub fn new(then: &Run, now: &Run) -> Self {
        let took = |run: &Run| {
            Duration::from_millis(run.outcome.as_ref().map_or(0, |outcome| outcome.duration_ms))
        };
        let hashes =
            |outcome: &RunOutcome| [outcome.stdout_blake3.clone(), outcome.stderr_blake3.clone()];
        let endings = then.outcome.as_deref().zip(now.outcome.as_deref()).filter(|_| now.recorded);
        Self {
            outcome: ThenAndNow { then: run_text::ending(then).0, now: run_text::ending(now).0 },
            duration: ThenAndNow { then: took(then), now: took(now) },
            same_output: endings.map(|(then, now)| hashes(then) == hashes(now)),
        }
    }
}

#[cfg(test)]
mod tests;
