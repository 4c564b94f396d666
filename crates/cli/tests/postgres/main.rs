//! A real PostgreSQL gets the record.

#![cfg(feature = "postgres")]

#[path = "../common/mod.rs"]
mod common;

mod push;
