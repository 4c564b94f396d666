//! The interface for reading a record: this machine's, or one shared by many machines.
//!
//! Front ends read through it without knowing which of the two they show. Features of only this
//! machine's record (the ledger chain, its files) are behind [`RecordReader::as_store`].

use std::collections::HashSet;

use jiff::Timestamp;
use retake_types::{Kind, LoopId, MeasuredRun, Run, RunId, Stream};

use crate::base::live_file::Liveness;
use crate::read::grouped_runs::GroupedPage;
use crate::read::interleaved::InterleavedReader;
use crate::read::loops::{LoopCursor, LoopEntry, LoopPage, StoredLoop};
use crate::read::output_reader::OutputReader;
use crate::read::output_since::NewOutput;
use crate::read::run_lookup::StoredRunTree;
use crate::read::run_series::{RunNeighbours, RunSeries, RunsBetween};
use crate::read::runs::{RunCursor, RunDetail, RunFilter, RunPage, StartOrder};
use crate::read::runs_by_duration::{DurationOrder, DurationPage, DurationPlace, RunsByDuration};
use crate::read::runs_over_time::{TimeSlice, Totals};
use crate::read::search::{SearchEffort, SearchResults};
use crate::read::test_history::TestHistory;
use crate::{Error, Result, Store};

/// Whole runs in memory at once where only their measurements are needed.
const MEASURED_PAGE: usize = 2000;

/// A readable record. Its functions are documented at [`Store`].
pub trait RecordReader {
    /// The record of this machine; `None` for a shared one.
    fn as_store(&self) -> Option<&Store> {
        None
    }

    /// The projects of a shared record, by name. This machine's record has no project names.
    fn projects(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Restricts reading to this project; `None` reads everything.
    fn select_project(&mut self, project: Option<&str>) -> Result<()> {
        match project {
            None => Ok(()),
            Some(name) => Err(Error::NoProject { name: name.to_owned() }),
        }
    }

    fn get(&self, id: RunId) -> Result<Run>;
    fn find(&self, text: &str) -> Result<Run>;
    /// The runs that were started directly inside this one, oldest first.
    fn children(&self, of: &Run) -> Result<Vec<Run>>;

    fn list_in(
        &self,
        detail: RunDetail,
        order: StartOrder,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<(RunPage, Vec<Error>)>;
    fn list_grouped(
        &self,
        kind: Option<Kind>,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<GroupedPage>;
    /// What [`list_by_duration`](Self::list_by_duration) needs; kept by the caller.
    fn runs_by_duration(&self) -> Result<RunsByDuration>;
    fn list_by_duration(
        &self,
        all: &RunsByDuration,
        filter: &RunFilter,
        order: DurationOrder,
        after: Option<DurationPlace>,
        limit: usize,
    ) -> Result<DurationPage>;
    fn search_from(
        &self,
        text: &str,
        filter: &RunFilter,
        from: Option<u64>,
        limit: usize,
        effort: SearchEffort,
    ) -> Result<SearchResults>;

    /// Passes the measurements of the runs that match a filter to `take`, oldest first.
    fn each_measured(&self, filter: &RunFilter, take: &mut dyn FnMut(MeasuredRun)) -> Result<()> {
        let (order, mut cursor) = (StartOrder::OldestFirst, None);
        loop {
            let (page, unreadable) =
                self.list_in(RunDetail::Whole, order, filter, cursor, MEASURED_PAGE)?;
            if let Some(error) = unreadable.into_iter().next() {
                return Err(error);
            }
            page.runs.iter().for_each(|run| take(run.into()));
            cursor = page.next;
            if cursor.is_none() {
                return Ok(());
            }
        }
    }

    fn neighbours(&self, run: &Run, series: &RunSeries) -> Result<RunNeighbours>;
    fn watched_between(&self, a: &Run, b: &Run, most: usize) -> Result<RunsBetween>;

    fn totals(&self) -> Result<Totals>;
    fn timeline(&self, since: Timestamp, until: Timestamp, count: usize) -> Result<Vec<TimeSlice>>;
    fn slowest_commands(&self, since: Timestamp, limit: usize) -> Result<Vec<Run>>;

    fn each_test(&self, pattern: Option<&str>, take: &mut dyn FnMut(TestHistory)) -> Result<()>;
    fn test_named(&self, name: &str, most: usize) -> Result<Option<TestHistory>>;
    fn runs_with_tests(&self) -> Result<u64>;

    fn get_loop(&self, id: LoopId) -> Result<StoredLoop>;
    fn loop_liveness(&self, id: LoopId) -> Liveness;
    fn page_loops(
        &self,
        kind: Option<Kind>,
        after: Option<LoopCursor>,
        limit: usize,
    ) -> Result<LoopPage>;
    fn loop_entries(&self, id: LoopId, after: u64, limit: usize) -> Result<Vec<LoopEntry>>;
    fn last_loop_entry(&self, id: LoopId) -> Result<u64>;

    /// A shared record may lack the end of a stream, or all of it.
    fn read_output(&self, id: RunId, stream: Stream) -> Result<OutputReader>;
    fn read_interleaved(&self, id: RunId) -> Result<InterleavedReader>;
    fn output_after(&self, id: RunId, after: [u64; 2], most: usize) -> Result<NewOutput>;

    fn list(&self, filter: &RunFilter, after: Option<RunCursor>, limit: usize) -> Result<RunPage> {
        let (page, unreadable) = self.list_readable(filter, after, limit)?;
        unreadable.into_iter().next().map_or(Ok(page), Err)
    }

    fn list_readable(
        &self,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<(RunPage, Vec<Error>)> {
        self.list_in(RunDetail::Whole, StartOrder::NewestFirst, filter, after, limit)
    }

    /// The newest runs, at most `most`, as summaries.
    fn newest_summaries(&self, filter: &RunFilter, most: usize) -> Result<Vec<Run>> {
        let order = StartOrder::NewestFirst;
        let (page, unreadable) = self.list_in(RunDetail::Summary, order, filter, None, most)?;
        unreadable.into_iter().next().map_or(Ok(page.runs), Err)
    }

    /// The run with all runs that were started inside it.
    fn tree(&self, id: RunId) -> Result<StoredRunTree> {
        subtree(&|run| self.children(run), self.get(id)?, &mut HashSet::new())
    }
}

pub(crate) fn subtree(
    children_of: &dyn Fn(&Run) -> Result<Vec<Run>>,
    run: Run,
    seen: &mut HashSet<RunId>,
) -> Result<StoredRunTree> {
    let mut children = Vec::new();
    // Imported records may contain anything, such as a cycle of parents.
    if seen.insert(run.intent.id()) {
        for child in children_of(&run)? {
            if !seen.contains(&child.intent.id()) {
                children.push(subtree(children_of, child, seen)?);
            }
        }
    }
    Ok(StoredRunTree { run, children })
}

impl RecordReader for Store {
    fn as_store(&self) -> Option<&Store> {
        Some(self)
    }

    fn get(&self, id: RunId) -> Result<Run> {
        Self::get(self, id)
    }

    fn find(&self, text: &str) -> Result<Run> {
        Self::find(self, text)
    }

    fn children(&self, of: &Run) -> Result<Vec<Run>> {
        Self::children(self, of.intent.id())
    }

    fn list_in(
        &self,
        detail: RunDetail,
        order: StartOrder,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<(RunPage, Vec<Error>)> {
        self.list_with(detail, order, filter, after, limit)
    }

    fn list_grouped(
        &self,
        kind: Option<Kind>,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<GroupedPage> {
        Self::list_grouped(self, kind, after, limit)
    }

    fn runs_by_duration(&self) -> Result<RunsByDuration> {
        RunsByDuration::read(self)
    }

    fn list_by_duration(
        &self,
        all: &RunsByDuration,
        filter: &RunFilter,
        order: DurationOrder,
        after: Option<DurationPlace>,
        limit: usize,
    ) -> Result<DurationPage> {
        Self::list_by_duration(self, all, filter, order, after, limit)
    }

    fn search_from(
        &self,
        text: &str,
        filter: &RunFilter,
        from: Option<u64>,
        limit: usize,
        effort: SearchEffort,
    ) -> Result<SearchResults> {
        Self::search_from(self, text, filter, from, limit, effort)
    }

    fn each_measured(&self, filter: &RunFilter, take: &mut dyn FnMut(MeasuredRun)) -> Result<()> {
        Self::each_measured(self, filter, take)
    }

    fn neighbours(&self, run: &Run, series: &RunSeries) -> Result<RunNeighbours> {
        Self::neighbours(self, run, series)
    }

    fn watched_between(&self, a: &Run, b: &Run, most: usize) -> Result<RunsBetween> {
        Self::watched_between(self, a, b, most)
    }

    fn totals(&self) -> Result<Totals> {
        Self::totals(self)
    }

    fn timeline(&self, since: Timestamp, until: Timestamp, count: usize) -> Result<Vec<TimeSlice>> {
        Self::timeline(self, since, until, count)
    }

    fn slowest_commands(&self, since: Timestamp, limit: usize) -> Result<Vec<Run>> {
        Self::slowest_commands(self, since, limit)
    }

    fn each_test(&self, pattern: Option<&str>, take: &mut dyn FnMut(TestHistory)) -> Result<()> {
        Self::each_test(self, pattern, take)
    }

    fn test_named(&self, name: &str, most: usize) -> Result<Option<TestHistory>> {
        Self::test_named(self, name, most)
    }

    fn runs_with_tests(&self) -> Result<u64> {
        Self::runs_with_tests(self)
    }

    fn get_loop(&self, id: LoopId) -> Result<StoredLoop> {
        Self::get_loop(self, id)
    }

    fn loop_liveness(&self, id: LoopId) -> Liveness {
        Self::loop_liveness(self, id)
    }

    fn page_loops(
        &self,
        kind: Option<Kind>,
        after: Option<LoopCursor>,
        limit: usize,
    ) -> Result<LoopPage> {
        Self::page_loops(self, kind, after, limit)
    }

    fn loop_entries(&self, id: LoopId, after: u64, limit: usize) -> Result<Vec<LoopEntry>> {
        Self::loop_entries(self, id, after, limit)
    }

    fn last_loop_entry(&self, id: LoopId) -> Result<u64> {
        Self::last_loop_entry(self, id)
    }

    fn read_output(&self, id: RunId, stream: Stream) -> Result<OutputReader> {
        Self::read_output(self, id, stream)
    }

    fn read_interleaved(&self, id: RunId) -> Result<InterleavedReader> {
        Self::read_interleaved(self, id)
    }

    fn output_after(&self, id: RunId, after: [u64; 2], most: usize) -> Result<NewOutput> {
        Self::output_after(self, id, after, most)
    }
}
