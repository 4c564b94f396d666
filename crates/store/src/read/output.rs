//! Where a stream's bytes are, and reading them: live spool, raw file, inline or compressed alike.
//!
//! Nothing here changes what is stored.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use retake_types::{RunId, Stream};
use rusqlite::{Connection, OptionalExtension};

use crate::base::arrival_order::{Chunk, ChunkReader};
use crate::base::dir::StoreDir;
use crate::base::ledger::hash_column;
use crate::base::projection::seq_of;
use crate::base::zstd_frames::ZstdFrames;
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

/// A row of `outputs`.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) bytes: u64,
    pub(crate) hash: blake3::Hash,
    pub(crate) storage: Storage,
    pub(crate) content: Option<Vec<u8>>,
}

pub(crate) fn load(connection: &Connection, output_key: i64) -> rusqlite::Result<Option<Stored>> {
    connection
        .prepare_cached("SELECT bytes, hash, storage, content FROM outputs WHERE place = ?1")?
        .query_row([output_key], |row| {
            let storage = row.get(2)?;
            Ok(Stored {
                bytes: row.get::<_, i64>(0)?.unsigned_abs(),
                hash: hash_column(row, 1)?,
                storage: Storage::of(storage)
                    .ok_or(rusqlite::Error::IntegralValueOutOfRange(2, storage))?,
                content: row.get(3)?,
            })
        })
        .optional()
}

impl Stored {
    pub(crate) fn open(self, dir: &StoreDir, id: RunId, stream: Stream) -> Result<OutputReader> {
        let lost = |path: &std::path::Path, error: io::Error| Error::OutputLost {
            id,
            stream: stream.as_str(),
            detail: format!("{}: {error}", path.display()),
        };
        let source = match self.storage {
            Storage::Inline => Source::Memory(self.content.unwrap_or_default()),
            Storage::Raw => {
                let path = dir.spool(id, stream);
                Source::Plain(File::open(&path).map_err(|error| lost(&path, error))?)
            }
            Storage::Compressed => {
                let path = dir.output(&self.hash);
                let frames = File::open(&path).and_then(ZstdFrames::open);
                Source::ZstdFrames(Box::new(frames.map_err(|error| lost(&path, error))?))
            }
        };
        Ok(OutputReader { source, length: self.bytes, position: 0 })
    }
}

/// The bytes of one stream as they were when it was opened. OutputFollower a growing one with `OutputFollower`.
#[derive(Debug)]
pub struct OutputReader {
    source: Source,
    length: u64,
    position: u64,
}

#[derive(Debug)]
enum Source {
    Memory(Vec<u8>),
    Plain(File),
    ZstdFrames(Box<ZstdFrames>),
}

impl OutputReader {
    pub(crate) fn empty() -> Self {
        Self { source: Source::Memory(Vec::new()), length: 0, position: 0 }
    }

    /// Bytes of the stream.
    pub fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        if wanted == 0 {
            return Ok(0);
        }
        let buffer = &mut buffer[..wanted];
        match &mut self.source {
            Source::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                Cursor::new(&bytes[start..]).read(buffer)
            }
            Source::Plain(file) => file.read_at(buffer, offset),
            Source::ZstdFrames(frames) => frames.read_at(buffer, offset),
        }
    }
}

impl Read for OutputReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for OutputReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = sought(to, self.position, self.length)?;
        Ok(self.position)
    }
}

pub(crate) fn sought(to: SeekFrom, position: u64, length: u64) -> io::Result<u64> {
    match to {
        SeekFrom::Start(offset) => Some(offset),
        SeekFrom::End(offset) => length.checked_add_signed(offset),
        SeekFrom::Current(offset) => position.checked_add_signed(offset),
    }
    .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek before the beginning"))
}

impl Store {
    /// One stream of a run, whether the run is over or not. Empty when it never wrote to it.
    pub fn read_output(&self, id: RunId, stream: Stream) -> Result<OutputReader> {
        // A run that finishes between the two looks has moved from the spool to the database.
        for _ in 0..3 {
            let (seq, over) = self.seq_and_finished(id)?;
            if over {
                let stored = load(&self.connection, output_key(seq, stream))
                    .map_err(|error| self.failed("look up the output", error))?;
                match stored.map(|stored| stored.open(&self.dir, id, stream)) {
                    None => return Ok(OutputReader::empty()),
                    // A compaction that ran between the look and the open moved the file.
                    Some(Err(Error::OutputLost { .. })) => continue,
                    Some(opened) => return opened,
                }
            }
            match File::open(self.dir.spool(id, stream)) {
                Ok(file) => {
                    let path = self.dir.spool(id, stream);
                    let length =
                        file.metadata().map_err(|error| Error::io("look at", &path, error))?.len();
                    return Ok(OutputReader { source: Source::Plain(file), length, position: 0 });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if !self.seq_and_finished(id)?.1 {
                        return Ok(OutputReader::empty());
                    }
                }
                Err(error) => {
                    return Err(Error::io("open", &self.dir.spool(id, stream), error));
                }
            }
        }
        let (seq, _) = self.seq_and_finished(id)?;
        match load(&self.connection, output_key(seq, stream))
            .map_err(|error| self.failed("look up the output", error))?
        {
            Some(stored) => stored.open(&self.dir, id, stream),
            None => Ok(OutputReader::empty()),
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

    /// The order of arrival of a run's chunks, as far as it is known.
    pub(crate) fn chunks_of(&self, id: RunId) -> Result<Vec<Chunk>> {
        let failed = |error| self.failed("look up the order of output", error);
        if let Some(seq) = seq_of(&self.connection, id).map_err(failed)? {
            let stored: Option<Vec<u8>> = self
                .connection
                .query_row("SELECT chunks FROM runs WHERE seq = ?1", [seq], |row| row.get(0))
                .map_err(failed)?;
            if let Some(bytes) = stored {
                return Ok(ChunkReader::read_all(&bytes));
            }
        }
        match std::fs::read(self.dir.chunks(id)) {
            Ok(bytes) => Ok(ChunkReader::read_all(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(Error::io("read", &self.dir.chunks(id), error)),
        }
    }
}
