//! The profiles of file systems compared with real ones: random operations on an ext4, XFS or btrfs,
//! a crash at a random moment, and the resulting state must be one that the model
//! allows.
//!
//! It needs root and loop devices; without them it prints a message and passes.
//! `FIRST_REAL_FS=200` is the number of crashes, `FIRST_REAL_FS_SECONDS=60` the time limit;
//! `FIRST_REAL_FS_SEED` repeats one, `FIRST_REAL_FS_START` the whole sequence that begins there,
//! and `FIRST_REAL_FS_MODEL=ext4:nodelalloc` selects one of the mounts.
//!
//! The other direction is in [`classes`]: every state that the model allows for typical small programs is
//! observed on the real file system.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod classes;
mod disk;
mod workload;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use retake_crash::model::{Model, Point, Tree, allows};

use disk::{Disk, FileSystem};
use workload::{Random, Workload, is_on, read};

/// Bypasses the harness, which hides the output of a passing test.
fn say(text: &str) {
    // A closed stderr has no reader.
    _ = writeln!(std::io::stderr(), "real_file_system: {text}");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A process that another test starts holds the mount for a moment.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A profile and the mount options it is about.
struct Mount {
    model: Model,
    kind: FileSystem,
    options: &'static str,
}

const EXT4: FileSystem = FileSystem::Ext4;

const MOUNTS: [Mount; 6] = [
    Mount { model: Model::Ext4, kind: EXT4, options: "" },
    Mount { model: Model::Ext4DioreadLock, kind: EXT4, options: "dioread_lock" },
    Mount { model: Model::Ext4NoDelayedAllocation, kind: EXT4, options: "nodelalloc" },
    Mount { model: Model::Ext4DataJournal, kind: EXT4, options: "data=journal" },
    Mount { model: Model::Xfs, kind: FileSystem::Xfs, options: "" },
    Mount { model: Model::Btrfs, kind: FileSystem::Btrfs, options: "" },
];

/// Maximum number of crashes, and maximum time in seconds.
struct Limits {
    most: u64,
    seconds: u64,
    only: Option<u64>,
    start: u64,
}

impl Limits {
    fn new() -> Self {
        let only = number("FIRST_REAL_FS_SEED");
        let most = number("FIRST_REAL_FS").or(only.map(|_| 1)).unwrap_or(u64::MAX);
        let seconds = match number("FIRST_REAL_FS_SECONDS") {
            None if most == u64::MAX => 8,
            None => u64::MAX,
            Some(seconds) => seconds,
        };
        let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let start = number("FIRST_REAL_FS_START").unwrap_or_else(now);
        Self { most, seconds, only, start }
    }
}

#[test]
fn every_state_after_a_real_crash_is_allowed_by_the_model() {
    let _alone = one_at_a_time();
    let limits = Limits::new();
    let only = std::env::var("FIRST_REAL_FS_MODEL").ok();
    let chosen = |mount: &&Mount| only.as_deref().is_none_or(|only| only == mount.model.name());
    let mounts: Vec<&Mount> = MOUNTS.iter().filter(chosen).collect();
    // The defaults are what people use: they get half of the time.
    let shares = 1 + mounts.len() as u64;
    for (at, mount) in mounts.iter().enumerate() {
        let seconds = limits.seconds / shares * if at == 0 { 2 } else { 1 };
        let mut disk = match Disk::new(mount.kind, mount.options) {
            Ok(disk) => disk,
            Err(why) => {
                say(&not_here(mount.kind, &why));
                continue;
            }
        };
        crash_at_random(mount, &mut disk, &Limits { seconds: seconds.max(1), ..limits });
    }
}

fn not_here(kind: FileSystem, why: &str) -> String {
    let kind = kind.name();
    format!("SKIP: no {kind} can be mounted here, its profile is not verified: {why}")
}

fn crash_at_random(mount: &Mount, disk: &mut Disk, limits: &Limits) {
    assert!(is_on(&disk.mount_point(), mount.kind));
    let Limits { most, seconds, only, start } = limits;
    let mut wrong = Vec::new();
    let (mut as_written, mut lost_something) = (0, 0);
    let begun = Instant::now();
    let mut crashes = 0;
    while crashes < *most && begun.elapsed().as_secs() < *seconds {
        let seed = only.unwrap_or(start.wrapping_add(crashes.wrapping_mul(0x9e37_79b9)));
        crashes += 1;
        let settle = mount.kind == EXT4 && mount.model != Model::Ext4;
        let mut workload = Workload::new(&disk.mount_point(), mount.kind, seed, settle).unwrap();
        let steps = 3 + Random(seed | 1).below(12);
        for _ in 0..steps {
            workload.step().unwrap();
        }
        let (recording, told) = (workload.recording(), workload.told.clone());
        drop(workload);
        disk.crash().unwrap();
        let found = Tree::new(&read(&disk.mount_point().join("root")).unwrap());
        let point = Point { operation: recording.entries.len() as u32, during: false };
        let kill = allows(&recording, Model::Kill, point, &found);
        as_written += u64::from(kill);
        lost_something += u64::from(!kill);
        // After many operations `posix` allows more states than the search can visit in time.
        let models: &[Model] =
            if steps < 8 { &[mount.model, Model::Posix] } else { &[mount.model] };
        for model in models {
            if !allows(&recording, *model, point, &found) {
                wrong.push(format!(
                    "{model} does not allow what seed {seed} left:\n{}\n{}",
                    told.join("\n"),
                    describe(&found)
                ));
            }
        }
    }
    say(&format!(
        "{}: {crashes} crashes: {as_written} lost nothing, {lost_something} something",
        mount.model
    ));
    assert!(only.is_some() || crashes < 20 || lost_something > 0, "no crash lost anything");
    assert!(wrong.is_empty(), "{} of {crashes}:\n{}", wrong.len(), wrong.join("\n\n"));
}

fn describe(tree: &Tree) -> String {
    let mut text = String::new();
    for found in tree.walk() {
        text += &format!("{:?} {:o} links {}", found.path, found.mode, found.links);
        if let Some(file) = tree.file(found.node) {
            let mut bytes = vec![0; file.size() as usize];
            file.read(0, &mut bytes);
            text += &format!(" size {}:", bytes.len());
            for run in bytes.chunk_by(|one, two| one == two) {
                text += &format!(" {}x{:?}", run.len(), char::from(run[0]));
            }
        }
        text += "\n";
    }
    text
}
