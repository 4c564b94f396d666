//! Detects early that two agents change the same files, long before their results would conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Which agent changed which files so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Overlaps {
    changed: BTreeMap<u32, BTreeSet<PathBuf>>,
    told: BTreeMap<[u32; 2], BTreeSet<PathBuf>>,
}

impl Overlaps {
    /// Adds the changed files of an agent. Returns the pairs with a new common file, with all of
    /// their common files.
    pub(super) fn changed(
        &mut self,
        agent: u32,
        paths: impl IntoIterator<Item = PathBuf>,
    ) -> Vec<([u32; 2], Vec<PathBuf>)> {
        self.changed.entry(agent).or_default().extend(paths);
        let Some(own) = self.changed.get(&agent) else { return Vec::new() };
        let mut news = Vec::new();
        for (other, theirs) in self.changed.iter().filter(|(other, _)| **other != agent) {
            let common: BTreeSet<PathBuf> = own.intersection(theirs).cloned().collect();
            let pair = [agent.min(*other), agent.max(*other)];
            let told = self.told.entry(pair).or_default();
            if common.difference(told).next().is_some() {
                news.push((pair, common.iter().cloned().collect()));
                *told = common;
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn an_overlap_of_two_agents_is_reported_once_per_file() {
        let mut overlaps = Overlaps::default();
        assert!(overlaps.changed(0, paths(&["a", "b"])).is_empty());
        assert!(overlaps.changed(1, paths(&["c"])).is_empty());
        assert_eq!(overlaps.changed(1, paths(&["b"])), [([0, 1], paths(&["b"]))]);
        assert!(overlaps.changed(1, paths(&["b", "d"])).is_empty(), "it was told");
        assert_eq!(overlaps.changed(0, paths(&["d"])), [([0, 1], paths(&["b", "d"]))]);
        let news = overlaps.changed(2, paths(&["a", "c"]));
        assert_eq!(news, [([0, 2], paths(&["a"])), ([1, 2], paths(&["c"]))]);
    }
}
