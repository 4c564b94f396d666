//! What `$` and backticks begin: the commands in it are read, what comes out is a gap.

use super::lex::Draft;
use super::{Item, Read, Reader};
use crate::refusal::{AmbiguousSyntax, UnreadableLine};

impl Reader {
    /// What follows a `$`; `quoted` inside of double quotes.
    pub(super) fn dollar(&mut self, draft: &mut Draft, quoted: bool) -> Read<()> {
        let next = self.peek();
        match next {
            Some('(') if self.chars.get(self.at + 1) == Some(&'(') => {
                self.at += 2;
                self.arithmetic()?;
            }
            Some('(') => {
                self.at += 1;
                self.depth += 1;
                if self.depth > super::DEPTH {
                    return Err(UnreadableLine::TooDeep);
                }
                self.subshell()?;
                self.depth -= 1;
            }
            Some('{') => {
                self.at += 1;
                let many = self.parameter(quoted)?;
                draft.several |= many;
            }
            Some(quote @ ('\'' | '"')) if !quoted => {
                return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::DollarQuote(quote)));
            }
            Some('[') => return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::DollarBracket)),
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
                    self.at += 1;
                }
            }
            Some(c) if c.is_ascii_digit() || "@*#?-$!".contains(c) => {
                self.at += 1;
                draft.several |= c == '@';
            }
            _ => {
                draft.plain('$');
                return Ok(());
            }
        }
        draft.gap();
        draft.split |= !quoted;
        Ok(())
    }

    /// Sums of numbers and variables, up to `))`.
    fn arithmetic(&mut self) -> Read<()> {
        let mut open = 0;
        loop {
            let c = self.peek();
            self.at += 1;
            match c {
                Some('(') => open += 1,
                Some(')') if open > 0 => open -= 1,
                Some(')') if self.peek() == Some(')') => {
                    self.at += 1;
                    return Ok(());
                }
                Some('$') if self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') => {
                }
                Some(c) if c.is_ascii_alphanumeric() || "_ \t\n+-*/%<>=!&|^~?:,".contains(c) => {}
                _ => return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::Arithmetic)),
            }
        }
    }

    /// `${…}` after its `{`; whether it may become several words even in quotes.
    fn parameter(&mut self, quoted: bool) -> Read<bool> {
        let strange = || UnreadableLine::Ambiguous(AmbiguousSyntax::Parameter);
        let is_length = self.peek() == Some('#')
            && self.chars.get(self.at + 1).is_some_and(|c| c.is_ascii_alphanumeric() || *c == '_');
        self.at += usize::from(is_length);
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
            self.at += 1;
        }
        let mut many = false;
        if name.is_empty() {
            // `${!name}` uses the value of a variable as a name.
            match self.peek() {
                Some(c) if "@*#?-$".contains(c) => many = c == '@',
                _ => return Err(strange()),
            }
            self.at += 1;
        }
        if self.eat("[@]") || self.eat("[*]") {
            many = true;
        }
        if self.eat("}") {
            return Ok(many);
        }
        if is_length {
            return Err(strange());
        }
        if self.eat(":=") || self.eat("=") {
            self.script.sets.push(name);
        } else if self.eat(":-") || self.eat(":?") || self.eat(":+") {
        } else if self.eat(":") {
            while self.peek().is_some_and(|c| c.is_ascii_digit() || ": -".contains(c)) {
                self.at += 1;
            }
            return if self.eat("}") { Ok(many) } else { Err(strange()) };
        } else if self.peek().is_some_and(|c| "-?+#%/^,".contains(c)) {
            self.at += 1;
        } else {
            return Err(strange());
        }
        self.parameter_word(quoted)?;
        Ok(many)
    }

    /// The word of a `${name:-word}`, up to the `}`.
    fn parameter_word(&mut self, quoted: bool) -> Read<()> {
        let mut inner = Draft::default();
        loop {
            let c = self.peek();
            self.at += 1;
            match c {
                Some('}') => return Ok(()),
                Some('\\') => self.at += 1,
                Some('\'') if !quoted => self.single(|_| {})?,
                Some('"') if !quoted => self.double(&mut inner)?,
                Some('$') => self.dollar(&mut inner, quoted)?,
                Some('`') => self.backticks(&mut inner, quoted)?,
                None => return Err(UnreadableLine::OpenParameter),
                Some('\'' | '"') => {
                    return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::QuoteInParameter));
                }
                Some('<' | '>') if self.peek() == Some('(') => {
                    return Err(UnreadableLine::Ambiguous(
                        AmbiguousSyntax::ProcessSubstitutionInParameter,
                    ));
                }
                Some(_) => {}
            }
        }
    }

    /// A command between backticks, whose first was read.
    pub(super) fn backticks(&mut self, draft: &mut Draft, quoted: bool) -> Read<()> {
        let mut line = String::new();
        loop {
            let c = self.chars.get(self.at).copied();
            self.at += 1;
            match c {
                None => return Err(UnreadableLine::OpenBacktick),
                Some('`') => break,
                Some('\\') => {
                    let next = self.chars.get(self.at).copied();
                    if !next.is_some_and(|c| "$`\\".contains(c) || (quoted && c == '"')) {
                        line.push('\\');
                    }
                    line.extend(next);
                    self.at += 1;
                }
                Some(c) => line.push(c),
            }
        }
        let mut inner = Self::new(&line, self.depth + 1)?;
        inner.repeats = self.repeats;
        inner.list(&[])?;
        let script = inner.finish()?;
        self.script.items.push(Item::Enter);
        self.script.items.extend(script.items);
        self.script.items.push(Item::Leave);
        self.script.sets.extend(script.sets);
        self.script.writes.extend(script.writes);
        draft.gap();
        draft.split |= !quoted;
        Ok(())
    }

    /// The text of a here-document, in which `$` and backticks count.
    pub(super) fn text(&mut self, text: &str) -> Read<()> {
        let mut inner = Self::new(text, self.depth + 1)?;
        inner.repeats = self.repeats;
        let mut draft = Draft::default();
        while let Some(c) = inner.peek() {
            inner.at += 1;
            match c {
                '\\' => inner.at += 1,
                '$' => inner.dollar(&mut draft, true)?,
                '`' => inner.backticks(&mut draft, true)?,
                _ => {}
            }
        }
        self.joined |= inner.joined;
        self.script.items.extend(inner.script.items);
        self.script.sets.extend(inner.script.sets);
        self.script.writes.extend(inner.script.writes);
        Ok(())
    }
}
