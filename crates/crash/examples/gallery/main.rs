//! A gallery of key-value stores with one sync missing, to try crash testing on.
//!
//! `gallery put STORE MISSING COUNT` stores pairs in the current directory and prints one line for
//! each; `gallery check` reads `FIRST_ACKS` and fails if an acknowledged pair is missing.

mod store;

use std::path::Path;

use store::{Missing, Pairs, Store, check, recover};

#[expect(clippy::print_stdout, reason = "each line is an acknowledgement")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["put", store, missing, count] => {
            let store = Store::ALL.into_iter().find(|one| format!("{one:?}") == store);
            let missing = Missing::ALL.into_iter().find(|one| format!("{one:?}") == missing);
            let store = store.ok_or("the stores are Snapshot, Log and Compacting")?;
            let missing = missing.ok_or(
                "what is missing is Nothing, SnapshotFile, SnapshotName, LogFile or LogName",
            )?;
            let mut pairs = Pairs::create(Path::new("."), store, missing)?;
            for key in 1..=count.parse()? {
                pairs.put(key, key * key)?;
                println!("put {key}");
            }
            Ok(())
        }
        ["check"] => {
            let acks = std::fs::read_to_string(std::env::var("FIRST_ACKS")?)?;
            let pairs = recover(|name| std::fs::read(name).ok())?;
            Ok(check(&pairs, acks.lines().count())?)
        }
        _ => Err("gallery put STORE MISSING COUNT, or gallery check".into()),
    }
}
