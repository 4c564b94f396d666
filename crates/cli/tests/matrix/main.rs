//! `retake matrix` as users see it: real repositories, real runs, the real program.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod browsers;
mod confined;
mod env;
mod exports;
mod history;
mod leaks;
mod mistakes;
mod phases;
mod real;
mod running;
mod screen;
mod shards;
mod stopping;
mod tls;
mod trees;
mod try_commands;
