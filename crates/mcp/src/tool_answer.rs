//! What a tool answers: the same facts as data for programs and as text for models.

use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

/// The answer to one call.
pub(super) struct ToolAnswer {
    facts: serde_json::Value,
    text: String,
    /// Nothing was run, which a client should not take for a result.
    failed: bool,
}

impl ToolAnswer {
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
