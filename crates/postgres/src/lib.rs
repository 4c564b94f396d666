//! A copy of the record in a PostgreSQL database, for queries over many machines.
//!
//! Entries of the ledger are sent in order, many in one transaction together with the number of the
//! last one: an interrupted push resumes where it stopped, and pushing again changes nothing. Only
//! the content of the record is sent, so nothing that was redacted. The database never delays or fails a
//! run.

mod address;
mod background;
mod copy_rows;
mod database;
mod error_text;
mod ledger_rows;
mod months;
mod pushed;
mod schema;
mod send;
mod send_ledger;
mod send_outputs;
mod service_file;
mod shared;
mod target;
mod tls;

pub use address::{Address, AddressError};
pub use background::{last_failure, lock, set_last_failure, start_in_background};
pub use database::{DatabaseState, ProjectSize, Retention, set_retention, state};
pub use pushed::{DamagedOutput, Pushed};
pub use send::{PushOptions, push};
pub use shared::SharedRecord;

/// Why a push failed. What was sent before is in the database.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{}", error_text::not_connected(.0))]
    Connect(postgres::Error),
    #[error("{}", error_text::refused(.0))]
    Database(#[from] postgres::Error),
    #[error(transparent)]
    Store(#[from] retake_store::Error),
    #[error(
        "the schema `retake` in this database has version {found}, which this retake does not know \
         (it knows {known}); use a newer one"
    )]
    Newer { found: i32, known: i32 },
    #[error(
        "the schema `retake` in this database has version {found}, this retake reads {known}; its first \
         push brings it to that version"
    )]
    Older { found: i32, known: i32 },
    /// Nothing has been pushed to this database yet.
    #[error("the database has no schema `retake`; the first push creates it")]
    NoSchema,
    #[error(
        "entry {seq} of this record is not the one that was pushed: the record was replaced since, or \
         is a copy that went on by itself; what is in the database is left as it is"
    )]
    Replaced { seq: u64 },
    #[error("the connection broke while data was sent: {0}")]
    Broken(#[from] std::io::Error),
}
