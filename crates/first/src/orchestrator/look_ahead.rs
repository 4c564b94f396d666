//! Predicts which state is checked next, so that it can be written while another one is checked.
//!
//! A wrong guess costs the time to write a state, but changes no result.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use retake_crash::model::{Tree, TreeEntryKind};

/// A second place has its own server, which does not pay off in a test with few points.
const FIRST_CHECKS: usize = 8;

/// A state that is written in advance takes memory.
const MOST_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct LookAhead {
    seen: Option<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    checks: usize,
    /// States that need no second check.
    settled: HashSet<u128>,
    /// Whether the last check used its crash info: then equal states are checked, too.
    looked: bool,
}

impl LookAhead {
    /// If several checks run in parallel, no processor is idle.
    pub(crate) fn new(jobs: usize) -> Self {
        let idle = jobs == 1 && thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        Self { seen: idle.then(Mutex::default) }
    }

    fn seen(&self) -> Option<MutexGuard<'_, Seen>> {
        self.seen.as_ref().map(|seen| seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A state has passed its check.
    pub(crate) fn passed(&self, state: &Tree, looked: bool) {
        if let Some(mut seen) = self.seen() {
            seen.checks += 1;
            seen.looked = looked;
            if !looked {
                seen.settled.insert(state.digest());
            }
        }
    }

    /// The target whose state to write while `target` is checked.
    pub(crate) fn after<'a>(
        &self,
        target: usize,
        state: impl Fn(usize) -> Option<&'a Tree>,
    ) -> Option<usize> {
        let seen = self.seen()?;
        if seen.checks < FIRST_CHECKS {
            return None;
        }
        let now = state(target)?.digest();
        let mut next = target + 1;
        while !seen.looked && state(next).is_some_and(|tree| seen.is_settled(tree, now)) {
            next += 1;
        }
        state(next).filter(|tree| is_small(tree)).map(|_| next)
    }
}

impl Seen {
    /// `now` is being checked, and is assumed to pass.
    fn is_settled(&self, tree: &Tree, now: u128) -> bool {
        let digest = tree.digest();
        digest == now || self.settled.contains(&digest)
    }
}

fn is_small(tree: &Tree) -> bool {
    let mut bytes = 0;
    tree.walk().all(|found| match found.kind {
        TreeEntryKind::File(file) => file.extents().all(|(_, extent)| {
            bytes += extent.len();
            bytes <= MOST_BYTES
        }),
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use retake_crash::operation::{Action, DirEntry, Kind, Node};

    use super::*;

    /// A tree that differs from those of other numbers.
    fn tree(number: u64) -> Tree {
        let mut tree = Tree::new(&[]);
        let dir_entry = Some(DirEntry { directory: Node::ROOT, name: format!("{number}").into() });
        tree.apply(&Action::Create { node: Node(1), mode: 0o644, kind: Kind::File, dir_entry });
        tree
    }

    #[test]
    fn states_that_need_no_check_are_passed_over() {
        let trees: Vec<Tree> = [1, 1, 2, 1, 2, 3].map(tree).into();
        let state = |target: usize| trees.get(target - 1);
        let ahead = LookAhead { seen: Some(Mutex::default()) };
        assert_eq!(ahead.after(1, state), None, "too early to be worth it");
        (0..FIRST_CHECKS).for_each(|_| ahead.passed(&tree(9), false));
        assert_eq!(ahead.after(1, state), Some(3));
        ahead.passed(&trees[0], false);
        assert_eq!(ahead.after(3, state), Some(6));
        assert_eq!(ahead.after(6, state), None, "there is no other");
        ahead.passed(&trees[2], true);
        assert_eq!(ahead.after(3, state), Some(4), "each is checked if checks look");
    }

    #[test]
    fn a_large_state_is_not_prepared_ahead() {
        let mut large = tree(1);
        let data = vec![7; MOST_BYTES + 1].into();
        let sync = retake_crash::operation::WriteSync::None;
        large.apply(&Action::Write { node: Node(1), offset: 0, data, sync, mapped: false });
        assert!(!is_small(&large) && is_small(&tree(2)));
    }
}
