//! SQLite through `rusqlite`, to try crash testing on:
//!
//! ```text
//! sqlite create DELETE; retake crash --root . --verify 'sqlite check' -- sqlite put DELETE FULL 3
//! ```

mod database;

use std::path::Path;

use database::{CheckError, JOURNALS, SYNCHRONOUS, check, create, put};

#[expect(clippy::print_stdout, reason = "each line is an acknowledgement")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let here = Path::new(".");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["create", journal] if JOURNALS.contains(&journal) => Ok(create(here, journal)?),
        ["put", journal, synchronous, count]
            if JOURNALS.contains(&journal) && SYNCHRONOUS.contains(&synchronous) =>
        {
            Ok(put(here, journal, synchronous, count.parse()?, |number| println!("row {number}"))?)
        }
        ["check"] => {
            let acks = std::fs::read_to_string(std::env::var("FIRST_ACKS")?)?;
            match check(here, u32::try_from(acks.lines().count())?) {
                Ok(()) => Ok(()),
                Err(CheckError::Lost(what)) => Err(what.into()),
                Err(CheckError::Damaged(what)) => Err(format!("damaged: {what}").into()),
            }
        }
        _ => Err(format!(
            "sqlite create JOURNAL, sqlite put {} {} COUNT, or sqlite check",
            JOURNALS.join("|"),
            SYNCHRONOUS.join("|")
        )
        .into()),
    }
}
