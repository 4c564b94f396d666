//! Results for other programs: CSV with hyperfine's columns, Markdown, and the JSON that
//! hyperfine's own scripts read.

mod answers;
mod table_text;

use std::collections::{BTreeMap, BTreeSet};

use retake_types::Metrics;
use serde::Serialize;

use answers::{CHANGE_COLUMNS, change_columns, change_text};
pub use answers::{
    comparisons_csv, comparisons_markdown, history_csv, history_markdown, points_csv,
    points_markdown, versions_csv, versions_markdown,
};
use table_text::{code, csv_line, markdown_table, number};

use crate::stats::{
    Comparison, Summary, changes_heading, is_time, median_interval, summarise, value_text,
};

/// One metric of all cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricResults {
    pub metric: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The start time of a shell that was subtracted from times, if any: milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell_start: Option<f64>,
    pub cells: Vec<CellResults>,
}

/// The results of one cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CellResults {
    /// For display: its command, or what distinguishes it from the other cells.
    pub name: String,
    /// The values of its axes, without the command.
    pub parameters: BTreeMap<String, String>,
    /// The values of the metric, in the order of measurement.
    pub values: Vec<f64>,
    pub failed: usize,
    /// Compared with its baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Comparison>,
    /// All measurements of its runs with results.
    #[serde(skip)]
    pub runs: Vec<RunResults>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunResults {
    pub metrics: Metrics,
    pub exit_code: i32,
}

impl CellResults {
    /// The values of a metric in seconds, where measured.
    fn seconds(&self, metric: &str) -> Vec<f64> {
        let seconds = |run: &RunResults| {
            let found = run.metrics.get(metric)?;
            Some(found.value * scale(found.unit.as_deref().unwrap_or("ms"))?)
        };
        self.runs.iter().filter_map(seconds).collect()
    }
}

/// A unit of time in seconds.
fn scale(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-9),
        "us" | "µs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "min" => Some(60.0),
        _ => None,
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The standard deviation of a sample; `None` for a single value.
fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// The content of hyperfine's `--export-json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HyperfineResults {
    pub results: Vec<HyperfineResult>,
}

/// One benchmark of hyperfine; times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HyperfineResult {
    pub command: String,
    pub mean: f64,
    /// `None` for a single run.
    pub stddev: Option<f64>,
    pub median: f64,
    pub user: f64,
    pub system: f64,
    pub min: f64,
    pub max: f64,
    pub times: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory_usage_byte: Vec<u64>,
    pub exit_codes: Vec<i32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

impl MetricResults {
    /// Whether there are results but none has the metric.
    pub fn lacks_metric(&self) -> bool {
        self.cells.iter().any(|cell| !cell.runs.is_empty())
            && self.cells.iter().all(|cell| cell.values.is_empty())
    }

    /// Every metric that some run has, by name.
    pub fn known_metrics(&self) -> Vec<&str> {
        let runs = self.cells.iter().flat_map(|cell| &cell.runs);
        let names = runs.flat_map(|run| run.metrics.keys()).map(|name| name.as_ref());
        names.collect::<BTreeSet<&str>>().into_iter().collect()
    }

    /// The factor that converts times to seconds.
    fn scale(&self) -> Option<f64> {
        is_time(&self.metric, self.unit.as_deref())
            .then(|| scale(self.unit.as_deref().unwrap_or("ms")))?
    }

    /// hyperfine's format, of this metric if it is a time, otherwise of the wall time. Leaves out
    /// cells without a result, which hyperfine cannot represent, and axes with one value, unless
    /// there is no other: its script for parameters expects exactly one.
    pub fn hyperfine(&self) -> HyperfineResults {
        let varies = |name: &String| {
            let mut values = self.cells.iter().map(|cell| cell.parameters.get(name));
            let first = values.next();
            values.any(|value| Some(value) != first)
        };
        let any = self.cells.iter().any(|cell| cell.parameters.keys().any(varies));
        let metric = if self.scale().is_some() { self.metric.as_str() } else { "wall" };
        let one = |cell: &CellResults| {
            let times = cell.seconds(metric);
            let Summary { median, min, max, mean: average, .. } = summarise(&times)?;
            let memory = |run: &RunResults| Some((run.metrics.get("rss")?.value * 1024.0) as u64);
            Some(HyperfineResult {
                command: cell.name.clone(),
                mean: average,
                stddev: deviation(&times),
                median,
                user: mean(&cell.seconds("user")).unwrap_or(0.0),
                system: mean(&cell.seconds("sys")).unwrap_or(0.0),
                min,
                max,
                times,
                memory_usage_byte: cell.runs.iter().filter_map(memory).collect(),
                exit_codes: cell.runs.iter().map(|run| run.exit_code).collect(),
                parameters: cell
                    .parameters
                    .iter()
                    .filter(|(name, _)| !any || varies(name))
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect(),
            })
        };
        HyperfineResults { results: self.cells.iter().filter_map(one).collect() }
    }

    /// A Markdown table: one line per cell.
    pub fn markdown(&self) -> String {
        let unit = self.unit.as_deref();
        let changes = self.cells.iter().any(|cell| cell.change.is_some());
        let mut head = vec![self.metric.as_str(), "median", "95 % interval", "min … max", "runs"];
        let failures = self.cells.iter().any(|cell| cell.failed > 0);
        head.extend(failures.then_some("failed"));
        let against = changes_heading(self.cells.iter().map(|cell| cell.change.as_ref()));
        head.extend(changes.then_some(against.as_str()));
        let line = |cell: &CellResults| {
            let value = |value: f64| value_text(value, unit);
            let mut line = vec![code(&cell.name)];
            match summarise(&cell.values) {
                Some(summary) => line.extend([
                    value(summary.median),
                    median_interval(&cell.values).map_or_else(String::new, |[low, high]| {
                        format!("{} to {}", value(low), value(high))
                    }),
                    format!("{} … {}", value(summary.min), value(summary.max)),
                    summary.samples.to_string(),
                ]),
                None => line.extend(["-", "", "", "0"].map(str::to_owned)),
            }
            line.extend(failures.then(|| cell.failed.to_string()));
            line.extend(
                changes.then(|| cell.change.as_ref().map_or_else(String::new, change_text)),
            );
            line
        };
        markdown_table(&head, self.cells.iter().map(line))
    }
}

/// hyperfine's documented columns, the parameters, and additional columns.
pub fn csv(metrics: &[MetricResults]) -> String {
    let cells = || metrics.iter().flat_map(|metric| &metric.cells);
    let parameters: BTreeSet<&String> = cells().flat_map(|cell| cell.parameters.keys()).collect();
    let mut head: Vec<String> =
        ["command", "mean", "stddev", "median", "user", "system", "min", "max"]
            .map(str::to_owned)
            .to_vec();
    head.extend(parameters.iter().map(|name| format!("parameter_{name}")));
    head.extend(["metric", "unit", "runs", "failed"].map(str::to_owned));
    head.extend(CHANGE_COLUMNS.map(str::to_owned));
    let mut text = csv_line(&head);
    for metric in metrics {
        let factor = metric.scale();
        for cell in &metric.cells {
            let scaled: Vec<f64> =
                cell.values.iter().map(|value| value * factor.unwrap_or(1.0)).collect();
            let summary = summarise(&scaled);
            let of = |pick: fn(&Summary) -> f64| number(summary.as_ref().map(pick));
            let deviation = deviation(&scaled).or_else(|| summary.as_ref().map(|_| 0.0));
            let mut line = vec![cell.name.clone(), of(|s| s.mean), number(deviation)];
            line.push(of(|s| s.median));
            line.extend(["user", "sys"].map(|name| number(mean(&cell.seconds(name)))));
            line.extend([of(|s| s.min), of(|s| s.max)]);
            let value = |name: &&String| cell.parameters.get(*name).cloned().unwrap_or_default();
            line.extend(parameters.iter().map(value));
            let unit = if factor.is_some() { Some("s") } else { metric.unit.as_deref() };
            line.extend([metric.metric.clone(), unit.unwrap_or_default().to_owned()]);
            line.extend([cell.values.len(), cell.failed].map(|count| count.to_string()));
            line.extend(change_columns(cell.change.as_ref(), factor.unwrap_or(1.0)));
            text += &csv_line(&line);
        }
    }
    text
}
