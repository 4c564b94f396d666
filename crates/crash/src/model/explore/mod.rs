//! Every crash state worth checking, each once.
//!
//! Two states are equal if no check can distinguish their trees. A state that can occur at several
//! points is checked at the last of them: there the program has promised most, so that a check of
//! promises that passes there passes at the others. (A check that nothing is there *too early* is
//! weaker at the last point; it is not what acknowledgements are for.) That needs a first pass over
//! all states, which keeps digests only; a second one builds those that are checked, class by
//! class, so that a spent budget has covered the classes that find most.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;

use crate::glob::Glob;
use crate::model::explore::state_class::{StateClass, Survivors, WINDOW, Window};
use crate::model::micro_op::{Part, dir_entries};
use crate::model::profile::Model;
use crate::model::replay::{Point, Replay, inside_looks, operations, steps};
use crate::model::state_key::{Kept, StateKey};
use crate::model::tree::Tree;
use crate::operation::{Action, Entry, Node, Recording, WriteSync};

mod coverage;
pub(super) mod state_class;

pub use coverage::Coverage;

/// A directory as a crash may leave it.
#[derive(Clone, Debug)]
pub struct CrashState {
    /// Names the state within its recording.
    pub key: StateKey,
    /// The class that it was built for.
    pub class: StateClass,
    /// How many acknowledgements came before the crash.
    pub acks: usize,
    /// The label passed last.
    pub label: Option<String>,
    /// The operations that are lost in whole or in part, in order.
    pub lost: Vec<u32>,
    /// Those of them of which a part that was not durable survives.
    pub half: Vec<u32>,
    /// The files.
    pub tree: Tree,
}

/// Which states are built.
#[derive(Clone, Debug)]
pub struct ExploreOptions {
    /// The classes to build.
    pub classes: Vec<StateClass>,
    /// How many of the newest parts are lost or kept individually.
    pub near: usize,
    /// Maximum number of pairs at a point; the seed selects which.
    pub pairs: usize,
    /// Selects which pairs are built if there are too many.
    pub seed: u64,
    /// Files whose content is worthless after a power loss, such as `*-shm`.
    pub volatile: Vec<String>,
}

impl Default for ExploreOptions {
    fn default() -> Self {
        Self {
            classes: StateClass::ALL.to_vec(),
            near: 12,
            pairs: 6,
            seed: 0,
            volatile: Vec::new(),
        }
    }
}

/// The states, in the order in which to check them. [`CrashStates::new`] makes the first pass.
pub struct CrashStates<'a> {
    recording: &'a Recording,
    model: Model,
    options: ExploreOptions,
    volatile: HashSet<Node>,
    /// See [`inside_looks`].
    inside_looks: HashSet<u32>,
    promises: Promises,
    coverage: Coverage,
    /// By digest: the point and class at which it is checked.
    chosen: HashMap<u128, (Point, StateClass)>,
    /// By class: the digest of each state, in the order in which they are built.
    digests: Vec<Vec<u128>>,
    ready: std::vec::IntoIter<CrashState>,
    pass: Option<Pass<'a>>,
    classes: std::vec::IntoIter<StateClass>,
    /// Called between two points without a state.
    stop: Option<Box<dyn Fn() -> bool + Send + 'a>>,
}

/// Progress of the first pass over a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstPass {
    /// Number of points explored so far.
    pub looked_at: u64,
    /// Number of all points.
    pub points: u64,
}

struct Pass<'a> {
    class: StateClass,
    replay: Replay,
    steps: Box<dyn Iterator<Item = crate::model::replay::Step<'a>> + Send + 'a>,
    begun: bool,
    at: usize,
}

impl<'a> CrashStates<'a> {
    /// The states of this recording under a model.
    pub fn new(
        recording: &'a Recording,
        model: Model,
        options: ExploreOptions,
    ) -> Result<Self, BadGlob> {
        Self::watched(recording, model, options, |_| ControlFlow::Continue(()))
    }

    /// The same; the function gets the progress before each state of the first pass, and may
    /// stop it. There are no states then, and [`Coverage::cut_short`] is set.
    pub fn watched(
        recording: &'a Recording,
        model: Model,
        options: ExploreOptions,
        mut watch: impl FnMut(FirstPass) -> ControlFlow<()>,
    ) -> Result<Self, BadGlob> {
        let mut options = options;
        options.classes.sort_unstable();
        options.classes.dedup();
        if model == Model::Kill {
            options.classes.retain(|class| *class == StateClass::Prefix);
        }
        let volatile = volatile(recording, &options)?;
        let classes = options.classes.clone().into_iter();
        let mut states = Self {
            recording,
            model,
            volatile,
            inside_looks: inside_looks(recording),
            promises: Promises::new(recording),
            coverage: Coverage::default(),
            chosen: HashMap::new(),
            digests: vec![Vec::new(); StateClass::ALL.len()],
            ready: Vec::new().into_iter(),
            pass: None,
            classes,
            options,
            stop: None,
        };
        if states.count_states(&mut watch).is_break() {
            states.coverage.cut_short = true;
            states.classes = Vec::new().into_iter();
        }
        Ok(states)
    }

    /// Ends the iteration as soon as `stop` is true. It is called whenever the next state may be far.
    pub fn stop_when(self, stop: impl Fn() -> bool + Send + 'a) -> Self {
        Self { stop: Some(Box::new(stop)), ..self }
    }

    /// Coverage of the states built so far.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    fn count_states(
        &mut self,
        watch: &mut dyn FnMut(FirstPass) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.coverage.volatile_files = names(self.recording, &self.volatile);
        self.coverage.classes.clone_from(&self.options.classes);
        self.coverage.seed = self.options.seed;
        let mut replay = Replay::new(self.recording, self.model);
        let steps: Vec<_> = steps(self.recording, &self.volatile).collect();
        let points = steps.len() as u64 + 1;
        let mut looked = self.look(&replay, Point::START, points, watch);
        for step in steps {
            if looked.is_break() {
                break;
            }
            replay.step(&step);
            replay.pending.freeze(WINDOW);
            looked = self.look(&replay, step.point, points, watch);
        }
        for (_, class) in self.chosen.values() {
            self.coverage.distinct[*class as usize] += 1;
        }
        looked
    }

    fn look(
        &mut self,
        replay: &Replay,
        point: Point,
        points: u64,
        watch: &mut dyn FnMut(FirstPass) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let progress = FirstPass { looked_at: self.coverage.points, points };
        self.coverage.operations = point.operation;
        self.coverage.points += 1;
        self.coverage.points_with_older_parts += u64::from(replay.pending.frozen > 0);
        let window = Window::new(replay);
        for class in self.options.classes.clone() {
            let (choices, left_out) = self.choices(&window, class, point);
            self.coverage.pairs_left_out += left_out as u64;
            for choice in choices {
                // Large files take long to digest.
                watch(progress)?;
                let digest = window.build(choice).digest();
                self.coverage.raw[class as usize] += 1;
                self.digests[class as usize].push(digest);
                let best = self.chosen.entry(digest).or_insert((point, class));
                if point > best.0 {
                    *best = (point, class);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn choices(
        &self,
        window: &Window<'_>,
        class: StateClass,
        point: Point,
    ) -> (Vec<Survivors>, usize) {
        // The losses at an unfinished comparison of mapped files are among those of the finished one.
        // Only tears belong to a single store.
        if self.inside_looks.contains(&point.operation) && class != StateClass::Torn {
            return (Vec::new(), 0);
        }
        let mut choices = window.choices(class, self.options.near, point);
        let limit = self.options.pairs;
        if class != StateClass::Pair || choices.len() <= limit {
            return (choices, 0);
        }
        let left_out = choices.len() - limit;
        let mut random = Random::new(self.options.seed, point);
        for at in 0..limit {
            let other = at + (random.next() % (choices.len() - at) as u64) as usize;
            choices.swap(at, other);
        }
        choices.truncate(limit);
        (choices, left_out)
    }

    /// The states that are checked at the current point.
    fn fill(&mut self, pass: &mut Pass<'a>, point: Point) {
        let window = Window::new(&pass.replay);
        let mut ready = Vec::new();
        for choice in self.choices(&window, pass.class, point).0 {
            let digest = self.digests[pass.class as usize][pass.at];
            pass.at += 1;
            if self.chosen.get(&digest) == Some(&(point, pass.class)) {
                self.chosen.remove(&digest);
                let key = window.key(choice, point);
                ready.push(self.promises.state(
                    &pass.replay,
                    key,
                    pass.class,
                    window.build(choice),
                ));
            }
        }
        self.ready = ready.into_iter();
    }
}

impl Iterator for CrashStates<'_> {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        loop {
            if let Some(state) = self.ready.next() {
                return Some(state);
            }
            if self.stop.as_ref().is_some_and(|stop| stop()) {
                return None;
            }
            let mut pass = match self.pass.take() {
                Some(pass) => pass,
                None => Pass {
                    class: self.classes.next()?,
                    replay: Replay::new(self.recording, self.model),
                    steps: Box::new(
                        steps(self.recording, &self.volatile).collect::<Vec<_>>().into_iter(),
                    ),
                    begun: false,
                    at: 0,
                },
            };
            let point = if pass.begun {
                let Some(step) = pass.steps.next() else { continue };
                pass.replay.step(&step);
                pass.replay.pending.freeze(WINDOW);
                step.point
            } else {
                pass.begun = true;
                Point::START
            };
            self.fill(&mut pass, point);
            self.pass = Some(pass);
        }
    }
}

/// The state of a key; `None` if the recording has no such point.
pub fn rebuild(
    recording: &Recording,
    model: Model,
    options: &ExploreOptions,
    key: &StateKey,
) -> Result<Option<CrashState>, BadGlob> {
    let volatile = volatile(recording, options)?;
    Ok(replay_until(recording, model, &volatile, key.point).map(|replay| {
        let tree = replay.build(key);
        Promises::new(recording).state(&replay, key.clone(), class_of(key), tree)
    }))
}

pub(crate) fn replay_until(
    recording: &Recording,
    model: Model,
    volatile: &HashSet<Node>,
    point: Point,
) -> Option<Replay> {
    let mut replay = Replay::new(recording, model);
    if point == Point::START {
        return Some(replay);
    }
    for step in steps(recording, volatile) {
        replay.step(&step);
        if step.point == point {
            return Some(replay);
        }
    }
    None
}

fn class_of(key: &StateKey) -> StateClass {
    match &key.kept {
        _ if key.torn.is_some() => StateClass::Torn,
        Kept::Everything => StateClass::Prefix,
        Kept::Only(parts) if parts.is_empty() => StateClass::LoseAll,
        Kept::Only(_) => StateClass::KeepOne,
        Kept::AllBut(_) => StateClass::DropOne,
    }
}

/// What was acknowledged when the crash happened.
#[derive(Clone, Debug)]
pub(crate) struct Promises {
    /// By operation, from 0: acknowledgements before the next one.
    acks: Vec<usize>,
    labels: Vec<Option<String>>,
}

impl Promises {
    pub(crate) fn new(recording: &Recording) -> Self {
        let (mut acks, mut label) = (0, None);
        let mut promises = Self { acks: Vec::new(), labels: Vec::new() };
        for entry in &recording.entries {
            match entry {
                Entry::Operation(_) => {
                    promises.acks.push(acks);
                    promises.labels.push(label.clone());
                }
                Entry::Label(text) => label = Some(text.clone()),
                Entry::Acknowledgement(_) => acks += 1,
            }
        }
        promises.acks.push(acks);
        promises.labels.push(label);
        promises
    }

    /// How many acknowledgements came before an operation.
    pub(crate) fn before(&self, operation: u32) -> usize {
        let at = (operation as usize).checked_sub(1);
        at.and_then(|at| self.acks.get(at)).copied().unwrap_or(0)
    }

    /// How many acknowledgements came before the next operation.
    pub(crate) fn by(&self, operation: u32) -> usize {
        self.acks.get(operation as usize).copied().unwrap_or(0)
    }

    /// The label passed last before a crash.
    pub(crate) fn label(&self, point: Point) -> Option<&str> {
        self.labels.get(said(point))?.as_deref()
    }

    pub(crate) fn state(
        &self,
        replay: &Replay,
        key: StateKey,
        class: StateClass,
        tree: Tree,
    ) -> CrashState {
        let said = said(key.point);
        let is_lost = |part: &Part| match &key.kept {
            _ if key.torn.is_some_and(|(torn, _)| torn == *part) => true,
            Kept::Everything => false,
            Kept::AllBut(parts) => parts.binary_search(part).is_ok(),
            Kept::Only(parts) => parts.binary_search(part).is_err(),
        };
        let parts = replay.pending.micro_ops.iter().map(|micro_op| micro_op.part);
        let (gone, kept): (Vec<Part>, Vec<Part>) = parts.partition(is_lost);
        let mut lost: Vec<u32> = gone.iter().map(|part| part.operation).collect();
        lost.dedup();
        let mut half: Vec<u32> = kept.iter().map(|part| part.operation).collect();
        half.dedup();
        half.retain(|number| lost.binary_search(number).is_ok());
        CrashState {
            acks: self.acks.get(said).copied().unwrap_or(0),
            label: self.labels.get(said).cloned().flatten(),
            key,
            class,
            lost,
            half,
            tree,
        }
    }
}

/// Before an operation is done, no later acknowledgement has been made.
fn said(point: Point) -> usize {
    point.operation as usize - usize::from(point.during)
}

/// A pattern of [`ExploreOptions::volatile`] is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadGlob {
    /// The pattern.
    pub pattern: String,
    /// Why it is invalid.
    pub reason: &'static str,
}

impl fmt::Display for BadGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no pattern: {}", self.pattern, self.reason)
    }
}

impl std::error::Error for BadGlob {}

/// A file that is mapped and never synced may be written back in any part, page by page, if there are
/// at most this many stores to it; with more of them it is lost whole, because its pages would be most
/// of what can be lost.
const MAPPED_STORES: usize = 256;

/// Files declared volatile, and files with many stores through a mapping that are never synced: their
/// writers do not rely on them.
pub(crate) fn volatile(
    recording: &Recording,
    options: &ExploreOptions,
) -> Result<HashSet<Node>, BadGlob> {
    let mut globs = Vec::new();
    for pattern in &options.volatile {
        let glob =
            Glob::parse(pattern).map_err(|reason| BadGlob { pattern: pattern.clone(), reason })?;
        globs.push(glob);
    }
    let mut mapped: HashMap<Node, usize> = HashMap::new();
    let (mut synced, mut named) = (HashSet::new(), HashSet::new());
    let mut synced_all = false;
    let mut tree = Tree::new(&recording.initial);
    for (_, operation) in operations(recording) {
        match &operation.action {
            Action::Write { node, mapped: by_mapping, sync, .. } => {
                if *by_mapping {
                    *mapped.entry(*node).or_default() += 1;
                }
                if *sync != WriteSync::None {
                    synced.insert(*node);
                }
                if !globs.is_empty()
                    && !named.contains(node)
                    && let Some(path) = tree.path(*node)
                    && globs.iter().any(|glob| glob.matches(&path.to_string_lossy()))
                {
                    named.insert(*node);
                }
            }
            Action::Sync { node, .. } | Action::SyncPart { node, .. } => {
                synced.insert(*node);
            }
            Action::SyncAll => synced_all = true,
            _ => {}
        }
        if !globs.is_empty() && !matches!(operation.action, Action::Write { .. }) {
            tree.apply(&operation.action);
        }
    }
    if !synced_all {
        let never = mapped.into_iter().filter(|(node, _)| !synced.contains(node));
        named.extend(never.filter(|(_, stores)| *stores > MAPPED_STORES).map(|(node, _)| node));
    }
    Ok(named)
}

/// The last names of some files, in order.
pub(crate) fn names(recording: &Recording, nodes: &HashSet<Node>) -> Vec<PathBuf> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let mut tree = Tree::new(&recording.initial);
    let mut names = HashMap::new();
    let mut note = |tree: &Tree| {
        for node in nodes {
            if let Some(path) = tree.path(*node) {
                names.insert(*node, path);
            }
        }
    };
    note(&tree);
    for (_, operation) in operations(recording) {
        if !matches!(operation.action, Action::Write { .. }) {
            tree.apply(&operation.action);
        }
        if !dir_entries(&operation.action).is_empty() {
            note(&tree);
        }
    }
    let nameless = || PathBuf::from("(removed file)");
    let mut names: Vec<_> =
        nodes.iter().map(|node| names.remove(node).unwrap_or_else(nameless)).collect();
    names.sort();
    names
}

/// `SplitMix64`: the same pairs for the same seed everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64, point: Point) -> Self {
        let at = (u64::from(point.operation) << 1) | u64::from(point.during);
        Self(seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests;
