//! One rule: a program, the arguments that follow, and the directory it applies to.
//!
//! `git push` `cargo test*` `/usr/bin/make -j?` `rm * @ build`. In doubt, a rule that denies denies, and
//! a rule that allows does not allow.

use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use retake_engine::which;

use super::glob;
use super::meaning::{Matched, matched};
use super::path::resolved;
use super::refusal::{Doubt, RuleError};
use super::started_commands::StartedCommand;
use super::word::Word;

#[derive(Debug)]
pub(super) struct Rule {
    text: String,
    program: String,
    arguments: Vec<String>,
    /// Applies only to this directory and below.
    directory: Option<PathBuf>,
    /// Applies only to commands that write into a pipe read by this one.
    piped_into: Option<Box<Self>>,
    /// A pipe is part of its text.
    has_pipe: bool,
    /// The files of the program's name: all along PATH, because the first may be a script
    /// that starts the next one.
    files: OnceLock<Vec<ProgramFile>>,
}

/// Identifies a program's file, independent of its name.
#[derive(Debug, PartialEq, Eq)]
struct ProgramFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    bytes: u64,
}

impl ProgramFile {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        let (device, inode, bytes) = (found.dev(), found.ino(), found.len());
        Some(Self { path: path.to_owned(), device, inode, bytes })
    }

    /// The same file, or a copy of it.
    fn is_same(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
            // Without links, equal paths have equal text; a partial match does not count.
            || self.path.as_os_str() == other.path.as_os_str()
            || (self.bytes == other.bytes && self.bytes > 0 && has_same_content(self, other))
    }
}

fn has_same_content(one: &ProgramFile, other: &ProgramFile) -> bool {
    let open = |file: &ProgramFile| std::fs::File::open(&file.path).ok();
    let (Some(mut one), Some(mut other)) = (open(one), open(other)) else { return false };
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let Ok(length) = one.read(&mut left) else { return false };
        if length == 0 {
            return true;
        }
        if other.read_exact(&mut right[..length]).is_err() || left[..length] != right[..length] {
            return false;
        }
    }
}

/// Files that contain many programs, selected by the name they are called by.
const MANY_PROGRAMS: [&str; 9] = [
    "busybox",
    "toybox",
    "coreutils",
    "rustup",
    "rustup-init",
    "systemctl",
    "kmod",
    "lvm",
    "volta-shim",
];

/// Shells, and download programs, in rules on pipes: one of them stands for all.
const PIPED: [&[&str]; 2] = [
    &["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "busybox"],
    &["curl", "wget", "fetch", "aria2c", "http", "xh"],
];

/// A program as requested, and the file it is on this machine.
#[derive(Debug)]
pub(super) struct Program {
    given: String,
    /// The file, and the file without symbolic links.
    files: Option<(PathBuf, PathBuf)>,
    /// The names of both files, with and without directories; computed on demand.
    file_names: OnceLock<Vec<(String, String)>>,
    /// The file that its bare name selects on retake's own PATH, whatever the child's PATH is.
    usual: Option<PathBuf>,
    /// The identity of the file; computed on demand.
    identity: OnceLock<Option<ProgramFile>>,
}

impl Program {
    pub(super) fn find(given: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Self {
        let own = std::env::var_os("PATH");
        let file = which(given, path.or(own.as_deref()), cwd);
        Self::found(given, file, path, cwd)
    }

    /// The same, if the file is known.
    pub(super) fn found(
        given: &OsStr,
        file: Option<PathBuf>,
        path: Option<&OsStr>,
        cwd: &Path,
    ) -> Self {
        let files = file.map(|file| (file.clone(), resolved(&file)));
        let name = Path::new(given).file_name().unwrap_or(given);
        // Usually both are the same, and a search along PATH is not free.
        let is_own = || path.is_none_or(|path| std::env::var_os("PATH").as_deref() == Some(path));
        let usual = match name == given && is_own() {
            true => files.as_ref().map(|(_, real)| real.clone()),
            false => usual(name, cwd),
        };
        let given = given.to_string_lossy().into_owned();
        let (file_names, identity) = (OnceLock::new(), OnceLock::new());
        Self { given, files, file_names, usual, identity }
    }

    fn file_names(&self) -> &[(String, String)] {
        self.file_names.get_or_init(|| {
            let files = self.files.iter().flat_map(|(file, real)| [file, real]);
            let named = files.map(|file| {
                let name = file.file_name().unwrap_or_default();
                (file.to_string_lossy().into_owned(), name.to_string_lossy().into_owned())
            });
            let mut named: Vec<_> = named.collect();
            named.dedup();
            named
        })
    }

    fn identity(&self) -> Option<&ProgramFile> {
        let find = || self.real().and_then(ProgramFile::of);
        self.identity.get_or_init(find).as_ref()
    }

    pub(super) fn name(&self) -> &str {
        self.given.rsplit('/').next().unwrap_or(&self.given)
    }

    /// The file without symbolic links.
    pub(super) fn real(&self) -> Option<&Path> {
        self.files.as_ref().map(|(_, real)| real.as_path())
    }

    /// Whether the file depends on the working directory.
    pub(super) fn is_relative(&self) -> bool {
        self.given.contains('/') && !self.given.starts_with('/')
    }

    /// Whether it is the program that the name selects on retake's own PATH; also true if there is none
    /// that could run.
    pub(super) fn is_usually(&self, name: &str) -> bool {
        let Some((_, file)) = &self.files else { return true };
        let usual = if name == self.name() {
            self.usual.clone()
        } else {
            usual(OsStr::new(name), Path::new("/"))
        };
        usual.as_ref() == Some(file)
    }

    /// Whether it is a script other than the program of that name.
    pub(super) fn is_own_script(&self, name: &str) -> bool {
        self.is_any_script() && !self.is_usually(name)
    }

    pub(super) fn is_any_script(&self) -> bool {
        let Some((_, file)) = &self.files else { return false };
        let mut start = [0; 2];
        std::fs::File::open(file)
            .and_then(|mut file| file.read_exact(&mut start))
            .is_ok_and(|()| start == *b"#!")
    }

    pub(super) fn is_retake(&self) -> bool {
        static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
        let own = OWN.get_or_init(|| std::env::current_exe().ok().map(|own| resolved(&own)));
        self.name() == "retake" || self.real().is_some_and(|file| own.as_deref() == Some(file))
    }
}

fn usual(name: &OsStr, cwd: &Path) -> Option<PathBuf> {
    which(name, std::env::var_os("PATH").as_deref(), cwd).map(|file| resolved(&file))
}

/// Every file of this name along PATH.
fn along_path(name: &OsStr) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .filter_map(|directory| which(name, Some(directory.as_os_str()), Path::new("/")));
    let mut files: Vec<PathBuf> = found.map(|file| resolved(&file)).collect();
    files.dedup();
    files
}

impl Rule {
    pub(super) fn parse(text: &str, project: &Path) -> Result<Self, RuleError> {
        let (command, directory) = match text.split_once(" @ ") {
            Some((command, directory)) => {
                (command, Some(resolved(&project.join(directory.trim()))))
            }
            None => (text, None),
        };
        let mut words = split(command)?;
        let piped_into = match words.iter().position(|word| word == "|") {
            Some(at) => {
                let right = words.split_off(at);
                let (program, arguments) = right[1..].split_first().ok_or(RuleError::NoProgram)?;
                Some(Box::new(Self {
                    text: text.to_owned(),
                    program: program.clone(),
                    arguments: arguments.to_vec(),
                    directory: None,
                    piped_into: None,
                    has_pipe: true,
                    files: OnceLock::new(),
                }))
            }
            None => None,
        };
        let mut words = words.into_iter();
        let program = words.next().ok_or(RuleError::NoProgram)?;
        let relative = program.contains('/') && !program.starts_with(['/', '*']);
        let program =
            if relative { project.join(&program).to_string_lossy().into_owned() } else { program };
        Ok(Self {
            text: text.to_owned(),
            program,
            arguments: words.collect(),
            directory,
            piped_into,
            has_pipe: text.contains('|'),
            files: OnceLock::new(),
        })
    }

    /// Any name of the program counts, and the arguments may occur anywhere, in this order.
    /// `all` are the commands that it is one of.
    pub(super) fn denies(
        &self,
        command: &StartedCommand,
        directory_unknown: bool,
        all: &[StartedCommand],
    ) -> Matched {
        if !command.programs.iter().any(|program| self.means(program)) {
            return Matched::No;
        }
        if let Some(reader) = &self.piped_into {
            let reads = |other: &&StartedCommand| other.reads_from(command);
            let mut readers = all.iter().filter(reads);
            let is_meant =
                |other: &StartedCommand| other.programs.iter().any(|one| reader.means(one));
            return match readers.any(is_meant) {
                true => matched(&self.program, &self.arguments, &command.words),
                false => Matched::No,
            };
        }
        let arguments = matched(&self.program, &self.arguments, &command.words);
        match &self.directory {
            None => arguments,
            Some(_) if arguments == Matched::No => arguments,
            Some(_) if directory_unknown => {
                Matched::Maybe(command.words[0].written(), Doubt::Directory)
            }
            Some(directory) => {
                let holds = |cwd: &PathBuf| resolved(cwd).starts_with(directory);
                if command.directories.iter().any(holds) { arguments } else { Matched::No }
            }
        }
    }

    /// Whether these words are a denied command, judging by its name alone.
    pub(super) fn denies_words(&self, words: &[Word]) -> bool {
        // `rm"$x"` is `rm` if the variable is empty.
        let Some(name) = words.first().map(Word::text_without_gaps) else { return false };
        let name = name.rsplit('/').next().unwrap_or_default();
        !name.is_empty()
            && self.piped_into.is_none()
            && self.directory.is_none()
            && !self.program.chars().all(|c| c == '*' || c == '?')
            && glob::matches(self.program.rsplit('/').next().unwrap_or_default(), name)
            && {
                let known = |word: &Word| Word::known(word.text_without_gaps());
                let words: Vec<Word> = words.iter().map(known).collect();
                matched(&self.program, &self.arguments, &words) == Matched::Yes
            }
    }

    /// Whether the rule is about the program of a command, judging by its name alone.
    pub(super) fn is_about(&self, words: &[Word]) -> bool {
        let name = words.first().and_then(Word::text).unwrap_or_default();
        let own = self.program.rsplit('/').next().unwrap_or_default();
        glob::matches(own, name.rsplit('/').next().unwrap_or_default())
    }

    /// Whether a command whose program is unknown could be denied.
    pub(super) fn could_deny(&self, words: &[Word]) -> bool {
        // A command of git may also be a separate program: `git-push`.
        let is_program = self.program == "git" && !self.arguments.is_empty();
        is_program || self.could_deny_inherited(words)
    }

    /// The same for a program that is named by a variable which the line does not set: users do not
    /// name git's own programs there.
    pub(super) fn could_deny_inherited(&self, words: &[Word]) -> bool {
        let is_several = words.first().is_some_and(Word::is_several);
        is_several || matched(&self.program, &self.arguments, words) != Matched::No
    }

    fn means(&self, program: &Program) -> bool {
        let pattern = |name: &str| {
            let is_piped =
                |same: &&[&str]| same.contains(&self.program.as_str()) && same.contains(&name);
            glob::matches(&self.program, name) || (self.has_pipe && PIPED.iter().any(is_piped))
        };
        let is_path = self.program.contains('/');
        let named = |(whole, name): &(String, String)| match is_path {
            true => glob::matches(&self.program, whole),
            false => pattern(name),
        };
        pattern(program.name()) || program.file_names().iter().any(named) || self.is_file(program)
    }

    /// Whether a program is the one of the rule, under another name or as a copy.
    fn is_file(&self, program: &Program) -> bool {
        if glob::is_pattern(&self.program) {
            return false;
        }
        let find = || {
            let paths = match self.program.contains('/') {
                true => vec![resolved(Path::new(&self.program))],
                false => along_path(OsStr::new(&self.program)),
            };
            let is_one = |path: &PathBuf| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                !MANY_PROGRAMS.contains(&name.as_ref())
            };
            paths.into_iter().filter(is_one).filter_map(|path| ProgramFile::of(&path)).collect()
        };
        let own = self.files.get_or_init(find);
        program.identity().is_some_and(|file| own.iter().any(|own| file.is_same(own)))
    }

    /// How many words after the program's name the rule covers.
    pub(super) fn argument_count(&self) -> usize {
        self.arguments.len()
    }

    /// Whether the rule names this file.
    pub(super) fn names_file(&self, file: &Path) -> bool {
        self.program.contains('/')
            && (glob::matches(&self.program, &file.to_string_lossy())
                || resolved(Path::new(&self.program)) == file)
    }

    /// The program must be the one that its name usually selects, or the named file, and the arguments
    /// must come first. That must be true in every directory it may run in.
    pub(super) fn allows(&self, command: &StartedCommand, directory_unknown: bool) -> bool {
        let directory = self.directory.as_ref().is_none_or(|directory| {
            !directory_unknown
                && command.directories.iter().all(|cwd| resolved(cwd).starts_with(directory))
        });
        directory
            && command.programs.iter().all(|program| self.is_for(program))
            && command.words.len() > self.arguments.len()
            && (self.arguments.iter().zip(&command.words[1..]))
                .all(|(pattern, word)| word.must_be(pattern))
    }

    fn is_for(&self, program: &Program) -> bool {
        let Some((file, real)) = &program.files else {
            // Nothing can run; "not found" is more useful than a refusal.
            return glob::matches(&self.program, program.name());
        };
        if !self.program.contains('/') {
            let is_named = glob::matches(&self.program, program.name());
            return self.program == "*" || (is_named && program.usual.as_ref() == Some(real));
        }
        glob::matches(&self.program, &real.to_string_lossy())
            || *real == resolved(Path::new(&self.program))
            // A link is as good as its name only if no one can redirect it.
            || (file == real && glob::matches(&self.program, &file.to_string_lossy()))
    }

    /// Whether the rule applies to one directory only.
    pub(super) fn is_local(&self) -> bool {
        self.directory.is_some()
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Splits into words; quotes surround those with spaces.
fn split(text: &str) -> Result<Vec<String>, RuleError> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(RuleError::OpenQuote);
    }
    words.extend(word);
    Ok(words)
}
