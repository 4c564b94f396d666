//! Files that a line makes before it runs them. Which program such a file is cannot be determined
//! before the line runs: it may be a link to another one.
//!
//! Compilers and build tools make programs that are new; only what copies, links, unpacks or
//! downloads files counts here.

use std::path::Path;

use super::{ProgramCall, StartedCommands};
use crate::refusal::Unpredictable;
use crate::word::{Word, command_line};

/// They give their operands, or copies of them, other names.
const COPYING: [&str; 12] =
    ["ln", "link", "cp", "mv", "install", "rsync", "scp", "tee", "dd", "gcp", "gln", "gmv"];

/// They make files whose names are not among their arguments.
const UNPACKING: [&str; 16] = [
    "tar", "bsdtar", "gtar", "unzip", "cpio", "pax", "7z", "7za", "7zr", "unrar", "ar", "curl",
    "wget", "aria2c", "fetch", "ditto",
];

/// A file that a command of the line makes.
#[derive(Debug)]
pub(super) struct MadeFile {
    /// `None`: any file.
    path: Option<Word>,
}

impl StartedCommands {
    /// Notes the files that a program makes.
    pub(super) fn note_made_files(&mut self, call: ProgramCall<'_>) {
        let name = call.name();
        let arguments = call.arguments();
        if UNPACKING.contains(&name.as_str()) {
            self.made.push(MadeFile { path: None });
            return;
        }
        if !COPYING.contains(&name.as_str()) {
            return;
        }
        let is_whole = |word: &Word| {
            let text = word.lead();
            text.starts_with('-') && !text.starts_with("--") && text.contains(['r', 'R', 'a'])
                || ["--recursive", "--archive"].iter().any(|option| word.is(option))
        };
        if name == "mv" || name == "rsync" || arguments.iter().any(is_whole) {
            self.made.push(MadeFile { path: None });
        }
        for word in arguments {
            // `of=FILE`, `--target-directory=DIR`
            let word = match (word.text(), name.as_str()) {
                (Some(text), "dd") => match text.strip_prefix("of=") {
                    Some(file) => Word::known(file),
                    None => continue,
                },
                (Some(text), _) if text.starts_with('-') => continue,
                _ => word.clone(),
            };
            self.made.push(MadeFile { path: Some(word) });
        }
    }

    /// Refuses programs that are files which the line itself makes.
    pub(super) fn check_made_files(&mut self) {
        for written in &self.written_files {
            self.made.push(MadeFile { path: Some(written.file.clone()) });
        }
        if self.made.is_empty() {
            return;
        }
        let mut found = Vec::new();
        for command in &self.commands {
            let Some(given) = command.words.first().and_then(Word::text) else { continue };
            let is_path = given.contains('/');
            let exists = command.programs.iter().all(|program| program.real().is_some());
            let is_made = self.made.iter().any(|made| match &made.path {
                None => is_path && !exists,
                Some(path) if is_path => could_be_file(path, &given),
                // A bare name is looked for along PATH only.
                Some(path) => {
                    let lead = path.lead();
                    let may_be_found = self.is_path_set
                        || (path.get().is_none() && !lead.contains('/'))
                        || (lead.starts_with('/') && is_on_path(&lead));
                    may_be_found && could_be_name(path, &given, exists)
                }
            });
            if is_made && !is_own_builtin(&given, command.in_shell) {
                let command = command_line(&command.words);
                found.push(Unpredictable::MadeFile { command, file: given });
            }
        }
        self.unpredictable.extend(found);
    }
}

/// Builtins are found before any file is.
fn is_own_builtin(given: &str, in_shell: bool) -> bool {
    in_shell && super::builtins::is_harmless(given)
}

fn name_of(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// Whether a made file may be the one that the program's path names. Going by the last part of
/// the name alone, whatever directory it is in.
fn could_be_file(made: &Word, program: &str) -> bool {
    let name = name_of(program);
    match made.text() {
        Some(made) => name_of(&made) == name,
        None => made.could_be(name) || made.could_be(&format!("*/{name}")),
    }
}

fn could_be_name(made: &Word, program: &str, exists: bool) -> bool {
    match made.text() {
        Some(made) => name_of(&made) == program,
        // A name that could be anything counts for what is not there yet.
        None if exists => {
            let ending = format!("/{program}");
            made.written().trim_end_matches(['"', '\'']).ends_with(&ending)
        }
        None => made.could_be(program) || made.could_be(&format!("*/{program}")),
    }
}

fn is_on_path(file: &str) -> bool {
    let Some(directory) = Path::new(file).parent() else { return false };
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|on_path| on_path == directory)
}
