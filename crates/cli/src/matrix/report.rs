//! `retake matrix report`: all results in one self-contained HTML page.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use retake_matrix::driver::{CommitChain, short_sha};
use retake_matrix::plan::baselines;
use retake_matrix::report::{Page, render};
use retake_matrix::table::Table;
use serde::Serialize;

use super::explain::explained;
use super::export_files::{self, Answer, Exports, Lines};
use super::open::{Common, Filters, View, percent};
use super::redacted_output::RedactedOutput;
use super::words;
use crate::{Exit, Failure, term};

/// Write one HTML file with comparisons, heat maps, histograms, the history over commits and the
/// environment
#[derive(clap::Args)]
pub(super) struct Args {
    /// Output file; - is stdout
    #[arg(short, long, value_name = "FILE", default_value = "matrix-report.html")]
    output: PathBuf,
    /// Only these metrics [default: those of the configuration, or wall, cpu, rss and all that is reported]
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
    /// Ignore differences up to this size
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    margin: f64,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    exports: Exports,
}

#[derive(Serialize)]
struct Document<'a> {
    file: &'a Path,
    bytes: usize,
    metrics: Vec<String>,
}

pub(super) fn report(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let to_stdout = args.output == Path::new("-");
    let files = args.exports.files(args.common.json || to_stdout)?;
    // The history needs a branch; the rest of the report does not.
    let (view, chain) = View::open_and(&args.common, &args.filters, store, |worker, project| {
        CommitChain::read(worker, project, "HEAD").ok()
    })?;
    let configured: Vec<String> =
        view.project.config.metrics.iter().map(|metric| metric.name.clone()).collect();
    let metrics = match (&args.metric[..], &configured[..]) {
        ([], []) => view.recorded.usual_metrics(),
        ([], configured) => configured.to_vec(),
        (given, _) => given.to_vec(),
    };
    // A metric that was asked for must exist; a configured one may not be measured yet.
    for metric in &args.metric {
        view.samples(metric)?;
    }
    let mut page = page(&view, &metrics, args.margin)?;
    if let Some(chain) = chain {
        let commits = view.commits(&chain, &args.filters)?;
        let of = |table: &Table| view.history(&commits, &table.metric, args.margin);
        page.histories = page.tables.iter().map(of).collect();
    }
    let shown = RedactedOutput::of(&view.project);
    let html = shown.text(&render(&page));
    let metrics: Vec<String> = page.tables.iter().map(|table| table.metric.clone()).collect();
    let mut results = Vec::new();
    for metric in metrics.iter().filter(|_| !files.is_empty()) {
        results.push(view.results(&view.samples(metric)?, args.margin));
    }
    files.write(&Answer { document: &results, metrics: &results, lines: Lines::Cells }, &shown)?;
    if to_stdout {
        term::data(html.as_bytes())?;
        return Ok(Exit::OK);
    }
    export_files::write(&args.output, html.as_bytes())?;
    if args.common.json {
        term::document(&Document { file: &args.output, bytes: html.len(), metrics })?;
    } else {
        term::say(&format!("wrote {}", args.output.display()));
    }
    Ok(Exit::OK)
}

fn page(view: &View, metrics: &[String], margin: f64) -> Result<Page, Failure> {
    let pairs = baselines(&view.matrix);
    let mut page = Page {
        title: view
            .project
            .file
            .parent()
            .and_then(Path::file_name)
            .map_or_else(|| "matrix".to_owned(), |name| name.to_string_lossy().into_owned()),
        made: format!("retake {}, {:.0}", env!("CARGO_PKG_VERSION"), Timestamp::now()),
        notes: view.resources.unavailable.iter().map(ToString::to_string).collect(),
        ..Page::default()
    };
    let mut missing = Vec::new();
    for metric in metrics {
        let samples = view.samples_if_any(metric);
        if !samples.any() {
            missing.push(format!("no run has reported {metric}"));
            continue;
        }
        if samples.is_mixed() && page.tables.is_empty() {
            page.notes.push(words::MIXED_SESSIONS.to_owned());
        }
        let table = samples.table();
        page.units.extend(samples.unit.clone().map(|unit| (metric.clone(), unit)));
        if !pairs.is_empty() {
            let comparisons = samples.compare(&pairs, margin, &view.resources);
            page.explanations.push(explained(&table, &comparisons, margin));
            page.comparisons.extend(comparisons);
        }
        page.tables.push(table);
    }
    match page.tables.is_empty() {
        true => page.notes.push("there is no successful run yet".to_owned()),
        false => page.notes.extend(missing),
    }
    for (sha, refs) in view.resources.same_commits() {
        page.notes.push(format!("{} are one commit, {}", refs.join(" and "), short_sha(&sha)));
    }
    page.warnings = view.disturbances()?.iter().map(words::seen_disturbance).collect();
    page.environment = environment(view);
    Ok(page)
}

fn environment(view: &View) -> Vec<(String, String)> {
    let mut facts: Vec<(String, String)> = Vec::new();
    let mut put = |name: &str, value: String| facts.push((name.to_owned(), value));
    if let Some(planned) = view.last_run() {
        put("command", planned.command.clone());
        if let Some(setup) = &planned.setup {
            put("setup", setup.clone());
        }
        put("order", format!("{}, seed {}", planned.order, planned.seed));
        put("workers", planned.workers.to_string());
        for (name, value) in &planned.environment {
            put(name, value.clone());
        }
        for (request, version) in &planned.pins {
            put(&format!("chrome {request}"), version.clone());
        }
        for (version, hash) in &planned.checksums {
            put(&format!("chrome {version}"), format!("BLAKE3 {hash}"));
        }
    }
    for (reference, sha) in &view.resources.commits {
        put(reference, sha.clone());
    }
    facts
}
