//! The record of every run: a ledger in SQLite, output files, redaction, search and retention.
//!
//! A run is recorded in three steps: [`Store::begin`] commits its intent, [`Recording::append`]
//! stores its output as it arrives, [`Recording::finish`] commits its outcome. Everything else
//! reads, proves, tidies or erases what those wrote.
//!
//! The crate is synchronous, never prints, never starts a process and never sees an unredacted
//! byte: what is given to it has been through [`redact`].

mod chunks;
mod compact;
mod dir;
mod erase;
mod error;
mod find;
mod follow;
mod frames;
mod index;
mod ledger;
mod lock;
mod loops;
mod merged;
mod output;
mod projection;
mod query;
mod recover;
mod recording;
pub mod redact;
mod schema;
mod store;

pub use compact::Compacted;
pub use erase::{Erased, Prune};
pub use error::{Error, Result};
pub use find::Tree;
pub use follow::Follow;
pub use ledger::{BadHead, Head};
pub use loops::{Event, LoopRecord};
pub use merged::{MergedReader, Origin, head_end, tail_start};
pub use output::OutputReader;
pub use query::{Cursor, Filter, Page, Status};
pub use recording::{Finished, Recording};
pub use schema::SCHEMA_VERSION;
pub use store::Store;
