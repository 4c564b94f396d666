//! `.metadata.json`: the properties and counters of a workspace. Unknown keys are kept.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use retake_types::loop_record::agent::Mode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::files;

/// More than any configuration needs.
const LARGEST: u64 = 4 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    pub created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Timestamp>,
    #[serde(default)]
    pub status: WorkspaceStatus,
    #[serde(default)]
    pub total_iterations: u32,
    #[serde(default)]
    pub setup_iterations: u32,
    #[serde(default)]
    pub execution_iterations: u32,
    #[serde(default)]
    pub mode: Mode,
    /// Missing in manually written files: then the mode's default applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    /// Seconds between iterations.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "plain_number")]
    pub delay: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stagnation_threshold: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify_events: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationState>,
    /// The hash of the completed instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_instructions: Option<String>,
    /// Earlier loops do not count for this workspace's counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_at: Option<Timestamp>,
    /// Configuration of this workspace only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceStatus {
    #[default]
    InProgress,
    Completed,
    Error,
}

impl WorkspaceStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Error => "error",
        }
    }
}

impl std::fmt::Display for WorkspaceStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for WorkspaceStatus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "in_progress" => Ok(Self::InProgress),
            "completed" => Ok(Self::Completed),
            "error" => Ok(Self::Error),
            _ => Err(format!("{text:?} is not a status; write in_progress, completed or error")),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VerificationState {
    pub verification_attempts: u32,
    pub last_verification_status: Option<String>,
    pub last_verification_time: Option<Timestamp>,
    pub verify_resume_cycles: u32,
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{} is not valid: {why}", .path.display())]
    Invalid { path: PathBuf, why: String },
}

impl Metadata {
    pub fn new(name: &str, mode: Mode, created: Timestamp) -> Self {
        Self {
            name: name.to_owned(),
            created: milliseconds(created),
            last_run: None,
            status: WorkspaceStatus::InProgress,
            total_iterations: 0,
            setup_iterations: 0,
            execution_iterations: 0,
            mode,
            max_iterations: Some(mode.default_max_iterations()),
            delay: Some(2.0),
            stagnation_threshold: Some(2),
            notify_url: None,
            notify_events: Some(vec!["all".to_owned()]),
            verification: None,
            completed_instructions: None,
            reset_at: None,
            config: None,
            unknown: Map::new(),
        }
    }

    pub fn load(path: &Path) -> Result<Self, MetadataError> {
        let content = files::read(path, LARGEST)
            .map_err(|error| MetadataError::Io { path: path.to_owned(), error })?;
        let invalid = |why: String| MetadataError::Invalid { path: path.to_owned(), why };
        let metadata: Self =
            serde_json::from_slice(&content).map_err(|error| invalid(error.to_string()))?;
        if metadata.max_iterations == Some(0) {
            return Err(invalid("maxIterations must be 1 or more".to_owned()));
        }
        if metadata.delay.is_some_and(|delay| !(0.0..=86_400.0 * 365.0).contains(&delay)) {
            return Err(invalid("delay must be a number of seconds".to_owned()));
        }
        Ok(metadata)
    }

    pub fn save(&self, path: &Path) -> Result<(), MetadataError> {
        files::replace(path, &pretty(self))
            .map_err(|error| MetadataError::Io { path: path.to_owned(), error })
    }

    /// Without the user's configuration, which may contain secrets.
    #[must_use]
    pub(super) fn without_settings(&self) -> Self {
        let nothing = Self::new(&self.name, self.mode, self.created);
        self.clone().with_settings_of(&nothing)
    }

    /// With the user's configuration from another copy.
    #[must_use]
    pub(super) fn with_settings_of(self, other: &Self) -> Self {
        Self {
            max_iterations: other.max_iterations,
            delay: other.delay,
            stagnation_threshold: other.stagnation_threshold,
            notify_url: other.notify_url.clone(),
            notify_events: other.notify_events.clone(),
            config: other.config.clone(),
            unknown: other.unknown.clone(),
            ..self
        }
    }

    /// Marks the task as complete for these instructions.
    pub fn complete(&mut self, instructions: &str) {
        self.status = WorkspaceStatus::Completed;
        self.completed_instructions = Some(fingerprint(instructions));
    }

    /// Whether the task was completed with the same instructions.
    pub fn is_complete(&self, instructions: &str) -> bool {
        let same = |completed: &String| *completed == fingerprint(instructions);
        self.status == WorkspaceStatus::Completed
            && self.completed_instructions.as_ref().is_none_or(same)
    }

    /// Counts an interactive session.
    pub fn count_setup(&mut self) {
        self.setup_iterations = self.setup_iterations.saturating_add(1);
        self.total_iterations = self.total_iterations.saturating_add(1);
    }

    /// Counts an iteration that began at `at`.
    pub fn count_execution(&mut self, at: Timestamp) {
        self.execution_iterations = self.execution_iterations.saturating_add(1);
        self.total_iterations = self.total_iterations.saturating_add(1);
        self.last_run = Some(milliseconds(at));
    }

    /// Resets the counters and the status.
    pub fn reset(&mut self, now: Timestamp) {
        self.completed_instructions = None;
        self.reset_at = Some(now);
        (self.total_iterations, self.setup_iterations, self.execution_iterations) = (0, 0, 0);
        self.status = WorkspaceStatus::InProgress;
        self.last_run = None;
        self.verification = None;
    }
}

fn fingerprint(instructions: &str) -> String {
    blake3::hash(instructions.trim().as_bytes()).to_hex()[..32].to_owned()
}

/// Indented by two spaces and with a final line feed, because users edit these files.
pub(crate) fn pretty(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

pub(crate) fn milliseconds(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at)
}

/// `2` instead of `2.0`.
fn plain_number<S: serde::Serializer>(value: &Option<f64>, out: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(whole) if whole.fract() == 0.0 && *whole >= 0.0 => out.serialize_u64(*whole as u64),
        Some(number) => out.serialize_f64(*number),
        None => out.serialize_none(),
    }
}
