//! `FIRST_EVENTS=FILE`: one JSON line per crash point, or per state and finding of a model, and one at
//! the end, for programs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::json::Object;
use crate::setup_error::SetupError;
use crate::variables::EVENTS;

#[derive(Debug, Default)]
pub(crate) struct Events {
    file: Option<File>,
}

#[derive(Debug)]
pub(crate) struct CrashPoint<'a> {
    pub(crate) test: &'a str,
    pub(crate) index: usize,
    pub(crate) target: usize,
    pub(crate) label: Option<&'a str>,
    pub(crate) status: &'a str,
    pub(crate) work_dir: &'a Path,
    pub(crate) duration: Duration,
    pub(crate) reason: Option<&'a str>,
}

/// A state of a model that was checked.
#[derive(Debug)]
pub(crate) struct CheckedState<'a> {
    pub(crate) test: &'a str,
    pub(crate) index: usize,
    /// The value of `FIRST_STATE` for it.
    pub(crate) state: &'a str,
    /// The number of the operation before the crash.
    pub(crate) point: usize,
    pub(crate) label: Option<&'a str>,
    pub(crate) duration: Duration,
    /// Why the check failed, if it did.
    pub(crate) reason: Option<&'a str>,
}

/// A cause of failed checks.
#[derive(Debug)]
pub(crate) struct FoundCause<'a> {
    pub(crate) test: &'a str,
    pub(crate) index: usize,
    pub(crate) id: &'a str,
    pub(crate) sentence: &'a str,
    pub(crate) state: &'a str,
    pub(crate) states: usize,
    pub(crate) reason: &'a str,
    pub(crate) work_dir: &'a Path,
}

#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    pub(crate) pruned: u64,
    /// Under a model: how many causes the failures have.
    pub(crate) findings: Option<u64>,
    /// Why the test failed before anything was tried.
    pub(crate) reason: Option<String>,
}

impl Events {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, SetupError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let what = || format!("{EVENTS}={}", path.display());
        Ok(Self { file: Some(file.map_err(|source| SetupError::System { what: what(), source })?) })
    }

    pub(crate) fn crash_point(&self, point: &CrashPoint<'_>) -> io::Result<()> {
        let mut line = event("crash_point", point.test, point.index)
            .number("target", point.target as u64)
            .string_or_null("label", point.label)
            .string("status", point.status)
            .string("workDir", &point.work_dir.to_string_lossy())
            .number("durationMs", whole_ms(point.duration));
        if let Some(reason) = point.reason {
            line = line.string("reason", reason);
        }
        self.append(line)
    }

    pub(crate) fn state(&self, state: &CheckedState<'_>) -> io::Result<()> {
        let line = event("state", state.test, state.index)
            .string("state", state.state)
            .number("point", state.point as u64)
            .string_or_null("label", state.label)
            .string("status", if state.reason.is_none() { "ok" } else { "failed" })
            .number("durationMs", whole_ms(state.duration));
        self.append(match state.reason {
            Some(reason) => line.string("reason", reason),
            None => line,
        })
    }

    pub(crate) fn finding(&self, finding: &FoundCause<'_>) -> io::Result<()> {
        let line = event("finding", finding.test, finding.index)
            .string("id", finding.id)
            .string("sentence", finding.sentence)
            .string("state", finding.state)
            .number("states", finding.states as u64)
            .string("workDir", &finding.work_dir.to_string_lossy());
        self.append(line.string("reason", finding.reason))
    }

    pub(crate) fn summary(&self, test: &str, index: usize, summary: &Summary) -> io::Result<()> {
        let Summary { ok, failed, pruned, findings, reason } = summary;
        let mut line = event("summary", test, index)
            .number("total", ok + failed + pruned)
            .number("ok", *ok)
            .number("failed", *failed)
            .number("pruned", *pruned);
        if let Some(findings) = findings {
            line = line.number("findings", *findings);
        }
        if let Some(reason) = reason {
            line = line.string("reason", reason);
        }
        self.append(line)
    }

    /// One write per line: lines of tests that append at the same time do not mix.
    fn append(&self, line: Object) -> io::Result<()> {
        match &self.file {
            Some(file) => (&mut &*file).write_all(line.line().as_bytes()),
            None => Ok(()),
        }
    }
}

/// The beginning of every line. Several tests share a file, so it names the test.
fn event(name: &str, test: &str, index: usize) -> Object {
    let line = Object::new().string("event", name).string("test", test);
    if index > 1 { line.number("index", index as u64) } else { line }
}

/// Rounded up and never 0.
fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000).max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_documented_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        std::fs::write(&path, "{}\n").unwrap();
        let events = Events::open(Some(&path)).unwrap();
        let mut point = CrashPoint {
            test: "a::b",
            index: 1,
            target: 3,
            label: Some("say \"x\"\n🦀"),
            status: "ok",
            work_dir: Path::new("/w/run_3"),
            duration: Duration::from_micros(1),
            reason: None,
        };
        events.crash_point(&point).unwrap();
        (point.index, point.label, point.reason) = (2, None, Some("why"));
        events.crash_point(&point).unwrap();
        let counts = Summary { ok: 2, failed: 1, pruned: 4, ..Summary::default() };
        events.summary("a::b", 1, &counts).unwrap();
        let mut state = CheckedState {
            test: "a::b",
            index: 1,
            state: "4",
            point: 4,
            label: None,
            duration: Duration::ZERO,
            reason: None,
        };
        events.state(&state).unwrap();
        (state.index, state.state, state.label, state.reason) =
            (2, "4-1", Some("put"), Some("why"));
        events.state(&state).unwrap();
        let finding = FoundCause {
            test: "a::b",
            index: 1,
            id: "F1",
            sentence: "it is lost",
            state: "4-1",
            states: 2,
            reason: "why",
            work_dir: Path::new("/w/F1"),
        };
        events.finding(&finding).unwrap();
        let (findings, reason) = (Some(0), Some("why".into()));
        let failed = Summary { findings, reason, ..Summary::default() };
        events.summary("a::b", 1, &failed).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = r#"{}
{"event":"crash_point","test":"a::b","target":3,"label":"say \"x\"\n🦀","status":"ok","workDir":"/w/run_3","durationMs":1}
{"event":"crash_point","test":"a::b","index":2,"target":3,"label":null,"status":"ok","workDir":"/w/run_3","durationMs":1,"reason":"why"}
{"event":"summary","test":"a::b","total":7,"ok":2,"failed":1,"pruned":4}
{"event":"state","test":"a::b","state":"4","point":4,"label":null,"status":"ok","durationMs":1}
{"event":"state","test":"a::b","index":2,"state":"4-1","point":4,"label":"put","status":"failed","durationMs":1,"reason":"why"}
{"event":"finding","test":"a::b","id":"F1","sentence":"it is lost","state":"4-1","states":2,"workDir":"/w/F1","reason":"why"}
{"event":"summary","test":"a::b","total":0,"ok":0,"failed":0,"pruned":0,"findings":0,"reason":"why"}
"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let said = Events::open(Some(Path::new("/no/such/dir/f"))).unwrap_err().to_string();
        assert!(said.contains("FIRST_EVENTS=/no/such/dir/f"), "{said}");
    }
}
