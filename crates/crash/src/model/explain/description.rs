//! Describes the operations of a recording for people.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::model::explain::name_roles::NameRoles;
use crate::model::path_text::quoted_path;
use crate::model::replay::operations;
use crate::model::tree::Tree;
use crate::operation::{Action, Kind, Node, Recording};

/// One operation in words.
#[derive(Clone, Debug)]
pub(crate) struct OperationDescription {
    pub(crate) kind: OperationKind,
    /// The node that it changed; for a name, the named node.
    pub(crate) node: Option<Node>,
    /// The file's name at that time.
    pub(crate) path: PathBuf,
    /// The target of a rename or link.
    pub(crate) to: Option<PathBuf>,
    /// The directory that must be synced to make a name durable.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) holder: Option<Node>,
    /// The bytes of a write.
    pub(crate) range: Option<(u64, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OperationKind {
    Create,
    Write,
    Rename,
    Link,
    Remove,
    Exchange,
    Truncate,
    /// A truncation that makes a file longer.
    Grow,
    /// `fallocate`.
    Allocate,
    /// A hole, or zeros.
    Zero,
    Mode,
    Attribute,
    Close,
    /// Without a node it syncs everything.
    Sync,
    Other,
}

impl OperationDescription {
    /// The operation as a noun: "the rename of `a` to `b`".
    pub(crate) fn noun(&self) -> String {
        let path = quoted_path(&self.path);
        match (self.kind, &self.to, self.range) {
            (OperationKind::Create, _, _) => format!("the creation of {path}"),
            (OperationKind::Write, _, Some((from, to))) => format!("bytes {from}–{to} of {path}"),
            (OperationKind::Rename, Some(to), _) => {
                format!("the rename of {path} to {}", quoted_path(to))
            }
            (OperationKind::Link, Some(to), _) if *to == self.path => format!("the name {path}"),
            (OperationKind::Link, Some(to), _) => format!("the link {} to {path}", quoted_path(to)),
            (OperationKind::Remove, _, _) => format!("the removal of {path}"),
            (OperationKind::Exchange, Some(to), _) => {
                format!("the exchange of {path} and {}", quoted_path(to))
            }
            (OperationKind::Truncate, _, _) => format!("the truncation of {path}"),
            (OperationKind::Grow, _, Some((_, to))) => {
                format!("the growth of {path} to {to} bytes")
            }
            (OperationKind::Allocate, _, Some((from, to))) => {
                format!("the space for bytes {from}–{to} of {path}")
            }
            (OperationKind::Zero, _, Some((from, to))) => {
                format!("the zeros in bytes {from}–{to} of {path}")
            }
            (OperationKind::Mode, _, _) => format!("the mode of {path}"),
            (OperationKind::Attribute, _, _) => format!("an attribute of {path}"),
            (OperationKind::Close, _, _) => format!("the close of {path}"),
            (OperationKind::Sync, _, _) if self.node.is_none() => {
                "the sync of everything".to_owned()
            }
            (OperationKind::Sync, _, _) => format!("the sync of {path}"),
            _ => format!("the writeback of {path}"),
        }
    }

    pub(crate) fn is_name(&self) -> bool {
        matches!(
            self.kind,
            OperationKind::Create
                | OperationKind::Rename
                | OperationKind::Link
                | OperationKind::Remove
                | OperationKind::Exchange
        )
    }
}

/// Every operation of a recording, by number.
#[derive(Clone, Debug)]
pub(crate) struct OperationDescriptions {
    descriptions: Vec<OperationDescription>,
    shapes: Vec<OperationShape>,
    /// The word before an operation's number.
    called: &'static str,
}

/// Equal for operations that do the same in different iterations of a loop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct OperationShape(u32);

impl OperationDescriptions {
    pub(crate) fn new(recording: &Recording) -> Self {
        let mut numbers = HashMap::new();
        let (mut descriptions, mut shapes) = (Vec::new(), Vec::new());
        for (description, shape) in describe_all(recording) {
            let next = OperationShape(numbers.len() as u32 + 1);
            shapes.push(*numbers.entry(shape).or_insert(next));
            descriptions.push(description);
        }
        Self { descriptions, shapes, called: "op" }
    }

    /// The operations belong to a recovery, whose numbers differ from the program's.
    pub(crate) fn of_recovery(self) -> Self {
        Self { called: "recovery op", ..self }
    }

    pub(crate) fn op(&self, operation: u32) -> String {
        format!("{} {operation}", self.called)
    }

    pub(crate) fn description(&self, operation: u32) -> Option<&OperationDescription> {
        self.descriptions.get((operation as usize).checked_sub(1)?)
    }

    /// Positions before the first and after the last operation get a shape of their own.
    pub(crate) fn shape(&self, operation: u32) -> OperationShape {
        let at = (operation as usize).checked_sub(1);
        at.and_then(|at| self.shapes.get(at)).copied().unwrap_or(OperationShape(0))
    }
}

/// The description of each operation, and its shape as text: equal in other iterations of a loop.
fn describe_all(recording: &Recording) -> Vec<(OperationDescription, String)> {
    let mut tree = Tree::new(&recording.initial);
    let mut descriptions = Vec::new();
    // A file created without a name is described by its later name.
    let mut named: HashMap<Node, PathBuf> = HashMap::new();
    for (_, operation) in operations(recording) {
        let action = &operation.action;
        let mut description = describe(&tree, action);
        tree.apply(action);
        match action {
            Action::Create { node, .. } => description.path = tree.path(*node).unwrap_or_default(),
            Action::Link { node, .. } => {
                named.entry(*node).or_insert_with(|| description.to.clone().unwrap_or_default());
            }
            _ => {}
        }
        descriptions.push(description);
    }
    for description in &mut descriptions {
        let nameless =
            description.node != Some(Node::ROOT) && description.path.as_os_str().is_empty();
        if nameless && description.node.is_some() {
            let name = description.node.and_then(|node| named.get(&node).cloned());
            description.path = name.unwrap_or_else(|| "(removed file)".into());
        }
    }
    let roles = NameRoles::new(&descriptions);
    let shapes = descriptions.into_iter().map(|description| {
        let kind = match description.kind {
            OperationKind::Sync | OperationKind::Close => OperationKind::Other,
            kind => kind,
        };
        let shape = format!("{kind:?} {}", roles.shape(&description));
        (description, shape)
    });
    shapes.collect()
}

fn describe(tree: &Tree, action: &Action) -> OperationDescription {
    let path_of = |node: &Node| tree.path(*node).unwrap_or_default();
    let at = |dir_entry: &crate::operation::DirEntry| {
        tree.path(dir_entry.directory).unwrap_or_default().join(&dir_entry.name)
    };
    let mut description = OperationDescription {
        kind: OperationKind::Other,
        node: None,
        path: PathBuf::new(),
        to: None,
        directory: None,
        holder: None,
        range: None,
    };
    match action {
        Action::Create { node, dir_entry, kind, .. } => {
            description.kind = OperationKind::Create;
            description.node = Some(*node);
            description.directory =
                dir_entry.as_ref().and_then(|dir_entry| tree.path(dir_entry.directory));
            description.holder = dir_entry.as_ref().map(|dir_entry| dir_entry.directory);
            if matches!(kind, Kind::Symlink { .. }) {
                description.kind = OperationKind::Link;
                description.to = dir_entry.as_ref().map(at);
            }
        }
        Action::Write { node, offset, data, .. } => {
            description.kind = OperationKind::Write;
            description.node = Some(*node);
            description.path = path_of(node);
            description.range = Some((*offset, offset.saturating_add(data.len() as u64)));
        }
        Action::Rename { node, from, to, .. } => {
            description.kind = OperationKind::Rename;
            description.node = Some(*node);
            description.path = at(from);
            description.to = Some(at(to));
            description.directory = tree.path(to.directory);
            description.holder = Some(to.directory);
        }
        Action::Link { node, dir_entry } => {
            description.kind = OperationKind::Link;
            description.node = Some(*node);
            description.path = path_of(node);
            description.to = Some(at(dir_entry));
            description.directory = tree.path(dir_entry.directory);
            description.holder = Some(dir_entry.directory);
        }
        Action::Remove { node, dir_entry } => {
            description.kind = OperationKind::Remove;
            description.node = Some(*node);
            description.path = at(dir_entry);
            description.directory = tree.path(dir_entry.directory);
            description.holder = Some(dir_entry.directory);
        }
        Action::Exchange { first, first_entry, second_entry, .. } => {
            description.kind = OperationKind::Exchange;
            description.node = Some(*first);
            description.path = at(first_entry);
            description.to = Some(at(second_entry));
            description.directory = tree.path(second_entry.directory);
            description.holder = Some(second_entry.directory);
        }
        Action::Truncate { node, size } => {
            let old = tree.file(*node).map_or(0, |file| file.size());
            description.kind = OperationKind::Truncate;
            if *size > old {
                description.kind = OperationKind::Grow;
                description.range = Some((old, *size));
            }
            description.node = Some(*node);
            description.path = path_of(node);
        }
        Action::Allocate { node, offset, length, .. }
        | Action::Zero { node, offset, length, .. } => {
            description.kind = match action {
                Action::Allocate { .. } => OperationKind::Allocate,
                _ => OperationKind::Zero,
            };
            description.range = Some((*offset, offset.saturating_add(*length)));
            description.node = Some(*node);
            description.path = path_of(node);
        }
        Action::Mode { node, .. } | Action::Attribute { node, .. } | Action::Close { node } => {
            description.kind = match action {
                Action::Mode { .. } => OperationKind::Mode,
                Action::Attribute { .. } => OperationKind::Attribute,
                _ => OperationKind::Close,
            };
            description.node = Some(*node);
            description.path = path_of(node);
        }
        Action::SyncRange { node, .. } => {
            description.node = Some(*node);
            description.path = path_of(node);
        }
        Action::Sync { node, .. } | Action::SyncPart { node, .. } => {
            description.kind = OperationKind::Sync;
            description.node = Some(*node);
            description.path = path_of(node);
        }
        Action::SyncAll => description.kind = OperationKind::Sync,
    }
    description
}
