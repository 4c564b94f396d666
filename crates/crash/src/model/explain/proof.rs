//! The proof of an explanation: further states that were checked.
//!
//! Losing exactly what is named fails. Losing nothing passes, restoring any part of it passes, and so
//! does the moment before, when the operation that should not have survived was not there yet or the
//! promise had not been made. So the explanation is true, and nothing can be left out of it.

use super::Explainer;
use super::cause::Explained;
use super::failure_kind::FailureKind;
use super::minimise::{Loss, Minimiser};
use super::moments::{FailingStretch, nothing_lost};
use super::questions::Moment;
use crate::model::explore::CrashState;
use crate::model::state_key::StateKey;

/// The results of the check on the states that an explanation rests on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Proof {
    /// Every result is as the explanation claims.
    pub complete: bool,
    /// The states that were checked for it.
    pub states: Vec<ProofState>,
}

/// One checked state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProofState {
    /// Which state.
    pub key: StateKey,
    /// How many acknowledgements the check was given.
    pub acks: usize,
    /// What it shows.
    pub role: ProofRole,
    /// The result of the check.
    pub answer: ProofAnswer,
}

/// What a state of a proof shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProofRole {
    /// Exactly what is named is lost.
    Loss,
    /// Nothing is lost.
    NothingLost,
    /// One part of the named loss survives after all; the number of its operation.
    GivenBack(u32),
    /// The same, one step earlier.
    MomentBefore,
    /// The first step later at which nothing is wrong any more.
    MomentAfter,
}

/// The result of the check on a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProofAnswer {
    /// It fails in the explained way.
    Fails,
    /// It passes.
    Passes,
    /// It fails in another way, or for a reason that does not need the promise.
    FailsOtherwise,
}

impl Proof {
    fn add(
        &mut self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        (replay, key, acks): (&crate::model::replay::Replay, StateKey, usize),
        role: ProofRole,
    ) {
        let questions = &mut minimiser.questions;
        let answer = match questions.fails(replay, &key, acks) {
            true => ProofAnswer::Fails,
            false if questions.kind(replay, &key, acks).is_some() => ProofAnswer::FailsOtherwise,
            false => ProofAnswer::Passes,
        };
        let expected = answer == ProofAnswer::Fails;
        self.complete &= expected == (role == ProofRole::Loss);
        self.states.push(ProofState { key, acks, role, answer });
    }
}

impl Explainer<'_> {
    /// Checks the claims of an explanation. Most of these states were checked before.
    pub(super) fn prove(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        explained: &Explained,
    ) -> Proof {
        let Explained { loss, before, .. } = explained;
        let (replay, moment) = (minimiser.replay.clone(), minimiser.moment);
        minimiser.questions.allow(2 * (loss.parts.len() + 4));
        let mut proof = Proof { complete: minimiser.questions.are_answered(), states: Vec::new() };
        proof.add(minimiser, (&replay, loss.key(&replay, moment), moment.acks), ProofRole::Loss);
        if !self.inside_looks.contains(&moment.point.operation) {
            let whole = nothing_lost(moment.point);
            proof.add(minimiser, (&replay, whole, moment.acks), ProofRole::NothingLost);
        }
        for (operation, rest) in loss.one_less(&replay) {
            let key = rest.key(&replay, moment);
            proof.add(minimiser, (&replay, key, moment.acks), ProofRole::GivenBack(operation));
        }
        if let Some(earlier) = self.replay_at(before.point) {
            let then = loss.at(&earlier);
            // Before any of it was done nothing is lost.
            let key = match then.is_nothing() && !loss.is_nothing() {
                true => nothing_lost(before.point),
                false => then.key(&earlier, *before),
            };
            proof.add(minimiser, (&earlier, key, before.acks), ProofRole::MomentBefore);
        }
        proof
    }

    /// The same for a stretch that fails with nothing lost.
    pub(super) fn prove_stretch(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        stretch: &FailingStretch,
    ) -> Proof {
        minimiser.questions.allow(6);
        let mut proof = Proof { complete: minimiser.questions.are_answered(), states: Vec::new() };
        let mut add = |moment: Moment, role| {
            if let Some(replay) = self.replay_at(moment.point) {
                let key = nothing_lost(moment.point);
                proof.add(minimiser, (&replay, key, moment.acks), role);
            }
        };
        add(stretch.from, ProofRole::Loss);
        stretch.before.into_iter().for_each(|moment| add(moment, ProofRole::MomentBefore));
        stretch.until.into_iter().for_each(|moment| add(moment, ProofRole::MomentAfter));
        proof
    }
}

impl Loss {
    /// The losses in which one part more survives, with everything it requires, and the operation of that part.
    /// Parts that are only implied stay lost.
    fn one_less(&self, replay: &crate::model::replay::Replay) -> Vec<(u32, Self)> {
        let pending = &replay.pending;
        let closed = pending.with_dependents(self.parts.iter().copied());
        let less = self.parts.iter().map(|id| {
            let back = pending.with_needs([*id]);
            let operation = replay.part(*id).map_or(0, |part| part.operation);
            (
                operation,
                Self { parts: closed.difference(&back).copied().collect(), torn: self.torn },
            )
        });
        let untorn =
            self.torn.map(|(part, _)| (part.operation, Self { parts: closed.clone(), torn: None }));
        less.chain(untorn).collect()
    }
}
