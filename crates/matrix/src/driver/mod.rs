//! Drives a matrix: provides code and browsers, asks the plan what comes next, runs it on the
//! record, and reads back what the record knows.
//!
//! Every decision (what to run, in which order, what the numbers mean) is made in
//! `retake_matrix`; every word for people is chosen in `cli::matrix` and in [`screen`].

pub mod agenda;
pub mod chronicle;
pub mod elsewhere;
pub mod history;
pub mod iterate;
pub mod lock;
pub mod program;
pub mod samples;
pub mod screen;
pub mod search;
pub mod setting;
pub mod supply;
pub mod versions;
pub mod work;
