//! Drives a crash test: a program is recorded once, the states that a crash could have left are
//! built from the recording, and a command of the user's checks each of them.
//!
//! What may survive a crash is decided in `first`; every word for people that is not part of a
//! report is chosen in `cli::crash`.

pub(crate) mod chronicle;
pub(crate) mod elsewhere;
pub(crate) mod explain;
pub(crate) mod explore;
pub(crate) mod finding;
mod gathered;
pub(crate) mod html;
pub(crate) mod junit;
mod namespace;
pub(crate) mod relapse;
pub(crate) mod report;
mod scratch;
pub(crate) mod share;
pub(crate) mod station;
pub(crate) mod timeline;
pub(crate) mod trial;
pub(crate) mod untested;
pub(crate) mod workload;
