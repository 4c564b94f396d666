//! Progress of a crash test on stderr: a live line on a terminal, and notices.

use std::time::Duration;

use retake_crash_driver::event::{CrashEvent, CrashObserver, ExplorationProgress};
use retake_runner::loop_driver::remote::RemoteStatus;
use retake_runner::screen::{Screen, time_left};

use crate::{term, words};

pub(super) struct ScreenObserver {
    screen: Screen,
}

impl ScreenObserver {
    pub(super) fn new() -> Self {
        Self { screen: Screen::new(false) }
    }
}

impl CrashObserver for ScreenObserver {
    fn event(&self, event: CrashEvent<'_>) {
        let screen = &self.screen;
        match event {
            CrashEvent::FindingStates { looked_at, points, elapsed } => {
                let text = finding_text(looked_at, points, elapsed);
                screen.progress("", looked_at, points, &text);
            }
            CrashEvent::Checking(progress) => {
                let text = progress_text("state", &progress, None);
                screen.progress("", progress.verified, progress.total, &text);
            }
            CrashEvent::Faulting(progress) => {
                let text = progress_text("fault", &progress, None);
                screen.progress("", progress.verified, progress.total, &text);
            }
            CrashEvent::CheckingRemotely { progress, finished_shares, shares, status } => {
                let text =
                    progress_text("state", &progress, Some((finished_shares, shares, status)));
                screen.progress("", progress.verified, progress.total, &text);
            }
            CrashEvent::Explaining { explained, states, elapsed } => {
                let text = explaining_text(explained, states, elapsed);
                screen.progress("", explained as u64, states as u64, &text);
            }
            CrashEvent::PhaseOver => screen.clear(),
            CrashEvent::TakenOver => {
                screen.notice("an earlier exploration was interrupted; its results are reused")
            }
            CrashEvent::LoopNotRecorded(error) => {
                screen.notice(&format!(
                    "this crash test is not recorded: {}",
                    words::store_error(error)
                ));
            }
            CrashEvent::RestNotRecorded(error) => {
                screen.notice(&format!("the rest is not recorded: {}", words::store_error(error)));
            }
            CrashEvent::RunNotRecorded(error) => {
                screen.notice(&format!("this run is not recorded: {}", words::store_error(error)));
            }
            CrashEvent::OutcomeNotRecorded(error) => {
                screen.notice(&format!(
                    "the outcome of this run is not recorded: {}",
                    words::store_error(error)
                ));
            }
        }
    }
}

/// Such as `3/9 states, 1/2 shares, 1 failing, 1 queued, 1 running on n1, 5s left`.
fn progress_text(
    noun: &str,
    progress: &ExplorationProgress,
    remote: Option<(usize, usize, &RemoteStatus)>,
) -> String {
    let ExplorationProgress { verified, total, failing, elapsed } = progress;
    let mut text = format!("{verified}/{}", term::count(*total, noun));
    if let Some((finished, shares, _)) = remote {
        text.push_str(&format!(", {finished}/{}", term::count(shares as u64, "share")));
    }
    if *failing > 0 {
        text.push_str(&format!(", {failing} failing"));
    }
    if let Some(status) = remote.and_then(|(_, _, status)| words::remote_status(status)) {
        text.push_str(&format!(", {status}"));
    }
    if let Some(left) = time_left(*elapsed, *verified as usize, *total as usize) {
        text.push_str(&format!(", {} left", term::duration(left)));
    }
    text
}

/// Such as `looking for states at point 3 of 9, 20s left`.
fn finding_text(looked_at: u64, points: u64, elapsed: Duration) -> String {
    let left = time_left(elapsed, looked_at as usize, points as usize);
    let left = left.map_or_else(String::new, |left| format!(", {} left", term::duration(left)));
    format!("looking for states at point {looked_at} of {points}{left}")
}

/// Such as `explaining failing state 3 of 9, 20s left`.
fn explaining_text(explained: usize, states: usize, elapsed: Duration) -> String {
    let left = time_left(elapsed, explained, states);
    let left = left.map_or_else(String::new, |left| format!(", {} left", term::duration(left)));
    format!("explaining failing state {} of {states}{left}", explained + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_leaves_out_unknown_values() {
        let elapsed = Duration::from_secs(10);
        let mut progress = ExplorationProgress { verified: 0, total: 9, failing: 0, elapsed };
        assert_eq!(progress_text("state", &progress, None), "0/9 states");
        progress = ExplorationProgress { verified: 3, failing: 1, ..progress };
        assert_eq!(progress_text("state", &progress, None), "3/9 states, 1 failing, 20s left");
        assert_eq!(finding_text(1, 3, elapsed), "looking for states at point 1 of 3, 20s left");
        assert_eq!(explaining_text(0, 4, elapsed), "explaining failing state 1 of 4");
        assert_eq!(explaining_text(2, 4, elapsed), "explaining failing state 3 of 4, 10s left");
        let status = RemoteStatus { queued: 1, running: 1, nodes: vec!["n1".to_owned()] };
        assert_eq!(
            progress_text("state", &progress, Some((1, 3, &status))),
            "3/9 states, 1/3 shares, 1 failing, 1 queued, 1 running on n1, 20s left"
        );
    }
}
