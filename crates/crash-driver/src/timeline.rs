//! A recording as rows: its operations and their files, syncs, and the program's labels and
//! acknowledgements. Decides nothing about crashes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use retake_crash::model::{Tree, path_text, quoted_path as name};
use retake_crash::operation::{
    Action, DirEntry, Entry, Kind, Node, Operation, Recording, WriteSync,
};
use retake_types::loop_record::crash::{TimelineRow, TimelineRowKind};

/// Every entry of the recording in order.
pub fn rows(recording: &Recording) -> Vec<TimelineRow> {
    let mut names = Names::new(recording);
    let mut number = 0;
    recording
        .entries
        .iter()
        .map(|entry| match entry {
            Entry::Operation(operation) => {
                number += 1;
                names.row(number, operation)
            }
            Entry::Label(text) => said(TimelineRowKind::Label, text.clone()),
            Entry::Acknowledgement(text) => {
                said(TimelineRowKind::Acknowledgement, String::from_utf8_lossy(text).into_owned())
            }
        })
        .collect()
}

fn said(kind: TimelineRowKind, text: String) -> TimelineRow {
    TimelineRow {
        number: None,
        kind,
        call: String::new(),
        task: 0,
        files: Vec::new(),
        text,
        source: None,
    }
}

/// The current name of each file.
pub(crate) struct Names {
    tree: Tree,
    /// The last name, for files that have no name any more.
    last: HashMap<Node, PathBuf>,
}

impl Names {
    pub(crate) fn new(recording: &Recording) -> Self {
        let tree = Tree::new(&recording.initial);
        let last = tree.walk().map(|found| (found.node, found.path.clone())).collect();
        Self { tree, last }
    }

    fn row(&mut self, number: u32, operation: &Operation) -> TimelineRow {
        let action = &operation.action;
        let (kind, files, text) = self.describe(action);
        self.apply(action);
        let files = files.iter().map(|path| path_text(path)).collect();
        TimelineRow {
            number: Some(number),
            kind,
            call: operation.call.clone(),
            task: operation.task,
            files,
            text,
            source: None,
        }
    }

    pub(crate) fn apply(&mut self, action: &Action) {
        self.tree.apply(action);
        self.update_names(action);
    }

    fn update_names(&mut self, action: &Action) {
        let nodes: &[Node] = match action {
            Action::Create { node, .. }
            | Action::Link { node, .. }
            | Action::Rename { node, .. } => &[*node],
            Action::Exchange { first, second, .. } => &[*first, *second],
            _ => &[],
        };
        for node in nodes {
            if let Some(path) = self.tree.path(*node) {
                self.last.insert(*node, path);
            }
        }
    }

    pub(crate) fn path(&self, node: Node) -> PathBuf {
        self.tree
            .path(node)
            .or_else(|| self.last.get(&node).cloned())
            .unwrap_or_else(|| PathBuf::from("an unnamed file"))
    }

    pub(crate) fn at(&self, dir_entry: &DirEntry) -> PathBuf {
        self.path(dir_entry.directory).join(&dir_entry.name)
    }

    fn describe(&self, action: &Action) -> (TimelineRowKind, Vec<PathBuf>, String) {
        let of = |node: &Node| self.path(*node);
        match action {
            Action::Create { dir_entry, kind, node, .. } => {
                let path = dir_entry
                    .as_ref()
                    .map_or_else(|| self.path(*node), |dir_entry| self.at(dir_entry));
                let text = match kind {
                    Kind::Directory => format!("make directory {}", name(&path)),
                    Kind::File => format!("create {}", name(&path)),
                    Kind::Symlink { target } => {
                        format!("link {} to {}", name(&path), name(Path::new(target)))
                    }
                };
                (TimelineRowKind::Name, vec![path], text)
            }
            Action::Write { node, offset, data, sync, mapped } => {
                let how = match (mapped, sync) {
                    (true, _) => ", mapped",
                    (false, WriteSync::None) => "",
                    (false, WriteSync::Data) => ", waits for the bytes",
                    (false, WriteSync::Full) => ", waits for the file",
                };
                let path = of(node);
                let text =
                    format!("write {} {}{how}", name(&path), range(*offset, data.len() as u64));
                (TimelineRowKind::Content, vec![path], text)
            }
            Action::Truncate { node, size } => {
                let path = of(node);
                let text = format!("truncate {} to {size}", name(&path));
                (TimelineRowKind::Content, vec![path], text)
            }
            Action::Allocate { node, offset, length, .. } => {
                let path = of(node);
                let text = format!("allocate {} {}", name(&path), range(*offset, *length));
                (TimelineRowKind::Content, vec![path], text)
            }
            Action::Zero { node, offset, length, hole, .. } => {
                let path = of(node);
                let what = if *hole { "punch a hole into" } else { "zero" };
                let text = format!("{what} {} {}", name(&path), range(*offset, *length));
                (TimelineRowKind::Content, vec![path], text)
            }
            Action::Link { node, dir_entry } => {
                let (old, new) = (of(node), self.at(dir_entry));
                let text = format!("link {} to {}", name(&new), name(&old));
                (TimelineRowKind::Name, vec![old, new], text)
            }
            Action::Remove { dir_entry, .. } => {
                let path = self.at(dir_entry);
                let text = format!("remove {}", name(&path));
                (TimelineRowKind::Name, vec![path], text)
            }
            Action::Rename { from, to, replaced, .. } => {
                let (from, to) = (self.at(from), self.at(to));
                let over = if replaced.is_some() { ", replacing it" } else { "" };
                let text = format!("rename {} to {}{over}", name(&from), name(&to));
                (TimelineRowKind::Name, vec![from, to], text)
            }
            Action::Exchange { first_entry, second_entry, .. } => {
                let (one, other) = (self.at(first_entry), self.at(second_entry));
                let text = format!("exchange {} and {}", name(&one), name(&other));
                (TimelineRowKind::Name, vec![one, other], text)
            }
            Action::Mode { node, mode } => {
                let path = of(node);
                let text = format!("set the mode of {} to {mode:o}", name(&path));
                (TimelineRowKind::Content, vec![path], text)
            }
            Action::Attribute { node, name: key, value } => {
                let path = of(node);
                let what = if value.is_some() { "set" } else { "remove" };
                let key = OsStr::to_string_lossy(key);
                let text = format!("{what} attribute {key} of {}", name(&path));
                (TimelineRowKind::Content, vec![path], text)
            }
            Action::Sync { node, data_only } => {
                let path = of(node);
                let what = if *data_only { "sync the bytes of" } else { "sync" };
                let text = format!("{what} {}", name(&path));
                (TimelineRowKind::Sync, vec![path], text)
            }
            Action::SyncPart { node, offset, length } => {
                let path = of(node);
                let text = format!("sync {} {}", name(&path), range(*offset, *length));
                (TimelineRowKind::Sync, vec![path], text)
            }
            Action::SyncRange { node, offset, length } => {
                let path = of(node);
                let text = format!("start writing {} {}", name(&path), range(*offset, *length));
                (TimelineRowKind::Content, vec![path], text)
            }
            Action::SyncAll => (TimelineRowKind::Sync, Vec::new(), "sync everything".to_owned()),
            Action::Close { node } => {
                let path = of(node);
                let text = format!("close {}", name(&path));
                (TimelineRowKind::Close, vec![path], text)
            }
        }
    }
}

fn range(offset: u64, length: u64) -> String {
    format!("bytes {offset}–{}", offset.saturating_add(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_entry(name: &str) -> DirEntry {
        DirEntry { directory: Node::ROOT, name: name.into() }
    }

    fn operation(call: &str, action: Action) -> Entry {
        Entry::Operation(Operation { task: 1, call: call.to_owned(), action })
    }

    #[test]
    fn files_have_the_name_they_had_at_the_time() {
        let node = Node(1);
        let write = |data: &[u8]| Action::Write {
            node,
            offset: 8,
            data: data.into(),
            sync: WriteSync::None,
            mapped: false,
        };
        let entries = vec![
            operation(
                "openat",
                Action::Create {
                    node,
                    mode: 0o644,
                    kind: Kind::File,
                    dir_entry: Some(dir_entry("a.tmp")),
                },
            ),
            operation("write", write(b"1234")),
            Entry::Label("written".into()),
            operation(
                "rename",
                Action::Rename {
                    node,
                    from: dir_entry("a.tmp"),
                    to: dir_entry("a"),
                    replaced: None,
                },
            ),
            operation("fsync", Action::Sync { node: Node::ROOT, data_only: false }),
            operation("unlink", Action::Remove { node, dir_entry: dir_entry("a") }),
            operation("write", write(b"5")),
            Entry::Acknowledgement(b"done".to_vec()),
        ];
        let recording = Recording {
            root: "/r".into(),
            initial: Vec::new(),
            entries,
            stacks: Default::default(),
            left_running: Default::default(),
            outside: Default::default(),
            initial_is_copy: false,
        };
        let texts: Vec<_> =
            rows(&recording).into_iter().map(|row| (row.number, row.text)).collect();
        let expected = [
            (Some(1), "create `a.tmp`"),
            (Some(2), "write `a.tmp` bytes 8–12"),
            (None, "written"),
            (Some(3), "rename `a.tmp` to `a`"),
            (Some(4), "sync `.`"),
            (Some(5), "remove `a`"),
            (Some(6), "write `a` bytes 8–9"),
            (None, "done"),
        ];
        assert_eq!(texts, expected.map(|(number, text)| (number, text.to_owned())));
    }
}
