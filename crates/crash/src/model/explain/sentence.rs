//! Sentences about crash states: what is lost, and what to sync.

use std::collections::BTreeSet;

use crate::model::explain::description::{
    OperationDescription, OperationDescriptions, OperationKind,
};
use crate::model::micro_op::{Effect, MicroOp, MicroOpId, Part, Torn};
use crate::model::path_text::quoted_path;
use crate::model::replay::Replay;
use crate::text::count;

/// The smallest loss that fails.
pub(super) struct SmallestLoss<'a> {
    pub(super) replay: &'a Replay,
    pub(super) lost: &'a BTreeSet<MicroOpId>,
    /// Those that are lost, the first of them is what is loss.
    pub(super) operations: &'a [u32],
    /// What should not have survived without them.
    pub(super) survivor: Option<u32>,
    /// How many promises were made after the first.
    pub(super) since: usize,
    /// The last operation before the first of those.
    pub(super) until: u32,
}

impl SmallestLoss<'_> {
    /// The parts of an operation that are lost, and those that are not.
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
    /// What is lost and what had to survive with it or had been promised.
    pub(super) fn of_loss(&self, loss: &SmallestLoss<'_>) -> String {
        let Some((main, description)) =
            loss.operations.first().and_then(|number| Some((*number, self.description(*number)?)))
        else {
            return "a file that is mapped and never synced is lost: `msync` it".to_owned();
        };
        let (lost, kept) = loss.parts(main);
        let op = self.op(main);
        let what = what(&op, description, &lost, &kept);
        // More of the same, from other rounds, says nothing new.
        let others: Vec<u32> = loss.operations[1..]
            .iter()
            .copied()
            .filter(|number| self.shape(*number) != self.shape(main))
            .collect();
        let others = match others[..] {
            [] => String::new(),
            [one] => match self.description(one) {
                Some(other) => format!(" and {} ({})", other.noun(), self.op(one)),
                None => format!(" and {}", self.op(one)),
            },
            _ => format!(" and {}", count(others.len() as u64, "more operation")),
        };
        let target = match (&description.directory, description.is_name()) {
            (Some(directory), true) => format!("the directory {}", quoted_path(directory)),
            _ => quoted_path(&description.path),
        };
        match loss.survivor.and_then(|number| Some((number, self.description(number)?))) {
            Some((number, _)) if number == main => half(&op, description, &lost, &kept),
            Some((number, later)) if later.is_name() && later.node == description.node => {
                let verb = match later.kind {
                    OperationKind::Rename => "rename",
                    OperationKind::Link => "link",
                    _ => "name",
                };
                let written = description.kind == OperationKind::Write;
                let bytes = match description.range.filter(|_| written) {
                    Some((from, to)) => format!("its bytes {from}–{to}{others} do not"),
                    None => format!("{what}{others} does not"),
                };
                let path = quoted_path(&later.path);
                format!(
                    "the {verb} of {path} survives but {bytes}: `fsync` the file before {}",
                    self.op(number)
                )
            }
            Some((number, later)) => {
                let (survive, later) = verb("survive", "survives", later.noun());
                let (not, what) = verb("do", "does", what);
                let number = self.op(number);
                format!(
                    "{later} ({number}) {survive} but {what}{others} {not} not: `fsync` {target} before {number}"
                )
            }
            None if loss.since > 0 => {
                let (is, what) = verb("are", "is", what);
                let were = if loss.since == 1 { "was" } else { "were" };
                let lines = format!("{} {were}", count(loss.since as u64, "line"));
                format!(
                    "{what}{others} {is} lost although {lines} acknowledged since: `fsync` {target} after {op} and before the acknowledgement"
                )
            }
            None => {
                let (is, what) = verb("are", "is", what);
                match self.synced(main, loss.until) {
                    Some(sync) => format!(
                        "{what}{others} {is} lost before {} syncs it, and what is left is neither the old nor the new: the change is not atomic, and recovery must cope with half of it",
                        self.op(sync)
                    ),
                    None => format!("{what}{others} {is} lost: `fsync` {target} after {op}"),
                }
            }
        }
    }

    /// The first sync after an operation, up to another one, that makes it last.
    fn synced(&self, operation: u32, until: u32) -> Option<u32> {
        let done = self.description(operation)?;
        let node = if done.is_name() { done.holder } else { done.node };
        (operation + 1..=until).find(|number| {
            let sync = self
                .description(*number)
                .filter(|description| description.kind == OperationKind::Sync);
            sync.is_some_and(|sync| sync.node.is_none() || sync.node == node)
        })
    }

    pub(super) fn of_tear(&self, part: Part, torn: Torn) -> String {
        let number = part.operation;
        let (path, from, to) = self.description(number).map_or_else(
            || (String::new(), 0, 0),
            |description| {
                let (from, to) = description.range.unwrap_or((0, 0));
                (quoted_path(&description.path), from, to)
            },
        );
        let (kept, lost) = match torn {
            Torn::Head(cut) => ((from, cut), (cut, to)),
            Torn::Tail(cut) => ((cut, to), (from, cut)),
        };
        format!(
            "the write of {path} is torn: bytes {}–{} of {} survive, bytes {}–{} do not: recovery must notice half a write",
            kept.0,
            kept.1,
            self.op(number),
            lost.0,
            lost.1
        )
    }

    /// A state that fails for a reason that nobody looked for.
    pub(super) fn of_unexplained(&self, operation: u32, lost: &[u32]) -> String {
        let main = lost.iter().find_map(|number| Some((*number, self.description(*number)?)));
        let Some((number, description)) = main else { return self.of_moment(operation) };
        let others = match lost.len() as u64 - 1 {
            0 => String::new(),
            more => format!(" and {}", count(more, "more operation")),
        };
        format!(
            "the check fails without {} ({}){others}; the cause was not looked for",
            description.noun(),
            self.op(number)
        )
    }

    /// A state that lost nothing.
    pub(super) fn of_moment(&self, operation: u32) -> String {
        let told = |number: u32| {
            self.description(number)
                .map(|description| format!("{} ({})", self.op(number), description.noun()))
        };
        let moment = match (told(operation), told(operation + 1)) {
            (Some(before), Some(after)) => format!("between {before} and {after}"),
            (Some(before), None) => format!("after {before}, the last"),
            (None, Some(after)) => format!("before {after}, the first"),
            (None, None) => "without a single operation".to_owned(),
        };
        format!("the check fails with nothing lost, stopped {moment}")
    }
}

/// What is lost of an operation, by its own bytes if others of it are there.
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

/// Some parts of one operation are there and some are not.
fn half(
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

/// The verb that goes with a noun, and the noun.
fn verb(many: &'static str, one: &'static str, noun: String) -> (&'static str, String) {
    (if noun.starts_with("bytes ") { many } else { one }, noun)
}
