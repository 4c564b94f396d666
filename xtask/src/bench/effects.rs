//! The cost of determining which files changed, compared with `git status`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use retake_effects::files::{Tracker, TrackingRules};
use retake_effects::test_results::TestOutputParser;
use retake_store::redact::Redactor;
use retake_types::Stream;

use super::exec::{scratch, timed};
use super::median;
use crate::page::Page;

const ROUNDS: usize = 11;
const DIRECTORIES: usize = 2_000;
const PER_DIRECTORY: usize = 25;
const BINARIES: u64 = 2_000;

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "effects: changed files and test results",
        "`cargo xtask bench effects` writes this page. Every figure is the median of interleaved rounds of one run; \
         compare ratios, not times.",
    );
    let directory = scratch()?;
    snapshots(&mut page, &directory)?;
    parsing(&mut page)?;
    page.write("effects.md")?;
    std::fs::remove_dir_all(&directory).map_err(|error| error.to_string())
}

fn snapshots(page: &mut Page, directory: &Path) -> Result<(), String> {
    page.section(
        "Which files changed, in a tree of 100000 files, 50000 of them ignored",
        "Whole processes, warm. The tracked files are 2 KB of text each, in 2000 directories, all committed; of the \
         ignored ones 40000 lie in a directory of their own, 10000 among the others. `first` starts without a cache: \
         it hashes every file, keeps its lines for line counts and writes the cache. `next` starts from the cache of \
         an earlier process and finds nothing changed. `100 changed` rewrites 100 files first, compares, counts \
         lines and saves. Memory per file is the largest resident set beyond that of the same program on an empty \
         directory, without the bytes of the paths.",
    );
    let (tree, empty) = (directory.join("tree"), directory.join("empty"));
    eprint!("making the tree");
    grow(&tree)?;
    std::fs::create_dir_all(&empty).map_err(|error| error.to_string())?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let own = own.display().to_string();
    let (root, cache) = (tree.display().to_string(), directory.join("cache").display().to_string());
    let fresh = directory.join("fresh").display().to_string();
    let spin = |what: &str, root: &str, cache: &str| {
        [&own, "spin", "effects", what, root, cache].map(String::from).to_vec()
    };
    let git = ["git", "-C", &root, "status", "--porcelain"].map(String::from).to_vec();
    let variants = [
        ("git status --porcelain", git),
        ("first snapshot", spin("snapshot", &root, &fresh)),
        ("next snapshot", spin("snapshot", &root, &cache)),
        ("next snapshot, exact", spin("exact", &root, &cache)),
        ("next snapshot, 100 changed", spin("changed", &root, &cache)),
    ];
    // The first rounds fill the caches of the kernel, git and retake.
    timed(&variants[0].1)?;
    timed(&variants[2].1)?;
    let empty_cache = directory.join("empty-cache").display().to_string();
    let idle = peak(&spin("snapshot", &empty.display().to_string(), &empty_cache))?;
    let mut costs = vec![Vec::new(); variants.len()];
    for round in 0..ROUNDS {
        eprint!("\rsnapshots: round {} of {ROUNDS}", round + 1);
        for (costs, (_, words)) in costs.iter_mut().zip(&variants) {
            // The first snapshot must not find an earlier round's cache, which may be missing.
            _ = std::fs::remove_dir_all(&fresh);
            if words.iter().any(|word| word == "changed") {
                edit(&tree, round)?;
                costs.push(timed(words)?);
                edit(&tree, usize::MAX)?;
                // Let the system settle before the next variant.
                std::thread::sleep(std::time::Duration::from_millis(20));
                timed(&variants[0].1)?;
                timed(words)?;
            } else {
                costs.push(timed(words)?);
            }
        }
    }
    eprintln!();
    let tracked = (DIRECTORIES * PER_DIRECTORY) as f64;
    let paths: usize = (0..DIRECTORIES).map(|at| folder(at).len() + 1).sum::<usize>()
        + DIRECTORIES * PER_DIRECTORY * "file_00.rs".len();
    let middle = |at: usize, of: fn(&(f64, f64, f64)) -> f64| {
        median(&costs[at].iter().map(of).collect::<Vec<_>>())
    };
    let mut rows = Vec::new();
    for (at, (name, words)) in variants.iter().enumerate() {
        let (wall, cpu) = (middle(at, |c| c.0), middle(at, |c| c.1));
        _ = std::fs::remove_dir_all(&fresh);
        let memory = if words[0] == "git" || words.iter().any(|word| word == "changed") {
            String::new()
        } else {
            let bytes = (peak(words)? - idle) * 1024.0 - paths as f64;
            format!("{:.0}", bytes / tracked)
        };
        rows.push(vec![
            (*name).to_owned(),
            format!("{:.1}", wall / 1000.0),
            format!("{:.2}", wall / middle(0, |c| c.0)),
            format!("{:.1}", cpu / 1000.0),
            format!("{:.2}", cpu / middle(0, |c| c.1)),
            memory,
        ]);
    }
    page.table(&["", "wall ms", "ratio", "CPU ms", "ratio", "bytes per file"], &rows);
    Ok(())
}

fn parsing(page: &mut Page) -> Result<(), String> {
    page.section(
        "Test results from a cargo log",
        "About 64 MB as `cargo test` prints it, in pieces of 64 KiB as they come out of a pipe: 2000 binaries of 500 tests, \
         one of which fails in each. The ratio is to counting the log's newlines.",
    );
    let log = log();
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        eprint!("\rparsing: round {} of {ROUNDS}", round + 1);
        let start = Instant::now();
        std::hint::black_box(log.iter().filter(|byte| **byte == b'\n').count());
        rates[0].push(log.len() as f64 / start.elapsed().as_secs_f64() / 1e6);
        let start = Instant::now();
        let mut parser = TestOutputParser::new();
        log.chunks(64 << 10).for_each(|piece| parser.push(Stream::Stdout, piece));
        let found = parser.finish(Some(101), Vec::new());
        rates[1].push(log.len() as f64 / start.elapsed().as_secs_f64() / 1e6);
        if found.is_none_or(|found| found.total == 0 || found.failed != BINARIES) {
            return Err("the log was not understood".into());
        }
    }
    eprintln!();
    let rows = ["counting newlines", "test results"].iter().zip(&rates).map(|(name, rate)| {
        let ratio = median(rate) / median(&rates[0]);
        vec![(*name).to_owned(), format!("{:.0}", median(rate)), format!("{ratio:.2}")]
    });
    page.table(&["", "MB/s", "ratio"], &rows.collect::<Vec<_>>());
    Ok(())
}

fn log() -> Vec<u8> {
    let mut log = String::new();
    for binary in 0..BINARIES {
        let tests = 500;
        let _infallible = write!(log, "\nrunning {tests} tests\n");
        for test in 0..tests - 1 {
            let _infallible =
                writeln!(log, "test parser::cases::a_case_with_a_name_{binary}_{test} ... ok");
        }
        let name = format!("parser::cases::fails_{binary}");
        let _infallible = write!(
            log,
            "test {name} ... FAILED\n\nfailures:\n\n---- {name} stdout ----\n\n\
             thread '{name}' panicked at src/parser.rs:12:9:\nassertion failed: left == right\n\n\n\
             failures:\n    {name}\n\ntest result: FAILED. {} passed; 1 failed; 0 ignored; 0 measured; \
             0 filtered out; finished in 0.12s\n\n",
            tests - 1
        );
    }
    log.into_bytes()
}

fn folder(at: usize) -> String {
    format!("src/part_{:02}/module_{:02}", at / 50, at % 50)
}

fn text(seed: usize) -> String {
    let mut text = String::new();
    for line in 0..50 {
        let word = seed.wrapping_mul(2_654_435_761).wrapping_add(line * 40_503) % 99_991;
        let _infallible = writeln!(text, "    let value_{word} = compute({line}, {seed});");
    }
    text
}

fn grow(tree: &Path) -> Result<(), String> {
    let put = |path: std::path::PathBuf, text: &str| {
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let make = |path: &Path| std::fs::create_dir_all(path).map_err(|error| error.to_string());
    make(tree)?;
    put(tree.join(".gitignore"), "/target/\n*.log\n*.tmp\n!keep.tmp\nnode_modules/\n")?;
    for at in 0..DIRECTORIES {
        let here = tree.join(folder(at));
        make(&here)?;
        for file in 0..PER_DIRECTORY {
            put(here.join(format!("file_{file:02}.rs")), &text(at * PER_DIRECTORY + file))?;
        }
        for file in 0..5 {
            put(here.join(format!("trace_{file}.log")), "a line of a log\n")?;
        }
        let built = tree.join(format!("target/debug/deps_{:03}/{:02}", at / 20, at % 20));
        make(&built)?;
        for file in 0..20 {
            put(built.join(format!("object_{file:02}.bin")), "object")?;
        }
    }
    for words in [
        &["init", "--quiet"][..],
        &["add", "."],
        &["-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-qm", "tree"],
    ] {
        let mut git = Command::new("git");
        // Nothing may run in the background, and 50000 syncs would take minutes.
        let quick = ["gc.auto=0", "maintenance.auto=false", "core.fsync=none"];
        git.arg("-C").arg(tree).args(quick.iter().flat_map(|setting| ["-c", setting]));
        git.args(words).stdin(Stdio::null()).stdout(Stdio::null());
        crate::test::succeed(&mut git)?;
    }
    Ok(())
}

/// Appends a line to 100 files for every value but `usize::MAX`, which restores
/// them.
fn edit(tree: &Path, round: usize) -> Result<(), String> {
    for at in 0..100 {
        let path = tree.join(folder(at * 20)).join("file_07.rs");
        let mut text = text(at * 20 * PER_DIRECTORY + 7);
        if round != usize::MAX {
            text.push_str(&format!("// round {round}\n"));
        }
        std::fs::write(&path, text).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// One snapshot in a separate process: `effects snapshot|exact|changed ROOT CACHE`.
pub(crate) fn spin(batch: &[&str]) -> Result<(), String> {
    let &[what, root, cache] = batch else { return Err("spin effects WHAT ROOT CACHE".into()) };
    let fail = |error: retake_effects::files::Error| error.to_string();
    let mut tracker = Tracker::new(Path::new(root), TrackingRules::new())
        .map_err(fail)?
        .with_cache(Path::new(cache))
        .exact(what == "exact");
    let before = tracker.last();
    let snapshot = tracker.snapshot().map_err(fail)?;
    if let Some(before) = before {
        let changes = before.changes(&snapshot);
        let expected = if what == "changed" { 100 } else { 0 };
        if (changes.modified.len(), changes.lines.len()) != (expected, expected) {
            return Err(format!("expected {expected} changes: {changes:?}"));
        }
    }
    tracker.save(&mut Redactor::shapes()).map_err(fail)?;
    // The high-water mark of this program alone: that of `wait4` includes its parent's
    // before the exec.
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    println!("{} {}", snapshot.len(), peak.trim_end_matches("kB").trim());
    Ok(())
}

/// The peak resident set in KiB of a program that runs [`spin`].
fn peak(words: &[String]) -> Result<f64, String> {
    let mut command = Command::new(&words[0]);
    let output = command.args(&words[1..]).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)))
}
