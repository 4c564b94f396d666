//! How much of the test results of one run is kept.

/// Details of tests that did not fail: at most this many are kept, the first ones.
pub const MAX_DETAILS: usize = 10_000;
/// Details of failed tests: at most this many are kept besides, so that failures never fall
/// victim to a long list of successes.
pub const MAX_FAILURE_DETAILS: usize = 2_000;
/// Longest test name in bytes; a longer one is cut and ends in `…`.
pub const MAX_NAME: usize = 512;
/// Longest message in bytes; a longer one is cut and ends in `…`.
pub const MAX_ERROR: usize = 4_096;
/// Tests that were running when the run ended: at most this many are kept.
pub const MAX_RUNNING: usize = 20;
/// Problems outside of any test: at most this many are kept.
pub const MAX_PROBLEMS: usize = 50;
