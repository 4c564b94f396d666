//! What `agent run` shows, at each level. The messages are the answer and go to stdout; the line
//! that tells how it goes is only for a terminal.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;

use retake_agent::display::Level;

pub(crate) struct Screen {
    level: Level,
    /// Whether a live line may be drawn, and whether one stands there now.
    live: bool,
    drawn: Mutex<bool>,
}

impl Screen {
    pub(crate) fn new(level: Level) -> Self {
        let live = level == Level::Progress && std::io::stderr().is_terminal();
        Self { level, live, drawn: Mutex::new(false) }
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.level == Level::Verbose
    }

    /// A message of the loop.
    pub(crate) fn message(&self, text: &str) {
        if self.level >= Level::Progress {
            self.clear();
            // A reader that went away does not stop the loop: the log has it all.
            _ = crate::term::data(format!("{text}\n").as_bytes());
        }
    }

    /// What the agent does, as it does it.
    pub(crate) fn detail(&self, text: &str) {
        if self.is_verbose() {
            _ = crate::term::data(text.as_bytes());
        }
    }

    /// What must be seen at every level.
    pub(crate) fn trouble(&self, text: &str) {
        self.clear();
        crate::term::say(text);
    }

    pub(crate) fn draws(&self) -> bool {
        self.live
    }

    /// Draws the live line over the last one.
    pub(crate) fn live(&self, text: &str) {
        if !self.live {
            return;
        }
        let width = crate::term::width().unwrap_or(80).saturating_sub(1);
        let text: String = text.chars().take(width).collect();
        if let Ok(mut drawn) = self.drawn.lock() {
            _ = write!(std::io::stderr(), "\r\x1b[2K{text}");
            *drawn = true;
        }
    }

    /// Takes the live line away.
    pub(crate) fn clear(&self) {
        if let Ok(mut drawn) = self.drawn.lock()
            && std::mem::take(&mut *drawn)
        {
            _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
