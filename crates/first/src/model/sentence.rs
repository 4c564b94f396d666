//! Sentences about crash states: what is lost, and what to sync.

use super::atom::{Effect, Part, Torn};
use super::machine::Machine;
use super::story::{LineKind, Story, quoted};

impl Story {
    /// What is lost and what had to survive with it or had been promised.
    pub(super) fn of_loss(
        &self,
        machine: &Machine,
        lost: &[Part],
        operations: &[u32],
        survivor: Option<u32>,
        acks: usize,
    ) -> String {
        let Some((&main, line)) = operations.first().and_then(|n| Some((n, self.line(*n)?))) else {
            return "a file that is mapped and never synced is lost: `msync` it".to_owned();
        };
        let part = lost.iter().find(|part| part.operation == main);
        let only_size = part.and_then(|part| machine.id(*part)).is_some_and(|id| {
            let atom = machine.pending.position(id).map(|at| &machine.pending.atoms[at]);
            atom.is_some_and(|atom| matches!(atom.effect, Effect::Size { .. }))
        }) && lost.iter().filter(|part| part.operation == main).count() == 1
            && line.kind == LineKind::Write
            && machine.pending.with_dependents(part.and_then(|part| machine.id(*part))).len() == 1;
        let what = if only_size {
            format!("the size that op {main} gave {}", quoted(&line.path))
        } else {
            format!("{} (op {main})", line.noun())
        };
        // More of the same, from other rounds, says nothing new.
        let others: Vec<u32> = operations[1..]
            .iter()
            .copied()
            .filter(|number| self.shape(*number) != self.shape(main))
            .collect();
        let others = match others[..] {
            [] => String::new(),
            [one] => format!(" and op {one}"),
            _ => format!(" and {} more operations", others.len()),
        };
        let target = match (&line.directory, line.is_name()) {
            (Some(directory), true) => format!("the directory {}", quoted(directory)),
            _ => quoted(&line.path),
        };
        match survivor.and_then(|number| Some((number, self.line(number)?))) {
            Some((number, later)) if later.is_name() && later.node == line.node => {
                let verb = match later.kind {
                    LineKind::Rename => "rename",
                    LineKind::Link => "link",
                    _ => "name",
                };
                let bytes = match line.range {
                    Some((from, to)) => format!("its bytes {from}–{to}{others} do not"),
                    None => format!("{what}{others} does not"),
                };
                let path = quoted(&later.path);
                format!(
                    "the {verb} of {path} survives but {bytes}: `fsync` the file before op {number}"
                )
            }
            Some((number, later)) => {
                let (survive, later) = verb("survive", "survives", later.noun());
                let (not, what) = verb("do", "does", what);
                format!(
                    "{later} (op {number}) {survive} but {what}{others} {not} not: `fsync` {target} before op {number}"
                )
            }
            None if acks > 0 => {
                let (is, what) = verb("are", "is", what);
                let lines = match acks {
                    1 => "1 line was".to_owned(),
                    many => format!("{many} lines were"),
                };
                format!(
                    "{what}{others} {is} lost although {lines} acknowledged by then: `fsync` {target} after op {main} and before the acknowledgement"
                )
            }
            None => {
                let (is, what) = verb("are", "is", what);
                format!("{what}{others} {is} lost: `fsync` {target} after op {main}")
            }
        }
    }

    pub(super) fn of_tear(&self, part: Part, torn: Torn) -> String {
        let number = part.operation;
        let (path, from, to) = self.line(number).map_or_else(
            || (String::new(), 0, 0),
            |line| {
                let (from, to) = line.range.unwrap_or((0, 0));
                (quoted(&line.path), from, to)
            },
        );
        let (kept, lost) = match torn {
            Torn::Head(cut) => ((from, cut), (cut, to)),
            Torn::Tail(cut) => ((cut, to), (from, cut)),
        };
        format!(
            "the write of {path} is torn: bytes {}–{} of op {number} survive, bytes {}–{} do not: recovery must notice half a write",
            kept.0, kept.1, lost.0, lost.1
        )
    }

    /// A state that lost nothing.
    pub(super) fn of_moment(&self, operation: u32) -> String {
        let told =
            |number: u32| self.line(number).map(|line| format!("op {number} ({})", line.noun()));
        let place = match (told(operation), told(operation + 1)) {
            (Some(before), Some(after)) => format!("between {before} and {after}"),
            (Some(before), None) => format!("after {before}, the last"),
            (None, Some(after)) => format!("before {after}, the first"),
            (None, None) => "without a single operation".to_owned(),
        };
        format!("the check fails with nothing lost, stopped {place}")
    }
}

/// The verb that goes with a noun, and the noun.
fn verb(many: &'static str, one: &'static str, noun: String) -> (&'static str, String) {
    (if noun.starts_with("bytes ") { many } else { one }, noun)
}
