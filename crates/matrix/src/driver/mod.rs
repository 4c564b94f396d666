//! Drives a matrix: resolves and provides code and browsers, executes and records cells by the
//! plan, and reads recorded results.
//!
//! The pure modules beside this one decide what to run, in which order, and what the numbers mean.
//! Nothing here prints: a [`MatrixObserver`] receives events, and errors are variants for which a
//! front end writes the text.

mod affinity;
mod bisect_run;
mod browser_range;
mod cell_runner;
mod checkout;
mod commit_history;
mod error;
mod event;
mod matrix_run;
mod program_identity;
mod project;
mod record;
mod recorded_results;
mod remote_cells;
mod resources;
mod samples;
mod shell_start;

pub use affinity::{allowed_cpus, pin_process};
pub use bisect_run::{BisectOptions, BisectResult, BisectRun};
pub use commit_history::{CommitChain, CommitLines, MetricDefaults};
pub use error::{CellWithoutResult, MatrixError, MatrixRunError};
pub use event::{MatrixEvent, MatrixObserver};
pub use matrix_run::{Iterations, MatrixRun, MatrixRunOptions, MatrixRunResult};
pub use project::{MatrixProject, SharedDirectories, available_browsers, git_variables};
pub use record::{
    is_alive, mark_dead_loops, mark_dead_loops_if_writable, pins, read_loops, shards,
};
pub use recorded_results::{Block, PhaseFailure, RecordedResults, ResultRow};
pub use resources::{ProvisionError, Resources, Unavailable, short_sha};
pub use samples::{CellRow, Samples};
