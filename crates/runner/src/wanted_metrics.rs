//! Extracts numbers that a command prints or writes, by a pattern or at a place in a JSON file.
//!
//! The amount that is read is bounded. A number that is not found is missing, never zero.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use regex::bytes::{Captures, Regex};
use retake_types::request::{MetricSource, WantedMetric};
use retake_types::{Metric, Metrics, Stream};

use crate::regular_file;

/// Longer lines are not searched.
const LONGEST_LINE: usize = 64 << 10;
const LARGEST_FILE: u64 = 16 << 20;

/// Splits a stream that arrives in pieces into lines; skips overlong lines.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    line: Vec<u8>,
    too_long: bool,
    longest: usize,
}

impl Lines {
    pub(crate) fn new(longest: usize) -> Self {
        Self { line: Vec::new(), too_long: false, longest }
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.extend(&bytes[..end]);
            self.end(&mut each);
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.line.len() + bytes.len() > self.longest {
            self.too_long = true;
            self.line.clear();
        } else if !self.too_long {
            self.line.extend_from_slice(bytes);
        }
    }

    fn end(&mut self, each: &mut impl FnMut(&[u8])) {
        if !std::mem::take(&mut self.too_long) {
            each(&self.line);
        }
        self.line.clear();
    }

    /// The last line, if it is incomplete.
    pub(crate) fn finish(&mut self, mut each: impl FnMut(&[u8])) {
        if !self.line.is_empty() {
            self.end(&mut each);
        }
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.line.len()
    }
}

/// Whether a pattern is a valid regular expression.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    match Regex::new(pattern) {
        Ok(_) => Ok(()),
        // Its last line states the error; earlier lines repeat the pattern.
        Err(error) => {
            let text = error.to_string();
            Err(text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned())
        }
    }
}

/// Whether a text is a valid JSON pointer.
pub fn is_pointer(text: &str) -> bool {
    text.is_empty() || text.starts_with('/')
}

/// The state of a file: if it is unchanged after a run, the run did not write the file.
type FileState = Option<(u64, i64, i64, u64)>;

fn file_state(path: &Path) -> FileState {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.ino(), meta.ctime(), meta.ctime_nsec(), meta.size()))
}

#[derive(Debug)]
struct Wanted {
    metric: WantedMetric,
    /// `None` without a pattern, or with an invalid one.
    pattern: Option<Regex>,
    /// The last matching text.
    found: Option<Vec<u8>>,
    /// The state of its file when the run began.
    before: FileState,
}

impl Wanted {
    fn search(&mut self, line: &[u8]) {
        let found = self.pattern.as_ref().and_then(|pattern| pattern.captures(line));
        if let Some(captures) = found {
            self.found = Some(number_text(&captures).to_vec());
        }
    }

    fn is_in(&self, stream: Stream) -> bool {
        matches!(&self.metric.source, MetricSource::Output { stream: wanted, .. }
            if wanted.is_none_or(|wanted| wanted == stream))
    }

    /// The number, or why it is missing.
    fn number(&mut self, directory: &Path, reported: &Metrics) -> Result<Metric, String> {
        let metric = |value: f64| Metric {
            value,
            unit: self.metric.unit.clone().map(Into::into),
            better: self.metric.better,
        };
        let source = self.metric.source.clone();
        match &source {
            MetricSource::Reported => {
                let found = reported.get(self.metric.name.as_str()).cloned();
                found.ok_or_else(|| "the command did not report it".to_owned())
            }
            MetricSource::Output { stream, .. } => match &self.found {
                Some(text) => parse(text).map(metric),
                None => {
                    let place = stream.map_or("its output", Stream::as_str);
                    Err(format!("no line of {place} matches its pattern"))
                }
            },
            MetricSource::FilePattern { path, .. } => {
                let text = self.read(directory, path)?;
                let mut lines = Lines::new(LONGEST_LINE);
                lines.push(text.as_bytes(), |line| self.search(line));
                lines.finish(|line| self.search(line));
                match &self.found {
                    Some(text) => parse(text).map(|value| Metric {
                        value,
                        unit: self.metric.unit.clone().map(Into::into),
                        better: self.metric.better,
                    }),
                    None => Err(format!("no line of {path} matches its pattern")),
                }
            }
            MetricSource::FilePointer { path, pointer } => {
                let text = self.read(directory, path)?;
                let document: serde_json::Value =
                    serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
                let found = document.pointer(pointer);
                let found = found.ok_or_else(|| format!("{path} has nothing at {pointer}"))?;
                let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
                parse(text.as_bytes()).map(metric)
            }
        }
    }

    fn read(&self, directory: &Path, path: &str) -> Result<String, String> {
        let file = directory.join(path);
        let state = file_state(&file);
        if state.is_none() {
            return Err(format!("there is no {path}"));
        }
        if state == self.before {
            return Err(format!("{path} is from before the run"));
        }
        let text = regular_file::read_text_start(&file, LARGEST_FILE + 1)
            .map_err(|error| format!("{path}: {error}"))?;
        match text.len() as u64 > LARGEST_FILE {
            true => Err(format!("{path} is larger than {} MB", LARGEST_FILE >> 20)),
            false => Ok(text),
        }
    }
}

/// The group `value`, else the first group, else the whole match.
fn number_text<'t>(captures: &Captures<'t>) -> &'t [u8] {
    let found = captures.name("value").or_else(|| captures.get(1)).or_else(|| captures.get(0));
    found.map_or(&[], |found| found.as_bytes())
}

fn parse(text: &[u8]) -> Result<f64, String> {
    let text = String::from_utf8_lossy(text);
    let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| {
        let start: String = text.trim().chars().take(40).collect();
        format!("{start:?} is not a number")
    })
}

/// Searches for the required metrics of a run.
#[derive(Debug)]
pub(crate) struct WantedMetrics {
    wanted: Vec<Wanted>,
    lines: [Lines; 2],
    directory: PathBuf,
}

impl WantedMetrics {
    /// Relative files are in `directory`. Create this before the run begins.
    pub(crate) fn new(wanted: &[WantedMetric], directory: &Path) -> Self {
        let one = |metric: &WantedMetric| {
            let pattern = match &metric.source {
                MetricSource::Output { pattern, .. }
                | MetricSource::FilePattern { pattern, .. } => Regex::new(pattern).ok(),
                MetricSource::Reported | MetricSource::FilePointer { .. } => None,
            };
            let before = match &metric.source {
                MetricSource::FilePattern { path, .. } | MetricSource::FilePointer { path, .. } => {
                    file_state(&directory.join(path))
                }
                MetricSource::Reported | MetricSource::Output { .. } => None,
            };
            Wanted { metric: metric.clone(), pattern, found: None, before }
        };
        Self {
            wanted: wanted.iter().map(one).collect(),
            lines: [Lines::new(LONGEST_LINE), Lines::new(LONGEST_LINE)],
            directory: directory.to_owned(),
        }
    }

    /// Processes a piece of output as it arrives.
    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let Self { wanted, lines, .. } = self;
        if wanted.iter().any(|wanted| wanted.is_in(stream)) {
            lines[stream.index()].push(bytes, |line| search(wanted, stream, line));
        }
    }

    /// Adds the numbers to the reported metrics; returns the names of missing ones with the
    /// reasons.
    pub(crate) fn finish(mut self, reported: &mut Metrics) -> Vec<(String, String)> {
        let Self { wanted, lines, directory } = &mut self;
        for stream in Stream::BOTH {
            lines[stream.index()].finish(|line| search(wanted, stream, line));
        }
        let mut missing = Vec::new();
        for wanted in wanted {
            let name = wanted.metric.name.clone();
            match wanted.number(directory, reported) {
                Ok(metric) => drop(reported.insert(name.into(), metric)),
                Err(why) => missing.push((name, why)),
            }
        }
        missing
    }
}

fn search(wanted: &mut [Wanted], stream: Stream, line: &[u8]) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    wanted.iter_mut().filter(|wanted| wanted.is_in(stream)).for_each(|wanted| wanted.search(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str, source: MetricSource) -> WantedMetric {
        WantedMetric { name: name.to_owned(), unit: Some("ms".to_owned()), better: None, source }
    }

    fn output(name: &str, stream: Option<Stream>, pattern: &str) -> WantedMetric {
        wanted(name, MetricSource::Output { stream, pattern: pattern.to_owned() })
    }

    #[test]
    fn numbers_in_lines_of_either_stream_however_they_are_split() {
        let all = [
            output("first", None, r"took ([0-9.]+) ms"),
            output("named", None, r"(\w+) took (?<value>[0-9.]+)"),
            output("whole", Some(Stream::Stdout), r"^\d+$"),
            output("err", Some(Stream::Stderr), r"rate=(\S+)"),
            output("only-out", Some(Stream::Stdout), r"rate=(\S+)"),
        ];
        let (out, err) = (b"a took 1 ms\nb took 2.5 ms\r\n17", b"x\xffrate=1e3\n");
        for size in 1..out.len() {
            let mut search = WantedMetrics::new(&all, Path::new("/"));
            out.chunks(size).for_each(|piece| search.push(Stream::Stdout, piece));
            err.chunks(size).for_each(|piece| search.push(Stream::Stderr, piece));
            let mut metrics = Metrics::new();
            let missing = search.finish(&mut metrics);
            let value = |name: &str| metrics[name].value;
            // The last matching line counts.
            assert_eq!((value("first"), value("named"), value("whole")), (2.5, 2.5, 17.0));
            assert_eq!(value("err"), 1000.0);
            assert_eq!(metrics["first"].unit.as_deref(), Some("ms"));
            assert_eq!(missing.len(), 1, "{missing:?}");
            assert_eq!(missing[0].0, "only-out");
        }
    }

    #[test]
    fn values_that_are_not_numbers_are_missing() {
        let all = [output("n", None, r"n=(\S+)"), wanted("load", MetricSource::Reported)];
        for text in ["n=abc", "n=NaN", "n=inf", "nothing"] {
            let mut search = WantedMetrics::new(&all, Path::new("/"));
            search.push(Stream::Stdout, text.as_bytes());
            let mut metrics = Metrics::new();
            let missing = search.finish(&mut metrics);
            assert_eq!(missing.len(), 2, "{text}: {missing:?}");
            assert!(metrics.is_empty());
        }
    }

    #[test]
    fn numbers_in_files_are_those_of_this_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let pointer = |pointer: &str| MetricSource::FilePointer {
            path: "out.json".to_owned(),
            pointer: pointer.to_owned(),
        };
        let all = [
            wanted("mean", pointer("/results/0/mean")),
            wanted("text", pointer("/text")),
            wanted("none", pointer("/nothing")),
            wanted(
                "log",
                MetricSource::FilePattern {
                    path: path("log").display().to_string(),
                    pattern: "t=([0-9]+)".to_owned(),
                },
            ),
        ];
        let run = |write: bool| {
            let search = WantedMetrics::new(&all, dir.path());
            if write {
                let json = r#"{"results": [{"mean": 1.5}], "text": " 7 "}"#;
                std::fs::write(path("out.json"), json).unwrap();
                std::fs::write(path("log"), "t=1\nt=2\nlast").unwrap();
            }
            let mut metrics = Metrics::new();
            let missing = search.finish(&mut metrics);
            (metrics, missing)
        };
        assert_eq!(run(false).1.len(), 4);
        let (metrics, missing) = run(true);
        let value = |name: &str| metrics[name].value;
        assert_eq!((value("mean"), value("text"), value("log")), (1.5, 7.0, 2.0));
        assert_eq!(missing, [("none".to_owned(), "out.json has nothing at /nothing".to_owned())]);
        // Output of an earlier run is not a result of this one.
        let (metrics, missing) = run(false);
        assert!(metrics.is_empty() && missing[0].1 == "out.json is from before the run");
    }

    #[test]
    fn patterns_are_checked() {
        assert_eq!(check_pattern("a(b)?"), Ok(()));
        assert!(check_pattern("a(b").unwrap_err().contains("unclosed group"));
        assert!(is_pointer("") && is_pointer("/a") && !is_pointer("a"));
    }
}
