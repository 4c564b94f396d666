//! Compares runs: two with all their differences and their output, more of them as a table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::http::Uri;
use jiff::Timestamp;
use retake_runner::html::Html;
use retake_runner::run_differences::{OutputComparison, compare_output};
use retake_runner::run_text;
use retake_types::{Effects, Run, Stream, TestResults, TestStatus, text};

use super::badge::{run_badge, test_word};
use super::diff;
use super::failure::{changed, compare_address};
use super::layout::{HtmlResponse, PageError, Section, layout};
use super::matrix::shorten_commits;
use crate::api::run_id;
use crate::app::App;
use crate::error::RequestError;
use crate::params::{Params, address_of};
use crate::projects::State;
use crate::run_history::{RunChanges, changed_files};
use crate::store_pool::Store;

/// More columns do not fit.
const MAX_RUNS: usize = 12;
/// How many tests and files of each kind are listed.
const LISTED: usize = 100;
/// Larger output is not compared line by line on a page.
const LARGE: u64 = 4 << 20;

pub(crate) async fn compare(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<HtmlResponse, PageError> {
    let params = Params::from_uri(&uri);
    let wanted: Vec<String> = params.all("run").map(str::to_owned).collect();
    if wanted.len() > MAX_RUNS {
        return Err(RequestError::bad_request(format!(
            "{} runs are too many to compare; give 2 to {MAX_RUNS}",
            wanted.len()
        ))
        .into());
    }
    let mut main = Html::new();
    if wanted.len() < 2 {
        nothing(&mut main, wanted.first().map(String::as_str));
        return Ok(layout("Compare", Section::Runs, Some(app.frame()), &main));
    }
    // Reads both outputs.
    let compared = app.store.read_large(move |store| Compared::read(store, &wanted)).await?;
    compared.write(&mut main);
    Ok(layout("Compare", Section::Run, Some(app.frame()), &main))
}

fn nothing(html: &mut Html, first: Option<&str>) {
    html.markup("<h1>Compare runs</h1><form class=\"filters\" action=\"/compare\">");
    for (label, value) in [("One run", first.unwrap_or_default()), ("Another", "")] {
        html.markup("<label>")
            .markup(label)
            .markup("<input name=\"run\" required placeholder=\"id, or last\"");
        html.attr("value", value).markup("></label>");
    }
    html.markup("<button>Compare</button></form><p class=\"faint\">Or mark two or more in the <a href=\"/runs\">list of runs</a>.</p>");
}

struct Compared {
    runs: Vec<Run>,
    /// Only for two runs.
    pair: Option<PairComparison>,
}

struct PairComparison {
    changes: RunChanges,
    output: [(Stream, ComparedOutput); 2],
}

enum ComparedOutput {
    Known(OutputComparison),
    /// They differ, and are too large for a diff.
    Large([u64; 2]),
    /// One of them cannot be read any more.
    Unreadable(String),
}

impl Compared {
    fn read(store: &Store, wanted: &[String]) -> Result<Self, RequestError> {
        let mut runs = Vec::new();
        for text in wanted {
            runs.push(store.get(run_id(store, text)?)?);
        }
        let pair = match &runs[..] {
            [a, b] => {
                let changes = RunChanges::between(store, a, b)?;
                let output = Stream::BOTH.map(|stream| {
                    let compared = compare_stream(store, a, b, stream);
                    (
                        stream,
                        compared
                            .unwrap_or_else(|error| ComparedOutput::Unreadable(error.to_string())),
                    )
                });
                Some(PairComparison { changes, output })
            }
            _ => None,
        };
        Ok(Self { runs, pair })
    }

    fn write(&self, html: &mut Html) {
        html.markup("<p class=\"crumbs\"><a href=\"/runs\">Runs</a> / compare</p><h1>");
        html.text(self.runs.len()).markup(" runs compared</h1>");
        if let [a, b] = &self.runs[..] {
            html.markup("<p class=\"summary\">");
            html.link(&compare_address(&[b.intent.id(), a.intent.id()]), "Swap");
            html.markup("</p>");
        }
        self.table(html);
        match (&self.pair, &self.runs[..]) {
            (Some(pair), [a, b]) => pair.write(html, a, b),
            _ => self.pairs(html),
        }
    }

    fn table(&self, html: &mut Html) {
        html.markup("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"The runs\"><table class=\"compared\"><thead><tr><td></td>");
        for run in &self.runs {
            let id = run.intent.id();
            html.markup("<th scope=\"col\">")
                .link(&format!("/runs/{id}"), id.short())
                .markup("</th>");
        }
        html.markup("</tr></thead><tbody>");
        let now = Timestamp::now();
        row(html, "outcome", &self.runs, &|run| run_text::outcome(run).0, &run_badge);
        let started = |html: &mut Html, run: &Run| _ = html.time(run.intent.start_time, now);
        // Start times always differ, so this row is never marked.
        row(html, "started", &self.runs, &|_| String::new(), &started);
        for (name, value) in FACTS {
            let value = |run: &Run| value(run);
            if self.runs.iter().all(|run| value(run).is_empty()) {
                continue;
            }
            row(html, name, &self.runs, &value, &|html, run| _ = html.text(value(run)));
        }
        for label in self.labels() {
            let value =
                |run: &Run| run.intent.request.labels.get(label).cloned().unwrap_or_default();
            let name = format!("label {label}");
            row(html, &name, &self.runs, &value, &|html, run| _ = html.text(value(run)));
        }
        html.markup("</tbody></table></div>");
    }

    fn labels(&self) -> BTreeSet<&String> {
        self.runs.iter().flat_map(|run| run.intent.request.labels.keys()).collect()
    }

    /// For more than two runs: each with the first.
    fn pairs(&self, html: &mut Html) {
        let Some((first, rest)) = self.runs.split_first() else { return };
        html.markup("<p>Compare the output of ");
        for (at, run) in rest.iter().enumerate() {
            if at > 0 {
                html.markup(" · ");
            }
            let ids = [first.intent.id(), run.intent.id()];
            let name = format!("{} and {}", ids[0].short(), ids[1].short());
            html.link(&compare_address(&ids), name);
        }
        html.markup("</p>");
    }
}

/// A fact about a run as text; empty if the run lacks it.
type Fact = fn(&Run) -> String;

/// What is compared of each run.
const FACTS: [(&str, Fact); 11] = [
    ("took", |run| run_text::duration(run)),
    ("command", |run| run.intent.command().to_owned()),
    ("directory", |run| run.intent.working_directory()),
    ("commit", |run| {
        let commit = run.intent.request.correlation_ids.repo_sha.as_deref();
        shorten_commits(commit.unwrap_or_default())
    }),
    ("tests", tests_text),
    ("files changed", files_text),
    ("host", |run| run.intent.host.clone()),
    ("user", |run| run.intent.user.clone()),
    ("stdout", |run| size_text(run, Stream::Stdout)),
    ("stderr", |run| size_text(run, Stream::Stderr)),
    ("largest process", |run| {
        run.outcome.as_ref().map(|o| text::size(o.usage.max_rss_kb << 10)).unwrap_or_default()
    }),
];

fn results(run: &Run) -> Option<&TestResults> {
    let effects = run.outcome.as_ref()?.effects.as_ref()?;
    effects.observations()?.test_results.as_ref()
}

fn tests_text(run: &Run) -> String {
    let Some(results) = results(run) else { return String::new() };
    format!("{} passed, {} failed, {} skipped", results.passed, results.failed, results.skipped)
}

fn files_text(run: &Run) -> String {
    let effects = run.outcome.as_ref().and_then(|outcome| outcome.effects.as_ref());
    match effects.and_then(Effects::observations) {
        Some(observed) if observed.files_tracked => changed_files(run).len().to_string(),
        _ => String::new(),
    }
}

fn size_text(run: &Run, stream: Stream) -> String {
    let bytes = run.outcome.as_ref().map(|outcome| match stream {
        Stream::Stdout => outcome.stdout_bytes,
        Stream::Stderr => outcome.stderr_bytes,
    });
    bytes.map(text::size).unwrap_or_default()
}

/// A row, marked if its values differ.
fn row(
    html: &mut Html,
    name: &str,
    runs: &[Run],
    value: &dyn Fn(&Run) -> String,
    write: &dyn Fn(&mut Html, &Run),
) {
    let values: BTreeSet<String> = runs.iter().map(value).collect();
    html.markup(if values.len() > 1 { "<tr class=\"differs\">" } else { "<tr>" });
    html.markup("<th scope=\"row\">").text(name);
    if values.len() > 1 {
        html.markup(" <span class=\"hidden\">(differs)</span>");
    }
    html.markup("</th>");
    for run in runs {
        html.markup("<td>");
        write(html, run);
        html.markup("</td>");
    }
    html.markup("</tr>");
}

fn compare_stream(
    store: &Store,
    a: &Run,
    b: &Run,
    stream: Stream,
) -> Result<ComparedOutput, retake_store::Error> {
    let length = |run: &Run| Ok(store.read_output(run.intent.id(), stream)?.length());
    let lengths = [length(a)?, length(b)?];
    let same = |run: &Run| {
        let outcome = run.outcome.as_ref()?;
        match stream {
            Stream::Stdout => outcome.stdout_blake3.clone(),
            Stream::Stderr => outcome.stderr_blake3.clone(),
        }
    };
    // The hashes tell whether they are equal; finding the difference is too much work for a page.
    if lengths.iter().any(|length| *length > LARGE) && (same(a).is_none() || same(a) != same(b)) {
        return Ok(ComparedOutput::Large(lengths));
    }
    compare_output(store, a, b, stream).map(ComparedOutput::Known)
}

impl PairComparison {
    fn write(&self, html: &mut Html, a: &Run, b: &Run) {
        html.markup("<section><h2>Differences</h2>");
        changed(html, &self.changes);
        html.markup("</section>");
        tests(html, a, b);
        files(html, a, b);
        for (stream, compared) in &self.output {
            html.markup("<section><h2>").markup(stream.as_str()).markup("</h2>");
            match compared {
                ComparedOutput::Known(OutputComparison { same: true, .. }) => {
                    html.markup("<p class=\"faint\">The same.</p>");
                }
                ComparedOutput::Known(OutputComparison { diff: Some(text), .. }) => {
                    diff::side_by_side(html, text, stream.as_str(), "retake runs diff");
                }
                ComparedOutput::Known(OutputComparison { first_difference, .. }) => {
                    html.markup("<p>They differ from byte ").text(first_difference.unwrap_or(0));
                    html.markup(".</p>");
                }
                ComparedOutput::Large([a, b]) => {
                    html.markup("<p>They differ, and are too large to compare here (");
                    html.text(text::size(*a)).markup(" and ").text(text::size(*b));
                    html.markup("). <code>retake runs diff</code> says where.</p>");
                }
                ComparedOutput::Unreadable(why) => {
                    html.markup("<p class=\"note bad\">").text(why).markup("</p>");
                }
            }
            html.markup("</section>");
        }
    }
}

/// Tests with different results in the two runs.
fn tests(html: &mut Html, a: &Run, b: &Run) {
    let (Some(before), Some(after)) = (results(a), results(b)) else { return };
    let by_name = |results: &TestResults| -> BTreeMap<String, TestStatus> {
        results.details.iter().map(|test| (test.name.clone(), test.status)).collect()
    };
    let (before, after) = (by_name(before), by_name(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let names = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    let names: Vec<&String> = names.collect();
    html.markup("<section><h2>Tests</h2>");
    if names.is_empty() {
        html.markup("<p class=\"faint\">Every named test has the same result.</p>");
    } else {
        html.markup("<ul class=\"plain\">");
        for name in names.iter().take(LISTED) {
            let word = |status: Option<&TestStatus>| {
                status.map_or("not named", |status| test_word(*status))
            };
            html.markup("<li>").link(&address_of("/test", &[("name", name)]), name);
            html.markup(" <span class=\"faint\">").markup(word(before.get(*name)));
            html.markup(" → </span><span>").markup(word(after.get(*name))).markup("</span></li>");
        }
        if names.len() > LISTED {
            html.markup("<li class=\"faint\">and ").text(names.len() - LISTED).markup(" more</li>");
        }
        html.markup("</ul>");
    }
    html.markup("</section>");
}

/// Files that only one of the runs changed.
fn files(html: &mut Html, a: &Run, b: &Run) {
    if files_text(a).is_empty() && files_text(b).is_empty() {
        return;
    }
    let [a, b]: [BTreeSet<String>; 2] = [a, b].map(|run| changed_files(run).into_iter().collect());
    html.markup("<section><h2>Changed files</h2>");
    let mut any = false;
    for (title, own, other) in [("Only the first", &a, &b), ("Only the second", &b, &a)] {
        let only: Vec<&String> = own.difference(other).collect();
        if only.is_empty() {
            continue;
        }
        any = true;
        html.markup("<h3>").markup(title).markup("</h3><ul class=\"plain\">");
        for path in only.iter().take(LISTED) {
            html.markup("<li><code>").text(path).markup("</code></li>");
        }
        if only.len() > LISTED {
            html.markup("<li class=\"faint\">and ").text(only.len() - LISTED).markup(" more</li>");
        }
        html.markup("</ul>");
    }
    if !any {
        html.markup("<p class=\"faint\">Both changed the same files.</p>");
    }
    html.markup("</section>");
}
