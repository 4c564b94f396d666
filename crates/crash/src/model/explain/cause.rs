//! The cause of a failing state: the smallest loss that still fails, what should not have survived
//! without it, and the sentence that says so.

use std::collections::BTreeSet;

use super::description::{OperationKind, OperationShape};
use super::failure_kind::FailureKind;
use super::minimise::{Loss, Minimiser};
use super::sentence::SmallestLoss;
use super::{Explainer, Finding};
use crate::model::explore::state_class::StateClass;
use crate::model::explore::{CrashState, replay_until};
use crate::model::micro_op::{MicroOpId, Part, Torn};
use crate::model::replay::Point;
use crate::model::state_key::{Kept, StateKey};

/// What makes states fail.
pub(super) struct Cause {
    pub(super) finding: Finding,
    pub(super) lost: BTreeSet<OperationShape>,
    pub(super) survivor: Option<OperationShape>,
    /// Some of the parts of what is lost survive.
    pub(super) half: bool,
    /// Without a survivor: only because of what was acknowledged.
    pub(super) promised: bool,
    pub(super) torn: bool,
    /// For a state that lost nothing: the operation before the crash and the one after.
    pub(super) between: Option<(OperationShape, OperationShape)>,
    /// How the check fails, where that is known.
    pub(super) kind: Option<FailureKind>,
}

impl Cause {
    /// Whether the other one loses the same and perhaps more.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.lost.is_subset(&other.lost)
            && self.lost.is_empty() == other.lost.is_empty()
            && self.survivor == other.survivor
            && self.half == other.half
            && self.torn == other.torn
            && self.between == other.between
            && self.fails_like(other)
    }
}

impl Cause {
    /// The words of a check differ with what it misses; how it ends does not.
    fn fails_like(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (Some(one), Some(other)) => one.outcome == other.outcome,
            _ => true,
        }
    }
}

impl Explainer<'_> {
    /// The cause at work in a loss, with the smallest loss that still fails.
    pub(super) fn explain(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        loss: &Loss,
    ) -> Cause {
        let (smallest, torn) = minimiser.smallest(loss);
        let key = minimiser.key(&smallest, torn);
        let acks = minimiser.acks;
        self.without_promises(minimiser, &key, &smallest, torn);
        let survivor = match torn {
            Some(_) => None,
            None => self.survivor(minimiser, &smallest),
        };
        let replay = minimiser.replay;
        let smallest = Loss { parts: smallest.into_iter().collect(), torn };
        let operations: Vec<u32> = smallest.operations(replay).into_iter().collect();
        let promised = |number: &u32| self.is_promised(*number, minimiser.acks);
        let promised = survivor.is_none() && torn.is_none() && operations.iter().any(promised);
        let main = operations.first().copied().unwrap_or(0);
        if survivor.is_none() && torn.is_none() && !promised && main > 0 {
            let before = Point { operation: main - 1, during: false };
            let there = replay_until(self.recording, self.model, &self.volatile, before);
            let there = there.filter(|_| !self.inside_looks.contains(&before.operation));
            if there.is_some_and(|there| minimiser.moment_fails(&there, before)) {
                minimiser.acks = acks;
                return self.nothing_lost(before, minimiser.wanted.clone());
            }
        }
        let state = self.promises.state(
            replay,
            key.clone(),
            StateClass::DropOne,
            replay.pending.base.clone(),
        );
        let later = survivor.filter(|number| *number != main);
        let mut files = Vec::new();
        for number in operations.iter().copied().chain(later) {
            if let Some(description) = self.descriptions.description(number) {
                files.push(description.path.clone());
                files.extend(description.to.clone());
            }
        }
        files.sort();
        files.dedup();
        let mut sentence = match torn {
            Some((part, cut)) => self.descriptions.of_tear(part, cut),
            None => self.descriptions.of_loss(&SmallestLoss {
                replay,
                lost: &smallest.parts,
                operations: &operations,
                survivor,
                since: minimiser.acks.saturating_sub(self.promises.before(main)),
                until: self.promises.until(main),
            }),
        };
        if let Some(label) = &state.label {
            sentence += &format!(" (after label `{label}`)");
        }
        let finding = Finding {
            id: String::new(),
            sentence,
            files,
            lost_operations: state.lost,
            states: 0,
            key,
        };
        minimiser.acks = acks;
        Cause {
            finding,
            promised,
            lost: operations.iter().map(|number| self.descriptions.shape(*number)).collect(),
            survivor: later.map(|number| self.descriptions.shape(number)),
            half: survivor.is_some() && later.is_none(),
            torn: torn.is_some(),
            between: None,
            kind: minimiser.wanted.clone(),
        }
    }

    /// What fails without the promises made since is not about promises, even where there are some.
    fn without_promises(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        key: &StateKey,
        smallest: &[MicroOpId],
        torn: Option<(Part, Torn)>,
    ) {
        let first = smallest.iter().filter_map(|id| minimiser.replay.part(*id)).min();
        let Some(first) = first.or(torn.map(|(part, _)| part)) else { return };
        let all = std::mem::replace(&mut minimiser.acks, self.promises.before(first.operation));
        if minimiser.acks < all && !minimiser.fails(key) {
            minimiser.acks = all;
        }
    }

    /// The operation that should not have survived without what was lost; what was lost itself if
    /// half of it survived.
    fn survivor(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        smallest: &[MicroOpId],
    ) -> Option<u32> {
        let replay = minimiser.replay;
        let pending = &replay.pending;
        let lost = pending.with_dependents(smallest.iter().copied());
        let gone: BTreeSet<u32> =
            lost.iter().filter_map(|id| replay.part(*id)).map(|part| part.operation).collect();
        let main = smallest.first().and_then(|id| replay.part(*id))?;
        let description = self.descriptions.description(main.operation)?;
        // A name that shows the file without its contents is the usual culprit.
        if matches!(description.kind, OperationKind::Write | OperationKind::Truncate) {
            let shown = (main.operation + 1..=minimiser.point.operation).find(|number| {
                self.descriptions.description(*number).is_some_and(|later| {
                    matches!(later.kind, OperationKind::Rename | OperationKind::Link)
                        && later.node == description.node
                        && !gone.contains(number)
                })
            });
            if shown.is_some() {
                return shown;
            }
        }
        if minimiser.fails(&StateKey {
            point: minimiser.point,
            kept: Kept::Only(Vec::new()),
            torn: None,
        }) {
            // Either it was promised, or something that is durable counts on it.
            return if self.is_promised(main.operation, minimiser.acks) {
                None
            } else {
                (main.operation + 1..=minimiser.point.operation).find(|number| {
                    let durable =
                        pending.micro_ops.iter().all(|micro_op| micro_op.part.operation != *number);
                    let description = self.descriptions.description(*number);
                    durable
                        && description.is_some_and(|description| {
                            !matches!(
                                description.kind,
                                OperationKind::Other | OperationKind::Close | OperationKind::Sync
                            )
                        })
                })
            };
        }
        // All that is left of an operation: its parts are not named.
        let mut later: Vec<(u32, Vec<MicroOpId>)> = Vec::new();
        let left = pending.micro_ops.iter().filter(|micro_op| !lost.contains(&micro_op.id));
        for micro_op in left.filter(|micro_op| micro_op.part.operation >= main.operation) {
            match later.last_mut() {
                Some((number, parts)) if *number == micro_op.part.operation => {
                    parts.push(micro_op.id)
                }
                _ => later.push((micro_op.part.operation, vec![micro_op.id])),
            }
        }
        later.into_iter().find_map(|(number, mut parts)| {
            parts.extend(smallest);
            (!minimiser.fails_without(&parts, None)).then_some(number)
        })
    }

    /// The cause of a state that fails although nothing is lost.
    pub(super) fn nothing_lost(&self, point: Point, kind: Option<FailureKind>) -> Cause {
        let number = point.operation;
        let mut sentence = self.descriptions.of_moment(number);
        if let Some(label) = self.promises.label(point) {
            sentence += &format!(" (after label `{label}`)");
        }
        let files = self
            .descriptions
            .description(number)
            .map(|description| description.path.clone())
            .into_iter()
            .collect();
        Cause {
            finding: Finding {
                id: String::new(),
                sentence,
                files,
                lost_operations: Vec::new(),
                states: 0,
                key: StateKey { point, kept: Kept::Everything, torn: None },
            },
            lost: BTreeSet::new(),
            survivor: None,
            half: false,
            promised: false,
            torn: false,
            between: Some((self.descriptions.shape(number), self.descriptions.shape(number + 1))),
            kind,
        }
    }
}
