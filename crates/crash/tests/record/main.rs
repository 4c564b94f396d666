//! Real programs, recorded: the log of each kind of call.

#![expect(clippy::unwrap_used, reason = "tests")]

mod begin_and_end;
mod calls;
mod faults;
mod from_outside;
mod large;
mod programs;
mod random;
