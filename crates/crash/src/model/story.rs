//! The operations of a recording as people talk of them.

use std::collections::HashMap;
use std::path::PathBuf;

use super::machine::operations;
use super::shown::quoted;
use super::tree::Tree;
use crate::operation::{Action, Kind, Node, Recording};

/// One operation in words.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) kind: LineKind,
    /// What it changed; for a name, what the name is of.
    pub(crate) node: Option<Node>,
    /// What the file was called then.
    pub(crate) path: PathBuf,
    /// Where a rename or link led.
    pub(crate) to: Option<PathBuf>,
    /// The directory that has to be synced for a name to last.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) holder: Option<Node>,
    /// The bytes of a write.
    pub(crate) range: Option<(u64, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LineKind {
    Create,
    Write,
    Rename,
    Link,
    Remove,
    Exchange,
    Truncate,
    /// Without a node it is of everything.
    Sync,
    Other,
}

impl Line {
    /// The operation as a noun: "the rename of `a` to `b`".
    pub(crate) fn noun(&self) -> String {
        let path = quoted(&self.path);
        match (self.kind, &self.to, self.range) {
            (LineKind::Create, _, _) => format!("the creation of {path}"),
            (LineKind::Write, _, Some((from, to))) => format!("bytes {from}–{to} of {path}"),
            (LineKind::Rename, Some(to), _) => format!("the rename of {path} to {}", quoted(to)),
            (LineKind::Link, Some(to), _) if *to == self.path => format!("the name {path}"),
            (LineKind::Link, Some(to), _) => format!("the link {} to {path}", quoted(to)),
            (LineKind::Remove, _, _) => format!("the removal of {path}"),
            (LineKind::Exchange, Some(to), _) => {
                format!("the exchange of {path} and {}", quoted(to))
            }
            (LineKind::Truncate, _, _) => format!("the truncation of {path}"),
            (LineKind::Sync, _, _) if self.node.is_none() => "the sync of everything".to_owned(),
            (LineKind::Sync, _, _) => format!("the sync of {path}"),
            _ => format!("a change of {path}"),
        }
    }

    pub(crate) fn is_name(&self) -> bool {
        matches!(
            self.kind,
            LineKind::Create
                | LineKind::Rename
                | LineKind::Link
                | LineKind::Remove
                | LineKind::Exchange
        )
    }
}

/// Every operation of a recording, by number.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    lines: Vec<Line>,
    shapes: Vec<Shape>,
    /// What an operation is called, before its number.
    called: &'static str,
}

/// Equal for operations that do the same in another round of a loop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Shape(u32);

impl Story {
    pub(crate) fn new(recording: &Recording) -> Self {
        let mut numbers = HashMap::new();
        let (mut lines, mut shapes) = (Vec::new(), Vec::new());
        for (line, shape) in story(recording) {
            let next = Shape(numbers.len() as u32 + 1);
            shapes.push(*numbers.entry(shape).or_insert(next));
            lines.push(line);
        }
        Self { lines, shapes, called: "op" }
    }

    /// The operations are those of a recovery, whose numbers are not those of the program.
    pub(crate) fn of_recovery(self) -> Self {
        Self { called: "recovery op", ..self }
    }

    pub(crate) fn op(&self, operation: u32) -> String {
        format!("{} {operation}", self.called)
    }

    pub(crate) fn line(&self, operation: u32) -> Option<&Line> {
        self.lines.get((operation as usize).checked_sub(1)?)
    }

    /// One of its own for what is before the first operation and after the last.
    pub(crate) fn shape(&self, operation: u32) -> Shape {
        let at = (operation as usize).checked_sub(1);
        at.and_then(|at| self.shapes.get(at)).copied().unwrap_or(Shape(0))
    }
}

/// One line per operation, with what is equal in other rounds.
fn story(recording: &Recording) -> Vec<(Line, String)> {
    let mut tree = Tree::new(&recording.initial);
    let mut lines = Vec::new();
    // A file that is made without a name is called what it is called later.
    let mut named: HashMap<Node, PathBuf> = HashMap::new();
    for (_, operation) in operations(recording) {
        let action = &operation.action;
        let mut line = line(&tree, action);
        tree.apply(action);
        match action {
            Action::Create { node, .. } => line.path = tree.path(*node).unwrap_or_default(),
            Action::Link { node, .. } => {
                named.entry(*node).or_insert_with(|| line.to.clone().unwrap_or_default());
            }
            _ => {}
        }
        lines.push(line);
    }
    for line in &mut lines {
        let nameless = line.node != Some(Node::ROOT) && line.path.as_os_str().is_empty();
        if nameless && line.node.is_some() {
            let name = line.node.and_then(|node| named.get(&node).cloned());
            line.path = name.unwrap_or_else(|| "(removed file)".into());
        }
    }
    let shapes = lines.into_iter().map(|line| {
        let kind = if line.kind == LineKind::Sync { LineKind::Other } else { line.kind };
        let shape = format!("{kind:?} {}", shape(&line));
        (line, shape)
    });
    shapes.collect()
}

fn line(tree: &Tree, action: &Action) -> Line {
    let path_of = |node: &Node| tree.path(*node).unwrap_or_default();
    let at = |place: &crate::operation::Place| {
        tree.path(place.directory).unwrap_or_default().join(&place.name)
    };
    let mut line = Line {
        kind: LineKind::Other,
        node: None,
        path: PathBuf::new(),
        to: None,
        directory: None,
        holder: None,
        range: None,
    };
    match action {
        Action::Create { node, place, kind, .. } => {
            line.kind = LineKind::Create;
            line.node = Some(*node);
            line.directory = place.as_ref().and_then(|place| tree.path(place.directory));
            line.holder = place.as_ref().map(|place| place.directory);
            if matches!(kind, Kind::Symlink { .. }) {
                line.kind = LineKind::Link;
                line.to = place.as_ref().map(at);
            }
        }
        Action::Write { node, offset, data, .. } => {
            line.kind = LineKind::Write;
            line.node = Some(*node);
            line.path = path_of(node);
            line.range = Some((*offset, offset.saturating_add(data.len() as u64)));
        }
        Action::Rename { node, from, to, .. } => {
            line.kind = LineKind::Rename;
            line.node = Some(*node);
            line.path = at(from);
            line.to = Some(at(to));
            line.directory = tree.path(to.directory);
            line.holder = Some(to.directory);
        }
        Action::Link { node, place } => {
            line.kind = LineKind::Link;
            line.node = Some(*node);
            line.path = path_of(node);
            line.to = Some(at(place));
            line.directory = tree.path(place.directory);
            line.holder = Some(place.directory);
        }
        Action::Remove { node, place } => {
            line.kind = LineKind::Remove;
            line.node = Some(*node);
            line.path = at(place);
            line.directory = tree.path(place.directory);
            line.holder = Some(place.directory);
        }
        Action::Exchange { first, first_place, second_place, .. } => {
            line.kind = LineKind::Exchange;
            line.node = Some(*first);
            line.path = at(first_place);
            line.to = Some(at(second_place));
            line.directory = tree.path(second_place.directory);
            line.holder = Some(second_place.directory);
        }
        Action::Truncate { node, .. } => {
            line.kind = LineKind::Truncate;
            line.node = Some(*node);
            line.path = path_of(node);
        }
        Action::Allocate { node, .. }
        | Action::Zero { node, .. }
        | Action::Mode { node, .. }
        | Action::Attribute { node, .. }
        | Action::SyncPart { node, .. }
        | Action::SyncRange { node, .. }
        | Action::Close { node } => {
            line.node = Some(*node);
            line.path = path_of(node);
        }
        Action::Sync { node, .. } => {
            line.kind = LineKind::Sync;
            line.node = Some(*node);
            line.path = path_of(node);
        }
        Action::SyncAll => line.kind = LineKind::Sync,
    }
    line
}

/// The names without their numbers: `segment-17.log` is written by the code that writes
/// `segment-18.log`.
fn shape(line: &Line) -> String {
    let mut text = line.path.to_string_lossy().into_owned();
    if let Some(to) = &line.to {
        text.push('>');
        text.push_str(&to.to_string_lossy());
    }
    let mut shape = String::with_capacity(text.len());
    for c in text.chars() {
        if !c.is_ascii_digit() {
            shape.push(c);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    shape
}
