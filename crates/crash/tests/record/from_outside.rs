//! Files that are moved into the tree: which part of them survives a power loss depends on what the
//! workload did to them outside.

use std::path::Path;

use retake_crash::model::{CrashStates, ExploreOptions, Model, TreeEntryKind};

use crate::programs::{c, directory};

const MODELS: [Model; 4] = [Model::Ext4, Model::Xfs, Model::Btrfs, Model::Posix];

/// The models under which the file `a`, after everything else was synced, may contain something
/// other than `text`.
fn lost(body: &str) -> Vec<Model> {
    let above = directory();
    let root = above.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let recorded = c(
        &root,
        &format!(
            r#"{body}; must(rename("../out", "a")); int d = open(".", O_RDONLY); must(fsync(d))"#
        ),
    );
    let recording = recorded.unwrap().recording;
    let end = recording.entries.len() as u32;
    let holds = |model: Model| {
        let states = CrashStates::new(&recording, model, ExploreOptions::default()).unwrap();
        states.filter(|state| state.key.point.operation == end).all(|state| {
            let Some(found) = state.tree.find(Path::new("a")) else { return false };
            let mut text = [0; 9];
            let TreeEntryKind::File(file) = found.kind else { return false };
            file.size() == 4 && file.read(0, &mut text) == 4 && &text[..4] == b"text"
        })
    };
    MODELS.into_iter().filter(|model| !holds(*model)).collect()
}

#[test]
fn data_not_synced_outside_the_root_is_not_durable_inside() {
    let not_synced = [
        r#"int f = creat("../out", 0600); must(write(f, "text", 4)); must(close(f))"#,
        // Only the last part.
        r#"int f = creat("../out", 0600); must(write(f, "tex", 3));
           int g = open("../out", O_WRONLY|O_DSYNC); must(pwrite(g, "t", 1, 3))"#,
        r#"int f = open("../out", O_CREAT|O_RDWR, 0600); must(write(f, "xxxx", 4)); must(fsync(f));
           char *m = mmap(0, 4, PROT_READ|PROT_WRITE, MAP_SHARED, f, 0); memcpy(m, "text", 4);
           must(munmap(m, 4))"#,
        r#"int f = open("../out", O_CREAT|O_RDWR, 0600); must(write(f, "text more", 9));
           must(fsync(f)); must(ftruncate(f, 4))"#,
    ];
    for body in not_synced {
        assert_eq!(lost(body), MODELS, "{body}");
    }
}

#[test]
fn data_synced_outside_the_root_is_durable_inside() {
    let synced = [
        r#"int f = creat("../out", 0600); must(write(f, "text", 4)); must(fsync(f))"#,
        r#"int f = open("../out", O_CREAT|O_WRONLY|O_DSYNC, 0600); must(write(f, "text", 4))"#,
        r#"int f = open("../out", O_CREAT|O_RDWR, 0600); must(ftruncate(f, 4));
           char *m = mmap(0, 4, PROT_READ|PROT_WRITE, MAP_SHARED, f, 0); memcpy(m, "text", 4);
           must(munmap(m, 4)); must(fsync(f))"#,
    ];
    for body in synced {
        assert_eq!(lost(body), [], "{body}");
    }
}
