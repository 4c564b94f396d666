//! `runs_list`, `runs_show`, `runs_search`, `runs_diff`: query the record.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use retake_policy::RunMode;
use retake_runner::{point_in_time, run_differences, run_text};
use retake_store::{Error, RunFilter, RunStatus, SearchEffort, Store};
use retake_types::{Run, RunId, Stream, text};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::exec::budget;
use super::run_request::directory;
use super::{ClientSession, ToolAnswer, ToolError, limit};
use crate::output_source::OutputSource;
use crate::run_view::{AdviceContext, RunView, cut};
use crate::terminal_text::visible;
use crate::tool_error::store_error;

/// How long output that is not indexed is searched.
const SCAN: Duration = Duration::from_secs(10);
const USUAL: usize = 20;
const MOST: usize = 200;
/// Maximum length of a command line in a list.
const LINE: usize = 200;
/// How many candidates for an ambiguous id are listed.
const CANDIDATES: usize = 10;

/// Which runs to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    /// Maximum number of runs. Default: 20; at most 200
    #[serde(default)]
    limit: Option<usize>,
    /// running, ok or failed
    #[serde(default)]
    status: Option<String>,
    /// Only runs whose whole command line matches this pattern (*, ?, [a-z])
    #[serde(default)]
    command: Option<String>,
    /// Only runs in exactly this working directory
    #[serde(default)]
    cwd: Option<String>,
    /// Only runs of this session; "this" for the current one
    #[serde(default)]
    session_id: Option<String>,
    /// Only runs of this task
    #[serde(default)]
    task_id: Option<String>,
    /// Only runs that began at or after this time, or at most this long ago (90m, 3d)
    #[serde(default)]
    since: Option<String>,
    /// Only runs that changed this file, or one in this directory
    #[serde(default)]
    changed: Option<String>,
    /// Only runs whose tests failed
    #[serde(default)]
    tests_failed: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunList {
    runs: Vec<RunLine>,
    /// There are older runs
    more: bool,
}

/// A run in one line.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunLine {
    run_id: String,
    start_time: String,
    /// ok, exit 1, timed out, running, ...
    outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    /// exec, agent, matrix or crash
    kind: String,
    command: String,
    working_directory: String,
}

fn described_by_list(_: &mut SchemaGenerator) -> Schema {
    super::run_line_schema().into()
}

impl RunLine {
    fn of(run: &Run) -> Self {
        Self {
            run_id: run.intent.id().to_string(),
            start_time: text::moment(run.intent.start_time),
            outcome: run_text::outcome(run).0,
            duration_ms: run.outcome.as_ref().map(|outcome| outcome.duration_ms),
            kind: run.intent.kind().as_str().to_owned(),
            command: cut(run.intent.command(), LINE),
            working_directory: run.intent.working_directory(),
        }
    }
}

/// `1a2b3c4d  3m ago  exit 1  1.2s  cargo test`
fn line(run: &Run) -> String {
    format!(
        "{}  {}  {}  {}  {}",
        run.intent.id().short(),
        text::ago(run.intent.start_time, Timestamp::now()),
        run_text::outcome(run).0,
        run_text::duration(run),
        cut(&visible(run.intent.command()), LINE)
    )
}

pub(super) async fn list(
    session: &Arc<ClientSession>,
    list: ListArguments,
) -> Result<ToolAnswer, ToolError> {
    let status = match list.status.as_deref() {
        None => None,
        Some("running") => Some(RunStatus::Running),
        Some("ok") => Some(RunStatus::Ok),
        Some("failed") => Some(RunStatus::Failed),
        Some(other) => {
            return Err(ToolError::argument(format!(
                "status takes running, ok or failed, not {other}"
            )));
        }
    };
    let since = list.since.as_deref().map(point_in_time::parse).transpose();
    let since = since.map_err(|why| ToolError::argument(format!("since: {why}")))?;
    let at = |path: String| directory(&session.directory, Some(&path));
    let filter = RunFilter {
        status,
        command: list.command,
        cwd: list.cwd.map(at),
        session_id: match list.session_id.as_deref() {
            Some("this") => session.ids().session_id,
            _ => list.session_id,
        },
        task_id: list.task_id,
        since,
        changed: list.changed.map(at),
        tests_failed: list.tests_failed,
        ..RunFilter::default()
    };
    let limit = limit(list.limit, USUAL, MOST)?;
    let (page, unreadable) =
        session.read(move |store| Ok(store.list_readable(&filter, None, limit)?)).await?;
    let more = page.next.is_some();
    let mut text: String = page.runs.iter().map(|run| line(run) + "\n").collect();
    if page.runs.is_empty() {
        text.push_str("no run matches\n");
    }
    if more {
        text.push_str("There are older ones; a larger limit or other filters show them.\n");
    }
    for error in &unreadable {
        text.push_str(&format!("A run is left out: {}.\n", store_error(error)));
    }
    Ok(ToolAnswer::new(&RunList { runs: page.runs.iter().map(RunLine::of).collect(), more }, text))
}

/// Which run to show.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShowArguments {
    /// The run: its id, a unique beginning or end of it, or "last"
    run: String,
    /// Maximum number of characters of output. Default: 8000
    #[serde(default)]
    max_chars: Option<usize>,
}

pub(super) async fn show(
    session: &Arc<ClientSession>,
    show: ShowArguments,
) -> Result<ToolAnswer, ToolError> {
    let budget = budget(show.max_chars);
    let context = AdviceContext::new(&session.policy_config, RunMode::Foreground);
    let view = session
        .read(move |store| {
            let run = find(store, &show.run)?;
            let mut view = RunView::new(&run, &OutputSource::Recorded(store), budget, context);
            let children = store.children(run.intent.id())?;
            for child in children.iter().take(USUAL) {
                view.notes.push(format!("Inside it: {}", line(child)));
            }
            if children.len() > USUAL {
                view.notes.push(format!("and {} more inside it", children.len() - USUAL));
            }
            Ok(view)
        })
        .await?;
    Ok(ToolAnswer::new(&view, view.text_with_command()))
}

/// The run that a text names.
pub(super) fn find(store: &Store, text: &str) -> Result<Run, ToolError> {
    match store.find(text) {
        Err(Error::Ambiguous { text, candidates }) => {
            let mut lines = Vec::new();
            for id in candidates.iter().take(CANDIDATES) {
                let run = store.get(*id)?;
                let ago = text::ago(run.intent.start_time, Timestamp::now());
                let outcome = run_text::outcome(&run).0;
                lines.push(format!("{id}  {ago}  {outcome}  {}", run.intent.command()));
            }
            if candidates.len() > CANDIDATES {
                lines.push(format!("and {} more", candidates.len() - CANDIDATES));
            }
            Err(ToolError::Ambiguous { text, candidates: lines })
        }
        found => Ok(found?),
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchArguments {
    /// Whole words, in this order, ignoring case; a * at the end matches any ending of the last word
    text: String,
    /// Maximum number of hits. Default: 20; at most 200
    #[serde(default)]
    limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SearchHits {
    hits: Vec<SearchHit>,
    /// There are older hits
    more: bool,
    /// Bytes of output that were not searched
    skipped_bytes: u64,
    /// Outputs that are lost or were altered, as RUN/STREAM: nothing of them is shown
    damaged: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SearchHit {
    #[schemars(schema_with = "described_by_list")]
    run: RunLine,
    /// stdout or stderr
    stream: String,
    snippet: String,
}

pub(super) async fn search(
    session: &Arc<ClientSession>,
    search: SearchArguments,
) -> Result<ToolAnswer, ToolError> {
    if !search.text.contains(char::is_alphanumeric) {
        return Err(ToolError::argument(
            "text contains no word; search matches letters and digits only, runs_logs with a pattern everything",
        ));
    }
    let limit = limit(search.limit, USUAL, MOST)?;
    let found = session
        .read(move |store| Ok(store.search(&search.text, limit, SearchEffort::within(SCAN))?))
        .await?;
    let mut text = String::new();
    let mut hits = Vec::new();
    for hit in &found.hits {
        let (stream, snippet) = (hit.stream.as_str(), visible(&hit.snippet));
        _ = writeln!(text, "{}\n    {stream}: {snippet}", line(&hit.run));
        hits.push(SearchHit { run: RunLine::of(&hit.run), stream: stream.to_owned(), snippet });
    }
    if hits.is_empty() {
        text.push_str("no recorded output has these words\n");
    }
    if found.more {
        text.push_str("There are older ones; a larger limit shows them.\n");
    }
    if found.skipped_bytes > 0 {
        _ = writeln!(
            text,
            "Stopped after {}: {} of older output were not searched; runs_list finds a run by other criteria, and runs_logs with \"pattern\" searches its output.",
            text::duration(SCAN),
            text::size(found.skipped_bytes)
        );
    }
    let named = |(id, stream): &(RunId, Stream)| format!("{id}/{}", stream.as_str());
    let damaged: Vec<String> = found.damaged.iter().map(named).collect();
    if !damaged.is_empty() {
        _ = writeln!(
            text,
            "Lost or altered, and left out: {}. For the user: `retake audit verify` finds everything that is damaged.",
            damaged.join(", ")
        );
    }
    let (more, skipped_bytes) = (found.more, found.skipped_bytes);
    let hits = SearchHits { hits, more, skipped_bytes, damaged };
    Ok(ToolAnswer::new(&hits, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DiffArguments {
    /// The older run
    a: String,
    /// The newer run
    b: String,
    /// Maximum number of characters of each stream's diff. Default: 4000
    #[serde(default)]
    max_chars: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunDifferences {
    #[schemars(schema_with = "described_by_list")]
    a: RunLine,
    #[schemars(schema_with = "described_by_list")]
    b: RunLine,
    differences: Vec<DifferenceView>,
    stdout: StreamDifference,
    stderr: StreamDifference,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DifferenceView {
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    a: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    b: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct StreamDifference {
    same: bool,
    /// The first byte that differs, if the output is too large for a diff
    #[serde(skip_serializing_if = "Option::is_none")]
    first_difference: Option<u64>,
    /// In unified format
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
    /// Whether the diff is shown only in part
    cut: bool,
}

pub(super) async fn diff(
    session: &Arc<ClientSession>,
    diff: DiffArguments,
) -> Result<ToolAnswer, ToolError> {
    let most = diff.max_chars.map_or(4000, |chars| budget(Some(chars)));
    let (found, text) = session
        .read(move |store| {
            let (a, b) = (find(store, &diff.a)?, find(store, &diff.b)?);
            compare(store, &a, &b, most)
        })
        .await?;
    Ok(ToolAnswer::new(&found, text))
}

fn compare(
    store: &Store,
    a: &Run,
    b: &Run,
    most: usize,
) -> Result<(RunDifferences, String), ToolError> {
    let mut text = format!("--- {}\n+++ {}\n", line(a), line(b));
    let mut listed = Vec::new();
    for found in run_differences::differences(a, b) {
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "(none)".to_owned());
        _ = writeln!(text, "{}: {} -> {}", found.part, side(&found.a), side(&found.b));
        listed.push(DifferenceView { what: found.part.to_string(), a: found.a, b: found.b });
    }
    let mut of = |stream: Stream| -> Result<StreamDifference, ToolError> {
        let compared = run_differences::compare_output(store, a, b, stream)?;
        let name = stream.as_str();
        let whole = compared
            .diff
            .as_deref()
            .map(|diff| diff.lines().map(|line| visible(line) + "\n").collect::<String>());
        let diff = whole.as_deref().map(|diff| cut(diff, most));
        match (&diff, compared.first_difference) {
            _ if compared.same => _ = writeln!(text, "{name}: same"),
            (Some(diff), _) => _ = writeln!(text, "{name}: differs\n{}", diff.trim_end()),
            (None, at) => {
                _ = writeln!(
                    text,
                    "{name}: differs from byte {} on; too large for a diff",
                    at.unwrap_or(0)
                );
            }
        }
        Ok(StreamDifference {
            same: compared.same,
            first_difference: compared.first_difference,
            cut: whole.is_some_and(|whole| whole.chars().count() > most),
            diff,
        })
    };
    let (stdout, stderr) = (of(Stream::Stdout)?, of(Stream::Stderr)?);
    Ok((
        RunDifferences {
            a: RunLine::of(a),
            b: RunLine::of(b),
            differences: listed,
            stdout,
            stderr,
        },
        text,
    ))
}
