//! A list of runs in which the runs of a loop form one entry, at the position of its newest run.
//!
//! A loop may have a million runs. They are skipped without being read, up to a limit per page; a
//! page may be short, and says where the next one begins.

use std::collections::HashSet;

use retake_types::{Kind, LoopId, Run};
use rusqlite::types::Value;

use crate::base::projection::{OK, kind_number};
use crate::read::runs::{RUN_COLUMNS, RUN_JOINS, RunCursor, RunDetail};
use crate::{Error, Result, Store};

/// Rows examined per page.
const LOOKED_AT: usize = 20_000;
/// Maximum runs of a loop to count.
const COUNTED: u64 = 20_000;

/// An entry of the list.
#[derive(Clone, Debug)]
pub enum RunEntry {
    Run(Box<Run>),
    Loop(LoopRuns),
}

/// The runs of a loop.
#[derive(Clone, Debug)]
pub struct LoopRuns {
    pub id: LoopId,
    pub newest: Box<Run>,
    pub runs: u64,
    pub failed: u64,
    /// Runs without an outcome: running, or their runner died.
    pub unfinished: u64,
    /// Whether there are more than the limit of the count.
    pub more: bool,
}

#[derive(Clone, Debug, Default)]
pub struct GroupedPage {
    pub entries: Vec<RunEntry>,
    /// Where the next page begins; `None` after the last page.
    pub next: Option<RunCursor>,
    /// Why runs are missing: their ledger entries cannot be read.
    pub unreadable: Vec<String>,
}

const READING: &str = "list runs and loops";

impl Store {
    /// One page of runs of a kind (or all), newest first, with one entry per loop; summaries.
    pub fn list_grouped(
        &self,
        kind: Option<Kind>,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<GroupedPage> {
        let failed = |error| self.failed(READING, error);
        let (index, condition) = match kind {
            None => ("runs_start", String::new()),
            Some(Kind::Exec) => ("runs_start", "AND r.kind = 0".to_owned()),
            Some(kind) => {
                ("runs_kind", format!("AND r.kind = {} AND r.kind > 0", kind_number(kind)))
            }
        };
        let from = after.map_or((i64::MAX, i64::MAX), |cursor| (cursor.start_us, cursor.seq));
        let sql = format!(
            "SELECT r.seq, r.start_us, r.kind, r.loop FROM runs r INDEXED BY {index}
             WHERE (r.start_us, r.seq) < (?1, ?2) {condition}
             ORDER BY r.start_us DESC, r.seq DESC LIMIT {}",
            LOOKED_AT + 1
        );
        let mut statement = self.connection.prepare_cached(&sql).map_err(failed)?;
        let mut rows = statement.query(from).map_err(failed)?;
        let mut page = GroupedPage::default();
        let (mut seen, mut looked, mut last) = (HashSet::new(), 0, None);
        while let Some(row) = rows.next().map_err(failed)? {
            // One more than wanted shows that there is a next page.
            if page.entries.len() == limit || looked == LOOKED_AT {
                page.next = last;
                break;
            }
            looked += 1;
            let cursor = RunCursor {
                seq: row.get(0).map_err(failed)?,
                start_us: row.get(1).map_err(failed)?,
            };
            last = Some(cursor);
            let is_exec = row.get::<_, i64>(2).map_err(failed)? == kind_number(Kind::Exec);
            let id: [u8; 16] = row.get(3).map_err(failed)?;
            if !is_exec && (!seen.insert(id) || !self.is_newest_of_loop(id, cursor)?) {
                continue;
            }
            match self.entry(cursor, (!is_exec).then_some(id)) {
                Ok(entry) => page.entries.push(entry),
                Err(error @ Error::BadEntry { .. }) => page.unreadable.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(page)
    }

    fn is_newest_of_loop(&self, id: [u8; 16], cursor: RunCursor) -> Result<bool> {
        let sql = "SELECT 1 FROM runs INDEXED BY runs_loop
                   WHERE loop = ?1 AND (start_us, seq) > (?2, ?3) LIMIT 1";
        let later = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.exists((id, cursor.start_us, cursor.seq)));
        Ok(!later.map_err(|error| self.failed(READING, error))?)
    }

    fn entry(&self, cursor: RunCursor, of_loop: Option<[u8; 16]>) -> Result<RunEntry> {
        let sql = format!("SELECT {RUN_COLUMNS} FROM runs r {RUN_JOINS} WHERE r.seq = ?1");
        let found = self.select(&sql, vec![Value::from(cursor.seq)])?;
        let missing = || Error::NotFound { text: cursor.to_string() };
        let found = found.into_iter().next().ok_or_else(missing)?;
        let run = Box::new(self.assemble(found, RunDetail::Summary)?);
        match of_loop {
            None => Ok(RunEntry::Run(run)),
            Some(id) => self.loop_runs(LoopId::from_bytes(id), run).map(RunEntry::Loop),
        }
    }

    fn loop_runs(&self, id: LoopId, newest: Box<Run>) -> Result<LoopRuns> {
        let sql = format!(
            "SELECT count(*), coalesce(sum(status > {OK}), 0), coalesce(sum(status IS NULL), 0)
             FROM (SELECT status FROM runs INDEXED BY runs_loop WHERE loop = ?1 LIMIT {})",
            COUNTED + 1
        );
        let counted: rusqlite::Result<(i64, i64, i64)> = self
            .connection
            .prepare_cached(&sql)
            .and_then(|mut statement| statement.query_row([id.as_bytes()], |row| row.try_into()));
        let (runs, failed, unfinished) = counted.map_err(|error| self.failed(READING, error))?;
        let runs = runs.unsigned_abs();
        Ok(LoopRuns {
            id,
            newest,
            runs: runs.min(COUNTED),
            failed: failed.unsigned_abs(),
            unfinished: unfinished.unsigned_abs(),
            more: runs > COUNTED,
        })
    }
}
