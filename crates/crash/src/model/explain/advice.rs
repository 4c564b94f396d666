//! Which sync would have helped: only a sync that makes the lost operations durable, when inserted into
//! the recording, is suggested.

use std::path::PathBuf;

use super::Explainer;
use super::cause::{Circumstance, Explained};
use crate::call_stack::CallStacks;
use crate::model::path_text::quoted_path;
use crate::model::replay::{Replay, steps};
use crate::operation::{Action, Entry, Node, Operation, Recording};

/// Files and directories to sync.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Advice(Vec<SyncTarget>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct SyncTarget {
    node: Node,
    /// Set for a directory.
    directory: bool,
    path: PathBuf,
}

impl Advice {
    /// Such as "`data` and the directory `.`".
    pub(super) fn text(&self) -> String {
        let targets = self.0.iter().map(|target| {
            let path = quoted_path(&target.path);
            if target.directory { format!("the directory {path}") } else { path }
        });
        targets.collect::<Vec<_>>().join(" and ")
    }

    /// Whether it only concerns this file.
    pub(super) fn is_of(&self, node: Option<Node>) -> bool {
        matches!(&self.0[..], [one] if !one.directory && Some(one.node) == node)
    }
}

impl Explainer<'_> {
    /// The sync that was missing before the operation that should not have survived, or before the promise.
    pub(super) fn advice(&self, explained: &Explained, operations: &[u32]) -> Option<Advice> {
        let before = match explained.circumstance {
            // The order of stores found by one comparison is unknown.
            Circumstance::Survivor(number) if operations.iter().any(|lost| *lost > number) => {
                return None;
            }
            Circumstance::Survivor(number) => Before::Operation(number),
            Circumstance::Promised(acks) => Before::Acknowledgement(acks),
            Circumstance::Half(_) | Circumstance::Torn => return None,
        };
        let mut targets: Vec<SyncTarget> = Vec::new();
        for number in operations {
            let description = self.descriptions.description(*number)?;
            let target = match (description.holder, description.is_name()) {
                (Some(node), true) => {
                    let path = description.directory.clone().unwrap_or_default();
                    SyncTarget { node, directory: true, path }
                }
                _ => {
                    let (node, path) = (description.node?, description.path.clone());
                    SyncTarget { node, directory: false, path }
                }
            };
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        let one = targets.iter().map(|target| vec![target.clone()]);
        let all = (targets.len() > 1).then(|| targets.clone());
        let found = one.chain(all).find(|targets| self.helps(explained, targets, before));
        found.map(Advice)
    }

    /// Whether one of the lost operations becomes durable if these are synced.
    fn helps(&self, explained: &Explained, targets: &[SyncTarget], before: Before) -> bool {
        let recording = self.with_syncs(targets, before);
        let mut replay = Replay::new(&recording, self.model);
        for step in steps(&recording, &self.volatile) {
            replay.step(&step);
        }
        // The lost operations come before the syncs, so their numbers are unchanged.
        let torn = explained.loss.torn.filter(|(part, _)| replay.id(*part).is_none());
        torn.is_some() || explained.loss.parts.iter().any(|id| !replay.pending.is_pending(*id))
    }

    /// The recording up to a position, with syncs added there.
    fn with_syncs(&self, targets: &[SyncTarget], before: Before) -> Recording {
        let Recording { root, initial, entries, .. } = self.recording;
        let (mut operations, mut acks) = (0, 0);
        let mut place = entries.len();
        for (at, entry) in entries.iter().enumerate() {
            match entry {
                Entry::Operation(_) => operations += 1,
                Entry::Acknowledgement(_) => acks += 1,
                Entry::Label(_) => {}
            }
            let reached = match before {
                Before::Operation(number) => operations == number,
                Before::Acknowledgement(number) => acks == number,
            };
            if reached {
                place = at;
                break;
            }
        }
        let syncs = targets.iter().map(|target| {
            let action = Action::Sync { node: target.node, data_only: false };
            Entry::Operation(Operation { task: 0, call: "fsync".to_owned(), action })
        });
        let entries = entries[..place].iter().cloned().chain(syncs).collect();
        Recording {
            root: root.clone(),
            initial: initial.clone(),
            entries,
            stacks: CallStacks::default(),
            left_running: self.recording.left_running,
            outside: Default::default(),
            initial_is_copy: false,
        }
    }
}

/// A position in a recording.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// Before the operation of this number.
    Operation(u32),
    /// Before the acknowledgement of this number, from 1.
    Acknowledgement(usize),
}
