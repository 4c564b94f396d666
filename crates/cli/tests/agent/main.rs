//! `retake agent` as its users meet it: scripted agents, and the real ones where they are installed.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/model.rs"]
mod model;

mod checkpoint_crash;
mod checkpoints;
mod completion;
mod confined;
mod detached;
mod end_hook;
mod fallback;
mod fleet;
mod fleet_crash;
mod fleet_kills;
mod fleet_repeated;
mod fleet_submodules;
mod fleet_trees;
mod gate;
mod notifications;
mod planted;
mod protections;
mod queue;
mod real;
mod restarts;
mod running;
mod safety;
mod steering;
mod terminal;
mod workspaces;
