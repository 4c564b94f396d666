//! Parses a line for a shell and lists every command in it.
//!
//! Accepts only syntax that all of `sh`, `dash`, `bash` and `ksh` interpret alike, or that one of them
//! rejects; anything else is an error that names it. A lenient parser, or one for a single
//! shell, would find other commands than the shell that runs the line. Nothing is expanded.

mod compound;
mod expand;
mod lex;

use super::refusal::{AmbiguousSyntax, UnreadableLine};
use super::word::{PROCESS_SUBSTITUTION, Word};

type Read<T> = Result<T, UnreadableLine>;

/// The content of a line.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) items: Vec<Item>,
    /// Variables that are set by something other than an assignment.
    pub(super) sets: Vec<String>,
    /// Texts that commands read: here-documents and here-strings.
    pub(super) documents: Vec<String>,
    /// Arithmetic uses variables, whose values bash evaluates.
    pub(super) evaluates_variables: bool,
}

#[derive(Debug)]
pub(super) enum Item {
    /// A subshell begins; changes to its state end with it.
    Enter,
    Leave,
    /// The body of a function begins; it runs when the function is called.
    Function {
        name: String,
        /// The definition may not be executed, or in a subshell.
        conditional: bool,
    },
    EndFunction,
    /// A variable takes each of these words in the commands that follow.
    For {
        name: String,
        words: Vec<Word>,
    },
    EndFor(String),
    Command(Simple),
    /// A redirection writes this file.
    Writes(Word),
}

/// Assignments, and the words of a command.
#[derive(Debug, Default)]
pub(super) struct Simple {
    pub(super) assigns: Vec<Assignment>,
    pub(super) words: Vec<Word>,
    /// In a loop or a function: it may run many times, and before the commands preceding it.
    pub(super) repeats: bool,
    /// It may not run, or in a subshell.
    pub(super) conditional: bool,
    /// Only some shells read a command here.
    pub(super) is_arithmetic: bool,
    /// After `time`, which is a program in some shells and knows no functions there.
    pub(super) is_timed: bool,
    /// The pipelines it is in, each with its position. The output of a command substitution goes
    /// to the command that contains it, as through a pipe.
    pub(super) pipes: Vec<Pipe>,
}

/// `name=value` before a command.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) name: String,
    pub(super) value: Word,
}

/// A position in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pipe {
    pub(super) pipeline: usize,
    pub(super) place: usize,
}

/// How deep a line may be nested.
const DEPTH: usize = 40;

/// Keywords of constructs that are not parsed.
const FOREIGN: [&str; 2] = ["select", "coproc"];

const MISPLACED: [&str; 9] = ["then", "else", "elif", "fi", "do", "done", "esac", "}", "in"];

pub(super) fn read(line: &str) -> Read<Script> {
    let mut reader = Reader::new(line, 0)?;
    reader.list(&[])?;
    reader.finish()
}

/// The words of the commands in a line, as far as it can be parsed.
pub(super) fn commands(line: &str) -> Vec<Vec<Word>> {
    let items = read(line).map(|script| script.items).unwrap_or_default();
    let words = |item| match item {
        Item::Command(command) => Some(command.words),
        _ => None,
    };
    items.into_iter().filter_map(words).collect()
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    repeats: usize,
    /// The pipelines that contain the next command.
    pipes: Vec<Pipe>,
    /// How many pipelines there are so far.
    pipelines: usize,
    script: Script,
    /// Here-documents whose text begins after this line.
    documents: Vec<Document>,
    /// A backslash at the end of a line joins two apparent tokens.
    joined: bool,
    /// How many subshells and substitutions surround the current position.
    inside: usize,
    /// A here-document was read inside one of them. bash 5.2 loses an assignment that follows it.
    after_document: bool,
}

struct Document {
    end: String,
    /// Leading tabs of its lines are ignored.
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
            pipes: Vec::new(),
            pipelines: 0,
            script: Script::default(),
            documents: Vec::new(),
            joined: false,
            inside: 0,
            after_document: false,
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
            let first = self.script.items.len();
            self.and_or()?;
            self.blanks();
            match self.peek() {
                Some(';') if !self.is_at_end() => self.at += 1,
                Some('&') => {
                    self.at += 1;
                    self.mark_conditional(first);
                }
                Some('\n') => {}
                _ if self.is_at_end() => return Ok(()),
                // After a subshell or a group a closing keyword needs no separator.
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

    /// The commands since `first` may not run, or in a subshell.
    fn mark_conditional(&mut self, first: usize) {
        for item in &mut self.script.items[first..] {
            match item {
                Item::Command(Simple { conditional, .. }) | Item::Function { conditional, .. } => {
                    *conditional = true;
                }
                _ => {}
            }
        }
    }

    fn and_or(&mut self) -> Read<()> {
        self.pipeline()?;
        let second = self.script.items.len();
        loop {
            self.blanks();
            if !(self.eat("&&") || self.eat("||")) {
                self.mark_conditional(second);
                return Ok(());
            }
            self.newlines()?;
            self.pipeline()?;
        }
    }

    fn pipeline(&mut self) -> Read<()> {
        self.blanks();
        let mut is_timed = false;
        loop {
            let time = self.time();
            if !time && !self.eat_word("!") {
                break;
            }
            is_timed |= time;
            self.blanks();
        }
        let first = self.script.items.len();
        self.enter_pipeline();
        loop {
            let before = self.script.items.len();
            self.command()?;
            if let Some(Item::Command(command)) =
                self.script.items.get_mut(before..).and_then(<[_]>::last_mut)
            {
                command.is_timed = std::mem::take(&mut is_timed);
            }
            self.blanks();
            if self.peek() != Some('|') || self.chars.get(self.at + 1) == Some(&'|') {
                if self.pipes.pop().is_some_and(|pipe| pipe.place > 0) {
                    self.mark_conditional(first);
                }
                return Ok(());
            }
            self.next_place();
            self.at += 1;
            if self.peek() == Some('&') {
                self.at += 1;
            }
            self.newlines()?;
        }
    }

    fn enter_pipeline(&mut self) {
        self.pipes.push(Pipe { pipeline: self.pipelines, place: 0 });
        self.pipelines += 1;
    }

    /// The next command reads the output of the previous ones.
    fn next_place(&mut self) {
        if let Some(pipe) = self.pipes.last_mut() {
            pipe.place += 1;
        }
    }

    /// `time` before a pipeline is a keyword in bash; with options it is a program.
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

    fn simple(&mut self) -> Read<()> {
        let mut command = Simple {
            repeats: self.repeats > 0,
            conditional: self.after_document,
            ..Simple::default()
        };
        let mut redirected = false;
        // Substitutions in its words run before it.
        self.enter_pipeline();
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
                    command.words.push(Word::unknown(PROCESS_SUBSTITUTION, vec![None], false));
                }
                Some('<' | '>') => {
                    self.redirection()?;
                    redirected = true;
                }
                Some('(') if command.words.len() == 1 && command.assigns.is_empty() => {
                    self.pipes.pop();
                    return self.function(&command.words[0].written(), redirected);
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
                        let value = self.assigned_value()?;
                        command.assigns.push(Assignment { name, value });
                        continue;
                    }
                    let read = self.word()?;
                    // bash interprets `{name}>` as a descriptor of that name.
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
        self.next_place();
        command.pipes.clone_from(&self.pipes);
        self.pipes.pop();
        self.script.items.push(Item::Command(command));
        Ok(())
    }

    /// The value after the `=` of an assignment.
    fn assigned_value(&mut self) -> Read<Word> {
        let appended = self.chars[self.at - 2] == '+';
        if self.peek() == Some('(') {
            self.array()?;
            // bash treats what follows as a part of the same word.
            if !self.is_between_words() {
                return Err(UnreadableLine::Ambiguous(AmbiguousSyntax::Array));
            }
            return Ok(Word::anything("(...)"));
        }
        let value = if self.is_between_words() { Word::known("") } else { self.word()?.word };
        if value.runs_when_evaluated() {
            return Err(UnreadableLine::EvaluatedVariable);
        }
        Ok(if appended { Word::anything("+=") } else { value })
    }
}

pub(super) fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
