//! The cost of `reset: iteration` before each iteration.

use std::path::Path;
use std::time::Instant;

use retake_matrix::tree::TreeSnapshot;

use super::{TemporaryDirectory, text};
use crate::bench::median;
use crate::page::Page;

const ROUNDS: usize = 15;

/// Files of 4 KB, a hundred in each directory.
fn make_tree(root: &Path, files: usize) -> Result<(), String> {
    for number in 0..files {
        let path = file(root, number);
        if number % 100 == 0 {
            std::fs::create_dir_all(path.parent().unwrap_or(root)).map_err(text)?;
        }
        std::fs::write(path, vec![b'x'; 4096]).map_err(text)?;
    }
    Ok(())
}

fn file(root: &Path, number: usize) -> std::path::PathBuf {
    root.join(format!("d{}/f{number}", number / 100))
}

/// The median time of a reset after this many files were changed, in milliseconds.
fn cost(snapshot: &mut TreeSnapshot, root: &Path, changed: usize) -> Result<f64, String> {
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        for number in 0..changed {
            std::fs::write(file(root, number), format!("{round}")).map_err(text)?;
        }
        let start = Instant::now();
        snapshot.reset().map_err(text)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&times))
}

pub(super) fn run(page: &mut Page) -> Result<(), String> {
    page.section(
        "Resetting a tree",
        "Before each iteration the tree of a ref is restored to its state after the setup. Files \
         of 4 KB. Iterations are measured without this time; `reset: run` restores the tree once, \
         `reset: never` not at all.",
    );
    let mut rows = Vec::new();
    for files in [100, 10_000] {
        let directory = TemporaryDirectory::new("reset")?;
        let root = directory.path.join("tree");
        make_tree(&root, files)?;
        let mut snapshot = TreeSnapshot::take(&root, &directory.path.join("kept")).map_err(text)?;
        // Files written at the time of the copy are compared once more.
        snapshot.reset().map_err(text)?;
        for changed in [0, 1, 100] {
            let ms = cost(&mut snapshot, &root, changed)?;
            rows.push(vec![files.to_string(), changed.to_string(), format!("{ms:.2}")]);
        }
    }
    page.table(&["files", "changed", "ms"], &rows);
    Ok(())
}
