//! Workloads that write more than is kept in memory.

use retake_crash::log;
use retake_crash::model::{CrashStates, ExploreOptions, Model};
use retake_crash::operation::{Action, Content, Entry, Recording};
use retake_crash::recorded_bytes::{ByteStore, RecordedBytes};

use crate::programs::{compiled, directory, here};

const MEMORY: u64 = 1 << 20;

/// Whole pages, odd sizes, overwrites, through a mapping, and by the kernel itself.
const WRITES: &str = r#"int main(void) {
    static char block[300000];
    int a = open("a", O_CREAT | O_RDWR, 0644), b = open("b", O_CREAT | O_RDWR, 0644);
    must(a); must(b);
    for (int i = 0; i < 40; i++) {
        memset(block, 'a' + i % 26, sizeof block);
        must(pwrite(a, block, sizeof block - i, i * 4096L * 50));
        must(pwrite(b, block, 8192, (i % 3) * 8192L));
        must(fdatasync(i % 2 ? a : b));
    }
    must(ftruncate(b, 1 << 20));
    char *mapped = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, b, 0);
    memset(mapped, 'm', 1 << 20);
    must(msync(mapped, 1 << 20, MS_SYNC));
    lseek(a, 0, SEEK_SET);
    int c = open("c", O_CREAT | O_RDWR, 0644);
    must(sendfile(c, a, 0, 1 << 20));
    must(fsync(c));
    return 0;
}"#;

fn written(recording: &Recording) -> Vec<&RecordedBytes> {
    let initial = recording.initial.iter().flat_map(|initial| match &initial.content {
        Content::File { extents, .. } => extents.iter().map(|(_, data)| data).collect(),
        _ => Vec::new(),
    });
    let entries = recording.entries.iter().filter_map(|entry| match entry {
        Entry::Operation(operation) => match &operation.action {
            Action::Write { data, .. } => Some(data),
            _ => None,
        },
        _ => None,
    });
    initial.chain(entries).collect()
}

fn bytes<'a>(all: impl IntoIterator<Item = &'a RecordedBytes>) -> u64 {
    all.into_iter().map(|data| data.len() as u64).sum()
}

#[test]
fn a_recording_that_exceeds_memory_gives_the_same_states() {
    let (_keep, program) = compiled(WRITES, &[]);
    let recorded = |memory: u64| {
        let root = directory();
        std::fs::write(root.path().join("before"), vec![b'x'; 3 << 20]).unwrap();
        let recorder = here(retake_crash::record(&program), root.path()).memory(memory);
        recorder.run().unwrap().recording
    };
    let (few, all) = (recorded(MEMORY), recorded(u64::MAX));
    assert!(few.entries == all.entries && few.initial == all.initial);
    let (kept, total) = (written(&few), bytes(written(&few)));
    assert!(total > 16 * MEMORY, "{total}");
    assert!(bytes(kept.into_iter().filter(|data| data.in_memory())) <= MEMORY);
    assert!(written(&all).iter().all(|data| data.in_memory()));

    let file = log::write(Vec::new(), &few).unwrap();
    let read = log::read_into(&file[..], ByteStore::new(MEMORY, None)).unwrap();
    assert!(read.entries == all.entries && read.initial == all.initial);
    assert!(bytes(written(&read).into_iter().filter(|data| data.in_memory())) <= MEMORY);

    let digests = |recording: &Recording| -> Vec<u128> {
        let states = CrashStates::new(recording, Model::Ext4, ExploreOptions::default()).unwrap();
        states.map(|state| state.tree.digest()).collect()
    };
    let states = digests(&read);
    assert!(states.len() > 100);
    assert_eq!(states, digests(&all));
}
