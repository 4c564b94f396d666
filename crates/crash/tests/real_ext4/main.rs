//! The `ext4` profile against the real thing: random operations on an ext4 of its own, a crash at a
//! random moment, and what is found then must be a state that the model allows.
//!
//! It needs root and loop devices; where they cannot be had it says so and passes.
//! `FIRST_REAL_EXT4=200` is how many crashes to try, `FIRST_REAL_EXT4_SECONDS=60` for how long;
//! `FIRST_REAL_EXT4_SEED` repeats one, `FIRST_REAL_EXT4_START` the whole sequence that begins there.

mod disk;
mod workload;

use std::io::Write;
use std::time::Instant;

use retake_crash::model::{Model, Point, Tree, allows};

use disk::Disk;
use workload::{Random, Workload, is_ext4, read};

/// Past the harness, which shows nothing of a test that passes.
fn say(text: &str) {
    // Without anybody who listens there is nobody to tell.
    _ = writeln!(std::io::stderr(), "real_ext4: {text}");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn what_a_real_crash_leaves_is_allowed() {
    let only = number("FIRST_REAL_EXT4_SEED");
    let most = number("FIRST_REAL_EXT4").or(only.map(|_| 1)).unwrap_or(u64::MAX);
    let seconds = match number("FIRST_REAL_EXT4_SECONDS") {
        None if most == u64::MAX => 5,
        None => u64::MAX,
        Some(seconds) => seconds,
    };
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let start = number("FIRST_REAL_EXT4_START").unwrap_or_else(now);
    let mut disk = match Disk::new() {
        Ok(disk) => disk,
        Err(why) => return say(&format!("no ext4 can be mounted here, none is crashed: {why}")),
    };
    assert!(is_ext4(&disk.mount_point()));
    let mut wrong = Vec::new();
    let (mut as_written, mut lost_something) = (0, 0);
    let begun = Instant::now();
    let mut crashes = 0;
    while crashes < most && begun.elapsed().as_secs() < seconds {
        let at = crashes;
        crashes += 1;
        let seed = only.unwrap_or(start.wrapping_add(at.wrapping_mul(0x9e37_79b9)));
        let mut workload = Workload::new(&disk.mount_point(), seed).unwrap();
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
        // `posix` allows so many states after many operations that looking takes too long.
        let models: &[Model] =
            if steps < 8 { &[Model::Ext4, Model::Posix] } else { &[Model::Ext4] };
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
    say(&format!("{crashes} crashes: {as_written} lost nothing, {lost_something} something"));
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
