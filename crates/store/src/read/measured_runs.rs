//! Reads only the measurements of matrix runs, and what decides whether they count.

use retake_types::{MeasuredIntent, MeasuredOutcome, MeasuredRun, Run};

use super::runs::{FoundRun, RUN_COLUMNS, RUN_JOINS, RunDetail, RunFilter, StartOrder};
use crate::base::ledger::Entry;
use crate::{Result, Store};

type MeasuredEntry = Entry<MeasuredIntent, MeasuredOutcome>;

impl Store {
    /// Passes the measurements of the runs that match a filter to `take`, oldest first and one at a
    /// time, so that they are never all in memory. An unreadable run is an error. The filter must not
    /// be by the state `running`.
    pub fn each_measured(
        &self,
        filter: &RunFilter,
        take: &mut dyn FnMut(MeasuredRun),
    ) -> Result<()> {
        let selected = (RUN_COLUMNS, RUN_JOINS);
        let (sql, parameters) =
            filter.sql_in(StartOrder::OldestFirst, selected, None, usize::MAX, None);
        let failed = |error| self.failed("list runs", error);
        let mut statement = self.connection.prepare_cached(&sql).map_err(failed)?;
        let mut rows = statement.query(rusqlite::params_from_iter(parameters)).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let run = match measured(row).map_err(failed)? {
                Some(run) => run,
                // In an older form, or damaged: reading the whole run succeeds or reports the damage.
                None => self.whole(FoundRun::read(row).map_err(failed)?)?,
            };
            take(run);
        }
        Ok(())
    }

    fn whole(&self, found: FoundRun) -> Result<MeasuredRun> {
        let run: Run = self.assemble(found, RunDetail::Whole)?;
        Ok(MeasuredRun::from(&run))
    }
}

/// Parses a row without copying its bodies; `None` if one has another form.
fn measured(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<MeasuredRun>> {
    let intent = match entry(row.get_ref(2)?) {
        Some(MeasuredEntry::Intent(intent)) => intent,
        _ => return Ok(None),
    };
    let outcome = match row.get::<_, Option<i64>>(3)? {
        None => None,
        Some(_) => match entry(row.get_ref(4)?) {
            Some(MeasuredEntry::Outcome { outcome, .. }) => Some(outcome),
            _ => return Ok(None),
        },
    };
    Ok(Some(MeasuredRun { intent, outcome }))
}

fn entry(body: rusqlite::types::ValueRef<'_>) -> Option<MeasuredEntry> {
    serde_json::from_slice(body.as_blob().ok()?).ok()
}
