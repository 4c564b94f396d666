//! The record of many machines, read from the database they push to. Nothing is written: the session is
//! read-only on the server, too.
//!
//! Runs are read from the ledger's JSON, as from a local record. A run without an outcome
//! counts as running: its record has not pushed its outcome.

mod figures;
mod loops;
mod outputs;
mod run_filter;
mod runs;
mod test_history;

use std::cell::RefCell;

use jiff::Timestamp;
use postgres::error::SqlState;
use postgres::types::ToSql;
use postgres::{Client, Row};
use retake_store::{
    DurationOrder, DurationPage, DurationPlace, GroupedPage, InterleavedReader, Liveness,
    LoopCursor, LoopEntry, LoopPage, NewOutput, OutputReader, RecordReader, RunCursor, RunDetail,
    RunFilter, RunNeighbours, RunPage, RunSeries, RunsBetween, RunsByDuration, SearchEffort,
    SearchResults, StartOrder, StoredLoop, TestHistory, TimeSlice, Totals, new_output,
};
use retake_types::{Kind, LoopId, Run, RunId, State, Stream};

use super::{Address, Error, database, schema};

type StoreResult<T> = retake_store::Result<T>;

/// A parameter of a query.
type Parameter = dyn ToSql + Sync;

/// Time limit of a query; a browser's page waits for it.
const LONGEST: &str = "15s";

/// A connection to the database that machines push to.
pub struct SharedRecord {
    /// `None` once it is dropped.
    client: RefCell<Option<Client>>,
    /// The number of the project to read; `None` for all.
    project: Option<i32>,
}

impl SharedRecord {
    /// Connects. The tables must exist, in the version that this retake knows.
    pub fn open(address: &Address) -> Result<Self, Error> {
        let mut client = database::connect(address)?;
        match schema::known_version(&mut client)? {
            None => return Err(Error::NoSchema),
            Some(found) if found < schema::VERSION => {
                return Err(Error::Older { found, known: schema::VERSION });
            }
            Some(_) => {}
        }
        client.batch_execute(&format!(
            "SET default_transaction_read_only = on; SET statement_timeout = '{LONGEST}'"
        ))?;
        Ok(Self { client: RefCell::new(Some(client)), project: None })
    }

    fn query(
        &self,
        action: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> StoreResult<Vec<Row>> {
        let mut client = self.client.borrow_mut();
        let Some(client) = client.as_mut() else { return Ok(Vec::new()) };
        client.query(sql, parameters).map_err(|error| failed(action, &error))
    }

    /// The condition that a row of a table belongs to the selected project.
    fn of_project(&self, table: &str) -> String {
        match self.project {
            Some(number) => format!("{table}.project = {number}"),
            None => "true".to_owned(),
        }
    }
}

/// Dropping the client ends its own runtime, which must not happen on a thread of another runtime.
impl Drop for SharedRecord {
    fn drop(&mut self) {
        if let Some(client) = self.client.get_mut().take() {
            // If no thread can be started, the connection ends with the process.
            drop(std::thread::Builder::new().spawn(move || drop(client)));
        }
    }
}

fn failed(action: &'static str, error: &postgres::Error) -> retake_store::Error {
    let detail = match error.code() {
        Some(&SqlState::QUERY_CANCELED) => {
            format!("it took longer than {LONGEST}; ask for a project or a shorter time")
        }
        _ => super::error_text::refused(error),
    };
    retake_store::Error::Shared { action, detail }
}

/// Converts a column of microseconds to a time.
fn time(us: i64) -> Timestamp {
    // A time outside of the representable range was not written by a run.
    Timestamp::from_microsecond(us).unwrap_or(Timestamp::MAX)
}

/// A column of times, as microseconds.
fn microseconds(column: &str) -> String {
    format!("(extract(epoch FROM {column}) * 1000000)::bigint")
}

/// The LIMIT of a query.
fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl RecordReader for SharedRecord {
    fn projects(&self) -> StoreResult<Vec<String>> {
        let sql = "SELECT name FROM retake.projects ORDER BY name";
        let rows = self.query("list the projects", sql, &[])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn select_project(&mut self, project: Option<&str>) -> StoreResult<()> {
        self.project = match project {
            None => {
                // Detects a broken connection.
                self.query("ask the database", "SELECT 1", &[])?;
                None
            }
            Some(name) => {
                // A project is also found by its earlier names.
                let sql = "SELECT id FROM retake.projects WHERE name = $1
                           UNION ALL SELECT project FROM retake.project_aliases WHERE name = $1";
                let rows = self.query("look for a project", sql, &[&name])?;
                let missing = || retake_store::Error::NoProject { name: name.to_owned() };
                Some(rows.first().ok_or_else(missing)?.get(0))
            }
        };
        Ok(())
    }

    fn get(&self, id: RunId) -> StoreResult<Run> {
        self.run(id)
    }

    fn find(&self, text: &str) -> StoreResult<Run> {
        self.run_named(text)
    }

    fn children(&self, of: &Run) -> StoreResult<Vec<Run>> {
        self.runs_inside(of)
    }

    fn list_in(
        &self,
        detail: RunDetail,
        order: StartOrder,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: usize,
    ) -> StoreResult<(RunPage, Vec<retake_store::Error>)> {
        self.page(detail, order, filter, after, limit)
    }

    fn list_grouped(
        &self,
        kind: Option<Kind>,
        after: Option<RunCursor>,
        limit: usize,
    ) -> StoreResult<GroupedPage> {
        self.grouped_page(kind, after, limit)
    }

    /// The server sorts them itself.
    fn runs_by_duration(&self) -> StoreResult<RunsByDuration> {
        Ok(RunsByDuration::default())
    }

    fn list_by_duration(
        &self,
        _all: &RunsByDuration,
        filter: &RunFilter,
        order: DurationOrder,
        after: Option<DurationPlace>,
        limit: usize,
    ) -> StoreResult<DurationPage> {
        self.duration_page(filter, order, after, limit)
    }

    fn search_from(
        &self,
        text: &str,
        filter: &RunFilter,
        from: Option<u64>,
        limit: usize,
        effort: SearchEffort,
    ) -> StoreResult<SearchResults> {
        self.search_outputs(text, filter, from.unwrap_or(0), limit, effort)
    }

    fn neighbours(&self, run: &Run, series: &RunSeries) -> StoreResult<RunNeighbours> {
        self.neighbours_of(run, series)
    }

    fn watched_between(&self, a: &Run, b: &Run, most: usize) -> StoreResult<RunsBetween> {
        self.effects_between(a, b, most)
    }

    fn totals(&self) -> StoreResult<Totals> {
        self.sums()
    }

    fn timeline(
        &self,
        since: Timestamp,
        until: Timestamp,
        count: usize,
    ) -> StoreResult<Vec<TimeSlice>> {
        self.slices(since, until, count)
    }

    fn slowest_commands(&self, since: Timestamp, limit: usize) -> StoreResult<Vec<Run>> {
        self.slowest(since, limit)
    }

    fn each_test(
        &self,
        pattern: Option<&str>,
        take: &mut dyn FnMut(TestHistory),
    ) -> StoreResult<()> {
        self.test_histories(pattern, take)
    }

    fn test_named(&self, name: &str, most: usize) -> StoreResult<Option<TestHistory>> {
        self.test_history(name, most)
    }

    fn runs_with_tests(&self) -> StoreResult<u64> {
        self.count_runs_with_tests()
    }

    fn get_loop(&self, id: LoopId) -> StoreResult<StoredLoop> {
        self.one_loop(id)
    }

    /// A runner counts as alive until its record pushes that it died.
    fn loop_liveness(&self, _id: LoopId) -> Liveness {
        Liveness::Alive
    }

    fn page_loops(
        &self,
        kind: Option<Kind>,
        after: Option<LoopCursor>,
        limit: usize,
    ) -> StoreResult<LoopPage> {
        self.loops(kind, after, limit)
    }

    fn loop_entries(&self, id: LoopId, after: u64, limit: usize) -> StoreResult<Vec<LoopEntry>> {
        self.events(id, after, limit)
    }

    fn last_loop_entry(&self, id: LoopId) -> StoreResult<u64> {
        self.last_event(id)
    }

    fn read_output(&self, id: RunId, stream: Stream) -> StoreResult<OutputReader> {
        self.output(id, stream)
    }

    /// The order of arrival is not pushed: stderr follows stdout.
    fn read_interleaved(&self, id: RunId) -> StoreResult<InterleavedReader> {
        Ok(InterleavedReader::of_streams([
            self.output(id, Stream::Stdout)?,
            self.output(id, Stream::Stderr)?,
        ]))
    }

    fn output_after(&self, id: RunId, after: [u64; 2], most: usize) -> StoreResult<NewOutput> {
        let running = self.run(id)?.state == State::Running;
        new_output(self, (id, running), after, most)
    }
}
