//! The local web page over the record: pages for people, JSON under `/api/v1` for programs.
//!
//! Pages are rendered on the server and work without their script. The record is only read, each time in a
//! short query on a blocking thread that is complete before the first byte is sent, so a
//! slow client never holds a snapshot. Loops are controlled through their own mailbox, and
//! commands are run again only if the server was started with that option. Nothing in this crate
//! prints or sends requests to other machines.

mod access_token;
mod ansi;
mod api;
mod app;
mod assets;
mod audit;
mod authorization;
mod chart;
mod checkpoint_diffs;
mod connections;
mod count_cache;
mod error;
mod failure_reasons;
mod figures;
mod line_index;
mod live;
mod loops;
mod output_search;
mod output_source;
mod output_window;
mod page;
mod params;
mod projects;
mod rerun;
mod run_history;
mod server;
mod shared_scope;
mod store_pool;
mod test_summary;

pub use access_token::AccessTokens;
pub use app::App;
pub use checkpoint_diffs::CheckpointAccess;
pub use rerun::RunPermission;
pub use server::{Server, ServerError};
pub use store_pool::OpenShared;
