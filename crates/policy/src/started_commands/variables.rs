//! The values of variables in a line, as far as the line itself determines them.
//!
//! Only an assignment that certainly happens, in the same shell and before the use, counts. A variable that is
//! also set in a loop or a function may have every value that the line assigns.

use std::collections::{BTreeMap, BTreeSet};

use super::builtins;
use crate::shell::{Item, Script, Simple, is_name};
use crate::word::{Value, Word, known_value, value_runs_commands};

/// Up to this many values are examined one by one.
const COMBINATIONS: usize = 16;

#[derive(Clone, Default)]
pub(super) struct Variables {
    /// Possible values of each variable at this point; a missing variable may be anything.
    current: BTreeMap<String, Vec<Value>>,
    /// Every value that the line assigns; `None` if one of them is unknown.
    assigned: BTreeMap<String, Option<Vec<Value>>>,
    /// How many times each is set.
    times: BTreeMap<String, usize>,
    /// Set in a loop or in a function.
    repeated: BTreeSet<String>,
    /// Some command of the line may set any variable, or changes how words are split.
    is_anything_set: bool,
    /// The same, but only for commands that certainly do so.
    is_anything_assigned: bool,
}

/// Builtins that run unknown commands in the same shell.
const SETS_ANYTHING: [&str; 8] =
    ["eval", ".", "source", "trap", "command", "builtin", "time", "noglob"];

/// Builtins that set the variables named by their arguments.
const SETS_NAMED: [&str; 13] = [
    "read",
    "mapfile",
    "readarray",
    "getopts",
    "unset",
    "let",
    "printf",
    "declare",
    "typeset",
    "local",
    "wait",
    "export",
    "readonly",
];

/// Variables that shells set by themselves.
const KEPT_BY_SHELLS: [&str; 22] = [
    "_",
    "COPROC",
    "DIRSTACK",
    "EPOCHREALTIME",
    "EPOCHSECONDS",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "LINENO",
    "MAPFILE",
    "OLDPWD",
    "OPTARG",
    "OPTERR",
    "OPTIND",
    "PIPESTATUS",
    "PPID",
    "PWD",
    "RANDOM",
    "REPLY",
    "SECONDS",
    "UID",
];

fn is_kept_by_shells(name: &str) -> bool {
    KEPT_BY_SHELLS.contains(&name) || name.starts_with("BASH") || name.starts_with("COMP_")
}

impl Variables {
    /// The effect of a line on variables.
    pub(super) fn of(script: &Script) -> Self {
        let mut found = Self::default();
        for name in &script.sets {
            found.note(name, None, true);
        }
        for item in &script.items {
            match item {
                Item::For { name, words } => {
                    for word in words {
                        found.note(name, word.looped_over(), false);
                    }
                }
                Item::Command(command) => found.note_command(command),
                _ => {}
            }
        }
        found.is_anything_assigned = found.is_anything_set;
        for item in &script.items {
            if let Item::Command(Simple { words, .. }) = item {
                found.is_anything_set |= words.first().is_some_and(|first| found.may_set(first));
            }
        }
        found
    }

    /// Whether a command whose name contains variables could turn out to set others.
    fn may_set(&self, first: &Word) -> bool {
        if first.get().is_some() {
            return false;
        }
        let sets = |value: &Value| {
            let sets = |name: &str| SETS_ANYTHING.contains(&name) || SETS_NAMED.contains(&name);
            known_value(value).is_none_or(|value| value.split_whitespace().any(sets))
        };
        let mut variables = first.variables().peekable();
        variables.peek().is_none()
            || variables.any(|name| match self.assigned.get(name) {
                Some(Some(values)) => values.iter().any(sets),
                _ => true,
            })
    }

    fn note(&mut self, name: &str, value: Option<Value>, repeated: bool) {
        *self.times.entry(name.to_owned()).or_default() += 1;
        let values = self.assigned.entry(name.to_owned()).or_insert_with(|| Some(Vec::new()));
        match (values.as_mut(), value) {
            (Some(values), Some(value)) => values.push(value),
            _ => *values = None,
        }
        if is_kept_by_shells(name) {
            *values = None;
        }
        if repeated || is_kept_by_shells(name) {
            self.repeated.insert(name.to_owned());
        }
        self.is_anything_set |= name == "IFS";
    }

    fn note_command(&mut self, command: &Simple) {
        for assignment in &command.assigns {
            let value = assignment.value.assigned(&|_| None);
            self.note(&assignment.name, value, command.repeats);
        }
        let exported = builtins::assigned(&command.words);
        // A later assignment to a read-only variable may fail, and the line continues.
        let is_final = builtins::makes_read_only(&command.words);
        for (name, value) in &exported {
            self.note(name, value.assigned(&|_| None), command.repeats || is_final);
        }
        for name in builtins::converted(&command.words) {
            self.note(&name, None, true);
        }
        let Some(first) = command.words.first() else { return };
        let Some(first) = first.text() else { return };
        let looks = command.words.get(1).is_some_and(|word| word.is("-v") || word.is("-V"));
        if SETS_ANYTHING.contains(&first.as_str()) && !(first == "command" && looks) {
            self.is_anything_set = true;
        }
        if SETS_NAMED.contains(&first.as_str()) {
            for word in &command.words[1..] {
                let lead = word.lead();
                let name = lead.split(['=', '+', '[']).next().unwrap_or_default();
                let is_exported = exported.iter().any(|(exported, _)| exported == name);
                let is_only_exported = ["export", "readonly"].contains(&first.as_str());
                // A declaration keeps the value; anything else makes it unknown.
                let is_declared = ["declare", "typeset", "local"].contains(&first.as_str());
                if is_name(name) && !is_exported && !is_only_exported {
                    self.note(name, None, command.repeats || !is_declared);
                }
                self.is_anything_set |=
                    word.get().is_none() && lead.is_empty() && first != "printf";
            }
        }
    }

    /// A command assigns a variable. `surely` if that certainly happens, and in this shell.
    pub(super) fn assign(&mut self, name: &str, value: &Word, surely: bool) {
        let value = value.assigned(&|name| self.only(name));
        if self.repeated.contains(name) {
            match self.assigned.get(name).cloned().flatten() {
                Some(values) if surely || self.current.contains_key(name) => {
                    self.current.insert(name.to_owned(), values);
                }
                _ => _ = self.current.remove(name),
            }
            return;
        }
        match (value, surely) {
            (Some(value), true) => _ = self.current.insert(name.to_owned(), vec![value]),
            (Some(value), false) => {
                if let Some(values) = self.current.get_mut(name) {
                    values.push(value);
                }
            }
            (None, _) => _ = self.current.remove(name),
        }
    }

    /// A loop begins.
    pub(super) fn enter_loop(&mut self, name: &str, words: &[Word]) {
        let looped: Option<Vec<Value>> = words.iter().map(Word::looped_over).collect();
        let is_set_elsewhere = self.times.get(name).is_some_and(|times| *times > words.len());
        let values =
            if is_set_elsewhere { self.assigned.get(name).cloned().flatten() } else { looped };
        match values {
            Some(values) => _ = self.current.insert(name.to_owned(), values),
            None => _ = self.current.remove(name),
        }
    }

    pub(super) fn leave_loop(&mut self, name: &str) {
        self.current.remove(name);
    }

    /// The same in a function, which may be called at any time.
    pub(super) fn inside_function(&self) -> Self {
        let mut inside = self.clone();
        inside.current.retain(|name, _| self.times.get(name) == Some(&1));
        inside
    }

    /// The value, if there is only one.
    fn only(&self, name: &str) -> Option<Value> {
        match self.current.get(name).map(Vec::as_slice) {
            Some([value]) if !self.is_anything_set => Some(value.clone()),
            _ => None,
        }
    }

    /// Whether an assigned value would run something if bash evaluates the variable.
    pub(super) fn runs_when_evaluated(&self, word: &Word) -> bool {
        // Whatever else may set the variables in it, this is one of the values.
        let value = word.assigned(&|name| match self.current.get(name).map(Vec::as_slice) {
            Some([value]) => Some(value.clone()),
            _ => None,
        });
        value.is_some_and(|value| value_runs_commands(&value))
    }

    /// The text of a word that is assigned to a variable, if known.
    pub(super) fn assigned_text(&self, word: &Word) -> Option<String> {
        word.assigned(&|name| self.only(name)).as_deref().and_then(known_value)
    }

    /// The possible words of a command.
    pub(super) fn fill_in(&self, words: &[Word]) -> Vec<Vec<Word>> {
        let used: BTreeSet<&str> = words.iter().flat_map(Word::variables).collect();
        let known = used.iter().filter_map(|name| {
            let values = self.current.get(*name).filter(|_| !self.is_anything_set)?;
            Some((*name, values))
        });
        let mut combinations: Vec<BTreeMap<&str, &Value>> = vec![BTreeMap::new()];
        for (name, values) in known {
            if values.is_empty() || combinations.len() * values.len() > COMBINATIONS {
                continue;
            }
            combinations = combinations
                .iter()
                .flat_map(|chosen| {
                    values.iter().map(move |value| {
                        let mut chosen = chosen.clone();
                        chosen.insert(name, value);
                        chosen
                    })
                })
                .collect();
        }
        let fill = |chosen: &BTreeMap<&str, &Value>| {
            let value = |name: &str| chosen.get(name).map(|value| (*value).clone());
            let is_set = |name: &str| self.is_anything_assigned || self.times.contains_key(name);
            words.iter().flat_map(|word| word.filled_in(&value, &is_set)).collect()
        };
        combinations.iter().map(fill).collect()
    }
}
