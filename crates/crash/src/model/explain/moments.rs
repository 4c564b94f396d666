//! The moment from which a loss makes the check fail: the operation at that moment should not
//! have survived without the lost one.

use std::rc::Rc;

use super::Explainer;
use super::failure_kind::FailureKind;
use super::minimise::{Loss, Minimiser};
use super::questions::Moment;
use crate::model::explore::{CrashState, replay_until};
use crate::model::replay::{Point, Replay};
use crate::model::state_key::{Kept, StateKey};

/// When a loss begins to fail.
pub(super) enum Beginning {
    /// It fails at this moment and passes at the one before.
    At { replay: Rc<Replay>, moment: Moment, before: Moment },
    /// It fails even before anything is lost.
    BeforeLoss(Moment),
}

/// A stretch of the recording in which the check fails with nothing lost.
pub(super) struct FailingStretch {
    pub(super) from: Moment,
    /// The last moment before it that passes; `None` if it begins with the recording.
    pub(super) before: Option<Moment>,
    /// The first moment after it that passes, if any.
    pub(super) until: Option<Moment>,
}

pub(super) fn nothing_lost(point: Point) -> StateKey {
    StateKey { point, kept: Kept::Everything, torn: None }
}

impl Explainer<'_> {
    pub(super) fn replay_at(&self, point: Point) -> Option<Rc<Replay>> {
        replay_until(self.recording, self.model, &self.volatile, point).map(Rc::new)
    }

    /// The moments from the end of an operation up to another moment, in order. There are none
    /// between stores that were found by one comparison.
    fn moments(&self, operation: u32, last: Moment) -> Vec<Moment> {
        let mut moments = Vec::new();
        for number in operation..=last.point.operation {
            if self.inside_looks.contains(&number) {
                continue;
            }
            let said = self.promises.before(number);
            if self.waits.contains(&number) {
                moments
                    .push(Moment { point: Point { operation: number, during: true }, acks: said });
            }
            let point = Point { operation: number, during: false };
            moments.extend((said..=self.promises.by(number)).map(|acks| Moment { point, acks }));
        }
        moments.retain(|moment| *moment <= last);
        moments
    }

    /// The moment before the first lost operation.
    fn before_loss(&self, loss: &Loss, replay: &Replay) -> Moment {
        let first = loss.operations(replay).first().copied();
        let Some(first) = first else { return Moment { point: Point::START, acks: 0 } };
        let mut operation = first - 1;
        while operation > 0 && self.inside_looks.contains(&operation) {
            operation -= 1;
        }
        let acks = self.promises.by(operation).min(self.promises.before(first));
        Moment { point: Point { operation, during: false }, acks }
    }

    /// Whether a loss fails if the crash happens at a moment.
    pub(super) fn fails_at(
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        replay: &Replay,
        moment: Moment,
        loss: &Loss,
    ) -> bool {
        let key = loss.at(replay).key(replay, moment);
        minimiser.questions.fails(replay, &key, moment.acks)
    }

    /// When a loss that fails at the minimiser's moment begins to fail.
    pub(super) fn beginning(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        loss: &Loss,
    ) -> Beginning {
        let first = self.before_loss(loss, &minimiser.replay);
        if self.fails_whole(minimiser, first) {
            return Beginning::BeforeLoss(first);
        }
        let mut found = (Rc::clone(&minimiser.replay), minimiser.moment);
        let mut before = first;
        let mut moments = self.moments(first.point.operation + 1, minimiser.moment);
        moments.retain(|moment| *moment < minimiser.moment);
        while !moments.is_empty() {
            let middle = moments.len() / 2;
            let moment = moments[middle];
            let Some(replay) = self.replay_at(moment.point) else { break };
            if Self::fails_at(minimiser, &replay, moment, loss) {
                found = (replay, moment);
                moments.truncate(middle);
            } else {
                before = moment;
                moments.drain(..=middle);
            }
        }
        let (replay, moment) = found;
        Beginning::At { replay, moment, before }
    }

    /// Whether the check fails at a moment with nothing lost.
    pub(super) fn fails_whole(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        moment: Moment,
    ) -> bool {
        let replay = self.replay_at(moment.point);
        replay.is_some_and(|replay| {
            minimiser.questions.fails(&replay, &nothing_lost(moment.point), moment.acks)
        })
    }

    /// The stretch around a moment that fails with nothing lost.
    pub(super) fn stretch(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        at: Moment,
    ) -> FailingStretch {
        let operations = self.acts.len() as u32;
        let end = Point { operation: operations, during: false };
        let all = self.moments(0, Moment { point: end, acks: self.promises.by(operations) });
        let here = all.partition_point(|moment| *moment < at);
        let earlier: Vec<Moment> = all[..here].iter().rev().copied().collect();
        let later = all.get(here + 1..).unwrap_or_default();
        let (from, before) = self.first_that_passes(minimiser, &earlier);
        let (_, until) = self.first_that_passes(minimiser, later);
        FailingStretch { from: from.unwrap_or(at), before, until }
    }

    /// In a sequence next to a failing moment: the nearest moment that passes, and
    /// its predecessor in the sequence. An exponential search, then a binary one.
    fn first_that_passes(
        &self,
        minimiser: &mut Minimiser<'_, impl FnMut(&CrashState) -> Option<FailureKind>>,
        row: &[Moment],
    ) -> (Option<Moment>, Option<Moment>) {
        let (mut fails, mut step) = (None::<usize>, 1);
        let mut passes = loop {
            let at = fails.map_or(0, |fails| fails + step);
            let Some(moment) = row.get(at.min(row.len().saturating_sub(1))).copied() else {
                return (None, None);
            };
            let at = at.min(row.len() - 1);
            if !self.fails_whole(minimiser, moment) {
                break at;
            }
            if at + 1 == row.len() {
                return (Some(moment), None);
            }
            (fails, step) = (Some(at), step * 2);
        };
        while passes - fails.map_or(0, |fails| fails + 1) > 0 {
            let low = fails.map_or(0, |fails| fails + 1);
            let middle = low + (passes - low) / 2;
            if self.fails_whole(minimiser, row[middle]) {
                fails = Some(middle);
            } else {
                passes = middle;
            }
        }
        (fails.map(|fails| row[fails]), Some(row[passes]))
    }
}
