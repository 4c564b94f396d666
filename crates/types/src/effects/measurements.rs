//! What one iteration of a matrix measured.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Map;

/// Whether a lower or a higher value of a metric is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    #[default]
    Lower,
    Higher,
}

/// The name or the unit of a metric. retake's own are borrowed, so that copying the metrics of a
/// run does not allocate.
pub type MetricText = Cow<'static, str>;

/// One value measured in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    pub value: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<MetricText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub better: Option<Better>,
}

/// All values measured in one run, by name.
pub type Metrics = BTreeMap<MetricText, Metric>;

/// What one iteration of a matrix measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Measurements {
    pub metrics: Metrics,
    /// How many iterations its cell had planned when it ran. Not a label, since labels are indexed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<u64>,
    /// What the command reported but could not be parsed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Required metrics that the run did not report; with any missing, the run measured nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl Measurements {
    pub(super) fn map_strings(&mut self, map: Map<'_>) {
        let Self { metrics, planned: _, notes, missing } = self;
        // Borrowed texts are retake's own, so they hold no secret.
        let mut mapped = |text: MetricText| match text {
            Cow::Borrowed(own) => Cow::Borrowed(own),
            Cow::Owned(text) => Cow::Owned(map(&text)),
        };
        for metric in metrics.values_mut() {
            let Metric { value: _, unit, better: _ } = metric;
            *unit = unit.take().map(&mut mapped);
        }
        if metrics.keys().any(|name| matches!(name, Cow::Owned(_))) {
            let all = std::mem::take(metrics).into_iter();
            *metrics = all.map(|(name, metric)| (mapped(name), metric)).collect();
        }
        super::map_strings(notes, map);
        super::map_strings(missing, map);
    }
}
