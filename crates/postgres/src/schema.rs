//! The tables there. Made on the first push, by one of those who push at the same time, and brought
//! to this version by the first push of a retake that knows it.
//!
//! Who pushes holds [`LOCK`] shared for as long as that takes; who changes the tables holds it alone.
//! A retake that knows only an earlier version finds a number it does not know, and pushes nothing.

use postgres::{Client, GenericClient, Transaction};

use super::Error;

pub(super) const VERSION: i32 = 2;

/// Any number, as long as it is always the same.
const LOCK: i64 = 0x7265_7461_6b65;

/// Sees to it that the tables are there and are ours to use, and stay so while the client lives.
pub(super) fn ready(client: &mut Client) -> Result<(), Error> {
    loop {
        client.execute("SELECT pg_advisory_lock_shared($1)", &[&LOCK])?;
        if known_version(client)? == Some(VERSION) {
            return Ok(());
        }
        // The exclusive lock waits for every shared one, this client's own included.
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

/// The version of the tables; `None` if there are none. One that is not known is an error.
pub(super) fn known_version(client: &mut impl GenericClient) -> Result<Option<i32>, Error> {
    // Not `to_regclass`: it answers from the session's cache, which waiting for an advisory lock does
    // not bring up to date, and tables that another client has just made would be made again.
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
