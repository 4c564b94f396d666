//! The output of a running matrix, all on stderr: a permanent line per result, and on a terminal
//! one live line below them with progress and remaining time.

use crate::terminal;
use retake_types::text;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub struct Screen {
    live: bool,
    quiet: bool,
    drawn: Mutex<Drawn>,
}

struct Drawn {
    text: String,
    at: Option<Instant>,
}

impl Drawn {
    /// The text that replaces the live line by a permanent one. The live line is empty afterwards,
    /// so that the next one is drawn at once.
    fn replaced_by(&mut self, text: &str) -> String {
        let over = if self.text.is_empty() { "" } else { "\r\x1b[2K" };
        self.text.clear();
        format!("{over}{}\n", text::visible(text))
    }
}

/// Updates faster than this are unreadable.
const PAUSE: Duration = Duration::from_millis(60);

impl Screen {
    /// `quiet` shows only notices.
    pub fn new(quiet: bool) -> Self {
        let live = !quiet && std::io::stderr().is_terminal();
        Self { live, quiet, drawn: Mutex::new(Drawn { text: String::new(), at: None }) }
    }

    fn drawn(&self) -> std::sync::MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Prints a permanent line. The live line is outdated afterwards: its owner redraws it.
    pub fn line(&self, text: &str) {
        if self.quiet {
            return;
        }
        let mut drawn = self.drawn();
        let shown = drawn.replaced_by(text);
        // Nobody reads a closed stderr.
        _ = std::io::stderr().write_all(shown.as_bytes());
    }

    /// Prints a message that is shown even when quiet.
    pub fn notice(&self, text: &str) {
        let mut drawn = self.drawn();
        if !drawn.text.is_empty() {
            drawn.text.clear();
            _ = std::io::stderr().write_all(b"\r\x1b[2K");
        }
        terminal::say(text);
    }

    /// Draws a progress bar with text as the live line; the bar takes the remaining width.
    pub fn progress(&self, before: &str, done: u64, total: u64, after: &str) {
        if !self.live {
            return;
        }
        let taken = before.chars().count() + after.chars().count() + 3;
        match columns().saturating_sub(taken).min(WIDEST) {
            0..NARROWEST => self.live(&format!("{before}{after}")),
            width => self.live(&format!("{before}{} {after}", bar(done, total, width))),
        }
    }

    /// Replaces the live line.
    pub fn live(&self, text: &str) {
        if !self.live {
            return;
        }
        let mut drawn = self.drawn();
        if drawn.at.is_some_and(|at| at.elapsed() < PAUSE) && !drawn.text.is_empty() {
            return;
        }
        drawn.text = text::visible(text).chars().take(columns()).collect();
        drawn.at = Some(Instant::now());
        _ = write!(std::io::stderr(), "\r\x1b[2K{}", drawn.text);
    }

    /// Removes the live line.
    pub fn clear(&self) {
        let mut drawn = self.drawn();
        if !drawn.text.is_empty() {
            drawn.text.clear();
            _ = std::io::stderr().write_all(b"\r\x1b[2K");
        }
    }
}

/// The maximum length of a line: a terminal may wrap after the last column.
fn columns() -> usize {
    terminal::stderr_width().unwrap_or(80).saturating_sub(1)
}

/// Maximum length of a bar.
const WIDEST: usize = 30;
const NARROWEST: usize = 5;

/// `[######----]`
fn bar(done: u64, total: u64, width: usize) -> String {
    let part = if total == 0 { 1.0 } else { (done as f64 / total as f64).min(1.0) };
    let full = (part * width as f64) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(width - full))
}

/// The remaining time at the current pace.
pub fn time_left(elapsed: Duration, done: usize, total: usize) -> Option<Duration> {
    if done == 0 || total < done {
        return None;
    }
    let each = elapsed.as_secs_f64() / done as f64;
    Duration::try_from_secs_f64((each * (total - done) as f64).ceil()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permanent_line_clears_the_live_line() {
        let mut drawn = Drawn { text: "[##--] 1/2".to_owned(), at: Some(Instant::now()) };
        assert_eq!(drawn.replaced_by("one"), "\r\x1b[2Kone\n");
        assert_eq!(drawn.replaced_by("two"), "two\n");
    }

    #[test]
    fn bars_are_as_wide_as_asked_whatever_the_numbers() {
        assert_eq!(bar(1, 2, 10), "[#####-----]");
        assert_eq!(bar(9, 2, 4), "[####]");
        assert_eq!(bar(0, 0, 4), "[####]");
    }

    #[test]
    fn the_time_left_follows_the_pace() {
        let left = |done, total| time_left(Duration::from_secs(10), done, total);
        assert_eq!(left(5, 20), Some(Duration::from_secs(30)));
        assert_eq!(left(20, 20), Some(Duration::ZERO));
        assert_eq!((left(0, 20), left(3, 2)), (None, None));
    }
}
