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

pub(crate) use address::{Address, AddressError};
pub(crate) use background::{in_background, note, owed, turn};
pub(crate) use send::{Pushed, Wanted, push};

/// Why a push broke off. What was sent until then is there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("the database cannot be reached: {}", in_full(.0))]
    Connect(postgres::Error),
    #[error("the database does not do what it should: {}", in_full(.0))]
    Database(#[from] postgres::Error),
    #[error(transparent)]
    Store(#[from] retake_store::Error),
    #[error(
        "the schema `retake` in this database has version {found}, which this retake does not know \
         (it knows {known}); use a newer one"
    )]
    Newer { found: i32, known: i32 },
    #[error(
        "entry {seq} of this record is not the one that was pushed: the record was replaced since; \
         what is in the database is left as it is"
    )]
    Replaced { seq: u64 },
    #[error("the connection broke while data was sent: {0}")]
    Broken(#[from] std::io::Error),
}

/// An error with everything beneath it: the outer one often says only that there was one.
fn in_full(error: &postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        return format!("{} ({})", said.message(), said.code().code());
    }
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}
