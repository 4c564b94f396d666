//! retake: run it again, on the record.
//!
//! The C entry point instead of Rust's: the runtime's start-up reads `/proc/self/maps`, sets up a
//! signal stack and ignores SIGPIPE, which a runner of short commands pays for at every run, and
//! whose last part would be passed on to every child.

#![no_main]

#[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")))]
mod math_library;

use std::ffi::{c_char, c_int};

#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    let code = retake::main();
    // Nothing is left to do at the end: what is printed is flushed where it is printed.
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}
