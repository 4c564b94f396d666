//! Expansions that begin with `$` or a backtick: their commands are parsed, their result is a gap.

use super::lex::Draft;
use super::{Item, Read, Reader, is_name};
use crate::refusal::{AmbiguousSyntax, UnreadableLine};

/// The result of a `${…}`.
enum Parameter {
    /// The unchanged value of a variable.
    Value(String),
    /// Any number of words, even in quotes.
    Several,
    Other,
}

impl Reader {
    /// Parses what follows a `$`; `quoted` inside double quotes.
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
                match self.parameter(quoted)? {
                    Parameter::Value(name) => {
                        draft.variable(name, !quoted);
                        return Ok(());
                    }
                    Parameter::Several => draft.several = true,
                    Parameter::Other => {}
                }
            }
            Some('\'') if !quoted => {
                self.at += 1;
                return self.escaped(draft);
            }
            Some(quote @ '"') if !quoted => {
                return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::DollarQuote(quote)));
            }
            Some('[') => return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::DollarBracket)),
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let name = self.variable_name();
                draft.variable(name, !quoted);
                return Ok(());
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
        draft.gap(!quoted);
        Ok(())
    }

    fn variable_name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
            self.at += 1;
        }
        name
    }

    /// The rest of `$'…'`. Some shells interpret escapes in it and others do not, so its content is unknown;
    /// they must agree where it ends.
    fn escaped(&mut self, draft: &mut Draft) -> Read<()> {
        let mut backslashes = 0;
        let mut evaluated = false;
        loop {
            let c = self.chars.get(self.at).copied();
            self.at += 1;
            match c {
                None => return Err(UnreadableLine::OpenQuote('\'')),
                Some('\'') if backslashes % 2 == 0 => break,
                Some('\'') => {
                    return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::DollarQuote('\'')));
                }
                Some(c) => {
                    backslashes = if c == '\\' { backslashes + 1 } else { 0 };
                    evaluated |= c == '`' || c == '$';
                }
            }
        }
        draft.gap(false);
        if evaluated {
            // Commands that would run if it were evaluated must be found.
            draft.evaluated();
        }
        Ok(())
    }

    /// Arithmetic on numbers and variables, up to `))`.
    fn arithmetic(&mut self) -> Read<()> {
        self.arithmetic_text(&[])
    }

    /// The same, with further allowed characters.
    pub(super) fn arithmetic_text(&mut self, others: &[char]) -> Read<()> {
        let mut open = 0;
        let start = self.at;
        loop {
            let c = self.peek();
            self.at += 1;
            match c {
                Some('(') => open += 1,
                Some(')') if open > 0 => open -= 1,
                Some(')') if self.peek() == Some(')') => {
                    self.at += 1;
                    let text: String = self.chars[start..self.at - 2].iter().collect();
                    self.script.evaluates_variables |= text.contains(|c: char| c.is_alphabetic());
                    if text.contains(['=', '+', '-']) {
                        // It may assign any variable that it names.
                        let names = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                        let names = names.filter(|name| is_name(name)).map(str::to_owned);
                        self.script.sets.extend(names);
                    }
                    return Ok(());
                }
                Some('$') if self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') => {
                }
                Some(c) if c.is_ascii_alphanumeric() || "_ \t\n+-*/%<>=!&|^~?:,".contains(c) => {}
                Some(c) if others.contains(&c) => {}
                _ => return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::Arithmetic)),
            }
        }
    }

    /// `${…}` after its `{`.
    fn parameter(&mut self, quoted: bool) -> Read<Parameter> {
        let strange = || UnreadableLine::Ambiguous(AmbiguousSyntax::Parameter);
        let is_length = self.peek() == Some('#')
            && self.chars.get(self.at + 1).is_some_and(|c| c.is_ascii_alphanumeric() || *c == '_');
        self.at += usize::from(is_length);
        let name = self.variable_name();
        let mut several = false;
        if name.is_empty() {
            // `${!name}` uses the value of a variable as a name.
            match self.peek() {
                Some(c) if "@*#?-$".contains(c) => several = c == '@',
                _ => return Err(strange()),
            }
            self.at += 1;
        }
        several |= self.subscript()?;
        let found = if several { Parameter::Several } else { Parameter::Other };
        if self.eat("}") {
            let is_variable = is_name(&name) && self.chars[self.at - 2] != ']' && !is_length;
            return Ok(if is_variable { Parameter::Value(name) } else { found });
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
            return if self.eat("}") { Ok(found) } else { Err(strange()) };
        } else if self.peek().is_some_and(|c| "-?+#%/^,".contains(c)) {
            self.at += 1;
        } else {
            return Err(strange());
        }
        self.parameter_word(quoted)?;
        Ok(found)
    }

    /// `[@]`, or an element of an array; returns whether it stands for all of them.
    fn subscript(&mut self) -> Read<bool> {
        if self.peek() != Some('[') {
            return Ok(false);
        }
        if self.eat("[@]") || self.eat("[*]") {
            return Ok(true);
        }
        self.at += 1;
        self.at += usize::from(self.peek() == Some('$') || self.peek() == Some('-'));
        self.variable_name();
        if self.eat("]") {
            return Ok(false);
        }
        Err(UnreadableLine::Ambiguous(AmbiguousSyntax::Parameter))
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

    /// A command between backticks, after the first one.
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
        let mut inner = self.nested(&line)?;
        inner.list(&[])?;
        self.pipelines = inner.pipelines;
        let script = inner.finish()?;
        self.script.items.push(Item::Enter);
        self.script.items.extend(script.items);
        self.script.items.push(Item::Leave);
        self.script.sets.extend(script.sets);
        self.script.documents.extend(script.documents);
        self.script.evaluates_variables |= script.evaluates_variables;
        draft.gap(!quoted);
        Ok(())
    }

    /// A reader for text inside this one.
    pub(super) fn nested(&self, text: &str) -> Read<Self> {
        let inner = Self::new(text, self.depth + 1)?;
        let (pipes, pipelines) = (self.pipes.clone(), self.pipelines);
        Ok(Self { repeats: self.repeats, pipes, pipelines, inside: self.inside + 1, ..inner })
    }

    /// The text of a here-document, in which `$` and backticks are expanded.
    pub(super) fn text(&mut self, text: &str) -> Read<()> {
        let mut inner = self.nested(text)?;
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
        self.pipelines = inner.pipelines;
        self.script.items.extend(inner.script.items);
        self.script.sets.extend(inner.script.sets);
        self.script.evaluates_variables |= inner.script.evaluates_variables;
        Ok(())
    }
}
