//! A coding agent in a loop.
//!
//! This crate contains the parts of such a loop: workspaces, prompts, adapters for agents, the plan
//! that decides the next step, status, notifications and the log. [`driver`] runs the loop; nothing
//! else here starts a process or uses the record.

pub mod adapters;
pub mod checkpoint;
pub mod clock;
pub mod confinement;
pub mod control;
pub mod display;
pub mod driver;
pub mod files;
pub mod fleet;
pub mod group;
pub mod history;
pub mod hooks;
pub mod log;
pub mod notify;
pub mod plan;
pub mod prompt;
pub mod queue;
pub mod report;
pub mod settings;
pub mod status;
mod ticker;
pub mod watch;
pub mod workspace;
