//! A run's effects, for people.

use std::fmt::Write as _;
use std::time::Duration;

use retake_types::{Effects, LineChange, Observations, ProgressReason, TestResults};

use crate::term;
use crate::term::{Palette, Shade, visible};

/// How many files, and how many failed tests, are listed.
const LISTED: usize = 20;

/// Lines about the effects in an outcome; empty for a run whose effects were not observed, or were
/// recorded by a later version in an unknown format.
pub(super) fn lines(effects: Option<&Effects>, palette: Palette) -> String {
    let Some(effects) = effects.and_then(Effects::observations) else { return String::new() };
    let mut text = String::new();
    if effects.files_tracked {
        files(effects, &mut text);
    }
    if let Some(results) = &effects.test_results {
        tests(results, palette, &mut text);
    }
    let reasons: Vec<&str> = effects.progress.reasons.iter().map(|reason| word(*reason)).collect();
    if !reasons.is_empty() && effects.progress.reasons != [ProgressReason::None] {
        _ = writeln!(text, "{:<12}{}", "progress", reasons.join(", "));
    }
    if let Some(summary) = &effects.summary {
        for (at, line) in summary.lines().enumerate() {
            let name = if at == 0 { "summary" } else { "" };
            _ = writeln!(text, "{name:<12}{}", visible(line));
        }
    }
    text
}

fn files(effects: &Observations, text: &mut String) {
    let lists = [
        ("+", &effects.files_created),
        ("~", &effects.files_modified),
        ("-", &effects.files_deleted),
        ("?", &effects.files_unreadable),
    ];
    let count = |path: &str| {
        let LineChange { added, removed } = effects.line_changes.get(path)?;
        Some(format!("  +{added} -{removed}"))
    };
    let mut all: Vec<String> = Vec::new();
    for (mark, paths) in lists {
        all.extend(
            paths
                .iter()
                .map(|path| format!("{mark} {}{}", visible(path), count(path).unwrap_or_default())),
        );
    }
    all.extend(
        effects
            .files_renamed
            .iter()
            .map(|pair| format!("> {} -> {}", visible(&pair.from), visible(&pair.to))),
    );
    if all.is_empty() {
        _ = writeln!(text, "{:<12}none changed", "files");
    }
    for (at, line) in all.iter().take(LISTED).enumerate() {
        _ = writeln!(text, "{:<12}{line}", if at == 0 { "files" } else { "" });
    }
    if all.len() > LISTED {
        _ = writeln!(text, "{:<12}and {} more", "", all.len() - LISTED);
    }
}

fn tests(results: &TestResults, palette: Palette, text: &mut String) {
    let shade = if results.all_passed() { Shade::Good } else { Shade::Bad };
    // Unknown is not 0.
    let counts = match results.partial && results.total == 0 {
        true => "not counted: the run ended before the summary; -v often names tests as they end"
            .to_owned(),
        false => format!(
            "{} passed, {} failed, {} skipped",
            results.passed, results.failed, results.skipped
        ),
    };
    let partial = if results.partial { ", cut short" } else { "" };
    _ = writeln!(
        text,
        "{:<12}{} ({}{partial})",
        "tests",
        palette.paint(shade, &counts),
        results.framework.as_str()
    );
    for problem in &results.problems {
        _ = writeln!(text, "{:<12}{}", "", visible(problem));
    }
    for test in &results.running {
        _ = writeln!(text, "{:<12}> {} was running", "", visible(test));
    }
    for test in results.failing().take(LISTED) {
        let took = test.duration_ms.map_or_else(String::new, |ms| {
            format!(" {}", term::duration(Duration::from_millis(ms)))
        });
        _ = writeln!(
            text,
            "{:<12}{} {}{took}",
            "",
            palette.paint(Shade::Bad, "x"),
            visible(&test.name)
        );
        if let Some(line) = test.headline() {
            _ = writeln!(text, "{:<12}  {}", "", visible(line));
        }
    }
    let rest = results.failing().count().saturating_sub(LISTED);
    if rest > 0 {
        _ = writeln!(text, "{:<12}and {rest} more", "");
    }
}

fn word(reason: ProgressReason) -> &'static str {
    match reason {
        ProgressReason::FilesChanged => "files changed",
        ProgressReason::TestsNewlyPassing => "tests newly passing",
        ProgressReason::TestsNewlyFailing => "tests newly failing",
        ProgressReason::TestsFlaky => "tests flaky",
        ProgressReason::None => "none",
        ProgressReason::Other => "other",
    }
}
