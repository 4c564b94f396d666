//! The part of a matrix run that decides whether its measurement counts.
//!
//! To find out that nothing is left to do, ten thousand runs may be read, and most of a run's record
//! is not needed for that. A run that is shown is read as a whole.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use crate::effects::metric_text::read_metrics;
use crate::request::LoopPosition;
use crate::{Effects, Measurements, Metrics, OutcomeKind, RanOn, Run, RunId, RunOutcome, Usage};

/// The parts of a [`Run`] that concern its measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRun {
    pub intent: MeasuredIntent,
    /// `None` while it runs, or if its runner died.
    pub outcome: Option<MeasuredOutcome>,
}

/// Deserializing fails for an intent from a release before 0.1.0, which has another form.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredIntent {
    pub request: MeasuredRequest,
    pub start_time: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MeasuredRequest {
    pub id: RunId,
    #[serde(rename = "loop")]
    pub position: LoopPosition,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Deserializing fails for effects that another version wrote and this one cannot read.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredOutcome {
    #[serde(rename = "outcome")]
    pub kind: OutcomeKind,
    pub exit_code: Option<i32>,
    pub duration_ms: u64,
    pub usage: Usage,
    #[serde(default, rename = "effects", deserialize_with = "measurements")]
    pub measurements: Option<Measurements>,
    #[serde(default)]
    pub ran_on: Option<RanOn>,
}

impl MeasuredOutcome {
    pub fn success(&self) -> bool {
        self.kind == OutcomeKind::Exited && self.exit_code == Some(0)
    }
}

impl From<&Run> for MeasuredRun {
    fn from(run: &Run) -> Self {
        let request = &run.intent.request;
        Self {
            intent: MeasuredIntent {
                request: MeasuredRequest {
                    id: request.id,
                    position: request.position,
                    labels: request.labels.clone(),
                },
                start_time: run.intent.start_time,
            },
            outcome: run.outcome.as_ref().map(|outcome| (&**outcome).into()),
        }
    }
}

impl From<&RunOutcome> for MeasuredOutcome {
    fn from(outcome: &RunOutcome) -> Self {
        Self {
            kind: outcome.kind,
            exit_code: outcome.exit_code,
            duration_ms: outcome.duration_ms,
            usage: outcome.usage,
            measurements: outcome.effects.as_ref().and_then(Effects::measurements).cloned(),
            ran_on: outcome.ran_on.clone(),
        }
    }
}

fn some_metrics<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Metrics>, D::Error> {
    read_metrics(deserializer).map(Some)
}

/// Reads effects; only those with metrics are measurements.
fn measurements<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Measurements>, D::Error> {
    /// [`Measurements`] with every field optional.
    #[derive(Deserialize)]
    struct Found {
        #[serde(default, deserialize_with = "some_metrics")]
        metrics: Option<Metrics>,
        planned: Option<u64>,
        #[serde(default)]
        notes: Vec<String>,
        #[serde(default)]
        missing: Vec<String>,
    }
    let found = Option::<Found>::deserialize(deserializer)?;
    Ok(found.and_then(|Found { metrics, planned, notes, missing }| {
        Some(Measurements { metrics: metrics?, planned, notes, missing })
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcome(effects: serde_json::Value) -> serde_json::Value {
        json!({
            "outcome": "exited", "exitCode": 1, "signal": null, "endTime": "2026-01-01T00:00:00Z",
            "durationMs": 7, "stdoutBytes": 0, "stderrBytes": 0, "stdoutRawBytes": 0,
            "stderrRawBytes": 0, "stdoutBlake3": null, "stderrBlake3": null, "truncated": false,
            "leaked": false, "leftProcesses": [], "error": null,
            "usage": {"userCpuMs": 3, "systemCpuMs": 4}, "redactions": 0, "effects": effects,
            "ranOn": {"executor": "slurm", "attempt": "1", "node": "n1"},
        })
    }

    #[test]
    fn the_measured_part_of_an_outcome_reads_the_same_as_the_whole() {
        for effects in [
            json!(null),
            json!({}),
            json!({"filesModified": ["a"], "testResults": {"framework": "go", "failed": 1}}),
            json!({"metrics": {}}),
            json!({"metrics": {"wall": {"value": 5.5, "unit": "ms", "better": "higher"}},
                   "planned": 3, "notes": ["n"], "missing": ["m"], "later": {"x": 1}}),
        ] {
            let document = outcome(effects);
            let part: MeasuredOutcome = serde_json::from_value(document.clone()).unwrap();
            let whole: RunOutcome = serde_json::from_value(document).unwrap();
            assert_eq!(part, MeasuredOutcome::from(&whole));
        }
    }

    #[test]
    fn forms_that_only_a_whole_run_can_be_read_from_are_refused() {
        for effects in [json!("text"), json!({"metrics": 7}), json!({"metrics": {"a": 1}})] {
            assert!(serde_json::from_value::<MeasuredOutcome>(outcome(effects)).is_err());
        }
        let old = json!({"id": RunId::new(), "startTime": "2026-01-01T00:00:00Z"});
        assert!(serde_json::from_value::<MeasuredIntent>(old).is_err());
    }
}
