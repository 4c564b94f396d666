//! Why a state fails: the fewest lost operations that still make it fail, in a sentence, and one
//! finding for all states that fail for the same reason.
//!
//! It asks the check again for smaller losses, always states that the profile allows, so an
//! explanation costs some dozen checks. States that lose what a known finding lost, in another
//! round of the same loop, are counted there without a check.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use super::atom::{Effect, Id, Part, Torn};
use super::choice::Class;
use super::explore::{BadGlob, Options, Promises, State, machine_at, volatile};
use super::key::{Kept, StateKey};
use super::machine::{Machine, Point};
use super::profile::Model;
use super::story::{Line, LineKind, quoted, story};
use crate::operation::{Node, Recording};

/// One cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Counted from 1: `F1`.
    pub id: String,
    pub sentence: String,
    pub files: Vec<PathBuf>,
    /// The operations lost in the smallest state that fails.
    pub lost_operations: Vec<u32>,
    /// How many failing states it explains.
    pub states: usize,
    /// That smallest state.
    pub key: StateKey,
}

pub struct Explainer<'a> {
    recording: &'a Recording,
    model: Model,
    volatile: HashSet<Node>,
    promises: Promises,
    lines: Vec<Line>,
    causes: Vec<Cause>,
    /// How many ids were given.
    count: usize,
}

struct Cause {
    finding: Finding,
    lost: BTreeSet<String>,
    survivor: Option<String>,
    torn: bool,
    /// For a state that lost nothing: the operation before the crash and the one after.
    between: Option<(String, String)>,
}

impl Cause {
    /// Whether the other one loses the same and perhaps more.
    fn covers(&self, other: &Self) -> bool {
        self.lost.is_subset(&other.lost)
            && self.survivor == other.survivor
            && self.torn == other.torn
            && self.between == other.between
    }
}

/// More checks than this for one explanation are not worth a shorter sentence.
const CHECKS: usize = 80;

impl<'a> Explainer<'a> {
    pub fn new(recording: &'a Recording, model: Model, options: &Options) -> Result<Self, BadGlob> {
        Ok(Self {
            recording,
            model,
            volatile: volatile(recording, options)?,
            promises: Promises::new(recording),
            lines: story(recording),
            causes: Vec::new(),
            count: 0,
        })
    }

    /// Takes a failing state in. `fails` checks a state again and says whether it fails too. Gives
    /// the id of the finding it belongs to.
    pub fn add(&mut self, state: &State, mut fails: impl FnMut(&State) -> bool) -> String {
        if let Some(cause) = self.known(state) {
            cause.finding.states += 1;
            return cause.finding.id.clone();
        }
        let mut cause = self.explain(state, &mut fails);
        if let Some(known) = self.causes.iter_mut().find(|one| one.covers(&cause)) {
            known.finding.states += 1;
            return known.finding.id.clone();
        }
        // A smaller loss may explain what took more before.
        let wider = self.causes.iter().position(|one| cause.covers(one));
        cause.finding.id = match wider {
            Some(at) => self.causes[at].finding.id.clone(),
            None => {
                self.count += 1;
                format!("F{}", self.count)
            }
        };
        let id = cause.finding.id.clone();
        let same = |one: &Cause| cause.covers(one);
        cause.finding.states +=
            self.causes.iter().filter(|one| same(one)).map(|one| one.finding.states).sum::<usize>();
        self.causes.retain(|one| !cause.covers(one));
        self.causes.insert(wider.unwrap_or(self.causes.len()).min(self.causes.len()), cause);
        id
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.causes.iter().map(|cause| cause.finding.clone()).collect()
    }

    fn line(&self, operation: u32) -> Option<&Line> {
        self.lines.get((operation as usize).checked_sub(1)?)
    }

    fn shape(&self, operation: u32) -> String {
        self.line(operation).map_or_else(String::new, |line| line.shape.clone())
    }

    fn between(&self, point: Point) -> (String, String) {
        (self.shape(point.operation), self.shape(point.operation + 1))
    }

    fn known(&mut self, state: &State) -> Option<&mut Cause> {
        let torn = state.key.torn.is_some();
        let lost: BTreeSet<String> = state.lost.iter().map(|number| self.shape(*number)).collect();
        let between = self.between(state.key.point);
        let first = state.lost.first().copied().unwrap_or(0);
        let kept: BTreeSet<String> = (first + 1..=state.key.point.operation)
            .filter(|number| state.lost.binary_search(number).is_err())
            .map(|number| self.shape(number))
            .collect();
        self.causes.iter_mut().find(|cause| match &cause.between {
            Some(known) => lost.is_empty() && *known == between,
            None => {
                !cause.lost.is_empty()
                    && cause.lost.is_subset(&lost)
                    && cause.survivor.as_ref().is_none_or(|survivor| kept.contains(survivor))
                    && (!cause.torn || torn)
            }
        })
    }

    fn explain(&self, state: &State, fails: &mut impl FnMut(&State) -> bool) -> Cause {
        let point = state.key.point;
        let Some(machine) = machine_at(self.recording, self.model, &self.volatile, point) else {
            return self.nothing_lost(state);
        };
        let mut trial = Trial {
            promises: &self.promises,
            machine: &machine,
            point,
            known: HashMap::new(),
            left: CHECKS,
            fails,
        };
        let whole = StateKey { point, kept: Kept::Everything, torn: None };
        if state.key.kept == Kept::Everything || trial.fails(&whole) {
            return self.nothing_lost(state);
        }
        let lost = trial.lost(&state.key);
        let torn = state.key.torn.filter(|_| {
            // A torn write is often just a lost one, or beside the point.
            let without: Vec<Id> = lost.iter().copied().collect();
            !trial.fails_without(&without, None)
        });
        let torn_id = torn.and_then(|(part, _)| machine.id(part));
        let elements: Vec<Id> = lost.into_iter().filter(|id| Some(*id) != torn_id).collect();
        let smallest = trial.minimise(elements, torn);
        let smallest = trial.latest(smallest, torn);
        let key = trial.key(&smallest, torn);
        let survivor = self.survivor(&mut trial, &smallest, torn);
        self.tell(&machine, state, key, &smallest, torn, survivor)
    }

    /// The operation that should not have survived without what was lost.
    fn survivor(
        &self,
        trial: &mut Trial<'_, impl FnMut(&State) -> bool>,
        smallest: &[Id],
        torn: Option<(Part, Torn)>,
    ) -> Option<u32> {
        let machine = trial.machine;
        let pending = &machine.pending;
        let lost = pending.with_dependents(smallest.iter().copied());
        let gone: BTreeSet<u32> =
            lost.iter().filter_map(|id| machine.part(*id)).map(|part| part.operation).collect();
        let main = smallest.first().and_then(|id| machine.part(*id));
        let main = main.or(torn.map(|(part, _)| part))?;
        let line = self.line(main.operation)?;
        // A name that shows the file without its contents is the usual culprit.
        if matches!(line.kind, LineKind::Write | LineKind::Truncate) {
            let shown = (main.operation + 1..=trial.point.operation).find(|number| {
                self.line(*number).is_some_and(|later| {
                    matches!(later.kind, LineKind::Rename | LineKind::Link)
                        && later.node == line.node
                        && !gone.contains(number)
                })
            });
            if shown.is_some() {
                return shown;
            }
        }
        if trial.fails(&StateKey { point: trial.point, kept: Kept::Only(Vec::new()), torn: None }) {
            // Either it was promised, or something that is durable counts on it.
            return if self.promises.between(main.operation, trial.point) {
                None
            } else {
                (main.operation + 1..=trial.point.operation).find(|number| {
                    let durable = pending.atoms.iter().all(|atom| atom.part.operation != *number);
                    durable && self.line(*number).is_some_and(|line| line.kind != LineKind::Other)
                })
            };
        }
        let first = smallest.first().copied().unwrap_or(0);
        let later: Vec<Id> = pending
            .atoms
            .iter()
            .filter(|atom| atom.id > first && !lost.contains(&atom.id))
            .map(|atom| atom.id)
            .collect();
        later
            .into_iter()
            .find_map(|id| {
                let mut without = smallest.to_vec();
                without.push(id);
                (!trial.fails_without(&without, torn)).then(|| machine.part(id))?
            })
            .map(|part| part.operation)
    }

    fn tell(
        &self,
        machine: &Machine,
        state: &State,
        key: StateKey,
        smallest: &[Id],
        torn: Option<(Part, Torn)>,
        survivor: Option<u32>,
    ) -> Cause {
        let lost_parts: Vec<Part> = smallest.iter().filter_map(|id| machine.part(*id)).collect();
        let smallest_state =
            self.promises.state(machine, key.clone(), Class::DropOne, state.tree.clone());
        let mut operations: Vec<u32> = lost_parts.iter().map(|part| part.operation).collect();
        operations.extend(torn.map(|(part, _)| part.operation));
        operations.sort_unstable();
        operations.dedup();
        let mut files = Vec::new();
        for number in operations.iter().copied().chain(survivor) {
            if let Some(line) = self.line(number) {
                files.push(line.path.clone());
                files.extend(line.to.clone());
            }
        }
        files.sort();
        files.dedup();
        let mut sentence = match torn {
            Some((part, cut)) => self.torn_sentence(part, cut),
            None => self.lost_sentence(machine, &lost_parts, &operations, survivor, state),
        };
        if let Some(label) = &state.label {
            sentence += &format!(" (after label `{label}`)");
        }
        let finding = Finding {
            id: String::new(),
            sentence,
            files,
            lost_operations: smallest_state.lost,
            states: 1,
            key,
        };
        Cause {
            finding,
            lost: operations.iter().map(|number| self.shape(*number)).collect(),
            survivor: survivor.map(|number| self.shape(number)),
            torn: torn.is_some(),
            between: None,
        }
    }

    fn lost_sentence(
        &self,
        machine: &Machine,
        lost: &[Part],
        operations: &[u32],
        survivor: Option<u32>,
        state: &State,
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
            .filter(|number| self.shape(*number) != line.shape)
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
            None if state.acks > 0 => {
                let (is, what) = verb("are", "is", what);
                let lines = match state.acks {
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

    fn torn_sentence(&self, part: Part, torn: Torn) -> String {
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

    fn nothing_lost(&self, state: &State) -> Cause {
        let number = state.key.point.operation;
        let told =
            |number: u32| self.line(number).map(|line| format!("op {number} ({})", line.noun()));
        let place = match (told(number), told(number + 1)) {
            (Some(before), Some(after)) => format!("between {before} and {after}"),
            (Some(before), None) => format!("after {before}, the last"),
            (None, Some(after)) => format!("before {after}, the first"),
            (None, None) => "without a single operation".to_owned(),
        };
        let mut sentence = format!("the check fails with nothing lost, stopped {place}");
        if let Some(label) = &state.label {
            sentence += &format!(" (after label `{label}`)");
        }
        let files = self.line(number).map(|line| line.path.clone()).into_iter().collect();
        let key = StateKey { point: state.key.point, kept: Kept::Everything, torn: None };
        Cause {
            finding: Finding {
                id: String::new(),
                sentence,
                files,
                lost_operations: Vec::new(),
                states: 1,
                key,
            },
            lost: BTreeSet::new(),
            survivor: None,
            torn: false,
            between: Some(self.between(state.key.point)),
        }
    }
}

/// The verb that goes with a noun, and the noun.
fn verb(many: &'static str, one: &'static str, noun: String) -> (&'static str, String) {
    (if noun.starts_with("bytes ") { many } else { one }, noun)
}

/// Checks of states at one point, each made once.
struct Trial<'a, F> {
    promises: &'a Promises,
    machine: &'a Machine,
    point: Point,
    known: HashMap<u128, bool>,
    left: usize,
    fails: &'a mut F,
}

impl<F: FnMut(&State) -> bool> Trial<'_, F> {
    fn fails(&mut self, key: &StateKey) -> bool {
        let tree = self.machine.build(key);
        let digest = tree.digest();
        if let Some(known) = self.known.get(&digest) {
            return *known;
        }
        // Without checks left nothing is taken to fail, so that what is known to fail stays.
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let state = self.promises.state(self.machine, key.clone(), Class::DropOne, tree);
        let fails = (self.fails)(&state);
        self.known.insert(digest, fails);
        fails
    }

    fn fails_without(&mut self, lost: &[Id], torn: Option<(Part, Torn)>) -> bool {
        let key = self.key(lost, torn);
        self.fails(&key)
    }

    /// These are lost, with everything that needs them.
    fn key(&self, lost: &[Id], torn: Option<(Part, Torn)>) -> StateKey {
        let pending = &self.machine.pending;
        let torn_id = torn.and_then(|(part, _)| self.machine.id(part));
        let mut gone = pending.with_dependents(lost.iter().copied().chain(torn_id));
        if let Some(id) = torn_id {
            gone.remove(&id);
        }
        let parts = gone.into_iter().filter_map(|id| self.machine.part(id)).collect();
        StateKey { point: self.point, kept: Kept::AllBut(parts), torn }
    }

    fn lost(&self, key: &StateKey) -> BTreeSet<Id> {
        let atoms = self.machine.pending.atoms.iter();
        let lost = atoms.filter(|atom| match &key.kept {
            _ if key.torn.is_some_and(|(part, _)| part == atom.part) => true,
            Kept::Everything => false,
            Kept::AllBut(parts) => parts.binary_search(&atom.part).is_ok(),
            Kept::Only(parts) => parts.binary_search(&atom.part).is_err(),
        });
        lost.map(|atom| atom.id).collect()
    }

    /// What needs the lost parts is lost with them. If one of those alone is enough it is the
    /// better answer; the last one takes least along.
    fn latest(&mut self, smallest: Vec<Id>, torn: Option<(Part, Torn)>) -> Vec<Id> {
        let all = self.machine.pending.with_dependents(smallest.iter().copied());
        let alone = all.iter().rev().filter(|id| smallest != [**id]).take(16).copied();
        let found =
            alone.collect::<Vec<_>>().into_iter().find(|id| self.fails_without(&[*id], torn));
        found.map_or(smallest, |id| vec![id])
    }

    /// Delta debugging: the fewest of these whose loss still fails.
    fn minimise(&mut self, mut lost: Vec<Id>, torn: Option<(Part, Torn)>) -> Vec<Id> {
        if self.fails_without(&[], torn) {
            return Vec::new();
        }
        let mut pieces = 2;
        while lost.len() > 1 {
            let length = lost.len().div_ceil(pieces);
            let chunks: Vec<Vec<Id>> = lost.chunks(length).map(<[Id]>::to_vec).collect();
            let alone = chunks.iter().position(|chunk| self.fails_without(chunk, torn));
            if let Some(at) = alone {
                lost = chunks[at].clone();
                pieces = 2;
                continue;
            }
            let rest = (0..chunks.len()).find_map(|at| {
                let rest: Vec<Id> =
                    lost.iter().copied().filter(|id| !chunks[at].contains(id)).collect();
                self.fails_without(&rest, torn).then_some(rest)
            });
            match rest {
                Some(rest) if chunks.len() > 2 => {
                    lost = rest;
                    pieces = pieces.saturating_sub(1).max(2);
                }
                _ if length == 1 => break,
                _ => pieces = (pieces * 2).min(lost.len()),
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests;
