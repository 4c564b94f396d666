//! Colours: only on a terminal, and only on words with the same meaning.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

/// The meaning of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shade {
    Good,
    Bad,
    /// Not over, or not finished as planned.
    Open,
    /// Highlighted, such as a match.
    Match,
    Heading,
}

static OFF: AtomicBool = AtomicBool::new(false);

/// Whether colours are on.
#[derive(Clone, Copy, Debug)]
pub struct Palette {
    on: bool,
}

impl Palette {
    /// Without colours.
    pub const PLAIN: Self = Self { on: false };

    /// Turns colours off for the rest of this program.
    pub fn turn_off() {
        OFF.store(true, Ordering::Relaxed);
    }

    pub fn of_stdout() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let off = OFF.load(Ordering::Relaxed) || set("NO_COLOR") || dumb;
        Self { on: std::io::stdout().is_terminal() && !off }
    }

    pub fn is_on(self) -> bool {
        self.on
    }

    pub fn paint(self, shade: Shade, text: &str) -> String {
        if !self.on || text.is_empty() {
            return text.to_owned();
        }
        let code = match shade {
            Shade::Good => "32",
            Shade::Bad => "31",
            Shade::Open => "33",
            Shade::Match => "1;33",
            Shade::Heading => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_surrounds_the_words_and_can_be_off() {
        assert_eq!(Palette { on: true }.paint(Shade::Bad, "exit 1"), "\x1b[31mexit 1\x1b[0m");
        assert_eq!(Palette::PLAIN.paint(Shade::Bad, "exit 1"), "exit 1");
    }
}
