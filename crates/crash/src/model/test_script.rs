//! Recordings written by hand, and every state that a profile allows after them.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::call_stack::CallStacks;
use crate::model::explore::{CrashStates, ExploreOptions};
use crate::model::micro_op::apply_all;
use crate::model::profile::Model;
use crate::model::replay::{Point, Replay, steps};
use crate::model::tree::{Tree, TreeEntryKind};
use crate::operation::{
    Action, Content, DirEntry, Entry, Initial, Kind, Node, Operation, Recording, WriteSync,
};

#[derive(Clone, Default)]
pub(super) struct TestScript {
    nodes: HashMap<String, Node>,
    count: u64,
    initial: Vec<Initial>,
    entries: Vec<Entry>,
}

impl TestScript {
    /// Files that are durable before the first operation.
    pub(super) fn with(files: &[(&str, &str)]) -> Self {
        let mut script = Self::default();
        for (path, text) in files {
            let content = Content::File {
                size: text.len() as u64,
                extents: vec![(0, text.as_bytes().into())],
            };
            script.initial(path, content);
        }
        script
    }

    pub(super) fn with_directory(mut self, path: &str) -> Self {
        self.initial(path, Content::Directory);
        self
    }

    fn initial(&mut self, path: &str, content: Content) {
        let dir_entry = self.dir_entry(path);
        let node = self.bind(path);
        self.initial.push(Initial { node, mode: 0o644, dir_entries: vec![dir_entry], content });
    }

    fn bind(&mut self, path: &str) -> Node {
        self.count += 1;
        self.nodes.insert(path.to_owned(), Node(self.count));
        Node(self.count)
    }

    fn node(&self, path: &str) -> Node {
        if path == "." { Node::ROOT } else { self.nodes[path] }
    }

    fn dir_entry(&self, path: &str) -> DirEntry {
        let (directory, name) = path.rsplit_once('/').unwrap_or((".", path));
        DirEntry { directory: self.node(directory), name: name.into() }
    }

    pub(super) fn act(mut self, action: Action) -> Self {
        let call = "call".to_owned();
        self.entries.push(Entry::Operation(Operation { task: 1, call, action }));
        self
    }

    fn make(mut self, path: &str, kind: Kind) -> Self {
        let dir_entry = Some(self.dir_entry(path));
        let node = self.bind(path);
        self.act(Action::Create { node, mode: 0o644, kind, dir_entry })
    }

    pub(super) fn create(self, path: &str) -> Self {
        self.make(path, Kind::File)
    }

    pub(super) fn mkdir(self, path: &str) -> Self {
        self.make(path, Kind::Directory)
    }

    pub(super) fn write(self, path: &str, offset: u64, text: &str) -> Self {
        self.put(path, offset, text.as_bytes(), WriteSync::None)
    }

    pub(super) fn write_dsync(self, path: &str, offset: u64, text: &str) -> Self {
        self.put(path, offset, text.as_bytes(), WriteSync::Data)
    }

    pub(super) fn put(self, path: &str, offset: u64, data: &[u8], sync: WriteSync) -> Self {
        let node = self.node(path);
        self.act(Action::Write { node, offset, data: data.into(), sync, mapped: false })
    }

    pub(super) fn map(self, path: &str, offset: u64, text: &str) -> Self {
        let node = self.node(path);
        let data = text.as_bytes().into();
        self.act(Action::Write { node, offset, data, sync: WriteSync::None, mapped: true })
    }

    pub(super) fn truncate(self, path: &str, size: u64) -> Self {
        let node = self.node(path);
        self.act(Action::Truncate { node, size })
    }

    pub(super) fn allocate(self, path: &str, length: u64) -> Self {
        let node = self.node(path);
        self.act(Action::Allocate { node, offset: 0, length, keep_size: false })
    }

    /// A hole that keeps the size, or zeros that may make the file longer.
    pub(super) fn zero(self, path: &str, offset: u64, length: u64, hole: bool) -> Self {
        let node = self.node(path);
        self.act(Action::Zero { node, offset, length, keep_size: hole, hole })
    }

    pub(super) fn link(mut self, path: &str, new: &str) -> Self {
        let (node, dir_entry) = (self.node(path), self.dir_entry(new));
        self.nodes.insert(new.to_owned(), node);
        self.act(Action::Link { node, dir_entry })
    }

    pub(super) fn remove(mut self, path: &str) -> Self {
        let (node, dir_entry) = (self.node(path), self.dir_entry(path));
        // Processes that have it open keep the old file.
        self.nodes.insert(format!("open {path}"), node);
        self.act(Action::Remove { node, dir_entry })
    }

    pub(super) fn rename(mut self, from: &str, to: &str) -> Self {
        let (node, replaced) = (self.node(from), self.nodes.get(to).copied());
        let (from_entry, to_entry) = (self.dir_entry(from), self.dir_entry(to));
        self.nodes.remove(from);
        self.nodes.insert(to.to_owned(), node);
        self.act(Action::Rename { node, from: from_entry, to: to_entry, replaced })
    }

    pub(super) fn fsync(self, path: &str) -> Self {
        let node = self.node(path);
        self.act(Action::Sync { node, data_only: false })
    }

    pub(super) fn fdatasync(self, path: &str) -> Self {
        let node = self.node(path);
        self.act(Action::Sync { node, data_only: true })
    }

    pub(super) fn sync_part(self, path: &str, offset: u64, length: u64) -> Self {
        let node = self.node(path);
        self.act(Action::SyncPart { node, offset, length })
    }

    pub(super) fn sync_range(self, path: &str) -> Self {
        let node = self.node(path);
        self.act(Action::SyncRange { node, offset: 0, length: 1 << 20 })
    }

    pub(super) fn close(self, path: &str) -> Self {
        let node = self.node(path);
        self.act(Action::Close { node })
    }

    pub(super) fn ack(mut self, text: &str) -> Self {
        self.entries.push(Entry::Acknowledgement(text.into()));
        self
    }

    pub(super) fn label(mut self, text: &str) -> Self {
        self.entries.push(Entry::Label(text.into()));
        self
    }

    pub(super) fn recording(&self) -> Recording {
        Recording {
            root: "/work".into(),
            initial: self.initial.clone(),
            entries: self.entries.clone(),
            stacks: CallStacks::default(),
            left_running: Default::default(),
            outside: Default::default(),
            initial_is_copy: false,
        }
    }

    /// The length of a file, and its bytes at some offsets, in the states after everything.
    pub(super) fn sizes_and_bytes<const N: usize>(
        &self,
        model: Model,
        path: &str,
        offsets: [u64; N],
    ) -> BTreeSet<(u64, [u8; N])> {
        let recording = self.recording();
        let operation = recording.entries.len() as u32;
        let states = CrashStates::new(&recording, model, ExploreOptions::default()).unwrap();
        states
            .filter(|state| state.key.point == Point { operation, during: false })
            .map(|state| {
                let found = state.tree.find(path.as_ref()).unwrap();
                let file = state.tree.file(found.node).unwrap();
                let letter = |offset| {
                    let mut letter = [0];
                    file.read(offset, &mut letter);
                    letter[0]
                };
                (file.size(), offsets.map(letter))
            })
            .collect()
    }

    /// What a crash after the last operation may leave: every subset that is closed under what the
    /// profile requires. Written as `name=text` by name; zeros are shown as `0`.
    pub(super) fn states(&self, model: Model) -> BTreeSet<String> {
        let recording = self.recording();
        let mut replay = Replay::new(&recording, model);
        for step in steps(&recording, &HashSet::new()) {
            replay.step(&step);
        }
        let pending = &replay.pending;
        let mut found = BTreeSet::from([listing(&pending.now)]);
        if model == Model::Kill {
            return found;
        }
        assert!(pending.micro_ops.len() <= 12, "too many subsets");
        for mask in 0..1_u32 << pending.micro_ops.len() {
            let kept = |at: usize| mask & (1 << at) != 0;
            let legal = pending.micro_ops.iter().enumerate().all(|(at, micro_op)| {
                !kept(at)
                    || micro_op.requires.iter().all(|id| pending.position(*id).is_none_or(kept))
            });
            if legal {
                let mut tree = pending.base.clone();
                let micro_ops = pending.micro_ops.iter().enumerate().filter(|(at, _)| kept(*at));
                let micro_ops: Vec<_> = micro_ops.map(|(_, micro_op)| (micro_op, None)).collect();
                apply_all(&mut tree, &micro_ops);
                found.insert(listing(&tree));
            }
        }
        found
    }
}

pub(super) fn listing(tree: &Tree) -> String {
    let names: Vec<String> = tree
        .walk()
        .skip(1)
        .map(|found| {
            let path = found.path.display();
            match found.kind {
                TreeEntryKind::Directory => format!("{path}/"),
                TreeEntryKind::Symlink(target) => format!("{path}->{}", target.display()),
                TreeEntryKind::File(file) => {
                    let mut text = vec![0; file.size() as usize];
                    file.read(0, &mut text);
                    let shown: String = text
                        .iter()
                        .map(|byte| if *byte == 0 { '0' } else { char::from(*byte) })
                        .collect();
                    if shown.len() > 40 {
                        format!("{path}=[{}]", shown.len())
                    } else {
                        format!("{path}={shown}")
                    }
                }
            }
        })
        .collect();
    names.join(" ")
}
