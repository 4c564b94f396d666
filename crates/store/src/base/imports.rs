//! Which runs came from another record, and when. The retention counts their age from the import: a
//! run that was old already would otherwise be erased as soon as it arrived.
//!
//! The ledger says it; a row of the settings for each import is derived from it.

use jiff::Timestamp;
use rusqlite::Connection;

use crate::base::ledger::{self, Entry, Import};

/// The name of a row begins with this, and the number of the ledger's entry follows.
const PREFIX: &str = "import:";

/// Appends an import to the ledger, inside the transaction that appended its runs.
pub(crate) fn append(connection: &Connection, import: Import) -> rusqlite::Result<()> {
    let seq = ledger::append(connection, &Entry::Import(import.clone()))?;
    note(connection, seq, &import)
}

/// Derives the row of an import that the ledger has.
pub(crate) fn note(connection: &Connection, seq: i64, import: &Import) -> rusqlite::Result<()> {
    let (first, last) = import.entries;
    connection.execute(
        "INSERT OR REPLACE INTO settings (name, value) VALUES (?1, ?2)",
        (format!("{PREFIX}{seq}"), format!("{} {first} {last}", import.at.as_microsecond())),
    )?;
    Ok(())
}

/// The entries of runs that were imported after this time, as first and last.
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

/// Drops the rows of imports that the retention does not ask for any more.
pub(crate) fn forget_before(connection: &Connection, time: Timestamp) -> rusqlite::Result<()> {
    connection.execute(
        "DELETE FROM settings WHERE name LIKE ?1 || '%'
           AND CAST(substr(value, 1, instr(value, ' ') - 1) AS INTEGER) <= ?2",
        (PREFIX, time.as_microsecond()),
    )?;
    Ok(())
}
