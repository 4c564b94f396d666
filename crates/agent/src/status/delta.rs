//! Changes of a status since the last reported one.

use serde::Serialize;

use super::Status;
use retake_types::text;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delta {
    pub progress_changed: bool,
    pub completed_delta: i64,
    pub total_delta: i64,
    pub completion_status_changed: bool,
    pub summary_changed: bool,
    /// `worked`, `phase`, `blockers` or `notes`.
    pub other_changed: bool,
}

impl Delta {
    pub fn between(before: Option<&Status>, now: &Status) -> Self {
        let none = Status::default();
        let before = before.unwrap_or(&none);
        let (old, new) = (before.progress.unwrap_or_default(), now.progress.unwrap_or_default());
        let change = |new: u64, old: u64| new as i64 - old as i64;
        Self {
            progress_changed: old != new,
            completed_delta: change(new.completed, old.completed),
            total_delta: change(new.total, old.total),
            completion_status_changed: before.complete != now.complete,
            summary_changed: before.summary != now.summary,
            other_changed: before.worked != now.worked
                || before.phase != now.phase
                || before.blockers != now.blockers
                || before.notes != now.notes,
        }
    }

    /// Whether more than the timestamp changed.
    pub fn is_meaningful(&self) -> bool {
        *self != Self::default()
    }

    /// `35/60 items (+5) - Migrated 35/60 API endpoints`.
    pub fn describe(&self, now: &Status) -> String {
        let mut parts = Vec::new();
        if let Some(progress) = now.progress.filter(|progress| progress.total > 0) {
            let mut count =
                format!("{}/{}", progress.completed, text::count(progress.total, "item"));
            if self.completed_delta != 0 {
                count.push_str(&format!(" ({:+})", self.completed_delta));
            }
            parts.push(count);
        }
        if let Some(summary) = now.summary.as_deref().filter(|text| !text.trim().is_empty()) {
            parts.push(summary.trim().to_owned());
        }
        if now.complete {
            parts.push("✅ Complete!".to_owned());
        }
        if parts.is_empty() {
            parts.push("Status changed".to_owned());
        }
        parts.join(" - ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> Status {
        Status::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_new_time_stamp_means_nothing() {
        let a = status(r#"{"complete":false,"summary":"x","lastUpdated":"1"}"#);
        let b = status(r#"{"complete":false,"summary":"x","lastUpdated":"2"}"#);
        assert!(!Delta::between(Some(&a), &b).is_meaningful());
        assert!(Delta::between(None, &b).is_meaningful());
    }

    #[test]
    fn described_as_specified() {
        let a = status(r#"{"complete":false,"progress":{"completed":30,"total":60}}"#);
        let b = status(
            r#"{"complete":false,"progress":{"completed":35,"total":60},
                "summary":"Migrated 35/60 API endpoints"}"#,
        );
        let delta = Delta::between(Some(&a), &b);
        assert_eq!(delta.describe(&b), "35/60 items (+5) - Migrated 35/60 API endpoints");
        assert_eq!((delta.completed_delta, delta.total_delta), (5, 0));
        let c = status(r#"{"complete":true,"progress":{"completed":60,"total":60}}"#);
        let delta = Delta::between(Some(&b), &c);
        assert!(delta.completion_status_changed && delta.summary_changed);
        assert_eq!(delta.describe(&c), "60/60 items (+25) - ✅ Complete!");
        let d = status(r#"{"complete":false,"progress":{"completed":58,"total":60}}"#);
        assert_eq!(Delta::between(Some(&c), &d).describe(&d), "58/60 items (-2)");
    }
}
