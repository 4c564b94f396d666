//! What a tool answers: the same facts as data for programs and as text for models.

use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

/// The answer to one call.
pub(super) struct Answer {
    pub(super) facts: serde_json::Value,
    pub(super) text: String,
    /// Nothing was run, which a client should not take for a result.
    pub(super) failed: bool,
}

impl Answer {
    pub(super) fn new(facts: &impl Serialize, text: String) -> Self {
        let facts = serde_json::to_value(facts).expect("facts are plain data");
        let failed = facts["outcome"] == "not_started";
        Self { facts, text, failed }
    }

    pub(super) fn into_result(self) -> CallToolResult {
        let mut result = CallToolResult::success(vec![ContentBlock::text(self.text)]);
        result.structured_content = Some(self.facts);
        result.is_error = Some(self.failed);
        result
    }
}

/// Why a tool has no answer, for the model to do something about. Never a protocol error: clients
/// keep those from their models.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// Something in the request is wrong; every problem is named.
    #[error("not run: {}", .0.join("; "))]
    Request(Vec<String>),
    /// Something in the request to a tool that runs nothing is wrong.
    #[error("{0}")]
    Argument(String),
    /// The project's policy says no. The refusal is on the record under this run, if it could be.
    #[error("refused by this project's policy: {reasons}. {advice}{recorded}")]
    Policy { reasons: String, advice: String, recorded: String },
    #[error("{}", in_our_words(.0))]
    Store(#[from] retake_store::Error),
    #[error("{0}")]
    Other(String),
}

impl Trouble {
    pub(super) fn request(problem: impl Into<String>) -> Self {
        Self::Request(vec![problem.into()])
    }

    pub(super) fn argument(problem: impl Into<String>) -> Self {
        Self::Argument(problem.into())
    }

    pub(super) fn into_result(self) -> CallToolResult {
        CallToolResult::error(vec![ContentBlock::text(self.to_string())])
    }
}

/// What the record says of a problem speaks of commands for people; a model has tools.
pub(super) fn in_our_words(problem: &impl std::fmt::Display) -> String {
    problem
        .to_string()
        .replace("`retake runs list` shows", "runs_list shows")
        .replace("in a file or on stdin", "in a file")
        .replace("`retake runs prune` helps", "for the user: `retake runs prune` helps")
        .replace("`retake audit verify` shows", "for the user: `retake audit verify` shows")
}
