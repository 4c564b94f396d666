//! A metric over commits, as a chart and a table.

use retake_runner::html::Html;
use retake_types::text;

use super::html::{CARDS, END_OF_TABLE};
use super::svg;
use crate::history::{CommitHistory, CommitRow, CommitSeries};
use crate::stats::value_text;

/// With fewer commits a history adds nothing to the comparisons.
const FEWEST: usize = 3;

pub(super) fn write(html: &mut Html, history: &CommitHistory) {
    for series in history.series.iter().filter(|series| series.commits.len() >= FEWEST) {
        one_series(html, history, series);
    }
}

fn one_series(html: &mut Html, history: &CommitHistory, series: &CommitSeries) {
    let unit = history.unit.as_deref();
    html.markup("<h3>History</h3>\n<p class=\"legend\">").text(&history.metric);
    html.fill(" over the commits of {}", &[&history.reference]);
    if let Some(cell) = &series.cell {
        html.fill(" with {}", &[cell]);
    }
    html.fill(
        ": {} of {} measured, in {}, the oldest first. Bars are 95 % intervals.",
        &[
            &series.commits.len(),
            &text::count(history.looked_at as u64, "commit"),
            &text::count(history.sessions.len() as u64, "session"),
        ],
    );
    if let Some(spread) = series.session_spread {
        let spread = format!("{:.1} %", 100.0 * spread);
        html.fill(" From session to session the same commit differs by about {}.", &[&spread]);
    }
    html.markup("</p>\n");
    let says = match &series.changes[..] {
        [] => format!("{}: no conclusive change", history.metric),
        changes => {
            let all = changes.iter().map(|change| change.sentence(&history.metric, unit));
            all.collect::<Vec<_>>().join("; ")
        }
    };
    svg::over_commits(html, series, unit, &says);
    for change in &series.changes {
        html.fill("<p>{}.</p>\n", &[&change.sentence(&history.metric, unit)]);
    }
    if series.changes.is_empty() {
        html.fill("<p>No conclusive change of {}.</p>\n", &[&history.metric]);
    }
    for session in history.sessions.iter().filter(|session| !session.differs.is_empty()) {
        let differs: Vec<String> =
            session.differs.iter().map(|(name, value)| format!("{name} {value}")).collect();
        html.fill(
            "<p class=\"legend\">Session {} ran with another {}.</p>\n",
            &[&session.number, &differs.join(", ")],
        );
    }
    html.markup("<details><summary>The commits</summary>\n").markup(CARDS).markup(
        "<tr class=\"head\"><th>commit</th><th>subject</th><th class=\"n\">median</th>\
         <th class=\"n\">95 % interval</th><th class=\"n\">runs</th><th class=\"n\">failed</th>\
         <th>sessions</th><th class=\"n\">change</th></tr>\n",
    );
    for row in &series.commits {
        commit(html, row, series, unit);
    }
    html.markup(END_OF_TABLE).markup("</details>\n");
}

fn commit(html: &mut Html, row: &CommitRow, series: &CommitSeries, unit: Option<&str>) {
    let value = |value: f64| value_text(value, unit);
    let median = row.summary.as_ref().map_or_else(|| "-".to_owned(), |s| value(s.median));
    let interval = row
        .interval
        .map_or_else(String::new, |[low, high]| format!("{} to {}", value(low), value(high)));
    let sessions: Vec<String> = row.sessions.iter().map(ToString::to_string).collect();
    let (change, class) = match series.change_at(row) {
        Some(change) if change.is_sure() => (change.size(unit), change.verdict.as_str()),
        Some(change) => (format!("{}?", change.size(unit)), ""),
        None => (String::new(), ""),
    };
    html.fill(
        "<tr><td><code>{}</code></td><td data-is=\"subject\">{}</td>\
         <td data-is=\"median\" class=\"n\">{}</td><td data-is=\"95 % interval\" class=\"n\">{}</td>",
        &[&&row.sha[..row.sha.len().min(7)], &row.subject, &median, &interval],
    );
    html.fill(
        "<td data-is=\"runs\" class=\"n\">{}</td><td data-is=\"failed\" class=\"n\">{}</td>\
         <td data-is=\"sessions\">{}</td><td data-is=\"change\" class=\"n {}\">{}</td></tr>\n",
        &[
            &row.summary.as_ref().map_or(0, |summary| summary.samples),
            &row.failed,
            &sessions.join(", "),
            &class,
            &change,
        ],
    );
}
