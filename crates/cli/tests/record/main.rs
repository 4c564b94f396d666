//! The record as its users meet it: listing, reading, repeating, proving, maintaining.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "../common/mod.rs"]
mod common;

mod again;
mod maintaining;
mod reading;
