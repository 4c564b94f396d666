//! The result of a push.

use retake_types::{RunId, Stream};

/// What was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pushed {
    pub entries: u64,
    pub runs: u64,
    pub events: u64,
    pub outputs: u64,
    /// Outputs that differ from the record, and were not sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedOutput>,
}

/// An output that is lost or was altered.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DamagedOutput {
    pub run: RunId,
    pub stream: Stream,
    /// Why.
    pub error: String,
}
