//! Compound commands: conditions, loops, cases, subshells, functions.

use super::{FOREIGN, Item, MISPLACED, Read, Reader, is_name, unexpected};
use crate::refusal::{AmbiguousSyntax, UnreadableLine};
use crate::word::Word;

impl Reader {
    pub(super) fn compound(&mut self) -> Read<bool> {
        if self.peek() == Some('(') {
            if self.chars.get(self.at + 1) == Some(&'(') {
                self.arithmetic_command()?;
                return Ok(true);
            }
            self.at += 1;
            self.subshell()?;
            return Ok(true);
        }
        let Some(word) = self.ahead() else { return Ok(false) };
        if FOREIGN.contains(&word.as_str()) {
            return Err(UnreadableLine::UnknownKeyword(word));
        }
        if MISPLACED.contains(&word.as_str()) || word == "!" {
            return Err(unexpected(word));
        }
        match word.as_str() {
            "{" => self.group("{", "}")?,
            "if" => self.condition()?,
            "while" | "until" => {
                let first = self.script.items.len();
                self.repeats += 1;
                self.group(&word, "do")?;
                self.list(&["done"])?;
                self.expect("done")?;
                self.repeats -= 1;
                self.mark_conditional(first);
            }
            "function" => self.function_keyword()?,
            "for" => self.for_loop()?,
            "case" => self.case()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn group(&mut self, open: &str, close: &str) -> Read<()> {
        self.expect(open)?;
        self.list(&[close])?;
        self.expect(close)
    }

    /// Commands up to the `)`, after the `(`.
    pub(super) fn subshell(&mut self) -> Read<()> {
        let waiting = std::mem::take(&mut self.documents);
        let after_document = self.after_document;
        self.inside += 1;
        self.script.items.push(Item::Enter);
        self.list(&[])?;
        if self.peek() != Some(')') {
            return Err(UnreadableLine::OpenParenthesis);
        }
        self.at += 1;
        self.script.items.push(Item::Leave);
        self.no_documents()?;
        self.documents = waiting;
        self.inside -= 1;
        self.after_document = after_document;
        Ok(())
    }

    fn condition(&mut self) -> Read<()> {
        self.group("if", "then")?;
        let first = self.script.items.len();
        loop {
            self.list(&["elif", "else", "fi"])?;
            if self.eat_word("elif") {
                self.list(&["then"])?;
                self.expect("then")?;
                continue;
            }
            if self.eat_word("else") {
                self.list(&["fi"])?;
            }
            self.mark_conditional(first);
            return self.expect("fi");
        }
    }

    fn for_loop(&mut self) -> Read<()> {
        self.expect("for")?;
        self.blanks();
        if self.peek() == Some('(') && self.chars.get(self.at + 1) == Some(&'(') {
            // Shells without this operator reject it.
            self.at += 2;
            self.arithmetic_text(&[';'])?;
            return self.for_body(None);
        }
        let name = self.ahead().filter(|name| is_name(name));
        let name = name.ok_or(UnreadableLine::Ambiguous(AmbiguousSyntax::ForLoop))?;
        self.expect(&name)?;
        self.newlines()?;
        let mut words = Vec::new();
        if self.eat_word("in") {
            loop {
                self.blanks();
                if matches!(self.peek(), None | Some(';' | '\n')) {
                    break;
                }
                let word = self.word()?.word;
                if word.runs_when_evaluated() {
                    return Err(UnreadableLine::EvaluatedVariable);
                }
                words.push(word);
            }
        } else {
            words.push(Word::anything("$@"));
        }
        self.script.items.push(Item::For { name: name.clone(), words });
        self.for_body(Some(name))
    }

    fn for_body(&mut self, name: Option<String>) -> Read<()> {
        self.blanks();
        if self.peek() == Some(';') {
            self.at += 1;
        }
        self.newlines()?;
        let first = self.script.items.len();
        self.repeats += 1;
        self.group("do", "done")?;
        self.repeats -= 1;
        self.mark_conditional(first);
        self.script.items.extend(name.map(Item::EndFor));
        Ok(())
    }

    /// `((…))`: arithmetic in some shells, a command in two subshells in others.
    fn arithmetic_command(&mut self) -> Read<()> {
        self.at += 2;
        let start = self.at;
        self.arithmetic_text(&[])?;
        let text: String = self.chars[start..self.at - 2].iter().collect();
        // A shell that cannot parse it as commands either runs nothing.
        let mut inner = self.nested(&text)?;
        if inner.list(&[]).is_ok() {
            self.pipelines = inner.pipelines;
            if let Ok(script) = inner.finish() {
                self.script.items.push(Item::Enter);
                for mut item in script.items {
                    if let Item::Command(command) = &mut item {
                        command.is_arithmetic = true;
                    }
                    self.script.items.push(item);
                }
                self.script.items.push(Item::Leave);
            }
        }
        Ok(())
    }

    /// The rest of `name=(…)`, which shells without arrays reject.
    pub(super) fn array(&mut self) -> Read<()> {
        self.at += 1;
        loop {
            self.newlines()?;
            match self.peek() {
                Some(')') => break self.at += 1,
                None => return Err(UnreadableLine::OpenParenthesis),
                Some(_) => {}
            }
            if self.word()?.word.runs_when_evaluated() {
                return Err(UnreadableLine::EvaluatedVariable);
            }
        }
        Ok(())
    }

    fn case(&mut self) -> Read<()> {
        let first = self.script.items.len();
        self.cases()?;
        self.mark_conditional(first);
        Ok(())
    }

    fn cases(&mut self) -> Read<()> {
        self.expect("case")?;
        self.blanks();
        self.word()?;
        self.newlines()?;
        self.expect("in")?;
        loop {
            self.newlines()?;
            if self.eat_word("esac") {
                return Ok(());
            }
            if self.peek() == Some('(') {
                self.at += 1;
            }
            loop {
                self.blanks();
                self.word()?;
                self.blanks();
                match self.peek() {
                    Some('|') => self.at += 1,
                    Some(')') => break self.at += 1,
                    _ => return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::Case)),
                }
            }
            self.list(&["esac"])?;
            if self.eat(";;&") || self.eat(";;") || self.eat(";&") {
                continue;
            }
            self.newlines()?;
            return self.expect("esac");
        }
    }

    /// The rest of `name() command`, after the name.
    pub(super) fn function(&mut self, name: &str, redirected: bool) -> Read<()> {
        self.at += 1;
        self.blanks();
        if redirected || self.peek() != Some(')') {
            return Err(unexpected('('));
        }
        self.at += 1;
        self.function_body(name)
    }

    /// `function name …`. A shell without this keyword runs the body's commands immediately.
    fn function_keyword(&mut self) -> Read<()> {
        self.expect("function")?;
        self.blanks();
        let name = self.ahead().filter(|name| is_name(&name.replace('-', "_")));
        let name = name.ok_or_else(|| UnreadableLine::UnknownKeyword("function".to_owned()))?;
        self.expect(&name)?;
        self.blanks();
        if self.eat("(") {
            self.blanks();
            if !self.eat(")") {
                return Err(unexpected('('));
            }
        }
        self.function_body(&name)
    }

    fn function_body(&mut self, name: &str) -> Read<()> {
        self.newlines()?;
        self.script.items.push(Item::Function { name: name.to_owned(), conditional: false });
        let first = self.script.items.len();
        self.repeats += 1;
        self.command()?;
        self.repeats -= 1;
        self.mark_conditional(first);
        self.script.items.push(Item::EndFunction);
        Ok(())
    }
}
