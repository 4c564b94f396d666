//! The commands in a line for a shell, with their directory, PATH and variables.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::variables::Variables;
use super::{DIRECTORIES, RunLocation, StartedCommands, WrittenFile, builtins};
use crate::refusal::{Unpredictable, UnreadableLine};
use crate::shell::{self, Item, Pipe, Script, Simple};
use crate::word::{Word, known_pieces, known_value, runs_commands};

impl StartedCommands {
    /// Adds the commands of a line. `same_shell` is whether the shell that runs it also runs
    /// the commands around it.
    pub(super) fn add_line(&mut self, line: &str, location: &RunLocation, same_shell: bool) {
        let script = match shell::read(line) {
            Ok(script) => script,
            Err(why) => {
                let line = line.to_owned();
                return self.unpredictable.push(Unpredictable::Line { line, why });
            }
        };
        self.documents.extend(script.documents.iter().cloned());
        let mut location = RunLocation { in_shell: true, ..location.clone() };
        let mut variables = Variables::of(&script);
        let looped = script.items.iter().filter_map(|item| match item {
            Item::For { name, .. } => Some(name),
            _ => None,
        });
        let sets: Vec<String> = script.sets.iter().chain(looped).cloned().collect();
        if sets.iter().any(|name| name == "PATH") {
            self.unpredictable.push(Unpredictable::SearchPath);
        }
        for name in sets {
            self.set_variable(&name, None, &location);
        }
        for item in &script.items {
            if let Item::Command(command) = item {
                self.apply_line_assignments(command, &mut location, same_shell);
            }
        }
        if !same_shell {
            location.functions.clear();
        }
        let undefined = UndefinedFunctions::of(&script);
        if evaluates_variables(&script) && has_text_to_evaluate(&script) {
            let (line, why) = (line.to_owned(), UnreadableLine::EvaluatedVariable);
            self.unpredictable.push(Unpredictable::Line { line, why });
        }
        let first_pipeline = self.pipelines;
        let outer_pipes = location.pipes.clone();
        let mut around = Vec::new();
        for item in script.items {
            match item {
                Item::Enter => around.push((location.clone(), variables.clone())),
                Item::Leave | Item::EndFunction => {
                    (location, variables) = around.pop().unwrap_or((location, variables));
                }
                Item::Function { name, conditional } => {
                    let is_sure = !conditional && !undefined.could_be(&name);
                    // It can call itself, and later commands can call it.
                    if is_sure {
                        location.functions.insert(name);
                    }
                    around.push((location.clone(), variables.clone()));
                    variables = variables.inside_function();
                }
                Item::For { name, words } => variables.enter_loop(&name, &words),
                Item::EndFor(name) => variables.leave_loop(&name),
                Item::Writes(file) => {
                    for file in variables.fill_in(&[file]).into_iter().flatten() {
                        self.add_written_file(file, &location);
                    }
                }
                Item::Command(command) => {
                    let own = command
                        .pipes
                        .iter()
                        .map(|pipe| Pipe { pipeline: pipe.pipeline + first_pipeline, ..*pipe });
                    location.pipes = outer_pipes.iter().copied().chain(own).collect();
                    let last = location.pipes.iter().map(|pipe| pipe.pipeline + 1).max();
                    self.pipelines = self.pipelines.max(last.unwrap_or_default());
                    self.add_line_command(&command, &variables, &mut location, same_shell);
                    assign(&command, &mut variables);
                }
            }
        }
    }

    fn add_line_command(
        &mut self,
        command: &Simple,
        variables: &Variables,
        location: &mut RunLocation,
        same_shell: bool,
    ) {
        self.add_named_programs(command, variables, location);
        if command.words.is_empty() {
            return;
        }
        let variants = variables.fill_in(&command.words);
        if let [words] = variants.as_slice()
            && builtins::changes_directory(words)
        {
            self.add_as_given(words, location);
            self.change_line_directory(words, command.repeats, location, same_shell);
            return;
        }
        let mut inside = location.inside();
        if command.is_timed {
            inside.functions.clear();
        }
        for words in variants {
            let before = self.commands.len();
            self.add(&words, &inside);
            if command.is_arithmetic {
                self.commands[before..].iter_mut().for_each(|command| command.is_unlikely = true);
            }
        }
    }

    pub(super) fn add_written_file(&mut self, file: Word, location: &RunLocation) {
        self.written_files.push(WrittenFile {
            file,
            directories: location.possible_directories.clone(),
            directory_unknown: location.directory_unknown,
        });
    }

    /// The assignments of a command in a line. The scope of a PATH is not tracked: it counts everywhere.
    fn apply_line_assignments(
        &mut self,
        command: &Simple,
        location: &mut RunLocation,
        same_shell: bool,
    ) {
        let exported = builtins::assigned(&command.words);
        let assigned =
            command.assigns.iter().map(|assignment| (&assignment.name, &assignment.value));
        for (name, value) in assigned.chain(exported.iter().map(|(name, value)| (name, value))) {
            if name == "PATH" {
                match value.get().filter(|_| !same_shell) {
                    Some(path) => location.search_paths.push(Some(path.to_owned())),
                    None => {
                        let home = std::env::var("HOME").ok();
                        let is_set = self.variables.iter().any(|set| set.name == "HOME");
                        let home = home.as_deref().filter(|_| !is_set);
                        let now = location.search_paths[0].as_deref();
                        match extended_path(value, now, home) {
                            Some(path) if !same_shell => location.search_paths.push(Some(path)),
                            _ => self.unpredictable.push(Unpredictable::SearchPath),
                        }
                    }
                }
                self.is_path_set = true;
            }
        }
    }

    /// `cd` in a line. It may fail, or not be reached, so the previous directory counts, too.
    fn change_line_directory(
        &mut self,
        words: &[Word],
        repeats: bool,
        location: &mut RunLocation,
        same_shell: bool,
    ) {
        self.directory_unknown |= repeats || same_shell;
        let Some(target) = builtins::directory_operand(words) else {
            location.directory_unknown = true;
            return;
        };
        if !(location.directory_unknown && Path::new(&target).is_relative()) {
            location.directory = location.directory.join(&target);
            self.directories.push(location.directory.clone());
        }
        for possible in location.possible_directories.clone() {
            let moved = possible.join(&target);
            if !location.possible_directories.contains(&moved) {
                location.possible_directories.push(moved);
            }
        }
        if location.possible_directories.len() > DIRECTORIES {
            location.possible_directories.truncate(DIRECTORIES);
            location.directory_unknown = true;
        }
    }
}

/// Functions that a line may remove again.
struct UndefinedFunctions {
    /// Arguments of `unset`.
    names: Vec<Word>,
    /// `unset` occurs elsewhere, such as in a line for `eval`.
    any: bool,
}

impl UndefinedFunctions {
    fn of(script: &Script) -> Self {
        let mut found = Self { names: Vec::new(), any: false };
        for item in &script.items {
            let Item::Command(command) = item else { continue };
            match command.words.split_first() {
                Some((first, rest)) if first.is("unset") => found.names.extend_from_slice(rest),
                _ => found.any |= command.words.iter().any(|word| word.written().contains("unset")),
            }
        }
        found
    }

    fn could_be(&self, name: &str) -> bool {
        self.any || self.names.iter().any(|word| word.could_be(name))
    }
}

/// Whether bash evaluates variables of a line as numbers.
fn evaluates_variables(script: &Script) -> bool {
    const COMPARING: [&str; 6] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];
    let compares = |item: &Item| match item {
        Item::Command(Simple { words, .. }) => {
            words.first().is_some_and(|first| first.is("[["))
                && words.iter().any(|word| COMPARING.iter().any(|option| word.is(option)))
        }
        _ => false,
    };
    script.evaluates_variables || script.items.iter().any(compares)
}

/// Whether text in a line, which a variable could contain, runs something if bash evaluates
/// the variable as a number: `a[$(command)]`.
fn has_text_to_evaluate(script: &Script) -> bool {
    let is_it = |text: &str| text.split_once('[').is_some_and(|(_, rest)| runs_commands(rest));
    let in_words = |item: &Item| match item {
        Item::Command(command) => command
            .words
            .iter()
            .any(|word| word.runs_when_evaluated() && word.written().contains('[')),
        _ => false,
    };
    script.documents.iter().any(|text| is_it(text)) || script.items.iter().any(in_words)
}

/// The effect of a command on variables of its shell.
fn assign(command: &Simple, variables: &mut Variables) {
    let surely = command.words.is_empty() && !command.conditional;
    for assignment in &command.assigns {
        variables.assign(&assignment.name, &assignment.value, surely);
    }
    // Shells other than bash do not know these, and do not change the variable.
    let is_of_bash = |word: &Word| word.is("declare") || word.is("typeset");
    let surely = !command.conditional && !command.words.first().is_some_and(is_of_bash);
    for (name, value) in builtins::assigned(&command.words) {
        variables.assign(&name, &value, surely);
    }
}

/// `dir:$PATH` and `$HOME/dir:$PATH`, with the current PATH.
fn extended_path(value: &Word, now: Option<&OsStr>, home: Option<&str>) -> Option<OsString> {
    let own = std::env::var_os("PATH");
    let now = now.or(own.as_deref())?.to_str()?;
    let known = |name: &str| match name {
        "PATH" => Some(known_pieces(now)),
        "HOME" => home.map(known_pieces),
        _ => None,
    };
    known_value(&value.assigned(&known)?).map(Into::into)
}
