//! What a crash may leave, specified in another way: by the history of each name, byte and page
//! since its last sync. Slow, and weaker than the model, but independent of it.

use std::collections::{BTreeMap, BTreeSet};

use retake_crash::model::{CrashState, Model, StateClass, Tree};
use retake_crash::operation::{Action, Entry, Node, Recording, WriteSync};

const PAGE: u64 = 4096;

/// The recording replayed up to a point: the tree after each operation.
pub(crate) struct History {
    actions: Vec<Action>,
    trees: Vec<Tree>,
}

impl History {
    pub(crate) fn new(recording: &Recording) -> Self {
        let actions: Vec<Action> = recording
            .entries
            .iter()
            .filter_map(|entry| match entry {
                Entry::Operation(operation) => Some(operation.action.clone()),
                _ => None,
            })
            .collect();
        let mut trees = vec![Tree::new(&recording.initial)];
        for action in &actions {
            let mut tree = trees[trees.len() - 1].clone();
            tree.apply(action);
            trees.push(tree);
        }
        Self { actions, trees }
    }

    pub(crate) fn after(&self, operation: u32) -> &Tree {
        &self.trees[operation as usize]
    }

    pub(crate) fn check(&self, model: Model, state: &CrashState) -> Result<(), String> {
        let point = state.key.point;
        // During an operation its sync has not happened yet.
        let synced = point.operation as usize - usize::from(point.during);
        let last = point.operation as usize;
        self.files(model, state, synced, last)?;
        match model {
            Model::Kill => Ok(()),
            Model::Posix => {
                self.each_name(&state.tree, synced, last)?;
                self.single_names(&state.tree, synced)
            }
            // A sync there is not a commit: it keeps some names, but not earlier changes. A file
            // that was moved to another directory may have both names.
            Model::Btrfs if self.actions[..last].iter().any(is_sync) => {
                self.each_name(&state.tree, synced, last)
            }
            _ => self.journal(&state.tree, synced, last),
        }
    }

    /// The last operation after which the whole file was certainly on disk.
    fn file_synced(&self, node: Node, end: usize) -> usize {
        let covers = |action: &Action| match action {
            Action::Sync { node: one, .. } => *one == node,
            Action::SyncAll => true,
            _ => false,
        };
        self.actions[..end].iter().rposition(covers).map_or(0, |at| at + 1)
    }

    fn bytes(&self, at: usize, node: Node) -> Vec<u8> {
        let Some(file) = self.trees[at].file(node) else { return Vec::new() };
        let mut bytes = vec![0; file.size() as usize];
        file.read(0, &mut bytes);
        bytes
    }

    fn files(
        &self,
        model: Model,
        state: &CrashState,
        synced: usize,
        last: usize,
    ) -> Result<(), String> {
        for found in state.tree.walk() {
            let Some(file) = state.tree.file(found.node) else { continue };
            let mut bytes = vec![0; file.size() as usize];
            file.read(0, &mut bytes);
            let since = self.file_synced(found.node, synced);
            let mut versions: BTreeSet<Vec<u8>> =
                (since..=last).map(|at| self.bytes(at, found.node)).collect();
            // A cut is visible in any part of the file on disk.
            for at in since..last {
                if let Action::Truncate { node, size } = &self.actions[at]
                    && *node == found.node
                {
                    let cut = |at| self.bytes(at, found.node).into_iter().take(*size as usize);
                    versions.extend((since..=at).map(|at| cut(at).collect()));
                }
            }
            let name = found.path.display();
            let longest = versions.iter().map(Vec::len).max().unwrap_or(0);
            if bytes.len() > longest {
                return Err(format!("{name} was never so long"));
            }
            let shortest = versions.iter().map(Vec::len).min().unwrap_or(0);
            if bytes.len() < shortest {
                return Err(format!("{name} was never so short"));
            }
            let whole_pages = model != Model::Posix && state.class != StateClass::Torn;
            let unit = if whole_pages { PAGE as usize } else { 1 };
            for (at, page) in bytes.chunks(unit).enumerate() {
                let from = at * unit;
                let was = |version: &Vec<u8>| {
                    page.iter()
                        .enumerate()
                        .all(|(at, byte)| version.get(from + at).copied().unwrap_or(0) == *byte)
                };
                // A new block reads as zeros.
                if !versions.iter().any(was) && page.iter().any(|byte| *byte != 0) {
                    return Err(format!("{name} never had these bytes at {from}"));
                }
            }
            self.synchronous(found.node, &bytes, synced, last)?;
        }
        Ok(())
    }

    /// The last synchronous write to a byte is there, unless something came later.
    fn synchronous(
        &self,
        node: Node,
        bytes: &[u8],
        synced: usize,
        last: usize,
    ) -> Result<(), String> {
        for at in 0..synced {
            let Action::Write { node: one, offset, data, sync, .. } = &self.actions[at] else {
                continue;
            };
            if *one != node || *sync == WriteSync::None {
                continue;
            }
            let untouched = self.actions[at + 1..last].iter().all(|later| match later {
                Action::Write { node: two, .. }
                | Action::Truncate { node: two, .. }
                | Action::Zero { node: two, .. } => *two != node,
                _ => true,
            });
            let range = *offset as usize..*offset as usize + data.len();
            if untouched && bytes.get(range) != Some(data) {
                return Err(format!("the synchronous write {} is lost", at + 1));
            }
        }
        Ok(())
    }

    /// All names are as they were after one operation, not before the last commit.
    fn journal(&self, tree: &Tree, synced: usize, last: usize) -> Result<(), String> {
        let mut committed = 0;
        for (at, action) in self.actions[..synced].iter().enumerate() {
            let Action::Sync { node, data_only: false } = action else { continue };
            let touched = self.actions[..at].iter().rposition(|before| touches(before, *node));
            committed = committed.max(touched.map_or(0, |at| at + 1));
        }
        let names = shape(tree);
        match (committed..=last).any(|at| shape(&self.trees[at]) == names) {
            true => Ok(()),
            false => Err(format!("after {committed} the names never were {names:?}")),
        }
    }

    /// Each name has one of its values since its directory was synced.
    fn each_name(&self, tree: &Tree, synced: usize, last: usize) -> Result<(), String> {
        let names = shape(tree);
        let mut all: BTreeSet<_> = names.keys().cloned().collect();
        self.trees[..=last].iter().for_each(|tree| all.extend(shape(tree).into_keys()));
        for dir_entry in all {
            let sync = |action: &Action| matches!(action, Action::Sync { node, data_only: false } if *node == dir_entry.0);
            // A rename to another directory is durable with that one.
            let moved = self.actions[..last].iter().any(|action| {
                matches!(action, Action::Rename { from, to, .. }
                    if from.directory == dir_entry.0 && from.name == dir_entry.1 && to.directory != dir_entry.0)
            });
            let since = match self.actions[..synced].iter().rposition(sync) {
                Some(at) if !moved => at + 1,
                _ => 0,
            };
            let now = names.get(&dir_entry);
            let was = (since..=last).any(|at| shape(&self.trees[at]).get(&dir_entry) == now);
            if !was {
                return Err(format!("{dir_entry:?} never was {now:?}"));
            }
        }
        Ok(())
    }

    /// No file has two names because of a rename, unless the target directory was synced
    /// without the source directory.
    fn single_names(&self, tree: &Tree, synced: usize) -> Result<(), String> {
        let names = shape(tree);
        let linked = |node: Node| {
            let links =
                |action: &Action| matches!(action, Action::Link { node: one, .. } if *one == node);
            self.actions.iter().any(links)
        };
        let arrived = |node: Node| {
            self.actions[..synced].iter().enumerate().any(|(at, action)| match action {
                Action::Rename { node: one, from, to, .. } => {
                    let syncs = |action: &Action| {
                        matches!(action, Action::Sync { node, .. } if *node == to.directory)
                    };
                    *one == node
                        && from.directory != to.directory
                        && self.actions[at..synced].iter().any(syncs)
                }
                _ => false,
            })
        };
        for node in names.values() {
            if !linked(*node)
                && !arrived(*node)
                && names.values().filter(|one| *one == node).count() > 1
            {
                return Err(format!("{node:?} has two names"));
            }
        }
        Ok(())
    }
}

fn is_sync(action: &Action) -> bool {
    match action {
        Action::Sync { .. } | Action::SyncPart { .. } | Action::SyncAll => true,
        Action::Write { sync, .. } => *sync != WriteSync::None,
        _ => false,
    }
}

fn touches(action: &Action, node: Node) -> bool {
    match action {
        Action::Create { node: one, dir_entry, .. } => {
            *one == node || dir_entry.as_ref().is_some_and(|dir_entry| dir_entry.directory == node)
        }
        Action::Link { node: one, dir_entry } | Action::Remove { node: one, dir_entry } => {
            *one == node || dir_entry.directory == node
        }
        Action::Rename { node: one, from, to, replaced } => {
            [*one, from.directory, to.directory].contains(&node) || *replaced == Some(node)
        }
        _ => false,
    }
}

/// The node of each name.
fn shape(tree: &Tree) -> BTreeMap<(Node, std::ffi::OsString), Node> {
    let mut directories = BTreeMap::new();
    let mut names = BTreeMap::new();
    for found in tree.walk() {
        directories.insert(found.path.clone(), found.node);
        if let (Some(parent), Some(name)) = (found.path.parent(), found.path.file_name()) {
            names.insert((directories[parent], name.to_owned()), found.node);
        }
    }
    names
}
