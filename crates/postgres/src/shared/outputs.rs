//! Pushed output, and searching it.

use std::time::Instant;

use retake_store::{OutputReader, RunFilter, SearchEffort, SearchHit, SearchResults, SearchText};
use retake_types::{RunId, Stream};

use super::run_filter::Conditions;
use super::{SharedRecord, StoreResult};

/// Number of runs whose output is read by one query.
const SEARCHED: i64 = 50;

impl SharedRecord {
    /// The part of a stream in the database: all of it, its beginning, or nothing.
    pub(super) fn output(&self, id: RunId, stream: Stream) -> StoreResult<OutputReader> {
        let rows = self.query(
            "read the output",
            "SELECT content FROM retake.outputs WHERE run = $1::text::uuid AND stream = $2",
            &[&id.to_string(), &stream.as_str()],
        )?;
        let bytes = rows.first().map(|row| row.get(0)).unwrap_or_default();
        Ok(OutputReader::of_copy(id, stream, bytes))
    }

    /// Output is not indexed in the database: the newest runs that match the filter are read, as long as `effort`
    /// allows. `from` is how many of them were read for earlier pages.
    pub(super) fn search_outputs(
        &self,
        text: &str,
        filter: &RunFilter,
        from: u64,
        limit: usize,
        effort: SearchEffort,
    ) -> StoreResult<SearchResults> {
        let wanted = SearchText::parse(text);
        let mut found = SearchResults::default();
        if wanted.is_empty() || limit == 0 {
            return Ok(found);
        }
        let until = Instant::now().checked_add(effort.time);
        let mut looked = from;
        loop {
            let conditions = Conditions::of(self, filter);
            let sql = format!(
                "WITH run AS (SELECT run.id FROM retake.runs AS run WHERE {}
                              ORDER BY run.id DESC LIMIT {SEARCHED} OFFSET {looked})
                 SELECT run.id::text, output.stream, output.content FROM run
                 LEFT JOIN retake.outputs AS output ON output.run = run.id
                 ORDER BY run.id DESC, output.stream",
                conditions.text()
            );
            let rows = self.query("search", &sql, &conditions.parameters())?;
            let mut runs = 0;
            let mut last = None;
            for row in &rows {
                let id: &str = row.get(0);
                if last != Some(id) {
                    // A page ends between two runs, so that the next one begins with a run.
                    if found.hits.len() >= limit {
                        found.more = true;
                        found.next = Some(looked + runs);
                        return Ok(found);
                    }
                    runs += 1;
                    last = Some(id);
                }
                let (Ok(id), Some(stream), Some(content)) = (
                    id.parse::<RunId>(),
                    row.get::<_, Option<&str>>(1),
                    row.get::<_, Option<&[u8]>>(2),
                ) else {
                    continue;
                };
                let Some((snippet, matches)) = wanted.snippet(content) else { continue };
                let Some(stream) = Stream::BOTH.into_iter().find(|one| one.as_str() == stream)
                else {
                    continue;
                };
                found.hits.push(SearchHit { run: self.run(id)?, stream, snippet, matches });
            }
            looked += runs;
            if runs < SEARCHED.unsigned_abs() {
                return Ok(found);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                found.more = true;
                found.cut_short = true;
                found.next = Some(looked);
                return Ok(found);
            }
        }
    }
}
