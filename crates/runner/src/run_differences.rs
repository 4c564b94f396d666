//! The differences between two recorded runs: how they ended, how they were run, and their output.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufReader, Read};

use retake_engine::quote;
use retake_store::{Error, RecordReader};
use retake_types::{Limits, Run, RunId, Stream, text};
use serde::{Serialize, Serializer};

use crate::run_text;
use crate::unified_diff::unified;

/// Larger output is only compared for equality, without a diff.
const LARGE: u64 = 4 << 20;

/// One differing part; `None` if a run lacks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    #[serde(rename = "what", serialize_with = "as_text")]
    pub part: RunPart,
    pub a: Option<String>,
    pub b: Option<String>,
}

/// The compared parts of runs, apart from their output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunPart {
    Outcome,
    Duration,
    Command,
    Arguments,
    Shell,
    Directory,
    Commit,
    Worktree,
    Timeout,
    Limits,
    EnvironmentMode,
    Host,
    User,
    Version,
    /// A variable that was set or removed.
    Variable(String),
    Label(String),
}

/// The name in `--json`.
impl fmt::Display for RunPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outcome => "outcome",
            Self::Duration => "duration",
            Self::Command => "command",
            Self::Arguments => "arguments",
            Self::Shell => "shell",
            Self::Directory => "directory",
            Self::Commit => "commit",
            Self::Worktree => "worktree",
            Self::Timeout => "timeout",
            Self::Limits => "limits",
            Self::EnvironmentMode => "environment mode",
            Self::Host => "host",
            Self::User => "user",
            Self::Version => "retake",
            Self::Variable(name) => return write!(f, "environment {name}"),
            Self::Label(name) => return write!(f, "label {name}"),
        })
    }
}

fn as_text<S: Serializer>(part: &RunPart, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(part)
}

/// All differences, most important first.
pub fn differences(a: &Run, b: &Run) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut compare = |part: RunPart, of: &dyn Fn(&Run) -> Option<String>| {
        let (a, b) = (of(a), of(b));
        if a != b {
            found.push(Difference { part, a, b });
        }
    };
    compare(RunPart::Outcome, &|run| Some(run_text::ending(run).0));
    compare(RunPart::Duration, &|run| {
        Some(run_text::duration(run)).filter(|text| !text.is_empty())
    });
    compare(RunPart::Command, &|run| Some(run.intent.command().to_owned()));
    compare(RunPart::Arguments, &|run| {
        Some(quote(run.intent.arguments().iter().map(String::as_str)))
    });
    compare(RunPart::Shell, &|run| Some(run.intent.request.command.is_shell().to_string()));
    compare(RunPart::Directory, &|run| Some(run.intent.working_directory()));
    compare(RunPart::Commit, &|run| run.intent.request.correlation_ids.repo_sha.clone());
    compare(RunPart::Worktree, &|run| run.intent.request.correlation_ids.worktree_id.clone());
    compare(RunPart::Timeout, &|run| run.intent.request.timeout().map(text::duration));
    compare(RunPart::Limits, &|run| limits(&run.intent.request.limits));
    compare(RunPart::EnvironmentMode, &|run| {
        Some(run.intent.request.environment.mode.as_str().to_owned())
    });
    compare(RunPart::Host, &|run| Some(run.intent.host.clone()));
    compare(RunPart::User, &|run| Some(run.intent.user.clone()));
    compare(RunPart::Version, &|run| Some(run.intent.version.clone()));
    compare_maps(RunPart::Variable, [a, b].map(variables_set), &mut found);
    compare_maps(RunPart::Variable, [a, b].map(variables_removed), &mut found);
    compare_maps(RunPart::Label, [a, b].map(|run| run.intent.request.labels.clone()), &mut found);
    found
}

fn variables_set(run: &Run) -> BTreeMap<String, String> {
    let set = run.intent.request.environment.set.iter();
    set.map(|(name, value)| (name.to_string_lossy().into(), value.to_string_lossy().into()))
        .collect()
}

fn variables_removed(run: &Run) -> BTreeMap<String, String> {
    let unset = run.intent.request.environment.unset.iter();
    unset.map(|name| (name.to_string_lossy().into_owned(), "removed".to_owned())).collect()
}

fn compare_maps(
    part: fn(String) -> RunPart,
    [a, b]: [BTreeMap<String, String>; 2],
    found: &mut Vec<Difference>,
) {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for name in names.into_iter().filter(|name| a.get(*name) != b.get(*name)) {
        let (a, b) = (a.get(name).cloned(), b.get(name).cloned());
        found.push(Difference { part: part(name.clone()), a, b });
    }
}

fn limits(limits: &Limits) -> Option<String> {
    // The keys of `--json` are clear enough, and complete.
    let all = serde_json::to_value(limits).ok()?;
    let given: Vec<_> = all
        .as_object()?
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    (!given.is_empty()).then(|| given.join(", "))
}

/// The comparison of one stream of two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputComparison {
    pub same: bool,
    /// The first differing byte, if the output is too large for a diff.
    pub first_difference: Option<u64>,
    /// In unified format.
    pub diff: Option<String>,
}

/// Compares one stream of two runs.
pub fn compare_output(
    store: &dyn RecordReader,
    a: &Run,
    b: &Run,
    stream: Stream,
) -> retake_store::Result<OutputComparison> {
    if let (Some(a), Some(b)) = (hash(a, stream), hash(b, stream))
        && a == b
    {
        return Ok(OutputComparison { same: true, first_difference: None, diff: None });
    }
    let (a, b) = (a.intent.id(), b.intent.id());
    let sizes = [store.read_output(a, stream)?.length(), store.read_output(b, stream)?.length()];
    let difference = first_difference(store, a, b, stream)?;
    let diff = match difference {
        Some(_) if sizes.iter().all(|size| *size <= LARGE) => {
            Some(unified(&output_text(store, a, stream)?, &output_text(store, b, stream)?))
        }
        _ => None,
    };
    let first_difference = difference.filter(|_| diff.is_none());
    Ok(OutputComparison { same: difference.is_none(), first_difference, diff })
}

fn hash(run: &Run, stream: Stream) -> Option<&str> {
    let outcome = run.outcome.as_ref()?;
    match stream {
        Stream::Stdout => outcome.stdout_blake3.as_deref(),
        Stream::Stderr => outcome.stderr_blake3.as_deref(),
    }
}

/// The offset at which two outputs begin to differ. Reads them in parallel, because they may exceed
/// memory.
fn first_difference(
    store: &dyn RecordReader,
    a: RunId,
    b: RunId,
    stream: Stream,
) -> retake_store::Result<Option<u64>> {
    let mut left = BufReader::new(store.read_output(a, stream)?).bytes();
    let mut right = BufReader::new(store.read_output(b, stream)?).bytes();
    for at in 0.. {
        let x = left.next().transpose().map_err(|error| Error::reading(a, error))?;
        let y = right.next().transpose().map_err(|error| Error::reading(b, error))?;
        match (x, y) {
            (None, None) => return Ok(None),
            (x, y) if x != y => return Ok(Some(at)),
            _ => {}
        }
    }
    Ok(None)
}

fn output_text(
    store: &dyn RecordReader,
    id: RunId,
    stream: Stream,
) -> retake_store::Result<String> {
    let mut bytes = Vec::new();
    store
        .read_output(id, stream)?
        .take(LARGE)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::reading(id, error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_named_as_in_json() {
        let part = RunPart::Variable("HOME".to_owned());
        let difference = Difference { part, a: Some("x".to_owned()), b: None };
        let json = serde_json::to_string(&difference).unwrap();
        assert_eq!(json, r#"{"what":"environment HOME","a":"x","b":null}"#);
    }
}
