//! `retake crash` as its users meet it: programs in C, Python and shell, SQLite, the real program.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "../common/mod.rs"]
mod common;

mod all_clear;
mod confined;
mod confirm;
mod env;
mod faults;
mod leftovers;
mod places;
mod programs;
mod recovery;
mod refusals;
mod reports;
mod sqlite;
mod stopping;
mod store;
