//! A small SQLite database through `rusqlite`: rows that are promised one by one, and a check that
//! distinguishes a damaged database from one that only lost promised rows.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Error, Result};

pub(crate) const JOURNALS: [&str; 6] = ["DELETE", "TRUNCATE", "PERSIST", "MEMORY", "WAL", "OFF"];
pub(crate) const SYNCHRONOUS: [&str; 4] = ["OFF", "NORMAL", "FULL", "EXTRA"];

fn path(directory: &Path) -> PathBuf {
    directory.join("db")
}

/// Creates the tables, before anything is recorded. A write-ahead log is a property of the database, and
/// enabling it is a transaction with a journal that is deleted.
pub(crate) fn create(directory: &Path, journal: &str) -> Result<()> {
    let base = Connection::open(path(directory))?;
    base.execute_batch(
        "PRAGMA page_size = 1024;
         CREATE TABLE t (number INTEGER, text TEXT);
         CREATE TABLE n (value INTEGER);
         INSERT INTO n VALUES (0);",
    )?;
    base.pragma_update_and_check(None, "journal_mode", journal, |_| Ok(()))
}

/// Transactions that change both tables, each promised after its commit has returned.
pub(crate) fn put(
    directory: &Path,
    journal: &str,
    synchronous: &str,
    count: u32,
    mut promise: impl FnMut(u32),
) -> Result<()> {
    let mut base = Connection::open(path(directory))?;
    // Small, so that pages are written before the commit, too.
    base.pragma_update(None, "cache_size", 5)?;
    base.pragma_update(None, "synchronous", synchronous)?;
    base.pragma_update_and_check(None, "journal_mode", journal, |_| Ok(()))?;
    for number in 1..=count {
        let transaction = base.transaction()?;
        transaction.execute("INSERT INTO t VALUES (?1, ?2)", (number, "x".repeat(8000)))?;
        transaction.execute("UPDATE n SET value = ?1", [number])?;
        transaction.commit()?;
        promise(number);
    }
    Ok(())
}

/// What is wrong with a database.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum CheckError {
    /// Promised rows are missing; the rest is intact.
    Lost(String),
    Damaged(String),
}

pub(crate) fn check(directory: &Path, promised: u32) -> std::result::Result<(), CheckError> {
    let damaged = |error: Error| CheckError::Damaged(error.to_string());
    let base = Connection::open(path(directory)).map_err(damaged)?;
    let text = |sql: &str| base.query_row(sql, [], |row| row.get::<_, String>(0));
    let number = |sql: &str| base.query_row(sql, [], |row| row.get::<_, u32>(0));
    let found = text("PRAGMA integrity_check").map_err(damaged)?;
    if found != "ok" {
        return Err(CheckError::Damaged(found));
    }
    let rows = number("SELECT count(*) FROM t").map_err(damaged)?;
    let last = number("SELECT value FROM n").map_err(damaged)?;
    if rows != last {
        return Err(CheckError::Damaged(format!("{rows} rows, and the last one is {last}")));
    }
    if rows < promised {
        return Err(CheckError::Lost(format!(
            "{promised} rows were promised and {rows} are there"
        )));
    }
    Ok(())
}
