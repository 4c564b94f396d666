//! Reads a line for a shell and lists every command in it, wherever it stands.
//!
//! Only what all of `sh`, `dash`, `bash` and `ksh` read alike, or what one of them rejects, is
//! read; anything else is an error that says what it was. A parser that is lenient, or that knows
//! one shell only, would see other commands than the shell that runs the line. Nothing is expanded.

mod expand;
mod lex;

use super::refusal::{AmbiguousSyntax, UnreadableLine};
use super::word::Word;

type Read<T> = Result<T, UnreadableLine>;

/// What is in a line.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) items: Vec<Item>,
    /// Variables that are set other than by an assignment.
    pub(super) sets: Vec<String>,
    /// Files that redirections write.
    pub(super) writes: Vec<String>,
}

#[derive(Debug)]
pub(super) enum Item {
    /// A subshell begins; what it does to itself ends with it.
    Enter,
    Leave,
    Command(Simple),
}

/// Assignments, and the words of a command.
#[derive(Debug, Default)]
pub(super) struct Simple {
    pub(super) assigns: Vec<(String, Word)>,
    pub(super) words: Vec<Word>,
    /// In a loop or a function: it may run many times, and before what stands before it.
    pub(super) repeats: bool,
}

/// How deep a line may be nested.
const DEPTH: usize = 40;

/// Words that begin what is not read.
const FOREIGN: [&str; 3] = ["function", "select", "coproc"];

const MISPLACED: [&str; 9] = ["then", "else", "elif", "fi", "do", "done", "esac", "}", "in"];

pub(super) fn read(line: &str) -> Read<Script> {
    let mut reader = Reader::new(line, 0)?;
    reader.list(&[])?;
    reader.finish()
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    repeats: usize,
    script: Script,
    /// Here-documents whose text begins after this line.
    documents: Vec<Document>,
    /// A backslash at the end of a line joins what looks like two tokens.
    joined: bool,
}

struct Document {
    end: String,
    /// Tabs at the beginning of its lines do not count.
    tabs: bool,
    /// Nothing in it is expanded.
    literal: bool,
}

fn unexpected(what: impl std::fmt::Display) -> UnreadableLine {
    UnreadableLine::Unexpected(what.to_string())
}

impl Reader {
    fn new(line: &str, depth: usize) -> Read<Self> {
        if depth > DEPTH {
            return Err(UnreadableLine::TooDeep);
        }
        Ok(Self {
            chars: line.chars().collect(),
            at: 0,
            depth,
            repeats: 0,
            script: Script::default(),
            documents: Vec::new(),
            joined: false,
        })
    }

    fn finish(mut self) -> Read<Script> {
        if let Some(c) = self.peek() {
            return Err(unexpected(c));
        }
        self.no_documents()?;
        if self.joined {
            return Err(UnreadableLine::JoinedLines);
        }
        Ok(self.script)
    }

    fn no_documents(&self) -> Read<()> {
        match self.documents.first() {
            None => Ok(()),
            Some(document) => Err(UnreadableLine::OpenHereDocument(document.end.clone())),
        }
    }

    /// Commands up to one of these words, a `)`, the end of a case or the end of the line.
    fn list(&mut self, ends: &[&str]) -> Read<()> {
        loop {
            self.newlines()?;
            if self.is_at_end() || self.ahead().is_some_and(|word| ends.contains(&word.as_str())) {
                return Ok(());
            }
            self.and_or()?;
            self.blanks();
            match self.peek() {
                Some(';') if !self.is_at_end() => self.at += 1,
                Some('&') => self.at += 1,
                Some('\n') => {}
                _ if self.is_at_end() => return Ok(()),
                // After a subshell or a group a closing word needs no separator.
                _ if self.ahead().is_some_and(|word| ends.contains(&word.as_str())) => {
                    return Ok(());
                }
                other => return Err(unexpected(other.unwrap_or(' '))),
            }
        }
    }

    /// The end of the line, of a subshell or of a case.
    fn is_at_end(&mut self) -> bool {
        match self.peek() {
            None | Some(')') => true,
            Some(';') => matches!(self.chars.get(self.at + 1), Some(';' | '&')),
            _ => false,
        }
    }

    fn and_or(&mut self) -> Read<()> {
        loop {
            self.pipeline()?;
            self.blanks();
            if !(self.eat("&&") || self.eat("||")) {
                return Ok(());
            }
            self.newlines()?;
        }
    }

    fn pipeline(&mut self) -> Read<()> {
        self.blanks();
        while self.eat_word("!") || self.time() {
            self.blanks();
        }
        loop {
            self.command()?;
            self.blanks();
            if self.peek() != Some('|') || self.chars.get(self.at + 1) == Some(&'|') {
                return Ok(());
            }
            self.at += 1;
            if self.peek() == Some('&') {
                self.at += 1;
            }
            self.newlines()?;
        }
    }

    /// `time` in front of a pipeline is a word of the language in bash; with options it is a program.
    fn time(&mut self) -> bool {
        let start = self.at;
        if !self.eat_word("time") {
            return false;
        }
        self.blanks();
        if self.eat_word("-p") {
            self.blanks();
        }
        let is_program = matches!(self.peek(), Some('-') | None);
        if is_program {
            self.at = start;
        }
        !is_program
    }

    fn command(&mut self) -> Read<()> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(UnreadableLine::TooDeep);
        }
        self.blanks();
        let compound = self.compound()?;
        if compound {
            self.redirections()?;
        } else {
            self.simple()?;
        }
        self.depth -= 1;
        Ok(())
    }

    fn compound(&mut self) -> Read<bool> {
        if self.peek() == Some('(') {
            if self.chars.get(self.at + 1) == Some(&'(') {
                return Err(UnreadableLine::DoubleParenthesis);
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
                self.repeats += 1;
                self.group(&word, "do")?;
                self.list(&["done"])?;
                self.expect("done")?;
                self.repeats -= 1;
            }
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

    /// Commands up to the `)`, whose `(` was read.
    fn subshell(&mut self) -> Read<()> {
        let waiting = std::mem::take(&mut self.documents);
        self.script.items.push(Item::Enter);
        self.list(&[])?;
        if self.peek() != Some(')') {
            return Err(UnreadableLine::OpenParenthesis);
        }
        self.at += 1;
        self.script.items.push(Item::Leave);
        self.no_documents()?;
        self.documents = waiting;
        Ok(())
    }

    fn condition(&mut self) -> Read<()> {
        self.group("if", "then")?;
        loop {
            self.list(&["elif", "else", "fi"])?;
            if self.eat_word("elif") {
                self.list(&["then"])?;
                self.expect("then")?;
            } else if self.eat_word("else") {
                self.list(&["fi"])?;
                return self.expect("fi");
            } else {
                return self.expect("fi");
            }
        }
    }

    fn for_loop(&mut self) -> Read<()> {
        self.expect("for")?;
        self.blanks();
        let name = self.ahead().filter(|name| is_name(name));
        let name = name.ok_or(UnreadableLine::Ambiguous(AmbiguousSyntax::ForLoop))?;
        self.expect(&name)?;
        self.script.sets.push(name);
        self.newlines()?;
        if self.eat_word("in") {
            loop {
                self.blanks();
                if matches!(self.peek(), None | Some(';' | '\n')) {
                    break;
                }
                if self.word()?.word.runs_when_evaluated() {
                    return Err(UnreadableLine::EvaluatedVariable);
                }
            }
        }
        if self.peek() == Some(';') {
            self.at += 1;
        }
        self.newlines()?;
        self.repeats += 1;
        self.group("do", "done")?;
        self.repeats -= 1;
        Ok(())
    }

    fn case(&mut self) -> Read<()> {
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

    fn simple(&mut self) -> Read<()> {
        let mut command = Simple { repeats: self.repeats > 0, ..Simple::default() };
        let mut redirected = false;
        loop {
            let before = self.at;
            self.blanks();
            let apart = self.at > before || (command.words.is_empty() && !redirected);
            match self.peek() {
                None | Some('\n' | ';' | '|' | ')') => break,
                Some('&') if self.chars.get(self.at + 1) == Some(&'>') => {
                    self.both_streams()?;
                    redirected = true;
                    break;
                }
                Some('&') => break,
                Some('#') if apart => self.comment(),
                Some('<' | '>') if self.chars.get(self.at + 1) == Some(&'(') => {
                    if !apart {
                        return Err(UnreadableLine::Ambiguous(
                            AmbiguousSyntax::ProcessSubstitutionInWord,
                        ));
                    }
                    self.at += 2;
                    self.subshell()?;
                    if !self.is_between_words() {
                        return Err(UnreadableLine::Ambiguous(
                            AmbiguousSyntax::ProcessSubstitutionInWord,
                        ));
                    }
                    command.words.push(Word::unknown("<(...)", vec![None], false));
                }
                Some('<' | '>') => {
                    self.redirection()?;
                    redirected = true;
                }
                Some('(') if command.words.len() == 1 && command.assigns.is_empty() => {
                    return self.function(redirected);
                }
                Some('(') => return Err(unexpected('(')),
                Some(_) if self.is_descriptor()? => {
                    self.redirection()?;
                    redirected = true;
                }
                Some(_) => {
                    if command.words.is_empty()
                        && let Some(name) = self.assignment()
                    {
                        if self.peek() == Some('(') {
                            return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::Array));
                        }
                        let appended = self.chars[self.at - 2] == '+';
                        let value = if self.is_between_words() {
                            Word::known("")
                        } else {
                            self.word()?.word
                        };
                        if value.runs_when_evaluated() {
                            return Err(UnreadableLine::EvaluatedVariable);
                        }
                        let value = if appended { Word::anything("+=") } else { value };
                        command.assigns.push((name, value));
                        continue;
                    }
                    let read = self.word()?;
                    // bash takes `{name}>` for a descriptor of that name.
                    if read.word.written().starts_with('{')
                        && matches!(self.peek(), Some('<' | '>'))
                    {
                        return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::NamedDescriptor));
                    }
                    command.words.push(read.word);
                }
            }
        }
        if command.words.is_empty() && command.assigns.is_empty() && !redirected {
            return Err(match self.peek() {
                Some(c) => unexpected(c.escape_debug()),
                None => UnreadableLine::CommandMissing,
            });
        }
        self.script.items.push(Item::Command(command));
        Ok(())
    }

    /// The rest of `name() command`; calls of the name are commands like others.
    fn function(&mut self, redirected: bool) -> Read<()> {
        self.at += 1;
        self.blanks();
        if redirected || self.peek() != Some(')') {
            return Err(unexpected('('));
        }
        self.at += 1;
        self.newlines()?;
        self.repeats += 1;
        self.command()?;
        self.repeats -= 1;
        Ok(())
    }
}

pub(super) fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
