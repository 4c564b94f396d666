//! The tables of the database. Created by the first push, by one of several simultaneous ones, and upgraded
//! by the first push of a newer retake.
//!
//! A push holds [`LOCK`] shared while it runs; changing the tables needs it exclusively.
//! An older retake finds a version that it does not know, and pushes nothing.

use postgres::{Client, GenericClient, Transaction};

use super::Error;

pub(super) const VERSION: i32 = 2;

/// An arbitrary but fixed number.
const LOCK: i64 = 0x7265_7461_6b65;

/// Ensures that the tables exist with a known version, and stay so while the client lives.
pub(super) fn ready(client: &mut Client) -> Result<(), Error> {
    loop {
        client.execute("SELECT pg_advisory_lock_shared($1)", &[&LOCK])?;
        if known_version(client)? == Some(VERSION) {
            return Ok(());
        }
        // The exclusive lock waits for every shared one, including this client's own.
        client.execute("SELECT pg_advisory_unlock_shared($1)", &[&LOCK])?;
        let mut transaction = client.transaction()?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
        make(&mut transaction)?;
        transaction.commit()?;
    }
}

fn make(transaction: &mut Transaction<'_>) -> Result<(), Error> {
    match known_version(transaction)? {
        Some(VERSION) => return Ok(()),
        // Version 1 is the only earlier one.
        Some(_) => {
            transaction.batch_execute(include_str!("upgrade_v1.sql"))?;
            transaction.batch_execute(include_str!("schema_v2.sql"))?;
            transaction.batch_execute(include_str!("upgrade_v1_rows.sql"))?;
        }
        None => transaction.batch_execute(include_str!("schema_v2.sql"))?,
    }
    transaction.execute("INSERT INTO retake.version VALUES ($1)", &[&VERSION])?;
    Ok(())
}

/// The version of the tables; `None` if there are none. An unknown version is an error.
pub(super) fn known_version(client: &mut impl GenericClient) -> Result<Option<i32>, Error> {
    // Not `to_regclass`: it answers from the session's cache, which waiting for an advisory lock does
    // not refresh, so tables that another client has just created would be created again.
    let there = client.query_one(
        "SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'version' AND relnamespace =
           (SELECT oid FROM pg_namespace WHERE nspname = 'retake'))",
        &[],
    )?;
    if !there.get::<_, bool>(0) {
        return Ok(None);
    }
    let row = client.query_one("SELECT max(number) FROM retake.version", &[])?;
    match row.get::<_, Option<i32>>(0) {
        Some(found) if found > VERSION => Err(Error::Newer { found, known: VERSION }),
        found => Ok(found),
    }
}
