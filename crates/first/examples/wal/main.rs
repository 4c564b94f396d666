//! Crashes a write-ahead log at every point: `cargo run --example wal`, and, with one of the usual
//! mistakes in it, `cargo run --example wal -- replays-twice`.

#![expect(clippy::unwrap_used, reason = "an example")]
#![expect(clippy::print_stderr, reason = "a program")]
#![expect(unreachable_pub, reason = "its modules are used by a test too")]

mod ledger;
mod survive;

use std::process::ExitCode;

use ledger::Flaw;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let flaw = match &words[..] {
        [] => None,
        [word] if let Some((_, flaw)) = Flaw::ALL.iter().find(|(name, _)| name == word) => {
            Some(*flaw)
        }
        _ => {
            let names = Flaw::ALL.map(|(name, _)| name);
            eprintln!("usage: wal [{}]", names.join(" | "));
            return ExitCode::from(2);
        }
    };
    survive::survives_every_crash(flaw);
    ExitCode::SUCCESS
}
