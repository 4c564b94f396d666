//! What a reader of a failed run needs first: the failed tests, the errors in the output, and what
//! has changed since the command last passed.

use jiff::Timestamp;
use retake_runner::error_lines::ErrorKind;
use retake_runner::html::Html;
use retake_runner::run_differences::{Difference, RunPart};
use retake_store::{NearestRun, RunSeries};
use retake_types::{Effects, Run, RunId, State, Stream, TestResults, text};

use super::badge::run_badge;
use super::matrix::shorten_commits;
use super::output::LINE;
use super::output_lines::span;
use super::run::error_text;
use crate::failure_reasons::FailureReasons;
use crate::params::address_of;
use crate::run_history::{RunChanges, RunHistory, SincePassed};

/// How many failed tests, and files, are listed.
const TESTS: usize = 20;
const FILES: usize = 40;

/// Why a run failed; empty for one that did not.
pub(super) struct FailurePage<'a> {
    pub(super) run: &'a Run,
    pub(super) reasons: &'a FailureReasons,
    /// The line numbers of the reasons, as far as they are counted.
    pub(super) numbers: &'a [Option<u64>],
    pub(super) history: &'a RunHistory,
}

impl FailurePage<'_> {
    pub(super) fn write(&self, html: &mut Html) {
        html.markup("<div id=\"why\" data-live>");
        if self.run.state != State::Running && !self.run.success() {
            html.markup("<section class=\"why\" aria-labelledby=\"why-title\"><h2 id=\"why-title\">Why it failed</h2>");
            if let Some(text) = error_text(self.run) {
                html.element("p", "note bad", text);
            }
            self.tests(html);
            self.lines(html);
            self.since(html);
            html.markup("</section>");
        }
        html.markup("</div>");
    }

    fn tests(&self, html: &mut Html) {
        let outcome = self.run.outcome.as_ref();
        let effects = outcome.and_then(|outcome| outcome.effects.as_ref());
        let observed = effects.and_then(Effects::observations);
        let Some(results) = observed.and_then(|observed| observed.test_results.as_ref()) else {
            return;
        };
        if results.failed > 0 {
            html.markup("<h3>").text(results.failed).markup(" of ").text(results.total);
            html.markup(" tests failed</h3>");
            failed_tests(html, self.run.intent.id(), results);
        }
        for problem in results.problems.iter().take(3) {
            html.markup("<p class=\"note bad\">").text(problem).markup("</p>");
        }
    }

    fn lines(&self, html: &mut Html) {
        let FailureReasons { lines, kind, complete } = self.reasons;
        if lines.is_empty() {
            return;
        }
        html.markup("<h3>").markup(match kind {
            Some(ErrorKind::Reported) => "First errors in the output",
            Some(ErrorKind::Likely) => "Lines that look like an error",
            None => "The output ends with",
        });
        html.markup("</h3><ol class=\"errors\">");
        let id = self.run.intent.id();
        for (line, number) in lines.iter().zip(self.numbers) {
            let path = format!("/runs/{id}");
            let address = match (number, line.stream) {
                (Some(number), stream) => {
                    let address = address_of(&path, &[(stream.as_str(), &number.to_string())]);
                    format!("{address}#{LINE}")
                }
                (None, stream) => {
                    let key = if stream == Stream::Stdout { "out" } else { "err" };
                    let address = address_of(&path, &[(key, &line.offset.to_string())]);
                    format!("{address}#output")
                }
            };
            html.markup("<li><a").attr("href", address).markup("><span class=\"stream\">");
            if let Some(number) = number {
                html.text(number).markup(" ");
            }
            html.markup(line.stream.as_str()).markup("</span> <code>");
            line.spans.iter().for_each(|one| span(html, one));
            html.markup(if line.cut { "…</code></a></li>" } else { "</code></a></li>" });
        }
        html.markup("</ol>");
        if !complete {
            html.markup("<p class=\"faint\">The output is large; only its beginning and its end were searched for errors.</p>");
        }
    }

    fn since(&self, html: &mut Html) {
        match (&self.history.since, self.history.neighbours.last_passed) {
            (Some(since), _) => since_passed(html, since, self.run),
            (None, _) if self.history.series == RunSeries::Loop => {}
            (None, NearestRun::NotAmong(looked)) => {
                html.markup("<p class=\"faint\">None of the ").text(looked);
                html.markup(" runs of this command before it passed.</p>");
            }
            (None, _) => {
                html.markup("<p class=\"faint\">No earlier run of this command in this directory passed.</p>");
            }
        }
    }
}

fn failed_tests(html: &mut Html, id: RunId, results: &TestResults) {
    html.markup("<ul class=\"plain\">");
    for test in results.failing().take(TESTS) {
        html.markup("<li><span class=\"bad\" aria-hidden=\"true\">✗</span> ");
        html.link(&address_of("/test", &[("name", &test.name)]), &test.name);
        if let Some(headline) = test.headline() {
            html.markup(" <span class=\"faint\">").text(headline).markup("</span>");
        }
        let address = address_of(&format!("/runs/{id}"), &[("find", &test.name)]);
        html.markup(" ").link(&format!("{address}#match"), "in the output");
        html.markup("</li>");
    }
    let named = results.failing().count() as u64;
    let rest = results.failed.saturating_sub(named.min(TESTS as u64));
    if rest > 0 {
        html.markup("<li class=\"faint\">and ").text(rest).markup(" more</li>");
    }
    html.markup("</ul>");
}

fn since_passed(html: &mut Html, since: &SincePassed, run: &Run) {
    let SincePassed { passed, changes } = since;
    let (then, now) = (passed.intent.id(), run.intent.id());
    html.markup("<h3>Last passed ").time(passed.intent.start_time, Timestamp::now());
    html.markup("</h3><p>in ");
    run_badge(html, passed);
    html.markup(" ").link(&format!("/runs/{then}"), then.short()).markup(" · ");
    html.link(&compare_address(&[then, now]), "Compare the two, with their output");
    html.markup("</p><p>What changed since:</p>");
    changed(html, changes);
}

/// The address of the page that compares runs.
pub(super) fn compare_address(ids: &[RunId]) -> String {
    let ids: Vec<String> = ids.iter().map(RunId::to_string).collect();
    let pairs: Vec<(&str, &str)> = ids.iter().map(|id| ("run", id.as_str())).collect();
    address_of("/compare", &pairs)
}

/// The differences of two runs, as a list.
pub(super) fn changed(html: &mut Html, changes: &RunChanges) {
    let worth =
        |difference: &&Difference| !matches!(difference.part, RunPart::Outcome | RunPart::Duration);
    html.markup("<dl class=\"changes\">");
    let mut any = false;
    let mut row = |html: &mut Html, name: &str, a: Option<&str>, b: Option<&str>| {
        any = true;
        html.markup("<dt>").text(name).markup("</dt><dd>");
        let value = |value: Option<&str>| shorten_commits(value.unwrap_or("none"));
        html.element("del", "", value(a)).markup(" → ");
        html.element("ins", "", value(b)).markup("</dd>");
    };
    for difference in changes.differences.iter().filter(worth) {
        row(html, &difference.part.to_string(), difference.a.as_deref(), difference.b.as_deref());
    }
    if let Some([a, b]) = &changes.program {
        row(html, "program", Some(a), Some(b));
    }
    if let Some(counts) = changes.inherited.filter(|counts| *counts != Default::default()) {
        any = true;
        html.markup("<dt>inherited variables</dt><dd>").text(counts.other).markup(" changed, ");
        html.text(counts.new).markup(" added, ").text(counts.gone).markup(" removed</dd>");
    }
    if !changes.files.is_empty() {
        any = true;
        html.markup("<dt>files</dt><dd>");
        html.text(text::count(changes.files.len() as u64, "file"));
        html.markup(" changed by recorded runs in between<ul class=\"plain\">");
        for file in changes.files.iter().take(FILES) {
            html.markup("<li>")
                .link(&address_of("/runs", &[("changed", file)]), file)
                .markup("</li>");
        }
        if changes.files.len() > FILES || !changes.files_complete {
            html.markup("<li class=\"faint\">and perhaps more</li>");
        }
        html.markup("</ul></dd>");
    }
    html.markup("</dl>");
    if !any {
        html.markup(
            "<p class=\"faint\">No recorded difference: commit, variables and program are the same. ",
        );
        html.markup("Changed files are recorded with <code>--track</code>.</p>");
    }
}
