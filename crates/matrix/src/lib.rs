//! A command over versions, refs and iterations, until the numbers are sure.
//!
//! The parts of `retake matrix` that can be tested without it: [`config`] reads what is wanted,
//! [`git`] and [`browsers`] provide code and browsers, [`plan`] says what to run next, [`iteration`]
//! what the command sees, [`metrics`] what it measured; [`stats`], [`explain`] and [`bisect`] draw
//! conclusions, [`report`] shows them, and [`exchange`] speaks chrome-ranger's format.
//!
//! Nothing here prints, opens the record or runs the user's command. git runs through a keeper
//! that the caller gives.

pub mod bisect;
pub mod browsers;
pub mod config;
pub mod exchange;
pub mod explain;
pub mod git;
pub mod iteration;
pub mod metrics;
pub mod plan;
pub mod random;
pub mod report;
pub mod stats;
pub mod table;
