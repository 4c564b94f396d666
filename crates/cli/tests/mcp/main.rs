//! `retake mcp` as clients see it: the real program, real commands, messages on its pipes.

#![cfg(feature = "mcp")]
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/model.rs"]
mod model;

mod answers;
mod background;
mod caps;
mod client;
mod confined;
mod conformance;
mod faults;
mod install;
mod offered;
mod output;
mod policy;
mod real;
mod record;
mod tasks;
