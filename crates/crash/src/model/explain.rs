//! Why states fail: for every cause the fewest lost operations that still make one fail, in a
//! sentence, and one finding for all states that fail for that reason.
//!
//! It asks the check again for smaller losses, always states that the profile allows, so a cause
//! costs some dozen checks. A state can fail for several reasons, and one must not hide the others:
//!
//! - What a known cause lost is given back to the state; if it still fails there is another cause.
//! - Equal states are checked once, where most was promised, and a broken promise is then enough to
//!   fail. So a failing state is looked at where it first fails, too, with the fewest promises.
//!
//! States that lose and keep the same in another round of a loop are counted without a check.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::atom::{Effect, Id, Part, Torn};
use super::choice::Class;
use super::explore::{BadGlob, Options, Promises, State, machine_at, volatile};
use super::key::{Kept, StateKey};
use super::machine::{Machine, Point, operations};
use super::profile::Model;
use super::sentence::Told;
use super::story::{LineKind, Shape, Story};
use super::trial::{Loss, Trial};
use crate::operation::{Action, Node, Recording};

/// One cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Counted from 1: `F1`.
    pub id: String,
    pub sentence: String,
    pub files: Vec<PathBuf>,
    /// The operations lost in the smallest state that fails.
    pub lost_operations: Vec<u32>,
    /// How many failing states it is at work in.
    pub states: usize,
    /// That smallest state.
    pub key: StateKey,
}

pub struct Explainer<'a> {
    recording: &'a Recording,
    model: Model,
    volatile: HashSet<Node>,
    promises: Arc<Promises>,
    story: Story,
    /// By operation from 0: whether it changes anything by itself.
    acts: Vec<bool>,
    causes: Vec<Cause>,
    /// The causes of the states that look like this.
    seen: HashMap<Look, Vec<String>>,
    /// How many ids were given.
    count: usize,
}

struct Cause {
    finding: Finding,
    lost: BTreeSet<Shape>,
    survivor: Option<Shape>,
    /// Some of the parts of what is lost survive.
    half: bool,
    /// Without a survivor: only because of what was acknowledged.
    promised: bool,
    torn: bool,
    /// For a state that lost nothing: the operation before the crash and the one after.
    between: Option<(Shape, Shape)>,
}

impl Cause {
    /// Whether the other one loses the same and perhaps more.
    fn covers(&self, other: &Self) -> bool {
        self.lost.is_subset(&other.lost)
            && self.lost.is_empty() == other.lost.is_empty()
            && self.survivor == other.survivor
            && self.half == other.half
            && self.torn == other.torn
            && self.between == other.between
    }
}

/// A state without what differs between rounds of a loop.
#[derive(PartialEq, Eq, Hash)]
struct Look {
    /// And whether something was acknowledged since.
    lost: BTreeSet<(Shape, bool)>,
    /// After the first that is lost.
    kept: BTreeSet<Shape>,
    torn: Option<(Shape, bool)>,
    between: Option<(Shape, Shape)>,
}

/// Looks beyond this many are taken to have the causes that they contain: a program whose files
/// have random names never repeats itself.
const LOOKS: usize = 400;
/// How many operations before a crash a look takes in.
const LOOK_BACK: usize = 4096;

/// A state at one of the points where it can come about.
struct Occurrence {
    machine: Machine,
    point: Point,
    acks: usize,
    loss: Loss,
}

impl<'a> Explainer<'a> {
    pub fn new(recording: &'a Recording, model: Model, options: &Options) -> Result<Self, BadGlob> {
        let silent = |action: &Action| {
            matches!(
                action,
                Action::Sync { .. }
                    | Action::SyncPart { .. }
                    | Action::SyncRange { .. }
                    | Action::SyncAll
                    | Action::Close { .. }
            )
        };
        Ok(Self {
            recording,
            model,
            volatile: volatile(recording, options)?,
            promises: Arc::new(Promises::new(recording)),
            story: Story::new(recording),
            acts: operations(recording).map(|(_, one)| !silent(&one.action)).collect(),
            causes: Vec::new(),
            seen: HashMap::new(),
            count: 0,
        })
    }

    /// The recording is one of a check at work: sentences call its operations those of the recovery.
    #[must_use]
    pub fn of_recovery(self) -> Self {
        Self { story: self.story.of_recovery(), ..self }
    }

    /// Takes a failing state in. `fails` checks a state again and says whether it fails too. Gives
    /// the id of a finding it belongs to.
    pub fn add(&mut self, state: &State, mut fails: impl FnMut(&State) -> bool) -> String {
        let look = self.look(state);
        let ids = match self.seen.get(&look) {
            Some(ids) => ids.clone(),
            None => {
                let ids = self.examine(state, &mut fails);
                self.seen.insert(look, ids.clone());
                ids
            }
        };
        for cause in &mut self.causes {
            cause.finding.states += usize::from(ids.contains(&cause.finding.id));
        }
        ids.into_iter().next().unwrap_or_default()
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.causes.iter().map(|cause| cause.finding.clone()).collect()
    }

    fn look(&self, state: &State) -> Look {
        let shape = |number: u32| self.story.shape(number);
        let point = state.key.point.operation;
        let lost =
            state.lost.iter().map(|number| (shape(*number), self.is_promised(*number, state.acks)));
        let first = state.lost.first().copied().unwrap_or(point);
        let kept = (first + 1..=point)
            .rev()
            .take(LOOK_BACK)
            .filter(|number| state.lost.binary_search(number).is_err())
            .map(shape);
        Look {
            lost: lost.collect(),
            kept: kept.collect(),
            torn: state
                .key
                .torn
                .map(|(part, torn)| (shape(part.operation), matches!(torn, Torn::Head(_)))),
            between: state.lost.is_empty().then(|| (shape(point), shape(point + 1))),
        }
    }

    /// Whether something was acknowledged after an operation. What came right before it does not
    /// count.
    fn is_promised(&self, operation: u32, acks: usize) -> bool {
        acks > self.promises.before(operation)
    }

    /// The causes of a state that is not like any other so far.
    fn examine(&mut self, state: &State, fails: &mut impl FnMut(&State) -> bool) -> Vec<String> {
        let point = state.key.point;
        let machine = machine_at(self.recording, self.model, &self.volatile, point);
        let Some(machine) = machine.filter(|_| state.key.kept != Kept::Everything) else {
            return vec![self.insert(self.nothing_lost(point))];
        };
        let loss = Loss::of(&machine, &state.key);
        let last = Occurrence { machine, point, acks: state.acks, loss };
        if self.seen.len() >= LOOKS
            && let Some(cause) = self.contained(&last, &last.loss)
        {
            return vec![cause.finding.id.clone()];
        }
        let mut ids = Vec::new();
        if let Some(first) = self.first(&last, &state.key, fails) {
            ids = match self.causes(&first, fails) {
                Some(ids) => ids,
                None => vec![self.insert(self.nothing_lost(first.point))],
            };
            // With as many promises it fails for the same reasons.
            if first.acks == last.acks {
                return ids;
            }
        }
        match self.causes(&last, fails) {
            Some(more) => ids.extend(more),
            None => ids.push(self.insert(self.nothing_lost(point))),
        }
        ids.sort();
        ids.dedup();
        ids
    }

    /// The same state where it fails with the fewest promises: right after the last operation that
    /// left something in it, or after a later acknowledgement. None if that is where it is.
    fn first(
        &self,
        last: &Occurrence,
        key: &StateKey,
        fails: &mut impl FnMut(&State) -> bool,
    ) -> Option<Occurrence> {
        let lost = last.loss.operations(&last.machine);
        let atoms = last.machine.pending.atoms.iter();
        let kept = atoms
            .filter(|atom| !last.loss.parts.contains(&atom.id))
            .filter(|atom| !matches!(atom.effect, Effect::Flush { .. }))
            .map(|atom| atom.part.operation)
            .max();
        let whole = (1..=last.point.operation)
            .rev()
            .find(|number| self.acts[*number as usize - 1] && !lost.contains(number));
        let made = kept.max(whole).unwrap_or(0);
        let before = (made, self.promises.before(made));
        let mut places = vec![before];
        for number in made..=last.point.operation {
            let acks = self.promises.by(number);
            if acks <= last.acks && places.last().is_none_or(|place| acks > place.1) {
                places.push((number, acks));
            }
        }
        let tree = last.machine.build(key).digest();
        let gone: BTreeSet<Part> =
            last.loss.parts.iter().filter_map(|id| last.machine.part(*id)).collect();
        let mut at = |(operation, acks): (u32, usize)| {
            let point = Point { operation, during: false };
            if (point, acks) >= (last.point, last.acks) {
                return None;
            }
            let machine = machine_at(self.recording, self.model, &self.volatile, point)?;
            let parts = machine.pending.atoms.iter().map(|atom| atom.part);
            let parts = parts.filter(|part| gone.contains(part)).collect();
            let key = StateKey { point, kept: Kept::AllBut(parts), torn: key.torn };
            let loss = Loss::of(&machine, &key);
            let one = Occurrence { machine, point, acks, loss };
            // What became durable in between could have changed it.
            let same = one.machine.build(&key).digest() == tree;
            let failing = same && {
                let mut trial = one.trial(&self.promises, fails);
                trial.fails(&key)
            };
            failing.then_some(one)
        };
        if let Some(first) = at(places[0]) {
            return Some(first);
        }
        // Whoever fails with few promises fails with more.
        let (mut passes, mut found) = (0, None);
        let mut end = places.len();
        while end - passes > 1 {
            let middle = passes + (end - passes) / 2;
            match at(places[middle]) {
                Some(one) => (end, found) = (middle, Some(one)),
                None => passes = middle,
            }
        }
        found
    }

    /// The causes at work in a state. None if it fails with nothing lost as well.
    fn causes(
        &mut self,
        here: &Occurrence,
        fails: &mut impl FnMut(&State) -> bool,
    ) -> Option<Vec<String>> {
        let promises = Arc::clone(&self.promises);
        let mut trial = here.trial(&promises, fails);
        if trial.whole_fails() {
            return None;
        }
        let mut ids = Vec::new();
        let mut loss = here.loss.clone();
        loop {
            let (id, lost) = match self.contained(here, &loss) {
                Some(cause) => (cause.finding.id.clone(), cause.lost.clone()),
                None => {
                    trial.promises_only(self.quiet(here, &loss), &loss);
                    let cause = self.explain(&mut trial, &loss);
                    trial.promises_also();
                    let lost = cause.lost.clone();
                    (self.insert(cause), lost)
                }
            };
            ids.push(id);
            let rest = loss
                .without(&here.machine, |operation| lost.contains(&self.story.shape(operation)));
            let parts: Vec<Id> = rest.parts.iter().copied().collect();
            if rest == loss || rest.is_nothing() || !trial.fails_without(&parts, rest.torn) {
                return Some(ids);
            }
            loss = rest;
        }
    }

    /// How many promises were made before anything of a loss was done.
    fn quiet(&self, here: &Occurrence, loss: &Loss) -> usize {
        let first = loss.operations(&here.machine).first().copied();
        self.promises.before(first.unwrap_or(0)).min(here.acks)
    }

    /// A known cause that may be at work in a loss.
    fn contained(&self, here: &Occurrence, loss: &Loss) -> Option<&Cause> {
        let operations = loss.operations(&here.machine);
        let lost: BTreeSet<Shape> =
            operations.iter().map(|number| self.story.shape(*number)).collect();
        let promised: BTreeSet<Shape> = operations
            .iter()
            .filter(|number| self.is_promised(**number, here.acks))
            .map(|number| self.story.shape(*number))
            .collect();
        let first = operations.first().copied().unwrap_or(0);
        let kept: BTreeSet<Shape> = (first + 1..=here.point.operation)
            .rev()
            .take(LOOK_BACK)
            .filter(|number| !operations.contains(number))
            .map(|number| self.story.shape(number))
            .collect();
        let half: BTreeSet<Shape> = operations
            .iter()
            .filter(|number| {
                let parts = here.machine.pending.atoms.iter();
                let mut parts = parts.filter(|atom| atom.part.operation == **number);
                parts.any(|atom| !loss.parts.contains(&atom.id))
            })
            .map(|number| self.story.shape(*number))
            .collect();
        self.causes.iter().find(|cause| {
            !cause.lost.is_empty()
                && (!cause.half || !cause.lost.is_disjoint(&half))
                && cause.lost.is_subset(&lost)
                && cause.survivor.is_none_or(|survivor| kept.contains(&survivor))
                && (!cause.promised || !cause.lost.is_disjoint(&promised))
                && (!cause.torn || loss.torn.is_some())
        })
    }

    /// Adds a cause, unless it is known; gives its id.
    fn insert(&mut self, mut cause: Cause) -> String {
        if let Some(known) = self.causes.iter().find(|one| one.covers(&cause)) {
            return known.finding.id.clone();
        }
        // A smaller loss may explain what took more before.
        let wider: Vec<usize> =
            (0..self.causes.len()).filter(|at| cause.covers(&self.causes[*at])).collect();
        let id = match wider.first() {
            Some(at) => self.causes[*at].finding.id.clone(),
            None => {
                self.count += 1;
                format!("F{}", self.count)
            }
        };
        cause.finding.id.clone_from(&id);
        let gone: Vec<String> =
            wider.iter().map(|at| self.causes[*at].finding.id.clone()).collect();
        for ids in self.seen.values_mut() {
            for known in ids.iter_mut().filter(|known| gone.contains(known)) {
                known.clone_from(&id);
            }
            ids.dedup();
        }
        cause.finding.states = wider.iter().map(|at| self.causes[*at].finding.states).sum();
        let place = wider.first().copied().unwrap_or(self.causes.len());
        self.causes.retain(|one| !gone.contains(&one.finding.id));
        self.causes.insert(place.min(self.causes.len()), cause);
        id
    }

    fn explain(&self, trial: &mut Trial<'_, impl FnMut(&State) -> bool>, loss: &Loss) -> Cause {
        let (smallest, torn) = trial.smallest(loss);
        let key = trial.key(&smallest, torn);
        let acks = trial.acks;
        self.without_promises(trial, &key, &smallest, torn);
        let survivor = match torn {
            Some(_) => None,
            None => self.survivor(trial, &smallest),
        };
        let machine = trial.machine;
        let smallest = Loss { parts: smallest.into_iter().collect(), torn };
        let operations: Vec<u32> = smallest.operations(machine).into_iter().collect();
        let promised = |number: &u32| self.is_promised(*number, trial.acks);
        let promised = survivor.is_none() && torn.is_none() && operations.iter().any(promised);
        let main = operations.first().copied().unwrap_or(0);
        if survivor.is_none() && torn.is_none() && !promised && main > 0 {
            let before = Point { operation: main - 1, during: false };
            let there = machine_at(self.recording, self.model, &self.volatile, before);
            if there.is_some_and(|there| trial.moment_fails(&there, before)) {
                trial.acks = acks;
                return self.nothing_lost(before);
            }
        }
        let state =
            self.promises.state(machine, key.clone(), Class::DropOne, machine.pending.base.clone());
        let later = survivor.filter(|number| *number != main);
        let mut files = Vec::new();
        for number in operations.iter().copied().chain(later) {
            if let Some(line) = self.story.line(number) {
                files.push(line.path.clone());
                files.extend(line.to.clone());
            }
        }
        files.sort();
        files.dedup();
        let mut sentence = match torn {
            Some((part, cut)) => self.story.of_tear(part, cut),
            None => self.story.of_loss(&Told {
                machine,
                lost: &smallest.parts,
                operations: &operations,
                survivor,
                since: trial.acks.saturating_sub(self.promises.before(main)),
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
        trial.acks = acks;
        Cause {
            finding,
            promised,
            lost: operations.iter().map(|number| self.story.shape(*number)).collect(),
            survivor: later.map(|number| self.story.shape(number)),
            half: survivor.is_some() && later.is_none(),
            torn: torn.is_some(),
            between: None,
        }
    }

    /// What fails without the promises made since is not about promises, even where there are some.
    fn without_promises(
        &self,
        trial: &mut Trial<'_, impl FnMut(&State) -> bool>,
        key: &StateKey,
        smallest: &[Id],
        torn: Option<(Part, Torn)>,
    ) {
        let first = smallest.iter().filter_map(|id| trial.machine.part(*id)).min();
        let Some(first) = first.or(torn.map(|(part, _)| part)) else { return };
        let all = std::mem::replace(&mut trial.acks, self.promises.before(first.operation));
        if trial.acks < all && !trial.fails(key) {
            trial.acks = all;
        }
    }

    /// The operation that should not have survived without what was lost; what was lost itself if
    /// half of it survived.
    fn survivor(
        &self,
        trial: &mut Trial<'_, impl FnMut(&State) -> bool>,
        smallest: &[Id],
    ) -> Option<u32> {
        let machine = trial.machine;
        let pending = &machine.pending;
        let lost = pending.with_dependents(smallest.iter().copied());
        let gone: BTreeSet<u32> =
            lost.iter().filter_map(|id| machine.part(*id)).map(|part| part.operation).collect();
        let main = smallest.first().and_then(|id| machine.part(*id))?;
        let line = self.story.line(main.operation)?;
        // A name that shows the file without its contents is the usual culprit.
        if matches!(line.kind, LineKind::Write | LineKind::Truncate) {
            let shown = (main.operation + 1..=trial.point.operation).find(|number| {
                self.story.line(*number).is_some_and(|later| {
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
            return if self.is_promised(main.operation, trial.acks) {
                None
            } else {
                (main.operation + 1..=trial.point.operation).find(|number| {
                    let durable = pending.atoms.iter().all(|atom| atom.part.operation != *number);
                    let line = self.story.line(*number);
                    durable
                        && line.is_some_and(|line| {
                            !matches!(line.kind, LineKind::Other | LineKind::Sync)
                        })
                })
            };
        }
        // All that is left of an operation: what its parts are is nobody's business.
        let mut later: Vec<(u32, Vec<Id>)> = Vec::new();
        let left = pending.atoms.iter().filter(|atom| !lost.contains(&atom.id));
        for atom in left.filter(|atom| atom.part.operation >= main.operation) {
            match later.last_mut() {
                Some((number, parts)) if *number == atom.part.operation => parts.push(atom.id),
                _ => later.push((atom.part.operation, vec![atom.id])),
            }
        }
        later.into_iter().find_map(|(number, mut parts)| {
            parts.extend(smallest);
            (!trial.fails_without(&parts, None)).then_some(number)
        })
    }

    fn nothing_lost(&self, point: Point) -> Cause {
        let number = point.operation;
        let mut sentence = self.story.of_moment(number);
        if let Some(label) = self.promises.label(point) {
            sentence += &format!(" (after label `{label}`)");
        }
        let files = self.story.line(number).map(|line| line.path.clone()).into_iter().collect();
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
            between: Some((self.story.shape(number), self.story.shape(number + 1))),
        }
    }
}

impl Occurrence {
    fn trial<'a, F: FnMut(&State) -> bool>(
        &'a self,
        promises: &'a Promises,
        fails: &'a mut F,
    ) -> Trial<'a, F> {
        Trial::new(promises, &self.machine, (self.point, self.acks), fails)
    }
}

#[cfg(test)]
mod tests;
