//! One iteration of the loop and what it came to, in the shapes that are stored and printed.

mod chart;
mod history;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use chart::chart;
pub use history::{History, HistorySummary};
pub use retake_types::{TestDetail, TestResults, TestStatus};

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
    /// What else is known; the keys that the loop itself uses are in [`key`].
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// Keys of [`Iteration::metadata`].
pub mod key {
    pub const COST_USD: &str = "costUsd";
    pub const TOKENS: &str = "tokens";
    pub const SESSION_ID: &str = "sessionId";
    pub const RUN_ID: &str = "runId";
    pub const TURNS: &str = "turns";
    pub const MODEL: &str = "model";
    pub const DENIALS: &str = "denials";
    /// What the agent said of its own work: `true` or `false`.
    pub const WORKED: &str = "worked";
    pub const ERROR: &str = "error";
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
    /// Cut off: by a signal, or because the runner itself died.
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

    /// Nothing changes any more.
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
            .ok_or_else(|| format!("{text:?} is no iteration status"))
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
    /// `None` where the agent does not say.
    pub context_usage_percent: Option<u8>,
    /// `None` where nothing was tracked that could tell.
    pub progress_detected: Option<bool>,
    /// Summary given by the agent.
    pub summary: Option<String>,
    pub duration_ms: u64,
}

/// How an iteration is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterationConfig {
    /// Timeout for the entire iteration.
    pub timeout: Duration,
    pub working_dir: PathBuf,
    pub env_vars: BTreeMap<String, String>,
    pub track_file_changes: bool,
    pub parse_tests: bool,
}

impl Default for IterationConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1800),
            working_dir: PathBuf::from("."),
            env_vars: BTreeMap::new(),
            track_file_changes: true,
            parse_tests: true,
        }
    }
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
            metadata: BTreeMap::new(),
        }
    }

    /// Ends the iteration with any of the final statuses.
    pub fn end(&mut self, status: IterationStatus, at: Timestamp, result: Option<IterationResult>) {
        self.status = status;
        self.ended_at = Some(at);
        self.result = result;
    }

    /// By the result's monotonic clock; by the wall where there is no result.
    pub fn duration_ms(&self) -> Option<u64> {
        if let Some(result) = &self.result {
            return Some(result.duration_ms);
        }
        let between = self.ended_at?.as_millisecond() - self.started_at.as_millisecond();
        Some(u64::try_from(between).unwrap_or(0).max(1))
    }

    fn number_in<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.metadata.get(key)?.parse().ok()
    }

    pub fn cost_usd(&self) -> Option<f64> {
        self.number_in(key::COST_USD).filter(|cost: &f64| cost.is_finite())
    }

    pub fn tokens(&self) -> Option<u64> {
        self.number_in(key::TOKENS)
    }

    pub fn worked(&self) -> Option<bool> {
        self.number_in(key::WORKED)
    }

    pub fn progress(&self) -> Option<bool> {
        self.result.as_ref()?.progress_detected
    }

    /// What the plan must know of it when its loop goes on.
    pub fn past(&self) -> crate::plan::Past {
        crate::plan::Past {
            number: self.number,
            status: self.status,
            worked: self.worked(),
            progress: self.progress(),
            spent: crate::plan::Spent {
                cost_usd: self.cost_usd().unwrap_or(0.0),
                tokens: self.tokens().unwrap_or(0),
            },
            duration: Duration::from_millis(self.duration_ms().unwrap_or(0)),
        }
    }

    /// As `agent show --json` prints it.
    pub fn shown(&self) -> Shown<'_> {
        let result = self.result.as_ref();
        let word = |key| self.metadata.get(key).map(String::as_str);
        Shown {
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
            session_id: word(key::SESSION_ID),
            run_id: word(key::RUN_ID),
        }
    }
}

/// One row of `agent show --json`; every key is always there.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown<'a> {
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
    run_id: Option<&'a str>,
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
        let json = serde_json::to_string(&iteration.shown()).unwrap();
        let expected = "number status startedAt endedAt exitCode filesModified filesCreated \
                        filesDeleted testsRun testResults contextUsagePercent progressDetected \
                        summary durationMs costUsd tokens sessionId runId";
        let mut from = 0;
        for key in expected.split_whitespace() {
            let at = json[from..].find(&format!("\"{key}\":")).expect(key);
            from += at;
        }
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 18);
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
    fn the_default_config_is_the_specified_one() {
        let config = IterationConfig::default();
        assert_eq!(config.timeout, Duration::from_secs(1800));
        assert!(config.track_file_changes && config.parse_tests);
    }

    #[test]
    fn an_iteration_reads_back_and_feeds_the_plan() {
        let mut iteration = Iteration::new(4, "p".into(), Timestamp::UNIX_EPOCH);
        let result = IterationResult {
            progress_detected: Some(true),
            duration_ms: 1500,
            ..IterationResult::default()
        };
        iteration.end(IterationStatus::Failed, Timestamp::UNIX_EPOCH, Some(result));
        iteration.metadata.insert(key::COST_USD.into(), "0.25".into());
        iteration.metadata.insert(key::TOKENS.into(), "17".into());
        iteration.metadata.insert(key::WORKED.into(), "false".into());
        let text = serde_json::to_string(&iteration).unwrap();
        let read: Iteration = serde_json::from_str(&text).unwrap();
        assert_eq!(read, iteration);
        let past = read.past();
        assert_eq!((past.number, past.worked, past.progress), (4, Some(false), Some(true)));
        assert_eq!(past.spent, crate::plan::Spent { cost_usd: 0.25, tokens: 17 });
        assert_eq!(past.duration, Duration::from_millis(1500));
    }
}
