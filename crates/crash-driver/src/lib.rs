//! Drives a crash test: a program is recorded once, the states that a crash could have left are
//! built from the recording, and a command of the user's checks each of them.
//!
//! What may survive a crash is decided in `first`; every word for people that is not part of a
//! report is chosen in `cli::crash`.

pub mod chronicle;
pub mod elsewhere;
pub mod explain;
pub mod explore;
pub mod finding;
mod gathered;
pub mod html;
pub mod junit;
pub mod life;
mod namespace;
pub mod relapse;
pub mod report;
mod scratch;
pub mod share;
pub mod station;
pub mod timeline;
pub mod trial;
pub mod untested;
pub mod workload;
