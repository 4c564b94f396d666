//! Reading the record. Nothing here changes it.

pub(crate) mod follow_output;
pub(crate) mod grouped_runs;
pub(crate) mod host_runs;
pub(crate) mod interleaved;
pub(crate) mod lines;
pub(crate) mod loops;
mod measured_runs;
pub(crate) mod output;
pub(crate) mod output_reader;
pub(crate) mod output_since;
pub(crate) mod page_cursor;
pub(crate) mod phrase;
pub(crate) mod record_reader;
pub(crate) mod run_lookup;
pub(crate) mod run_series;
pub(crate) mod runs;
pub(crate) mod runs_by_duration;
pub(crate) mod runs_over_time;
pub(crate) mod scan;
pub(crate) mod search;
pub(crate) mod search_index;
pub(crate) mod stats;
pub(crate) mod test_history;
