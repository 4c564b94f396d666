//! The check asked about states: none twice, and not for ever.

use std::collections::HashMap;

use crate::model::explain::failure_kind::FailureKind;
use crate::model::explore::state_class::StateClass;
use crate::model::explore::{CrashState, Promises};
use crate::model::replay::{Point, Replay};
use crate::model::state_key::StateKey;

/// More checks than this for one cause are not worth a shorter sentence.
pub(super) const CHECKS: usize = 80;

/// When a crash comes: after an operation, and after so many promises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Moment {
    pub(super) point: Point,
    pub(super) acks: usize,
}

pub(super) struct Questions<'a, F> {
    promises: &'a Promises,
    /// By state and promises.
    known: HashMap<(u128, usize), Option<FailureKind>>,
    /// Only what fails in this way counts; without it, what fails in any.
    pub(super) wanted: Option<FailureKind>,
    /// Only what passes with so few promises is of interest.
    pub(super) passes_with: Option<usize>,
    left: usize,
    /// A question had to stay open.
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

    /// For the next cause there are as many checks again.
    pub(super) fn begin(&mut self) {
        self.left = CHECKS;
        self.open = false;
    }

    /// At least so many checks are left.
    pub(super) fn allow(&mut self, checks: usize) {
        self.left = self.left.max(checks);
    }

    /// Whether every question so far was answered.
    pub(super) fn are_answered(&self) -> bool {
        !self.open
    }

    /// Whether a state fails in the way that is looked for.
    pub(super) fn fails(&mut self, replay: &Replay, key: &StateKey, acks: usize) -> bool {
        let fewer = match self.passes_with {
            // What fails without a promise is another matter.
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

    /// How a state fails, in whatever way.
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
        // Without checks left nothing is taken to fail, so that what is known to fail stays.
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
