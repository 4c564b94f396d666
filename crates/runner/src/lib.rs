//! Engine and store brought together: the project and its configuration, workers that execute
//! requests on the record, and what every loop shares.
//!
//! A front end fills a request; [`prepare`] checks it and turns it into something that can be
//! spawned; a [`worker`] runs it and records it ([`run`]).

pub mod again;
pub mod checkout;
pub mod colour;
pub mod config;
pub mod confined;
pub mod context;
pub mod denied_text;
pub mod disturbance;
pub mod effects_watch;
pub mod error_lines;
pub mod file_lock;
pub mod fingerprint;
pub mod git_dir;
pub mod git_index;
pub mod head_tail;
pub mod html;
mod left_for_host;
pub mod leftovers;
pub mod loop_driver;
pub mod machine;
pub mod metrics;
pub mod nested_runs;
pub mod notice;
pub mod point_in_time;
pub mod policy_cache;
pub mod prepare;
pub mod project;
pub mod project_identity;
pub mod record_location;
pub mod recovery;
pub mod regular_file;
pub mod run;
pub mod run_differences;
pub mod run_environment;
pub mod run_text;
pub mod safe_git;
pub mod sandbox_settings;
pub mod scratch_dir;
pub mod screen;
mod secret_names;
pub mod signals;
pub mod terminal;
pub mod unified_diff;
mod variable_facts;
pub mod wanted_metrics;
pub mod worker;
