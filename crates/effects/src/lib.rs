//! What a run did: which files changed, which tests ran, and what that means against last time.
//!
//! Knows no process and no database: it is given a directory, or bytes that a run printed.

pub mod files;
pub mod tests;
