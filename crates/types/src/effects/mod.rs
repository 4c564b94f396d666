//! What a run did: one shape for the writers, the record and every reader.
//!
//! Reading accepts what any version of retake wrote. Such a value is written back unchanged:
//! unknown keys are kept and no key is added.

mod measurements;
mod observations;
mod test_results;

pub(crate) use measurements::metric_text;
pub use measurements::{Better, Measurements, Metric, MetricText, Metrics};
pub use observations::{LineChange, Observations, ProgressReason, RenamedPath, RunProgress};
pub use test_results::{
    Confidence, CountedUnit, Framework, ResultsSource, TestDetail, TestResults, TestStatus,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// What a run did, for the record. Two values are equal if this version reads the same from both.
#[derive(Clone, Debug)]
pub struct Effects {
    content: Content,
    /// The JSON that it was read from, if any.
    stored: Option<Value>,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Observed(Box<Observations>),
    Measured(Measurements),
    /// Written by another version of retake in a form that this one cannot read.
    Unknown(Value),
}

impl Effects {
    /// Changed files and test results, if they were observed.
    pub fn observations(&self) -> Option<&Observations> {
        match &self.content {
            Content::Observed(observations) => Some(observations),
            Content::Measured(_) | Content::Unknown(_) => None,
        }
    }

    /// What an iteration of a matrix measured.
    pub fn measurements(&self) -> Option<&Measurements> {
        match &self.content {
            Content::Measured(measurements) => Some(measurements),
            Content::Observed(_) | Content::Unknown(_) => None,
        }
    }

    /// Maps every text that came from outside of retake: paths, names, messages. Redaction depends
    /// on completeness, so the types below destructure themselves.
    pub fn map_strings(&mut self, mut map: impl FnMut(&str) -> String) {
        let Self { content, stored } = self;
        match content {
            Content::Observed(observations) => observations.map_strings(&mut map),
            Content::Measured(measurements) => measurements.map_strings(&mut map),
            Content::Unknown(value) => map_json_strings(value, &mut map),
        }
        if let Some(stored) = stored {
            map_json_strings(stored, &mut map);
        }
    }
}

impl From<Observations> for Effects {
    fn from(observations: Observations) -> Self {
        Self { content: Content::Observed(Box::new(observations)), stored: None }
    }
}

impl From<Measurements> for Effects {
    fn from(measurements: Measurements) -> Self {
        Self { content: Content::Measured(measurements), stored: None }
    }
}

impl PartialEq for Effects {
    fn eq(&self, other: &Self) -> bool {
        self.content == other.content
    }
}

impl Serialize for Effects {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (&self.stored, &self.content) {
            (Some(stored), _) => stored.serialize(serializer),
            (None, Content::Observed(observations)) => observations.serialize(serializer),
            (None, Content::Measured(measurements)) => measurements.serialize(serializer),
            (None, Content::Unknown(value)) => value.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Effects {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let content = if value.get("metrics").is_some() {
            Measurements::deserialize(&value).map(Content::Measured)
        } else {
            Observations::deserialize(&value).map(|observed| Content::Observed(Box::new(observed)))
        };
        Ok(match content {
            Ok(content) => Self { content, stored: Some(value) },
            Err(_) => Self { content: Content::Unknown(value), stored: None },
        })
    }
}

type Map<'a> = &'a mut dyn FnMut(&str) -> String;

fn map_strings(strings: &mut [String], map: Map<'_>) {
    strings.iter_mut().for_each(|text| *text = map(text));
}

fn map_json_strings(value: &mut Value, map: Map<'_>) {
    match value {
        Value::String(text) => *text = map(text),
        Value::Array(values) => values.iter_mut().for_each(|value| map_json_strings(value, map)),
        Value::Object(members) => {
            let mapped = std::mem::take(members).into_iter().map(|(key, mut value)| {
                map_json_strings(&mut value, map);
                (map(&key), value)
            });
            *members = mapped.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Effects {
        Effects::deserialize(value).unwrap()
    }

    #[test]
    fn effects_of_another_version_are_written_back_unchanged() {
        for value in [
            json!({}),
            json!({"filesModified": ["a"], "later": {"x": 1}}),
            json!({"testResults": {"framework": "later", "failed": 1, "details": [
                {"name": "t", "status": "failed", "durationMs": 3}
            ]}, "progress": {"detected": true, "reasons": ["later"]}}),
            json!({"metrics": {"wall": {"value": 5, "unit": "ms"}}, "planned": null}),
            json!({"filesCreated": {"by": "someone else"}}),
            json!({"metrics": 7}),
            json!("text"),
        ] {
            assert_eq!(serde_json::to_value(read(&value)).unwrap(), value);
        }
        let effects = read(&json!({"filesModified": ["a"], "later": 1}));
        assert_eq!(effects.observations().unwrap().files_modified, ["a"]);
        let effects = read(&json!({"testResults": {"framework": "later", "failed": 2}}));
        let results = effects.observations().unwrap().test_results.as_ref().unwrap();
        assert_eq!((results.framework, results.failed), (Framework::Other, 2));
        let effects = read(&json!({"metrics": {"wall": {"value": 5}}, "planned": 3}));
        assert_eq!(effects.measurements().unwrap().planned, Some(3));
        assert_eq!(effects.observations(), None);
        let effects = read(&json!({"filesCreated": 1}));
        assert!(effects.observations().is_none() && effects.measurements().is_none());
    }

    #[test]
    fn effects_round_trip() {
        let observed = Effects::from(Observations {
            files_tracked: true,
            files_created: vec!["a".into()],
            test_results: Some(TestResults::new(Framework::Go)),
            ..Observations::default()
        });
        let text = serde_json::to_string(&observed).unwrap();
        assert_eq!(serde_json::from_str::<Effects>(&text).unwrap(), observed);
        let measured = Effects::from(Measurements {
            metrics: Metrics::from([("m".into(), Metric { value: 0.5, unit: None, better: None })]),
            ..Measurements::default()
        });
        let value = serde_json::to_value(&measured).unwrap();
        assert_eq!(value, json!({"metrics": {"m": {"value": 0.5}}}));
        assert_eq!(read(&value), measured);
    }

    /// Every string that JSON shows, keys of maps included, except the words of enums.
    #[test]
    fn every_text_is_mapped() {
        let secret = || "secret".to_owned();
        let mut results = TestResults::from_details(
            Framework::Go,
            vec![TestDetail {
                name: secret(),
                status: TestStatus::Failed,
                duration_ms: None,
                error: Some(secret()),
            }],
        );
        results.problems = vec![secret()];
        results.running = vec![secret()];
        let observed = Observations {
            files_tracked: true,
            files_created: vec![secret()],
            files_modified: vec![secret()],
            files_deleted: vec![secret()],
            files_renamed: vec![RenamedPath { from: secret(), to: secret() }],
            files_unreadable: vec![secret()],
            line_changes: [(secret(), LineChange::default())].into(),
            paths_base64: [(secret(), vec![secret()])].into(),
            test_results: Some(results),
            progress: RunProgress::default(),
            summary: Some(secret()),
            root: Some(secret()),
        };
        let metric =
            Metric { value: 1.0, unit: Some(secret().into()), better: Some(Better::Lower) };
        let measured = Measurements {
            metrics: [(secret().into(), metric)].into(),
            planned: Some(1),
            notes: vec![secret()],
            missing: vec![secret()],
        };
        let unknown = json!({"filesCreated": {"secret": ["secret"]}});
        let fresh = [Effects::from(observed), Effects::from(measured), read(&unknown)];
        let stored = fresh.clone().map(|effects| read(&serde_json::to_value(effects).unwrap()));
        for mut effects in fresh.into_iter().chain(stored) {
            assert!(serde_json::to_string(&effects).unwrap().contains("secret"));
            effects.map_strings(|text| text.replace("secret", "***"));
            let text = serde_json::to_string(&effects).unwrap();
            assert!(!text.contains("secret"), "{text}");
            assert!(!format!("{effects:?}").contains("secret"), "{effects:?}");
        }
    }
}
