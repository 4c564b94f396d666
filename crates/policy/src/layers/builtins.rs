//! Commands that a shell carries out itself.

use super::{Layers, PATH_IN_ENV, PLAIN_LINE, Place};
use crate::shell::is_name;
use crate::word::Word;

/// They change what other words mean, or evaluate their arguments in ways of their own.
const UNTOLD: [&str; 24] = [
    "alias",
    "autoload",
    "bind",
    "compgen",
    "complete",
    "compopt",
    "declare",
    "enable",
    "fc",
    "float",
    "hash",
    "hist",
    "history",
    "integer",
    "let",
    "mapfile",
    "nameref",
    "newgrp",
    "print",
    "readarray",
    "repeat",
    "sched",
    "typeset",
    "zmodload",
];

/// They take names of variables; bash evaluates what stands in brackets after one.
const NAMING: [&str; 11] =
    ["[", "[[", "export", "getopts", "local", "printf", "read", "readonly", "set", "test", "unset"];

pub(super) fn is_builtin(name: &str) -> bool {
    ["eval", "trap", ".", "source", "cd", "pushd", "popd", "chdir"].contains(&name)
        || UNTOLD.contains(&name)
        || NAMING.contains(&name)
}

/// Whether the command changes the shell's directory.
pub(super) fn moves(words: &[Word]) -> bool {
    words.first().is_some_and(|name| ["cd", "chdir", "pushd", "popd"].iter().any(|cd| name.is(cd)))
}

/// Where a `cd` goes to, if that can be told.
pub(super) fn target(words: &[Word]) -> Option<String> {
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

/// What `export` and its like assign.
pub(super) fn assigned(words: &[Word]) -> Vec<(String, Word)> {
    let is_meant = |name: &Word| ["export", "readonly", "local"].iter().any(|one| name.is(one));
    if !words.first().is_some_and(is_meant) {
        return Vec::new();
    }
    let assignment = |word: &Word| {
        let (name, _) = word.lead().split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()))?;
        let value = match word.text() {
            Some(text) => Word::known(&text[name.len() + 1..]),
            None => Word::anything(&word.shown()),
        };
        Some((name, value))
    };
    words.iter().skip(1).filter_map(assignment).collect()
}

impl Layers {
    /// Whether a rule on what was found inside is enough to allow the whole.
    pub(super) fn builtin(
        &mut self,
        name: &str,
        words: &[Word],
        whole: &[Word],
        place: &Place,
        depth: usize,
    ) -> bool {
        match name {
            "eval" => self.eval(words, whole, place, depth),
            "trap" => self.trap(words, whole, place, depth),
            "." | "source" => {
                let script = words.first().filter(|word| !word.is("--"));
                if script.is_none_or(|script| super::programs::is_stream(script, place)) {
                    self.hidden_by(whole, "it reads commands from a stream");
                }
                false
            }
            // Only reached through another command; one that stands alone in a line is followed.
            "cd" | "chdir" | "pushd" | "popd" => {
                self.lost = true;
                if let Some(target) = target(whole) {
                    self.directories.push(place.at.join(target));
                }
                false
            }
            _ if NAMING.contains(&name) => {
                self.naming(name, words, whole);
                false
            }
            _ => {
                let line = crate::shown(whole);
                let why = format!("what {line} does to the commands around it cannot be told");
                self.cannot_tell(why, PLAIN_LINE);
                false
            }
        }
    }

    fn eval(&mut self, words: &[Word], whole: &[Word], place: &Place, depth: usize) -> bool {
        let skipped = usize::from(words.first().is_some_and(|word| word.is("--")));
        let line: Option<Vec<String>> = words[skipped..].iter().map(Word::text).collect();
        match line {
            Some(line) => self.line(&line.join(" "), place, depth + 1, true),
            None => self.hidden_by(whole, "the line is only known when it runs"),
        }
        true
    }

    /// An action runs at any time: wherever the shell then is.
    fn trap(&mut self, words: &[Word], whole: &[Word], place: &Place, depth: usize) -> bool {
        let skipped = usize::from(words.first().is_some_and(|word| word.is("--")));
        let Some(action) = words.get(skipped) else { return false };
        match action.text() {
            Some(action) if action.is_empty() || action.starts_with('-') => return false,
            Some(action) if action.chars().all(|c| c.is_ascii_digit()) => return false,
            Some(action) => {
                let place = Place { lost: true, ..place.clone() };
                self.line(&action, &place, depth + 1, true);
            }
            None => self.hidden_by(whole, "the line is only known when it runs"),
        }
        true
    }

    fn naming(&mut self, name: &str, words: &[Word], whole: &[Word]) {
        if words.iter().any(Word::is_armed) {
            self.hidden_by(whole, "quoted text in it could be run when it is evaluated");
        }
        match name {
            "[" | "[[" | "test" | "set" => return,
            "printf" => {
                if words.first().is_some_and(|word| word.lead().starts_with("-v")) {
                    self.hidden_by(whole, "because of -v");
                }
                return;
            }
            _ => {}
        }
        for word in words {
            let lead = word.lead();
            let variable = lead.split('=').next().unwrap_or_default();
            if word.get().is_none() && !lead.contains('=') {
                self.hidden_by(whole, "a name in it is only known when it runs");
            } else if is_name(variable) {
                self.variables.push(variable.to_owned());
            }
            // To export it changes nothing, and what it is assigned was seen before.
            if word.is("PATH") && !["export", "readonly"].contains(&name) {
                self.cannot_tell("what PATH is set to cannot be told", PATH_IN_ENV);
            }
        }
    }
}
