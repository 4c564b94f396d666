//! The cause of a failing state: the smallest loss that still fails, the operation that should not have
//! survived without it, and the sentence that says so.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;

use super::description::OperationShape;
use super::failure_kind::FailureKind;
use super::minimise::{Loss, Minimiser};
use super::moments::{Beginning, nothing_lost};
use super::questions::Moment;
use super::sentence::SmallestLoss;
use super::{Explainer, Finding};
use crate::model::explore::CrashState;
use crate::model::explore::state_class::StateClass;

/// Why states fail.
pub(super) struct Cause {
    pub(super) finding: Finding,
    pub(super) lost: BTreeSet<OperationShape>,
    pub(super) survivor: Option<OperationShape>,
    /// Some parts of the lost operations survive.
    pub(super) half: bool,
    /// Only promised: without a survivor, it fails because of an acknowledgement.
    pub(super) promised: bool,
    pub(super) torn: bool,
    /// For a state that lost nothing: the operation after which it fails, and the one that repairs it.
    pub(super) between: Option<(OperationShape, OperationShape)>,
    /// How the check fails, if known.
    pub(super) kind: Option<FailureKind>,
}

impl Cause {
    /// Whether the other one loses the same, and perhaps more.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.lost.is_subset(&other.lost)
            && self.lost.is_empty() == other.lost.is_empty()
            && self.survivor == other.survivor
            && self.half == other.half
            && self.torn == other.torn
            && self.between == other.between
            && self.fails_like(other)
    }

    /// The words of a check vary with what is missing; how it ends does not.
    fn fails_like(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (Some(one), Some(other)) => one.outcome == other.outcome,
            _ => true,
        }
    }
}

/// Why a loss makes the check fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Circumstance {
    /// This operation survives without the lost one.
    Survivor(u32),
    /// This many promises were made in total, the last of which requires the lost operation.
    Promised(usize),
    /// The rest of this operation survives.
    Half(u32),
    /// The rest of the torn write survives.
    Torn,
}

/// The smallest loss at the first moment at which it fails.
pub(super) struct Explained {
    pub(super) loss: Loss,
    /// The last moment at which it passes.
    pub(super) before: Moment,
    pub(super) circumstance: Circumstance,
}

impl Explainer<'_> {
    /// The cause of a loss, with the smallest loss that still fails, at the first moment at
    /// which it does. Restores the minimiser's moment afterwards.
    pub(super) fn explain(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        loss: &Loss,
    ) -> Cause {
        let home = (Rc::clone(&minimiser.replay), minimiser.moment);
        minimiser.questions.begin();
        let cause = match self.smallest(minimiser, loss) {
            Ok(explained) => self.cause(minimiser, &explained),
            Err(moment) => self.stopped(minimiser, moment),
        };
        (minimiser.replay, minimiser.moment) = home;
        cause
    }

    /// Alternately reduces the loss and moves the crash earlier. The error is a moment at which
    /// the check fails with nothing lost.
    fn smallest(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        loss: &Loss,
    ) -> Result<Explained, Moment> {
        let mut smallest = minimiser.smallest(loss);
        loop {
            let inside = self.inside_looks.contains(&minimiser.moment.point.operation);
            if !inside && minimiser.whole_fails() {
                return Err(minimiser.moment);
            }
            let before = match self.beginning(minimiser, &smallest) {
                Beginning::BeforeLoss(moment) => return Err(moment),
                Beginning::At { moment, before, .. } if moment == minimiser.moment => before,
                Beginning::At { replay, moment, .. } => {
                    (minimiser.replay, minimiser.moment) = (replay, moment);
                    smallest = minimiser.smallest(&smallest.at(&minimiser.replay));
                    continue;
                }
            };
            let moment = minimiser.moment;
            let number = moment.point.operation;
            let torn_now = smallest.torn.is_some_and(|(part, _)| part.operation == number);
            let circumstance = if torn_now {
                Circumstance::Torn
            } else if before.point == moment.point {
                Circumstance::Promised(moment.acks)
            } else if smallest.operations(&minimiser.replay).contains(&number) {
                let other = self.other_store(&smallest.operations(&minimiser.replay), number);
                other.map_or(Circumstance::Half(number), Circumstance::Survivor)
            } else {
                Circumstance::Survivor(number)
            };
            return Ok(Explained { loss: smallest, before, circumstance });
        }
    }

    /// The last surviving store that was found by the same comparison as this one.
    fn other_store(&self, lost: &BTreeSet<u32>, number: u32) -> Option<u32> {
        let mut look = (1..number).rev().take_while(|other| self.inside_looks.contains(other));
        look.find(|other| !lost.contains(other))
    }

    fn cause(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        explained: &Explained,
    ) -> Cause {
        let proof = self.prove(minimiser, explained);
        let (replay, moment) = (&minimiser.replay, minimiser.moment);
        let Explained { loss, circumstance, .. } = explained;
        let operations: Vec<u32> = loss.operations(replay).into_iter().collect();
        let key = loss.key(replay, moment);
        let base = replay.pending.base.clone();
        let state = self.promises.state(replay, key.clone(), StateClass::DropOne, base);
        let survivor = match circumstance {
            Circumstance::Survivor(number) => Some(*number),
            _ => None,
        };
        let main = operations.first().copied().unwrap_or(0);
        let advice = self.advice(explained, &operations);
        let mut sentence = match loss.torn {
            Some((part, cut)) => {
                self.descriptions.of_tear((part, cut), *circumstance, advice.as_ref())
            }
            None => self.descriptions.of_loss(&SmallestLoss {
                replay,
                lost: &loss.parts,
                operations: &operations,
                circumstance: *circumstance,
                since: moment.acks.saturating_sub(self.promises.before(main)),
                advice: advice.as_ref(),
                volatile: &self.volatile_names,
            }),
        };
        if let Some(label) = &state.label {
            sentence += &format!(" (after label `{label}`)");
        }
        let finding = Finding {
            id: String::new(),
            sentence,
            files: self.files(operations.iter().copied().chain(survivor)),
            lost_operations: state.lost,
            named: operations.clone(),
            circumstance: Some(*circumstance),
            states: 0,
            key,
            acks: moment.acks,
            proof,
        };
        Cause {
            finding,
            promised: matches!(circumstance, Circumstance::Promised(_)),
            lost: operations.iter().map(|number| self.descriptions.shape(*number)).collect(),
            survivor: survivor.map(|number| self.descriptions.shape(number)),
            half: matches!(circumstance, Circumstance::Half(_)),
            torn: loss.torn.is_some(),
            between: None,
            kind: minimiser.questions.wanted.clone(),
        }
    }

    /// The names that operations concern.
    pub(super) fn files(&self, operations: impl Iterator<Item = u32>) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for description in operations.filter_map(|number| self.descriptions.description(number)) {
            files.push(description.path.clone());
            files.extend(description.to.clone());
        }
        files.sort();
        files.dedup();
        files
    }

    /// The cause of a state that fails although nothing is lost.
    pub(super) fn stopped(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        at: Moment,
    ) -> Cause {
        let stretch = self.stretch(minimiser, at);
        let proof = self.prove_stretch(minimiser, &stretch);
        let point = stretch.from.point;
        let number = point.operation;
        let mended = stretch.until.map(|moment| moment.point.operation);
        // At this point there was an acknowledgement, but no operation.
        let said = stretch.before.is_some_and(|before| before.point == point);
        let mut sentence = self.descriptions.of_moment(number, mended, said);
        if let Some(label) = self.promises.label(point) {
            sentence += &format!(" (after label `{label}`)");
        }
        let shape = |number| self.descriptions.shape(number);
        Cause {
            finding: Finding {
                id: String::new(),
                sentence,
                files: self.files(std::iter::once(number)),
                lost_operations: Vec::new(),
                named: Vec::new(),
                circumstance: None,
                states: 0,
                key: nothing_lost(point),
                acks: stretch.from.acks,
                proof,
            },
            lost: BTreeSet::new(),
            survivor: None,
            half: false,
            promised: said,
            torn: false,
            between: Some((shape(number), shape(mended.unwrap_or(number + 1)))),
            kind: minimiser.questions.wanted.clone(),
        }
    }
}
