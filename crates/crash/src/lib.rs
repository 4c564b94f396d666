//! The states that a crash of a program may leave behind, and which of them its recovery cannot
//! handle.
//!
//! - [`recorder`] runs a program once and records what it does to a directory, as
//!   [`operation`]s; [`log`] is a recording as a file.
//! - [`recorded_bytes`] keeps the bytes that the program wrote, in memory or on disk.
//! - [`model`] determines what a crash may leave of a recording under a file system's rules, explores
//!   these states, and explains why some fail. Pure: no I/O.
//! - [`call_stack`] is the raw call stack of each operation.
//! - [`fault`] describes how calls can fail, for a run in which the recorder makes one of them fail.
//! - [`materialise()`] writes a state to a disk, and [`verify`] runs a check on it.
//! - [`marker`] is how a program reports crash points and acknowledgements to its recorder, and
//!   [`variables`] are the names of the environment variables that it gets.
//! - [`fd`], [`mount_namespace`], [`scratch`] and [`stray_processes`] help to run children.
//!
//! `retake crash` and the crate `first` are built on it. It depends on `libc` alone, because `first`
//! is linked into other people's test binaries. Linux only.

#![warn(missing_docs)]

#[cfg(not(target_os = "linux"))]
compile_error!("processes are recorded with ptrace and seccomp, which only Linux has");

pub mod call_stack;
pub mod fault;
pub mod fd;
pub mod glob;
pub mod log;
pub mod marker;
mod materialise;
pub mod model;
pub mod mount_namespace;
pub mod operation;
pub mod recorded_bytes;
pub mod recorder;
pub mod scratch;
pub mod stray_processes;
pub mod text;
pub mod variables;
pub mod verify;

pub use materialise::materialise;
pub use model::Model;
pub use recorder::record;
