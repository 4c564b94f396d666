//! Real programs, recorded: what the log says about each kind of call.

#![expect(clippy::unwrap_used, reason = "tests")]

mod calls;
mod life;
mod programs;
mod random;
