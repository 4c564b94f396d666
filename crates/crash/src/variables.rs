//! The names of the environment variables that recorded programs and checks get.

/// The directory that is recorded or checked.
pub const WORK_DIR: &str = "FIRST_WORK_DIR";
/// Set to 1 for a program that is being recorded.
pub const RECORDING: &str = "FIRST_RECORDING";
/// A file with what was acknowledged before the crash, one line each.
pub const ACKS: &str = "FIRST_ACKS";
/// The number of the operation or crash point after which the crash came.
pub const CRASH_POINT_ID: &str = "FIRST_CRASH_POINT_ID";
/// The label of the last crash point that was passed.
pub const CRASH_LABEL: &str = "FIRST_CRASH_LABEL";
/// Inherited by everything that one child starts, so that it can be found and killed.
pub const RUN_ID: &str = "FIRST_RUN_ID";
