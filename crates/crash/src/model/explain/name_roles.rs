//! Names by their role, without details that differ between two iterations of the same code.
//!
//! Numbers, hashes and the random part of temporary names do not count, and a file that is renamed to
//! a target counts as the temporary file of that target, if such names never repeat.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};

use super::description::{OperationDescription, OperationKind};
use crate::operation::Node;

/// This many names that are renamed to one target are considered random.
const RANDOM: usize = 3;
/// Maximum length of the name of a directory for the first digits of hashes, as in `objects/3f/`.
const FAN_OUT: usize = 3;

pub(super) struct NameRoles {
    /// Directories that contain hashes as names, and are named by their first digits.
    fan_out: BTreeSet<PathBuf>,
    /// By node: the name it is finally renamed or linked to, if its own names are random.
    becomes: HashMap<Node, String>,
}

impl NameRoles {
    pub(super) fn new(descriptions: &[OperationDescription]) -> Self {
        let paths =
            descriptions.iter().flat_map(|one| [Some(&one.path), one.to.as_ref()]).flatten();
        let mut fan_out = BTreeSet::new();
        for path in paths {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            if let (Some(name), Some(parent)) = (name, path.parent())
                && is_hash(&name)
                && parent.file_name().is_some_and(|parent| is_fan_out(&parent.to_string_lossy()))
            {
                fan_out.insert(parent.to_owned());
            }
        }
        let mut roles = Self { fan_out, becomes: HashMap::new() };
        let mut targets: BTreeMap<String, BTreeMap<String, Vec<Node>>> = BTreeMap::new();
        let leads = |one: &&OperationDescription| {
            matches!(one.kind, OperationKind::Rename | OperationKind::Link)
        };
        for one in descriptions.iter().filter(leads) {
            if let (Some(node), Some(to)) = (one.node, &one.to) {
                let names = targets.entry(roles.path(to)).or_default();
                names.entry(roles.path(&one.path)).or_default().push(node);
            }
        }
        for (target, names) in targets.into_iter().filter(|(_, names)| names.len() >= RANDOM) {
            roles.becomes.extend(names.into_values().flatten().map(|node| (node, target.clone())));
        }
        roles
    }

    /// Equal for operations on names of the same role.
    pub(super) fn shape(&self, description: &OperationDescription) -> String {
        let becomes = description.node.and_then(|node| self.becomes.get(&node));
        let mut shape = match becomes {
            Some(target) => format!("temporary name of {target}"),
            None => self.path(&description.path),
        };
        if let Some(to) = &description.to {
            shape.push('>');
            shape.push_str(&self.path(to));
        }
        shape
    }

    fn path(&self, path: &Path) -> String {
        let mut shape = String::new();
        let mut so_far = PathBuf::new();
        for component in path.components() {
            so_far.push(component);
            shape.push('/');
            match component {
                Component::Normal(_) if self.fan_out.contains(&so_far) => shape.push('#'),
                Component::Normal(name) => shape.push_str(&name_shape(&name.to_string_lossy())),
                _ => shape.push_str(&component.as_os_str().to_string_lossy()),
            }
        }
        shape
    }
}

/// Equal for paths whose names differ only in numbers, hashes or random parts.
pub fn path_shape(path: &Path) -> String {
    let names = path.components().map(|one| name_shape(&one.as_os_str().to_string_lossy()));
    names.collect::<Vec<_>>().join("/")
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_fan_out(name: &str) -> bool {
    name.len() <= FAN_OUT && is_hex(name)
}

/// Digits and letters of a hash, or of a UUID.
fn is_hash(name: &str) -> bool {
    let digits = name.replace('-', "");
    digits.len() >= 16 && is_hex(&digits) && digits.bytes().any(|byte| byte.is_ascii_digit())
}

/// `segment-17.log` and `segment-18.log` have the same shape.
fn name_shape(name: &str) -> String {
    if is_hash(name) {
        return "#".to_owned();
    }
    let mut shape = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end.max(if end == 0 { first.len_utf8() } else { 0 }));
        rest = after;
        if is_random(word) {
            shape.push('#');
            continue;
        }
        for c in word.chars() {
            if !c.is_ascii_digit() {
                shape.push(c);
            } else if !shape.ends_with('#') {
                shape.push('#');
            }
        }
    }
    shape
}

/// A name from `mkstemp`, or a part of a hash.
fn is_random(word: &str) -> bool {
    let has = |of: fn(&u8) -> bool| word.bytes().any(|byte| of(&byte));
    let (digit, lower) = (has(u8::is_ascii_digit), has(u8::is_ascii_lowercase));
    let mixed = digit && lower && has(u8::is_ascii_uppercase);
    word.len() >= 6 && (mixed || (word.len() >= 8 && digit && is_hex(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_hashes_and_random_parts_do_not_count() {
        for (one, other) in [
            ("segment-17.log", "segment-018.log"),
            (
                "3f786850e387550fdab836ed7e6dc881de23001b",
                "89e6c98d92887913cadf06b2adb97f26cde4849b",
            ),
            ("4d186321-c1a7-4f31-babe-dcbafe77ffff", "0f36b2a0-aaaa-4000-8000-bbbbccccdddd"),
            ("tmp_obj_aB3dEf", "tmp_obj_Zk9xQ1"),
            ("pack-3f786850e387550f.idx", "pack-89e6c98d92887913.idx"),
        ] {
            assert_eq!(name_shape(one), name_shape(other));
        }
        for (one, other) in [("data", "index"), ("Cargo.lock", "Cargo.toml"), ("a-1", "b-1")] {
            assert_ne!(name_shape(one), name_shape(other));
        }
        assert_eq!(name_shape("caf\u{e9} 7"), "caf\u{e9} #");
    }
}
