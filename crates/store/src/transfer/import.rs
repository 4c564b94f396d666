//! Imports runs from JSON lines into the record, without loss and exactly once.

use std::fs::File;
use std::io::{BufRead, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use retake_types::{Intent, Kind, Redacted, RunId, RunOutcome, Stream};

use super::export::ExportLine;
use crate::base::block_hashes::OutputHasher;
use crate::base::dir::{StoreDir, remove, sync_dir};
use crate::base::imports;
use crate::base::ledger::Import;
use crate::base::store::Durability;
use crate::read::output::{INLINE_LIMIT, is_recorded_order};
use crate::write::remote_runs::open_remote_run;
use crate::write::run_entries::{StreamContent, insert_intent, insert_outcome};
use crate::{Error, Result, Store};

/// Runs imported per commit.
const BATCH: usize = 256;

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub imported: Vec<RunId>,
    /// Runs that were already in the record.
    pub known: u64,
    /// Start times of the imported exec runs, to which retention applies.
    pub exec_starts: Vec<Timestamp>,
}

/// Whether an arriving run is wanted in this record.
pub(super) type Accept<'a> =
    dyn FnMut(&Store, &Redacted<Intent>, &Redacted<RunOutcome>) -> bool + 'a;

/// The source of arriving runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Another record, or a machine that executed a run of this one.
    Record,
    /// The inside of a sandbox, which is untrusted: no existing run gets an outcome.
    Sandbox,
    /// A bundle with this id, as untrusted as a sandbox.
    Bundle(RunId),
}

impl Store {
    /// Imports the lines that `export` or a [`ResultFile`](crate::ResultFile) wrote. Existing runs
    /// stay unchanged, except that a remote run gets its outcome. Everything before an unusable
    /// line is imported.
    pub fn import(&mut self, from: &mut impl BufRead) -> Result<Imported> {
        self.import_from(Origin::Record, from, &mut |_, _, _| true)
    }

    /// Imports the accepted runs.
    pub(super) fn import_from(
        &mut self,
        origin: Origin,
        from: &mut impl BufRead,
        accept: &mut Accept<'_>,
    ) -> Result<Imported> {
        let mut result = Imported::default();
        let mut complete = Vec::new();
        let read = self.read_runs(origin, from, accept, (&mut complete, &mut result));
        self.commit_imported(origin, &mut complete, &mut result)?;
        read.map(|()| result)
    }

    fn read_runs(
        &mut self,
        origin: Origin,
        from: &mut impl BufRead,
        accept: &mut Accept<'_>,
        (complete, result): (&mut Vec<ArrivingRun>, &mut Imported),
    ) -> Result<()> {
        let mut arriving: Option<ArrivingRun> = None;
        let (mut number, mut text) = (0, String::new());
        loop {
            text.clear();
            number += 1;
            let bad = |detail: String| Error::BadImport { line: number, detail };
            let read = from.read_line(&mut text).map_err(|error| bad(error.to_string()))?;
            if read > 0 && text.trim().is_empty() {
                continue;
            }
            let line = match read {
                0 => None,
                _ => Some(
                    serde_json::from_str(&text)
                        .map_err(|error| bad(format!("it is not a line of an export: {error}")))?,
                ),
            };
            match line {
                Some(ExportLine::Output { run, stream, offset, base64 }) => match &mut arriving {
                    Some(arriving) if arriving.intent.id() == run => {
                        let part = BASE64.decode(base64).map_err(|error| bad(error.to_string()))?;
                        arriving.take(&self.dir, stream, offset, &part, &bad)?;
                    }
                    _ => return Err(bad(format!("output of run {run} without the run"))),
                },
                Some(ExportLine::Lost { run, stream }) => match &mut arriving {
                    Some(arriving) if arriving.intent.id() == run => arriving.cut(stream),
                    _ => return Err(bad(format!("output of run {run} without the run"))),
                },
                next => {
                    if let Some(done) = arriving.take() {
                        done.check(&bad)?;
                        if accept(self, &done.intent, &done.outcome) {
                            complete.push(done);
                        }
                        if complete.len() >= BATCH {
                            self.commit_imported(origin, complete, result)?;
                        }
                    }
                    let Some(ExportLine::Run { intent, outcome, chunks }) = next else {
                        return Ok(());
                    };
                    let chunks = BASE64.decode(chunks).map_err(|error| bad(error.to_string()))?;
                    let mut intent = *intent;
                    if let Origin::Bundle(bundle) = origin {
                        intent.set_reported_by(bundle);
                    }
                    arriving = Some(ArrivingRun::new(intent, *outcome, chunks));
                }
            }
        }
    }

    /// Imports complete runs with one commit.
    pub(super) fn commit_imported(
        &mut self,
        origin: Origin,
        complete: &mut Vec<ArrivingRun>,
        result: &mut Imported,
    ) -> Result<()> {
        if complete.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(complete);
        let take_in = |tx: &rusqlite::Transaction<'_>, dir: &StoreDir| {
            let mut imported = Vec::new();
            let (mut new, mut entries) = (0, None::<(i64, i64)>);
            for arriving in &batch {
                let id = arriving.intent.id();
                let failed = |error| Error::sqlite("import runs", dir.database(), error);
                let open = match origin {
                    Origin::Record => open_remote_run(tx, dir, id).map_err(failed)?,
                    // Its sender may be about to commit it.
                    Origin::Sandbox | Origin::Bundle(_) if dir.is_remote_run(id) => continue,
                    Origin::Sandbox | Origin::Bundle(_) => None,
                };
                let seq = match open {
                    Some(seq) => seq,
                    None => match insert_intent(tx, dir, &arriving.intent) {
                        Ok(seq) => {
                            new += 1;
                            entries = Some((entries.map_or(seq, |(first, _)| first), seq));
                            seq
                        }
                        Err(Error::Duplicate { .. }) => continue,
                        Err(error) => return Err(error),
                    },
                };
                arriving.move_into_spool(dir)?;
                let chunks = arriving.order();
                insert_outcome(
                    tx,
                    dir,
                    (id, seq),
                    &arriving.outcome,
                    &arriving.contents(),
                    chunks,
                )?;
                imported.push(id);
            }
            if let Some(entries) = entries {
                imports::append(tx, Import { at: Timestamp::now(), runs: new, entries })
                    .map_err(|error| Error::sqlite("note the import", dir.database(), error))?;
            }
            Ok(imported)
        };
        let imported =
            self.write_then(Durability::Power, "import runs", take_in, |imported, dir| {
                imported.iter().try_for_each(|id| remove(&dir.remote_run(*id)))
            })?;
        result.known += (batch.len() - imported.len()) as u64;
        let starts = batch
            .iter()
            .map(|arriving| &arriving.intent)
            .filter(|intent| intent.kind() == Kind::Exec && imported.contains(&intent.id()));
        result.exec_starts.extend(starts.map(|intent| intent.start_time));
        result.imported.extend(imported);
        Ok(())
    }
}

/// A run that is being imported. Large output is kept in a separate file.
pub(super) struct ArrivingRun {
    pub(super) intent: Redacted<Intent>,
    pub(super) outcome: Redacted<RunOutcome>,
    pub(super) chunks: Vec<u8>,
    streams: [ArrivingStream; 2],
}

#[derive(Default)]
struct ArrivingStream {
    bytes: u64,
    hasher: OutputHasher,
    small: Vec<u8>,
    file: Option<(File, std::path::PathBuf)>,
}

impl ArrivingStream {
    /// As in an outcome: `None` for a stream without bytes.
    fn hash(&self) -> Option<String> {
        (self.bytes > 0).then(|| self.hasher.finish().hash.to_hex().to_string())
    }
}

impl ArrivingRun {
    pub(super) fn new(
        intent: Redacted<Intent>,
        outcome: Redacted<RunOutcome>,
        chunks: Vec<u8>,
    ) -> Self {
        Self { intent, outcome, chunks, streams: Default::default() }
    }

    fn take(
        &mut self,
        dir: &StoreDir,
        stream: Stream,
        offset: u64,
        bytes: &[u8],
        bad: &dyn Fn(String) -> Error,
    ) -> Result<()> {
        if offset != self.streams[stream.index()].bytes {
            return Err(bad(format!("{} is not contiguous at byte {offset}", stream.as_str())));
        }
        self.append(dir, stream, bytes)
    }

    /// Adds to the end of a stream.
    pub(super) fn append(&mut self, dir: &StoreDir, stream: Stream, bytes: &[u8]) -> Result<()> {
        let id = self.intent.id();
        let part = &mut self.streams[stream.index()];
        part.hasher.update(bytes);
        part.bytes += bytes.len() as u64;
        if part.bytes <= INLINE_LIMIT {
            part.small.extend_from_slice(bytes);
            return Ok(());
        }
        if part.file.is_none() {
            let name = format!("{id}.{}.import.{}", stream.as_str(), std::process::id());
            let path = dir.spool_dir().join(name);
            remove(&path)?;
            let mut file = dir.create_private(&path)?;
            file.write_all(&part.small).map_err(|error| Error::io("write", &path, error))?;
            part.small = Vec::new();
            part.file = Some((file, path));
        }
        match &mut part.file {
            Some((file, path)) => {
                file.write_all(bytes).map_err(|error| Error::io("write", path, error))
            }
            None => Ok(()),
        }
    }

    /// The received bytes of each stream and their hashes, as in an outcome.
    pub(super) fn stored(&self) -> [(u64, Option<String>); 2] {
        [0, 1].map(|index| (self.streams[index].bytes, self.streams[index].hash()))
    }

    /// Marks the rest of a stream as lost: the outcome says how much.
    fn cut(&mut self, stream: Stream) {
        let part = &self.streams[stream.index()];
        let mut stored = [
            (self.outcome.stdout_bytes, self.outcome.stdout_blake3.clone()),
            (self.outcome.stderr_bytes, self.outcome.stderr_blake3.clone()),
        ];
        stored[stream.index()] = (part.bytes, part.hash());
        let order = self.outcome.order_blake3.clone();
        self.outcome.set_stored(stored, order);
        self.outcome.set_truncated();
    }

    /// Checks that the output matches the outcome.
    fn check(&self, bad: &dyn Fn(String) -> Error) -> Result<()> {
        let recorded = [
            (Stream::Stdout, self.outcome.stdout_bytes, &self.outcome.stdout_blake3),
            (Stream::Stderr, self.outcome.stderr_bytes, &self.outcome.stderr_blake3),
        ];
        for (stream, bytes, hash) in recorded {
            let part = &self.streams[stream.index()];
            if part.bytes != bytes || part.hash() != *hash {
                return Err(bad(format!(
                    "the {} of run {} is not complete or not the recorded one",
                    stream.as_str(),
                    self.intent.id()
                )));
            }
        }
        if !is_recorded_order(&self.outcome, self.order()) {
            let id = self.intent.id();
            return Err(bad(format!(
                "the order of the output of run {id} is not the recorded one"
            )));
        }
        Ok(())
    }

    /// The arrival order; `None` if the exported record had lost it.
    fn order(&self) -> Option<&[u8]> {
        let lost = self.chunks.is_empty() && !is_recorded_order(&self.outcome, Some(&[]));
        (!lost).then_some(&self.chunks)
    }

    /// Renames large output to its final name, synced, before anything refers to it.
    fn move_into_spool(&self, dir: &StoreDir) -> Result<()> {
        for stream in Stream::BOTH {
            let part = &self.streams[stream.index()];
            if let Some((file, path)) = &part.file {
                file.sync_data().map_err(|error| Error::io("sync", path, error))?;
                let to = dir.spool(self.intent.id(), stream);
                std::fs::rename(path, &to).map_err(|error| Error::io("rename", &to, error))?;
                sync_dir(&dir.spool_dir())?;
            }
        }
        Ok(())
    }

    fn contents(&self) -> Vec<StreamContent<'_>> {
        let content = |stream: Stream| {
            let part = &self.streams[stream.index()];
            let inline = part.file.is_none().then_some(&part.small[..]);
            (part.bytes > 0).then(|| StreamContent { stream, output: part.hasher.finish(), inline })
        };
        Stream::BOTH.into_iter().filter_map(content).collect()
    }
}

impl Drop for ArrivingRun {
    fn drop(&mut self) {
        for part in &self.streams {
            if let Some((_, path)) = &part.file {
                // The import failed or was not needed; doctor reports a remaining file.
                drop(std::fs::remove_file(path));
            }
        }
    }
}
