//! Crashes a write-ahead log at every point: `cargo run --example wal`, or, with one of the common
//! mistakes, `cargo run --example wal -- replays-twice`.

#![expect(clippy::unwrap_used, reason = "an example")]
#![expect(clippy::print_stderr, reason = "a program")]
#![expect(unreachable_pub, reason = "its modules are used by a test too")]

mod ledger;
mod survive;

use std::process::ExitCode;

use ledger::Flaw;

const FLAWS: [(&str, Flaw); 7] = [
    ("trusts-the-tail", Flaw::TrustsTheTail),
    ("keeps-the-tail", Flaw::KeepsTheTail),
    ("acknowledges-first", Flaw::AcknowledgesFirst),
    ("snapshot-in-place", Flaw::SnapshotInPlace),
    ("empties-log-first", Flaw::EmptiesLogFirst),
    ("replays-twice", Flaw::ReplaysTwice),
    ("forgets-to-sync", Flaw::ForgetsToSync),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let flaw = match &words[..] {
        [] => None,
        [word] if let Some((_, flaw)) = FLAWS.iter().find(|(name, _)| name == word) => Some(*flaw),
        _ => {
            let names = FLAWS.map(|(name, _)| name);
            eprintln!("usage: wal [{}]", names.join(" | "));
            return ExitCode::from(2);
        }
    };
    survive::survives_every_crash(first::Model::Kill, flaw);
    ExitCode::SUCCESS
}
