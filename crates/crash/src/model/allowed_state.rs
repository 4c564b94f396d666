//! Whether a profile allows a state found on a disk. Slow and thorough: for proofs, not for
//! exploration.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use crate::model::explore::replay_until;
use crate::model::micro_op::apply_all;
use crate::model::pending_ops::PendingOps;
use crate::model::profile::Model;
use crate::model::replay::Point;
use crate::model::tree::{Tree, TreeEntryKind};
use crate::operation::{Node, Recording};

/// Whether a crash at `point` may leave `found`. Tries every subset of the parts that are not
/// durable, so the recording should leave only a few; a write that a
/// crash tore at a page or sector bound is not recognised.
pub fn allows(recording: &Recording, model: Model, point: Point, found: &Tree) -> bool {
    let Some(replay) = replay_until(recording, model, &HashSet::new(), point) else { return false };
    let found = Listing::new(found);
    let pending = &replay.pending;
    if Listing::new(&pending.now) == found {
        return true;
    }
    let mut search = Search { pending, found, kept: Vec::new(), seen: HashSet::new() };
    model != Model::Kill && search.go()
}

struct Search<'a> {
    pending: &'a PendingOps,
    found: Listing,
    /// For each of the first parts, whether it survives.
    kept: Vec<bool>,
    /// Many subsets leave the same tree.
    seen: HashSet<u128>,
}

impl Search<'_> {
    fn go(&mut self) -> bool {
        let at = self.kept.len();
        let Some(micro_op) = self.pending.micro_ops.get(at) else {
            if !self.is_closed() {
                return false;
            }
            let kept = self.pending.micro_ops.iter().zip(&self.kept).filter(|(_, kept)| **kept);
            let kept: Vec<_> = kept.map(|(micro_op, _)| (micro_op, None)).collect();
            let mut tree = self.pending.base.clone();
            apply_all(&mut tree, &kept);
            return self.seen.insert(tree.digest()) && Listing::new(&tree) == self.found;
        };
        // Decided by requirements that are already lost; later ones are checked at the end.
        let possible = micro_op.requires.iter().all(|id| {
            let needed = self.pending.position(*id).and_then(|needed| self.kept.get(needed));
            needed.copied().unwrap_or(true)
        });
        if possible {
            self.kept.push(true);
            let allowed = self.go();
            self.kept.pop();
            if allowed {
                return true;
            }
        }
        self.kept.push(false);
        let allowed = self.go();
        self.kept.pop();
        allowed
    }

    fn is_closed(&self) -> bool {
        self.pending.micro_ops.iter().enumerate().all(|(at, micro_op)| {
            let has = |id: &u64| self.pending.position(*id).is_none_or(|needed| self.kept[needed]);
            !self.kept[at] || micro_op.requires.iter().all(has)
        })
    }
}

/// What a check can see of a tree, without node numbers.
#[derive(PartialEq, Eq)]
struct Listing(BTreeMap<PathBuf, (u32, What, PathBuf)>);

#[derive(PartialEq, Eq)]
enum What {
    Directory,
    File { size: u64, extents: Vec<(u64, Vec<u8>)> },
    Symlink(std::ffi::OsString),
}

impl Listing {
    fn new(tree: &Tree) -> Self {
        let mut first: BTreeMap<Node, PathBuf> = BTreeMap::new();
        let names = tree.walk().map(|found| {
            let shared = first.entry(found.node).or_insert_with(|| found.path.clone()).clone();
            let what = match found.kind {
                TreeEntryKind::Directory => What::Directory,
                TreeEntryKind::Symlink(target) => What::Symlink(target.to_owned()),
                TreeEntryKind::File(file) => What::File {
                    size: file.size(),
                    extents: file.extents().map(|(at, data)| (at, data.to_vec())).collect(),
                },
            };
            (found.path, (found.mode, what, shared))
        });
        Self(names.collect())
    }
}
