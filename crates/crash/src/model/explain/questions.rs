//! Runs the check on states: never twice on the same one, and only a limited number of times.

use std::collections::HashMap;

use crate::model::explain::failure_kind::FailureKind;
use crate::model::explore::state_class::StateClass;
use crate::model::explore::{CrashState, Promises};
use crate::model::replay::{Point, Replay};
use crate::model::state_key::StateKey;

/// A shorter sentence is not worth more checks than this for one cause.
pub(super) const CHECKS: usize = 80;

/// When a crash happens: after an operation, and after a number of promises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Moment {
    pub(super) point: Point,
    pub(super) acks: usize,
}

pub(super) struct Questions<'a, F> {
    promises: &'a Promises,
    /// By state and promises.
    known: HashMap<(u128, usize), Option<FailureKind>>,
    /// Only failures of this kind count; if `None`, any failure.
    pub(super) wanted: Option<FailureKind>,
    /// Only states that pass with this many promises are of interest.
    pub(super) passes_with: Option<usize>,
    left: usize,
    /// Some state could not be checked.
    open: bool,
    fails: &'a mut F,
}

impl<'a, F: FnMut(&CrashState) -> Option<FailureKind>> Questions<'a, F> {
    pub(super) fn new(
        promises: &'a Promises,
        wanted: Option<FailureKind>,
        fails: &'a mut F,
    ) -> Self {
        Self {
            promises,
            known: HashMap::new(),
            wanted,
            passes_with: None,
            left: CHECKS,
            open: false,
            fails,
        }
    }

    /// Resets the number of checks for the next cause.
    pub(super) fn begin(&mut self) {
        self.left = CHECKS;
        self.open = false;
    }

    /// Ensures that at least this many checks are left.
    pub(super) fn allow(&mut self, checks: usize) {
        self.left = self.left.max(checks);
    }

    /// Whether every state so far could be checked.
    pub(super) fn are_answered(&self) -> bool {
        !self.open
    }

    /// Whether a state fails in the wanted way.
    pub(super) fn fails(&mut self, replay: &Replay, key: &StateKey, acks: usize) -> bool {
        let fewer = match self.passes_with {
            // A state that fails without a promise does not count.
            Some(fewer) if fewer >= acks => return false,
            fewer => fewer,
        };
        self.is_wanted(replay, key, acks)
            && fewer.is_none_or(|fewer| !self.is_wanted(replay, key, fewer))
    }

    /// The same, whatever was promised.
    pub(super) fn is_wanted(&mut self, replay: &Replay, key: &StateKey, acks: usize) -> bool {
        let kind = self.kind(replay, key, acks);
        kind.is_some() && (self.wanted.is_none() || kind == self.wanted)
    }

    /// How a state fails, in any way.
    pub(super) fn kind(
        &mut self,
        replay: &Replay,
        key: &StateKey,
        acks: usize,
    ) -> Option<FailureKind> {
        let tree = replay.build(key);
        let asked = (tree.digest(), acks);
        if let Some(known) = self.known.get(&asked) {
            return known.clone();
        }
        // Without checks left a state counts as passing, so that known failures stay.
        if self.left == 0 {
            self.open = true;
            return None;
        }
        self.left -= 1;
        let state = self.promises.state(replay, key.clone(), StateClass::DropOne, tree);
        let fails = (self.fails)(&CrashState { acks, ..state });
        self.known.insert(asked, fails.clone());
        fails
    }
}
