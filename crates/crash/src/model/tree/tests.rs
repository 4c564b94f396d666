use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::operation::WriteSync;

fn dir_entry(directory: u64, name: &str) -> DirEntry {
    DirEntry { directory: Node(directory), name: name.into() }
}

fn create(node: u64, kind: Kind, dir_entry: DirEntry) -> Action {
    Action::Create { node: Node(node), mode: 0o644, kind, dir_entry: Some(dir_entry) }
}

fn write(node: u64, offset: u64, data: &[u8]) -> Action {
    Action::Write {
        node: Node(node),
        offset,
        data: data.into(),
        sync: WriteSync::None,
        mapped: false,
    }
}

fn rename(node: u64, from: DirEntry, to: DirEntry) -> Action {
    Action::Rename { node: Node(node), from, to, replaced: None }
}

fn tree(actions: &[Action]) -> Tree {
    let mut tree = Tree::new(&[]);
    actions.iter().for_each(|action| tree.apply(action));
    tree
}

fn listing(tree: &Tree) -> Vec<String> {
    tree.walk()
        .skip(1)
        .map(|found| {
            let what = match found.kind {
                TreeEntryKind::Directory => "directory".to_owned(),
                TreeEntryKind::Symlink(target) => format!("to {}", target.display()),
                TreeEntryKind::File(file) => {
                    let mut text = vec![0; file.size() as usize];
                    file.read(0, &mut text);
                    format!("{:?}", String::from_utf8_lossy(&text))
                }
            };
            format!("{} {} {what}", found.path.display(), found.links)
        })
        .collect()
}

fn attributes(tree: &mut Tree, node: Node, found: &TreeEntry<'_>) {
    for (name, value) in found.attributes {
        tree.apply(&Action::Attribute { node, name: name.clone(), value: Some(value.clone()) });
    }
}

/// The same tree built again, with other node numbers, from a walk.
fn again(tree: &Tree) -> Tree {
    let mut fresh = Tree::new(&[]);
    let mut numbers = BTreeMap::from([(Node::ROOT, Node::ROOT)]);
    for found in tree.walk() {
        let known = numbers.len() as u64 + 100;
        let node = *numbers.entry(found.node).or_insert(Node(known));
        let new = node == Node(known);
        if found.path.as_os_str().is_empty() {
            fresh.apply(&Action::Mode { node, mode: found.mode });
            attributes(&mut fresh, node, &found);
            continue;
        }
        let parent = tree.find(found.path.parent().unwrap()).unwrap().node;
        let dir_entry = DirEntry {
            directory: numbers[&parent],
            name: found.path.file_name().unwrap().to_owned(),
        };
        if !new {
            fresh.apply(&Action::Link { node, dir_entry });
            continue;
        }
        let kind = match found.kind {
            TreeEntryKind::Directory => Kind::Directory,
            TreeEntryKind::File(_) => Kind::File,
            TreeEntryKind::Symlink(target) => Kind::Symlink { target: target.to_owned() },
        };
        fresh.apply(&Action::Create { node, mode: found.mode, kind, dir_entry: Some(dir_entry) });
        if let TreeEntryKind::File(file) = found.kind {
            for (offset, data) in file.extents() {
                fresh.apply(&write(node.0, offset, data));
            }
            fresh.apply(&Action::Truncate { node, size: file.size() });
        }
        attributes(&mut fresh, node, &found);
    }
    fresh
}

#[test]
fn a_rename_replaces_and_a_removed_file_keeps_its_bytes_for_other_names() {
    let tree = tree(&[
        create(1, Kind::File, dir_entry(0, "a")),
        create(2, Kind::File, dir_entry(0, "b")),
        write(1, 0, b"one"),
        write(2, 1, b"two"),
        Action::Link { node: Node(2), dir_entry: dir_entry(0, "c") },
        rename(1, dir_entry(0, "a"), dir_entry(0, "b")),
    ]);
    assert_eq!(listing(&tree), ["b 1 \"one\"", "c 1 \"\\0two\""]);
}

#[test]
fn no_directory_becomes_its_own_ancestor() {
    let mut tree = tree(&[
        create(1, Kind::Directory, dir_entry(0, "a")),
        create(2, Kind::Directory, dir_entry(1, "b")),
        rename(1, dir_entry(0, "a"), dir_entry(2, "a")),
    ]);
    assert_eq!(listing(&tree), ["a 1 directory", "a/b 1 directory"]);
    tree.apply(&Action::Exchange {
        first: Node(1),
        first_entry: dir_entry(0, "a"),
        second: Node(2),
        second_entry: dir_entry(1, "b"),
    });
    assert_eq!(listing(&tree), ["a 1 directory", "a/b 1 directory"]);
}

#[test]
fn a_whole_directory_moves_with_its_digest() {
    let moved = tree(&[
        create(1, Kind::Directory, dir_entry(0, "a")),
        create(2, Kind::File, dir_entry(1, "f")),
        create(3, Kind::Directory, dir_entry(0, "z")),
        rename(1, dir_entry(0, "a"), dir_entry(3, "a")),
        write(2, 5000, b"x"),
    ]);
    assert_eq!(moved.digest(), again(&moved).digest());
    assert_eq!(moved.path(Node(2)), Some("z/a/f".into()));
}

#[test]
fn two_names_of_one_file_are_not_two_equal_files() {
    let one = tree(&[
        create(1, Kind::File, dir_entry(0, "a")),
        Action::Link { node: Node(1), dir_entry: dir_entry(0, "b") },
    ]);
    let two =
        tree(&[create(1, Kind::File, dir_entry(0, "a")), create(2, Kind::File, dir_entry(0, "b"))]);
    assert_ne!(one.digest(), two.digest());
}

#[test]
fn a_clone_of_a_tree_is_independent() {
    let mut now = tree(&[create(1, Kind::File, dir_entry(0, "a")), write(1, 0, b"old")]);
    let then = now.clone();
    now.apply(&write(1, 0, b"new"));
    now.apply(&Action::Remove { node: Node(1), dir_entry: dir_entry(0, "a") });
    assert_eq!(listing(&then), ["a 1 \"old\""]);
    assert_ne!(then.digest(), now.digest());
    assert_eq!(now.digest(), Tree::new(&[]).digest());
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let node = || (0..8_u64).prop_map(Node);
    let dir_entry = || {
        (prop_oneof![Just(0_u64), 0..8_u64], "[abc]").prop_map(|(directory, name)| DirEntry {
            directory: Node(directory),
            name: name.into(),
        })
    };
    let kind = prop_oneof![
        1 => Just(Kind::Directory),
        3 => Just(Kind::File),
        1 => Just(Kind::Symlink { target: "a".into() })
    ];
    let action = prop_oneof![
        4 => (1..8_u64, kind, dir_entry()).prop_map(|(node, kind, dir_entry)| create(node, kind, dir_entry)),
        2 => (node(), 0..9000_u64, 0..3_u8).prop_map(|(n, at, byte)| write(n.0, at, &[byte; 700])),
        1 => (node(), 0..9000_u64).prop_map(|(node, size)| Action::Truncate { node, size }),
        1 => (node(), 0..9000_u64, any::<bool>()).prop_map(|(node, offset, keep_size)| {
            Action::Zero { node, offset, length: 3000, keep_size, hole: true }
        }),
        2 => (node(), dir_entry()).prop_map(|(node, dir_entry)| Action::Link { node, dir_entry }),
        2 => (node(), dir_entry()).prop_map(|(node, dir_entry)| Action::Remove { node, dir_entry }),
        3 => (node(), dir_entry(), dir_entry()).prop_map(|(n, from, to)| rename(n.0, from, to)),
        2 => (node(), dir_entry(), node(), dir_entry()).prop_map(
            |(first, first_entry, second, second_entry)| Action::Exchange {
                first,
                first_entry,
                second,
                second_entry
            }
        ),
        1 => (node(), 0..3_u32).prop_map(|(node, mode)| Action::Mode { node, mode }),
        1 => (node(), any::<bool>()).prop_map(|(node, set)| Action::Attribute {
            node,
            name: "user.a".into(),
            value: set.then(|| Arc::from(*b"x"))
        }),
    ];
    prop::collection::vec(action, 0..40)
}

/// No recorder can record a directory with two parents.
fn is_a_link_to_a_directory(tree: &Tree, action: &Action) -> bool {
    match action {
        Action::Link { node, .. } => tree.is_directory(*node),
        Action::Create { node, .. } => tree.file(*node).is_some() || tree.is_directory(*node),
        _ => false,
    }
}

proptest! {
    #[test]
    fn the_digest_follows_every_change(actions in actions()) {
        let mut tree = Tree::new(&[]);
        for action in &actions {
            if is_a_link_to_a_directory(&tree, action) {
                continue;
            }
            tree.apply(action);
            let fresh = again(&tree);
            prop_assert_eq!(listing(&fresh), listing(&tree));
            // The order in which names share files depends on directory numbers, which `again` reassigns.
            if tree.walk().all(|found| tree.links(found.node) < 2) {
                prop_assert_eq!(fresh.digest(), tree.digest());
            }
            for found in tree.walk() {
                prop_assert_eq!(tree.find(&found.path).unwrap().node, found.node);
                let paths: BTreeSet<_> =
                    tree.walk().filter(|one| one.node == found.node).map(|one| one.path).collect();
                prop_assert!(paths.contains(&tree.path(found.node).unwrap()));
            }
        }
    }
}
