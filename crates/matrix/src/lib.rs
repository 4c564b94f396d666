//! A command over versions, refs and iterations, until the numbers are sure.
//!
//! [`config`] reads what is wanted, [`git`] and [`browsers`] provide code and browsers, [`tree`] keeps
//! code as its setup left it, [`plan`] and [`bisect`] say what to run next, [`iteration`] what the command sees; [`stats`] and
//! [`explain`] draw conclusions, [`history`] over commits, [`report`] shows them, [`export`] writes
//! them for other programs, and [`exchange`] reads and writes chrome-ranger's format. All of them work
//! without a record and without running the
//! user's command; [`driver`] alone brings them together with both.
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
