//! Limits on the test results that are kept of one run.

/// Maximum details of tests that did not fail; the first ones are kept.
pub const MAX_DETAILS: usize = 10_000;
/// Maximum additional details of failed tests, so that a long list of successes cannot displace
/// failures.
pub const MAX_FAILURE_DETAILS: usize = 2_000;
/// Maximum length of a test name in bytes; a longer one is cut and ends in `…`.
pub const MAX_NAME: usize = 512;
/// Maximum length of a message in bytes; a longer one is cut and ends in `…`.
pub const MAX_ERROR: usize = 4_096;
/// Maximum tests listed as running when the run ended.
pub const MAX_RUNNING: usize = 20;
/// Maximum problems outside of any test.
pub const MAX_PROBLEMS: usize = 50;
