//! The cost of enumeration: every class of a recording, and the time for one state.
//! `cargo run --release --example states -- 2000 ext4` uses a recording like that of a database with a
//! write-ahead log; `states LOG ext4` uses a real one.

use std::time::Instant;

use retake_crash::model::{CrashStates, ExploreOptions, Model};
use retake_crash::operation::{
    Action, Content, DirEntry, Entry, Initial, Kind, Node, Operation, Recording, WriteSync,
};

const PAGE: usize = 4096;

#[expect(clippy::print_stdout, reason = "the figures are what it is run for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let source = arguments.next().unwrap_or_else(|| "2000".to_owned());
    let model: Model = arguments.next().map_or(Ok(Model::Ext4), |text| text.parse())?;
    let recording = match source.parse() {
        Ok(transactions) => database(transactions),
        Err(_) => retake_crash::log::read(std::fs::File::open(&source)?)?,
    };
    let start = Instant::now();
    let mut states = CrashStates::new(&recording, model, ExploreOptions::default())?;
    let surveyed = start.elapsed();
    let coverage = states.coverage().clone();
    println!("{model}: {coverage}");
    let each = surveyed.as_secs_f64() * 1e6 / coverage.states() as f64;
    println!("survey {surveyed:.2?}, {each:.1} µs a state");
    let start = Instant::now();
    let count = states.by_ref().count();
    println!("{count} states built in {:.2?}", start.elapsed());
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("{peak}");
    Ok(())
}

/// A log with a frame of 24 + 4096 bytes and a commit frame per transaction, a shared-memory index
/// that is never synced, and a checkpoint into the database every 1,000 frames.
fn database(transactions: usize) -> Recording {
    let mut entries = Vec::new();
    let mut act = |action| {
        let call = "call".to_owned();
        entries.push(Entry::Operation(Operation { task: 1, call, action }));
    };
    let name = |name: &str| DirEntry { directory: Node::ROOT, name: name.into() };
    let (database, log, index) = (Node(1), Node(2), Node(3));
    for (node, dir_entry) in [(log, name("db-wal")), (index, name("db-shm"))] {
        act(Action::Create { node, mode: 0o644, kind: Kind::File, dir_entry: Some(dir_entry) });
    }
    act(Action::Truncate { node: index, size: 32768 });
    let write = |node, offset: usize, length, letter: usize, mapped| Action::Write {
        node,
        offset: offset as u64,
        data: vec![(letter % 251) as u8 + 1; length].into(),
        sync: WriteSync::None,
        mapped,
    };
    let mut end = 32;
    act(write(log, 0, 32, 7, false));
    for transaction in 0..transactions {
        for _ in 0..2 {
            act(write(log, end, 24, transaction, false));
            act(write(log, end + 24, PAGE, transaction, false));
            end += 24 + PAGE;
        }
        act(Action::Sync { node: log, data_only: true });
        act(write(index, 0, PAGE, transaction, true));
        act(write(index, PAGE * (1 + transaction % 7), PAGE, transaction, true));
        if transaction % 500 == 499 {
            for page in 0..8 {
                act(write(database, page * PAGE, PAGE, transaction + page, false));
            }
            act(Action::Sync { node: database, data_only: true });
            end = 32;
        }
    }
    let extents = vec![(0, vec![1; 8 * PAGE].into())];
    let content = Content::File { size: 8 * PAGE as u64, extents };
    let initial = [
        Initial {
            node: Node::ROOT,
            mode: 0o755,
            dir_entries: Vec::new(),
            content: Content::Directory,
        },
        Initial { node: database, mode: 0o644, dir_entries: vec![name("db")], content },
    ];
    Recording {
        root: "/db".into(),
        initial: initial.into(),
        entries,
        stacks: Default::default(),
        left_running: Default::default(),
        outside: Default::default(),
        initial_is_copy: false,
    }
}
