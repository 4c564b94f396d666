//! The runs before and after a run in a series: of the same command, the same cell or the same
//! loop.
//!
//! A series may be as long as the record without containing a match: the search is limited, and the
//! answer says when runs remain.

use retake_types::{Kind, Run, RunId};
use rusqlite::types::Value;

use crate::base::projection::{OK, kind_number};
use crate::read::runs::{FoundRun, RUN_COLUMNS, RUN_JOINS, RunDetail};
use crate::{Error, Result, Store};

/// Runs examined per answer.
const LOOKED_AT: usize = 5000;
const READING: &str = "look for runs of the same command";

/// Which runs belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunSeries {
    /// The same command line in the same directory, of the same kind.
    Command,
    /// The same value of a label.
    Label(String),
    /// The same loop.
    Loop,
}

/// The result of a search for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearestRun {
    Found(RunId),
    /// There is none.
    None,
    /// None among this many examined runs, and there are more.
    NotAmong(usize),
}

impl NearestRun {
    pub fn found(self) -> Option<RunId> {
        match self {
            Self::Found(id) => Some(id),
            Self::None | Self::NotAmong(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Earlier,
    Later,
}

/// The neighbours of a run in a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunNeighbours {
    pub previous: NearestRun,
    pub next: NearestRun,
    /// The last earlier run that succeeded.
    pub last_passed: NearestRun,
}

/// Runs found, and whether those are all.
#[derive(Clone, Debug, Default)]
pub struct RunsBetween {
    pub runs: Vec<Run>,
    pub complete: bool,
}

impl Store {
    /// The neighbours of a run.
    pub fn neighbours(&self, run: &Run, series: &RunSeries) -> Result<RunNeighbours> {
        let look = |direction, passed| self.nearest(run, series, direction, passed);
        Ok(RunNeighbours {
            previous: look(Direction::Earlier, false)?,
            next: look(Direction::Later, false)?,
            last_passed: look(Direction::Earlier, true)?,
        })
    }

    fn nearest(
        &self,
        run: &Run,
        series: &RunSeries,
        direction: Direction,
        passed: bool,
    ) -> Result<NearestRun> {
        let id = run.intent.id();
        let failed = |error| self.failed(READING, error);
        let (seq, _) = self.seq_and_finished(id)?;
        let start_us = run.intent.start_time.as_microsecond();
        let (sql, mut parameters) = series_sql(run, series, direction);
        parameters.extend([Value::from(start_us), Value::from(seq)]);
        let cwd = run.intent.working_directory();
        let kind = kind_number(run.intent.kind());
        let mut statement = self.connection.prepare_cached(&sql).map_err(failed)?;
        let mut rows = statement.query(rusqlite::params_from_iter(parameters)).map_err(failed)?;
        let mut looked = 0;
        while let Some(row) = rows.next().map_err(failed)? {
            looked += 1;
            let matches = || -> rusqlite::Result<bool> {
                let same = *series != RunSeries::Command
                    || (row.get::<_, i64>(2)? == kind && row.get_ref(3)?.as_str()? == cwd);
                Ok(same && (!passed || row.get::<_, Option<i64>>(1)? == Some(OK)))
            };
            if matches().map_err(failed)? {
                return Ok(NearestRun::Found(RunId::from_bytes(row.get(0).map_err(failed)?)));
            }
        }
        Ok(if looked < LOOKED_AT { NearestRun::None } else { NearestRun::NotAmong(looked) })
    }

    /// The query for a neighbour, for tests and tools that examine its query plan.
    #[doc(hidden)]
    pub fn explainable_series(run: &Run, series: &RunSeries, later: bool) -> (String, Vec<Value>) {
        let direction = if later { Direction::Later } else { Direction::Earlier };
        let (sql, mut parameters) = series_sql(run, series, direction);
        parameters.extend([Value::from(0), Value::from(0)]);
        (sql, parameters)
    }

    /// The observed runs between two others, newest first, at most `most`; summaries. Runs with
    /// unreadable entries are left out, and then the answer is incomplete.
    pub fn watched_between(&self, a: &Run, b: &Run, most: usize) -> Result<RunsBetween> {
        if !self.has_effects()? {
            return Ok(RunsBetween { runs: Vec::new(), complete: false });
        }
        let failed = |error| self.failed("look for what runs changed", error);
        let sql = format!(
            "SELECT {RUN_COLUMNS}, EXISTS (SELECT 1 FROM effects e WHERE e.run = r.seq)
             FROM runs r INDEXED BY runs_start {RUN_JOINS}
             WHERE r.start_us > ?1 AND r.start_us < ?2 ORDER BY r.start_us DESC LIMIT {LOOKED_AT}"
        );
        let bounds = [a, b].map(|run| run.intent.start_time.as_microsecond());
        let mut statement = self.connection.prepare_cached(&sql).map_err(failed)?;
        let mut rows = statement.query(bounds).map_err(failed)?;
        let mut found = RunsBetween { runs: Vec::new(), complete: true };
        let mut looked = 0;
        while let Some(row) = rows.next().map_err(failed)? {
            looked += 1;
            if !row.get::<_, bool>(5).map_err(failed)? {
                continue;
            }
            if found.runs.len() == most {
                found.complete = false;
                break;
            }
            let run = FoundRun::read(row).map_err(failed)?;
            match self.assemble(run, RunDetail::Summary) {
                Ok(run) => found.runs.push(run),
                Err(Error::BadEntry { .. }) => found.complete = false,
                Err(error) => return Err(error),
            }
        }
        found.complete &= looked < LOOKED_AT;
        Ok(found)
    }

    /// Whether a run was imported.
    pub fn is_imported(&self, id: RunId) -> Result<bool> {
        let (seq, _) = self.seq_and_finished(id)?;
        let imports = crate::base::imports::since(&self.connection, jiff::Timestamp::MIN)
            .map_err(|error| self.failed("look for imports", error))?;
        Ok(imports.iter().any(|(first, last)| (*first..=*last).contains(&seq)))
    }
}

/// The runs of a series on one side of a run, nearest first: id, status, kind and directory.
fn series_sql(run: &Run, series: &RunSeries, direction: Direction) -> (String, Vec<Value>) {
    let (compared, order) = match direction {
        Direction::Earlier => ("<", "DESC"),
        Direction::Later => (">", "ASC"),
    };
    let columns = "r.id, r.status, r.kind, r.cwd";
    let (from, start, seq, own, parameters) = match series {
        RunSeries::Command => (
            "runs r INDEXED BY runs_command",
            "r.start_us",
            "r.seq",
            "r.command = ?1",
            vec![Value::Text(run.intent.command().to_owned())],
        ),
        RunSeries::Loop => (
            "runs r INDEXED BY runs_loop",
            "r.start_us",
            "r.seq",
            "r.loop = ?1",
            vec![Value::Blob(run.intent.loop_id().as_bytes().to_vec())],
        ),
        RunSeries::Label(key) => {
            let value = run.intent.request.labels.get(key).cloned().unwrap_or_default();
            (
                "labels l CROSS JOIN runs r ON r.seq = l.run",
                "l.start_us",
                "l.run",
                "l.key = ?1 AND l.value = ?2",
                vec![Value::Text(key.clone()), Value::Text(value)],
            )
        }
    };
    let at = parameters.len() + 1;
    let sql = format!(
        "SELECT {columns} FROM {from} WHERE {own} AND ({start}, {seq}) {compared} (?{at}, ?{})
         ORDER BY {start} {order}, {seq} {order} LIMIT {LOOKED_AT}",
        at + 1
    );
    (sql, parameters)
}

/// A run's kind determines its series; the command does if the kind has none.
impl RunSeries {
    /// The default series of a run.
    pub fn of(run: &Run, cell_label: &str) -> Self {
        match run.intent.kind() {
            Kind::Matrix if run.intent.request.labels.contains_key(cell_label) => {
                Self::Label(cell_label.to_owned())
            }
            Kind::Exec => Self::Command,
            Kind::Matrix | Kind::Agent | Kind::Crash => Self::Loop,
        }
    }
}
