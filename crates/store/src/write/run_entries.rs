//! The entries of a run, written inside the caller's transaction: its intent, its outcome and its
//! output, in the ledger and in the tables derived from it.

use retake_types::{Intent, Redacted, RunId, RunOutcome, Stream};
use rusqlite::Connection;

use crate::base::block_hashes::{BlockHashes, OutputHash};
use crate::base::dir::StoreDir;
use crate::base::ledger::{self, Entry};
use crate::base::projection::{Row, complete, insert_labels, seq_of};
use crate::read::output::{Storage, output_key};
use crate::{Error, Result};

/// What was stored of one stream.
#[derive(Debug)]
pub(crate) struct StreamContent<'a> {
    pub(crate) stream: Stream,
    pub(crate) output: OutputHash,
    /// The bytes themselves if they are few; otherwise they are in the spool file.
    pub(crate) inline: Option<&'a [u8]>,
}

pub(crate) fn insert_intent(
    connection: &Connection,
    dir: &StoreDir,
    intent: &Redacted<Intent>,
) -> Result<i64> {
    let failed = |error| Error::sqlite("record the intent", dir.database(), error);
    if seq_of(connection, intent.id()).map_err(failed)?.is_some() {
        return Err(Error::Duplicate { id: intent.id() });
    }
    let entry = Entry::Intent(intent);
    let seq = ledger::append(connection, &entry).map_err(failed)?;
    Row::of(seq, intent).insert(connection).map_err(failed)?;
    insert_labels(connection, seq, intent).map_err(failed)?;
    Ok(seq)
}

/// Appends the outcome and completes the projection, inside the caller's transaction.
pub(crate) fn insert_outcome(
    connection: &Connection,
    dir: &StoreDir,
    (id, seq): (RunId, i64),
    outcome: &Redacted<RunOutcome>,
    streams: &[StreamContent<'_>],
    chunks: Option<&[u8]>,
) -> Result<()> {
    let failed = |error| Error::sqlite("record the outcome", dir.database(), error);
    let entry = Entry::Outcome { run: id, outcome };
    let outcome_seq = ledger::append(connection, &entry).map_err(failed)?;
    if !complete(connection, seq, (outcome_seq, outcome), chunks).map_err(failed)? {
        return Err(Error::NotFound { text: id.to_string() });
    }
    for stream in streams {
        insert_output(connection, seq, stream).map_err(failed)?;
    }
    Ok(())
}

pub(crate) fn insert_output(
    connection: &Connection,
    seq: i64,
    stored: &StreamContent<'_>,
) -> rusqlite::Result<()> {
    let storage = if stored.inline.is_some() { Storage::Inline } else { Storage::Raw };
    let OutputHash { bytes, hash, blocks } = &stored.output;
    connection
        .prepare_cached(
            "INSERT INTO outputs (place, bytes, hash, storage, pending, content, blocks)
             VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6)",
        )?
        .execute((
            output_key(seq, stored.stream),
            i64::try_from(*bytes).unwrap_or(i64::MAX),
            hash.as_bytes(),
            storage.number(),
            stored.inline,
            blocks.as_ref().map(BlockHashes::as_bytes),
        ))?;
    Ok(())
}
