use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::call_stack::{
    CallStacks, CapturedStack, CodeImage, CodeMapping, ScriptLine, StackBlock,
};
use crate::operation::{Action, Content, DirEntry, Kind, Node, Operation, WriteSync};
use crate::recorded_bytes::RecordedBytes;

fn node() -> impl Strategy<Value = Node> {
    any::<u64>().prop_map(Node)
}

fn name() -> impl Strategy<Value = OsString> {
    prop::collection::vec(1_u8.., 0..9).prop_map(OsString::from_vec)
}

fn dir_entry() -> impl Strategy<Value = DirEntry> {
    (node(), name()).prop_map(|(directory, name)| DirEntry { directory, name })
}

fn data() -> impl Strategy<Value = RecordedBytes> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Into::into)
}

fn value() -> impl Strategy<Value = Arc<[u8]>> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Into::into)
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Directory),
        Just(Kind::File),
        name().prop_map(|target| Kind::Symlink { target }),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let sync = prop_oneof![Just(WriteSync::None), Just(WriteSync::Data), Just(WriteSync::Full)];
    prop_oneof![
        (node(), any::<u32>(), kind(), prop::option::of(dir_entry())).prop_map(
            |(node, mode, kind, dir_entry)| Action::Create { node, mode, kind, dir_entry }
        ),
        (node(), any::<u64>(), data(), sync, any::<bool>()).prop_map(
            |(node, offset, data, sync, mapped)| Action::Write { node, offset, data, sync, mapped }
        ),
        (node(), any::<u64>()).prop_map(|(node, size)| Action::Truncate { node, size }),
        (node(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
            |(node, offset, length, keep_size)| Action::Allocate {
                node,
                offset,
                length,
                keep_size
            }
        ),
        (node(), any::<u64>(), any::<u64>(), any::<bool>(), any::<bool>()).prop_map(
            |(node, offset, length, keep_size, hole)| Action::Zero {
                node,
                offset,
                length,
                keep_size,
                hole
            }
        ),
        (node(), dir_entry()).prop_map(|(node, dir_entry)| Action::Link { node, dir_entry }),
        (node(), dir_entry()).prop_map(|(node, dir_entry)| Action::Remove { node, dir_entry }),
        (node(), dir_entry(), dir_entry(), prop::option::of(node()))
            .prop_map(|(node, from, to, replaced)| Action::Rename { node, from, to, replaced }),
        (node(), dir_entry(), node(), dir_entry()).prop_map(
            |(first, first_entry, second, second_entry)| {
                Action::Exchange { first, first_entry, second, second_entry }
            }
        ),
        (node(), any::<u32>()).prop_map(|(node, mode)| Action::Mode { node, mode }),
        (node(), name(), prop::option::of(value()))
            .prop_map(|(node, name, value)| Action::Attribute { node, name, value }),
        (node(), any::<bool>()).prop_map(|(node, data_only)| Action::Sync { node, data_only }),
        (node(), any::<u64>(), any::<u64>()).prop_map(|(node, offset, length)| Action::SyncRange {
            node,
            offset,
            length
        }),
        (node(), any::<u64>(), any::<u64>()).prop_map(|(node, offset, length)| Action::SyncPart {
            node,
            offset,
            length
        }),
        Just(Action::SyncAll),
        node().prop_map(|node| Action::Close { node }),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        3 => (any::<u32>(), "[a-z0-9]{0,9}", action()).prop_map(|(task, call, action)| {
            Entry::Operation(Operation { task, call, action })
        }),
        1 => any::<String>().prop_map(Entry::Label),
        1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Entry::Acknowledgement),
    ]
}

fn initial() -> impl Strategy<Value = Initial> {
    let content = prop_oneof![
        Just(Content::Directory),
        (any::<u64>(), prop::collection::vec((any::<u64>(), data()), 0..3))
            .prop_map(|(size, extents)| Content::File { size, extents }),
        name().prop_map(|target| Content::Symlink { target }),
    ];
    (node(), any::<u32>(), prop::collection::vec(dir_entry(), 0..3), content)
        .prop_map(|(node, mode, dir_entries, content)| Initial { node, mode, dir_entries, content })
}

fn stacks() -> impl Strategy<Value = CallStacks> {
    let script = ("[a-z./]{1,9}", "[a-z_]{0,5}", any::<u32>())
        .prop_map(|(file, function, line)| ScriptLine { file, function, line });
    let stack = (any::<[u64; 4]>(), any::<u32>(), prop::option::of(script)).prop_map(
        |([instruction, stack, frame, link], image, script)| CapturedStack {
            image,
            instruction,
            stack,
            frame,
            link,
            blocks: vec![image, 7],
            script,
        },
    );
    let mapping = (any::<[u64; 4]>(), name(), any::<i64>()).prop_map(
        |([start, end, offset, size], path, modified)| {
            let path = path.into();
            CodeMapping { start, end, offset, path, size, modified }
        },
    );
    let block = prop::collection::vec((any::<u8>(), any::<u64>()), 0..3);
    (
        prop::collection::vec(mapping, 0..3),
        prop::collection::vec(block, 0..3),
        prop::collection::vec(stack, 1..3),
        prop::collection::vec(any::<u32>(), 0..5),
        any::<u64>(),
    )
        .prop_map(|(mappings, blocks, stacks, operations, left_out)| CallStacks {
            images: vec![CodeImage { mappings }],
            blocks: blocks.into_iter().map(|words| StackBlock { words }).collect(),
            stacks,
            operations,
            left_out,
        })
}

fn recording() -> impl Strategy<Value = Recording> {
    let stacks = prop_oneof![Just(CallStacks::default()), stacks()];
    let left_running = any::<(u32, u32)>();
    let outside = (prop::collection::vec(name(), 0..4), any::<u64>(), any::<u64>());
    let initial = (prop::collection::vec(initial(), 0..4), any::<bool>());
    (name(), initial, prop::collection::vec(entry(), 0..12), stacks, left_running, outside)
        .prop_map(
            |(
                root,
                (initial, initial_is_copy),
                entries,
                stacks,
                (processes, ended),
                (paths, files, behind_links),
            )| {
                Recording {
                    root: root.into(),
                    initial,
                    entries,
                    stacks,
                    left_running: LeftRunning { processes, ended },
                    outside: OutsideWrites {
                        paths: paths.into_iter().map(Into::into).collect(),
                        files,
                        behind_links,
                    },
                    initial_is_copy,
                }
            },
        )
}

proptest! {
    #[test]
    fn logs_round_trip(recording in recording(), memory in 0..100_u64) {
        let bytes = write(Vec::new(), &recording).unwrap();
        let read = read_into(&bytes[..], ByteStore::new(memory, None)).unwrap();
        prop_assert_eq!(read.root, recording.root);
        prop_assert_eq!(read.initial, recording.initial);
        prop_assert_eq!(read.entries, recording.entries);
        prop_assert_eq!(read.stacks, recording.stacks);
        prop_assert_eq!(read.left_running, recording.left_running);
        prop_assert_eq!(read.outside, recording.outside);
        prop_assert_eq!(read.initial_is_copy, recording.initial_is_copy);
    }

    #[test]
    fn no_part_of_a_log_is_a_log(recording in recording(), cut in any::<prop::sample::Index>()) {
        let bytes = write(Vec::new(), &recording).unwrap();
        let error = read(&bytes[..cut.index(bytes.len())]).unwrap_err();
        prop_assert!(matches!(error, LogError::CutShort | LogError::Foreign), "{:?}", error);
    }

    #[test]
    fn a_flipped_bit_is_noticed(
        recording in recording(),
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let mut bytes = write(Vec::new(), &recording).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(read(&bytes[..]).is_err());
    }
}

#[test]
fn files_that_are_not_logs_are_refused_with_the_reason() {
    let empty = Recording {
        root: "/r".into(),
        initial: Vec::new(),
        entries: Vec::new(),
        stacks: CallStacks::default(),
        left_running: LeftRunning::default(),
        outside: OutsideWrites::default(),
        initial_is_copy: false,
    };
    let mut newer = write(Vec::new(), &empty).unwrap();
    newer[16] = 7;
    let said = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(said(&newer).contains("version 7, and this program reads up to 5"), "{}", said(&newer));
    assert_eq!(said(b""), "this is not a crash log");
    assert_eq!(said(b"SQLite format 3\0 and more"), "this is not a crash log");
    let mut longer = write(Vec::new(), &empty).unwrap();
    longer.push(0);
    assert!(said(&longer).contains("something follows"));
}
