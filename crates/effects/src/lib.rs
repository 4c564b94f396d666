//! What a run did: which files changed, which tests ran, and what that means against last time.
//!
//! Knows no process and no database: it is given a directory, or bytes that a run printed. The
//! shapes of what it finds are in `retake_types`.

pub mod agent_summary;
pub mod files;
mod observations;
pub mod progress_detection;
pub mod test_results;

pub use observations::observations;
