//! Parses a git configuration as git does, and finds the files that it includes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::real_path::normal;

/// A larger file is not treated as a configuration.
const LARGEST: u64 = 1 << 20;
/// Maximum files included directly or indirectly; git itself stops at a depth of ten.
const MOST_FILES: usize = 50;

/// Every key with its value, in lower case except for the name of a subsection. A line that git
/// would reject counts as an include, so that nothing is missed.
pub fn entries(text: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(text).replace("\r\n", "\n");
    let mut reader = Reader { rest: text.trim_start_matches('\u{feff}').chars() };
    let mut section = String::new();
    let mut entries = Vec::new();
    while let Some(c) = reader.rest.next() {
        match c {
            '#' | ';' => reader.skip_line(),
            c if c.is_whitespace() => {}
            '[' => match reader.section() {
                Some(name) => section = name,
                None => entries.push(("include.path".to_owned(), reader.line())),
            },
            c => {
                let (key, value) = reader.entry(c);
                entries.push((format!("{section}.{key}"), value));
            }
        }
    }
    entries
}

struct Reader<'a> {
    rest: std::str::Chars<'a>,
}

impl Reader<'_> {
    fn skip_line(&mut self) {
        self.rest.by_ref().find(|c| *c == '\n');
    }

    fn line(&mut self) -> String {
        self.rest.by_ref().take_while(|c| *c != '\n').collect()
    }

    /// The section in brackets: `filter "x"` and the old `filter.x` are both `filter.x`.
    fn section(&mut self) -> Option<String> {
        let mut name = String::new();
        loop {
            match self.rest.next()? {
                ']' => return Some(name),
                '"' => break,
                '\n' => return None,
                c if c.is_whitespace() => {}
                c => name.extend(c.to_lowercase()),
            }
        }
        name.push('.');
        loop {
            match self.rest.next()? {
                '"' => break,
                '\n' => return None,
                '\\' => name.push(self.rest.next()?),
                c => name.push(c),
            }
        }
        (self.rest.next()? == ']').then_some(name)
    }

    /// A key that starts with this letter, and its value.
    fn entry(&mut self, first: char) -> (String, String) {
        let mut key: String = first.to_lowercase().collect();
        loop {
            match self.rest.next() {
                Some('=') => break,
                None | Some('\n') => return (key, "true".to_owned()),
                Some(c) if c.is_whitespace() => {}
                Some(c) => key.extend(c.to_lowercase()),
            }
        }
        (key, self.value())
    }

    /// The value without quotes and comments. Only a backslash outside of a comment continues a
    /// line.
    fn value(&mut self) -> String {
        let (mut value, mut spaces, mut quoted) = (String::new(), 0, false);
        while let Some(c) = self.rest.next() {
            let c = match c {
                '\n' => break,
                '#' | ';' if !quoted => {
                    self.skip_line();
                    break;
                }
                c if c.is_whitespace() && !quoted => {
                    spaces += usize::from(!value.is_empty());
                    continue;
                }
                '"' => {
                    quoted = !quoted;
                    continue;
                }
                '\\' => match self.rest.next() {
                    None => break,
                    Some('\n') => continue,
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('b') => '\u{8}',
                    Some(c) => c,
                },
                c => c,
            };
            value.extend(std::iter::repeat_n(' ', std::mem::take(&mut spaces)));
            value.push(c);
        }
        value
    }
}

/// A path in a git configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedByGit {
    /// A directory of hooks.
    Hooks(PathBuf),
    /// More configuration, or attributes, which can name programs.
    Configuration(PathBuf),
}

impl NamedByGit {
    pub fn path(&self) -> &Path {
        match self {
            Self::Hooks(path) | Self::Configuration(path) => path,
        }
    }
}

/// The hooks and further configuration that these files and their includes name. A relative hooks
/// directory starts at the work tree. Conditions of includes are ignored.
pub(crate) fn named(files: Vec<PathBuf>, top: &Path, home: Option<&Path>) -> BTreeSet<NamedByGit> {
    let mut named = BTreeSet::new();
    let mut read = BTreeSet::new();
    let mut waiting = files;
    while let Some(file) = waiting.pop() {
        if read.len() >= MOST_FILES || !read.insert(file.clone()) {
            continue;
        }
        let regular = |path: &PathBuf| {
            path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= LARGEST)
        };
        let Some(text) = Some(&file).filter(|file| regular(file)).map(std::fs::read) else {
            continue;
        };
        let directory = file.parent().unwrap_or(Path::new("/"));
        let entries = entries(&text.unwrap_or_default());
        for (key, value) in entries.into_iter().filter(|(_, value)| !value.is_empty()) {
            let at = |base: &Path| match (value.strip_prefix("~/"), home) {
                (Some(below), Some(home)) => normal(&home.join(below)),
                _ => normal(&base.join(&value)),
            };
            match key.as_str() {
                "core.hookspath" => {
                    named.insert(NamedByGit::Hooks(at(top)));
                }
                "core.attributesfile" => {
                    named.insert(NamedByGit::Configuration(at(top)));
                }
                key if key == "include.path"
                    || key.starts_with("includeif.") && key.ends_with(".path") =>
                {
                    let included = at(directory);
                    waiting.push(included.clone());
                    named.insert(NamedByGit::Configuration(included));
                }
                _ => {}
            }
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        entries(text.as_bytes())
    }

    #[test]
    fn is_read_as_git_reads_it() {
        let one = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
        for (text, key, value) in [
            ("[core]\n\tfsmonitor = ./x\n", "core.fsmonitor", "./x"),
            ("[CORE] FsMonitor=./x", "core.fsmonitor", "./x"),
            ("[core]\n fsmonitor = \\\n ./x\n", "core.fsmonitor", "./x"),
            ("\u{feff}[core]\nfsmonitor=\"./x\" ; c", "core.fsmonitor", "./x"),
            ("[core]\r\n\thooksPath = a b  # c\r\n", "core.hookspath", "a b"),
            ("[filter \"a ] \\\"b\"]\n clean = x", "filter.a ] \"b.clean", "x"),
            ("[filter.a]\n process = x", "filter.a.process", "x"),
            ("[core] bare", "core.bare", "true"),
            ("[include\npath = x", "include.path", "path = x"),
            ("[core] x = \"a # b\" c", "core.x", "a # b c"),
            // A comment ends with its line, even after a backslash.
            ("[core]\n# x \\\n fsmonitor = ./x", "core.fsmonitor", "./x"),
            ("[core]\n# x \\\r\n fsmonitor = ./x", "core.fsmonitor", "./x"),
        ] {
            assert_eq!(read(text), one(key, value), "{text}");
        }
        let both = read("[core]\n a = 1 ; c \\\n fsmonitor = ./x");
        assert_eq!(both[1], ("core.fsmonitor".to_owned(), "./x".to_owned()));
    }

    #[test]
    fn paths_named_by_git_configuration_are_found_through_includes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at(".git")).unwrap();
        let text = "[core]\n\thooksPath =\n[core] hooksPath = .githooks ; ours\n[include] path = ../shared.cfg\n\
                    [includeIf \"gitdir:x\"]\n\tpath = ~/x\n[core]\n attributesFile = a~b\n";
        std::fs::write(at(".git/config"), text).unwrap();
        std::fs::write(at("shared.cfg"), "[include]\n path = \"further.cfg\"").unwrap();
        // A cycle.
        std::fs::write(at("further.cfg"), "[include]\n path = shared.cfg").unwrap();
        let found = named(vec![at(".git/config")], dir.path(), Some(Path::new("/home/u")));
        let paths: BTreeSet<PathBuf> = found.iter().map(|named| named.path().to_owned()).collect();
        let expected = [
            at(".githooks"),
            at("shared.cfg"),
            at("further.cfg"),
            PathBuf::from("/home/u/x"),
            at("a~b"),
        ];
        assert_eq!(paths, expected.into());
        assert!(found.contains(&NamedByGit::Hooks(at(".githooks"))));
    }
}
