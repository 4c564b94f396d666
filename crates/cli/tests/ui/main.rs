//! `retake ui` as users see it, over HTTP and in a real browser.

#![cfg(feature = "web")]
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "../common/mod.rs"]
mod common;

mod api;
mod browser;
mod failures;
mod faults;
mod fleet;
mod hostile_addresses;
mod logs;
mod loops;
mod pages;
mod rerun;
mod runs_list;
mod tasks;
mod tests_page;
mod transcript;
