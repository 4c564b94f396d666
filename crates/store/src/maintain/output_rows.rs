//! Repairs rows of `outputs` that contradict the ledger while the bytes still exist: under the
//! number of another output, or in a file that no row names.

use std::collections::{HashMap, HashSet};

use retake_types::{RunId, RunOutcome, Stream};
use rusqlite::Connection;

use crate::base::block_hashes::{BlockHashes, OutputHash};
use crate::base::dir::StoreDir;
use crate::base::ledger::{self, Entry};
use crate::base::projection::seq_of;
use crate::read::output::{self, Storage, output_key, recorded_output};
use crate::read::output_reader::RecordedOutput;
use crate::read::search_index;
use crate::write::run_entries::{StreamContent, insert_output};

/// An output that the ledger names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedOutput {
    pub(crate) run: RunId,
    /// The number of the run's intent.
    pub(crate) seq: i64,
    pub(crate) stream: Stream,
    pub(crate) recorded: RecordedOutput,
}

impl NamedOutput {
    /// The outputs of one run.
    pub(crate) fn of(run: RunId, seq: i64, outcome: &RunOutcome) -> impl Iterator<Item = Self> {
        Stream::BOTH.into_iter().filter_map(move |stream| {
            Some(Self { run, seq, stream, recorded: recorded_output(outcome, stream)? })
        })
    }

    pub(crate) fn key(&self) -> i64 {
        output_key(self.seq, self.stream)
    }

    fn raw_is_there(&self, dir: &StoreDir) -> bool {
        let raw = dir.spool(self.run, self.stream).metadata();
        raw.is_ok_and(|file| file.len() == self.recorded.bytes)
    }

    /// Whether its row is correct and leads to a file of its length, or to its bytes in the
    /// database.
    fn has_its_row(&self, connection: &Connection, dir: &StoreDir) -> rusqlite::Result<bool> {
        let Ok(Some(stored)) = output::load(connection, self.key()) else { return Ok(false) };
        Ok(stored.output == self.recorded
            && match stored.storage {
                Storage::Inline => {
                    let content = output::load_content(connection, self.key())?;
                    blake3::hash(&content) == self.recorded.hash
                }
                Storage::Raw => self.raw_is_there(dir),
                Storage::Compressed => dir.output(&self.recorded.hash).exists(),
            })
    }

    /// Looks for the bytes in these rows and in files.
    pub(crate) fn find(
        &self,
        dir: &StoreDir,
        inline: &InlineOutputs<'_>,
        old_key: i64,
    ) -> Option<FoundOutput> {
        let content = inline.content(old_key, &self.recorded.hash);
        let storage = match &content {
            Some(_) => Storage::Inline,
            None if dir.output(&self.recorded.hash).exists() => Storage::Compressed,
            None if self.raw_is_there(dir) => Storage::Raw,
            None => return None,
        };
        let RecordedOutput { bytes, hash } = self.recorded;
        let blocks = output::load_blocks(inline.connection, old_key)
            .ok() // unreadable: the list can be made again
            .flatten()
            .and_then(|blocks| BlockHashes::of_output(&blocks, bytes, &hash));
        Some(FoundOutput { output: *self, blocks, content, storage })
    }
}

/// Where the bytes of an output were found.
#[derive(Debug)]
pub(crate) struct FoundOutput {
    output: NamedOutput,
    blocks: Option<BlockHashes>,
    content: Option<Vec<u8>>,
    storage: Storage,
}

impl FoundOutput {
    /// Inserts its row, which must be missing.
    pub(crate) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let RecordedOutput { bytes, hash } = self.output.recorded;
        let output = OutputHash { bytes, hash, blocks: self.blocks.clone() };
        let stream = self.output.stream;
        let kept = StreamContent { stream, output, inline: self.content.as_deref() };
        insert_output(connection, self.output.seq, &kept)?;
        if self.storage == Storage::Compressed {
            connection.execute(
                "UPDATE outputs SET storage = ?2 WHERE place = ?1",
                (self.output.key(), self.storage.number()),
            )?;
        }
        Ok(())
    }
}

/// The outputs in a database's rows by hash: a row may belong to another output.
pub(crate) struct InlineOutputs<'a> {
    connection: &'a Connection,
    by_hash: HashMap<blake3::Hash, i64>,
}

impl<'a> InlineOutputs<'a> {
    /// Reads as many rows as the database returns.
    pub(crate) fn of(connection: &'a Connection) -> Self {
        let mut by_hash = HashMap::new();
        // A damaged page ends this with an error; the rows before it are all that can be read.
        drop(
            connection
                .prepare("SELECT place, content FROM outputs WHERE content IS NOT NULL")
                .and_then(|mut statement| {
                    let mut rows = statement.query([])?;
                    while let Some(row) = rows.next()? {
                        by_hash.insert(blake3::hash(row.get_ref(1)?.as_bytes()?), row.get(0)?);
                    }
                    Ok(())
                }),
        );
        Self { connection, by_hash }
    }

    fn content(&self, key: i64, hash: &blake3::Hash) -> Option<Vec<u8>> {
        let load = |key| {
            let content = output::load_content(self.connection, key).ok()?; // unreadable is lost
            (blake3::hash(&content) == *hash).then_some(content)
        };
        load(key).or_else(|| load(*self.by_hash.get(hash)?))
    }
}

/// Every output that the ledger names, for listed runs.
pub(crate) fn named_outputs(connection: &Connection) -> rusqlite::Result<Vec<NamedOutput>> {
    let mut named = Vec::new();
    let mut statement =
        connection.prepare("SELECT seq, body FROM ledger WHERE body IS NOT NULL ORDER BY seq")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (seq, body): (i64, Vec<u8>) = row.try_into()?;
        // An entry that cannot be read is for verify to report.
        if let Ok(Entry::Outcome { run, outcome }) = ledger::parse(seq, &body)
            && let Some(seq) = seq_of(connection, run)?
        {
            named.extend(NamedOutput::of(run, seq, &outcome));
        }
    }
    Ok(named)
}

/// Outputs without a correct row whose bytes were found.
fn found_again(
    connection: &Connection,
    dir: &StoreDir,
    named: &[NamedOutput],
) -> rusqlite::Result<Vec<FoundOutput>> {
    let mut wrong = Vec::new();
    for output in named {
        if !output.has_its_row(connection, dir)? {
            wrong.push(output);
        }
    }
    if wrong.is_empty() {
        return Ok(Vec::new());
    }
    let inline = InlineOutputs::of(connection);
    Ok(wrong.iter().filter_map(|output| output.find(dir, &inline, output.key())).collect())
}

/// Whether any output without a correct row can get it back.
pub(crate) fn can_be_restored(connection: &Connection, dir: &StoreDir) -> rusqlite::Result<bool> {
    Ok(!found_again(connection, dir, &named_outputs(connection)?)?.is_empty())
}

/// Restores the rows of outputs and removes rows without an output. Returns how many were restored.
/// Without a copy of the database, only inserts missing rows.
pub(crate) fn restore_rows(
    tx: &Connection,
    dir: &StoreDir,
    copy_kept: bool,
) -> rusqlite::Result<u64> {
    let named = named_outputs(tx)?;
    let known: HashSet<i64> = named.iter().map(NamedOutput::key).collect();
    let mut strays: Vec<i64> = tx
        .prepare("SELECT place FROM outputs")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    strays.retain(|key| !known.contains(key));
    let found = found_again(tx, dir, &named)?;
    if found.is_empty() && strays.is_empty() {
        return Ok(0);
    }
    if copy_kept {
        for key in found.iter().map(|found| found.output.key()).chain(strays) {
            tx.execute("DELETE FROM outputs WHERE place = ?1", [key])?;
        }
    }
    let mut restored = 0;
    for found in &found {
        let mut row = tx.prepare_cached("SELECT 1 FROM outputs WHERE place = ?1")?;
        if !row.exists([found.output.key()])? {
            found.insert(tx)?;
            restored += 1;
        }
    }
    // The search index has the text of other outputs for these rows.
    search_index::reset(tx)?;
    Ok(restored)
}
