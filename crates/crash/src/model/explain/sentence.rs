//! Sentences about crash states: what is lost, and what to sync.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::model::explain::advice::Advice;
use crate::model::explain::cause::Circumstance;
use crate::model::explain::description::{
    OperationDescription, OperationDescriptions, OperationKind,
};
use crate::model::micro_op::{Effect, MicroOp, MicroOpId, Part, Torn};
use crate::model::path_text::quoted_path;
use crate::model::replay::Replay;
use crate::text::count;

/// How many operations besides the first are named.
const OTHERS: usize = 3;

/// The smallest loss that fails.
pub(super) struct SmallestLoss<'a> {
    pub(super) replay: &'a Replay,
    pub(super) lost: &'a BTreeSet<MicroOpId>,
    /// The lost operations, in order.
    pub(super) operations: &'a [u32],
    pub(super) circumstance: Circumstance,
    /// How many promises were made after the first one.
    pub(super) since: usize,
    /// What to sync.
    pub(super) advice: Option<&'a Advice>,
    /// The files that are lost in every power loss.
    pub(super) volatile: &'a [PathBuf],
}

impl SmallestLoss<'_> {
    /// The lost parts of an operation, and the surviving ones.
    fn parts(&self, operation: u32) -> (Vec<&MicroOp>, Vec<&MicroOp>) {
        let pending = &self.replay.pending;
        let gone = pending.with_dependents(self.lost.iter().copied());
        let parts =
            pending.micro_ops.iter().filter(|micro_op| micro_op.part.operation == operation);
        parts.partition(|micro_op| gone.contains(&micro_op.id))
    }
}

/// From the first to the last byte of some parts.
fn bytes(parts: &[&MicroOp]) -> Option<(u64, u64)> {
    let pieces = parts.iter().filter_map(|micro_op| match &micro_op.effect {
        Effect::Bytes { pieces, .. } => Some(pieces),
        _ => None,
    });
    pieces.flatten().copied().reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
}

/// The size that one of the parts gives its file.
fn size(parts: &[&MicroOp]) -> Option<u64> {
    let sizes = parts.iter().filter_map(|micro_op| match &micro_op.effect {
        Effect::Size { size, .. } => Some(*size),
        _ => None,
    });
    sizes.max()
}

impl OperationDescriptions {
    /// What is lost, and what survived without it or had been promised.
    pub(super) fn of_loss(&self, loss: &SmallestLoss<'_>) -> String {
        let half = match loss.circumstance {
            Circumstance::Half(number) => Some(number),
            _ => None,
        };
        let Some(main) = half.or(loss.operations.first().copied()) else {
            return self.of_volatile(loss);
        };
        let others = loss.operations.iter().copied().filter(|number| *number != main);
        let others: Vec<String> =
            others.map(|number| self.lost(loss, number)).take(OTHERS).collect();
        let left_out = (loss.operations.len() - 1).saturating_sub(OTHERS);
        let others = match (&others[..], left_out) {
            ([], _) => String::new(),
            (all, 0) => format!(" and {}", all.join(" and ")),
            (all, more) => {
                format!(", {} and {}", all.join(", "), count(more as u64, "more operation"))
            }
        };
        let sync = |place: &str| match loss.advice {
            Some(advice) => format!(": `fsync` {} {place}", advice.text()),
            None => ": recovery must cope with it".to_owned(),
        };
        let Some(description) = self.description(main) else { return String::new() };
        match loss.circumstance {
            Circumstance::Half(number) => {
                let (lost, kept) = loss.parts(number);
                let half = half_of(&self.op(number), description, &lost, &kept);
                match others.strip_prefix(" and ").or(others.strip_prefix(", ")) {
                    Some(others) => format!("{half}; lost, too: {others}"),
                    None => half,
                }
            }
            Circumstance::Survivor(number) => {
                self.of_survivor(loss, (main, description), number, &others)
            }
            Circumstance::Promised(_) | Circumstance::Torn => {
                let (is, what) = verb("are", "is", self.lost(loss, main));
                let is = if others.is_empty() { is } else { "are" };
                let were = if loss.since == 1 { "was" } else { "were" };
                let lines = format!("{} {were}", count(loss.since as u64, "line"));
                let last = loss.operations.last().copied().unwrap_or(main);
                let place = format!("after {} and before the acknowledgement", self.op(last));
                format!(
                    "{what}{others} {is} lost although {lines} acknowledged since{}",
                    sync(&place)
                )
            }
        }
    }

    /// An operation that survives without what it requires.
    fn of_survivor(
        &self,
        loss: &SmallestLoss<'_>,
        (main, description): (u32, &OperationDescription),
        number: u32,
        others: &str,
    ) -> String {
        let Some(later) = self.description(number) else { return String::new() };
        let before = self.op(number);
        let sync = self.sync_before(number, later, loss.advice);
        let (lost, _) = loss.parts(main);
        let same = later.is_name() && later.node == description.node;
        if same
            && description.kind == OperationKind::Write
            && let Some((from, to)) = bytes(&lost).or(description.range)
        {
            let verb = match later.kind {
                OperationKind::Rename => "rename of",
                OperationKind::Link => "link",
                _ => "name of",
            };
            let path = match (later.kind, &later.to) {
                (OperationKind::Link, Some(link)) => quoted_path(link),
                _ => quoted_path(&later.path),
            };
            return format!(
                "the {verb} {path} survives but its bytes {from}–{to}{others} do not{sync}"
            );
        }
        let (gone, kept) = loss.parts(number);
        let (survive, later) = verb("survive", "survives", what(&before, later, &kept, &gone));
        let (not, what) = verb("do", "does", self.lost(loss, main));
        let not = if others.is_empty() { not } else { "do" };
        format!("{later} {survive} but {what}{others} {not} not{sync}")
    }

    /// What to sync before an operation that survives without what it requires.
    fn sync_before(
        &self,
        number: u32,
        later: &OperationDescription,
        advice: Option<&Advice>,
    ) -> String {
        let before = self.op(number);
        match advice {
            Some(advice) if later.is_name() && advice.is_of(later.node) => {
                format!(": `fsync` the file before {before}")
            }
            Some(advice) => format!(": `fsync` {} before {before}", advice.text()),
            None => ": recovery must cope with it".to_owned(),
        }
    }

    /// The lost part of an operation.
    fn lost(&self, loss: &SmallestLoss<'_>, number: u32) -> String {
        let (lost, kept) = loss.parts(number);
        match self.description(number) {
            Some(description) => what(&self.op(number), description, &lost, &kept),
            None => self.op(number),
        }
    }

    /// Only files that are never synced are lost.
    fn of_volatile(&self, loss: &SmallestLoss<'_>) -> String {
        let files: Vec<String> =
            loss.volatile.iter().take(3).map(|path| quoted_path(path)).collect();
        let files = match loss.volatile.len().saturating_sub(3) {
            0 => files.join(", "),
            more => format!("{} and {}", files.join(", "), count(more as u64, "more file")),
        };
        let when = match loss.circumstance {
            Circumstance::Survivor(number) | Circumstance::Half(number) => {
                match self.description(number) {
                    Some(later) => format!(" when {} ({}) is there", later.noun(), self.op(number)),
                    None => String::new(),
                }
            }
            Circumstance::Promised(_) => " when something was acknowledged".to_owned(),
            Circumstance::Torn => String::new(),
        };
        format!(
            "the check fails without {files}{when}: mapped or written and never synced, `msync` or `fsync` it"
        )
    }

    /// A write of which a part survives: by itself, or with a name that leads to it.
    pub(super) fn of_tear(
        &self,
        (part, torn): (Part, Torn),
        circumstance: Circumstance,
        advice: Option<&Advice>,
    ) -> String {
        let number = part.operation;
        let (path, from, to) = self.description(number).map_or_else(
            || (String::new(), 0, 0),
            |description| {
                let (from, to) = description.range.unwrap_or((0, 0));
                (quoted_path(&description.path), from, to)
            },
        );
        let (kept, lost) = match torn {
            Torn::Head(cut) => (format!("{from}–{cut}"), (cut, to)),
            Torn::Tail(cut) => (format!("{cut}–{to}"), (from, cut)),
            Torn::Ends(head, tail) => (format!("{from}–{head} and {tail}–{to}"), (head, tail)),
        };
        if let Circumstance::Survivor(later) = circumstance
            && let Some(description) = self.description(later)
        {
            return format!(
                "{} ({}) survives but of the write of {path} ({}) only bytes {kept} do{}",
                description.noun(),
                self.op(later),
                self.op(number),
                self.sync_before(later, description, advice)
            );
        }
        format!(
            "the write of {path} is torn: bytes {kept} of {} survive, bytes {}–{} do not: recovery must notice half a write",
            self.op(number),
            lost.0,
            lost.1
        )
    }

    /// A failing state without a determined cause.
    pub(super) fn of_unexplained(&self, operation: u32, lost: &[u32]) -> String {
        let main = lost.iter().find_map(|number| Some((*number, self.description(*number)?)));
        let Some((number, description)) = main else {
            return self.of_moment(operation, Some(operation + 1), false);
        };
        let others = match lost.len() as u64 - 1 {
            0 => String::new(),
            more => format!(" and {}", count(more, "more operation")),
        };
        format!(
            "the check fails without {} ({}){others}; its cause was not determined",
            description.noun(),
            self.op(number)
        )
    }

    /// A state that lost nothing.
    pub(super) fn of_moment(&self, operation: u32, mended: Option<u32>, said: bool) -> String {
        let told = |number: u32| {
            self.description(number)
                .map(|description| format!("{} ({})", self.op(number), description.noun()))
        };
        let before = match (told(operation), said) {
            (Some(before), true) => Some(format!("what was acknowledged after {before}")),
            (None, true) => Some("the acknowledgement before op 1".to_owned()),
            (before, false) => before,
        };
        let after = mended.and_then(told);
        let moment = match (before, after) {
            (Some(before), Some(after)) => format!("between {before} and {after}"),
            (Some(before), None) => format!("after {before}"),
            (None, Some(after)) => format!("before {after}"),
            (None, None) => "without a single operation".to_owned(),
        };
        format!("the check fails with nothing lost, stopped {moment}")
    }
}

/// The lost part of an operation, by its bytes if other parts survive.
fn what(
    op: &str,
    description: &OperationDescription,
    lost: &[&MicroOp],
    kept: &[&MicroOp],
) -> String {
    if description.kind == OperationKind::Write {
        match (bytes(lost), bytes(kept)) {
            (None, Some(_)) if size(lost).is_some() => {
                return format!("the size that {op} gave {}", quoted_path(&description.path));
            }
            (Some((from, to)), Some(_)) => {
                return format!("bytes {from}–{to} of {} ({op})", quoted_path(&description.path));
            }
            _ => {}
        }
    }
    format!("{} ({op})", description.noun())
}

/// Some parts of one operation survive and some do not.
fn half_of(
    op: &str,
    description: &OperationDescription,
    lost: &[&MicroOp],
    kept: &[&MicroOp],
) -> String {
    let path = quoted_path(&description.path);
    match (bytes(lost), bytes(kept), size(kept)) {
        (Some((from, to)), None, Some(size)) => format!(
            "the size of {path} grew to {size} ({op}) but its bytes {from}–{to} did not arrive: a reader must recognise a record that is not whole, for example by a checksum"
        ),
        (Some((from, to)), Some((first, last)), _) => format!(
            "bytes {first}–{last} of {path} ({op}) survive but bytes {from}–{to} of the same write do not: one write is not atomic across pages, and recovery must notice half a write"
        ),
        (None, Some((first, last)), _) => format!(
            "bytes {first}–{last} of {path} ({op}) survive but the size that the same write gave it does not: recovery must notice half a write"
        ),
        _ => {
            format!(
                "{} ({op}) is there only in part: recovery must notice half of it",
                description.noun()
            )
        }
    }
}

/// The verb that matches a noun, and the noun.
fn verb(many: &'static str, one: &'static str, noun: String) -> (&'static str, String) {
    (if noun.starts_with("bytes ") { many } else { one }, noun)
}
