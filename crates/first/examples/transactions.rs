//! The program that `cargo xtask bench crash` measures: SQLite through `rusqlite`, one row per transaction, each
//! acknowledged on stdout.
//!
//! ```text
//! transactions workload MODE COUNT    in FIRST_WORK_DIR
//! transactions check                  of FIRST_WORK_DIR, with the promises in FIRST_ACKS
//! transactions first MODE COUNT       a crash test of both, a crash point at each step
//! ```

#![expect(clippy::print_stdout, reason = "each line is an acknowledgement")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["workload", mode, count] => Ok(workload(&work_dir()?, mode, count.parse()?, &|_| {})?),
        ["check"] => {
            let acks = std::env::var_os("FIRST_ACKS").ok_or("there is no FIRST_ACKS")?;
            Ok(check(&work_dir()?, fs::read_to_string(acks)?.lines().count())?)
        }
        ["first", mode, count] => {
            let (mode, count) = (mode.to_owned(), count.parse()?);
            first::test()
                .run(move |env| {
                    let done =
                        workload(&env.path("."), &mode, count, &|label| first::crash_point(label));
                    assert!(done.is_ok(), "{done:?}");
                })
                .verify(|env, _| {
                    let found = check(&env.path("."), 0);
                    assert!(found.is_ok(), "{found:?}");
                });
            Ok(())
        }
        _ => Err("transactions workload|first MODE COUNT, or transactions check".into()),
    }
}

fn work_dir() -> Result<PathBuf, &'static str> {
    std::env::var_os("FIRST_WORK_DIR").map(PathBuf::from).ok_or("there is no FIRST_WORK_DIR")
}

fn workload(
    directory: &Path,
    mode: &str,
    count: usize,
    point: &dyn Fn(&str),
) -> rusqlite::Result<()> {
    let base = Connection::open(directory.join("db"))?;
    base.pragma_update(None, "journal_mode", mode)?;
    base.pragma_update(None, "synchronous", "FULL")?;
    base.execute_batch("CREATE TABLE IF NOT EXISTS t (number INTEGER PRIMARY KEY, text TEXT)")?;
    for number in 0..count {
        point("begin");
        base.execute_batch("BEGIN IMMEDIATE")?;
        base.execute("INSERT INTO t VALUES (?1, ?2)", (number as i64, "some text of a row"))?;
        point("inserted");
        base.execute_batch("COMMIT")?;
        println!("{number}");
        point("committed");
    }
    Ok(())
}

/// Intact, and with at least as many rows as were promised.
fn check(directory: &Path, promised: usize) -> Result<(), String> {
    let path = directory.join("db");
    if !path.exists() {
        return if promised == 0 { Ok(()) } else { Err("the database is lost".into()) };
    }
    let look = || {
        let base = Connection::open(&path)?;
        let whole: String = base.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        let table = "SELECT count(*) FROM sqlite_master WHERE name = 't'";
        let made: i64 = base.query_row(table, [], |row| row.get(0))?;
        let rows = match made {
            0 => 0,
            _ => base.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))?,
        };
        Ok::<_, rusqlite::Error>((whole, rows))
    };
    match look().map_err(|error| error.to_string())? {
        (whole, rows) if whole == "ok" && rows >= promised as i64 => Ok(()),
        found => Err(format!("{found:?}, and {promised} rows were promised")),
    }
}
