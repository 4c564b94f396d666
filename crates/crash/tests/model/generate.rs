//! Random recordings of possible programs.

use std::collections::BTreeMap;

use proptest::prelude::*;
use retake_crash::operation::{
    Action, Content, DirEntry, Entry, Initial, Kind, Node, Operation, Recording, WriteSync,
};

const NAMES: [(u64, &str); 6] = [(0, "a"), (0, "b"), (0, "t"), (1, "a"), (1, "x"), (0, "c")];
const SIZES: [u64; 6] = [0, 1, 100, 4096, 5000, 9000];

/// One choice becomes one operation, or none if it does not fit.
pub(crate) type Choice = (u8, u8, u8, u16);

pub(crate) fn choices(most: usize) -> impl Strategy<Value = Vec<Choice>> {
    prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>(), any::<u16>()), 1..most)
}

struct Program {
    names: BTreeMap<(u64, &'static str), u64>,
    sizes: BTreeMap<u64, u64>,
    next: u64,
    entries: Vec<Entry>,
}

/// One directory (node 1) and two files (2 and 3) exist from the start.
pub(crate) fn recording(choices: &[Choice]) -> Recording {
    let initial = [
        (0, None, Content::Directory),
        (1, Some((0, "d")), Content::Directory),
        (2, Some((0, "a")), file(100)),
        (3, Some((0, "b")), file(5000)),
    ];
    let mut program = Program {
        names: BTreeMap::from([((0, "a"), 2), ((0, "b"), 3)]),
        sizes: BTreeMap::from([(2, 100), (3, 5000)]),
        next: 4,
        entries: Vec::new(),
    };
    choices.iter().for_each(|choice| program.step(*choice));
    Recording {
        root: "/root".into(),
        initial: initial
            .into_iter()
            .map(|(node, name, content)| Initial {
                node: Node(node),
                mode: 0o644,
                dir_entries: name.into_iter().map(dir_entry).collect(),
                content,
            })
            .collect(),
        entries: program.entries,
        stacks: Default::default(),
        left_running: Default::default(),
        outside: Default::default(),
        initial_is_copy: false,
    }
}

fn file(size: u64) -> Content {
    Content::File { size, extents: vec![(0, vec![b'0'; size as usize].into())] }
}

fn dir_entry((directory, name): (u64, &str)) -> DirEntry {
    DirEntry { directory: Node(directory), name: name.into() }
}

impl Program {
    fn record(&mut self, action: Action) {
        let call = "call".to_owned();
        self.entries.push(Entry::Operation(Operation { task: 1, call, action }));
        // Every third operation is acknowledged.
        if self.entries.len() % 4 == 3 {
            self.entries.push(Entry::Acknowledgement(b"done".to_vec()));
        }
    }

    fn step(&mut self, (what, one, two, three): Choice) {
        let name = NAMES[usize::from(one) % NAMES.len()];
        let other = NAMES[usize::from(two) % NAMES.len()];
        let there = self.names.get(&name).copied();
        let size = SIZES[usize::from(two) % SIZES.len()] + u64::from(three % 7);
        match (what % 16, there) {
            (0 | 1, None) => {
                let node = self.next;
                self.next += 1;
                self.names.insert(name, node);
                self.sizes.insert(node, 0);
                let dir_entry = Some(dir_entry(name));
                self.record(Action::Create {
                    node: Node(node),
                    mode: 0o644,
                    kind: Kind::File,
                    dir_entry,
                });
            }
            (0..6, Some(node)) => self.write(node, two, three, WriteSync::None),
            (6, Some(node)) => {
                let sync = if two % 2 == 0 { WriteSync::Data } else { WriteSync::Full };
                self.write(node, two / 2, three, sync);
            }
            (7, Some(node)) => {
                self.sizes.insert(node, size);
                self.record(Action::Truncate { node: Node(node), size });
            }
            (8 | 9, Some(node)) if name != other && self.names.get(&other) != Some(&node) => {
                let replaced = self.names.get(&other).copied().map(Node);
                self.names.remove(&name);
                self.names.insert(other, node);
                let (from, to) = (dir_entry(name), dir_entry(other));
                self.record(Action::Rename { node: Node(node), from, to, replaced });
            }
            (10, Some(node)) => {
                self.names.remove(&name);
                self.record(Action::Remove { node: Node(node), dir_entry: dir_entry(name) });
            }
            (11, Some(node)) if !self.names.contains_key(&other) => {
                self.names.insert(other, node);
                self.record(Action::Link { node: Node(node), dir_entry: dir_entry(other) });
            }
            (12, Some(node)) if two % 3 == 2 => {
                let (node, offset) = (Node(node), u64::from(three % 9000));
                self.record(Action::SyncPart { node, offset, length: 1 + u64::from(one) * 40 });
            }
            (12, Some(node)) => {
                self.record(Action::Sync { node: Node(node), data_only: two % 2 == 0 });
            }
            (13, _) => {
                self.record(Action::Sync { node: Node(u64::from(one % 2)), data_only: false });
            }
            (14, Some(node)) => {
                let (offset, length) = (size, 1 + u64::from(three % 5000));
                let hole = two % 2 == 0;
                self.record(Action::Zero {
                    node: Node(node),
                    offset,
                    length,
                    keep_size: true,
                    hole,
                });
            }
            (15, Some(node)) => self.record(Action::Close { node: Node(node) }),
            _ => {}
        }
    }

    fn write(&mut self, node: u64, two: u8, three: u16, sync: WriteSync) {
        let size = self.sizes[&node];
        let offset = if two.is_multiple_of(3) { size } else { u64::from(three) % (size + 1) };
        let length = [1, 30, 600, 4096, 6000][usize::from(two / 3) % 5];
        let letter = b'A' + (self.entries.len() % 26) as u8;
        self.sizes.insert(node, size.max(offset + length));
        let data = vec![letter; length as usize].into();
        self.record(Action::Write { node: Node(node), offset, data, sync, mapped: false });
    }
}
