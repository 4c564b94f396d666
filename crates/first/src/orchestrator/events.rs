//! `FIRST_EVENTS=FILE`: one JSON line per crash point and one at the end, for programs.

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

#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    pub(crate) pruned: u64,
}

impl Events {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, SetupError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let what = || format!("{EVENTS}={}", path.display());
        Ok(Self { file: Some(file.map_err(|source| SetupError::System { what: what(), source })?) })
    }

    pub(crate) fn crash_point(&self, point: &CrashPoint<'_>) -> io::Result<()> {
        let mut line = Object::new().string("event", "crash_point").string("test", point.test);
        if point.index > 1 {
            line = line.number("index", point.index as u64);
        }
        line = line
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

    pub(crate) fn summary(&self, test: &str, index: usize, summary: &Summary) -> io::Result<()> {
        // Several tests share a file, so the line names the test of the summary.
        let mut line = Object::new().string("event", "summary").string("test", test);
        if index > 1 {
            line = line.number("index", index as u64);
        }
        let Summary { ok, failed, pruned } = *summary;
        let line = line.number("total", ok + failed + pruned).number("ok", ok);
        self.append(line.number("failed", failed).number("pruned", pruned))
    }

    /// One write per line: lines of tests that append at the same time do not mix.
    fn append(&self, line: Object) -> io::Result<()> {
        match &self.file {
            Some(file) => (&mut &*file).write_all(line.line().as_bytes()),
            None => Ok(()),
        }
    }
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
        events.summary("a::b", 1, &Summary { ok: 2, failed: 1, pruned: 4 }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = r#"{}
{"event":"crash_point","test":"a::b","target":3,"label":"say \"x\"\n🦀","status":"ok","workDir":"/w/run_3","durationMs":1}
{"event":"crash_point","test":"a::b","index":2,"target":3,"label":null,"status":"ok","workDir":"/w/run_3","durationMs":1,"reason":"why"}
{"event":"summary","test":"a::b","total":7,"ok":2,"failed":1,"pruned":4}
"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let said = Events::open(Some(Path::new("/no/such/dir/f"))).unwrap_err().to_string();
        assert!(said.contains("FIRST_EVENTS=/no/such/dir/f"), "{said}");
    }
}
