//! `retake exec` as users see it.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "../common/mod.rs"]
mod common;

mod confined;
mod confined_by_configuration;
mod confined_caches;
mod confined_host;
mod confined_tools;
mod degraded;
mod denied;
mod effects;
mod escape_attempts;
mod escapes;
mod escapes_in_steps;
mod faults;
mod further_attempts;
mod nested;
mod network;
mod rare_attempts;
mod running;
mod set_id;
mod settings;
mod start_up;
mod terminal;
mod test_results;
