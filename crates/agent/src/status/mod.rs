//! `.status.json`: the agent's report about its task.
//!
//! Strict about fields that affect the loop (`complete`, `progress`, `worked`), tolerant otherwise:
//! an unusual date or an unknown key must not hide that a task is done.

mod completion;
mod delta;
mod todo;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use completion::{Completion, Marks, Source, StatusFiles, StatusPaths};
pub use delta::Delta;
pub use todo::Todo;

use crate::files;

/// More than a status needs.
const LARGEST: u64 = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub complete: bool,
    pub progress: Option<Progress>,
    pub worked: Option<bool>,
    pub summary: Option<String>,
    /// As written; not parsed.
    pub last_updated: Option<String>,
    pub phase: Option<String>,
    pub blockers: Vec<String>,
    pub notes: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub completed: u64,
    pub total: u64,
}

impl Progress {
    /// `None` if the total is unknown.
    pub fn remaining(self) -> Option<u64> {
        (self.total > 0).then(|| self.total - self.completed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    #[error("there is no .status.json")]
    Missing,
    #[error("{} is not valid: {why}", .path.display())]
    Invalid { path: PathBuf, why: String },
}

impl Status {
    pub fn read(path: &Path) -> Result<Self, StatusError> {
        let invalid = |why: String| StatusError::Invalid { path: path.to_owned(), why };
        match files::read(path, LARGEST) {
            Ok(content) => Self::parse(&content).map_err(invalid),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(StatusError::Missing),
            Err(error) => Err(invalid(error.to_string())),
        }
    }

    /// Parses a status file; the error describes the problem.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        let content = content.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(content);
        if content.trim_ascii().is_empty() {
            return Err("it is empty".to_owned());
        }
        let value: Value = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let Value::Object(fields) = value else { return Err("it is not an object".to_owned()) };
        let complete = match fields.get("complete") {
            Some(Value::Bool(complete)) => *complete,
            Some(other) => return Err(format!("complete is {other}, not true or false")),
            None => return Err("complete is missing".to_owned()),
        };
        let worked = match fields.get("worked") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(worked)) => Some(*worked),
            Some(other) => return Err(format!("worked is {other}, not true or false")),
        };
        let progress = match fields.get("progress") {
            None | Some(Value::Null) => None,
            Some(Value::Object(progress)) => Some(read_progress(progress)?),
            Some(other) => return Err(format!("progress is {other}, not an object")),
        };
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let blockers = match fields.get("blockers") {
            Some(Value::Array(items)) => items.iter().map(plain).collect(),
            Some(Value::String(one)) if !one.is_empty() => vec![one.clone()],
            _ => Vec::new(),
        };
        Ok(Self {
            complete,
            progress,
            worked,
            summary: text("summary"),
            last_updated: fields.get("lastUpdated").filter(|v| !v.is_null()).map(plain),
            phase: text("phase"),
            blockers,
            notes: text("notes"),
        })
    }

    /// The agent's blockers. Some agents write that there are none.
    pub fn real_blockers(&self) -> Vec<String> {
        let nothing = |text: &str| {
            let text = text.trim().trim_end_matches('.').to_ascii_lowercase();
            matches!(text.as_str(), "" | "none" | "no" | "n/a" | "-" | "null" | "nothing")
        };
        self.blockers.iter().filter(|text| !nothing(text)).cloned().collect()
    }

    /// Remaining items, if the agent counts them.
    pub fn remaining(&self) -> Option<u64> {
        self.progress.and_then(Progress::remaining)
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn read_progress(fields: &Map<String, Value>) -> Result<Progress, String> {
    let count = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value
            .as_u64()
            .or_else(|| {
                let number = value.as_f64()?;
                (number.fract() == 0.0 && (0.0..1e15).contains(&number)).then_some(number as u64)
            })
            .ok_or_else(|| format!("progress.{name} is {value}, not a whole number from 0")),
    };
    let progress = Progress { completed: count("completed")?, total: count("total")? };
    if progress.total > 0 && progress.completed > progress.total {
        return Err(format!("progress has {} of {}", progress.completed, progress.total));
    }
    Ok(progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Status, String> {
        Status::parse(text.as_bytes())
    }

    #[test]
    fn the_documented_examples() {
        let status = parse(
            r#"{"complete": false, "progress": {"completed": 35, "total": 60},
                "summary": "Migrated 35/60 API endpoints", "lastUpdated": "2025-10-16T14:30:00Z"}"#,
        )
        .unwrap();
        assert_eq!(status.remaining(), Some(25));
        assert!(!status.complete);
        let status = parse(r#"{"complete": true, "worked": false}"#).unwrap();
        assert!(status.complete);
        assert_eq!((status.worked, status.remaining()), (Some(false), None));
    }

    #[test]
    fn habits_of_agents_do_not_hide_completion() {
        for text in [
            r#"{"complete":true,"lastUpdated":"2025-10-16T14:30:00+02:00"}"#,
            r#"{"complete":true,"lastUpdated":1760625000}"#,
            r#"{"complete":true,"lastUpdated":"yesterday"}"#,
            r#"{"complete":true,"summary":null,"progress":null,"worked":null}"#,
            r#"{"complete":true,"summary":["a"],"phase":3,"blockers":"none","extra":{"x":1}}"#,
            r#"{"complete":true,"progress":{"completed":3.0,"total":3}}"#,
            "\u{FEFF}{\"complete\":true}\n\n",
        ] {
            assert_eq!(parse(text).map(|s| s.complete), Ok(true), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        for (text, why) in [
            ("", "empty"),
            ("[]", "object"),
            ("{", "EOF"),
            ("{}", "complete is missing"),
            (r#"{"complete":"true"}"#, "complete"),
            (r#"{"complete":1}"#, "complete"),
            (r#"{"complete":true,"worked":"no"}"#, "worked"),
            (r#"{"complete":true,"progress":{"completed":-1,"total":3}}"#, "progress.completed"),
            (r#"{"complete":true,"progress":{"completed":1.5,"total":3}}"#, "progress.completed"),
            (r#"{"complete":true,"progress":{"completed":4,"total":3}}"#, "4 of 3"),
            (r#"{"complete":true,"progress":"3/4"}"#, "progress"),
            (r#"{"complete":true} done!"#, "trailing"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
