//! Drives a crash test: a program is recorded once, the states that a crash could have left are
//! built from the recording, and the user's command checks each of them.
//!
//! `retake_crash` decides what may survive a crash. The loop driver of `retake_runner` explores
//! states, on this machine ([`exploration`]) or on others ([`remote_exploration`]).
//! Nothing here prints: progress and notices are [`event`]s, which a front end words.

pub mod changes;
pub mod check;
pub mod check_sandbox;
pub mod check_worker;
pub mod confirm;
pub mod crash_test;
pub mod error;
pub mod event;
pub mod explain;
pub mod exploration;
pub mod exploration_plan;
mod failing_state;
mod fault_finding;
mod fault_plan;
pub mod fault_run;
pub mod fault_test;
pub mod finding;
pub mod fresh_root;
pub mod html;
pub mod junit;
pub mod loop_recorder;
mod mount_namespace;
pub mod recovery_crashes;
pub mod remote_exploration;
pub mod report;
mod scratch;
pub mod share_answers;
pub mod share_failure;
pub mod source_places;
pub mod state_range;
pub mod timeline;
pub mod workload;
