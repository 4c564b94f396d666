//! Words, quotes, redirections and here-documents.

use super::{Document, Item, Read, Reader, is_name, unexpected};
use crate::refusal::{AmbiguousSyntax, UnreadableLine};
use crate::word::{Piece, Pieces, Word, runs_commands};

/// A word, and whether any part of it was quoted.
pub(super) struct Token {
    pub(super) word: Word,
    quoted: bool,
}

/// A word that is being read.
#[derive(Default)]
pub(super) struct Draft {
    pieces: Vec<Piece>,
    pub(super) several: bool,
    quoted: bool,
    /// Its literal text, to see what would run if it were evaluated.
    literal: String,
    /// Contains unquoted `[` or braces, which may change it to other words.
    bracket: bool,
    brace: bool,
    comma: bool,
}

impl Draft {
    fn quote(&mut self, c: char) {
        self.quoted = true;
        self.plain(c);
    }

    pub(super) fn plain(&mut self, c: char) {
        self.literal.push(c);
        self.pieces.push(Piece::Char(c));
    }

    /// Adds a part that is only known later; `split` if it is then split into words.
    pub(super) fn gap(&mut self, split: bool) {
        self.literal.push(' ');
        self.pieces.push(Piece::Gap { split });
    }

    pub(super) fn variable(&mut self, name: String, split: bool) {
        self.literal.push(' ');
        self.pieces.push(Piece::Variable { name, split });
    }

    /// A part of it would run if it were evaluated.
    pub(super) fn evaluated(&mut self) {
        self.literal.push('`');
    }

    fn token(self, written: &str) -> Token {
        let is_test = matches!(self.literal.as_str(), "[" | "[[");
        let runs = runs_commands(&self.literal);
        let pieces = Pieces {
            pieces: self.pieces,
            several: self.several,
            rewritten: (self.bracket && !is_test) || (self.brace && self.comma),
        };
        Token { word: pieces.word(written).run_when_evaluated(runs), quoted: self.quoted }
    }
}

impl Reader {
    /// The next character, with continued lines joined. A continuation may not join
    /// two parts of a word or of an operator: code that looks ahead would see something else.
    pub(super) fn peek(&mut self) -> Option<char> {
        while self.rest().starts_with(&['\\', '\n']) {
            let before = &self.chars[..self.at];
            self.joined |= !(before.is_empty()
                || before.ends_with(&['&', '&'])
                || before.ends_with(&[' '])
                || before.ends_with(&['\t'])
                || before.ends_with(&['\n'])
                || before.ends_with(&[';'])
                || before.ends_with(&['|']));
            self.at += 2;
        }
        self.chars.get(self.at).copied()
    }

    /// The next character inside double quotes.
    pub(super) fn peek_quoted(&mut self) -> Option<char> {
        while self.rest().starts_with(&['\\', '\n']) {
            self.at += 2;
        }
        self.chars.get(self.at).copied()
    }

    fn rest(&self) -> &[char] {
        self.chars.get(self.at..).unwrap_or_default()
    }

    pub(super) fn blanks(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.at += 1;
        }
    }

    /// Skips blanks, line ends and comments.
    pub(super) fn newlines(&mut self) -> Read<()> {
        loop {
            self.blanks();
            match self.peek() {
                Some('\n') => {
                    self.at += 1;
                    self.here_documents()?;
                }
                Some('#') => self.comment(),
                _ => return Ok(()),
            }
        }
    }

    pub(super) fn comment(&mut self) {
        while self.chars.get(self.at).is_some_and(|c| *c != '\n') {
            self.at += 1;
        }
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        _ = self.peek();
        let wanted: Vec<char> = text.chars().collect();
        let found = self.rest().starts_with(&wanted);
        self.at += if found { wanted.len() } else { 0 };
        found
    }

    /// The next word, if no part of it is quoted or expanded.
    pub(super) fn ahead(&mut self) -> Option<String> {
        _ = self.peek();
        let rest = self.rest();
        let ends = |c: &char| " \t\n;&|()<>".contains(*c);
        let word: String = rest.iter().take_while(|c| !ends(c)).collect();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_{}!-".contains(c);
        (!word.is_empty() && word.chars().all(is_plain)).then_some(word)
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.ahead().is_some_and(|ahead| ahead == word);
        self.at += if found { word.chars().count() } else { 0 };
        found
    }

    pub(super) fn expect(&mut self, word: &str) -> Read<()> {
        if self.eat_word(word) { Ok(()) } else { Err(UnreadableLine::Missing(word.to_owned())) }
    }

    pub(super) fn is_between_words(&mut self) -> bool {
        self.peek().is_none_or(|c| " \t\n;&|()<>".contains(c))
    }

    /// Reads `name=` or `name+=` and returns the name.
    pub(super) fn assignment(&mut self) -> Option<String> {
        let rest: String = self.rest().iter().take_while(|c| **c != '=').collect();
        let name = rest.strip_suffix('+').unwrap_or(&rest);
        let end = self.at + rest.chars().count();
        if !is_name(name) || self.chars.get(end) != Some(&'=') {
            return None;
        }
        self.at = end + 1;
        Some(name.to_owned())
    }

    pub(super) fn word(&mut self) -> Read<Token> {
        let start = self.at;
        let mut draft = Draft::default();
        while !self.is_between_words() {
            let c = self.chars[self.at];
            self.at += 1;
            match c {
                '\\' => {
                    let escaped = self.chars.get(self.at).copied();
                    let at_end = UnreadableLine::Ambiguous(AmbiguousSyntax::BackslashAtEnd);
                    draft.quote(escaped.ok_or(at_end)?);
                    self.at += 1;
                }
                '\'' => {
                    draft.quoted = true;
                    self.single(|c| draft.quote(c))?;
                }
                '"' => self.double(&mut draft)?,
                '`' => self.backticks(&mut draft, false)?,
                '$' => self.dollar(&mut draft, false)?,
                '*' | '?' => {
                    draft.gap(false);
                    draft.several = true;
                }
                '~' => draft.gap(false),
                _ => {
                    draft.bracket |= c == '[';
                    draft.brace |= c == '{';
                    draft.comma |= c == ',' || (c == '.' && self.chars.get(self.at) == Some(&'.'));
                    draft.plain(c);
                }
            }
        }
        if self.at == start {
            return Err(match self.peek() {
                Some(c) => unexpected(c.escape_debug()),
                None => UnreadableLine::WordMissing,
            });
        }
        let written: String = self.chars[start..self.at].iter().collect();
        Ok(draft.token(&written))
    }

    /// The text up to the closing `'`.
    pub(super) fn single(&mut self, mut take: impl FnMut(char)) -> Read<()> {
        loop {
            let c = self.chars.get(self.at).copied();
            self.at += 1;
            match c {
                None => return Err(UnreadableLine::OpenQuote('\'')),
                Some('\'') => return Ok(()),
                Some(c) => take(c),
            }
        }
    }

    /// The text up to the closing `"`.
    pub(super) fn double(&mut self, draft: &mut Draft) -> Read<()> {
        draft.quoted = true;
        loop {
            let c = self.peek_quoted();
            self.at += 1;
            match c {
                None => return Err(UnreadableLine::OpenQuote('"')),
                Some('"') => return Ok(()),
                Some('$') => self.dollar(draft, true)?,
                Some('`') => self.backticks(draft, true)?,
                Some('\\') => match self.chars.get(self.at).copied() {
                    Some(c @ ('$' | '`' | '"' | '\\')) => {
                        self.at += 1;
                        draft.quote(c);
                    }
                    _ => draft.quote('\\'),
                },
                Some(c) => draft.quote(c),
            }
        }
    }

    /// Reads a number before a redirection; returns whether there is one.
    pub(super) fn is_descriptor(&mut self) -> Read<bool> {
        let rest = self.rest();
        let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
        if digits == 0 || !matches!(rest.get(digits), Some('<' | '>')) {
            return Ok(false);
        }
        if digits > 1 {
            return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::LargeDescriptor));
        }
        self.at += 1;
        Ok(true)
    }

    pub(super) fn redirections(&mut self) -> Read<()> {
        loop {
            self.blanks();
            if self.is_descriptor()? || matches!(self.peek(), Some('<' | '>')) {
                self.redirection()?;
            } else if self.peek() == Some('&') && self.chars.get(self.at + 1) == Some(&'>') {
                return self.both_streams();
            } else {
                return Ok(());
            }
        }
    }

    pub(super) fn redirection(&mut self) -> Read<()> {
        let operators = ["<<<", "<<-", "<<", "<&", "<>", "<", ">>", ">&", ">|", ">"];
        let Some(operator) = operators.into_iter().find(|operator| self.eat(operator)) else {
            return Err(unexpected('<'));
        };
        self.blanks();
        if matches!(operator, "<" | ">") && (self.eat("<(") || self.eat(">(")) {
            return self.subshell();
        }
        let target = self.word()?;
        let text = target.word.text();
        match operator {
            "<<" | "<<-" => {
                let end = text.filter(|end| !end.contains('\n'));
                let end = end.ok_or(UnreadableLine::Ambiguous(AmbiguousSyntax::HereDocument))?;
                self.documents.push(Document {
                    end,
                    tabs: operator == "<<-",
                    literal: target.quoted,
                });
            }
            "<" => {}
            "<<<" => self.script.documents.extend(text),
            "<&" | ">&"
                if text.as_ref().is_some_and(|text| {
                    text.trim_end_matches('-').chars().all(|c| c.is_ascii_digit())
                }) => {}
            // bash expands the target once more.
            "<&" | ">&"
                if target.word.runs_when_evaluated()
                    || text.as_ref().is_some_and(|text| text.contains(['$', '`'])) =>
            {
                return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::BothStreams));
            }
            _ => self.writes(&target.word),
        }
        Ok(())
    }

    /// `&> file`: one redirection in bash, the end of a command and a redirection in others.
    pub(super) fn both_streams(&mut self) -> Read<()> {
        self.at += 2;
        if self.peek() == Some('>') {
            self.at += 1;
        }
        self.blanks();
        let target = self.word()?;
        self.writes(&target.word);
        self.blanks();
        match self.peek() {
            None | Some('\n' | ';' | '|' | ')' | '&') => Ok(()),
            Some(_) => Err(UnreadableLine::Ambiguous(AmbiguousSyntax::BothStreams)),
        }
    }

    fn writes(&mut self, target: &Word) {
        if !["/dev/null", "/dev/stdout", "/dev/stderr"].iter().any(|file| target.is(file)) {
            self.script.items.push(Item::Writes(target.clone()));
        }
    }

    /// The texts of the here-documents that were announced on the line that just ended.
    fn here_documents(&mut self) -> Read<()> {
        for document in std::mem::take(&mut self.documents) {
            let mut text = String::new();
            loop {
                let length = self.rest().iter().take_while(|c| **c != '\n').count();
                let line: String = self.rest()[..length].iter().collect();
                let is_last = length == self.rest().len();
                self.at += length + usize::from(!is_last);
                if document.ends(&line) {
                    break;
                }
                if is_last {
                    let end = document.end;
                    return Err(UnreadableLine::OpenHereDocument(end));
                }
                if !document.literal && line.ends_with('\\') {
                    return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::HereDocument));
                }
                text.push_str(&line);
                text.push('\n');
            }
            if !document.literal {
                self.text(&text)?;
            }
            self.after_document |= self.inside > 0;
            self.script.documents.push(text);
        }
        Ok(())
    }
}

impl Document {
    fn ends(&self, line: &str) -> bool {
        let line = if self.tabs { line.trim_start_matches('\t') } else { line };
        line == self.end
    }
}
