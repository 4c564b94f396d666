//! Files that a line creates before it runs them. The program in such a file cannot be determined
//! before the line runs: it may be a link to another one.
//!
//! Compilers and build tools create new programs; only commands that copy, link, unpack or
//! download files count here.

use std::path::Path;

use super::{ProgramCall, RunLocation, StartedCommand, StartedCommands};
use crate::path::without_dots;
use crate::refusal::{HiddenBecause, Unpredictable};
use crate::word::{Word, command_line};

/// Programs that give their operands, or copies of them, other names.
const COPYING: [&str; 21] = [
    "ln", "link", "cp", "mv", "install", "rsync", "scp", "tee", "dd", "gcp", "gln", "gmv", "iconv",
    "objcopy", "openssl", "shuf", "sort", "sponge", "strip", "uniq", "xxd",
];

/// Programs that create files whose names are not among their arguments.
const UNPACKING: [&str; 33] = [
    "tar",
    "bsdtar",
    "gtar",
    "unzip",
    "cpio",
    "pax",
    "7z",
    "7za",
    "7zr",
    "unrar",
    "ar",
    "curl",
    "wget",
    "aria2c",
    "fetch",
    "ditto",
    "bunzip2",
    "bzip2",
    "csplit",
    "gunzip",
    "gzip",
    "lz4",
    "lzma",
    "patch",
    "rename",
    "split",
    "uncompress",
    "unlz4",
    "unlzma",
    "unxz",
    "unzstd",
    "xz",
    "zstd",
];

/// Programs that write files named by their operands, options or code.
const WRITING: [&str; 39] = [
    "tee", "cp", "mv", "ln", "install", "dd", "rsync", "sed", "sponge", "perl", "gsed", "gcp",
    "gmv", "gln", "link", "scp", "awk", "gawk", "mawk", "nawk", "find", "sort", "shuf", "uniq",
    "iconv", "xxd", "openssl", "curl", "wget", "aria2c", "patch", "ed", "ex", "vi", "vim", "nvim",
    "truncate", "strip", "git",
];

/// Files with settings in a repository.
const REPOSITORY_SETTINGS: [&str; 2] = ["config", "config.worktree"];

/// A file that a command of the line creates.
#[derive(Debug)]
pub(super) struct MadeFile {
    /// `None`: any file.
    path: Option<Word>,
    /// It may be a directory with programs in it.
    is_link: bool,
}

impl StartedCommands {
    /// Records the files that a program creates.
    pub(super) fn note_made_files(&mut self, call: ProgramCall<'_>) {
        let name = call.name();
        let arguments = call.arguments();
        if WRITING.contains(&name.as_str()) {
            let written = written_words(&name, arguments);
            let settings = written.into_iter().find(|word| is_git_settings(word, call.location));
            if let Some(file) = settings {
                let setting = file.written();
                self.hide(call.words, HiddenBecause::GitSetting { setting });
            }
        }
        let moves =
            call.program == "git" && arguments.iter().any(|word| word.text_without_gaps() == "mv");
        if moves || UNPACKING.contains(&name.as_str()) {
            self.made.push(MadeFile { path: None, is_link: false });
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
            self.made.push(MadeFile { path: None, is_link: false });
        }
        let is_link = matches!(name.as_str(), "ln" | "gln");
        for word in arguments {
            // `of=FILE`, `--target-directory=DIR`
            let word = match (word.text(), name.as_str()) {
                (Some(text), "dd") => match text.strip_prefix("of=") {
                    Some(file) => Word::known(file),
                    None => continue,
                },
                (Some(text), "sort" | "shuf" | "strip" | "iconv") if text.starts_with("-o") => {
                    Word::known(&text[2..])
                }
                (Some(text), _) if text.starts_with("--output=") => {
                    Word::known(&text["--output=".len()..])
                }
                (Some(text), _) if text.starts_with('-') => continue,
                _ => word.clone(),
            };
            self.made.push(MadeFile { path: Some(word), is_link });
        }
    }

    /// Refuses settings of a repository that the line itself creates, in any directory.
    fn check_made_repositories(&mut self) {
        let makes = |command: &StartedCommand| {
            let is_git = command.words.first().is_some_and(|word| could_be_file(word, "git"));
            is_git && command.words.iter().any(|word| word.is("init") || word.is("clone"))
        };
        if !self.commands.iter().any(makes) {
            return;
        }
        let is_settings = |made: &&MadeFile| {
            let named =
                |path: &Word| REPOSITORY_SETTINGS.iter().any(|name| could_be_file(path, name));
            made.path.as_ref().is_some_and(named)
        };
        let settings = self.made.iter().find(is_settings).and_then(|made| made.path.clone());
        if let Some(file) = settings {
            let setting = file.written();
            self.hide(&[Word::known(">"), file], HiddenBecause::GitSetting { setting });
        }
    }

    /// Refuses programs whose files the line itself creates.
    pub(super) fn check_made_files(&mut self) {
        let settings = self.written_files.iter().filter(|written| {
            written.directories.iter().any(|dir| could_be_git_settings(&written.file, dir))
        });
        let settings: Vec<Word> = settings.map(|written| written.file.clone()).collect();
        for file in settings {
            let setting = file.written();
            self.hide(&[Word::known(">"), file], HiddenBecause::GitSetting { setting });
        }
        for written in &self.written_files {
            self.made.push(MadeFile { path: Some(written.file.clone()), is_link: false });
        }
        if self.made.is_empty() {
            return;
        }
        self.check_made_repositories();
        let mut found = Vec::new();
        for command in &self.commands {
            let Some(given) = command.words.first().and_then(Word::text) else { continue };
            let is_path = given.contains('/');
            let exists = command.programs.iter().all(|program| program.real().is_some());
            let is_made = self.made.iter().any(|made| match &made.path {
                None => is_path && !exists,
                Some(path) if is_path && made.is_link => could_be_part(path, &given),
                Some(path) if is_path => could_be_file(path, &given),
                // A bare name is searched along PATH only.
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

/// The words that may name a file that a program writes.
fn written_words<'a>(name: &str, arguments: &'a [Word]) -> Vec<&'a Word> {
    let writes = |word: &Word| {
        let lead = word.lead();
        match name {
            "git" => lead.starts_with("--output") || lead.starts_with("-o"),
            _ => lead.starts_with("-fprint") || lead == "-fls",
        }
    };
    match name {
        // These mostly read the files that their arguments name.
        "git" | "find" => {
            let options = (0..arguments.len()).filter(|at| writes(&arguments[*at]));
            options.flat_map(|at| arguments.iter().skip(at).take(2)).collect()
        }
        _ => arguments.iter().collect(),
    }
}

/// Whether a word names a file with settings of git, which can name programs; also as part of an
/// option or of code.
fn is_git_settings(word: &Word, location: &RunLocation) -> bool {
    let text = word.text_without_gaps();
    let parts = text.split(|c: char| c.is_whitespace() || "=\"';,<>|(){}".contains(c));
    let attached = |part: &&str| part.starts_with("-o") || part.starts_with("-O");
    let parts = parts.flat_map(|part| [Some(part), Some(part).filter(attached).map(|p| &p[2..])]);
    let parts: Vec<Word> =
        parts.flatten().filter(|part| part.contains("config")).map(Word::known).collect();
    location.possible_directories.iter().any(|directory| {
        could_be_git_settings(word, directory)
            || parts.iter().any(|part| could_be_git_settings(part, directory))
    })
}

fn could_be_git_settings(word: &Word, directory: &Path) -> bool {
    let text = word.text_without_gaps();
    // A name that is only known later could be any; one with the same ending could be the file.
    let is_alike = text.ends_with("config")
        && [".git/config", "*/.git/config"].iter().any(|settings| word.could_be(settings));
    is_alike || names_git_settings(&directory.join(text))
}

fn names_git_settings(file: &Path) -> bool {
    let file = without_dots(file);
    [".git/config", ".git/config.worktree", ".gitconfig", "git/config", ".gitmodules"]
        .iter()
        .any(|settings| file.ends_with(settings))
        || is_in_repository(&file)
}

/// Whether it is the settings file of a repository with another directory name.
fn is_in_repository(file: &Path) -> bool {
    let is_named = file
        .file_name()
        .is_some_and(|name| REPOSITORY_SETTINGS.iter().any(|settings| name == *settings));
    is_named
        && file.parent().is_some_and(|directory| {
            directory.join("HEAD").is_file() && directory.join("objects").is_dir()
        })
}

/// Builtins take precedence over files.
fn is_own_builtin(given: &str, in_shell: bool) -> bool {
    in_shell && super::builtins::is_harmless(given, false)
}

fn name_of(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// Whether a created file may be the one that the program's path names, judging by the last component
/// alone.
fn could_be_file(made: &Word, program: &str) -> bool {
    let name = name_of(program);
    match made.text() {
        Some(made) => name_of(&made) == name,
        None => made.could_be(name) || made.could_be(&format!("*/{name}")),
    }
}

/// Whether a created link may be any directory on the path of a program, or the program.
fn could_be_part(made: &Word, program: &str) -> bool {
    program.split('/').any(|part| !matches!(part, "" | "." | "..") && could_be_file(made, part))
}

fn could_be_name(made: &Word, program: &str, exists: bool) -> bool {
    match made.text() {
        Some(made) => name_of(&made) == program,
        // A name that could be anything counts for a file that does not exist yet.
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
