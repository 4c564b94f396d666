//! The content of a database, and its retention.

use postgres::Client;
use serde::Serialize;

use super::{Address, Error, schema, tls};

/// How long runs are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Retention {
    Forever,
    /// The month of a run and this many whole months after it.
    Months(u32),
}

/// The content of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseState {
    pub schema_version: i32,
    pub retention: Retention,
    pub bytes: u64,
    pub records: u64,
    pub projects: Vec<ProjectSize>,
    /// Months that were just removed because of the retention.
    pub removed_months: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProjectSize {
    pub name: String,
    /// Earlier names.
    pub aliases: Vec<String>,
    pub runs: u64,
}

/// In `retake.settings`.
const RETENTION: &str = "retention_months";
const RETENTION_APPLIED: &str = "retention_applied";

/// The content of the database at this address. Creates nothing there.
pub fn state(address: &Address) -> Result<DatabaseState, Error> {
    read_state(&mut connect(address)?, 0)
}

/// Sets how long runs are kept, for everyone who uses the database, and removes what is older.
pub fn set_retention(address: &Address, retention: Retention) -> Result<DatabaseState, Error> {
    let mut client = connect(address)?;
    if schema::known_version(&mut client)?.is_none() {
        return Err(Error::NoSchema);
    }
    schema::ready(&mut client)?;
    match retention {
        Retention::Forever => {
            client.execute("DELETE FROM retake.settings WHERE name = $1", &[&RETENTION])?;
        }
        Retention::Months(months) => {
            client.execute(
                "INSERT INTO retake.settings VALUES ($1, $2)
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                &[&RETENTION, &months.to_string()],
            )?;
        }
    }
    let removed = apply(&mut client)?;
    read_state(&mut client, removed)
}

pub(super) fn connect(address: &Address) -> Result<Client, Error> {
    let connector = tls::connector(&address.trust)?;
    address.config.connect(connector).map_err(Error::Connect)
}

/// Removes runs older than the retention, at most once a day. Costs one query of the settings without a
/// retention.
pub(super) fn apply_daily(client: &mut Client) -> Result<(), Error> {
    let due = client.query_opt(
        "SELECT FROM retake.settings AS kept WHERE kept.name = $1 AND NOT EXISTS
           (SELECT FROM retake.settings AS applied
            WHERE applied.name = $2 AND applied.value = current_date::text)",
        &[&RETENTION, &RETENTION_APPLIED],
    )?;
    if due.is_some() {
        apply(client)?;
    }
    Ok(())
}

fn apply(client: &mut Client) -> Result<u32, Error> {
    let mut transaction = client.transaction()?;
    transaction.batch_execute("LOCK TABLE retake.settings IN SHARE ROW EXCLUSIVE MODE")?;
    let removed = transaction.query_opt(
        "SELECT retake.remove_before((date_trunc('month', now() AT TIME ZONE 'UTC')
                                      - make_interval(months => value::integer))::date)
         FROM retake.settings WHERE name = $1",
        &[&RETENTION],
    )?;
    transaction.execute(
        "INSERT INTO retake.settings VALUES ($1, current_date::text)
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        &[&RETENTION_APPLIED],
    )?;
    transaction.commit()?;
    Ok(removed.map_or(0, |row| row.get::<_, i32>(0).unsigned_abs()))
}

fn read_state(client: &mut Client, removed_months: u32) -> Result<DatabaseState, Error> {
    let Some(schema_version) = schema::known_version(client)? else { return Err(Error::NoSchema) };
    if schema_version < 2 {
        // An earlier version has neither projects nor settings.
        let row = client.query_one(
            "SELECT (SELECT count(*) FROM retake.records), pg_database_size(current_database())",
            &[],
        )?;
        return Ok(DatabaseState {
            schema_version,
            retention: Retention::Forever,
            bytes: row.get::<_, i64>(1).unsigned_abs(),
            records: row.get::<_, i64>(0).unsigned_abs(),
            projects: Vec::new(),
            removed_months,
        });
    }
    let row = client.query_one(
        "SELECT (SELECT value FROM retake.settings WHERE name = $1),
                (SELECT count(*) FROM retake.records),
                (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
                 WHERE relnamespace = 'retake'::regnamespace AND relkind = 'r')",
        &[&RETENTION],
    )?;
    let months: Option<String> = row.get(0);
    let projects = client.query(
        "SELECT project.name,
                ARRAY(SELECT alias.name FROM retake.project_aliases AS alias
                      WHERE alias.project = project.id ORDER BY 1),
                (SELECT count(*) FROM retake.runs WHERE runs.project = project.id)
         FROM retake.projects AS project ORDER BY 1",
        &[],
    )?;
    Ok(DatabaseState {
        schema_version,
        retention: match months.and_then(|months| months.parse().ok()) {
            Some(months) => Retention::Months(months),
            None => Retention::Forever,
        },
        bytes: row.get::<_, i64>(2).unsigned_abs(),
        records: row.get::<_, i64>(1).unsigned_abs(),
        projects: projects
            .iter()
            .map(|row| ProjectSize {
                name: row.get(0),
                aliases: row.get(1),
                runs: row.get::<_, i64>(2).unsigned_abs(),
            })
            .collect(),
        removed_months,
    })
}
