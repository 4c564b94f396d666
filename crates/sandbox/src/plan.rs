//! The full level as a list of steps: which mounts enforce the rules, in which order.
//!
//! Pure except for checking file types. The runner, which may allocate, builds the steps; the new
//! process, which may not, executes them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::path::{Path, PathBuf};

use retake_types::PathAccess;

use crate::caches::CacheLayer;
use crate::landlock::Rights;
use crate::lists::{DEVICES, RECORD_INSIDE};
use crate::plan_memory::PlanMemory;
use crate::policy::{Area, Policy};
use crate::proc_entries;
use crate::step::Step;

/// The place of the memory file system until `/proc` is mounted over it.
pub(crate) const MEMORY: &str = "/proc";

/// The steps, and how many paths they hold at once.
#[derive(Debug)]
pub(crate) struct Plan<'m> {
    pub(crate) steps: Vec<Step<'m>>,
    pub(crate) slots: usize,
}

/// What is visible at a path inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// The real file or directory, with this access.
    Real(PathAccess),
    /// A new empty directory.
    Area(Area),
    /// An empty directory that can only be traversed.
    Passage,
}

struct Builder<'a, 'm> {
    memory: &'m PlanMemory,
    layers: &'a [CacheLayer],
    kinds: &'a Kinds,
    devices: &'a [&'a Path],
    /// Every path that shows something else than its parent implies.
    shown: BTreeMap<PathBuf, Shown>,
    saves: Vec<Step<'m>>,
    areas: Vec<Step<'m>>,
    attaches: Vec<Step<'m>>,
    slots: usize,
    /// The slot of what is shown at a path.
    held: BTreeMap<PathBuf, usize>,
    made: BTreeSet<PathBuf>,
    /// Paths with explicit write permission, other than caches with a layer.
    real: BTreeSet<PathBuf>,
}

/// Whether paths are directories, each checked once.
#[derive(Default)]
struct Kinds(RefCell<BTreeMap<PathBuf, bool>>);

impl Kinds {
    fn is_dir(&self, path: &Path) -> bool {
        let known = self.0.borrow().get(path).copied();
        known.unwrap_or_else(|| {
            let found = path.is_dir();
            self.0.borrow_mut().insert(path.to_owned(), found);
            found
        })
    }
}

/// The steps that enforce a policy.
pub(crate) fn plan<'m>(policy: &Policy, layers: &[CacheLayer], memory: &'m PlanMemory) -> Plan<'m> {
    let kinds = Kinds::default();
    let devices: Vec<&Path> =
        DEVICES.iter().map(Path::new).filter(|device| device.exists()).collect();
    let mut builder = Builder {
        memory,
        layers,
        kinds: &kinds,
        devices: &devices,
        shown: shown(policy, &kinds),
        saves: Vec::new(),
        areas: Vec::new(),
        attaches: Vec::new(),
        slots: 0,
        held: BTreeMap::new(),
        made: BTreeSet::new(),
        real: policy
            .writable()
            .filter(|path| !is_cache(layers, path))
            .map(Path::to_owned)
            .collect(),
    };
    let terminals = Path::new("/dev/pts");
    let terminals = terminals.exists().then(|| builder.hold(terminals));
    builder.mounts();
    builder.devices();
    let seals = builder.shown.iter().filter_map(|(path, shown)| {
        let sealed = matches!(shown, Shown::Passage | Shown::Area(Area::Empty));
        let slot = builder.held.get(path).filter(|_| sealed)?;
        Some(Step::Seal { slot: *slot })
    });
    let seals: Vec<Step<'_>> = seals.collect();
    let shown_again = builder.shown_again(&policy.shown_at);
    let Builder { saves: mut steps, areas, attaches, slots, held, .. } = builder;
    steps.extend([Step::Freeze, Step::MakeMemory]);
    steps.extend(areas);
    steps.push(Step::SealMemory);
    steps.extend(attaches);
    steps.extend(seals);
    steps.extend(shown_again);
    let read_only = proc_entries::writable();
    let read_only: Vec<&CStr> = read_only.iter().map(|path| memory.path(path)).collect();
    steps.push(Step::Proc { read_only: memory.slice(&read_only) });
    steps.extend(rules(policy, &held, (&kinds, &devices), memory));
    // An inherited terminal is one of the outside.
    let (directory, rights) = (true, Rights::Write);
    steps.extend(terminals.map(|slot| Step::SavedRule { slot, directory, rights }));
    Plan { steps, slots }
}

/// The paths where something else must be shown than one level up.
fn shown(policy: &Policy, kinds: &Kinds) -> BTreeMap<PathBuf, Shown> {
    let mut paths: BTreeMap<PathBuf, Option<Area>> =
        policy.areas.iter().map(|(path, area)| (path.clone(), Some(*area))).collect();
    let mut pinned = BTreeSet::new();
    for rule in policy.rules.iter() {
        let path = rule.path.as_path();
        // Inside a writable directory, a renamed parent would take the rule with it.
        if policy.access(path) < PathAccess::Writable {
            let writable = path
                .ancestors()
                .skip(1)
                .take_while(|dir| policy.access(dir) == PathAccess::Writable);
            for parent in writable {
                paths.entry(parent.to_owned()).or_default();
                pinned.insert(parent.to_owned());
            }
        }
        paths.entry(path.to_owned()).or_default();
    }
    let mut shown: BTreeMap<PathBuf, Shown> = BTreeMap::new();
    for (path, area) in &paths {
        let above = path.ancestors().skip(1).find_map(|parent| shown.get(parent)).copied();
        let above = above.unwrap_or(Shown::Real(PathAccess::ReadOnly));
        let access = policy.access(path);
        let now = match (area, access) {
            (Some(area), _) => Shown::Area(*area),
            (None, PathAccess::Hidden) => {
                let visible = |other: &PathBuf| {
                    other != path
                        && other.starts_with(path)
                        && policy.access(other) > PathAccess::Hidden
                };
                match kinds.is_dir(path) && paths.keys().any(visible) {
                    true => Shown::Passage,
                    false => Shown::Real(PathAccess::Hidden),
                }
            }
            (None, access) => Shown::Real(access),
        };
        // A separately allowed path in a cache shows the real files.
        let stays = now == Shown::Real(PathAccess::Writable)
            && (pinned.contains(path) || policy.caches.iter().any(|cache| path.starts_with(cache)));
        let nothing_there =
            matches!(above, Shown::Area(_) | Shown::Passage | Shown::Real(PathAccess::Hidden));
        let needed = match now {
            Shown::Real(PathAccess::Hidden) | Shown::Passage => !nothing_there,
            Shown::Real(_) => stays || now != above,
            Shown::Area(_) => true,
        };
        if needed {
            shown.insert(path.clone(), now);
        }
    }
    shown
}

impl<'m> Builder<'_, 'm> {
    fn slot(&mut self) -> usize {
        self.slots += 1;
        self.slots - 1
    }

    fn save(&mut self, path: &Path, read_only: bool) -> usize {
        let slot = self.slot();
        self.saves.push(Step::Save { path: self.memory.path(path), slot, read_only });
        self.held.insert(path.to_owned(), slot);
        slot
    }

    /// Shows directories a second time, with everything that is mounted in them by now. All are
    /// opened first, because one may cover another.
    fn shown_again(&mut self, shown: &[(PathBuf, PathBuf)]) -> Vec<Step<'m>> {
        let (mut saves, mut attaches) = (Vec::new(), Vec::new());
        for (path, at) in shown {
            let slot = self.slot();
            saves.push(Step::Save { path: self.memory.path(path), slot, read_only: false });
            attaches.push(Step::Attach { path: self.memory.path(at), slot });
        }
        saves.extend(attaches);
        saves
    }

    fn hold(&mut self, path: &Path) -> usize {
        let slot = self.slot();
        self.saves.push(Step::Hold { path: self.memory.path(path), slot });
        slot
    }

    /// An empty directory that covers another one.
    fn area(&mut self, path: &Path, mode: libc::mode_t) -> usize {
        let slot = self.slot();
        let place = self.memory.path(&Path::new(MEMORY).join(slot.to_string()));
        self.areas.push(Step::MakeArea { place, mode, slot });
        self.held.insert(path.to_owned(), slot);
        slot
    }

    fn mounts(&mut self) {
        for (path, shown) in self.shown.clone() {
            let place = self.memory.path(&path);
            match shown {
                Shown::Real(PathAccess::Hidden) => {
                    self.attaches
                        .push(Step::Mask { path: place, directory: self.kinds.is_dir(&path) });
                }
                Shown::Real(PathAccess::Writable) if self.in_layer(&path) => {
                    let Some(slot) = self.cache_slot(&path) else {
                        self.attaches.push(Step::Pin(place));
                        continue;
                    };
                    self.held.insert(path.clone(), slot);
                    self.make_place(&path, true);
                    self.attaches.push(Step::Attach { path: place, slot });
                }
                Shown::Real(access) => {
                    let slot = self.save(&path, access == PathAccess::ReadOnly);
                    self.make_place(&path, self.kinds.is_dir(&path));
                    self.attaches.push(Step::Attach { path: place, slot });
                }
                Shown::Area(area) => {
                    self.make_place(&path, true);
                    let slot = self.area(&path, if area == Area::Temp { 0o1777 } else { 0o755 });
                    self.attaches.push(Step::Attach { path: place, slot });
                }
                Shown::Passage => {
                    let slot = self.area(&path, 0o111);
                    self.attaches.push(Step::Attach { path: place, slot });
                }
            }
        }
    }

    /// The slot of a cache with a layer.
    fn cache_slot(&mut self, cache: &Path) -> Option<usize> {
        let layers = self.layers;
        let layer = layers.iter().position(|layer| layer.caches.iter().any(|one| one == cache))?;
        let CacheLayer { lower, upper, work, .. } = &layers[layer];
        // The place where the whole layer is visible.
        let whole = Path::new(MEMORY).join(format!("layer-{layer}"));
        if self.made.insert(whole.clone()) {
            let slot = self.slot();
            let (upper, work) = (self.memory.path(upper), self.memory.path(work));
            self.saves.push(Step::SaveLayer { lower: self.memory.path(lower), upper, work, slot });
            if lower == cache {
                return Some(slot);
            }
            self.areas.push(Step::Directory { path: self.memory.path(&whole), mode: 0o755 });
            self.areas.push(Step::AttachMade { path: self.memory.path(&whole), slot });
        }
        let slot = self.slot();
        let path = self.memory.path(&whole.join(cache.strip_prefix(lower).ok()?));
        self.areas.push(Step::Save { path, slot, read_only: false });
        Some(slot)
    }

    /// Whether a path is part of a layer. A separately allowed directory inside a cache is the real
    /// one, with everything below it.
    fn in_layer(&self, path: &Path) -> bool {
        let at =
            path.ancestors().find(|dir| self.real.contains(*dir) || is_cache(self.layers, dir));
        at.is_some_and(|dir| !self.real.contains(dir))
    }

    /// Below a covered directory the mount point must be created first.
    fn make_place(&mut self, path: &Path, directory: bool) {
        let parents: Vec<&Path> = path.ancestors().skip(1).collect();
        let covered = parents.iter().position(|parent| {
            matches!(self.shown.get(*parent), Some(Shown::Area(_) | Shown::Passage))
        });
        let real = parents
            .iter()
            .position(|parent| matches!(self.shown.get(*parent), Some(Shown::Real(_))));
        let Some(covered) = covered.filter(|covered| real.is_none_or(|real| *covered < real))
        else {
            return;
        };
        // Hidden parents cannot be listed either.
        let passage = self.shown.get(parents[covered]) == Some(&Shown::Passage);
        let mode = if passage { 0o111 } else { 0o755 };
        for parent in parents[..covered].iter().rev() {
            if self.made.insert((*parent).to_owned()) {
                self.attaches.push(Step::Directory { path: self.memory.path(parent), mode });
            }
        }
        if self.made.insert(path.to_owned()) {
            let place = self.memory.path(path);
            self.attaches.push(match directory {
                true => Step::Directory { path: place, mode },
                false => Step::File(place),
            });
        }
    }

    fn directory(&mut self, path: &Path) {
        self.attaches.push(Step::Directory { path: self.memory.path(path), mode: 0o755 });
    }

    /// An empty directory inside the private `/dev`.
    fn area_in_devices(&mut self, path: &Path, mode: libc::mode_t) {
        self.directory(path);
        let slot = self.area(path, mode);
        self.attaches.push(Step::AttachMade { path: self.memory.path(path), slot });
    }

    /// A `/dev` with the devices that every program may use.
    fn devices(&mut self) {
        for &device in self.devices {
            if self.shown.contains_key(device) {
                continue;
            }
            let (path, slot) = (self.memory.path(device), self.slot());
            self.saves.push(Step::SaveDevice { path, slot });
            self.held.insert(device.to_owned(), slot);
            self.attaches.push(Step::File(path));
            self.attaches.push(Step::AttachMade { path, slot });
        }
        let links = [
            (c"/proc/self/fd", c"/dev/fd"),
            (c"/proc/self/fd/0", c"/dev/stdin"),
            (c"/proc/self/fd/1", c"/dev/stdout"),
            (c"/proc/self/fd/2", c"/dev/stderr"),
            (c"pts/ptmx", c"/dev/ptmx"),
        ];
        self.attaches.extend(links.map(|(target, path)| Step::Link { target, path }));
        self.directory(Path::new("/dev/pts"));
        self.attaches.push(Step::Terminals(c"/dev/pts"));
        self.area_in_devices(Path::new(RECORD_INSIDE), 0o700);
        if self.made.insert("/dev/shm".into()) {
            self.area_in_devices(Path::new("/dev/shm"), 0o1777);
        }
    }
}

fn is_cache(layers: &[CacheLayer], path: &Path) -> bool {
    layers.iter().flat_map(|layer| &layer.caches).any(|cache| cache == path)
}

/// The same rules for Landlock, as far as it can express them: what is writable.
fn rules<'m>(
    policy: &Policy,
    held: &BTreeMap<PathBuf, usize>,
    (kinds, devices): (&Kinds, &[&Path]),
    memory: &'m PlanMemory,
) -> Vec<Step<'m>> {
    let rule = |path: &Path, directory: bool, rights: Rights| match held.get(path) {
        Some(slot) => Step::SavedRule { slot: *slot, directory, rights },
        None => Step::Rule { path: memory.path(path), directory, rights },
    };
    let mut steps = vec![
        rule(Path::new("/dev/shm"), true, Rights::All),
        rule(Path::new(RECORD_INSIDE), true, Rights::All),
        rule(Path::new("/dev/pts"), true, Rights::Write),
        rule(Path::new("/proc"), true, Rights::Write),
    ];
    for device in devices {
        steps.push(rule(device, false, Rights::Write));
    }
    for (path, _) in policy.areas.iter().filter(|(_, area)| *area == Area::Temp) {
        steps.push(rule(path, true, Rights::All));
    }
    for path in policy.writable() {
        steps.push(rule(path, kinds.is_dir(path), Rights::All));
    }
    steps
}
