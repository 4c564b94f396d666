//! What the profile allows for typical small programs, observed on real file systems with default options:
//! every state at least once, or it is listed below with the reason why it cannot be provoked here.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::disk::{Disk, FileSystem};
use crate::workload::Random;
use crate::{not_here, one_at_a_time, say};

const BLOCK: usize = 4096;
/// Several times more crashes than any of the programs ever needed.
const CRASHES: u64 = 1500;

type Push<'a> = dyn FnMut() -> io::Result<()> + 'a;

/// A program on one file `a`, and the resulting state of `a`: `-` if it does not exist, otherwise its size and
/// whether it is old, new or zeros, such as `20480 new`.
struct Program {
    name: &'static str,
    /// The size of `a` before, in bytes; `None` if it does not exist.
    before: Option<usize>,
    /// Calls its second argument where the kernel may write back or commit in the middle.
    run: fn(&Path, &mut Push<'_>) -> io::Result<()>,
    allowed: fn(FileSystem) -> &'static [&'static str],
}

const PROGRAMS: [Program; 6] = [
    Program {
        name: "replace by rename",
        before: Some(BLOCK),
        run: |root, push| {
            fs::write(root.join("t"), [b'n'; 5 * BLOCK])?;
            push()?;
            fs::rename(root.join("t"), root.join("a"))
        },
        allowed: |kind| match kind {
            FileSystem::Ext4 => &["4096 old", "20480 zeros", "20480 new"],
            // The rename allocates nothing.
            _ => &["4096 old", "0", "20480 new"],
        },
    },
    Program {
        name: "rename to a fresh name",
        before: None,
        run: |root, push| {
            fs::write(root.join("t"), [b'n'; 5 * BLOCK])?;
            push()?;
            fs::rename(root.join("t"), root.join("a"))
        },
        allowed: |kind| match kind {
            FileSystem::Ext4 => &["-", "0", "20480 zeros", "20480 new"],
            _ => &["-", "0", "20480 new"],
        },
    },
    Program {
        name: "truncate and rewrite",
        before: Some(BLOCK),
        run: |root, push| {
            let file = OpenOptions::new().write(true).truncate(true).open(root.join("a"))?;
            push()?;
            file.write_all_at(&[b'n'; 5 * BLOCK], 0)
        },
        allowed: |kind| match kind {
            FileSystem::Ext4 => &["4096 old", "0", "20480 zeros", "20480 new"],
            _ => &["4096 old", "0", "20480 new"],
        },
    },
    Program {
        name: "append of a block",
        before: Some(BLOCK),
        run: |root, _| open(root)?.write_all_at(&[b'n'; BLOCK], BLOCK as u64),
        allowed: |kind| match kind {
            FileSystem::Ext4 => &["4096 old", "8192 old zeros", "8192 old new"],
            _ => &["4096 old", "8192 old new"],
        },
    },
    Program {
        name: "append inside a block",
        before: Some(100),
        run: |root, _| open(root)?.write_all_at(&[b'n'; 100], 100),
        allowed: |kind| match kind {
            FileSystem::Ext4 => &["100 old", "200 old zeros", "200 old new"],
            _ => &["100 old", "200 old new"],
        },
    },
    Program {
        name: "overwrite",
        before: Some(BLOCK),
        run: |root, _| open(root)?.write_all_at(&[b'n'; BLOCK], 0),
        allowed: |_| &["4096 old", "4096 new"],
    },
];

fn open(root: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(root.join("a"))
}

/// What the kernel may do by itself at any moment, in any order: write back, commit.
fn push(root: &Path, kind: FileSystem, random: &mut Random) -> io::Result<()> {
    for _ in 0..random.below(3) {
        if random.below(2) == 0 {
            let Ok(file) = open(root) else { continue };
            let wait = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            let flags = if random.below(3) == 0 { wait } else { libc::SYNC_FILE_RANGE_WRITE };
            // SAFETY: the descriptor is open.
            unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
        } else {
            // A new file must be committed in any case.
            let name = root.join(format!("noise{}", random.below(u64::MAX)));
            let noise = File::create(name)?;
            kind.commit(&noise)?;
        }
    }
    Ok(())
}

fn left(root: &Path) -> String {
    let Ok(bytes) = fs::read(root.join("a")) else { return "-".to_owned() };
    let mut text = bytes.len().to_string();
    for run in bytes.chunk_by(|one, two| one == two) {
        text += match run[0] {
            b'o' => " old",
            b'n' => " new",
            0 => " zeros",
            _ => " something else",
        };
    }
    text
}

fn crash_once(disk: &mut Disk, program: &Program, seed: u64) -> io::Result<String> {
    let root = disk.mount_point().join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir(&root)?;
    if let Some(size) = program.before {
        fs::write(root.join("a"), vec![b'o'; size])?;
    }
    // SAFETY: no arguments.
    unsafe { libc::sync() };
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9) | 1);
    let kind = disk.kind;
    (program.run)(&root, &mut || push(&root, kind, &mut random))?;
    push(&root, kind, &mut random)?;
    disk.crash().map_err(io::Error::other)?;
    Ok(left(&root))
}

#[test]
fn states_allowed_by_the_model_occur_on_real_file_systems() {
    let _alone = one_at_a_time();
    for kind in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
        match Disk::new(kind, "") {
            Ok(mut disk) => see_all(&mut disk),
            Err(why) => say(&not_here(kind, &why)),
        }
    }
}

fn see_all(disk: &mut Disk) {
    let kind = disk.kind.name();
    for program in &PROGRAMS {
        let allowed: BTreeSet<String> =
            (program.allowed)(disk.kind).iter().map(|state| (*state).to_owned()).collect();
        let mut seen = BTreeSet::new();
        let mut crashes = 0;
        while seen != allowed && crashes < CRASHES {
            let found = crash_once(disk, program, crashes).unwrap();
            assert!(allowed.contains(&found), "{kind}, {}: {found}", program.name);
            seen.insert(found);
            crashes += 1;
        }
        say(&format!("{kind}, {}: all of {allowed:?} in {crashes} crashes", program.name));
        let missing: Vec<_> = allowed.difference(&seen).collect();
        assert!(missing.is_empty(), "{kind}, {}: never seen: {missing:?}", program.name);
    }
}
