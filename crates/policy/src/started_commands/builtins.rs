//! Shell builtins.

use super::{ProgramCall, RunLocation, SetVariable, StartedCommands};
use crate::refusal::{HiddenBecause, Unpredictable};
use crate::shell::is_name;
use crate::word::{Word, command_line};

/// Builtins that change the meaning of other words, or evaluate their arguments in unusual ways.
const UNPREDICTABLE: [&str; 18] = [
    "alias", "autoload", "bind", "compgen", "complete", "compopt", "enable", "fc", "float", "hist",
    "history", "integer", "nameref", "newgrp", "print", "repeat", "sched", "zmodload",
];

/// Builtins without external effects, which no allow list needs to name. What some of them
/// evaluate or run is judged separately.
const HARMLESS: [&str; 45] = [
    ":",
    "[",
    "[[",
    "break",
    "builtin",
    "cd",
    "chdir",
    "command",
    "continue",
    "declare",
    "dirs",
    "disown",
    "echo",
    "eval",
    "exit",
    "export",
    "false",
    "getopts",
    "hash",
    "jobs",
    "let",
    "local",
    "logout",
    "mapfile",
    "popd",
    "printf",
    "pushd",
    "pwd",
    "read",
    "readarray",
    "readonly",
    "return",
    "set",
    "shift",
    "shopt",
    "test",
    "times",
    "trap",
    "true",
    "type",
    "typeset",
    "ulimit",
    "umask",
    "unset",
    "wait",
];

/// Programs of the same names with the same effect.
const HARMLESS_PROGRAMS: [&str; 7] = ["[", "echo", "false", "printf", "pwd", "test", "true"];

/// Options that make a builtin evaluate or run its arguments.
const EVALUATING: [(&str, &[char]); 6] = [
    ("declare", &['i', 'n', 'f', 'F']),
    ("typeset", &['i', 'n', 'f', 'F']),
    ("local", &['i', 'n']),
    ("mapfile", &['C']),
    ("readarray", &['C']),
    ("hash", &['p', 'd', 'l', 't']),
];

/// Builtins that take names of variables; bash evaluates the text in brackets after a name.
const NAMING: [&str; 18] = [
    "[",
    "[[",
    "declare",
    "export",
    "getopts",
    "hash",
    "let",
    "local",
    "mapfile",
    "printf",
    "read",
    "readarray",
    "readonly",
    "set",
    "shopt",
    "test",
    "typeset",
    "unset",
];

/// Builtins of only some shells; other shells search for a program.
const NOT_EVERYWHERE: [&str; 15] = [
    "[[",
    "builtin",
    "chdir",
    "declare",
    "dirs",
    "disown",
    "let",
    "logout",
    "mapfile",
    "popd",
    "pushd",
    "readarray",
    "shopt",
    "typeset",
    "local",
];

/// Whether a builtin needs no rule to be allowed; `is_found` if a program has its name.
pub(super) fn is_harmless(name: &str, is_found: bool) -> bool {
    HARMLESS.contains(&name) && !(is_found && NOT_EVERYWHERE.contains(&name))
}

/// Whether a program needs no rule to be allowed.
pub(super) fn is_harmless_program(name: &str) -> bool {
    HARMLESS_PROGRAMS.contains(&name)
}

pub(super) fn is_builtin(name: &str) -> bool {
    ["eval", "trap", ".", "source", "cd", "pushd", "popd", "chdir"].contains(&name)
        || UNPREDICTABLE.contains(&name)
        || NAMING.contains(&name)
}

/// Whether the command changes the shell's directory.
pub(super) fn changes_directory(words: &[Word]) -> bool {
    words.first().is_some_and(|name| ["cd", "chdir", "pushd", "popd"].iter().any(|cd| name.is(cd)))
}

/// The directory that a `cd` names, if it is known.
pub(super) fn directory_operand(words: &[Word]) -> Option<String> {
    let mut operands = words.iter().skip(1).map(Word::text);
    if words.first().is_some_and(|name| name.is("popd")) {
        return None;
    }
    loop {
        let word = operands.next()??;
        match word.as_str() {
            "-L" | "-P" | "-e" | "-@" | "-n" | "--" => {}
            word if word.starts_with(['-', '+']) || word.is_empty() => return None,
            _ => return operands.next().is_none().then_some(word),
        }
    }
}

/// The assignments of `export` and similar builtins.
pub(super) fn assigned(words: &[Word]) -> Vec<(String, Word)> {
    let setting = ["export", "readonly", "local", "declare", "typeset"];
    let is_meant = |name: &Word| setting.iter().any(|one| name.is(one));
    if !words.first().is_some_and(is_meant) {
        return Vec::new();
    }
    let assignment = |word: &Word| {
        let (name, _) = word.lead().split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()))?;
        let value = match word.text() {
            Some(text) => Word::known(&text[name.len() + 1..]),
            None => word.after(name.chars().count() + 1),
        };
        // `name+=value` and `name[0]=value` change a part of the variable.
        match name.split(['+', '[']).next() {
            Some(whole) if whole != name => Some((whole.to_owned(), Word::anything("..."))),
            _ => Some((name, value)),
        }
    };
    words.iter().skip(1).filter_map(assignment).collect()
}

/// Whether `readonly` or a similar builtin names variables that cannot be assigned again.
pub(super) fn makes_read_only(words: &[Word]) -> bool {
    words.first().is_some_and(|name| name.is("readonly"))
        || (declares(words) && options(&words[1..]).any(|option| option.contains('r')))
}

/// Variables whose values bash converts at every assignment: `declare -l`.
pub(super) fn converted(words: &[Word]) -> Vec<String> {
    if !declares(words) || !options(&words[1..]).any(|option| option.contains(['l', 'u', 'c'])) {
        return Vec::new();
    }
    let name =
        |word: &Word| word.lead().split(['=', '+', '[']).next().unwrap_or_default().to_owned();
    words[1..].iter().map(name).filter(|name| is_name(name)).collect()
}

fn declares(words: &[Word]) -> bool {
    words.first().is_some_and(|name| ["declare", "typeset", "local"].iter().any(|one| name.is(one)))
}

/// The words that begin with a dash.
fn options(words: &[Word]) -> impl Iterator<Item = String> {
    words.iter().map(Word::lead).filter(|word| word.starts_with('-'))
}

impl StartedCommands {
    /// Adds the commands that a builtin runs; returns whether rules on those suffice to allow the builtin.
    pub(super) fn builtin(&mut self, call: ProgramCall<'_>) -> bool {
        match call.program {
            "eval" => self.eval(call),
            "trap" => self.trap(call),
            "." | "source" => {
                let script = call.arguments().first().filter(|word| !word.is("--"));
                match script {
                    Some(script) if !super::programs::is_stream(script, call.location) => {
                        self.script(call.arguments(), call.location);
                    }
                    _ => self.hide(call.words, HiddenBecause::ReadsStream),
                }
                false
            }
            // Only reached through another command; a direct call in a line is handled there.
            "cd" | "chdir" | "pushd" | "popd" => {
                self.directory_unknown = true;
                if let Some(target) = directory_operand(call.words) {
                    self.directories.push(call.location.directory.join(target));
                }
                false
            }
            name if NAMING.contains(&name) => {
                self.naming(call);
                false
            }
            _ => {
                let command = command_line(call.words);
                self.unpredictable.push(Unpredictable::BuiltinEffect { command });
                false
            }
        }
    }

    fn eval(&mut self, call: ProgramCall<'_>) -> bool {
        let arguments = call.arguments();
        let skipped = usize::from(arguments.first().is_some_and(|word| word.is("--")));
        let line: Option<Vec<String>> = arguments[skipped..].iter().map(Word::text).collect();
        match line {
            Some(line) => self.add_line(&line.join(" "), &call.location.inside(), true),
            None => self.hide(call.words, HiddenBecause::LineKnownLater),
        }
        true
    }

    /// An action runs at any time, in the shell's working directory at that moment.
    fn trap(&mut self, call: ProgramCall<'_>) -> bool {
        let arguments = call.arguments();
        let skipped = usize::from(arguments.first().is_some_and(|word| word.is("--")));
        let Some(action) = arguments.get(skipped) else { return false };
        match action.text() {
            Some(action) if action.is_empty() || action.starts_with('-') => return false,
            Some(action) if action.chars().all(|c| c.is_ascii_digit()) => return false,
            Some(action) => {
                let location = RunLocation { directory_unknown: true, ..call.location.inside() };
                self.add_line(&action, &location, true);
            }
            None => self.hide(call.words, HiddenBecause::LineKnownLater),
        }
        true
    }

    fn naming(&mut self, call: ProgramCall<'_>) {
        if call.arguments().iter().any(Word::runs_when_evaluated) {
            self.hide(call.words, HiddenBecause::EvaluatedText);
        }
        let evaluating = EVALUATING.iter().find(|(name, _)| *name == call.program);
        if let Some((_, letters)) = evaluating
            && let Some(option) = options(call.arguments()).find(|option| option.contains(*letters))
        {
            return self.hide(call.words, HiddenBecause::Word(option));
        }
        match call.program {
            "[" | "[[" | "test" | "hash" => return,
            "set" | "shopt" => {
                if let Some(option) = reading_option(call.arguments()) {
                    self.hide(call.words, HiddenBecause::Word(option));
                }
                return;
            }
            "let" => {
                let is_sum = |word: &Word| {
                    word.text().is_some_and(|text| !text.contains(['[', '$', '`', '"', '\'']))
                };
                if !call.arguments().iter().all(is_sum) {
                    self.hide(call.words, HiddenBecause::EvaluatedText);
                }
                return;
            }
            "printf" => {
                if call.arguments().first().is_some_and(|word| word.lead().starts_with("-v")) {
                    self.hide(call.words, HiddenBecause::Word("-v".to_owned()));
                }
                return;
            }
            _ => {}
        }
        for word in call.arguments() {
            let lead = word.lead();
            let variable = lead.split(['=', '+', '[']).next().unwrap_or_default();
            // Exporting it changes nothing, and assignments were judged before.
            let is_set = !["export", "readonly", "unset"].contains(&call.program);
            if word.get().is_none() && !lead.contains('=') {
                self.hide(call.words, HiddenBecause::NameKnownLater);
            } else if is_name(variable) && !lead.contains('=') {
                match is_set {
                    true => self.set_variable(variable, None, call.location),
                    false => {
                        self.variables.push(SetVariable { name: variable.to_owned(), value: None })
                    }
                }
            }
            if variable == "PATH" && (is_set || lead.contains('[')) {
                self.unpredictable.push(Unpredictable::SearchPath);
            }
        }
    }
}

/// An option of `set`, of `shopt` or of a shell that changes how it parses words: `-k` treats
/// assignments among arguments as variables, and comments can be switched off.
pub(super) fn reading_option(words: &[Word]) -> Option<String> {
    let mut words = words.iter().take_while(|word| !word.is("--"));
    words.find_map(|word| {
        let lead = word.lead();
        let is_letter =
            lead.starts_with(['-', '+']) && !lead.starts_with("--") && lead.contains('k');
        let is_named = ["keyword", "interactive_comments", "interactive-comments"]
            .iter()
            .any(|name| word.is(name));
        (is_letter || is_named).then_some(lead)
    })
}
