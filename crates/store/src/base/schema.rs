//! The schema, as numbered migrations. Append only: a published migration is never edited.
//!
//! The number of migrations applied is SQLite's `user_version`, so an open costs one pragma.

use rusqlite::Connection;

use crate::base::dir::StoreDir;
use crate::{Error, Result};

/// "rtak", so that tools such as file(1) can tell the database from any other.
const APPLICATION_ID: i64 = 0x7274_616B;

const MIGRATIONS: [&str; 3] = [
    include_str!("schema/001.sql"),
    include_str!("schema/002.sql"),
    include_str!("schema/003.sql"),
];
/// The first version that has the tables of [`EffectRows`](crate::base::effect_rows::EffectRows).
pub(crate) const WITH_EFFECTS: i64 = 2;
/// The first version that keeps the block hashes of outputs.
pub(crate) const WITH_BLOCKS: i64 = 3;

pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

pub(crate) fn version(connection: &Connection, dir: &StoreDir) -> Result<i64> {
    of(connection).map_err(|error| Error::sqlite("read the schema version", dir.database(), error))
}

/// The version of an open database.
pub(crate) fn of(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Refuses what this retake cannot read; says whether migrations are due.
pub(crate) fn check(connection: &Connection, dir: &StoreDir) -> Result<bool> {
    let found = version(connection, dir)?;
    if found > SCHEMA_VERSION {
        return Err(Error::Newer { path: dir.database().to_owned(), found, known: SCHEMA_VERSION });
    }
    if found == 0 {
        let failed = |error| Error::sqlite("read the schema", dir.database(), error);
        // One look at both: between two of them another process may have made the record.
        let look = connection.unchecked_transaction().map_err(failed)?;
        let found = of(&look).map_err(failed)?;
        let tables: i64 = look
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .map_err(failed)?;
        drop(look);
        if found == 0 && tables > 0 {
            return Err(Error::NotARecord {
                path: dir.database().to_owned(),
                detail: format!("it has {tables} tables and indexes of something else"),
            });
        }
    }
    Ok(found < SCHEMA_VERSION)
}

/// Applies what is missing, each migration and its number in one transaction. The caller holds
/// the write turn; the first to get it has already done the work.
pub(crate) fn migrate(connection: &mut Connection, dir: &StoreDir) -> Result<()> {
    let failed = |error| Error::sqlite("migrate the schema", dir.database(), error);
    while check(connection, dir)? {
        let next = version(connection, dir)?;
        let migration = usize::try_from(next).ok().and_then(|index| MIGRATIONS.get(index));
        let Some(sql) = migration else {
            return Err(Error::Corrupt {
                path: dir.database().to_owned(),
                detail: format!("its schema version is {next}"),
            });
        };
        let transaction = connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .map_err(failed)?;
        transaction.execute_batch(sql).map_err(failed)?;
        transaction.pragma_update(None, "user_version", next + 1).map_err(failed)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}
