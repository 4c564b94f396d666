//! The record as users see it: listing, reading, repeating, proving, maintaining.

#[path = "../common/mod.rs"]
mod common;

mod again;
mod altered_output;
mod honest_tools;
mod junit;
mod leaks;
mod location;
mod maintaining;
mod never_wedged;
mod quick_starts;
mod reading;
mod this_machine;
mod trust;
