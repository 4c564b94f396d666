//! The database that is pushed to: cached facts about it, and statements that several parts of a push use.

use std::collections::HashMap;
use std::io::Write;

use postgres::{Client, GenericClient, Row, Transaction};
use retake_types::RunId;

use super::Error;
use super::copy_rows::CopyRows;
use super::ledger_rows::ENDING;
use super::months::Months;
use super::pushed::Pushed;

/// The database, as far as it is known.
pub(super) struct Target {
    /// The record's id in the database.
    pub(super) record: RunId,
    /// The numbers of projects.
    pub(super) numbers: HashMap<String, i32>,
    pub(super) months: Months,
    pub(super) pushed: Pushed,
    /// Temporary tables that were created; each is created on demand.
    temporary: Vec<&'static str>,
    /// Another record has sent some of this record's runs.
    pub(super) known_runs: bool,
}

impl Target {
    pub(super) fn new(record: RunId) -> Self {
        Self {
            record,
            numbers: HashMap::new(),
            months: Months::default(),
            pushed: Pushed::default(),
            temporary: Vec::new(),
            known_runs: false,
        }
    }

    /// The number of the project of this name, created if it is new.
    pub(super) fn number(
        &mut self,
        client: &mut impl GenericClient,
        name: &str,
    ) -> Result<i32, Error> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = client.query_one("SELECT retake.project_of($1)", &[&name])?.get(0);
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Creates a temporary table, once. Call it outside of a transaction.
    pub(super) fn need(&mut self, client: &mut Client, table: &'static str) -> Result<(), Error> {
        if !self.temporary.contains(&table) {
            client.batch_execute(&temporary_table(table))?;
            self.temporary.push(table);
        }
        Ok(())
    }

    /// How much was sent already. With `FOR UPDATE` other pushes of this record wait for this
    /// transaction.
    pub(super) fn position(
        &self,
        client: &mut impl GenericClient,
        lock: &str,
    ) -> Result<(u64, Option<String>), Error> {
        let row = client.query_one(
            &format!("SELECT pushed, head FROM retake.records WHERE id = $1::text::uuid {lock}"),
            &[&self.record.to_string()],
        )?;
        Ok((row.get::<_, i64>(0).unsigned_abs(), row.get(1)))
    }
}

/// The definition of a temporary table.
fn temporary_table(name: &str) -> String {
    match name {
        "new_endings" => format!(
            "CREATE TEMP TABLE new_endings ON COMMIT DELETE ROWS AS
               SELECT id, {ENDING} FROM retake.runs WITH NO DATA"
        ),
        other => {
            let like = other.trim_start_matches("new_");
            format!("CREATE TEMP TABLE {other} (LIKE retake.{like}) ON COMMIT DELETE ROWS")
        }
    }
}

/// The ids in a query's result.
pub(super) fn ids(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.get(0)).collect()
}

/// Ids as a PostgreSQL array.
pub(super) fn array(ids: &[String]) -> String {
    format!("{{{}}}", ids.join(","))
}

/// Adds the rows that are derived from runs (`sign` 1), or removes them (-1).
pub(super) fn derive(
    transaction: &mut Transaction<'_>,
    ids: &[String],
    sign: i32,
) -> Result<(), Error> {
    if !ids.is_empty() {
        let ids = array(ids);
        transaction.execute("SELECT retake.derive($1::text::uuid[], $2)", &[&ids, &sign])?;
    }
    Ok(())
}

pub(super) fn copy(
    transaction: &mut Transaction<'_>,
    into: &str,
    rows: &CopyRows,
) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut writer = transaction.copy_in(&format!("COPY {into} FROM STDIN"))?;
    writer.write_all(rows.as_bytes())?;
    writer.finish()?;
    Ok(())
}
