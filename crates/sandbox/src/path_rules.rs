//! Path rules, indexed so that the access to a path is found through its parents without trying
//! every rule: setting up a sandbox asks hundreds of times.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use retake_types::{PathAccess, PathGrant, PathRule};

/// Rules for absolute paths without links, `.` and `..`. Gives the same results as
/// `retake_types::path_access`.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathRules {
    rules: Vec<PathRule>,
    by_path: HashMap<Vec<u8>, Grants>,
}

/// What the rules for one path grant for reading and for writing; `None` without a rule.
#[derive(Clone, Copy, Debug, Default)]
struct Grants {
    read: Option<bool>,
    write: Option<bool>,
}

impl Grants {
    /// A denial wins a tie.
    fn add(&mut self, grant: PathGrant) {
        let both = |known: Option<bool>, allowed: bool| Some(known.unwrap_or(true) && allowed);
        match grant {
            PathGrant::AllowRead => self.read = both(self.read, true),
            PathGrant::DenyWrite => self.write = both(self.write, false),
            PathGrant::AllowWrite => {
                (self.read, self.write) = (both(self.read, true), both(self.write, true));
            }
            PathGrant::DenyRead => (self.read, self.write) = (Some(false), Some(false)),
        }
    }
}

impl PathRules {
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, PathRule> {
        self.rules.iter()
    }

    pub(crate) fn push(&mut self, rule: PathRule) {
        let path = rule.path.as_path().as_os_str().as_bytes().to_vec();
        self.by_path.entry(path).or_default().add(rule.grant);
        self.rules.push(rule);
    }

    /// The rules without those for this path and paths below it.
    #[must_use]
    pub(crate) fn without(self, path: &Path) -> Self {
        let about = |rule: &PathRule| rule.path.as_path().starts_with(path);
        self.rules.into_iter().filter(|rule| !about(rule)).collect()
    }

    /// The access to a path: the nearest rule above it decides.
    pub(crate) fn access(&self, path: &Path) -> PathAccess {
        let mut found = Grants::default();
        let mut rest = path.as_os_str().as_bytes();
        loop {
            if let Some(here) = self.by_path.get(rest) {
                found.read = found.read.or(here.read);
                found.write = found.write.or(here.write);
                if found.read.is_some() && found.write.is_some() {
                    break;
                }
            }
            match rest.iter().rposition(|byte| *byte == b'/') {
                Some(0) if rest.len() > 1 => rest = b"/",
                Some(end) if end > 0 => rest = &rest[..end],
                _ => break,
            }
        }
        match (found.read.unwrap_or(true), found.write.unwrap_or(false)) {
            (false, _) => PathAccess::Hidden,
            (true, true) => PathAccess::Writable,
            (true, false) => PathAccess::ReadOnly,
        }
    }
}

impl FromIterator<PathRule> for PathRules {
    fn from_iter<I: IntoIterator<Item = PathRule>>(rules: I) -> Self {
        let mut made = Self::default();
        rules.into_iter().for_each(|rule| made.push(rule));
        made
    }
}

impl PartialEq for PathRules {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

impl Eq for PathRules {}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn path_rules_match_their_definition() {
        let paths = ["/", "/a", "/a/b", "/a/b/c", "/a/bb", "/d", "/d/e/f"];
        let grants = [
            PathGrant::AllowRead,
            PathGrant::DenyRead,
            PathGrant::AllowWrite,
            PathGrant::DenyWrite,
        ];
        let mut number: u64 = 1;
        let mut below = |limit: usize| {
            // The constants of Knuth's MMIX.
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
            (number >> 33) as usize % limit
        };
        for _ in 0..2000 {
            let rules: Vec<PathRule> = (0..below(9))
                .map(|_| PathRule::new(grants[below(4)], PathBuf::from(paths[below(paths.len())])))
                .collect();
            let indexed: PathRules = rules.iter().cloned().collect();
            for path in paths.iter().chain(&["/a/b/c/d", "/x", "/a/b/cc"]).map(Path::new) {
                let expected = retake_types::path_access(&rules, path);
                assert_eq!(indexed.access(path), expected, "{} {rules:?}", path.display());
            }
        }
    }
}
