//! The cost of a crash test: compared with running the program again for every point, and piece by piece.
//!
//! `RETAKE_BENCH_SCALE` (such as 0.1) shrinks every workload, to try out the benchmark itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use retake_crash::model::{CrashStates, ExploreOptions, Model, Tree};
use retake_crash::operation::{Action, DirEntry, Entry, Kind, Node, Recording, WriteSync};

use super::exec::timed;
use super::median;
use crate::page::Page;

const ROUNDS: usize = 5;
/// The number of points at which the loop is measured; all of them would take hours.
const SAMPLES: usize = 9;

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "crash: every crash state of a program",
        "`cargo xtask bench crash` writes this page. The workload is SQLite (bundled), one row per transaction, \
         each acknowledged on stdout. Compare ratios, not times.",
    );
    if scale() != 1.0 {
        page.section(
            "Not the whole benchmark",
            &format!("Every workload is {} of its size, to try the benchmark itself.", scale()),
        );
    }
    super::first::build()?;
    against_the_loop(&mut page)?;
    recording(&mut page)?;
    pieces(&mut page)?;
    complete(&mut page)?;
    page.write("crash.md")
}

fn scale() -> f64 {
    std::env::var("RETAKE_BENCH_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0)
}

fn scaled(count: usize) -> usize {
    ((count as f64 * scale()) as usize).max(2)
}

fn own() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| error.to_string())
}

/// The measured program, an example of `first`.
fn transactions() -> Result<String, String> {
    Ok(own()?.with_file_name("examples").join("transactions").display().to_string())
}

/// An empty directory in memory.
fn in_memory(name: &str) -> Result<PathBuf, String> {
    let path = Path::new("/dev/shm").join(format!("retake-bench-{}-{name}", std::process::id()));
    // It usually does not exist.
    drop(fs::remove_dir_all(&path));
    fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Wall and CPU seconds, and the largest resident set in KiB.
struct Cost {
    wall: f64,
    cpu: f64,
    rss: f64,
}

fn cost(words: &[&str]) -> Result<Cost, String> {
    let (wall, cpu, rss) = timed(words)?;
    Ok(Cost { wall: wall / 1e6, cpu: cpu / 1e6, rss })
}

fn against_the_loop(page: &mut Page) -> Result<(), String> {
    page.section(
        "Every crash point of a killed program",
        &format!(
            "`first::test()` with crash points before, in and after each transaction, synchronous FULL, in the \
             machine's ordinary temporary directory; one check of the whole database per point in both columns. The \
             loop (`FIRST_RECORD=0`) runs the program again for each point. It is measured at \
             {SAMPLES} evenly spread points and extrapolated; a loop that was measured whole is \
             marked."
        ),
    );
    let mut rows = Vec::new();
    for mode in ["DELETE", "WAL"] {
        let whole = scaled(20);
        rows.push(compared(mode, whole, true)?);
        for count in [100, 200, 400] {
            rows.push(compared(mode, scaled(count), false)?);
        }
    }
    page.table(
        &["journal", "transactions", "points", "the loop, s", "recorded once, s", "ratio"],
        &rows,
    );
    Ok(())
}

fn compared(mode: &str, count: usize, whole: bool) -> Result<Vec<String>, String> {
    let words = [transactions()?, "first".into(), mode.into(), count.to_string()];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let points = 3 * count;
    eprintln!("{mode}, {count} transactions");
    let again = |target: Option<usize>| {
        let mut all = vec!["env".to_owned(), "FIRST_RECORD=0".into()];
        all.extend(target.map(|target| format!("FIRST_CRASH_TARGET={target}")));
        all.extend(words.iter().map(|word| (*word).to_owned()));
        Ok::<_, String>(timed(&all)?.0 / 1e6)
    };
    let repeated = if whole {
        again(None)?
    } else {
        let mut sum = 0.0;
        for sample in 0..SAMPLES {
            sum += again(Some(1 + (2 * sample + 1) * points / (2 * SAMPLES)))?;
        }
        sum / SAMPLES as f64 * points as f64
    };
    let once = cost(&words)?.wall;
    Ok(vec![
        mode.to_owned(),
        count.to_string(),
        points.to_string(),
        format!("{repeated:.1}{}", if whole { " (whole)" } else { "" }),
        format!("{once:.2}"),
        format!("{:.0}", repeated / once),
    ])
}

/// Records the workload and returns the log.
fn record(mode: &str, count: usize, log: &Path) -> Result<Cost, String> {
    let retake = own()?.with_file_name("retake").display().to_string();
    let root = in_memory("root")?;
    let (transactions, root) = (transactions()?, root.display().to_string());
    let (log, count) = (log.display().to_string(), count.to_string());
    let store = in_memory("store")?.display().to_string();
    cost(&[
        &retake,
        "--store",
        &store,
        "crash",
        "record",
        "--root",
        &root,
        "-o",
        &log,
        "--",
        &transactions,
        "workload",
        mode,
        &count,
    ])
}

fn recording(page: &mut Page) -> Result<(), String> {
    page.section(
        "Recording",
        "`retake crash record` of 2,000 transactions in memory, where writing costs CPU only, \
         against the program alone. CPU time of all processes, median of interleaved rounds.",
    );
    let transactions = transactions()?;
    let count = scaled(2000);
    let log = in_memory("logs")?.join("log");
    let mut rows = Vec::new();
    for mode in ["WAL", "DELETE"] {
        let (mut native, mut recorded) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            eprint!("\rrecording {mode}: round {} of {ROUNDS}", round + 1);
            let root = in_memory("root")?.display().to_string();
            let number = count.to_string();
            let variable = format!("FIRST_WORK_DIR={root}");
            let alone = ["env", &variable, &transactions, "workload", mode, &number];
            native.push(cost(&alone)?.cpu);
            recorded.push(record(mode, count, &log)?.cpu);
        }
        eprintln!();
        let (native, recorded) = (median(&native), median(&recorded));
        rows.push(vec![
            mode.to_owned(),
            count.to_string(),
            format!("{native:.2}"),
            format!("{recorded:.2}"),
            format!("{:.1}", recorded / native),
        ]);
    }
    page.table(&["journal", "transactions", "alone, s", "recorded, s", "ratio"], &rows);
    Ok(())
}

fn read(log: &Path) -> Result<Recording, String> {
    let file = fs::File::open(log).map_err(|error| error.to_string())?;
    retake_crash::log::read(file).map_err(|error| error.to_string())
}

fn pieces(page: &mut Page) -> Result<(), String> {
    page.section(
        "Building states",
        "Building every state of a recording (all classes, ext4), both passes over it, per state \
         before equal ones are merged; and writing a state to a file system in memory.",
    );
    let log = in_memory("logs")?.join("log");
    let mut rows = Vec::new();
    for (mode, count) in [("WAL", scaled(200)), ("DELETE", scaled(200))] {
        record(mode, count, &log)?;
        let recording = read(&log)?;
        let begun = Instant::now();
        let mut states = CrashStates::new(&recording, Model::Ext4, ExploreOptions::default())
            .map_err(|error| error.to_string())?;
        let distinct = states.by_ref().count();
        let raw = states.coverage().states();
        let each = begun.elapsed().as_secs_f64() * 1e6 / raw as f64;
        rows.push(vec![
            format!("enumeration, SQLite {mode}, {count} transactions, {raw} states, {distinct} distinct"),
            format!("{each:.1} µs"),
        ]);
    }
    let small = tree(150 << 10, 150 << 10);
    let large = tree(64 << 20, 150 << 10);
    for (name, tree) in [("150 KiB", small), ("a preallocated file of 64 MiB", large)] {
        let mut times = Vec::new();
        for _ in 0..40 * ROUNDS {
            let place = in_memory("state")?;
            let begun = Instant::now();
            retake_crash::materialise(&tree, &place).map_err(|error| error.to_string())?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        rows.push(vec![format!("materialisation, {name}"), format!("{:.0} µs", median(&times))]);
    }
    page.table(&["", "each"], &rows);
    Ok(())
}

/// A file of this size with this many bytes of content.
fn tree(size: u64, bytes: usize) -> Tree {
    let mut tree = Tree::new(&[]);
    let node = Node(1);
    let dir_entry = Some(DirEntry { directory: Node::ROOT, name: "file".into() });
    tree.apply(&Action::Create { node, mode: 0o644, kind: Kind::File, dir_entry });
    tree.apply(&Action::Allocate { node, offset: 0, length: size, keep_size: false });
    let data = vec![7; bytes].into();
    tree.apply(&Action::Write { node, offset: 0, data, sync: WriteSync::None, mapped: false });
    tree
}

fn complete(page: &mut Page) -> Result<(), String> {
    let count = scaled(2000);
    page.section(
        "A large exploration",
        &format!(
            "SQLite in WAL mode, {count} transactions, all classes of ext4, every state checked by opening the \
             database, its integrity check and a count of the rows: one process per state."
        ),
    );
    let log = in_memory("logs")?.join("log");
    record("WAL", count, &log)?;
    let recording = read(&log)?;
    let operations = recording.entries.iter().filter(|e| matches!(e, Entry::Operation(_))).count();
    drop(recording);
    let retake = own()?.with_file_name("retake");
    let check = format!("{} check", transactions()?);
    let store = in_memory("store")?;
    let answer = in_memory("answer")?.join("json");
    eprintln!("exploring {operations} operations");
    // Through a shell because of the redirection; its child is measured.
    let line = format!(
        "exec {} --store {} crash explore {} --json --verify '{check}' > {}",
        retake.display(),
        store.display(),
        log.display(),
        answer.display()
    );
    let cost = cost(&["sh", "-c", &line])?;
    let text = fs::read_to_string(&answer).map_err(|error| error.to_string())?;
    let answer: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let row = vec![
        answer["operations"].to_string(),
        answer["states"].to_string(),
        answer["distinct"].to_string(),
        answer["verified"].to_string(),
        answer["complete"].to_string(),
        format!("{:.0}", cost.wall),
        format!("{:.0}", cost.rss / 1024.0),
    ];
    page.table(
        &["operations", "states", "distinct", "verified", "complete", "wall s", "max resident MiB"],
        &[row],
    );
    for name in ["root", "store", "logs", "state", "answer"] {
        drop(fs::remove_dir_all(in_memory(name)?));
    }
    Ok(())
}
