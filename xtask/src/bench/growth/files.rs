//! Runs whose changed files are reported, in trees with more and more files.

use std::path::Path;

use super::{Expected, Growth, answer_ms, steps, text};
use crate::bench::exec::{program, scratch, timed};
use crate::page::Page;

const PER_DIRECTORY: u64 = 500;

pub(super) fn run(page: &mut Page, largest: u64) -> Result<(), String> {
    page.section(
        "Files in a tree, milliseconds",
        "`exec --track` of a command that does nothing, and of one that changes a file, warm. The first one has no snapshot of \
         an earlier run and reads every file.",
    );
    let steps = steps(largest, 10_000);
    let mut growth = Growth::new(&steps);
    let retake = program("retake")?;
    for &files in &steps {
        eprint!("\rfiles: {files}");
        let directory = scratch()?;
        let (tree, store) = (directory.join("tree"), directory.join("store"));
        plant(&tree, files)?;
        let line = |command: &str| {
            format!(
                "cd {} && exec {} --store {} exec --quiet --track -- {command}",
                tree.display(),
                retake.display(),
                store.display()
            )
        };
        growth.add("exec --track, the first", Expected::Tenfold, answer_ms(&line("true"), 1)?);
        growth.add(
            "exec --track, nothing changed",
            Expected::Tenfold,
            answer_ms(&line("true"), 5)?,
        );
        let change = "sh -c 'date +%N >d0/f0'";
        growth.add(
            "exec --track, one file changed",
            Expected::Tenfold,
            answer_ms(&line(change), 5)?,
        );
        let (_, _, rss) = timed(&["sh", "-c", &line("true")])?;
        growth.add("the same, peak MiB", Expected::Tenfold, rss / 1024.0);
        std::fs::remove_dir_all(&directory).map_err(text)?;
    }
    eprintln!();
    growth.table(page);
    Ok(())
}

fn plant(tree: &Path, files: u64) -> Result<(), String> {
    for number in 0..files {
        let directory = tree.join(format!("d{}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            std::fs::create_dir_all(&directory).map_err(text)?;
        }
        let file = directory.join(format!("f{}", number % PER_DIRECTORY));
        std::fs::write(file, format!("file {number}\n")).map_err(text)?;
    }
    // Pending writes would disturb the next measurement.
    // SAFETY: no arguments.
    unsafe { libc::sync() };
    Ok(())
}
