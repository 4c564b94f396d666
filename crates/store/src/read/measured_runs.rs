//! Iterations of matrices, as far as their measurements are judged by them.

use retake_types::{MeasuredIntent, MeasuredOutcome, MeasuredRun, Run};

use super::runs::{FoundRun, RUN_COLUMNS, RUN_JOINS, RunDetail, RunFilter, StartOrder};
use crate::base::ledger::Entry;
use crate::{Result, Store};

type MeasuredEntry = Entry<MeasuredIntent, MeasuredOutcome>;

impl Store {
    /// The runs that a filter lets through, oldest first, with what is measured of each. They come one
    /// by one and are not held; one that is not readable is an error. A filter by the state `running`
    /// is not for this.
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
                // In a form that only a whole run is read from, or damaged: that says what is wrong.
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

/// Without copying a body; `None` where it has another form.
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
