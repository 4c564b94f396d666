//! The tables there. Made on the first push, by one of those who push at the same time.

use postgres::Transaction;

use super::Error;

const VERSION: i32 = 1;

/// Any number, as long as it is always the same.
const LOCK: i64 = 0x7265_7461_6b65;

/// Sees to it that the tables are there and are ours to use.
pub(super) fn ready(transaction: &mut Transaction<'_>) -> Result<(), Error> {
    let found = version(transaction)?;
    if found == Some(VERSION) {
        return Ok(());
    }
    if let Some(found) = found.filter(|found| *found > VERSION) {
        return Err(Error::Newer { found, known: VERSION });
    }
    // Two that make the same table at once would both fail.
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
    if version(transaction)? == Some(VERSION) {
        return Ok(());
    }
    transaction.batch_execute(include_str!("schema.sql"))?;
    transaction.execute("INSERT INTO retake.version VALUES ($1)", &[&VERSION])?;
    Ok(())
}

fn version(transaction: &mut Transaction<'_>) -> Result<Option<i32>, Error> {
    let there = transaction.query_one("SELECT to_regclass('retake.version') IS NOT NULL", &[])?;
    if !there.get::<_, bool>(0) {
        return Ok(None);
    }
    let row = transaction.query_one("SELECT max(number) FROM retake.version", &[])?;
    Ok(row.get(0))
}
