//! Locates and opens the bytes of a stream: in the live spool, a raw file, the database or a
//! compressed file.
//!
//! Nothing here changes the store.

use std::io;

use retake_types::{Redacted, RunId, RunOutcome, Stream};
use rusqlite::{Connection, OptionalExtension};

use crate::base::arrival_order::{Chunk, ChunkReader, order_hash};
use crate::base::block_hashes::{BLOCK, BlockHashes};
use crate::base::dir::{StoreDir, open_regular};
use crate::base::ledger::{self, Entry, hash_column};
use crate::base::output_damage::OutputDamage;
use crate::base::schema;
use crate::base::zstd_frames::ZstdFrames;
use crate::read::output_reader::{FileForm, OutputReader, RecordedOutput, StoredFile};
use crate::{Error, Result, Store};

/// Streams up to this size live in the database.
pub(crate) const INLINE_LIMIT: u64 = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    Inline,
    /// The spool file, until it is compressed.
    Raw,
    Compressed,
}

impl Storage {
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Inline => 0,
            Self::Raw => 1,
            Self::Compressed => 2,
        }
    }

    pub(crate) fn of(number: i64) -> Option<Self> {
        [Self::Inline, Self::Raw, Self::Compressed].into_iter().find(|s| s.number() == number)
    }
}

/// The key of a stream's row in `outputs`: two for each run.
pub(crate) fn output_key(seq: i64, stream: Stream) -> i64 {
    seq * 2 + stream.index() as i64
}

pub(crate) fn run_and_stream(output_key: i64) -> (i64, Stream) {
    (output_key / 2, if output_key % 2 == 0 { Stream::Stdout } else { Stream::Stderr })
}

/// A row of `outputs`, without its content.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) output: RecordedOutput,
    pub(crate) storage: Storage,
}

pub(crate) fn load(connection: &Connection, output_key: i64) -> rusqlite::Result<Option<Stored>> {
    connection
        .prepare_cached("SELECT bytes, hash, storage FROM outputs WHERE place = ?1")?
        .query_row([output_key], |row| {
            let (bytes, storage) = (row.get::<_, i64>(0)?.unsigned_abs(), row.get(2)?);
            Ok(Stored {
                output: RecordedOutput { bytes, hash: hash_column(row, 1)? },
                storage: Storage::of(storage)
                    .ok_or(rusqlite::Error::IntegralValueOutOfRange(2, storage))?,
            })
        })
        .optional()
}

/// The bytes of an output in the database.
pub(crate) fn load_content(connection: &Connection, output_key: i64) -> rusqlite::Result<Vec<u8>> {
    let content: Option<Option<Vec<u8>>> = connection
        .prepare_cached("SELECT content FROM outputs WHERE place = ?1")?
        .query_row([output_key], |row| row.get(0))
        .optional()?;
    Ok(content.flatten().unwrap_or_default())
}

/// The stored list of an output's block hashes, unchecked. `None` if missing.
pub(crate) fn load_blocks(
    connection: &Connection,
    output_key: i64,
) -> rusqlite::Result<Option<Vec<u8>>> {
    // A read-only store may still have the schema of an earlier release.
    if schema::of(connection)? < schema::WITH_BLOCKS {
        return Ok(None);
    }
    let blocks: Option<Option<Vec<u8>>> = connection
        .prepare_cached("SELECT blocks FROM outputs WHERE place = ?1")?
        .query_row([output_key], |row| row.get(0))
        .optional()?;
    Ok(blocks.flatten())
}

/// What an outcome says about a stream; `None` if it was not captured.
pub(crate) fn recorded_output(outcome: &RunOutcome, stream: Stream) -> Option<RecordedOutput> {
    let (bytes, hash) = match stream {
        Stream::Stdout => (outcome.stdout_bytes, &outcome.stdout_blake3),
        Stream::Stderr => (outcome.stderr_bytes, &outcome.stderr_blake3),
    };
    let hash = blake3::Hash::from_hex(hash.as_ref()?).ok()?;
    Some(RecordedOutput { bytes, hash })
}

/// The outcome of a run in the ledger; `None` if it has none yet.
pub(crate) fn recorded_outcome(
    connection: &Connection,
    dir: &StoreDir,
    (id, seq): (RunId, i64),
) -> Result<Option<Redacted<RunOutcome>>> {
    let outcome_seq: Option<Option<i64>> = connection
        .prepare_cached("SELECT outcome_seq FROM runs WHERE seq = ?1")
        .and_then(|mut statement| statement.query_row([seq], |row| row.get(0)).optional())
        .map_err(|error| Error::sqlite("look up the outcome", dir.database(), error))?;
    let Some(outcome_seq) = outcome_seq.flatten() else { return Ok(None) };
    match ledger::checked(connection, dir.database(), outcome_seq)? {
        Entry::Outcome { run, outcome } if run == id => Ok(Some(*outcome)),
        _ => Err(Error::BadEntry {
            seq: outcome_seq,
            detail: format!("it is not the outcome of run {id}"),
        }),
    }
}

/// Opens a stream of a finished run. Works inside a transaction.
pub(crate) fn open(
    connection: &Connection,
    dir: &StoreDir,
    (id, seq): (RunId, i64),
    stream: Stream,
) -> Result<OutputReader> {
    let recorded = recorded_outcome(connection, dir, (id, seq))?
        .and_then(|outcome| recorded_output(&outcome, stream));
    let Some(recorded) = recorded else { return Ok(OutputReader::empty(id, stream)) };
    let failed = |error| Error::sqlite("look up the output", dir.database(), error);
    let damaged = |damage| Error::OutputDamaged { id, stream, damage };
    let key = output_key(seq, stream);
    let stored = load(connection, key).map_err(failed)?;
    let Some(stored) = stored.filter(|stored| stored.output == recorded) else {
        return Err(damaged(OutputDamage::WrongRow));
    };
    if stored.storage == Storage::Inline {
        let content = load_content(connection, key).map_err(failed)?;
        return OutputReader::small(id, stream, content, recorded);
    }
    let (path, form) = open_file(dir, id, stream, &stored).map_err(damaged)?;
    let blocks = match recorded.bytes > BLOCK {
        true => load_blocks(connection, key).map_err(failed)?,
        false => None,
    };
    let blocks =
        blocks.and_then(|blocks| BlockHashes::of_output(&blocks, recorded.bytes, &recorded.hash));
    OutputReader::stored(id, stream, StoredFile::new(path, form, recorded, blocks))
}

/// The file of an output that is not in the database.
pub(crate) fn file_of(
    dir: &StoreDir,
    id: RunId,
    stream: Stream,
    stored: &Stored,
) -> std::path::PathBuf {
    match stored.storage {
        Storage::Compressed => dir.output(&stored.output.hash),
        Storage::Inline | Storage::Raw => dir.spool(id, stream),
    }
}

fn open_file(
    dir: &StoreDir,
    id: RunId,
    stream: Stream,
    stored: &Stored,
) -> Result<(std::path::PathBuf, FileForm), OutputDamage> {
    let path = file_of(dir, id, stream, stored);
    let whole = OutputDamage::Altered { from: 0, to: stored.output.bytes };
    let damage = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => OutputDamage::Missing { path: path.clone() },
        _ if error.raw_os_error().is_none() => whole.clone(),
        _ => OutputDamage::Unreadable { path: path.clone(), error: error.to_string() },
    };
    let file = open_regular(&path).map_err(damage)?;
    let form = match stored.storage {
        Storage::Compressed => FileForm::Compressed(ZstdFrames::open(file).map_err(damage)?),
        Storage::Inline | Storage::Raw => FileForm::Raw(file),
    };
    Ok((path, form))
}

impl Store {
    /// One stream of a running or finished run. Empty if the run never wrote to it. For a finished
    /// run, returns only bytes that match the ledger.
    pub fn read_output(&self, id: RunId, stream: Stream) -> Result<OutputReader> {
        // Between two queries another process may finish, compress or erase a run.
        let mut opened = self.open_output(id, stream);
        for _ in 0..2 {
            match opened {
                Err(Error::OutputDamaged { .. } | Error::BadEntry { .. }) => {
                    opened = self.open_output(id, stream);
                }
                opened => return opened,
            }
        }
        opened
    }

    fn open_output(&self, id: RunId, stream: Stream) -> Result<OutputReader> {
        let (seq, over) = self.seq_and_finished(id)?;
        if over {
            return open(&self.connection, &self.dir, (id, seq), stream);
        }
        let path = self.dir.spool(id, stream);
        match open_regular(&path) {
            Ok(file) => {
                let length =
                    file.metadata().map_err(|error| Error::io("look at", &path, error))?.len();
                Ok(OutputReader::unfinished(id, stream, file, length))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Nothing was written yet, or the outcome was committed since the first query.
                let (seq, over) = self.seq_and_finished(id)?;
                if over {
                    open(&self.connection, &self.dir, (id, seq), stream)
                } else {
                    Ok(OutputReader::empty(id, stream))
                }
            }
            Err(error) => Err(Error::io("open", &path, error)),
        }
    }

    /// The number of the run's intent, and whether its outcome is committed.
    pub(crate) fn seq_and_finished(&self, id: RunId) -> Result<(i64, bool)> {
        self.connection
            .prepare_cached("SELECT seq, outcome_seq IS NOT NULL FROM runs WHERE id = ?1")
            .and_then(|mut statement| {
                statement
                    .query_row([id.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
                    .optional()
            })
            .map_err(|error| self.failed("look up the run", error))?
            .ok_or_else(|| Error::NotFound { text: id.to_string() })
    }

    /// The arrival order of a run's chunks, as far as known.
    pub(crate) fn chunks_of(&self, id: RunId) -> Result<Vec<Chunk>> {
        let bytes = match self.order_of(id)? {
            Some(bytes) => bytes,
            None => match std::fs::read(self.dir.chunks(id)) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(error) => return Err(Error::io("read", &self.dir.chunks(id), error)),
            },
        };
        Ok(ChunkReader::read_all(&bytes))
    }

    /// The arrival order of a finished run, checked against the outcome. Runs of earlier releases
    /// have nothing to check it against.
    pub(crate) fn order_of(&self, id: RunId) -> Result<Option<Vec<u8>>> {
        let (seq, _) = self.seq_and_finished(id)?;
        let Some(outcome) = recorded_outcome(&self.connection, &self.dir, (id, seq))? else {
            return Ok(None);
        };
        let order = load_order(&self.connection, seq)
            .map_err(|error| self.failed("look up the order of output", error))?;
        match is_recorded_order(&outcome, order.as_deref()) {
            true => Ok(Some(order.unwrap_or_default())),
            false => Err(Error::OrderAltered { id }),
        }
    }
}

pub(crate) fn load_order(connection: &Connection, seq: i64) -> rusqlite::Result<Option<Vec<u8>>> {
    let order: Option<Option<Vec<u8>>> = connection
        .prepare_cached("SELECT chunks FROM runs WHERE seq = ?1")?
        .query_row([seq], |row| row.get(0))
        .optional()?;
    Ok(order.flatten())
}

/// Whether an arrival order matches the outcome. A lost one, such as after a rebuild of the list of
/// runs, is unknown and does not count as altered.
pub(crate) fn is_recorded_order(outcome: &RunOutcome, order: Option<&[u8]>) -> bool {
    match (&outcome.order_blake3, order) {
        (Some(recorded), Some(order)) => order_hash(order) == *recorded,
        (None, _) | (_, None) => true,
    }
}
