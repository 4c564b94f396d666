//! One rule: a program, the arguments that follow, and the directory it holds in.
//!
//! `git push` `cargo test*` `/usr/bin/make -j?` `rm * @ build`. A rule that denies errs on the side
//! of denying, one that allows on the side of not allowing.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use retake_engine::which;

use super::glob;
use super::real;

#[derive(Debug)]
pub(super) struct Rule {
    text: String,
    program: String,
    arguments: Vec<String>,
    /// Holds only here and below.
    directory: Option<PathBuf>,
}

/// A program as it was asked for, and what that is on this machine.
pub(super) struct Program {
    given: String,
    /// The file, and the file without symbolic links.
    files: Option<(PathBuf, PathBuf)>,
    /// What its bare name means to us, whatever the child's PATH says.
    usual: Option<PathBuf>,
}

impl Program {
    pub(super) fn find(given: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Self {
        let own = std::env::var_os("PATH");
        let file = which(given, path.or(own.as_deref()), cwd);
        let name = Path::new(given).file_name().unwrap_or(given);
        let usual = which(name, own.as_deref(), cwd).map(|file| real(&file));
        Self {
            given: given.to_string_lossy().into_owned(),
            files: file.map(|file| (file.clone(), real(&file))),
            usual,
        }
    }

    fn name(&self) -> &str {
        self.given.rsplit('/').next().unwrap_or(&self.given)
    }
}

impl Rule {
    pub(super) fn parse(text: &str, project: &Path) -> Result<Self, String> {
        let (command, directory) = match text.split_once(" @ ") {
            Some((command, directory)) => (command, Some(real(&project.join(directory.trim())))),
            None => (text, None),
        };
        let mut words = split(command)?.into_iter();
        let program = words.next().ok_or("write PROGRAM [ARGUMENT]... [@ DIRECTORY]")?;
        let relative = program.contains('/') && !program.starts_with(['/', '*']);
        let program =
            if relative { project.join(&program).to_string_lossy().into_owned() } else { program };
        Ok(Self { text: text.to_owned(), program, arguments: words.collect(), directory })
    }

    /// Any name of the program counts, and the arguments may stand anywhere, in this order.
    pub(super) fn denies(&self, program: &Program, arguments: &[OsString], cwd: &Path) -> bool {
        let named = |path: &Path| {
            let whole = path.to_string_lossy();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            glob::matches(&self.program, if self.program.contains('/') { &whole } else { &name })
        };
        let files = program.files.iter().flat_map(|(file, real)| [file, real]);
        let is_meant = glob::matches(&self.program, program.name())
            || files.into_iter().any(|file| named(file))
            || program
                .files
                .as_ref()
                .is_some_and(|(_, file)| *file == real(Path::new(&self.program)));
        let mut given = arguments.iter().skip(1);
        is_meant
            && self.holds_in(cwd)
            && self.arguments.iter().all(|pattern| {
                given.any(|argument| glob::matches(pattern, &argument.to_string_lossy()))
            })
    }

    /// The program must be the one that its name usually means, or the very file, and the arguments
    /// must come first.
    pub(super) fn allows(&self, program: &Program, arguments: &[OsString], cwd: &Path) -> bool {
        let Some((file, real)) = &program.files else {
            // Nothing can run; that it was not found is more use than a refusal.
            return glob::matches(&self.program, program.name());
        };
        let is_meant = if self.program.contains('/') {
            glob::matches(&self.program, &real.to_string_lossy())
                || *real == super::real(Path::new(&self.program))
                // A link is as good as its name only where nobody can point it elsewhere.
                || (file == real && glob::matches(&self.program, &file.to_string_lossy()))
        } else {
            self.program == "*"
                || (glob::matches(&self.program, program.name())
                    && program.usual.as_ref() == Some(real))
        };
        is_meant
            && self.holds_in(cwd)
            && arguments.len() > self.arguments.len()
            && (self.arguments.iter().zip(&arguments[1..]))
                .all(|(pattern, argument)| glob::matches(pattern, &argument.to_string_lossy()))
    }

    fn holds_in(&self, cwd: &Path) -> bool {
        self.directory.as_ref().is_none_or(|directory| cwd.starts_with(directory))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Words, with quotes around those that have spaces in them.
fn split(text: &str) -> Result<Vec<String>, String> {
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
        return Err("a quote is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}
