//! One rule: a program, the arguments that follow, and the directory it holds in.
//!
//! `git push` `cargo test*` `/usr/bin/make -j?` `rm * @ build`. A rule that denies errs on the side
//! of denying, one that allows on the side of not allowing.

use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use retake_engine::which;

use super::glob;
use super::path::resolved;
use super::refusal::RuleError;
use super::started_commands::StartedCommand;
use super::word::Word;

#[derive(Debug)]
pub(super) struct Rule {
    text: String,
    program: String,
    arguments: Vec<String>,
    /// Holds only here and below.
    directory: Option<PathBuf>,
}

/// A program as it was asked for, and what that is on this machine.
#[derive(Debug)]
pub(super) struct Program {
    given: String,
    /// The file, and the file without symbolic links.
    files: Option<(PathBuf, PathBuf)>,
    /// What its bare name means to us, whatever the child's PATH says.
    usual: Option<PathBuf>,
}

/// Whether a rule that denies is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Denial {
    No,
    /// That depends on words that are only known when the command runs.
    Maybe,
    Yes,
}

impl Program {
    pub(super) fn find(given: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Self {
        let own = std::env::var_os("PATH");
        let path = path.or(own.as_deref());
        let file = which(given, path, cwd);
        let files = file.map(|file| (file.clone(), resolved(&file)));
        let name = Path::new(given).file_name().unwrap_or(given);
        // Mostly the two are the same, and a look along PATH is not free.
        let usual = match name == given && path == own.as_deref() {
            true => files.as_ref().map(|(_, real)| real.clone()),
            false => usual(name, cwd),
        };
        Self { given: given.to_string_lossy().into_owned(), files, usual }
    }

    fn name(&self) -> &str {
        self.given.rsplit('/').next().unwrap_or(&self.given)
    }

    /// The file without symbolic links.
    pub(super) fn real(&self) -> Option<&Path> {
        self.files.as_ref().map(|(_, real)| real.as_path())
    }

    /// Whether it depends on the directory which file it is.
    pub(super) fn is_relative(&self) -> bool {
        self.given.contains('/') && !self.given.starts_with('/')
    }

    /// Whether it is the very program that the name means on our PATH; also if there is none that
    /// could run.
    pub(super) fn is_usually(&self, name: &str) -> bool {
        let Some((_, file)) = &self.files else { return true };
        let usual = if name == self.name() {
            self.usual.clone()
        } else {
            usual(OsStr::new(name), Path::new("/"))
        };
        usual.as_ref() == Some(file)
    }

    /// Whether it is a script that is not the program of that name.
    pub(super) fn is_own_script(&self, name: &str) -> bool {
        let Some((_, file)) = &self.files else { return false };
        let mut start = [0; 2];
        let is_script = std::fs::File::open(file)
            .and_then(|mut file| file.read_exact(&mut start))
            .is_ok_and(|()| start == *b"#!");
        is_script && !self.is_usually(name)
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

impl Rule {
    pub(super) fn parse(text: &str, project: &Path) -> Result<Self, RuleError> {
        let (command, directory) = match text.split_once(" @ ") {
            Some((command, directory)) => {
                (command, Some(resolved(&project.join(directory.trim()))))
            }
            None => (text, None),
        };
        let mut words = split(command)?.into_iter();
        let program = words.next().ok_or(RuleError::NoProgram)?;
        let relative = program.contains('/') && !program.starts_with(['/', '*']);
        let program =
            if relative { project.join(&program).to_string_lossy().into_owned() } else { program };
        Ok(Self { text: text.to_owned(), program, arguments: words.collect(), directory })
    }

    /// Any name of the program counts, and the arguments may stand anywhere, in this order.
    pub(super) fn denies(&self, command: &StartedCommand, directory_unknown: bool) -> Denial {
        let programs = &command.programs;
        if !programs.iter().any(|program| self.means(program)) {
            return Denial::No;
        }
        let directory = match &self.directory {
            None => Denial::Yes,
            Some(_) if directory_unknown => Denial::Maybe,
            Some(directory) => {
                let holds = |cwd: &PathBuf| resolved(cwd).starts_with(directory);
                if command.directories.iter().any(holds) { Denial::Yes } else { Denial::No }
            }
        };
        let given = &command.words[1..];
        let surely = self.arguments.is_empty() || {
            let mut known = given.iter().filter(|word| word.get().is_some());
            self.arguments.iter().all(|pattern| known.any(|word| word.could_be(pattern)))
        };
        let arguments = match surely {
            true => Denial::Yes,
            false if self.could_be_among(given) => Denial::Maybe,
            false => Denial::No,
        };
        directory.min(arguments)
    }

    fn could_be_among(&self, words: &[Word]) -> bool {
        let mut at = 0;
        self.arguments.iter().all(|pattern| {
            let found = words[at..].iter().position(|word| word.could_be(pattern));
            // A word that may become many may be the next one, too.
            at = found.map_or(words.len(), |found| {
                at + found + usize::from(!words[at + found].is_several())
            });
            found.is_some()
        })
    }

    fn means(&self, program: &Program) -> bool {
        let named = |path: &Path| {
            let whole = path.to_string_lossy();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            glob::matches(&self.program, if self.program.contains('/') { &whole } else { &name })
        };
        let files = program.files.iter().flat_map(|(file, real)| [file, real]);
        glob::matches(&self.program, program.name())
            || files.into_iter().any(|file| named(file))
            || program.real().is_some_and(|file| *file == *resolved(Path::new(&self.program)))
    }

    /// The program must be the one that its name usually means, or the very file, and the arguments
    /// must come first. Wherever it may run, that must be so.
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
            // Nothing can run; that it was not found is more use than a refusal.
            return glob::matches(&self.program, program.name());
        };
        if !self.program.contains('/') {
            let is_named = glob::matches(&self.program, program.name());
            return self.program == "*" || (is_named && program.usual.as_ref() == Some(real));
        }
        glob::matches(&self.program, &real.to_string_lossy())
            || *real == resolved(Path::new(&self.program))
            // A link is as good as its name only where nobody can point it elsewhere.
            || (file == real && glob::matches(&self.program, &file.to_string_lossy()))
    }

    /// Whether it holds only in some directory.
    pub(super) fn is_local(&self) -> bool {
        self.directory.is_some()
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Words, with quotes around those that have spaces in them.
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
