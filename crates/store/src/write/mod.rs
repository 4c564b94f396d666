//! Recording runs and loops.

pub(crate) mod loop_recording;
pub(crate) mod recording;
pub(crate) mod remote_runs;
pub(crate) mod run_entries;
mod spool;
