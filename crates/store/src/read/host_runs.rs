//! Runs of one machine. Nearly every run of a record comes from the machine that holds it, so an
//! index would cost each of them a page to find the few others. Instead, entries are searched for
//! the name, up to a limit per page: a page may be short, and says where the next one begins.

use memchr::memmem::Finder;
use retake_types::Run;

use crate::base::live_file;
use crate::read::runs::{
    FoundRun, RUN_COLUMNS, RUN_JOINS, RunCursor, RunDetail, RunFilter, RunPage, RunStatus,
    StartOrder,
};
use crate::{Error, Result, Store};

/// Runs examined per page.
const LOOKED_AT: usize = 10_000;

const READING: &str = "list the runs of a machine";

impl Store {
    pub(crate) fn list_of_host(
        &self,
        (filter, host): (&RunFilter, &str),
        detail: RunDetail,
        order: StartOrder,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<(RunPage, Vec<Error>)> {
        let mut unreadable = Vec::new();
        let mut page = RunPage { runs: Vec::new(), next: None };
        if filter.by_effects() && !self.has_effects()? {
            return Ok((page, unreadable));
        }
        let live = match filter.status {
            Some(RunStatus::Running) => Some(live_file::live_runs(&self.dir)?),
            _ => None,
        };
        let failed = |error| self.failed(READING, error);
        let of_any = RunFilter { host: None, ..filter.clone() };
        let columns = (RUN_COLUMNS, RUN_JOINS);
        let (sql, parameters) =
            of_any.sql_in(order, columns, after, LOOKED_AT + 1, live.as_deref());
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query(rusqlite::params_from_iter(parameters)).map_err(failed)?;
        // In its JSON form. Entries without it need not be parsed.
        let name = serde_json::Value::from(host).to_string();
        let name = Finder::new(name.as_bytes());
        let (mut looked_at, mut last) = (0, after);
        while let Some(row) = rows.next().map_err(failed)? {
            if looked_at == LOOKED_AT || page.runs.len() == limit {
                page.next = last;
                break;
            }
            looked_at += 1;
            last = Some(RunCursor {
                start_us: row.get(1).map_err(failed)?,
                seq: row.get(0).map_err(failed)?,
            });
            let has_name = |column: usize| -> rusqlite::Result<bool> {
                let body = row.get_ref(column)?.as_bytes_or_null()?;
                Ok(body.is_some_and(|body| name.find(body).is_some()))
            };
            if !has_name(2).map_err(failed)? && !has_name(4).map_err(failed)? {
                continue;
            }
            match self.assemble(FoundRun::read(row).map_err(failed)?, detail) {
                Ok(run) if ran_on(&run, host) && of_any.admits(&run) => page.runs.push(run),
                Ok(_) => {}
                Err(error @ Error::BadEntry { .. }) => unreadable.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok((page, unreadable))
    }
}

/// Whether a run was recorded on a machine, or placed on it.
fn ran_on(run: &Run, host: &str) -> bool {
    let placed = run.outcome.as_ref().and_then(|outcome| outcome.ran_on.as_ref());
    run.intent.host == host || placed.is_some_and(|placed| placed.node.as_deref() == Some(host))
}
