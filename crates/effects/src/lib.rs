//! Determines what a run did: which files changed, which tests ran, and what changed since earlier
//! runs.
//!
//! Independent of processes and databases: the input is a directory, or the output of a run. The
//! result types are in `retake_types`.

pub mod agent_summary;
pub mod files;
mod observations;
pub mod progress_detection;
pub mod test_results;

pub use observations::observations;
