//! retake: run it again, on the record.
//!
//! The C entry point instead of Rust's: the runtime's start-up reads `/proc/self/maps`, sets up a
//! signal stack and ignores SIGPIPE, which a runner of short commands pays for at every run, and
//! whose last part would be passed on to every child.

#![no_main]

use std::ffi::{c_char, c_int};

#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    retake::main()
}
