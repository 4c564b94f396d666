//! Which runs were imported from another record, and when. Retention counts their age from the
//! import; otherwise an old run would be erased right after its import.
//!
//! The ledger holds the imports; a settings row per import is derived from it.

use jiff::Timestamp;
use rusqlite::Connection;

use crate::base::ledger::{self, Entry, Import};

/// The prefix of a row's name, before the number of the ledger entry.
const PREFIX: &str = "import:";

/// Appends an import to the ledger, inside the transaction that appended its runs.
pub(crate) fn append(connection: &Connection, import: Import) -> rusqlite::Result<()> {
    let seq = ledger::append(connection, &Entry::Import(import.clone()))?;
    note(connection, seq, &import)
}

/// Derives the row of an import in the ledger.
pub(crate) fn note(connection: &Connection, seq: i64, import: &Import) -> rusqlite::Result<()> {
    let (first, last) = import.entries;
    connection.execute(
        "INSERT OR REPLACE INTO settings (name, value) VALUES (?1, ?2)",
        (format!("{PREFIX}{seq}"), format!("{} {first} {last}", import.at.as_microsecond())),
    )?;
    Ok(())
}

/// The entries of runs imported after this time, as first and last.
pub(crate) fn since(connection: &Connection, time: Timestamp) -> rusqlite::Result<Vec<(i64, i64)>> {
    let mut statement =
        connection.prepare("SELECT value FROM settings WHERE name LIKE ?1 || '%'")?;
    let mut rows = statement.query([PREFIX])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let value: String = row.get(0)?;
        let numbers: Vec<i64> = value.split(' ').filter_map(|number| number.parse().ok()).collect();
        if let [at, first, last] = numbers[..]
            && at > time.as_microsecond()
        {
            found.push((first, last));
        }
    }
    Ok(found)
}

/// Drops the rows of imports that are too old to matter for retention.
pub(crate) fn forget_before(connection: &Connection, time: Timestamp) -> rusqlite::Result<()> {
    connection.execute(
        "DELETE FROM settings WHERE name LIKE ?1 || '%'
           AND CAST(substr(value, 1, instr(value, ' ') - 1) AS INTEGER) <= ?2",
        (PREFIX, time.as_microsecond()),
    )?;
    Ok(())
}
