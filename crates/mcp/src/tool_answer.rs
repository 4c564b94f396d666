//! The answer of a tool: the same facts as data for programs and as text for models.

use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

/// How a client uses an answer with text and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerForm {
    /// It passes the text to its model, or uses the data itself.
    TextAndData,
    /// It passes the data to its model and drops the text: as JSON the output costs more, and is harder to
    /// read.
    Text,
}

/// Clients that drop the text, by the name they send.
const DROPS_TEXT: [&str; 2] = ["claude-code", "codex-mcp-client"];

impl AnswerForm {
    pub(super) fn of_client(name: Option<&str>) -> Self {
        match name {
            Some(name) if DROPS_TEXT.contains(&name) => Self::Text,
            _ => Self::TextAndData,
        }
    }
}

/// The answer to one call.
pub(super) struct ToolAnswer {
    facts: serde_json::Value,
    text: String,
    /// Nothing was run, which a client must not mistake for a result.
    failed: bool,
}

impl ToolAnswer {
    pub(super) fn new(facts: &impl Serialize, text: String) -> Self {
        let facts = serde_json::to_value(facts).expect("facts are plain data");
        let failed = facts["outcome"] == "not_started";
        Self { facts, text, failed }
    }

    pub(super) fn into_result(self, form: AnswerForm) -> CallToolResult {
        let mut result = CallToolResult::success(vec![ContentBlock::text(self.text)]);
        result.structured_content = (form == AnswerForm::TextAndData).then_some(self.facts);
        result.is_error = Some(self.failed);
        result
    }
}
