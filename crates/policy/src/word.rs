//! A word of a command, as far as it is known before the command runs.
//!
//! What a shell, `xargs` or `find` fills in later is kept as a gap. Rules that deny ask
//! what the word could become, rules that allow what it is bound to be.

use std::ffi::{OsStr, OsString};

use super::glob;

#[derive(Clone, Debug)]
pub(super) struct Word {
    /// The word itself, or how it was written.
    text: OsString,
    /// Characters and gaps (`None`), for a word that is not known.
    shape: Option<Vec<Option<char>>>,
    /// What it surely begins with, if it is not known.
    lead: String,
    /// It may become no word, or many.
    several: bool,
    runs_when_evaluated: bool,
}

impl Word {
    pub(super) fn known(text: impl Into<OsString>) -> Self {
        Self {
            text: text.into(),
            shape: None,
            lead: String::new(),
            several: false,
            runs_when_evaluated: false,
        }
    }

    /// A word with gaps; `written` is for people.
    pub(super) fn unknown(written: &str, shape: Vec<Option<char>>, several: bool) -> Self {
        let lead = shape.iter().map_while(|piece| *piece).collect();
        Self { text: written.into(), shape: Some(shape), lead, several, runs_when_evaluated: false }
    }

    /// Any number of words, each of them anything.
    pub(super) fn anything(written: &str) -> Self {
        Self::unknown(written, vec![None], true)
    }

    pub(super) fn led_by(self, lead: String) -> Self {
        Self { lead, ..self }
    }

    pub(super) fn run_when_evaluated(self, runs_when_evaluated: bool) -> Self {
        Self { runs_when_evaluated, ..self }
    }

    /// Whether quoted text in it would be run if a shell evaluated it.
    pub(super) fn runs_when_evaluated(&self) -> bool {
        self.runs_when_evaluated
    }

    pub(super) fn is_several(&self) -> bool {
        self.several
    }

    /// The word, if it is known.
    pub(super) fn get(&self) -> Option<&OsStr> {
        self.shape.is_none().then_some(&self.text)
    }

    /// The word as text, if it is known.
    pub(super) fn text(&self) -> Option<String> {
        self.get().map(|text| text.to_string_lossy().into_owned())
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.get().is_some_and(|known| known == text)
    }

    /// The word, or how it was written.
    pub(super) fn written(&self) -> String {
        self.text.to_string_lossy().into_owned()
    }

    /// What the word surely begins with.
    pub(super) fn lead(&self) -> String {
        match &self.shape {
            None => self.written(),
            Some(_) => self.lead.clone(),
        }
    }

    /// The same word where `mark` is replaced by something unknown.
    pub(super) fn with_gaps(&self, mark: &str, several: bool) -> Self {
        let Some(text) = self.text().filter(|text| text.contains(mark)) else {
            return self.clone();
        };
        let mut shape = Vec::new();
        for (index, part) in text.split(mark).enumerate() {
            shape.extend((index > 0).then_some(None));
            shape.extend(part.chars().map(Some));
        }
        Self::unknown(&text, shape, several)
    }

    /// Whether the word could become one that matches.
    pub(super) fn could_be(&self, pattern: &str) -> bool {
        match &self.shape {
            None => glob::matches(pattern, &self.written()),
            Some(shape) => glob::overlaps(pattern, shape),
        }
    }

    /// Whether the word is bound to be one that matches.
    pub(super) fn must_be(&self, pattern: &str) -> bool {
        match &self.shape {
            None => glob::matches(pattern, &self.written()),
            Some(_) => !self.several && !pattern.is_empty() && pattern.chars().all(|c| c == '*'),
        }
    }
}

/// A command as one line for people; words that are not known yet stand as they were written.
pub(super) fn command_line(words: &[Word]) -> String {
    let one = |word: &Word| match word.text() {
        Some(text) => retake_engine::quote([text.as_str()]),
        None => word.written(),
    };
    words.iter().map(one).collect::<Vec<_>>().join(" ")
}
