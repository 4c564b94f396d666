//! The gitlinks of a git index: repositories that `git status` enters.

use std::path::{Path, PathBuf};

/// A larger index is not read; the search of the project still covers it.
const LARGEST: u64 = 64 << 20;
const GITLINK: u32 = 0o160_000;

/// The paths of all gitlinks, at most `most`. `None` if the index cannot be read.
pub fn gitlinks(index: &Path, most: usize) -> Option<Vec<PathBuf>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = crate::regular_file::open(index).ok()?;
    if file.metadata().ok()?.len() > LARGEST {
        return None;
    }
    file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    parse(&bytes, most)
}

fn parse(bytes: &[u8], most: usize) -> Option<Vec<PathBuf>> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let number = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if bytes.get(..4)? != b"DIRC" {
        return None;
    }
    let (version, count) = (number(4)?, number(8)?);
    if !(2..=4).contains(&version) {
        return None;
    }
    // Longer hashes are announced in the configuration; their entries fail to parse with this size.
    let hash = 20;
    let (mut at, mut links, mut path) = (12, Vec::new(), Vec::new());
    for _ in 0..count {
        let mode = number(at + 24)?;
        let flags_at = at + 40 + hash;
        let flags = u16::from_be_bytes(bytes.get(flags_at..flags_at + 2)?.try_into().ok()?);
        let extended = usize::from(flags & 0x4000 != 0) * 2;
        let mut name_at = flags_at + 2 + extended;
        if version == 4 {
            let (strip, after) = variable_number(bytes, name_at)?;
            path.truncate(path.len().checked_sub(strip)?);
            name_at = after;
        } else {
            path.clear();
        }
        let length = bytes.get(name_at..)?.iter().position(|byte| *byte == 0)?;
        path.extend_from_slice(&bytes[name_at..name_at + length]);
        let end = name_at + length;
        at = match version {
            4 => end + 1,
            // One to eight NULs, so that entries begin at multiples of eight.
            _ => at + (end - at + 8) / 8 * 8,
        };
        if mode == GITLINK && links.len() < most {
            links.push(PathBuf::from(OsStr::from_bytes(&path)));
        }
    }
    Some(links)
}

/// git's encoding of offsets.
fn variable_number(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut byte = *bytes.get(at)?;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        at += 1;
        byte = *bytes.get(at)?;
        value = value.checked_add(1)?.checked_mul(128)? | usize::from(byte & 0x7f);
    }
    Some((value, at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git_dir::tests::{git, repository};

    #[test]
    fn gitlinks_are_found_in_every_version_of_the_index() {
        for version in ["2", "3", "4"] {
            let dir = tempfile::tempdir().unwrap();
            let top = dir.path();
            repository(top);
            for name in ["a/file", "a/file-with-a-longer-name", "z"] {
                std::fs::create_dir_all(top.join(name).parent().unwrap()).unwrap();
                std::fs::write(top.join(name), name).unwrap();
            }
            repository(&top.join("a/inner"));
            repository(&top.join("other"));
            git(top, &["-c", "advice.addEmbeddedRepo=false", "add", "."]);
            git(top, &["update-index", "--index-version", version]);
            let found = gitlinks(&top.join(".git/index"), 100).unwrap();
            assert_eq!(found, [Path::new("a/inner"), Path::new("other")], "version {version}");
            assert_eq!(gitlinks(&top.join(".git/index"), 1).unwrap().len(), 1);
        }
    }

    #[test]
    fn a_damaged_index_is_not_read() {
        let mut bytes = b"DIRC\0\0\0\x04\0\0\xff\xff".to_vec();
        bytes.extend([0xff; 200]);
        assert_eq!(parse(&bytes, 10), None);
        assert_eq!(parse(b"DIRC", 10), None);
        assert_eq!(parse(b"", 10), None);
    }
}
