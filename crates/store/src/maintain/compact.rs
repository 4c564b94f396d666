//! Work that must not delay a result: compressing large output and indexing all output.
//!
//! Done by later commands, within the time they can spare. A crash at any instant leaves a readable
//! file, raw or compressed, that the record refers to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use retake_types::{RunId, Stream};
use rusqlite::OptionalExtension;

use crate::base::block_hashes::{BlockHashes, OutputHash, OutputHasher};
use crate::base::crash_points::crash_point;
use crate::base::dir::{StoreDir, open_regular, remove, sync_dir};
use crate::base::schema;
use crate::base::store::Durability;
use crate::base::zstd_frames;
use crate::maintain::obsolete_files;
use crate::read::output::{self, Storage, output_key, run_and_stream};
use crate::read::search_index;
use crate::{Error, Result, Store};

/// Small outputs indexed per transaction, so that writers need not wait long.
const BATCH: usize = 64;

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    pub compressed: u64,
    pub indexed: u64,
    /// Whether work is left for the next time.
    pub more: bool,
}

struct Pending {
    output_key: i64,
    id: RunId,
    stream: Stream,
    storage: Storage,
}

impl Pending {
    fn run(&self) -> (RunId, i64) {
        (self.id, run_and_stream(self.output_key).0)
    }
}

impl Store {
    /// Whether output waits to be compressed and indexed, or a runner died. Also works on a
    /// read-only store.
    pub fn needs_maintenance(&mut self) -> bool {
        let waiting = self.may_have_work()
            && (self.compact(Duration::ZERO).is_ok_and(|look| look.more)
                || self.has_obsolete_files());
        waiting || self.may_need_recovery()
    }

    /// `false` if there is nothing to compress, index or remove. Every reading command asks,
    /// usually with that answer, so it is a single statement that is quick to prepare.
    fn may_have_work(&self) -> bool {
        let look = "SELECT EXISTS (SELECT 1 FROM outputs WHERE pending = 1)
               OR EXISTS (SELECT 1 FROM outputs WHERE bytes > 1048576 AND blocks IS NULL)
               OR EXISTS (SELECT 1 FROM settings WHERE name >= ?1 AND name < ?2)";
        // An earlier schema lacks some of these tables and columns.
        self.connection.query_row(look, obsolete_files::NAMES, |row| row.get(0)).unwrap_or(true)
    }

    /// Compresses and indexes waiting output, oldest first, for about `budget`.
    pub fn compact(&mut self, budget: Duration) -> Result<Compacted> {
        let begun = Instant::now();
        let mut done = Compacted::default();
        if !budget.is_zero() {
            self.remove_obsolete_files()?;
        }
        let mut after = 0;
        loop {
            let batch = self.pending(after)?;
            let Some(last) = batch.last() else { break };
            if begun.elapsed() >= budget {
                done.more = true;
                break;
            }
            after = last.output_key;
            let (raw, small): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|pending| pending.storage == Storage::Raw);
            // Writes that free space come first: the reserved room of the WAL, which any write
            // consumes, may be all that is left.
            let compressed = self.compress_all(&raw, begun, budget, &mut done);
            done.indexed += self.index_small(&small)?;
            compressed?;
        }
        done.more |= self.make_missing_lists(begun, budget)?;
        if done.indexed > 0 {
            self.fold_wal()?;
        }
        Ok(done)
    }

    fn compress_all(
        &mut self,
        raw: &[Pending],
        begun: Instant,
        budget: Duration,
        done: &mut Compacted,
    ) -> Result<()> {
        for pending in raw {
            if begun.elapsed() >= budget {
                done.more = true;
                break;
            }
            if self.compress(pending)? {
                done.compressed += 1;
                done.indexed += 1;
            }
        }
        Ok(())
    }

    /// Computes the lists of block hashes that earlier releases did not record; `true` if the time
    /// ran out.
    fn make_missing_lists(&mut self, begun: Instant, budget: Duration) -> Result<bool> {
        let failed = |store: &Self, error| store.failed("look for outputs without a list", error);
        // Only for a store opened for reading: writing migrates the schema.
        if schema::version(&self.connection, &self.dir)? < schema::WITH_BLOCKS {
            return Ok(false);
        }
        loop {
            let next: Option<(i64, [u8; 16])> = self
                .connection
                .prepare_cached(
                    "SELECT o.place, r.id FROM outputs o JOIN runs r ON r.seq = o.place / 2
                     WHERE o.bytes > 1048576 AND o.blocks IS NULL AND o.pending = 0 LIMIT 1",
                )
                .and_then(|mut statement| {
                    statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional()
                })
                .map_err(|error| failed(self, error))?;
            let Some((key, id)) = next else { return Ok(false) };
            if begun.elapsed() >= budget {
                return Ok(true);
            }
            let (seq, stream) = run_and_stream(key);
            let list = self
                .read_output(RunId::from_bytes(id), stream)
                .and_then(|mut output| output.check(&mut |_| {}).map(|()| output.into_blocks()));
            let list = match list {
                Ok(blocks) => blocks,
                // Erased meanwhile.
                Err(Error::NotFound { .. }) => continue,
                // Not retried; reading and verifying report the damage.
                Err(error) if error.is_damage() => None,
                Err(error) => return Err(error),
            };
            let list = list.as_ref().map_or(&[][..], BlockHashes::as_bytes);
            self.write(Durability::Process, "keep block hashes", |tx, dir| {
                set_blocks(tx, output_key(seq, stream), list)
                    .map_err(|error| Error::sqlite("keep block hashes", dir.database(), error))
            })?;
        }
    }

    fn pending(&self, after: i64) -> Result<Vec<Pending>> {
        self.connection
            .prepare_cached(
                "SELECT o.place, r.id, o.storage FROM outputs o JOIN runs r ON r.seq = o.place / 2
                 WHERE o.pending = 1 AND o.place > ?1 ORDER BY o.place LIMIT ?2",
            )
            .and_then(|mut statement| {
                statement
                    .query_map((after, BATCH as i64), |row| {
                        let (output_key, storage) = (row.get(0)?, row.get(2)?);
                        Ok(Pending {
                            output_key,
                            id: RunId::from_bytes(row.get(1)?),
                            stream: run_and_stream(output_key).1,
                            storage: Storage::of(storage)
                                .ok_or(rusqlite::Error::IntegralValueOutOfRange(2, storage))?,
                        })
                    })?
                    .collect()
            })
            .map_err(|error| self.failed("look for work", error))
    }

    fn index_small(&mut self, batch: &[Pending]) -> Result<u64> {
        if batch.is_empty() {
            return Ok(0);
        }
        self.write(Durability::Process, "index output", |tx, dir| {
            let failed = |error| Error::sqlite("index output", dir.database(), error);
            let mut indexed = 0;
            for pending in batch {
                if !mark_done(tx, pending.output_key, None).map_err(failed)? {
                    continue; // another process was faster, or the run is gone
                }
                let opened = output::open(tx, dir, pending.run(), pending.stream);
                // Damage is reported on reading; it must not stop the rest.
                let Ok(mut output) = opened else { continue };
                let Ok(text) = search_index::text_of(&mut output) else { continue };
                search_index::add(tx, pending.output_key, &text).map_err(failed)?;
                indexed += 1;
            }
            Ok(indexed)
        })
    }

    fn compress(&mut self, pending: &Pending) -> Result<bool> {
        let raw_path = self.dir.spool(pending.id, pending.stream);
        let mut raw = match open_regular(&raw_path) {
            Ok(raw) => raw,
            // The file is gone or replaced by something else: there is nothing to compress.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound || error.raw_os_error().is_none() =>
            {
                return self.give_up(pending);
            }
            Err(error) => return Err(Error::io("open", &raw_path, error)),
        };
        let text =
            search_index::text_of(&mut raw).map_err(|error| Error::io("read", &raw_path, error))?;
        let temporary = Temporary::compressed(&self.dir, (pending.id, pending.stream), &mut raw)?;
        let compressed = self.write_then(
            Durability::Power,
            "store compressed output",
            |tx, dir| {
                let failed = |error| Error::sqlite("store output", dir.database(), error);
                let stored = output::load(tx, pending.output_key).map_err(failed)?;
                // Bytes that differ from the recorded ones are left for doctor to report.
                let compressed = &temporary.output;
                let same = stored.filter(|stored| stored.output.hash == compressed.hash);
                let Some(stored) = same else {
                    mark_done(tx, pending.output_key, None).map_err(failed)?;
                    return Ok(false);
                };
                if !mark_done(tx, pending.output_key, Some(Storage::Compressed)).map_err(failed)? {
                    return Ok(false);
                }
                if let Some(blocks) = &compressed.blocks {
                    set_blocks(tx, pending.output_key, blocks.as_bytes()).map_err(failed)?;
                }
                search_index::add(tx, pending.output_key, &text).map_err(failed)?;
                obsolete_files::note(tx, dir, &raw_path).map_err(failed)?;
                temporary.keep(dir, &stored.output.hash)?;
                Ok(true)
            },
            |&compressed, _| if compressed { remove(&raw_path) } else { Ok(()) },
        )?;
        Ok(compressed)
    }

    /// The raw file is gone: stop waiting for it.
    fn give_up(&mut self, pending: &Pending) -> Result<bool> {
        self.write(Durability::Process, "give up on output", |tx, dir| {
            mark_done(tx, pending.output_key, None)
                .map_err(|error| Error::sqlite("give up on output", dir.database(), error))
        })?;
        Ok(false)
    }
}

/// Replaces a raw file by a compressed one, if it has the recorded content; for a database that
/// cannot be written. `false` if there is nothing to compress.
pub(crate) fn compress_in_place(
    dir: &StoreDir,
    (id, stream): (RunId, Stream),
    hash: &blake3::Hash,
) -> Result<bool> {
    let raw_path = dir.spool(id, stream);
    let Ok(mut raw) = open_regular(&raw_path) else { return Ok(false) };
    let temporary = Temporary::compressed(dir, (id, stream), &mut raw)?;
    if temporary.output.hash != *hash {
        return Ok(false);
    }
    temporary.keep(dir, hash)?;
    remove(&raw_path)?;
    Ok(true)
}

/// Marks an output as done; `false` if another process did.
fn mark_done(
    connection: &rusqlite::Connection,
    output_key: i64,
    storage: Option<Storage>,
) -> rusqlite::Result<bool> {
    let changed = connection
        .prepare_cached(
            "UPDATE outputs SET pending = 0, storage = coalesce(?2, storage)
             WHERE place = ?1 AND pending = 1",
        )?
        .execute((output_key, storage.map(Storage::number)))?;
    Ok(changed > 0)
}

/// Stores the list of an output's block hashes. Outputs that share a file have separate lists.
fn set_blocks(
    connection: &rusqlite::Connection,
    output_key: i64,
    blocks: &[u8],
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE outputs SET blocks = ?2 WHERE place = ?1")?
        .execute((output_key, blocks))?;
    Ok(())
}

/// An unnamed compressed file; removed unless it is kept.
struct Temporary {
    path: PathBuf,
    /// The hash of the raw bytes.
    output: OutputHash,
}

impl Temporary {
    fn compressed(dir: &StoreDir, (id, stream): (RunId, Stream), raw: &mut File) -> Result<Self> {
        use std::io::Seek;
        dir.make(&dir.output_dir())?;
        let (path, file) = Self::create(dir, (id, stream))?;
        let failed = |error| Error::io("write", &path, error);
        // From here on the file is removed on every exit but `keep`.
        let mut temporary = Self { path: path.clone(), output: OutputHasher::default().finish() };
        raw.rewind().map_err(failed)?;
        let mut writer = io::BufWriter::new(file);
        let output = zstd_frames::compress(raw, &mut writer).map_err(failed)?;
        writer.flush().map_err(failed)?;
        writer.get_ref().sync_data().map_err(failed)?;
        temporary.output = output;
        // Now, not in `keep`: on a full disk the write turn uses the last of the space.
        let path = dir.output(&temporary.output.hash);
        dir.make(path.parent().unwrap_or(dir.root()))?;
        Ok(temporary)
    }

    /// A file name unique to this call: another thread may compress the same output, and a dead
    /// process may have had the same process id.
    fn create(dir: &StoreDir, (id, stream): (RunId, Stream)) -> Result<(PathBuf, File)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{id}.{}.{}-{number}.tmp", stream.as_str(), std::process::id());
            let path = dir.output_dir().join(name);
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("write", &path, error)),
            }
        }
    }

    /// Gives the file its final name. An existing file is replaced: it should be equal, and if
    /// damaged this repairs it.
    fn keep(&self, dir: &StoreDir, hash: &blake3::Hash) -> Result<()> {
        let path = dir.output(hash);
        let parent = path.parent().unwrap_or(dir.root());
        crash_point("compressed");
        fs::rename(&self.path, &path).map_err(|error| Error::io("rename", &path, error))?;
        crash_point("compressed file named");
        sync_dir(parent)?;
        sync_dir(&dir.output_dir())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After `keep` the name is gone; doctor finds a leftover.
        drop(fs::remove_file(&self.path));
    }
}
