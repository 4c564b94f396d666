//! The record in a PostgreSQL as well, for questions over many machines.
//!
//! What the ledger says is sent in order, many entries in one transaction together with how far we
//! are: a push that breaks off goes on where it was, and one more push changes nothing. Only what is
//! in the record is sent, so nothing that was redacted. The database never delays or fails a run.

mod address;
mod background;
mod copy;
mod rows;
mod schema;
mod send;
mod tls;
mod words;

pub use address::{Address, AddressError};
pub use background::{in_background, note, owed, turn};
pub use send::{Pushed, Wanted, push};

/// Why a push broke off. What was sent until then is there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{}", words::unconnected(.0))]
    Connect(postgres::Error),
    #[error("{}", words::refused(.0))]
    Database(#[from] postgres::Error),
    #[error(transparent)]
    Store(#[from] retake_store::Error),
    #[error(
        "the schema `retake` in this database has version {found}, which this retake does not know \
         (it knows {known}); use a newer one"
    )]
    Newer { found: i32, known: i32 },
    #[error(
        "entry {seq} of this record is not the one that was pushed: the record was replaced since, or \
         is a copy that went on by itself; what is in the database is left as it is, and --as-copy \
         sends this one beside it"
    )]
    Replaced { seq: u64 },
    #[error("the connection broke while data was sent: {0}")]
    Broken(#[from] std::io::Error),
}
