//! Badges: a state as a symbol and a word, so that colour is never the only carrier of meaning.

use retake_runner::colour::Shade;
use retake_runner::html::Html;
use retake_runner::run_text;
use retake_store::LoopRuns;
use retake_types::loop_record::agent::IterationStatus;
use retake_types::{Run, State, StopReason, TestStatus};

use crate::loops::LoopStatus;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Good,
    Bad,
    Running,
    /// Neither good nor bad.
    Open,
}

impl Mark {
    fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Running => "live",
            Self::Open => "open",
        }
    }

    fn symbol(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Bad => "✗",
            Self::Running => "●",
            Self::Open => "◌",
        }
    }
}

fn badge(html: &mut Html, mark: Mark, word: &str) {
    html.markup("<span class=\"badge ").markup(mark.class());
    html.markup("\"><span aria-hidden=\"true\">").markup(mark.symbol());
    html.markup("</span> ").text(word).markup("</span>");
}

pub(super) fn run_badge(html: &mut Html, run: &Run) {
    let (word, shade) = run_text::outcome(run);
    let mark = match shade {
        _ if run.outcome.is_none() && run.state == State::Running => Mark::Running,
        Shade::Good => Mark::Good,
        Shade::Bad => Mark::Bad,
        _ => Mark::Open,
    };
    badge(html, mark, &word);
}

/// The results of a loop's runs.
pub(super) fn loop_runs_badge(html: &mut Html, runs: &LoopRuns) {
    let running = runs.newest.state == State::Running;
    match (running, runs.failed) {
        (true, _) => badge(html, Mark::Running, "running"),
        (false, 0) if runs.unfinished == 0 => badge(html, Mark::Good, "ok"),
        (false, 0) => badge(html, Mark::Open, "interrupted"),
        (false, failed) => badge(html, Mark::Bad, &format!("{failed} failed")),
    }
}

pub(super) fn loop_badge(html: &mut Html, status: &LoopStatus) {
    let (mark, word) = match status {
        LoopStatus::Ended(reason) => {
            let mark = match reason {
                StopReason::Completed | StopReason::Clean => Mark::Good,
                StopReason::Failed
                | StopReason::VerifyFailed
                | StopReason::Findings
                | StopReason::CouldNotTest => Mark::Bad,
                _ => Mark::Open,
            };
            (mark, reason.as_str())
        }
        LoopStatus::AgentsFailed(failures) => (Mark::Bad, failures.as_str()),
        LoopStatus::Paused => (Mark::Open, "paused"),
        LoopStatus::Running => (Mark::Running, "running"),
        LoopStatus::RunnerDied => (Mark::Bad, "its retake process died"),
    };
    badge(html, mark, &words(word));
}

/// The state of one agent of a fleet.
pub(super) fn agent_badge(html: &mut Html, state: &str) {
    let mark = match state {
        "merged" => Mark::Good,
        "conflict" | "verify_failed" | "agent_failed" | "interrupted" => Mark::Bad,
        "running" | "merging" => Mark::Running,
        _ => Mark::Open,
    };
    badge(html, mark, &words(state));
}

pub(super) fn iteration_badge(html: &mut Html, status: IterationStatus) {
    let mark = match status {
        IterationStatus::Completed => Mark::Good,
        IterationStatus::Failed | IterationStatus::TimedOut => Mark::Bad,
        status if !status.is_final() => Mark::Running,
        _ => Mark::Open,
    };
    badge(html, mark, &words(status.as_str()));
}

/// The result of a test, as a word.
pub(super) fn test_word(status: TestStatus) -> &'static str {
    match status {
        TestStatus::Passed => "passed",
        TestStatus::Failed => "failed",
        TestStatus::Skipped => "skipped",
        TestStatus::Error => "error",
    }
}

pub(super) fn test_badge(html: &mut Html, status: TestStatus) {
    let mark = match status {
        TestStatus::Passed => Mark::Good,
        TestStatus::Failed | TestStatus::Error => Mark::Bad,
        TestStatus::Skipped => Mark::Open,
    };
    badge(html, mark, test_word(status));
}

/// An identifier as words.
fn words(identifier: &str) -> String {
    identifier.replace('_', " ")
}
