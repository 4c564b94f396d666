//! One iteration of an agent loop, in the shapes that are stored and printed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Spent;
use crate::{RunId, TestResults};

/// A single iteration of the loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Iteration {
    /// Unique within the workspace; counts from 1 over all invocations.
    pub number: u32,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub status: IterationStatus,
    /// The prompt sent.
    pub prompt: String,
    pub result: Option<IterationResult>,
    #[serde(default, rename = "metadata")]
    pub facts: IterationFacts,
}

/// What is known of an iteration besides its result. Stored as a map of texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct IterationFacts {
    pub run_id: Option<RunId>,
    /// The kind of agent that ran. Earlier versions did not record it.
    pub agent: Option<String>,
    pub cost_usd: Option<f64>,
    pub tokens: Option<u64>,
    pub session_id: Option<String>,
    pub turns: Option<u64>,
    pub model: Option<String>,
    /// How many permissions were denied.
    pub denials: Option<u64>,
    /// The tools whose permission was denied, as far as the agent named them.
    pub denied_tools: Option<DeniedTools>,
    /// How often the sandbox denied something.
    pub sandbox_denials: Option<u64>,
    /// Whether the agent reports that it did work.
    pub worked: Option<bool>,
    /// Whether the agent reports the task as complete. Earlier versions did not record it.
    pub complete: Option<bool>,
    pub error: Option<String>,
    /// Keys that this version does not know, kept unchanged.
    pub other: BTreeMap<String, String>,
}

/// The tools whose permission was denied, and how often each: `Bash (2), Write`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedTools(BTreeMap<String, u64>);

impl DeniedTools {
    pub fn add(&mut self, tool: &str, times: u64) {
        *self.0.entry(tool.to_owned()).or_default() += times;
    }

    pub fn add_all(&mut self, more: &Self) {
        more.0.iter().for_each(|(tool, times)| self.add(tool, *times));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Display for DeniedTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (tool, times)) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            match times {
                1 => f.write_str(tool)?,
                times => write!(f, "{tool} ({times})")?,
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for DeniedTools {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut tools = Self::default();
        for part in text.split(", ").filter(|part| !part.is_empty()) {
            let counted = part.strip_suffix(')').and_then(|part| part.rsplit_once(" ("));
            let counted = counted.and_then(|(tool, times)| Some((tool, times.parse().ok()?)));
            let (tool, times) = counted.unwrap_or((part, 1));
            tools.add(tool, times);
        }
        Ok(tools)
    }
}

const AGENT: &str = "agent";
const COST_USD: &str = "costUsd";
const TOKENS: &str = "tokens";
const SESSION_ID: &str = "sessionId";
const RUN_ID: &str = "runId";
const TURNS: &str = "turns";
const MODEL: &str = "model";
const DENIALS: &str = "denials";
const DENIED_TOOLS: &str = "deniedTools";
const SANDBOX_DENIALS: &str = "sandboxDenials";
const WORKED: &str = "worked";
const COMPLETE: &str = "complete";
const ERROR: &str = "error";

impl From<BTreeMap<String, String>> for IterationFacts {
    fn from(mut other: BTreeMap<String, String>) -> Self {
        /// A value that cannot be parsed stays among the unknown ones.
        fn take<T: std::str::FromStr>(map: &mut BTreeMap<String, String>, key: &str) -> Option<T> {
            let value = map.get(key)?.parse().ok()?;
            map.remove(key);
            Some(value)
        }
        let cost_usd = take(&mut other, COST_USD).filter(|cost: &f64| cost.is_finite());
        Self {
            run_id: take(&mut other, RUN_ID),
            agent: take(&mut other, AGENT),
            cost_usd,
            tokens: take(&mut other, TOKENS),
            session_id: take(&mut other, SESSION_ID),
            turns: take(&mut other, TURNS),
            model: take(&mut other, MODEL),
            denials: take(&mut other, DENIALS),
            denied_tools: take(&mut other, DENIED_TOOLS),
            sandbox_denials: take(&mut other, SANDBOX_DENIALS),
            worked: take(&mut other, WORKED),
            complete: take(&mut other, COMPLETE),
            error: take(&mut other, ERROR),
            other,
        }
    }
}

impl From<IterationFacts> for BTreeMap<String, String> {
    fn from(facts: IterationFacts) -> Self {
        let IterationFacts {
            run_id,
            agent,
            cost_usd,
            tokens,
            session_id,
            turns,
            model,
            denials,
            denied_tools,
            sandbox_denials,
            worked,
            complete,
            error,
            other: mut map,
        } = facts;
        let known = [
            (RUN_ID, run_id.map(|id| id.to_string())),
            (AGENT, agent),
            (COST_USD, cost_usd.map(|cost| cost.to_string())),
            (TOKENS, tokens.map(|tokens| tokens.to_string())),
            (SESSION_ID, session_id),
            (TURNS, turns.map(|turns| turns.to_string())),
            (MODEL, model),
            (DENIALS, denials.map(|denials| denials.to_string())),
            (DENIED_TOOLS, denied_tools.map(|tools| tools.to_string())),
            (SANDBOX_DENIALS, sandbox_denials.map(|denials| denials.to_string())),
            (WORKED, worked.map(|worked| worked.to_string())),
            (COMPLETE, complete.map(|complete| complete.to_string())),
            (ERROR, error),
        ];
        map.extend(known.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        map
    }
}

/// Status of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IterationStatus {
    Pending,
    PreHooks,
    Executing,
    PostHooks,
    Completed,
    Failed,
    TimedOut,
    Skipped,
    /// Ended early: by a signal, or because the runner died.
    Interrupted,
}

impl IterationStatus {
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::PreHooks,
        Self::Executing,
        Self::PostHooks,
        Self::Completed,
        Self::Failed,
        Self::TimedOut,
        Self::Skipped,
        Self::Interrupted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::PreHooks => "pre_hooks",
            Self::Executing => "executing",
            Self::PostHooks => "post_hooks",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Skipped => "skipped",
            Self::Interrupted => "interrupted",
        }
    }

    /// Whether the status can no longer change.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::PreHooks | Self::Executing | Self::PostHooks)
    }
}

impl std::fmt::Display for IterationStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for IterationStatus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or_else(|| format!("{text:?} is not the status of an iteration"))
    }
}

/// Result of an iteration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IterationResult {
    /// Exit code from the agent.
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
    pub files_modified: Vec<PathBuf>,
    pub files_created: Vec<PathBuf>,
    pub files_deleted: Vec<PathBuf>,
    pub tests_run: bool,
    pub test_results: Option<TestResults>,
    /// `None` where the agent does not report it.
    pub context_usage_percent: Option<u8>,
    /// `None` where progress was not tracked.
    pub progress_detected: Option<bool>,
    /// Summary given by the agent.
    pub summary: Option<String>,
    pub duration_ms: u64,
}

impl Iteration {
    pub fn new(number: u32, prompt: String, started_at: Timestamp) -> Self {
        Self {
            number,
            started_at,
            ended_at: None,
            status: IterationStatus::Pending,
            prompt,
            result: None,
            facts: IterationFacts::default(),
        }
    }

    /// Ends the iteration with a final status.
    pub fn end(&mut self, status: IterationStatus, at: Timestamp, result: Option<IterationResult>) {
        self.status = status;
        self.ended_at = Some(at);
        self.result = result;
    }

    /// By the result's monotonic clock; without a result, by the wall clock.
    pub fn duration_ms(&self) -> Option<u64> {
        if let Some(result) = &self.result {
            return Some(result.duration_ms);
        }
        let between = self.ended_at?.as_millisecond() - self.started_at.as_millisecond();
        Some(u64::try_from(between).unwrap_or(0).max(1))
    }

    pub fn cost_usd(&self) -> Option<f64> {
        self.facts.cost_usd
    }

    pub fn tokens(&self) -> Option<u64> {
        self.facts.tokens
    }

    /// What it cost, as far as that is known.
    pub fn spent(&self) -> Spent {
        Spent {
            cost_usd: self.facts.cost_usd.unwrap_or(0.0),
            tokens: self.facts.tokens.unwrap_or(0),
        }
    }

    pub fn progress(&self) -> Option<bool> {
        self.result.as_ref()?.progress_detected
    }

    /// As `agent show --json` prints it.
    pub fn row(&self) -> IterationRow<'_> {
        let result = self.result.as_ref();
        IterationRow {
            number: self.number,
            status: self.status,
            started_at: self.started_at,
            ended_at: self.ended_at,
            exit_code: result.map(|r| r.exit_code),
            files_modified: result.map_or(&[], |r| &r.files_modified),
            files_created: result.map_or(&[], |r| &r.files_created),
            files_deleted: result.map_or(&[], |r| &r.files_deleted),
            tests_run: result.is_some_and(|r| r.tests_run),
            test_results: result.and_then(|r| r.test_results.as_ref()),
            context_usage_percent: result.and_then(|r| r.context_usage_percent),
            progress_detected: self.progress(),
            summary: result.and_then(|r| r.summary.as_deref()),
            duration_ms: self.duration_ms(),
            cost_usd: self.cost_usd(),
            tokens: self.tokens(),
            session_id: self.facts.session_id.as_deref(),
            run_id: self.facts.run_id,
            error: self.facts.error.as_deref(),
            denials: self.facts.denials.unwrap_or(0),
            denied_tools: self.facts.denied_tools.as_ref().map(ToString::to_string),
            prompt: &self.prompt,
            agent: self.facts.agent.as_deref(),
        }
    }

    /// How many files it changed.
    pub fn changed_files(&self) -> Option<usize> {
        let result = self.result.as_ref()?;
        let lists = [&result.files_modified, &result.files_created, &result.files_deleted];
        let count = lists.iter().map(|list| list.len()).sum();
        // Without tracked progress no file was looked at.
        (count > 0 || result.progress_detected.is_some()).then_some(count)
    }

    pub fn test_results(&self) -> Option<&TestResults> {
        self.result.as_ref()?.test_results.as_ref()
    }
}

/// One row of `agent show --json`; every key is always present.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IterationRow<'a> {
    number: u32,
    status: IterationStatus,
    started_at: Timestamp,
    ended_at: Option<Timestamp>,
    exit_code: Option<i32>,
    files_modified: &'a [PathBuf],
    files_created: &'a [PathBuf],
    files_deleted: &'a [PathBuf],
    tests_run: bool,
    test_results: Option<&'a TestResults>,
    context_usage_percent: Option<u8>,
    progress_detected: Option<bool>,
    summary: Option<&'a str>,
    duration_ms: Option<u64>,
    cost_usd: Option<f64>,
    tokens: Option<u64>,
    session_id: Option<&'a str>,
    run_id: Option<RunId>,
    error: Option<&'a str>,
    denials: u64,
    denied_tools: Option<String>,
    prompt: &'a str,
    agent: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_statuses_with_one_word_each() {
        for status in IterationStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        let open = IterationStatus::ALL.into_iter().filter(|s| !s.is_final()).count();
        assert_eq!(open, 4);
    }

    #[test]
    fn a_row_has_the_pinned_keys() {
        let iteration = Iteration::new(1, "p".into(), Timestamp::UNIX_EPOCH);
        let json = serde_json::to_string(&iteration.row()).unwrap();
        let expected = "number status startedAt endedAt exitCode filesModified filesCreated \
                        filesDeleted testsRun testResults contextUsagePercent progressDetected \
                        summary durationMs costUsd tokens sessionId runId error denials \
                        deniedTools prompt agent";
        let mut from = 0;
        for key in expected.split_whitespace() {
            let at = json[from..].find(&format!("\"{key}\":")).expect(key);
            from += at;
        }
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 23);
    }

    #[test]
    fn the_result_has_the_specified_fields() {
        let value = serde_json::to_value(IterationResult::default()).unwrap();
        let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = [
            "exitCode",
            "stdout",
            "stderr",
            "filesModified",
            "filesCreated",
            "filesDeleted",
            "testsRun",
            "testResults",
            "contextUsagePercent",
            "progressDetected",
            "summary",
            "durationMs",
        ];
        keys.sort_unstable();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }

    #[test]
    fn an_iteration_reads_back_with_its_facts_as_texts() {
        let mut iteration = Iteration::new(4, "p".into(), Timestamp::UNIX_EPOCH);
        let result = IterationResult {
            progress_detected: Some(true),
            duration_ms: 1500,
            ..IterationResult::default()
        };
        iteration.end(IterationStatus::Failed, Timestamp::UNIX_EPOCH, Some(result));
        iteration.facts.cost_usd = Some(0.25);
        iteration.facts.tokens = Some(17);
        iteration.facts.worked = Some(false);
        iteration.facts.run_id = Some(RunId::new());
        iteration.facts.agent = Some("codex".into());
        let mut denied = DeniedTools::default();
        for tool in ["Write", "Bash", "mcp__a__b", "Bash"] {
            denied.add(tool, 1);
        }
        iteration.facts.denied_tools = Some(denied);
        iteration.facts.other.insert("later".into(), "x".into());
        let value = serde_json::to_value(&iteration).unwrap();
        assert_eq!(value["metadata"]["costUsd"], "0.25");
        assert_eq!(value["metadata"]["tokens"], "17");
        assert_eq!(value["metadata"]["worked"], "false");
        assert_eq!(value["metadata"]["later"], "x");
        assert_eq!(value["metadata"]["deniedTools"], "Bash (2), Write, mcp__a__b");
        let read: Iteration = serde_json::from_value(value).unwrap();
        assert_eq!(read, iteration);
        assert_eq!(read.spent(), Spent { cost_usd: 0.25, tokens: 17 });
    }

    #[test]
    fn a_fact_that_cannot_be_read_is_kept_as_it_is() {
        let text = r#"{"number":1,"startedAt":"1970-01-01T00:00:00Z","endedAt":null,
                       "status":"completed","prompt":"","result":null,
                       "metadata":{"costUsd":"much","turns":"3"}}"#;
        let iteration: Iteration = serde_json::from_str(text).unwrap();
        assert_eq!((iteration.facts.cost_usd, iteration.facts.turns), (None, Some(3)));
        let value = serde_json::to_value(&iteration).unwrap();
        assert_eq!(value["metadata"]["costUsd"], "much");
    }
}
