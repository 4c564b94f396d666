//! The cost of a crash point in a program that is not being crash tested, and of trying one.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::exec::timed;
use super::median;
use crate::page::Page;

const ROUNDS: usize = 15;
/// The number of crash points of the reference log.
const WAL_POINTS: f64 = 24.0;

pub(crate) fn run() -> Result<(), String> {
    let examples = build()?;
    let mut page = Page::new(
        "first: the cost of a crash point",
        "`cargo xtask bench first` writes this page. Every figure is the median of interleaved rounds of one run; \
         compare ratios, not times.",
    );
    untested(&mut page, &examples)?;
    tested(&mut page, &examples)?;
    page.write("first.md")
}

/// Builds the measured programs as a user would. Returns their directory.
pub(super) fn build() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    crate::test::succeed(Command::new(cargo).args([
        "build",
        "--profile=dist",
        "--quiet",
        "-p",
        "retake-first",
        "--examples",
    ]))?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(own.with_file_name("examples"))
}

fn untested(page: &mut Page, examples: &Path) -> Result<(), String> {
    page.section(
        "A crash point where no crash test runs",
        "Every call in a program of another crate, as linked into production code; the empty loop is included \
         in all rows. Points are placed beside writes, so a one-byte `write` to `/dev/null` gives \
         the scale. Reading a variable each time is the cost of a point without its own switch.",
    );
    let variants = [
        ("empty loop", "nothing", 200_000_000),
        ("crash_point", "crash_point", 200_000_000),
        ("std::env::var_os", "variable", 5_000_000),
        ("write of one byte to /dev/null", "write", 1_000_000),
    ];
    let mut costs = vec![Vec::new(); variants.len()];
    for round in 0..ROUNDS {
        eprint!("\rcrash point: round {} of {ROUNDS}", round + 1);
        for (costs, (_, variant, count)) in costs.iter_mut().zip(&variants) {
            let mut command = Command::new(examples.join("cost"));
            let output = command.args([variant.to_string(), count.to_string()]).output();
            let output = output.map_err(|error| format!("{command:?}: {error}"))?;
            let text = String::from_utf8_lossy(&output.stdout);
            let cost = text.trim().parse().map_err(|_| format!("{command:?} printed {text:?}"))?;
            costs.push(cost);
        }
    }
    eprintln!();
    let scale = median(&costs[3]);
    let rows: Vec<_> = (variants.iter().zip(&costs))
        .map(|((name, ..), costs): (_, &Vec<f64>)| {
            let ns = median(costs);
            vec![(*name).into(), format!("{ns:.2}"), format!("{:.4}", ns / scale)]
        })
        .collect();
    page.table(&["", "ns per call", "ratio to write"], &rows);
    Ok(())
}

fn tested(page: &mut Page, examples: &Path) -> Result<(), String> {
    page.section(
        "Trying one crash point of the reference log",
        "The whole of `cargo run --example wal`, with 24 crash points, divided by their number: a \
         run up to the point, and a check unless the state is known. The log syncs every record, \
         so the time includes the disk; without syncs it is mostly \
         processes. `/bin/true` is one bare process.",
    );
    let wal = examples.join("wal").display().to_string();
    let variants = [
        ("/bin/true, once", vec!["/bin/true".to_owned()], 1.0),
        ("a crash point, no syncs", vec![wal.clone(), "forgets-to-sync".into()], WAL_POINTS),
        ("a crash point", vec![wal], WAL_POINTS),
    ];
    let mut walls = vec![Vec::new(); variants.len()];
    for round in 0..ROUNDS {
        eprint!("\rcrash test: round {} of {ROUNDS}", round + 1);
        for (walls, (_, words, points)) in walls.iter_mut().zip(&variants) {
            walls.push(timed(words)?.0 / points / 1000.0);
        }
    }
    eprintln!();
    let base = median(&walls[0]);
    let rows: Vec<_> = (variants.iter().zip(&walls))
        .map(|((name, ..), walls)| {
            let ms = median(walls);
            vec![(*name).into(), format!("{ms:.2}"), format!("{:.1}", ms / base)]
        })
        .collect();
    page.table(&["", "wall ms", "ratio"], &rows);
    Ok(())
}
