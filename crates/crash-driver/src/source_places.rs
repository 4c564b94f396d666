//! The source lines that the operations of a recording were called from, and a sentence about them for a
//! finding: "`store.rs:212 commit()` renames before `store.rs:205 put()` has synced".

use retake_crash::operation::{Action, Entry, Node, Operation, Recording};
use retake_symbols::Symbols;
use retake_types::loop_record::crash::{CrashFinding, OperationPlace, SourcePlace, TimelineRow};

/// By operation. Empty for a recording without call stacks.
#[derive(Clone, Debug, Default)]
pub struct SourcePlaces {
    places: Vec<Option<SourcePlace>>,
    /// Programs and libraries that have changed since the recording: they have no lines.
    pub changed: Vec<String>,
    /// Operations whose stack was not kept.
    pub left_out: u64,
}

impl SourcePlaces {
    /// Resolves every stack of a recording.
    pub fn find(recording: &Recording) -> Self {
        let mut symbols = Symbols::new(&recording.stacks);
        let places = symbols.places().into_iter().map(|place| {
            place.map(|place| SourcePlace {
                file: place.file.to_string_lossy().into_owned(),
                line: place.line,
                function: place.function,
            })
        });
        let places = places.collect();
        let mut changed: Vec<String> =
            symbols.changed().iter().map(|path| path.to_string_lossy().into_owned()).collect();
        changed.sort();
        Self { places, changed, left_out: recording.stacks.left_out }
    }

    /// Operations are numbered from 1.
    pub fn of(&self, operation: u32) -> Option<&SourcePlace> {
        self.places.get((operation as usize).checked_sub(1)?)?.as_ref()
    }

    /// Adds source places to the rows of a timeline.
    pub fn add_to(&self, rows: &mut [TimelineRow]) {
        for row in rows {
            row.source = row.number.and_then(|number| self.of(number)).cloned();
        }
    }

    /// Adds the source places of its operations to a finding.
    pub(crate) fn complete(&self, finding: &mut CrashFinding, recording: &Recording) {
        // A recovery, or a run with a fault, has its own operations.
        if self.places.is_empty() || finding.recovery || finding.fault.is_some() {
            return;
        }
        let concerned = finding.named_operations.iter().copied().chain(finding.survivor);
        let mut concerned: Vec<u32> = concerned.collect();
        if concerned.is_empty() {
            concerned.push(finding.operation);
        }
        concerned.sort_unstable();
        concerned.dedup();
        let place = |operation: u32| {
            let place = self.of(operation)?.clone();
            Some(OperationPlace { operation, place })
        };
        finding.places = concerned.into_iter().filter_map(place).collect();
        finding.source_sentence = self.sentence(finding, recording).unwrap_or_default();
    }

    fn sentence(&self, finding: &CrashFinding, recording: &Recording) -> Option<String> {
        let operations: Vec<&Operation> = operations(recording).collect();
        let operation = |number: u32| operations.get((number as usize).checked_sub(1)?).copied();
        let Some(lost) = finding.named_operations.iter().find(|number| self.of(**number).is_some())
        else {
            // Nothing is lost: the crash comes right after this operation.
            let last = finding.named_operations.is_empty().then_some(finding.operation)?;
            let verb = verb(&operation(last)?.action);
            return Some(format!("the crash comes after `{}` {verb}", self.of(last)?));
        };
        let writes = self.of(*lost)?;
        let action = &operation(*lost)?.action;
        let from = finding.survivor.unwrap_or(*lost);
        let late = self.first_sync(&operations, from, action).map(|place| place.to_string());
        if let Some(survivor) = finding.survivor {
            let verb_after = verb(&operation(survivor)?.action);
            let Some(after) = self.of(survivor) else {
                return Some(format!("`{writes}` {} what is lost", verb(action)));
            };
            return Some(match late {
                Some(sync) => format!("`{after}` {verb_after} before `{sync}` has synced"),
                None => format!(
                    "`{after}` {verb_after}, and nothing has synced what `{writes}` {}",
                    verb(action)
                ),
            });
        }
        let promised = acks_before(recording, *lost) < finding.acknowledgements;
        Some(match late.filter(|_| promised) {
            Some(sync) => format!(
                "what `{writes}` {} is acknowledged before `{sync}` has synced",
                verb(action)
            ),
            None if promised => format!(
                "what `{writes}` {} is acknowledged, and nothing has synced it",
                verb(action)
            ),
            None => format!("`{writes}` {} what is lost", verb(action)),
        })
    }

    /// The first sync of an action's file or directory after an operation.
    fn first_sync(
        &self,
        operations: &[&Operation],
        after: u32,
        action: &Action,
    ) -> Option<&SourcePlace> {
        let concerned = synced_by(action);
        let later = (after + 1..).zip(operations.iter().skip(after as usize));
        let mut syncs = later.filter(|(_, operation)| match &operation.action {
            Action::Sync { node, .. } | Action::SyncPart { node, .. } => concerned.contains(node),
            Action::SyncAll => true,
            _ => false,
        });
        self.of(syncs.next()?.0)
    }
}

fn operations(recording: &Recording) -> impl Iterator<Item = &Operation> {
    recording.entries.iter().filter_map(|entry| match entry {
        Entry::Operation(operation) => Some(operation),
        _ => None,
    })
}

fn acks_before(recording: &Recording, operation: u32) -> usize {
    let (mut number, mut acks) = (0, 0);
    for entry in &recording.entries {
        match entry {
            Entry::Operation(_) => number += 1,
            Entry::Acknowledgement(_) => acks += 1,
            Entry::Label(_) => {}
        }
        if number == operation {
            break;
        }
    }
    acks
}

/// What must be synced to make an action durable: the directory of a name, otherwise the file.
fn synced_by(action: &Action) -> Vec<Node> {
    match action {
        Action::Create { dir_entry: Some(dir_entry), .. }
        | Action::Link { dir_entry, .. }
        | Action::Remove { dir_entry, .. } => vec![dir_entry.directory],
        Action::Rename { from, to, .. } => vec![from.directory, to.directory],
        Action::Exchange { first_entry, second_entry, .. } => {
            vec![first_entry.directory, second_entry.directory]
        }
        Action::Create { node, .. }
        | Action::Write { node, .. }
        | Action::Truncate { node, .. }
        | Action::Allocate { node, .. }
        | Action::Zero { node, .. }
        | Action::Mode { node, .. }
        | Action::Attribute { node, .. } => vec![*node],
        Action::Sync { .. }
        | Action::SyncPart { .. }
        | Action::SyncRange { .. }
        | Action::SyncAll
        | Action::Close { .. } => Vec::new(),
    }
}

/// A verb for an action, following its place.
fn verb(action: &Action) -> &'static str {
    match action {
        Action::Create { .. } => "creates",
        Action::Write { .. } => "writes",
        Action::Truncate { .. } => "truncates",
        Action::Allocate { .. } => "allocates",
        Action::Zero { .. } => "zeroes",
        Action::Link { .. } => "links",
        Action::Remove { .. } => "removes",
        Action::Rename { .. } | Action::Exchange { .. } => "renames",
        Action::Mode { .. } | Action::Attribute { .. } => "changes",
        Action::Sync { .. } | Action::SyncPart { .. } | Action::SyncAll => "syncs",
        Action::SyncRange { .. } => "starts to write",
        Action::Close { .. } => "closes",
    }
}

#[cfg(test)]
mod tests {
    use retake_crash::operation::{DirEntry, Kind, WriteSync};

    use super::*;

    fn entry(name: &str) -> DirEntry {
        DirEntry { directory: Node::ROOT, name: name.into() }
    }

    /// Create, write, rename, say, sync, sync the directory.
    fn recording() -> Recording {
        let node = Node(1);
        let actions = [
            Action::Create { node, mode: 0, kind: Kind::File, dir_entry: Some(entry("t")) },
            Action::Write {
                node,
                offset: 0,
                data: b"x"[..].into(),
                sync: WriteSync::None,
                mapped: false,
            },
            Action::Rename { node, from: entry("t"), to: entry("f"), replaced: None },
            Action::Sync { node, data_only: false },
            Action::Sync { node: Node::ROOT, data_only: false },
        ];
        let operation =
            |action| Entry::Operation(Operation { task: 1, call: "call".into(), action });
        let mut entries: Vec<Entry> = actions.into_iter().map(operation).collect();
        entries.insert(3, Entry::Acknowledgement(b"saved".to_vec()));
        Recording {
            root: "/r".into(),
            initial: Vec::new(),
            entries,
            stacks: Default::default(),
            left_running: Default::default(),
            outside: Default::default(),
            initial_is_copy: false,
        }
    }

    fn places(lines: [Option<u32>; 5]) -> SourcePlaces {
        let place = |line: Option<u32>| {
            let function = Some("commit".to_owned());
            line.map(|line| SourcePlace {
                file: "/src/store.rs".into(),
                line: Some(line),
                function,
            })
        };
        SourcePlaces { places: lines.into_iter().map(place).collect(), ..Default::default() }
    }

    fn sentence(places: &SourcePlaces, finding: CrashFinding) -> String {
        let mut finding = finding;
        places.complete(&mut finding, &recording());
        finding.source_sentence
    }

    #[test]
    fn a_finding_names_the_lines_and_the_sync_that_comes_too_late() {
        let all = places([10, 11, 12, 14, 15].map(Some));
        let survivor =
            CrashFinding { named_operations: vec![2], survivor: Some(3), ..Default::default() };
        assert_eq!(
            sentence(&all, survivor.clone()),
            "`store.rs:12 commit()` renames before `store.rs:14 commit()` has synced"
        );
        let without = places([Some(10), Some(11), Some(12), None, None]);
        assert_eq!(
            sentence(&without, survivor),
            "`store.rs:12 commit()` renames, and nothing has synced what `store.rs:11 commit()` writes"
        );
        let promised =
            CrashFinding { named_operations: vec![3], acknowledgements: 1, ..Default::default() };
        assert_eq!(
            sentence(&all, promised.clone()),
            "what `store.rs:12 commit()` renames is acknowledged before `store.rs:15 commit()` has synced"
        );
        let half = CrashFinding { acknowledgements: 0, ..promised };
        assert_eq!(sentence(&all, half), "`store.rs:12 commit()` renames what is lost");
        let stopped = CrashFinding { operation: 2, ..Default::default() };
        assert_eq!(sentence(&all, stopped), "the crash comes after `store.rs:11 commit()` writes");
        let fault =
            CrashFinding { operation: 2, fault: Some(Default::default()), ..Default::default() };
        assert_eq!(sentence(&all, fault), "");
    }
}
