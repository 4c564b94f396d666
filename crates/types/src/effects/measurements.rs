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
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "metric_text::read_unit"
    )]
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
    #[serde(deserialize_with = "metric_text::read_metrics")]
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

/// Reads names and units of metrics; those of retake itself are borrowed and not allocated.
pub(crate) mod metric_text {
    use std::fmt;

    use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

    use super::{Metric, MetricText, Metrics};

    /// The metrics measured for every iteration, and their units, sorted. Other words are copied.
    const OWN: [&str; 13] = [
        "KB",
        "cache-misses",
        "context-switches",
        "cpu",
        "cycles",
        "instructions",
        "ms",
        "page-faults",
        "rss",
        "shell-start",
        "sys",
        "user",
        "wall",
    ];

    struct Word(MetricText);

    impl<'de> Deserialize<'de> for Word {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Words;
            impl Visitor<'_> for Words {
                type Value = Word;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a string")
                }

                fn visit_str<E>(self, text: &str) -> Result<Word, E> {
                    Ok(Word(match OWN.binary_search(&text) {
                        Ok(at) => OWN[at].into(),
                        Err(_) => text.to_owned().into(),
                    }))
                }
            }
            deserializer.deserialize_str(Words)
        }
    }

    pub(crate) fn read_unit<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<MetricText>, D::Error> {
        Ok(Option::<Word>::deserialize(deserializer)?.map(|Word(text)| text))
    }

    pub(crate) fn read_metrics<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Metrics, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Metrics;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("metrics by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metrics, A::Error> {
                let mut metrics = Metrics::new();
                while let Some(Word(name)) = map.next_key()? {
                    metrics.insert(name, map.next_value::<Metric>()?);
                }
                Ok(metrics)
            }
        }
        deserializer.deserialize_map(All)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::Measurements;

        #[test]
        fn own_metric_names_are_borrowed_and_others_are_read_unchanged() {
            assert!(OWN.is_sorted());
            let text = r#"{"metrics":{"wall":{"value":1.5,"unit":"ms"},
                           "frames\u0021":{"value":2.0,"unit":"f/s","better":"higher"}}}"#;
            let read: Measurements = serde_json::from_str(text).unwrap();
            let shown = read.metrics.iter().map(|(name, metric)| (&**name, metric.unit.as_deref()));
            let shown: Vec<_> = shown.collect();
            assert_eq!(shown, [("frames!", Some("f/s")), ("wall", Some("ms"))]);
            let borrowed = |text: &MetricText| matches!(text, MetricText::Borrowed(_));
            assert!(read.metrics.keys().any(borrowed) && !read.metrics.keys().all(borrowed));
            let again = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Measurements>(&again).unwrap(), read);
        }
    }
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
