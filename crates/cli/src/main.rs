//! retake: run it again, on the record.
//!
//! Uses the C entry point instead of Rust's: the runtime's start-up reads `/proc/self/maps`, sets up a
//! signal stack and ignores SIGPIPE. A runner of short commands pays for that in every run, and
//! every child would inherit the ignored signal.

#![no_main]

#[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")))]
mod math_library;

use std::ffi::{c_char, c_int};

#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    let code = retake::main();
    // Exit handlers have no work here: output is flushed where it is printed.
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}
