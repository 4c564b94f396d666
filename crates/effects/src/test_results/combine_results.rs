//! Combines the results of recognisers with the report files.
//!
//! - A lone line that looks like a summary is dropped if there is anything more reliable.
//! - A report and the text of the same run are merged: the report's counts are used unless the
//!   text counts more tests, since a report may cover only a part.
//! - Repeated reports count once.
//! - Results of several frameworks are summed under the name `mixed`.
//! - The exit code is considered: a run that failed without a failed test has a problem, one that
//!   succeeded with a failed test gets a lower confidence.

use std::collections::HashSet;

use super::framework_results::{FrameworkResults, add_problem};
use super::limits::MAX_RUNNING;
use super::reports::TestReport;
use retake_types::{Confidence, CountedUnit, Framework, ResultsSource, TestResults};

pub(super) fn combine_results(
    mut text: Vec<FrameworkResults>,
    reports: Vec<TestReport>,
    exit: Option<i32>,
) -> Option<TestResults> {
    let reported = by_framework(without_repetitions(reports));
    keep_the_best(&mut text, !reported.is_empty());
    let mut all = text;
    for report in reported {
        match all.iter_mut().find(|found| same_run(found, &report)) {
            Some(found) => merge_report(found, report),
            None => all.push(report),
        }
    }
    drop_empty(&mut all);
    let mut sum = all.into_iter().reduce(add)?;
    check_exit_code(&mut sum, exit);
    Some(sum.into_results())
}

/// Keeps at most one unreliable candidate, and none next to better ones.
fn keep_the_best(text: &mut Vec<FrameworkResults>, reported: bool) {
    let best = text.iter().map(|found| found.confidence).max();
    if best > Some(Confidence::Low) || reported {
        text.retain(|found| found.confidence > Confidence::Low);
    } else {
        // Output of a test comes before the final output of its tool.
        let order = |found: &FrameworkResults| (found.summary_at, found.counts.total());
        let last = (0..text.len()).max_by_key(|at| order(&text[*at]));
        *text = last.map(|at| text.swap_remove(at)).into_iter().collect();
    }
}

/// Drops candidates without tests if there are others; their problems are kept.
fn drop_empty(all: &mut Vec<FrameworkResults>) {
    let some = all.iter().any(|found| found.counts.total() > 0);
    // Without any test, keeps the candidate with the most problems.
    let keep = if some { None } else { all.iter().map(|found| found.problems.len()).max() };
    let mut problems = Vec::new();
    let mut kept = false;
    all.retain_mut(|found| {
        let stays = match keep {
            None => found.counts.total() > 0,
            Some(most) => found.problems.len() == most && !std::mem::replace(&mut kept, true),
        };
        if !stays {
            problems.append(&mut found.problems);
        }
        stays
    });
    if let Some(first) = all.first_mut() {
        problems.iter().for_each(|problem| add_problem(&mut first.problems, problem));
    }
}

fn names(found: &FrameworkResults) -> HashSet<&str> {
    found.details.list.iter().map(|detail| detail.name.as_str()).collect()
}

fn without_repetitions(mut reports: Vec<TestReport>) -> Vec<FrameworkResults> {
    reports.sort_by_key(|report| std::cmp::Reverse(report.found.counts.total()));
    let mut kept: Vec<FrameworkResults> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    for TestReport { found, .. } in reports {
        let new = names(&found).iter().any(|name| !known.contains(*name));
        if new || found.details.list.is_empty() {
            known.extend(found.details.list.iter().map(|detail| detail.name.clone()));
            kept.push(found);
        }
    }
    kept
}

fn by_framework(reports: Vec<FrameworkResults>) -> Vec<FrameworkResults> {
    let mut sums: Vec<FrameworkResults> = Vec::new();
    for report in reports {
        match sums.iter().position(|sum| sum.framework == report.framework) {
            Some(index) => {
                let sum = sums.swap_remove(index);
                sums.push(add(sum, report));
            }
            None => sums.push(report),
        }
    }
    sums.sort_by_key(|sum| sum.framework);
    sums
}

/// Whether the text and the report describe the same tests.
fn same_run(text: &FrameworkResults, report: &FrameworkResults) -> bool {
    if text.source == ResultsSource::Report {
        return false;
    }
    if text.framework == report.framework {
        return true;
    }
    // A report by an unknown tool, or text in a protocol that many tools use.
    let anonymous = report.framework == Framework::Junit || text.framework == Framework::Tap;
    let alike = text.counts == report.counts || text.details.list.is_empty();
    anonymous && (alike || !names(text).is_disjoint(&names(report)))
}

fn merge_report(text: &mut FrameworkResults, report: FrameworkResults) {
    let shared = !names(text).is_disjoint(&names(&report));
    report.problems.iter().for_each(|problem| add_problem(&mut text.problems, problem));
    if report.counts.total() >= text.counts.total() {
        text.counts = report.counts;
        text.details = report.details;
        text.source = ResultsSource::Report;
        text.cut = false;
        text.confidence = Confidence::High;
        text.unit = CountedUnit::Tests;
        return;
    }
    if !shared {
        // With different names the same tests would be listed twice.
        if report.details.list.len() > text.details.list.len() {
            text.details = report.details;
        }
        return;
    }
    for detail in report.details.list {
        let name = detail.name.as_bytes();
        match text.details.get(name) {
            Some(known) => {
                known.duration_ms = detail.duration_ms.or(known.duration_ms);
                known.error = detail.error.or(known.error.take());
            }
            None => {
                text.details.push(name, detail.status, detail.duration_ms);
                if let Some(error) = &detail.error {
                    text.details.explain(name, error.as_bytes());
                }
            }
        }
    }
}

/// Adds results, as if one run had produced both.
pub(super) fn add(mut sum: FrameworkResults, other: FrameworkResults) -> FrameworkResults {
    sum.counts += other.counts;
    sum.details.append(other.details);
    other.problems.iter().for_each(|problem| add_problem(&mut sum.problems, problem));
    sum.partial |= other.partial;
    sum.cut |= other.cut;
    sum.running.extend(other.running);
    sum.running.truncate(MAX_RUNNING);
    sum.confidence = sum.confidence.min(other.confidence);
    if sum.framework != other.framework {
        sum.framework = Framework::Mixed;
    }
    if sum.source != other.source {
        sum.source = ResultsSource::Both;
    }
    if other.unit == CountedUnit::Packages {
        sum.unit = CountedUnit::Packages;
    }
    sum
}

fn check_exit_code(sum: &mut FrameworkResults, exit: Option<i32>) {
    match exit {
        None => sum.partial = true,
        Some(0) if sum.counts.failed > 0 => {
            // As in a pipe, which returns the exit code of its last program.
            sum.confidence = match sum.confidence {
                Confidence::High => Confidence::Medium,
                Confidence::Medium | Confidence::Low => Confidence::Low,
            };
        }
        Some(code)
            if code != 0
                && sum.counts.failed == 0
                && sum.problems.is_empty()
                && !sum.partial
                && !sum.cut =>
        {
            add_problem(&mut sum.problems, format!("exit code {code}, although no test failed"));
        }
        Some(_) => {}
    }
}
