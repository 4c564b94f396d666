//! The schema, as numbered migrations. Append only: a published migration is never edited.
//!
//! The number of migrations applied is SQLite's `user_version`, so an open costs one pragma.

use std::collections::BTreeMap;
use std::fmt;

use rusqlite::Connection;

use crate::base::dir::StoreDir;
use crate::base::effect_rows;
use crate::{Error, Result};

/// "rtak", by which tools such as file(1) recognise the database.
const APPLICATION_ID: i64 = 0x7274_616B;

const MIGRATIONS: [&str; 4] = [
    include_str!("schema/001.sql"),
    include_str!("schema/002.sql"),
    include_str!("schema/003.sql"),
    include_str!("schema/004.sql"),
];
/// The first version that has the tables of [`EffectRows`](crate::base::effect_rows::EffectRows).
pub(crate) const WITH_EFFECTS: i64 = 2;
/// The first version that keeps the block hashes of outputs.
pub(crate) const WITH_BLOCKS: i64 = 3;
/// The first version that records what test results imply about tests they do not name.
pub(crate) const WITH_VOUCHING: i64 = 4;

pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

pub(crate) fn version(connection: &Connection, dir: &StoreDir) -> Result<i64> {
    of(connection).map_err(|error| Error::sqlite("read the schema version", dir.database(), error))
}

/// The version of an open database.
pub(crate) fn of(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// A defect of the tables that retake itself never causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaFault {
    /// A table or an index is missing.
    Missing { kind: String, name: String },
    /// A table or an index differs from its definition: a column is missing, for example.
    Different { kind: String, name: String },
    /// An object of a later version than the recorded one.
    TooEarly { version: i64, name: String },
}

impl fmt::Display for SchemaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { kind, name } => write!(f, "the {kind} `{name}` is missing"),
            Self::Different { kind, name } => write!(f, "the {kind} `{name}` was changed"),
            Self::TooEarly { version, name } => {
                write!(f, "its schema version {version} is too low: it has `{name}`")
            }
        }
    }
}

/// Type and SQL of each table and index, by name. SQLite's own have no SQL.
type Objects = BTreeMap<String, (String, String)>;

fn objects(connection: &Connection) -> rusqlite::Result<Objects> {
    connection
        .prepare("SELECT name, type, sql FROM sqlite_schema WHERE sql IS NOT NULL")?
        .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?
        .collect()
}

fn expected(version: i64) -> rusqlite::Result<Objects> {
    let fresh = Connection::open_in_memory()?;
    for sql in MIGRATIONS.iter().take(usize::try_from(version).unwrap_or(0)) {
        fresh.execute_batch(sql)?;
    }
    objects(&fresh)
}

/// Compares the schema with the one that the migrations make.
pub(crate) fn faults(connection: &Connection) -> rusqlite::Result<Vec<SchemaFault>> {
    let version = of(connection)?;
    let found = objects(connection)?;
    let made = expected(version)?;
    let mut faults = Vec::new();
    for (name, (kind, sql)) in &made {
        let (kind, name) = (kind.clone(), name.clone());
        match found.get(&name) {
            None => faults.push(SchemaFault::Missing { kind, name }),
            // The tables inside the search index belong to SQLite.
            Some((_, found)) if found != sql && !name.starts_with("search_") => {
                faults.push(SchemaFault::Different { kind, name });
            }
            Some(_) => {}
        }
    }
    let later = expected(SCHEMA_VERSION)?;
    let early = later.into_keys().find(|name| !made.contains_key(name) && found.contains_key(name));
    faults.extend(early.map(|name| SchemaFault::TooEarly { version, name }));
    Ok(faults)
}

/// Refuses what this retake cannot read; returns whether migrations are pending.
pub(crate) fn check(connection: &Connection, dir: &StoreDir) -> Result<bool> {
    let found = version(connection, dir)?;
    if found > SCHEMA_VERSION {
        return Err(Error::Newer { path: dir.database().to_owned(), found, known: SCHEMA_VERSION });
    }
    if found == SCHEMA_VERSION {
        return Ok(false);
    }
    let failed = |error| Error::sqlite("read the schema", dir.database(), error);
    // One snapshot for all queries: between two of them another process may migrate the record.
    let look = connection.unchecked_transaction().map_err(failed)?;
    let found = of(&look).map_err(failed)?;
    let tables = objects(&look).map_err(failed)?;
    if found == 0 && !tables.is_empty() && !tables.contains_key("ledger") {
        return Err(Error::NotARecord {
            path: dir.database().to_owned(),
            detail: format!("it has {} tables and indexes of something else", tables.len()),
        });
    }
    match faults(&look).map_err(failed)?.first() {
        Some(fault) => {
            Err(Error::Corrupt { path: dir.database().to_owned(), detail: fault.to_string() })
        }
        None => Ok(found < SCHEMA_VERSION),
    }
}

/// Creates the tables in an empty database.
pub(crate) fn create(connection: &mut Connection, dir: &StoreDir) -> Result<()> {
    let failed = |error| Error::sqlite("make the tables", dir.database(), error);
    let transaction = connection.transaction().map_err(failed)?;
    for sql in MIGRATIONS {
        transaction.execute_batch(sql).map_err(failed)?;
    }
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(failed)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    transaction.commit().map_err(failed)
}

/// Applies pending migrations, each with its number in one transaction. The caller holds the write
/// turn; an earlier holder may have migrated already.
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
        if next + 1 == WITH_VOUCHING {
            effect_rows::derive_vouching(&transaction).map_err(failed)?;
        }
        transaction.pragma_update(None, "user_version", next + 1).map_err(failed)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}
