//! Runs a command over versions, refs and iterations, until its numbers are conclusive.
//!
//! [`config`] reads the configuration, [`git`] and [`browsers`] provide code and browsers, [`tree`]
//! resets code to its state after setup, [`plan`] and [`bisect`] decide what to run next,
//! [`iteration`] builds the command's variables; [`stats`] and [`explain`] draw conclusions,
//! [`history`] over commits, [`report`] shows them, [`export`] writes them for other programs, and
//! [`exchange`] reads and writes chrome-ranger's format. All of them work without a record and
//! without running the user's command; only [`driver`] uses both.
//!
//! Nothing here prints.

pub mod bisect;
pub mod browsers;
pub mod build;
pub mod config;
pub mod driver;
pub mod exchange;
pub mod explain;
pub mod export;
pub mod git;
pub mod history;
pub mod iteration;
pub mod plan;
pub mod random;
pub mod report;
mod shell_free;
pub mod stats;
pub mod table;
pub mod tree;
