//! Finds report files at the tools' default paths, and by the user's globs.
//!
//! Follows each glob directory by directory, so that a glob costs only the directories it names;
//! `**` is bounded and skips `.git` and `node_modules`, `*` also other hidden directories. This
//! happens after every run with test results, so the default globs are compiled once and a
//! directory is read once.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::LazyLock;

use globset::{Glob, GlobMatcher};

use super::{MAX_REPORTS, ReportError};

/// Maximum entries examined for all default globs, and for each glob of the user.
const MAX_ENTRIES: usize = 100_000;
const MAX_DEPTH: usize = 24;

const DEFAULT_GLOBS: [&str; 24] = [
    "target/nextest/*/junit.xml",
    "target/surefire-reports/TEST-*.xml",
    "target/failsafe-reports/TEST-*.xml",
    "*/target/surefire-reports/TEST-*.xml",
    "*/target/failsafe-reports/TEST-*.xml",
    "*/*/target/surefire-reports/TEST-*.xml",
    "build/test-results/*/TEST-*.xml",
    "*/build/test-results/*/TEST-*.xml",
    "junit.xml",
    "junit-*.xml",
    "test-results.xml",
    "test-report.xml",
    "report.xml",
    "pytest.xml",
    "results.xml",
    "test-results/*.xml",
    "test-results/*/*.xml",
    "test-reports/*.xml",
    "reports/junit*.xml",
    "rspec.xml",
    "TestResults/*.trx",
    "*/TestResults/*.trx",
    "*/*/TestResults/*.trx",
    "TestResults/*/*.trx",
];

static DEFAULT_PARTS: LazyLock<Vec<Vec<Part>>> = LazyLock::new(|| {
    let compiled = DEFAULT_GLOBS.iter().map(|glob| parts(glob));
    compiled.collect::<Result<_, _>>().expect("the default globs are valid")
});

#[derive(Debug)]
enum Part {
    Name(String),
    Match(GlobMatcher),
    AnyDepth,
}

/// The files that `wanted` accepts, each once, in order.
pub(super) fn find_files(
    root: &Path,
    extra: &[String],
    wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, ReportError> {
    let mut walk =
        Walk { wanted: &wanted, left: MAX_ENTRIES, found: Vec::new(), read: HashMap::new() };
    walk.entries(root);
    for parts in DEFAULT_PARTS.iter() {
        walk.along(root, parts, 0);
    }
    for glob in extra {
        let parts = parts(glob)?;
        walk.left = MAX_ENTRIES;
        // An absolute glob replaces the root, as a path does.
        let start = if glob.starts_with('/') { Path::new("/") } else { root };
        walk.along(start, &parts, 0);
    }
    let mut found = walk.found;
    found.sort();
    found.dedup();
    found.truncate(MAX_REPORTS);
    Ok(found)
}

fn parts(glob: &str) -> Result<Vec<Part>, ReportError> {
    let part = |text: &str| {
        if text == "**" {
            Ok(Part::AnyDepth)
        } else if text.contains(['*', '?', '[', '{', '\\']) {
            let fail = |source| ReportError::Glob { glob: glob.to_owned(), source };
            Ok(Part::Match(Glob::new(text).map_err(fail)?.compile_matcher()))
        } else {
            Ok(Part::Name(text.to_owned()))
        }
    };
    glob.split('/').filter(|text| !text.is_empty() && *text != ".").map(part).collect()
}

/// The names in a directory in order, and whether each is a directory.
type Entries = Rc<[(OsString, bool)]>;

struct Walk<'a, W> {
    wanted: &'a W,
    left: usize,
    found: Vec<PathBuf>,
    /// By the text of their paths, which is faster than comparing components.
    read: HashMap<OsString, Entries>,
}

impl<W: Fn(&Path) -> bool> Walk<'_, W> {
    fn along(&mut self, directory: &Path, parts: &[Part], depth: usize) {
        let Some((part, rest)) = parts.split_first() else { return };
        if depth > MAX_DEPTH || self.found.len() > 4 * MAX_REPORTS {
            return;
        }
        match part {
            Part::Name(name) => {
                // Most paths do not exist, and a lookup in the list is faster than asking the
                // kernel.
                let known = self.read.get(directory.as_os_str()).filter(|_| name != "..");
                if known.is_some_and(|known| !holds(known, name)) {
                    return;
                }
                let path = directory.join(name);
                if rest.is_empty() {
                    self.offer(path);
                } else {
                    self.along(&path, rest, depth + 1);
                }
            }
            Part::Match(matcher) => {
                for (name, is_directory) in self.entries(directory).iter() {
                    let is_on_the_way = *is_directory && !(left_out(name) || hidden(name));
                    // Checked first, because it is cheaper than a match.
                    if !(rest.is_empty() || is_on_the_way) || !matcher.is_match(name) {
                        continue;
                    }
                    match rest.is_empty() {
                        true => self.offer(directory.join(name)),
                        false => self.along(&directory.join(name), rest, depth + 1),
                    }
                }
            }
            Part::AnyDepth => {
                self.along(directory, rest, depth + 1);
                for (name, is_directory) in self.entries(directory).iter() {
                    if *is_directory && !left_out(name) {
                        self.along(&directory.join(name), parts, depth + 1);
                    }
                }
            }
        }
    }

    fn offer(&mut self, path: PathBuf) {
        if (self.wanted)(&path) {
            self.found.push(path);
        }
    }

    /// Links to directories do not count as directories, so there are no cycles.
    fn entries(&mut self, directory: &Path) -> Entries {
        if let Some(known) = self.read.get(directory.as_os_str()) {
            return known.clone();
        }
        let mut found: Vec<_> = match std::fs::read_dir(directory) {
            Ok(entries) => entries
                .flatten()
                .take(self.left)
                .map(|entry| (entry.file_name(), entry.file_type().is_ok_and(|kind| kind.is_dir())))
                .collect(),
            // An unreadable directory may still contain a file with a known name.
            Err(_) => return Entries::default(),
        };
        self.left -= found.len();
        found.sort();
        let found = Entries::from(found);
        // A truncated listing does not prove absence.
        if self.left > 0 {
            self.read.insert(directory.into(), found.clone());
        }
        found
    }
}

fn holds(entries: &Entries, name: &str) -> bool {
    entries.binary_search_by(|(entry, _)| entry.as_os_str().cmp(name.as_ref())).is_ok()
}

fn left_out(name: &OsStr) -> bool {
    name == ".git" || name == "node_modules"
}

fn hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}
