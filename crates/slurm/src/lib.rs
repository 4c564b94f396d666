//! Runs on other machines, through Slurm.
//!
//! A run is written as a request file ([`request_file`]) into a directory that every
//! machine sees ([`batch_dir`]); its intent is committed to the record before the scheduler gets it.
//! The machine that the scheduler chooses executes it with the same engine as everywhere ([`node`])
//! and links one complete result into place ([`result_file`]): the first one counts, later ones are
//! kept beside it. The submitter, or a later process, imports results into the record exactly once
//! ([`batch`], [`abandoned_batches`]). The scheduler's answers ([`slurm_commands`]) only decide how
//! long to wait, and what to record for a run that will never have a result ([`job_state`]): the
//! submitter then publishes one itself, in the same way as a machine would.
//!
//! A loop uses all of this as [`SlurmExecutor`]. This crate does not schedule, and only the
//! submitter's machine accesses the record.

pub mod abandoned_batches;
mod batch;
mod batch_dir;
mod batch_entry;
mod batch_presence;
mod cancellation;
mod cancelled_by;
mod error;
mod executor;
mod job_state;
pub mod node;
mod pending_results;
pub mod request_file;
mod result_file;
mod scheduler_outage;
mod shared_dir;
mod slurm_commands;
mod slurm_programs;
mod watched_work;

pub use abandoned_batches::collect_finished;
pub use batch::CellState;
pub use batch_presence::BatchPresence;
pub use error::{Error, RemoteRefusal, SharedDirError, Unreachable};
pub use executor::SlurmExecutor;
pub use request_file::{PROCESSORS_VARIABLE, RequestFile};
pub use shared_dir::SharedDir;
pub use slurm_commands::SlurmTarget;
pub use slurm_programs::ProgramError;
