//! Results that are not about cells: comparisons, a metric over commits, the points of a search,
//! and versions of browsers.

use retake_types::loop_record::matrix::{BisectAnswer, JudgedPoint, PointVerdict};

use super::table_text::{code, csv_line, escaped, markdown_table, number};
use crate::browsers::ListedVersion;
use crate::history::{Change, CommitHistory, CommitRow, CommitSeries};
use crate::stats::{Comparison, Verdict, value_text};

/// The columns of a change.
pub(super) const CHANGE_COLUMNS: [&str; 7] = [
    "change",
    "change_low",
    "change_high",
    "verdict",
    "difference",
    "difference_low",
    "difference_high",
];

/// The ratio minus one with its interval, the verdict, and the difference in place of the ratio if
/// a value is 0; `factor` scales differences.
pub(super) fn change_columns(change: Option<&Comparison>, factor: f64) -> [String; 7] {
    let Some(change) = change else { return Default::default() };
    let part = |ratio: Option<f64>| number(ratio.map(|ratio| ratio - 1.0));
    let ends = change.interval;
    let by = |difference: Option<f64>| number(difference.map(|difference| difference * factor));
    let difference = change.difference;
    let difference_ends = difference.and_then(|difference| difference.interval);
    [
        part(change.ratio),
        part(ends.map(|ends| ends[0])),
        part(ends.map(|ends| ends[1])),
        verdict_key(change.verdict),
        by(difference.map(|difference| difference.value)),
        by(difference_ends.map(|ends| ends[0])),
        by(difference_ends.map(|ends| ends[1])),
    ]
}

/// The word in JSON.
fn verdict_key(verdict: Verdict) -> String {
    verdict.as_str().replace(' ', "_")
}

fn csv_head(parts: &[&[&str]]) -> String {
    csv_line(&parts.concat().into_iter().map(str::to_owned).collect::<Vec<_>>())
}

/// Comparisons as CSV, one per line.
pub fn comparisons_csv(comparisons: &[Comparison]) -> String {
    let sides = ["a", "b", "at", "metric", "unit", "median_a", "median_b", "runs_a", "runs_b"];
    let mut text = csv_head(&[&sides, &CHANGE_COLUMNS]);
    for one in comparisons {
        let mut line = vec![one.a.clone(), one.b.clone(), one.at.clone().unwrap_or_default()];
        line.extend([one.metric.clone(), one.unit.clone().unwrap_or_default()]);
        line.push(number(one.medians.map(|medians| medians.a)));
        line.push(number(one.medians.map(|medians| medians.b)));
        line.extend([one.samples.a.to_string(), one.samples.b.to_string()]);
        line.extend(change_columns(Some(one), 1.0));
        text += &csv_line(&line);
    }
    text
}

/// Comparisons as a Markdown table.
pub fn comparisons_markdown(comparisons: &[Comparison]) -> String {
    let head = ["", "against", "with", "metric", "medians", "change", "95 % interval"];
    let line = |one: &Comparison| {
        let unit = one.unit.as_deref();
        let medians = one.medians.map_or_else(String::new, |medians| {
            format!("{} against {}", value_text(medians.b, unit), value_text(medians.a, unit))
        });
        vec![
            code(&one.b),
            code(&one.a),
            one.at.as_deref().map_or_else(String::new, escaped),
            escaped(&one.metric),
            medians,
            change_text(one),
            one.interval_text().unwrap_or_default(),
        ]
    };
    markdown_table(&head, comparisons.iter().map(line))
}

/// `+4.2 % slower`.
pub(super) fn change_text(change: &Comparison) -> String {
    let size = change.change_text().map_or_else(String::new, |size| format!("{size} "));
    format!("{size}{}", change.verdict_word())
}

/// Every commit with its series.
fn commits(history: &CommitHistory) -> impl Iterator<Item = (&CommitSeries, &CommitRow)> {
    history.series.iter().flat_map(|series| series.commits.iter().map(move |row| (series, row)))
}

/// A metric over commits as CSV, one commit per line. A change is at the first commit that has it.
pub fn history_csv(history: &CommitHistory) -> String {
    let commit = ["commit", "subject", "cell", "metric", "unit", "median", "low", "high"];
    let mut text =
        csv_head(&[&commit, &["runs", "failed", "sessions"], &CHANGE_COLUMNS, &["evidence"]]);
    for (series, row) in commits(history) {
        let sessions: Vec<String> = row.sessions.iter().map(ToString::to_string).collect();
        let end = |at: usize| number(row.interval.map(|ends| ends[at]));
        let mut line = vec![
            row.sha.clone(),
            row.subject.clone(),
            series.cell.clone().unwrap_or_default(),
            history.metric.clone(),
            history.unit.clone().unwrap_or_default(),
            number(row.summary.as_ref().map(|summary| summary.median)),
            end(0),
            end(1),
            row.summary.as_ref().map_or(0, |summary| summary.samples).to_string(),
            row.failed.to_string(),
            sessions.join(" "),
        ];
        let change = series.change_at(row);
        line.extend(change.map(change_of_commit).unwrap_or_default());
        line.push(change.map_or("", |change| change.evidence.as_str()).to_owned());
        text += &csv_line(&line);
    }
    text
}

fn change_of_commit(change: &Change) -> [String; 7] {
    let end = |ends: Option<[f64; 2]>, at: usize, less: f64| number(ends.map(|e| e[at] - less));
    [
        number(change.ratio.map(|ratio| ratio - 1.0)),
        end(change.interval, 0, 1.0),
        end(change.interval, 1, 1.0),
        verdict_key(change.verdict),
        number(change.difference),
        end(change.difference_interval, 0, 0.0),
        end(change.difference_interval, 1, 0.0),
    ]
}

/// A metric over commits as a Markdown table, and its changes as sentences.
pub fn history_markdown(history: &CommitHistory) -> String {
    let CommitHistory { metric, .. } = history;
    let unit = history.unit.as_deref();
    let cells = history.series.iter().any(|series| series.cell.is_some());
    let mut head = vec!["commit"];
    head.extend(cells.then_some("with"));
    head.extend([metric.as_str(), "95 % interval", "runs", "failed", "change", "subject"]);
    let line = |(series, row): (&CommitSeries, &CommitRow)| {
        let mut line = vec![code(&row.sha[..row.sha.len().min(7)])];
        line.extend(cells.then(|| series.cell.as_deref().map_or_else(String::new, escaped)));
        let summary = row.summary.as_ref();
        line.push(summary.map_or_else(|| "-".to_owned(), |s| value_text(s.median, unit)));
        line.push(row.interval.map_or_else(String::new, |[low, high]| {
            format!("{} to {}", value_text(low, unit), value_text(high, unit))
        }));
        line.push(summary.map_or(0, |summary| summary.samples).to_string());
        line.push(row.failed.to_string());
        line.push(series.change_at(row).map_or_else(String::new, |change| {
            let mark = if change.is_sure() { "" } else { "?" };
            format!("{} {}{mark}", change.size(unit), change.word(metric, unit))
        }));
        line.push(escaped(&row.subject));
        line
    };
    let mut text = markdown_table(&head, commits(history).map(line));
    for change in history.series.iter().flat_map(|series| &series.changes) {
        text += &format!("\n{}\n", change.sentence(metric, unit));
    }
    text
}

fn point_verdict(verdict: PointVerdict) -> &'static str {
    match verdict {
        PointVerdict::Good => "good",
        PointVerdict::Bad => "bad",
        PointVerdict::Skip => "skip",
    }
}

/// The points of a search as CSV, one per line.
pub fn points_csv(answer: &BisectAnswer) -> String {
    let mut text = csv_head(&[&["axis", "point", "verdict", "samples", "answer", "confidence"]]);
    for JudgedPoint { point, verdict, samples } in &answer.steps {
        let part = answer.part(point).unwrap_or_default();
        text += &csv_line(&[
            answer.axis.clone(),
            point.clone(),
            point_verdict(*verdict).to_owned(),
            samples.to_string(),
            part.replace(' ', "_"),
            if part.is_empty() { String::new() } else { answer.confidence.to_string() },
        ]);
    }
    text
}

/// The points of a search as a Markdown table, below the answer.
pub fn points_markdown(answer: &BisectAnswer) -> String {
    let line = |JudgedPoint { point, verdict, samples }: &JudgedPoint| {
        vec![
            code(point),
            point_verdict(*verdict).to_owned(),
            samples.to_string(),
            answer.part(point).unwrap_or_default().to_owned(),
        ]
    };
    let head = [answer.axis.as_str(), "verdict", "samples", ""];
    format!("{}\n\n{}", answer.sentence, markdown_table(&head, answer.steps.iter().map(line)))
}

fn installed(version: &ListedVersion) -> String {
    version.installed.as_ref().map_or_else(String::new, |path| path.display().to_string())
}

/// Versions of browsers as CSV.
pub fn versions_csv(versions: &[ListedVersion]) -> String {
    let mut text = csv_head(&[&["version", "milestone", "available", "installed"]]);
    for version in versions {
        let ListedVersion { version: name, milestone, available, .. } = version;
        let line = [name.clone(), milestone.to_string(), available.to_string(), installed(version)];
        text += &csv_line(&line);
    }
    text
}

/// Versions of browsers as a Markdown table.
pub fn versions_markdown(versions: &[ListedVersion]) -> String {
    let line = |version: &ListedVersion| {
        let available = if version.available { "yes" } else { "no" };
        vec![
            version.version.clone(),
            version.milestone.to_string(),
            available.to_owned(),
            escaped(&installed(version)),
        ]
    };
    let head = ["version", "milestone", "available", "installed"];
    markdown_table(&head, versions.iter().map(line))
}
