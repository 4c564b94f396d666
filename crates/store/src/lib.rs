//! The record of every run: a ledger in SQLite, output files, redaction, search and retention.
//!
//! A run is recorded in three steps: [`Store::begin`] commits its intent, [`Recording::append`]
//! stores its output as it arrives, [`Recording::finish`] commits its outcome. A loop is recorded
//! the same way: [`Store::begin_loop`], [`LoopRecording::append`], [`LoopRecording::finish`].
//! Everything else reads, proves, maintains, copies or erases what those wrote.
//!
//! The crate is synchronous, never prints and never starts a process. It writes only what passed
//! [`redact`]: its functions take [`Redacted`](retake_types::Redacted) values and
//! [`RedactedBytes`](redact::RedactedBytes), which only a redactor creates.
//!
//! The modules use each other in one direction only:
//!
//! ```text
//! base <- read <- write <- maintain
//!                 write <- transfer
//! redact (used by callers, before anything is written)
//! ```
//!
//! - `base`: the open store, its directory, schema, ledger, locks and live files, and the formats
//!   that readers and writers share
//! - `read`: runs, output, search, statistics and loops; changes nothing
//! - `write`: recordings of runs and loops, and runs on other machines
//! - `maintain`: recovery, compression, erasure, verification, examination and repair
//! - `transfer`: export, import, result files, and copies of the ledger

mod base;
mod maintain;
mod read;
pub mod redact;
mod transfer;
mod write;

#[doc(hidden)]
pub use base::crash_points::{crash_point, watch_crash_points};
pub use base::error::{Error, Result};
pub use base::ledger::{BadHead, Head};
pub use base::live_file::Liveness;
pub use base::moved_store::moved_to;
pub use base::output_damage::OutputDamage;
pub use base::schema::{SCHEMA_VERSION, SchemaFault};
pub use base::store::Store;
pub use maintain::compact::Compacted;
pub use maintain::disk_use::DiskUse;
pub use maintain::doctor::{Defect, Examination};
pub use maintain::erase::{Erased, Prune};
pub use maintain::recover::{EndLeftovers, Recovered};
#[doc(hidden)]
pub use maintain::relocate::relocate_by_copying;
pub use maintain::relocate::{Moved, interrupted_move, relocate};
pub use maintain::repair::{Repaired, repair};
pub use maintain::verify::{Break, BreakKind, Intact, Verification, VerifyDepth, VerifyProgress};
pub use read::follow_output::OutputFollower;
pub use read::grouped_runs::{GroupedPage, LoopRuns, RunEntry};
pub use read::interleaved::{ByteOrigin, InterleavedReader};
pub use read::lines::{head_end, tail_start};
pub use read::loops::{LoopCursor, LoopEntry, LoopPage, StoredLoop};
pub use read::output_reader::OutputReader;
pub use read::output_since::{NewOutput, OutputPart, new_output};
pub use read::page_cursor::BadCursor;
pub use read::record_reader::RecordReader;
pub use read::run_lookup::StoredRunTree;
pub use read::run_series::{NearestRun, RunNeighbours, RunSeries, RunsBetween};
pub use read::runs::{RunCursor, RunDetail, RunFilter, RunPage, RunStatus, StartOrder};
pub use read::runs_by_duration::{DurationOrder, DurationPage, DurationPlace, RunsByDuration};
pub use read::runs_over_time::{TimeSlice, Totals};
pub use read::scan::{ScannedLines, scan_lines, scan_threads};
pub use read::search::{SearchEffort, SearchHit, SearchResults, SearchText};
pub use read::stats::{CommandStats, Stats};
#[doc(hidden)]
pub use read::test_history::NAMED_SQL;
pub use read::test_history::{TestHistory, TestResult};
pub use transfer::audit_record::AuditRecord;
pub use transfer::bundle::{
    BundleFault, BundleHeader, BundleLimits, BundledCell, CheckedBundle, OwnRuns, check_bundle,
    is_bundle,
};
pub use transfer::export::Exported;
pub use transfer::import::Imported;
pub use transfer::ledger_copy::{LedgerContent, LedgerRow};
pub use transfer::reported::{ReportedImport, TakenReport};
pub use transfer::result_file::ResultFile;
pub use transfer::take_over::{EarlierRecord, TakenOver};
pub use write::loop_recording::LoopRecording;
pub use write::recording::{EndedRecording, FinishedRecording, Recording};
pub use write::remote_runs::has_remote_runs;
