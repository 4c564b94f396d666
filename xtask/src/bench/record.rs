//! The cost of recording a run, and how fast a large record answers.

use std::fs::OpenOptions;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use retake_engine::{Cancel, Keeper, KeeperSettings, Launch, LiveOutput};
use retake_store::Store;
use retake_types::{Outcome, RunOutcome};

use super::exec::{intent, plain, program, scratch, timed};
use super::{median, record_output};
use crate::page::Page;

const RUNS: u64 = 1_000_000;
/// One run in this many has output, so that the search index is realistic.
const WITH_OUTPUT: u64 = 5;

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "record: the cost of recording",
        "`cargo xtask bench record` writes this page. Every figure is the median of interleaved rounds of one run; \
         compare ratios, not times.",
    );
    write(&mut page)?;
    peers(&mut page)?;
    read(&mut page)?;
    record_output::run(&mut page)?;
    page.write("record.md")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(super) fn outcome(code: i32, output: &[u8]) -> RunOutcome {
    let bytes = output.len() as u64;
    RunOutcome {
        duration_ms: 5,
        stdout_bytes: bytes,
        stdout_raw_bytes: bytes,
        stdout_blake3: (bytes > 0).then(|| blake3::hash(output).to_hex().to_string()),
        ..RunOutcome::bare(&Outcome::Exited(code), jiff::Timestamp::now())
    }
}

/// In one long-lived program: a run, a recorded run, and the minimum cost of a record.
fn write(page: &mut Page) -> Result<(), String> {
    page.section(
        "A recorded run of /bin/true in a long-lived program",
        "Recorded: the intent committed before the spawn, the outcome synced to disk after it. The ratio is to an \
         unrecorded run plus one bare append of 4 KiB with fdatasync.",
    );
    let directory = scratch()?;
    let mut keeper = Keeper::start(KeeperSettings::default()).map_err(text)?;
    let cancel = Cancel::new().map_err(text)?;
    let command =
        retake_engine::Command::new(Launch::new(["/bin/true"])).map_err(|p| format!("{p:?}"))?;
    let mut store = Store::open(&directory.join("store")).map_err(text)?;
    let mut file =
        OpenOptions::new().create(true).append(true).open(directory.join("log")).map_err(text)?;
    let raw = rusqlite_peer(&directory)?;
    let mut times = [const { Vec::new() }; 5];
    for _ in 0..500 {
        let mut timed = |index: usize, work: &mut dyn FnMut() -> Result<(), String>| {
            let start = Instant::now();
            work()?;
            times[index].push(start.elapsed().as_secs_f64() * 1e6);
            Ok::<_, String>(())
        };
        let mut run = || {
            let finished = keeper.run(&command, &cancel, LiveOutput::default(), &mut |_| {});
            finished
                .outcome
                .success()
                .then_some(())
                .ok_or_else(|| format!("{:?}", finished.outcome))
        };
        timed(0, &mut run)?;
        timed(1, &mut || {
            file.write_all(&[7; 4096]).map_err(text)?;
            file.sync_data().map_err(text)
        })?;
        timed(2, &mut || {
            let recording = store.begin(&plain(intent())).map_err(text)?;
            run()?;
            recording.finish(&mut store, plain(outcome(0, b""))).map_err(text).map(drop)
        })?;
        timed(3, &mut || {
            let recording = store.begin(&plain(intent())).map_err(text)?;
            recording.finish(&mut store, plain(outcome(0, b""))).map_err(text).map(drop)
        })?;
        timed(4, &mut || {
            raw.execute(
                "INSERT INTO runs (id, command, exit_code) VALUES (?1, 'true', 0)",
                [retake_types::RunId::new().to_string()],
            )
            .map(drop)
            .map_err(text)
        })?;
    }
    let middle: Vec<f64> = times.iter().map(|times| median(times)).collect();
    let floor = middle[0] + middle[1];
    let names = [
        "unrecorded run",
        "bare append of 4 KiB + fdatasync",
        "recorded run",
        "the record alone (intent, outcome)",
        "raw rusqlite insert, WAL, synchronous=FULL",
    ];
    let rows: Vec<_> = names
        .iter()
        .zip(&middle)
        .map(|(name, time)| {
            vec![(*name).into(), format!("{time:.0}"), format!("{:.2}", time / floor)]
        })
        .collect();
    page.table(&["", "wall µs", "ratio to run + append"], &rows);
    std::fs::remove_dir_all(&directory).map_err(text)
}

/// One table, one index: the cost of SQLite itself in the mode in which the outcome is committed.
fn rusqlite_peer(directory: &Path) -> Result<rusqlite::Connection, String> {
    let connection = rusqlite::Connection::open(directory.join("raw.db")).map_err(text)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             CREATE TABLE runs (id TEXT PRIMARY KEY, command TEXT, exit_code INTEGER);",
        )
        .map_err(text)?;
    Ok(connection)
}

/// Whole programs that also leave a record of each command.
fn peers(page: &mut Page) -> Result<(), String> {
    page.section(
        "A whole process that runs /bin/true and leaves a record",
        "GNU parallel is started once per command here, as retake is; atuin records commands of \
         interactive shells only, so it has no row.",
    );
    let directory = scratch()?;
    let retake = program("retake")?.display().to_string();
    let store = directory.join("store").display().to_string();
    let log = directory.join("joblog").display().to_string();
    let variants: [(&str, Vec<String>); 3] = [
        ("timeout 5 true (no record)", ["timeout", "5", "true"].map(String::from).to_vec()),
        (
            "retake exec -- true",
            [&retake, "--store", &store, "exec", "--", "true"].map(String::from).to_vec(),
        ),
        (
            "parallel --joblog",
            ["parallel", "--joblog", &log, "true", ":::", "1"].map(String::from).to_vec(),
        ),
    ];
    let mut walls = vec![Vec::new(); variants.len()];
    for round in 0..150 {
        if round % 30 == 0 {
            eprint!("\rprocesses: round {round} of 150");
        }
        for (walls, (_, words)) in walls.iter_mut().zip(&variants) {
            walls.extend(timed(words).map(|(wall, ..)| wall).ok());
        }
    }
    eprintln!();
    let rows: Vec<_> = variants
        .iter()
        .zip(&walls)
        .map(|((name, _), times)| {
            let time = median(times);
            if times.is_empty() {
                return vec![(*name).into(), "not installed".into(), String::new()];
            }
            vec![
                (*name).into(),
                format!("{:.2}", time / 1000.0),
                format!("{:.2}", time / median(&walls[0])),
            ]
        })
        .collect();
    page.table(&["", "wall ms", "ratio"], &rows);
    std::fs::remove_dir_all(&directory).map_err(text)
}

fn read(page: &mut Page) -> Result<(), String> {
    let directory = scratch()?;
    let root = directory.join("store");
    let start = Instant::now();
    fill(&root)?;
    let filled = start.elapsed();
    let mut store = Store::open(&root).map_err(text)?;
    let before = size(&root);
    while store.compact(Duration::from_secs(10)).map_err(text)?.more {
        eprint!("\rindexing: {:.0} s", start.elapsed().as_secs_f64());
    }
    drop(store);
    let indexed = start.elapsed() - filled;
    page.section(
        &format!("Reading a record of {RUNS} runs"),
        &format!(
            "Whole processes. One run in {WITH_OUTPUT} printed a line of its own. Filling it took {:.0} s, indexing {:.0} s; \
             it takes {} bytes per run on disk, {} of them the search index.",
            filled.as_secs_f64(),
            indexed.as_secs_f64(),
            size(&root) / RUNS,
            size(&root).saturating_sub(before) / RUNS,
        ),
    );
    let retake = program("retake")?.display().to_string();
    let ours = |words: &[&str]| -> Vec<String> {
        let start = [&retake, "--store", &root.display().to_string(), "runs"].map(String::from);
        start.into_iter().chain(words.iter().map(ToString::to_string)).collect()
    };
    let database = root.join("retake.db").display().to_string();
    let variants = [
        ("sqlite3 db 'select 1'", ["sqlite3", &database, "select 1"].map(String::from).to_vec()),
        ("retake runs list", ours(&["list"])),
        ("retake runs list --session-id", ours(&["list", "--session-id", "session-777"])),
        ("retake runs list --failed", ours(&["list", "--failed"])),
        ("retake runs list --label", ours(&["list", "--label", "nightly=yes"])),
        ("retake runs search, a rare word", ours(&["search", "needle500000"])),
    ];
    let mut walls = vec![Vec::new(); variants.len()];
    for round in 0..60 {
        eprint!("\rreading: round {round} of 60");
        for (walls, (_, words)) in walls.iter_mut().zip(&variants) {
            walls.push(timed(words)?.0);
        }
    }
    eprintln!();
    let base = median(&walls[0]);
    let rows: Vec<_> = variants
        .iter()
        .zip(&walls)
        .map(|((name, _), times)| {
            let time = median(times);
            vec![(*name).into(), format!("{:.2}", time / 1000.0), format!("{:.2}", time / base)]
        })
        .collect();
    page.table(&["", "wall ms", "ratio"], &rows);
    std::fs::remove_dir_all(&directory).map_err(text)
}

pub(super) fn fill(root: &Path) -> Result<(), String> {
    fill_with(root, 0..RUNS)
}

/// Adds the runs of these numbers.
pub(super) fn fill_with(root: &Path, numbers: Range<u64>) -> Result<(), String> {
    let mut store = Store::open(root).map_err(text)?;
    let mut lines = String::new();
    for n in numbers.clone() {
        let mut intent = intent();
        intent.request.command.text = format!("cargo test case_{}", n % 500);
        intent.request.correlation_ids.session_id = Some(format!("session-{}", n / 100));
        if n % 50 == 0 {
            intent.request.labels.insert("nightly".into(), "yes".into());
        }
        let output = format!("case {n} finished, result needle{n}, worker {} of 16\n", n % 16);
        let output = if n % WITH_OUTPUT == 0 { output.as_bytes() } else { b"" };
        let (intent, outcome) = (plain(intent), plain(outcome(i32::from(n % 20 == 0), output)));
        let run = serde_json::json!({"run": {"intent": intent, "ending": outcome, "chunks": ""}});
        lines.push_str(&format!("{run}\n"));
        if !output.is_empty() {
            let base64 = BASE64_STANDARD.encode(output);
            let part = serde_json::json!({"output": {"run": intent.id(), "stream": "stdout", "offset": 0, "base64": base64}});
            lines.push_str(&format!("{part}\n"));
        }
        if n % 5000 == 4999 || n + 1 == numbers.end {
            eprint!("\rfilling: {} of {} runs", n + 1, numbers.end);
            store.import(&mut lines.as_bytes()).map_err(text)?;
            lines.clear();
        }
    }
    Ok(())
}

pub(super) fn size(root: &Path) -> u64 {
    ["retake.db", "retake.db-wal"]
        .iter()
        .filter_map(|name| std::fs::metadata(root.join(name)).ok())
        .map(|meta| meta.len())
        .sum()
}
