//! What the caller excludes and includes. Rules of the tree itself are in `ignore_files`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::Error;

/// What a tracker excludes and includes, beyond the ignore files of the tree.
///
/// Always excluded: `.git`, and below any `.agent` the directories `data` and `worktrees`. Always
/// counted, even if an ignore file excludes them: `.agent/workspaces/*/working` and
/// `.agent/workspaces/*/reports`.
#[derive(Debug, Clone)]
pub struct TrackingRules {
    ignore: Vec<String>,
    pub(super) configured: Gitignore,
    pub(super) excluded: Subtrees,
    pub(super) included: Subtrees,
}

impl Default for TrackingRules {
    fn default() -> Self {
        let workspace = |name: &str| Subtree::parse(&Path::new(".agent/workspaces/*").join(name));
        Self {
            ignore: Vec::new(),
            configured: Gitignore::empty(),
            excluded: Subtrees::default(),
            included: Subtrees(["working", "reports"].into_iter().filter_map(workspace).collect()),
        }
    }
}

impl TrackingRules {
    pub fn new() -> Self {
        Self::default()
    }

    /// Patterns in the syntax of `.gitignore`, relative to the root. They override every ignore
    /// file.
    pub fn ignore<S: AsRef<str>>(
        mut self,
        patterns: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error> {
        self.ignore.extend(patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()));
        let mut builder = GitignoreBuilder::new("");
        for pattern in &self.ignore {
            let bad = |source| Error::Pattern { pattern: pattern.clone(), source };
            builder.add_line(None, pattern).map_err(bad)?;
        }
        let all = || Error::Patterns { count: self.ignore.len() };
        self.configured = builder.build().map_err(|_| all())?;
        Ok(self)
    }

    /// Excludes a file or subtree entirely. The path is relative to the root; a component `*`
    /// matches any name. The root itself and paths outside of it have no effect.
    pub fn exclude(mut self, path: &Path) -> Self {
        self.excluded.0.extend(Subtree::parse(path));
        self
    }

    /// Counts a subtree that ignore files above it exclude. Ignore files inside it, and the
    /// configured patterns, still apply. The path is as in [`TrackingRules::exclude`], which wins.
    pub fn include(mut self, path: &Path) -> Self {
        self.included.0.extend(Subtree::parse(path));
        self
    }

    /// A hash of these rules.
    pub(super) fn fingerprint(&self) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        self.ignore.iter().for_each(|pattern| part(pattern.as_bytes()));
        for subtrees in [&self.excluded, &self.included] {
            part(b"subtrees");
            for subtree in &subtrees.0 {
                part(b"subtree");
                subtree.0.iter().for_each(|component| part(component.as_bytes()));
            }
        }
        short(&hasher)
    }
}

pub(super) fn short(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut fingerprint = [0; 16];
    hasher.finalize_xof().fill(&mut fingerprint);
    fingerprint
}

/// The relation of a path to a list of subtrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubtreeRelation {
    Apart,
    /// A subtree is below it.
    Above,
    /// It is the top of a subtree.
    Top,
    Within,
}

#[derive(Debug, Clone)]
struct Subtree(Vec<OsString>);

impl Subtree {
    fn parse(path: &Path) -> Option<Self> {
        let mut components = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => components.push(name.to_owned()),
                Component::CurDir => {}
                _ => return None,
            }
        }
        (!components.is_empty()).then_some(Self(components))
    }

    fn relation(&self, path: &[u8]) -> SubtreeRelation {
        let mut own = self.0.iter();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match own.next() {
                None => return SubtreeRelation::Within,
                Some(wanted) if wanted == "*" || wanted.as_bytes() == name => {}
                Some(_) => return SubtreeRelation::Apart,
            }
        }
        if own.next().is_some() { SubtreeRelation::Above } else { SubtreeRelation::Top }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Subtrees(Vec<Subtree>);

impl Subtrees {
    /// The strongest relation of any subtree to the path.
    pub(super) fn relation(&self, path: &[u8]) -> SubtreeRelation {
        let mut strongest = SubtreeRelation::Apart;
        for subtree in &self.0 {
            match (subtree.relation(path), strongest) {
                (SubtreeRelation::Within, _) => return SubtreeRelation::Within,
                (SubtreeRelation::Top, _) => strongest = SubtreeRelation::Top,
                (SubtreeRelation::Above, SubtreeRelation::Apart) => {
                    strongest = SubtreeRelation::Above
                }
                _ => {}
            }
        }
        strongest
    }
}

/// Whether this is retake's own data or git's, anywhere in the tree.
pub(super) fn is_private(directory: &[u8], name: &[u8]) -> bool {
    match name {
        b".git" => true,
        b"data" | b"worktrees" => {
            directory.rsplit(|byte| *byte == b'/').next() == Some(b".agent".as_slice())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standing_of_paths_and_wildcards() {
        let rules = TrackingRules::new().include(Path::new("a/*/c")).include(Path::new("./a/b"));
        let relation = |path: &str| rules.included.relation(path.as_bytes());
        assert_eq!(relation(""), SubtreeRelation::Above);
        assert_eq!(relation("a"), SubtreeRelation::Above);
        assert_eq!(relation("a/x"), SubtreeRelation::Above);
        assert_eq!(relation("a/x/c"), SubtreeRelation::Top);
        assert_eq!(relation("a/x/c/d"), SubtreeRelation::Within);
        assert_eq!(relation("a/x/d"), SubtreeRelation::Apart);
        assert_eq!(relation("a/b"), SubtreeRelation::Top);
        assert_eq!(relation(".agent/workspaces/my-task/working"), SubtreeRelation::Top);
    }

    #[test]
    fn paths_outside_the_root_have_no_effect() {
        let rules = TrackingRules::new().exclude(Path::new("/etc")).exclude(Path::new("../x"));
        assert_eq!(rules.exclude(Path::new(".")).excluded.0.len(), 0);
    }

    #[test]
    fn prints_differ_when_rules_do() {
        let prints = [
            TrackingRules::new(),
            TrackingRules::new().ignore(["a"]).unwrap(),
            TrackingRules::new().ignore(["a", "b"]).unwrap(),
            TrackingRules::new().ignore(["ab"]).unwrap(),
            TrackingRules::new().exclude(Path::new("a")),
            TrackingRules::new().include(Path::new("a")),
            TrackingRules::new().exclude(Path::new("a/b")),
        ]
        .map(|rules| rules.fingerprint());
        let distinct: std::collections::HashSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
    }

    #[test]
    fn a_bad_pattern_is_refused_by_name() {
        let error = TrackingRules::new().ignore(["ok", "a{b"]).unwrap_err();
        assert!(error.to_string().contains("a{b"), "{error}");
    }
}
