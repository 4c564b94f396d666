//! The metrics of a run: wall time, CPU time and memory, and those that the command reports.
//!
//! A command reports by writing JSON to the file named in `RETAKE_METRICS`, or by lines `metric:
//! NAME=VALUE UNIT` on stdout. Unreadable metrics are noted and never fail a run; the amount that
//! is read is bounded.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use retake_engine::{Counter, CounterReading, Counters, ProcessResult};
use retake_types::request::MetricsRequest;
use retake_types::{Better, Effects, Measurements, Metric, Metrics, Stream, Usage};

use crate::regular_file;
use crate::run::{Observer, Past};
use crate::wanted_metrics::{Lines, WantedMetrics};

/// Longer lines are not metrics.
const LONGEST_LINE: usize = 1024;
const LARGEST_FILE: u64 = 1 << 20;
const MOST: usize = 1000;

/// What retake measures itself, in display order; processor counts only if the kernel allows
/// reading its counters, and the start of a shell only for runs that needed one.
pub const BUILT_IN: [&str; 11] = [
    "wall",
    "cpu",
    "rss",
    "user",
    "sys",
    "page-faults",
    "context-switches",
    "instructions",
    "cycles",
    "cache-misses",
    SHELL_START,
];

/// The start time of a shell, subtracted from a run.
pub const SHELL_START: &str = "shell-start";

/// Metrics that the processor counts.
pub const COUNTED: [&str; 3] = ["instructions", "cycles", "cache-misses"];

/// How many of these every run has.
const ALWAYS: usize = 7;

/// The metrics of every run: times in milliseconds with microsecond precision, memory in kilobytes,
/// and counts. Lower is better for all.
pub fn built_in(wall: Duration, usage: &Usage) -> Metrics {
    let metric = |value: f64, unit: &'static str| Metric {
        value,
        unit: Some(unit.into()),
        better: Some(Better::Lower),
    };
    let ms = |us: u64| metric(us as f64 / 1000.0, "ms");
    let count =
        |count: u64| Metric { value: count as f64, unit: None, better: Some(Better::Lower) };
    let metrics = [
        ("wall", metric(wall.as_secs_f64() * 1000.0, "ms")),
        ("cpu", ms(usage.user_cpu_us + usage.system_cpu_us)),
        ("rss", metric(usage.max_rss_kb as f64, "KB")),
        ("user", ms(usage.user_cpu_us)),
        ("sys", ms(usage.system_cpu_us)),
        ("page-faults", count(usage.minor_faults + usage.major_faults)),
        ("context-switches", count(usage.voluntary_switches + usage.involuntary_switches)),
    ];
    metrics.map(|(name, metric)| (name.into(), metric)).into()
}

/// The cost of starting a shell, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShellCost {
    pub wall: f64,
    pub user: f64,
    pub sys: f64,
}

impl ShellCost {
    pub fn of(wall: Duration, usage: &Usage) -> Self {
        let ms = |us: u64| us as f64 / 1000.0;
        let wall = wall.as_secs_f64() * 1000.0;
        Self { wall, user: ms(usage.user_cpu_us), sys: ms(usage.system_cpu_us) }
    }

    /// Subtracts it from the metrics of a run with a shell; the results stay at or above zero.
    fn subtract_from(&self, metrics: &mut Metrics) {
        let mut left = 0.0;
        for (name, cost) in [("user", self.user), ("sys", self.sys), ("wall", self.wall)] {
            if let Some(metric) = metrics.get_mut(name) {
                metric.value = (metric.value - cost).max(0.0);
                left += if name == "wall" { 0.0 } else { metric.value };
            }
        }
        if let Some(cpu) = metrics.get_mut("cpu") {
            cpu.value = left;
        }
        let (unit, better) = (Some("ms".into()), Some(Better::Lower));
        metrics.insert(SHELL_START.into(), Metric { value: self.wall, unit, better });
    }
}

/// The counts of the processor.
fn counted(counts: &[(Counter, u64)]) -> Metrics {
    let metric = |&(counter, count): &(Counter, u64)| {
        let name = match counter {
            Counter::Instructions => "instructions",
            Counter::Cycles => "cycles",
            Counter::CacheMisses => "cache-misses",
            Counter::TaskClock => return None,
        };
        let metric = Metric { value: count as f64, unit: None, better: Some(Better::Lower) };
        Some((name.into(), metric))
    };
    counts.iter().filter_map(metric).collect()
}

/// Collects the metrics of a run: those that the command reports, and those that every run has.
pub struct MetricsObserver<'a> {
    reported: ReportedMetrics,
    wanted: Option<WantedMetrics>,
    file: &'a Path,
    planned: Option<u64>,
    /// The cost of the shell's start, if the command goes through one.
    shell: Option<ShellCost>,
    /// The processor's counters, and their values at the start.
    counters: Option<(Arc<Counters>, CounterReading)>,
    /// The metrics, once the run is over.
    pub metrics: Metrics,
    /// What could not be read.
    pub notes: Vec<String>,
    /// Required metrics that are missing.
    pub missing: Vec<String>,
}

impl<'a> MetricsObserver<'a> {
    /// `file` is where the command may write its metrics; relative files of the request are in
    /// `directory`. Create it before the run begins.
    pub fn new(file: &'a Path, request: &MetricsRequest, directory: &Path) -> Self {
        let wanted =
            (!request.wanted.is_empty()).then(|| WantedMetrics::new(&request.wanted, directory));
        Self {
            reported: ReportedMetrics::default(),
            wanted,
            file,
            planned: request.planned,
            shell: None,
            counters: None,
            metrics: Metrics::new(),
            notes: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Excludes the start of a shell.
    #[must_use]
    pub fn without_shell(mut self, cost: Option<ShellCost>) -> Self {
        self.shell = cost;
        self
    }

    /// Also reads these counters, from now on.
    #[must_use]
    pub fn counting(mut self, counters: Option<Arc<Counters>>) -> Self {
        self.counters = counters.map(|counters| (counters.clone(), counters.read()));
        self
    }
}

impl Observer for MetricsObserver<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stdout {
            self.reported.push(bytes);
        }
        if let Some(wanted) = &mut self.wanted {
            wanted.push(stream, bytes);
        }
    }

    fn effects(&mut self, result: &ProcessResult, _past: Past<'_>) -> Option<Effects> {
        let mut reported = std::mem::take(&mut self.reported);
        reported.read_file(self.file);
        let (mut metrics, mut notes) = reported.finish();
        for (name, why) in self.wanted.take().into_iter().flat_map(|w| w.finish(&mut metrics)) {
            notes.push(format!("there is no number for {name}: {why}"));
            self.missing.push(name);
        }
        metrics.extend(built_in(result.duration, &result.usage));
        if let Some(cost) = &self.shell {
            cost.subtract_from(&mut metrics);
        }
        if let Some((counters, start)) = &self.counters {
            metrics.extend(counted(&counters.read().since(start)));
        }
        self.metrics.clone_from(&metrics);
        self.notes.clone_from(&notes);
        let (planned, missing) = (self.planned, self.missing.clone());
        Some(Measurements { metrics, planned, notes, missing }.into())
    }
}

/// The metrics that a command reports during a run.
#[derive(Clone, Debug)]
pub struct ReportedMetrics {
    metrics: Metrics,
    notes: Vec<String>,
    lines: Lines,
}

impl Default for ReportedMetrics {
    fn default() -> Self {
        Self { metrics: Metrics::new(), notes: Vec::new(), lines: Lines::new(LONGEST_LINE) }
    }
}

impl ReportedMetrics {
    /// Processes a piece of stdout; lines may be split anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        let mut lines = std::mem::replace(&mut self.lines, Lines::new(0));
        lines.push(bytes, |line| self.line(line));
        self.lines = lines;
    }

    fn line(&mut self, line: &[u8]) {
        let Ok(text) = std::str::from_utf8(line) else { return };
        let Some(rest) = text.trim().strip_prefix("metric:") else { return };
        match parse_line(rest) {
            Some((name, metric)) => self.add(name, metric),
            None => self.note(format!("{text:?} is not a metric; write metric: NAME=VALUE UNIT")),
        }
    }

    fn add(&mut self, name: &str, metric: Metric) {
        // Processor counts are retake's only where the counters can be read.
        if BUILT_IN[..ALWAYS].contains(&name) {
            self.note(format!("{name} is measured by retake; report yours under another name"));
        } else if self.metrics.len() >= MOST && !self.metrics.contains_key(name) {
            self.note(format!("more than {MOST} metrics; the rest is left out"));
        } else {
            self.metrics.insert(name.to_owned().into(), metric);
        }
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < 20 && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Reads the file of `RETAKE_METRICS`, which is usually missing. A value in the file overrides
    /// one on a line.
    pub fn read_file(&mut self, path: &Path) {
        let shown = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.is_file() => {}
            Ok(_) => return self.note(format!("{shown}: is not a file")),
            Err(_) => return,
        }
        let text = match regular_file::read_text_start(path, LARGEST_FILE + 1) {
            Ok(text) => text,
            Err(error) => return self.note(format!("{shown}: {error}")),
        };
        if text.len() as u64 > LARGEST_FILE {
            return self.note(format!("{shown}: is larger than {LARGEST_FILE} bytes"));
        }
        if text.trim().is_empty() {
            return;
        }
        let entries = match serde_json::from_str(&text) {
            Ok(serde_json::Value::Object(entries)) => entries,
            Ok(_) => return self.note(format!("{shown}: takes an object, {{\"name\": 12.3}}")),
            Err(error) => return self.note(format!("{shown}: {error}")),
        };
        for (name, value) in entries {
            let metric = match value.as_f64() {
                Some(value) => Ok(Metric { value, unit: None, better: None }),
                None => serde_json::from_value::<Metric>(value),
            };
            match metric {
                _ if !is_name(&name) => self.note(format!(
                    "{shown}: {name:?} is not a name; use letters, digits and . _ - / :"
                )),
                Ok(metric) => self.add(&name, metric),
                Err(error) => self.note(format!("{shown}: {name}: {error}")),
            }
        }
    }

    /// The reported metrics, and what could not be read.
    pub fn finish(mut self) -> (Metrics, Vec<String>) {
        let mut lines = std::mem::replace(&mut self.lines, Lines::new(0));
        lines.finish(|line| self.line(line));
        (self.metrics, self.notes)
    }
}

fn parse_line(rest: &str) -> Option<(&str, Metric)> {
    let (name, rest) = rest.trim().split_once('=')?;
    let mut words = rest.split_whitespace();
    let value: f64 = words.next()?.parse().ok()?;
    let unit = words.next().map(|unit| unit.to_owned().into());
    let name = name.trim();
    (value.is_finite() && is_name(name) && words.next().is_none())
        .then_some((name, Metric { value, unit, better: None }))
}

/// Whether this is a valid metric name.
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
    (1..=100).contains(&name.len()) && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metrics: &Metrics, name: &str) -> f64 {
        metrics[name].value
    }

    #[test]
    fn times_without_the_shell_are_never_negative() {
        let usage = Usage { user_cpu_us: 2000, system_cpu_us: 300, ..Usage::default() };
        let mut metrics = built_in(Duration::from_millis(10), &usage);
        ShellCost { wall: 1.0, user: 0.5, sys: 0.5 }.subtract_from(&mut metrics);
        let values = ["wall", "user", "sys", "cpu", SHELL_START].map(|name| value(&metrics, name));
        assert_eq!(values, [9.0, 1.5, 0.0, 1.5, 1.0]);
        ShellCost { wall: 100.0, user: 9.0, sys: 9.0 }.subtract_from(&mut metrics);
        assert_eq!((value(&metrics, "wall"), value(&metrics, "cpu")), (0.0, 0.0));
    }

    #[test]
    fn lines_are_found_however_they_are_split() {
        let text =
            b"start\nmetric: load=12.5 ms\r\n  metric: fps = 60\nmetric: nothing\nmetric:x=1";
        for size in 1..text.len() {
            let mut reported = ReportedMetrics::default();
            text.chunks(size).for_each(|piece| reported.push(piece));
            let (metrics, notes) = reported.finish();
            assert_eq!(metrics.len(), 3, "{size} {metrics:?}");
            assert_eq!(metrics["load"].unit.as_deref(), Some("ms"));
            assert_eq!((value(&metrics, "fps"), value(&metrics, "x")), (60.0, 1.0));
            assert_eq!(notes.len(), 1, "{notes:?}");
        }
    }

    #[test]
    fn endless_lines_binary_and_floods_take_no_memory() {
        let mut reported = ReportedMetrics::default();
        for _ in 0..1000 {
            reported.push(&[b'x'; 4096]);
            assert!(reported.lines.kept() <= LONGEST_LINE);
        }
        reported.push(b" metric: late=1\n\xff\xfe\nmetric: good=2\n");
        for i in 0..2 * MOST {
            reported.push(format!("metric: m{i}=1\nmetric: bad{i}=x\n").as_bytes());
        }
        let (metrics, notes) = reported.finish();
        assert!(!metrics.contains_key("late"));
        assert_eq!(value(&metrics, "good"), 2.0);
        assert_eq!(metrics.len(), MOST);
        assert!(notes.len() <= 20);
    }

    #[test]
    fn both_forms_in_the_file_and_it_wins_over_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.json");
        std::fs::write(
            &path,
            r#"{"a": 12.3, "b": {"value": 5, "unit": "ms", "better": "higher"}, "c": "x",
                "wall": 1, "bad name": 1, "d": {"unit": "ms"}}"#,
        )
        .unwrap();
        let mut reported = ReportedMetrics::default();
        reported.push(b"metric: a=1\n");
        reported.read_file(&path);
        let (metrics, notes) = reported.finish();
        assert_eq!(value(&metrics, "a"), 12.3);
        assert_eq!(metrics["b"].better, Some(Better::Higher));
        assert_eq!(metrics.len(), 2);
        assert_eq!(notes.len(), 4, "{notes:?}");
    }

    #[test]
    fn a_bad_file_is_a_note() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.json");
        for text in ["{", "[1]", "{\"a\": 1e999}", "\u{0}"] {
            std::fs::write(&path, text).unwrap();
            let mut reported = ReportedMetrics::default();
            reported.read_file(&path);
            assert_eq!(reported.finish().1.len(), 1, "{text}");
        }
        std::fs::remove_file(&path).unwrap();
        let mut reported = ReportedMetrics::default();
        reported.read_file(&path);
        assert_eq!(reported.finish().1.len(), 0);
        std::fs::create_dir(&path).unwrap();
        let mut reported = ReportedMetrics::default();
        reported.read_file(&path);
        assert_eq!(reported.finish().1, ["metrics.json: is not a file"]);
    }
}
