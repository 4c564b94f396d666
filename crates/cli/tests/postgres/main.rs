//! Pushes to a real PostgreSQL.

#![cfg(feature = "postgres")]
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "../common/mod.rs"]
mod common;

mod push;
mod team;
#[cfg(feature = "web")]
mod ui;
