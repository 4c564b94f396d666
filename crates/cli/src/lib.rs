//! The program behind the `retake` command: arguments, messages, tables, progress. `main.rs` only
//! calls it; the crates below do all the work.
//!
//! One file or folder for each subcommand; shared code is in [`record`], [`context`], [`words`]
//! and [`term`].

mod again;
mod agent;
mod audit;
mod build;
mod bundle_file;
mod ci_files;
mod commands;
mod completions;
mod config;
mod context;
mod crash;
#[cfg(debug_assertions)]
mod death;
mod denied;
mod doctor;
mod doctor_report;
mod exec;
mod failure;
mod help;
mod init;
mod invoked_as;
mod man;
mod matrix;
#[cfg(feature = "mcp")]
mod mcp;
mod network_words;
mod own_runs;
mod record;
#[cfg(all(test, feature = "mcp", feature = "postgres", feature = "slurm", feature = "web"))]
mod reference;
mod report_runs;
#[cfg(feature = "slurm")]
mod run_one;
mod runs;
mod self_test;
#[cfg(feature = "slurm")]
mod slurm_words;
mod term;
mod test_history;
mod tour;
#[cfg(feature = "web")]
mod ui;
mod usage_advice;
mod words;

use retake_runner::signals;

pub(crate) use commands::Exit;
pub(crate) use failure::Failure;

/// Runs the command line and returns the exit code.
pub fn main() -> i32 {
    signals::fill_stdio();
    signals::remember();
    #[cfg(debug_assertions)]
    death::plan();
    match commands::main() {
        Exit::Code(code) => i32::from(code),
        Exit::Signal(signal) => {
            signals::die_of(signal);
            // The first process of a pid namespace, as in a container, is not killed by its own signals.
            128 + signal
        }
    }
}
