//! What `agent run` shows, at each level. The messages are the answer and go to stdout; the line
//! that tells how it goes is only for a terminal.

use retake_runner::terminal;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;

use crate::display::Level;

pub struct Screen {
    level: Level,
    /// Whether a live line may be drawn, and whether one stands there now.
    live: bool,
    drawn: Mutex<bool>,
}

impl Screen {
    pub fn new(level: Level) -> Self {
        let live = level == Level::Progress && std::io::stderr().is_terminal();
        Self { level, live, drawn: Mutex::new(false) }
    }

    pub fn is_verbose(&self) -> bool {
        self.level == Level::Verbose
    }

    /// A message of the loop.
    pub fn message(&self, text: &str) {
        if self.level >= Level::Progress {
            self.clear();
            // A reader that went away does not stop the loop: the log has it all.
            _ = terminal::data(format!("{text}\n").as_bytes());
        }
    }

    /// What the agent does, as it does it.
    pub fn detail(&self, text: &str) {
        if self.is_verbose() {
            _ = terminal::data(text.as_bytes());
        }
    }

    /// What must be seen at every level.
    pub fn trouble(&self, text: &str) {
        self.clear();
        terminal::say(text);
    }

    pub fn draws(&self) -> bool {
        self.live
    }

    /// Draws the live line over the last one.
    pub fn live(&self, text: &str) {
        if !self.live {
            return;
        }
        let width = terminal::width().unwrap_or(80).saturating_sub(1);
        let text: String = text.chars().take(width).collect();
        if let Ok(mut drawn) = self.drawn.lock() {
            _ = write!(std::io::stderr(), "\r\x1b[2K{text}");
            *drawn = true;
        }
    }

    /// Takes the live line away.
    pub fn clear(&self) {
        if let Ok(mut drawn) = self.drawn.lock()
            && std::mem::take(&mut *drawn)
        {
            _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
