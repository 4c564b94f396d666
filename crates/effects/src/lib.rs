//! What a run did: which files changed, which tests ran, and what that means against last time.
//!
//! Knows no process and no database: it is given a directory, or bytes that a run printed.

mod effects;
pub mod files;
pub mod progress;
pub mod summary;
pub mod tests;

pub use effects::{Effects, RenamedPath};
