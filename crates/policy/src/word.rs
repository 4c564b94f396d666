//! A word of a command, as far as it is known before the command runs.
//!
//! Text that a shell, `xargs` or `find` fills in later is a gap. Rules that deny ask
//! what the word could become, rules that allow what it must become.

use std::ffi::{OsStr, OsString};

use super::glob;

/// How `<(…)` and `>(…)` are written in words.
pub(super) const PROCESS_SUBSTITUTION: &str = "<(...)";

#[derive(Clone, Debug)]
pub(super) struct Word {
    /// The word itself, or its original form.
    text: OsString,
    /// Characters and gaps (`None`) of an unknown word.
    shape: Option<Vec<Option<char>>>,
    /// The certain beginning of an unknown word.
    lead: String,
    /// It may expand to no word, or to many.
    several: bool,
    runs_when_evaluated: bool,
    /// Its parts, if it contains variables.
    pieces: Option<Box<Pieces>>,
    /// Whatever it becomes, it does not begin with a dash.
    is_operand: bool,
}

/// A word as a shell parses it.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    pub(super) pieces: Vec<Piece>,
    /// Patterns in it may expand to any number of words.
    pub(super) several: bool,
    /// Brackets or braces in it change it to other words.
    pub(super) rewritten: bool,
}

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Char(char),
    /// `split`: the result is split into words.
    Gap {
        split: bool,
    },
    Variable {
        name: String,
        split: bool,
    },
}

impl Pieces {
    /// The same pieces with the values of variables, without splitting.
    fn filled_in(&self, value: &dyn Fn(&str) -> Option<Value>) -> Vec<Piece> {
        let mut filled = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Char(_) => filled.push(piece.clone()),
                Piece::Gap { .. } => filled.push(Piece::Gap { split: false }),
                Piece::Variable { name, .. } => {
                    filled.extend(value(name).unwrap_or_else(|| vec![Piece::Gap { split: false }]));
                }
            }
        }
        filled
    }

    /// The pieces of each word that these expand to. A variable with an unknown value is kept if it
    /// is inherited, and becomes a gap if `is_set` says that the line sets it.
    fn split(
        &self,
        value: &dyn Fn(&str) -> Option<Value>,
        is_set: &dyn Fn(&str) -> bool,
    ) -> Vec<Vec<Piece>> {
        let mut words = vec![Vec::new()];
        for piece in &self.pieces {
            let last = words.last_mut().expect("one word at least");
            let Piece::Variable { name, split } = piece else {
                last.push(piece.clone());
                continue;
            };
            match value(name) {
                Some(value) if !split => last.extend(value),
                Some(value) => match known_value(&value).filter(|value| splits_plainly(value)) {
                    Some(value) => {
                        let mut parts = value.split_whitespace().map(known_pieces);
                        last.extend(parts.next().unwrap_or_default());
                        words.extend(parts);
                    }
                    None => last.push(Piece::Gap { split: true }),
                },
                None if is_set(name) => last.push(Piece::Gap { split: *split }),
                None => last.push(piece.clone()),
            }
        }
        words
    }

    /// The word made of these pieces; `written` is for people.
    pub(super) fn word(self, written: &str) -> Word {
        let shape = |piece: &Piece| match piece {
            Piece::Char(c) => Some(*c),
            Piece::Gap { .. } | Piece::Variable { .. } => None,
        };
        let mut shape: Vec<Option<char>> = self.pieces.iter().map(shape).collect();
        let lead = shape.iter().map_while(|piece| piece.filter(|c| !"[{".contains(*c)));
        let lead: String = lead.collect();
        let is_split = |piece: &Piece| {
            matches!(piece, Piece::Gap { split: true } | Piece::Variable { split: true, .. })
        };
        let mut several = self.several;
        if self.rewritten || self.pieces.iter().any(is_split) {
            shape = vec![None];
            several = true;
        }
        match shape.iter().copied().collect::<Option<String>>() {
            Some(text) => Word::known(text),
            None => {
                let word = Word::unknown(written, shape, several).led_by(lead);
                Word { pieces: Some(Box::new(self)), ..word }
            }
        }
    }
}

/// The value of a variable.
pub(super) type Value = Vec<Piece>;

/// The text of a known value.
pub(super) fn known_value(value: &[Piece]) -> Option<String> {
    let known = |piece: &Piece| match piece {
        Piece::Char(c) => Some(*c),
        Piece::Gap { .. } | Piece::Variable { .. } => None,
    };
    value.iter().map(known).collect()
}

/// The value of a known text.
pub(super) fn known_pieces(text: &str) -> Value {
    text.chars().map(Piece::Char).collect()
}

/// A word that word splitting and pattern expansion do not change.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.chars().all(|c| c.is_alphanumeric() || "-_./=:,@%+".contains(c))
}

/// A value that a shell only splits into words. One that begins or ends with a blank
/// also separates itself from the word before or after it.
fn splits_plainly(value: &str) -> bool {
    !value.is_empty() && value.trim() == value && value.split_whitespace().all(is_plain)
}

/// Whether text would run something if a shell evaluated it.
pub(super) fn runs_commands(text: &str) -> bool {
    ["`", "$(", "${"].iter().any(|start| text.contains(start))
}

/// The same for a value, as far as it is known.
pub(super) fn value_runs_commands(value: &[Piece]) -> bool {
    let text: String = value
        .iter()
        .map(|piece| match piece {
            Piece::Char(c) => *c,
            Piece::Gap { .. } | Piece::Variable { .. } => ' ',
        })
        .collect();
    runs_commands(&text)
}

impl Word {
    pub(super) fn known(text: impl Into<OsString>) -> Self {
        Self {
            text: text.into(),
            shape: None,
            lead: String::new(),
            several: false,
            runs_when_evaluated: false,
            pieces: None,
            is_operand: false,
        }
    }

    /// A word with gaps; `written` is for people.
    pub(super) fn unknown(written: &str, shape: Vec<Option<char>>, several: bool) -> Self {
        let lead = shape.iter().map_while(|piece| *piece).collect();
        Self { text: written.into(), shape: Some(shape), lead, several, ..Self::known("") }
    }

    /// Any number of arbitrary words.
    pub(super) fn anything(written: &str) -> Self {
        Self::unknown(written, vec![None], true)
    }

    pub(super) fn led_by(self, lead: String) -> Self {
        Self { lead, ..self }
    }

    pub(super) fn run_when_evaluated(self, runs_when_evaluated: bool) -> Self {
        Self { runs_when_evaluated, ..self }
    }

    /// The same word, which certainly does not begin with a dash.
    pub(super) fn into_operand(self) -> Self {
        Self { is_operand: true, ..self }
    }

    /// Whether quoted text in it would run if a shell evaluated it.
    pub(super) fn runs_when_evaluated(&self) -> bool {
        self.runs_when_evaluated
    }

    pub(super) fn is_several(&self) -> bool {
        self.several
    }

    /// The variables in it whose values are not filled in.
    pub(super) fn variables(&self) -> impl Iterator<Item = &str> {
        let pieces = self.pieces.iter().flat_map(|pieces| &pieces.pieces);
        pieces.filter_map(|piece| match piece {
            Piece::Variable { name, .. } => Some(name.as_str()),
            Piece::Char(_) | Piece::Gap { .. } => None,
        })
    }

    /// The words that this one expands to with these values of variables; `is_set` names the variables that
    /// the line sets.
    pub(super) fn filled_in(
        &self,
        value: &dyn Fn(&str) -> Option<Value>,
        is_set: &dyn Fn(&str) -> bool,
    ) -> Vec<Self> {
        let Some(pieces) = &self.pieces else { return vec![self.clone()] };
        let runs = self.runs_when_evaluated || value_runs_commands(&pieces.filled_in(value));
        let word = |filled| {
            let filled = Pieces { pieces: filled, ..**pieces };
            filled.word(&self.written()).run_when_evaluated(runs)
        };
        pieces.split(value, is_set).into_iter().map(word).collect()
    }

    /// Whether it may expand to no word or many, apart from the values of inherited variables.
    pub(super) fn is_split_here(&self) -> bool {
        let is_inherited = |pieces: &Pieces| {
            !pieces.several
                && !pieces.rewritten
                && !pieces.pieces.iter().any(|piece| matches!(piece, Piece::Gap { split: true }))
        };
        self.several && !self.pieces.as_deref().is_some_and(is_inherited)
    }

    /// The value of a variable that is assigned this word, which is neither split nor expanded.
    pub(super) fn assigned(&self, value: &dyn Fn(&str) -> Option<Value>) -> Option<Value> {
        match (&self.pieces, self.text()) {
            (_, Some(text)) => Some(known_pieces(&text)),
            (Some(pieces), None) if !pieces.rewritten => Some(pieces.filled_in(value)),
            _ => None,
        }
    }

    /// The rest of a word after its first characters, which are known.
    pub(super) fn after(&self, characters: usize) -> Self {
        match &self.pieces {
            Some(pieces) if pieces.pieces.len() > characters => {
                let rest = Pieces { pieces: pieces.pieces[characters..].to_vec(), ..**pieces };
                rest.word(&self.written())
            }
            _ => Self::anything(&self.written()),
        }
    }

    /// The value of a loop's variable for this word.
    pub(super) fn looped_over(&self) -> Option<Value> {
        let pieces = match (&self.pieces, self.text()) {
            (_, Some(text)) => return Some(known_pieces(&text)),
            (Some(pieces), None) if !pieces.rewritten => &pieces.pieces,
            _ => return None,
        };
        let is_one = |piece: &Piece| matches!(piece, Piece::Char(_) | Piece::Gap { split: false });
        pieces.iter().all(is_one).then(|| pieces.clone())
    }

    /// The word, if it is known.
    pub(super) fn get(&self) -> Option<&OsStr> {
        self.shape.is_none().then_some(&self.text)
    }

    /// The word as text, if it is known.
    pub(super) fn text(&self) -> Option<String> {
        self.get().map(|text| text.to_string_lossy().into_owned())
    }

    /// The word with a character that no text contains in place of each gap.
    pub(super) fn text_with_gaps(&self) -> String {
        match &self.shape {
            None => self.written(),
            Some(shape) => shape.iter().map(|c| c.unwrap_or('\0')).collect(),
        }
    }

    /// The word with empty gaps.
    pub(super) fn text_without_gaps(&self) -> String {
        match &self.shape {
            None => self.written(),
            Some(_) => match &self.pieces {
                Some(pieces) => pieces
                    .pieces
                    .iter()
                    .filter_map(|piece| match piece {
                        Piece::Char(c) => Some(*c),
                        Piece::Gap { .. } | Piece::Variable { .. } => None,
                    })
                    .collect(),
                None => self.text_with_gaps().replace('\0', ""),
            },
        }
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.get().is_some_and(|known| known == text)
    }

    /// The word, or its original form.
    pub(super) fn written(&self) -> String {
        self.text.to_string_lossy().into_owned()
    }

    /// Whether it is unknown, and without its gaps would be the name of a program, of a
    /// subcommand or of an option.
    pub(super) fn may_be_a_name(&self) -> bool {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '=');
        self.get().is_none() && {
            let text = self.text_without_gaps();
            text.len() > 1 && text.chars().all(is_part)
        }
    }

    /// Whether it names the output or input of another command.
    pub(super) fn is_process_substitution(&self) -> bool {
        self.get().is_none() && self.text == PROCESS_SUBSTITUTION
    }

    /// The certain beginning of the word.
    pub(super) fn lead(&self) -> String {
        match &self.shape {
            None => self.written(),
            Some(_) => self.lead.clone(),
        }
    }

    /// Whether its only unknown parts are values of variables.
    pub(super) fn is_of_variables(&self) -> bool {
        let is_known = |piece: &Piece| !matches!(piece, Piece::Gap { .. });
        self.pieces.as_ref().is_some_and(|pieces| pieces.pieces.iter().all(is_known))
    }

    /// The file name after variables that only precede its directories: `python` in
    /// `"$VENV"/bin/python`, empty if variables are the whole word. `None` for any other word:
    /// an empty variable in the middle of a name does not change it.
    pub(super) fn name_after_variables(&self) -> Option<String> {
        let shape = self.shape.as_ref()?;
        let is_slash = |at: usize| shape.get(at).is_none_or(|c| matches!(c, None | Some('/')));
        let is_apart = |at: usize| is_slash(at + 1) && (at == 0 || is_slash(at - 1));
        let mut gaps = (0..shape.len()).filter(|at| shape[*at].is_none());
        if !shape.first()?.is_none() || !gaps.all(is_apart) {
            return None;
        }
        let name = shape.rsplit(|c| *c == Some('/')).next().unwrap_or_default();
        match name.iter().all(Option::is_none) {
            true => Some(String::new()),
            false => name.iter().copied().collect(),
        }
    }

    /// The same word with `mark` replaced by a gap.
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

    /// Whether the word could become an option, if these are the letters of all options.
    pub(super) fn could_be_option(&self) -> bool {
        match &self.shape {
            None => self.written().starts_with('-'),
            Some(_) if self.is_operand => false,
            Some(shape) => {
                let begins = matches!(shape.first(), None | Some(None | Some('-')));
                begins && shape.iter().flatten().all(|c| c.is_ascii_alphanumeric() || *c == '-')
            }
        }
    }

    /// Whether the word could become one that matches.
    pub(super) fn could_be(&self, pattern: &str) -> bool {
        match &self.shape {
            None => glob::matches(pattern, &self.written()),
            Some(shape) => glob::overlaps(pattern, shape),
        }
    }

    /// Whether the word certainly becomes one that matches.
    pub(super) fn must_be(&self, pattern: &str) -> bool {
        match &self.shape {
            None => glob::matches(pattern, &self.written()),
            Some(_) => !self.several && !pattern.is_empty() && pattern.chars().all(|c| c == '*'),
        }
    }
}

/// A command as one line for people; unknown words are in their original form.
pub(super) fn command_line(words: &[Word]) -> String {
    let one = |word: &Word| match word.text() {
        Some(text) => retake_engine::quote([text.as_str()]),
        None => word.written(),
    };
    words.iter().map(one).collect::<Vec<_>>().join(" ")
}
