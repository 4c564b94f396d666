//! `retake matrix history`: a metric over the commits of a branch, and where it changed.

use std::path::Path;

use retake_matrix::driver::{CommitChain, short_sha};
use retake_matrix::history::{Change, CommitHistory, CommitRow, CommitSeries};
use retake_matrix::stats::{Verdict, value_text};
use retake_types::Better;

use super::export_files::{Answer, Exports, Lines};
use super::open::{Common, Filters, View, percent};
use super::redacted_output::RedactedOutput;
use super::table;
use crate::term::{Cell, Column, Palette, Table, cut};
use crate::{Exit, Failure, term};

/// Show a metric over the commits of a branch, and where it changed
///
/// Uses every recorded run of the same command, setup, environment and other axes, whichever
/// configuration named the commit. A change is conclusive where commits before and after it were
/// measured alternately in one session; a change that appears only between sessions may come from the
/// machine, and is marked with a question mark.
#[derive(clap::Args)]
pub(super) struct Args {
    /// What to show: wall, cpu, rss, or what the command reports
    #[arg(long, value_name = "NAME", default_value = "wall")]
    metric: String,
    /// The branch, tag or commit whose history to show, along first parents
    #[arg(long = "ref", value_name = "BRANCH", default_value = "HEAD")]
    reference: String,
    /// Ignore changes up to this size
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    margin: f64,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    exports: Exports,
}

pub(super) fn history(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let files = args.exports.files(args.common.json)?;
    let (view, chain) = View::open_and(&args.common, &args.filters, store, |worker, project| {
        CommitChain::read(worker, project, &args.reference)
    })?;
    let commits = view.commits(&chain?, &args.filters)?;
    let history = view.history(&commits, &args.metric, args.margin);
    if history.series.iter().all(|series| series.commits.iter().all(|row| row.summary.is_none())) {
        let known = commits.1.metrics();
        // Name the record, which may be another one than expected.
        let record = view.store.as_ref().map(|store| format!(" in {}", store.path().display()));
        return Err(match known.contains(&args.metric) {
            true => Failure::Refused(format!(
                "no commit of {} has a result{}; `retake matrix run` measures those of code.refs",
                args.reference,
                record.unwrap_or_default()
            )),
            false => Failure::Usage(format!(
                "no run has reported {}; choose from {}",
                args.metric,
                known.join(", ")
            )),
        });
    }
    let shown = RedactedOutput::of(&view.project);
    let metrics = [commits.0.results(&commits.1, &history)];
    let lines = Lines::Commits(&history);
    files.write(&Answer { document: &history, metrics: &metrics, lines }, &shown)?;
    if args.common.json {
        shown.document(&history)?;
    }
    if args.common.json || files.has_stdout() {
        return Ok(Exit::OK);
    }
    shown.lines(&text(&history))?;
    for series in &history.series {
        for change in series.changes.iter().filter(|change| asks_for_more(change)) {
            let ends = (change.before.as_str(), change.commit.as_str());
            let text = search(&history, series, ends, change.verdict == Verdict::Faster);
            term::say(&shown.text(&text));
        }
        // Enough runs without a conclusive change are no reason to search.
        let few = series.too_few(history.fewest).is_some() && series.changes.is_empty();
        if let Some(gap) = series.open_gap().filter(|_| few) {
            let improved = gap.is_more == (history.better == Better::Higher);
            let ends = (gap.before.as_str(), gap.after.as_str());
            term::say(&shown.text(&search(&history, series, ends, improved)));
        }
    }
    Ok(Exit::OK)
}

fn text(history: &CommitHistory) -> String {
    let mut text = String::new();
    for series in &history.series {
        if series.commits.is_empty() {
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text += &one_series(history, series);
    }
    for session in history.sessions.iter().filter(|session| !session.differs.is_empty()) {
        let differs: Vec<String> =
            session.differs.iter().map(|(name, value)| format!("{name} {value}")).collect();
        text += &format!(
            "session {} ({:.0}) ran with another {}\n",
            session.number,
            session.started,
            differs.join(", ")
        );
    }
    text
}

fn one_series(history: &CommitHistory, series: &CommitSeries) -> String {
    let CommitHistory { metric, reference, looked_at, .. } = history;
    let unit = history.unit.as_deref();
    let measured = series.commits.len();
    let cell = series.cell.as_ref().map_or_else(String::new, |cell| format!(" with {cell}"));
    let mut text = format!(
        "{metric} on {reference}{cell}: {measured} of {}, {}\n{}\n\n",
        term::count(*looked_at as u64, "commit"),
        term::count(history.sessions.len() as u64, "session"),
        sparkline(&series.commits)
    );
    let any_failed = series.commits.iter().any(|row| row.failed > 0);
    let mut table = Table::new([
        Column::new("commit"),
        Column::new("median").right(),
        Column::new("95 % interval").right().spare(3),
        Column::new("runs").right().spare(2),
        Column::new("failed").right().spare(if any_failed { 0 } else { 4 }),
        Column::new("session").spare(1),
        Column::new("change"),
        Column::new("").spare(5),
        Column::new("subject"),
    ]);
    let medians = series.commits.iter().filter_map(|row| Some(row.summary.as_ref()?.median));
    let largest = medians.fold(0.0, f64::max);
    for row in &series.commits {
        table.row(line(row, series, unit, largest));
    }
    text += &table.render(term::width(), Palette::PLAIN);
    text.push('\n');
    for change in &series.changes {
        text += &format!("{}\n", change.sentence(metric, unit));
    }
    let no_interval = |row: &CommitRow| row.summary.is_some() && row.interval.is_none();
    if series.commits.iter().any(no_interval) {
        text += table::NO_INTERVAL;
    }
    if series.changes.is_empty() && measured > 1 {
        text += &match series.too_few(history.fewest) {
            Some(least) => format!(
                "not sure whether {metric} changed: {} of a commit are too few for a change point; \
                 {} more, as with `retake matrix run --iterations {}`\n",
                term::count(least as u64, "run"),
                history.fewest - least,
                history.fewest
            ),
            None => format!("no conclusive change of {metric}\n"),
        };
        if let Some(gap) = series.open_gap() {
            text += &format!(
                "{} between {} and {} {} not measured\n",
                term::count(gap.between as u64, "commit"),
                short_sha(&gap.before),
                short_sha(&gap.after),
                if gap.between == 1 { "was" } else { "were" }
            );
        }
    }
    if let Some(spread) = series.session_spread {
        text += &format!(
            "from session to session the same commit differs by about {:.1} %\n",
            100.0 * spread
        );
    } else if history.sessions.len() > 1 {
        text +=
            "no commit was measured in two sessions, so nothing says how much sessions differ\n";
    }
    text
}

const BAR: usize = 16;
const SUBJECT: usize = 40;

fn line(row: &CommitRow, series: &CommitSeries, unit: Option<&str>, largest: f64) -> Vec<Cell> {
    let mut line = vec![Cell::from(short_sha(&row.sha))];
    match &row.summary {
        Some(summary) => line.extend([
            value_text(summary.median, unit).into(),
            row.interval.map_or_else(String::new, |ends| table::span(ends, "to", unit)).into(),
            summary.samples.to_string().into(),
        ]),
        None => line.extend(["-", "", "0"].map(Cell::from)),
    }
    line.push(Cell::from(match row.failed {
        0 => String::new(),
        failed => failed.to_string(),
    }));
    line.push(numbers(&row.sessions).into());
    line.push(Cell::from(series.change_at(row).map_or_else(String::new, |change| {
        let mark = if change.is_sure() { "" } else { "?" };
        format!("{}{mark}", change.size(unit))
    })));
    let part = row.summary.as_ref().filter(|_| largest > 0.0).map(|s| s.median / largest);
    line.push(table::bar(part, BAR).into());
    line.push(cut(&row.subject, SUBJECT).into());
    line
}

/// Ranges of consecutive numbers: `1-3, 5`.
fn numbers(sessions: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &session in sessions {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == session => *last = session,
            _ => ranges.push((session, session)),
        }
    }
    let range = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

/// The medians as a line of eight heights. Differences below a tenth are not visible.
fn sparkline(commits: &[CommitRow]) -> String {
    let medians: Vec<Option<f64>> =
        commits.iter().map(|row| Some(row.summary.as_ref()?.median)).collect();
    let known = || medians.iter().flatten().copied();
    let (low, high) = known().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    let range = (high - low).max(0.1 * high.abs());
    let height = |median: &Option<f64>| match median {
        Some(median) if range > 0.0 => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
            [(((median - low) / range * 7.0).round() as usize).min(7)],
        Some(_) => '▁',
        None => '✗',
    };
    medians.iter().map(height).collect()
}

/// Whether measuring both sides, and the commits between them, in turn would tell more.
fn asks_for_more(change: &Change) -> bool {
    !change.is_sure() || change.between > 0
}

/// The command that measures both sides of a change, and the commits between them, in turn.
fn search(
    history: &CommitHistory,
    series: &CommitSeries,
    (before, after): (&str, &str),
    improved: bool,
) -> String {
    let (before, after) = (short_sha(before), short_sha(after));
    let (good, bad) = if improved { (after, before) } else { (before, after) };
    let cell: String = series
        .cell
        .iter()
        .flat_map(|cell| cell.split(' '))
        .map(|v| format!(" --axis {v}"))
        .collect();
    format!(
        "`retake matrix bisect --axis code --good {good} --bad {bad} --metric {}{cell}` measures \
         them in turn, and the commits between",
        history.metric
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_follow_each_other_are_a_range() {
        assert_eq!(numbers(&[1]), "1");
        assert_eq!(numbers(&[1, 2, 3, 5, 8, 9]), "1-3, 5, 8-9");
        assert_eq!(numbers(&[]), "");
    }
}
