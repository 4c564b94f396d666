//! A crash loop: what the program did to its files, step by step, and where that loses data.
//!
//! Reads the events as they are: every kind that is known is drawn, every other one is listed.

use jiff::Timestamp;
use retake_store::Store;
use serde::Serialize;
use serde_json::Value;

use super::super::trouble::Trouble;
use super::{Asked, Summary};

/// Steps of the timeline that are shown at once.
pub(in crate::web) const WINDOW: usize = 500;
/// Findings are few; this many events are looked through for them.
const LOOKED_THROUGH: usize = 200_000;
const PAGE: usize = 2000;
const MOST_FINDINGS: usize = 500;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::web) struct Crash {
    pub(in crate::web) findings: Vec<Value>,
    /// From `after` on.
    pub(in crate::web) timeline: Vec<Mark>,
    pub(in crate::web) after: u64,
    /// How many events of each kind there are.
    pub(in crate::web) counts: Vec<(String, u64)>,
}

/// One event.
#[derive(Clone, Debug, Serialize)]
pub(in crate::web) struct Mark {
    pub(in crate::web) seq: u64,
    pub(in crate::web) at: Timestamp,
    pub(in crate::web) kind: String,
    pub(in crate::web) text: String,
}

/// The word that tells what an event is.
pub(in crate::web) fn kind_of(body: &Value) -> &str {
    let word = |name: &str| body.get(name).and_then(Value::as_str);
    word("type").or_else(|| word("kind")).or_else(|| word("event")).unwrap_or("event")
}

/// An event in a line: its own words for it, or its fields.
fn line_of(body: &Value) -> String {
    let word = |name: &str| body.get(name).and_then(Value::as_str);
    let told = ["sentence", "text", "label", "message", "name"].iter().find_map(|name| word(name));
    if let Some(text) = told {
        let number = body.get("number").and_then(Value::as_u64);
        return number.map_or_else(|| text.to_owned(), |number| format!("{number}: {text}"));
    }
    let Some(fields) = body.as_object() else { return body.to_string() };
    let shown = fields
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "type" | "kind" | "event" | "seq" | "at"))
        .map(|(name, value)| match value {
            Value::String(text) => format!("{name} {text}"),
            Value::Null => String::new(),
            other => format!("{name} {other}"),
        });
    shown.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
}

impl Crash {
    pub(super) fn look(store: &Store, summary: &Summary, asked: &Asked) -> Result<Self, Trouble> {
        let mut crash = Self { after: asked.after, ..Self::default() };
        let (mut after, mut seen) = (0, 0);
        while seen < LOOKED_THROUGH {
            let events = store.events(summary.id, after, PAGE)?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            seen += events.len();
            for event in &events {
                let body: Value = serde_json::from_str(&event.body).unwrap_or(Value::Null);
                let kind = kind_of(&body).to_owned();
                match crash.counts.iter_mut().find(|(known, _)| *known == kind) {
                    Some((_, count)) => *count += 1,
                    None => crash.counts.push((kind.clone(), 1)),
                }
                if event.seq > asked.after && crash.timeline.len() < WINDOW && kind != "finding" {
                    let text = line_of(&body);
                    crash.timeline.push(Mark {
                        seq: event.seq,
                        at: event.at,
                        kind: kind.clone(),
                        text,
                    });
                }
                if kind == "finding" && crash.findings.len() < MOST_FINDINGS {
                    // The finding itself, or what wraps it.
                    let inner = body.get("finding").cloned();
                    crash.findings.push(inner.unwrap_or(body));
                }
            }
        }
        Ok(crash)
    }
}
