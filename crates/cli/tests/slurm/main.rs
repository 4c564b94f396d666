//! Runs on a real Slurm.

#![cfg(feature = "slurm")]
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "../common/mod.rs"]
mod common;

mod crash;
mod edges;
mod exec;
mod matrix;
mod shared_dir;
mod simulated;
mod stopping;
