//! Applies a recording under a profile, one step at a time.
//!
//! A write that waits for the device is two steps: the crash may happen before it is done.

use std::cmp::Ordering;
use std::collections::HashSet;

use crate::model::micro_op::{MicroOpId, Part, apply_all};
use crate::model::pending_ops::PendingOps;
use crate::model::profile::btrfs::Btrfs;
use crate::model::profile::journalled::{JournalRules, Journalled};
use crate::model::profile::posix::Posix;
use crate::model::profile::{Model, Tears};
use crate::model::state_key::{Kept, StateKey};
use crate::model::tree::Tree;
use crate::operation::{Action, Entry, Node, Operation, Recording, WriteSync};

/// The position of a replay: before the first operation, during an operation, or after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Point {
    /// The operation before the crash, from 1; 0 is before the first.
    pub operation: u32,
    /// The crash happens while that operation waits for the device.
    pub during: bool,
}

impl Point {
    /// Before the first operation.
    pub const START: Self = Self { operation: 0, during: false };
}

impl Ord for Point {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.operation, !self.during).cmp(&(other.operation, !other.during))
    }
}

impl PartialOrd for Point {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Replay {
    pub(crate) pending: PendingOps,
    rules: Rules,
}

#[derive(Clone, Debug)]
enum Rules {
    Kill,
    Journalled(Journalled),
    Btrfs(Btrfs),
    Posix(Posix),
}

/// One step of a [`Replay`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) point: Point,
    action: &'a Action,
    part: Phase,
    volatile: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Whole,
    /// The bytes of a write that waits.
    Bytes,
    /// The waiting.
    Wait,
}

impl Replay {
    pub(crate) fn new(recording: &Recording, model: Model) -> Self {
        let pending = PendingOps::new(Tree::new(&recording.initial));
        let journalled = |rules| Rules::Journalled(Journalled::new(&pending, rules));
        let rules = match model {
            Model::Kill => Rules::Kill,
            Model::Ext4 => journalled(JournalRules::Default),
            Model::Ext4DioreadLock => journalled(JournalRules::DioreadLock),
            Model::Ext4NoDelayedAllocation => journalled(JournalRules::NoDelayedAllocation),
            Model::Ext4DataJournal => journalled(JournalRules::DataJournal),
            Model::Xfs => journalled(JournalRules::Xfs),
            Model::Btrfs => Rules::Btrfs(Btrfs::default()),
            Model::Posix => Rules::Posix(Posix::default()),
        };
        Self { pending, rules }
    }

    pub(crate) fn step(&mut self, step: &Step<'_>) {
        self.pending.begin(step.point.operation);
        let action = match step.part {
            Phase::Bytes => &without_wait(step.action),
            Phase::Whole | Phase::Wait => step.action,
        };
        let waits = step.part == Phase::Wait;
        match &mut self.rules {
            // Changes that are only visible in memory matter for a kill.
            _ if step.volatile && !waits => {}
            Rules::Kill => {}
            Rules::Journalled(rules) if waits => rules.wait(&mut self.pending, action),
            Rules::Btrfs(rules) if waits => rules.wait(&mut self.pending, action),
            Rules::Posix(_) if waits => Posix::wait(&mut self.pending, action),
            Rules::Journalled(rules) => rules.step(&mut self.pending, action),
            Rules::Btrfs(rules) => rules.step(&mut self.pending, action),
            Rules::Posix(rules) => rules.step(&mut self.pending, action),
        }
        if !waits {
            self.pending.now.apply(action);
        }
    }

    /// The tree of a key, at this point.
    pub(crate) fn build(&self, key: &StateKey) -> Tree {
        let named = |parts: &[Part], part: Part| parts.binary_search(&part).is_ok();
        let keep: Box<dyn Fn(Part) -> bool> = match &key.kept {
            Kept::Everything => return self.pending.now.clone(),
            Kept::AllBut(parts) => Box::new(move |part| !named(parts, part)),
            Kept::Only(parts) => Box::new(move |part| named(parts, part)),
        };
        let mut tree = self.pending.base.clone();
        let kept: Vec<_> = self
            .pending
            .micro_ops
            .iter()
            .filter_map(|micro_op| match key.torn {
                Some((part, torn)) if part == micro_op.part => Some((micro_op, Some(torn))),
                _ => keep(micro_op.part).then_some((micro_op, None)),
            })
            .collect();
        apply_all(&mut tree, &kept);
        tree
    }

    pub(crate) fn part(&self, id: MicroOpId) -> Option<Part> {
        self.pending.position(id).map(|at| self.pending.micro_ops[at].part)
    }

    pub(crate) fn id(&self, part: Part) -> Option<MicroOpId> {
        self.pending
            .micro_ops
            .binary_search_by_key(&part, |micro_op| micro_op.part)
            .ok()
            .map(|at| self.pending.micro_ops[at].id)
    }

    /// Which torn states of a part the profile allows: whether at page bounds only, and whether the
    /// tail may survive alone.
    pub(crate) fn tears(&self, fresh: bool, grows: bool) -> Tears {
        match &self.rules {
            Rules::Journalled(rules) => rules.tears(fresh, grows),
            Rules::Btrfs(_) => Tears { pages: true, tail: true },
            _ => Tears { pages: false, tail: true },
        }
    }
}

fn without_wait(action: &Action) -> Action {
    let mut action = action.clone();
    if let Action::Write { sync, .. } = &mut action {
        *sync = WriteSync::None;
    }
    action
}

/// The operations of a recording in order, numbered from 1.
pub(crate) fn operations(recording: &Recording) -> impl Iterator<Item = (u32, &Operation)> {
    let operations = recording.entries.iter().filter_map(|entry| match entry {
        Entry::Operation(operation) => Some(operation),
        _ => None,
    });
    (1..).zip(operations)
}

/// The operations after which no crash with nothing lost is considered: between two stores
/// through mappings that were found by one comparison. Their order is unknown, so no state with only some of
/// them is certain to have existed.
pub(crate) fn inside_looks(recording: &Recording) -> HashSet<u32> {
    let is_store = |entry: &Entry| {
        matches!(entry, Entry::Operation(operation)
            if matches!(operation.action, Action::Write { mapped: true, .. }))
    };
    let mut number = 0;
    let mut inside = HashSet::new();
    for (at, entry) in recording.entries.iter().enumerate() {
        number += u32::from(matches!(entry, Entry::Operation(_)));
        if is_store(entry) && recording.entries.get(at + 1).is_some_and(is_store) {
            inside.insert(number);
        }
    }
    inside
}

/// Every step; `volatile` files never reach the disk by themselves.
pub(crate) fn steps<'a>(
    recording: &'a Recording,
    volatile: &HashSet<Node>,
) -> impl Iterator<Item = Step<'a>> {
    operations(recording).flat_map(move |(number, operation)| {
        let action = &operation.action;
        let after = Point { operation: number, during: false };
        let during = Point { operation: number, during: true };
        let (volatile, waits) = match action {
            Action::Write { node, sync, .. } => (volatile.contains(node), *sync != WriteSync::None),
            _ => (false, false),
        };
        let whole = Step { point: after, action, part: Phase::Whole, volatile };
        let bytes = Step { point: during, action, part: Phase::Bytes, volatile };
        let wait = Step { point: after, action, part: Phase::Wait, volatile };
        let steps = if waits { [Some(bytes), Some(wait)] } else { [Some(whole), None] };
        steps.into_iter().flatten()
    })
}
