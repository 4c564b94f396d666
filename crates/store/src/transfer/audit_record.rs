//! A run as an audit record of the specification.

use jiff::Timestamp;
use retake_types::Run;
use serde::Serialize;

/// An audit record, with exactly the keys of the specification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    pub event_type: &'static str,
    pub timestamp: Timestamp,
    pub run_id: Option<String>,
    pub session_id: Option<String>,
    pub task_id: Option<String>,
    pub step_id: Option<String>,
    pub tool_call_id: Option<String>,
    pub worktree_id: Option<String>,
    pub repo_sha: Option<String>,
    pub command: String,
    pub exit_code: Option<i32>,
    pub duration_ms: Option<u64>,
}

impl AuditRecord {
    pub fn of(run: &Run) -> Self {
        let ids = run.intent.request.correlation_ids.clone();
        Self {
            event_type: "command_execution",
            timestamp: run.intent.start_time,
            run_id: ids.run_id,
            session_id: ids.session_id,
            task_id: ids.task_id,
            step_id: ids.step_id,
            tool_call_id: ids.tool_call_id,
            worktree_id: ids.worktree_id,
            repo_sha: ids.repo_sha,
            command: run.intent.command().to_owned(),
            exit_code: run.outcome.as_ref().and_then(|outcome| outcome.exit_code),
            duration_ms: run.outcome.as_ref().map(|outcome| outcome.duration_ms),
        }
    }
}
