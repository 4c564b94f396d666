//! Drives a matrix: provides code and browsers, asks the plan what comes next, runs it on the
//! record, and reads back what the record knows.
//!
//! Every decision (what to run, in which order, what the numbers mean) is made in
//! `retake_matrix`; every word for people is chosen in `cli::matrix` and in [`screen`].

pub(crate) mod agenda;
pub(crate) mod chronicle;
pub(crate) mod elsewhere;
pub(crate) mod history;
pub(crate) mod iterate;
pub(crate) mod lock;
pub(crate) mod program;
pub(crate) mod samples;
pub(crate) mod screen;
pub(crate) mod search;
pub(crate) mod setting;
pub(crate) mod supply;
pub(crate) mod versions;
pub(crate) mod work;
