//! The record of every run: a ledger in SQLite, output files, redaction, search and retention.
//!
//! A run is recorded in three steps: [`Store::begin`] commits its intent, [`Recording::append`]
//! stores its output as it arrives, [`Recording::finish`] commits its outcome. Everything else
//! reads, proves, tidies or erases what those wrote.
//!
//! The crate is synchronous, never prints, never starts a process and never sees an unredacted
//! byte: what is given to it has been through [`redact`].

mod away;
mod chunks;
mod compact;
mod cursor;
mod dir;
mod disk;
mod doctor;
mod erase;
mod error;
mod find;
mod follow;
mod footprint;
mod frames;
mod index;
mod leavings;
mod ledger;
mod lock;
mod loops;
mod loops_page;
mod merged;
mod output;
mod parcel;
mod projection;
mod query;
mod recording;
mod recover;
pub mod redact;
mod repair;
mod replicate;
mod schema;
mod search;
mod separators;
mod stats;
mod steps;
mod store;
mod tail;
mod test_history;
mod timeline;
mod transfer;
mod verify;

pub use compact::Compacted;
pub use cursor::BadCursor;
pub use disk::DiskUse;
pub use doctor::{Examination, Problem};
pub use erase::{Erased, Prune};
pub use error::{Error, Result};
pub use find::Tree;
pub use follow::Follow;
pub use ledger::{BadHead, Head};
pub use loops::{Event, LoopRecord};
pub use loops_page::{LoopCursor, LoopPage};
pub use merged::{MergedReader, Origin, head_end, tail_start};
pub use output::OutputReader;
pub use parcel::Parcel;
pub use query::{Cursor, Filter, Page, Status};
pub use recording::{Finished, Recording};
pub use repair::{Repaired, repair};
pub use replicate::{LedgerRow, Says};
pub use schema::SCHEMA_VERSION;
pub use search::{Effort, Found, Hit};

pub use stats::{CommandStats, Stats};
#[doc(hidden)]
pub use steps::watch_steps;
pub use store::Store;
pub use tail::{News, Piece};
pub use test_history::{TestHistory, TestResult};
pub use timeline::{Slice, Totals};
pub use transfer::{AuditRecord, Imported};
pub use verify::{Break, BreakKind, Intact, Verification};
