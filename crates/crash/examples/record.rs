//! Records a command and prints the cost of that and of its last state: `record ROOT PROGRAM ARGS…`.
//!
//! The log goes to the file named by `FIRST_LOG`, if it is set.

#![expect(clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use retake_crash::model::TreeEntryKind;
use retake_crash::operation::Entry;

fn main() -> ExitCode {
    match record() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("record: {error}");
            ExitCode::from(125)
        }
    }
}

fn record() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(root), Some(program)) = (arguments.next(), arguments.next()) else {
        return Err("usage: record ROOT PROGRAM ARGS…".into());
    };
    let start = Instant::now();
    let recorded = retake_crash::record(program).args(arguments).root(root).run()?;
    let took = start.elapsed();
    let entries = &recorded.recording.entries;
    let operations = entries.iter().filter(|entry| matches!(entry, Entry::Operation(_))).count();
    eprintln!(
        "{:?}: {operations} operations, {} entries, {took:?}",
        recorded.outcome,
        entries.len()
    );
    let mut tree = retake_crash::model::Tree::new(&recorded.recording.initial);
    for entry in entries {
        if let Entry::Operation(operation) = entry {
            tree.apply(&operation.action);
        }
    }
    let mut best = Duration::MAX;
    let mut bytes = 0;
    for _ in 0..20 {
        let scratch = retake_crash::scratch::ScratchDir::new(None)?;
        let start = Instant::now();
        retake_crash::materialise(&tree, scratch.path())?;
        best = best.min(start.elapsed());
        bytes = tree.walk().fold(0, |sum, found| match found.kind {
            TreeEntryKind::File(view) => sum + view.size(),
            _ => sum,
        });
    }
    eprintln!("its last state has {bytes} bytes and is put on disk in {best:?}");
    if let Some(path) = std::env::var_os("FIRST_LOG") {
        retake_crash::log::write(File::create(path)?, &recorded.recording)?;
    }
    Ok(())
}
