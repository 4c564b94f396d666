//! Crash testing inside `cargo test`: one test function becomes one crash and one check per crash
//! point.
//!
//! ```no_run
//! #[test]
//! fn a_log_survives_a_crash() {
//!     first::test()
//!         .run(|env| {
//!             std::fs::write(env.path("log.tmp"), "one").unwrap();
//!             first::crash_point("written");
//!             std::fs::rename(env.path("log.tmp"), env.path("log")).unwrap();
//!             first::crash_point("renamed");
//!         })
//!         .verify(|env, _crash| {
//!             if let Ok(text) = std::fs::read_to_string(env.path("log")) {
//!                 assert_eq!(text, "one");
//!             }
//!         });
//! }
//! ```
//!
//! [`Workload::verify`] does the work. It runs this same test again in child processes: one is
//! recorded, and for each crash point one checks what a kill there would have left. If the workload
//! cannot be recorded, it runs again for every point and kills itself there.
//!
//! **What a kill cannot show:** a killed process leaves the page cache behind, so everything that was
//! written is there for the check, synced or not. [`Test::model`] loses what was not synced.
//!
//! The crate is linked into other people's test binaries: it depends only on `libc` and `retake-crash`,
//! starts nothing outside of [`test()`], and exits the process only in children that it started
//! itself or that were requested by `FIRST_PHASE`. Linux only.

#![warn(missing_docs)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "first kills, watches and cleans up processes the way Linux does, and runs nowhere else"
);

mod async_support;
mod channel;
mod check_request;
mod child;
mod child_watch;
mod env;
mod invocation;
mod json;
mod options;
mod orchestrator;
mod parent_death;
mod setup_error;
mod test;
mod variables;

pub use child::crash_point::{ack, crash_point};
pub use env::{CrashInfo, Env};
pub use test::{AsyncWorkload, Test, Verified, Workload, test};

pub use retake_crash::recorder as record;
pub use retake_crash::{Model, log, materialise, model, operation, record};
