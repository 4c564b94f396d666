//! One run being recorded: intent first, output as it arrives, outcome last.
//!
//! Bytes are written to the spool file at once, so that other processes can follow them and a
//! killed runner leaves them readable. `finish` reports spool errors of a failing disk; they never
//! end the run.

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use retake_types::{Intent, Redacted, RunId, RunOutcome, Stream};
use rusqlite::Connection;

use super::run_entries::{StreamContent, insert_intent, insert_outcome};
use super::spool::Spool;
use crate::base::arrival_order::{ChunkLog, order_hash};
use crate::base::block_hashes::OutputHash;
use crate::base::crash_points::crash_point;
use crate::base::dir::{StoreDir, remove, sync_dir};
use crate::base::live_file::LiveFile;
use crate::base::reserve::Claim;
use crate::base::store::Durability;
use crate::read::output::INLINE_LIMIT;
use crate::redact::RedactedBytes;
use crate::{Error, Result, Store};

/// A run with a committed intent but no outcome.
#[derive(Debug)]
pub struct Recording {
    dir: StoreDir,
    id: RunId,
    seq: i64,
    live: LiveFile,
    begun: Instant,
    streams: [Spool; 2],
    chunks: ChunkLog,
    chunk_file: Option<File>,
    chunks_written: usize,
    spool_error: Option<Error>,
}

/// A run that is over, with an uncommitted outcome. If this is dropped, or its process dies, the
/// run reads `interrupted`.
#[derive(Debug)]
pub struct EndedRecording {
    recording: Recording,
    outcome: Redacted<RunOutcome>,
    /// The hash of each stream with stored bytes.
    hashes: [Option<OutputHash>; 2],
    lost: [u64; 2],
}

/// A run with a committed outcome, and what could not be stored of it.
#[derive(Debug)]
pub struct FinishedRecording {
    /// The outcome as committed: byte counts and hashes are those of the stored bytes.
    pub outcome: Redacted<RunOutcome>,
    /// Bytes of each stream that could not be stored.
    pub lost: [u64; 2],
    /// The first storage error.
    pub error: Option<Error>,
}

impl Store {
    /// Commits the intent, and returns the recording of the run.
    pub fn begin(&mut self, intent: &Redacted<Intent>) -> Result<Recording> {
        if self.is_read_only() {
            return Err(Error::ReadOnly { path: self.path().to_owned(), action: "record a run" });
        }
        self.begin_by(intent.id(), |store| {
            store.claiming(Claim::Begin, |store| {
                store.write(Durability::Process, "record the intent", |tx, dir| {
                    insert_intent(tx, dir, intent)
                })
            })
        })
    }

    /// Creates the live file of a run, commits its intent through `commit`, and returns the
    /// recording.
    fn begin_by(
        &mut self,
        id: RunId,
        commit: impl FnOnce(&mut Self) -> Result<i64>,
    ) -> Result<Recording> {
        // Taken before the intent: a committed intent without a lock means that its runner died.
        let live = self.take_live_file(id)?;
        crash_point("live file made");
        let seq = match commit(self) {
            Ok(seq) => seq,
            Err(error) => {
                if !matches!(error, Error::Duplicate { .. }) {
                    // Report the intent's own failure; recovery removes the file.
                    drop(live.release());
                }
                return Err(error);
            }
        };
        Ok(Recording {
            dir: self.dir.clone(),
            id,
            seq,
            live,
            begun: Instant::now(),
            streams: Default::default(),
            chunks: ChunkLog::default(),
            chunk_file: None,
            chunks_written: 0,
            spool_error: None,
        })
    }

    fn take_live_file(&mut self, id: RunId) -> Result<LiveFile> {
        match self.idle.take().and_then(|idle| idle.take(&self.dir, id)) {
            Some(live) => Ok(live),
            None => LiveFile::take(&self.dir, id),
        }
    }

    /// Keeps the file for the next run in a program that has recorded many; otherwise removes it.
    fn release_live_file(&mut self, live: LiveFile) -> Result<()> {
        if !self.commits.are_many() || self.idle.is_some() {
            return live.release();
        }
        match live.idle() {
            Ok(idle) => {
                self.idle = Some(idle);
                Ok(())
            }
            Err(live) => live.release(),
        }
    }
}

impl Recording {
    pub fn id(&self) -> RunId {
        self.id
    }

    /// A file whose length a witness of this runner's death sets to 1, which records the time.
    /// `None` if it cannot be opened: the time stays unknown.
    pub fn death_mark(&self) -> Option<File> {
        self.live.death_mark().ok()
    }

    /// Stores bytes of a stream. Never fails: bytes that cannot be stored are counted as lost.
    pub fn append(&mut self, stream: Stream, bytes: RedactedBytes<'_>) {
        if bytes.is_empty() {
            return;
        }
        let index = stream.index();
        let at_us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.chunks.note(stream, self.streams[index].bytes, at_us);
        let written = match self.streams[index].broken {
            true => 0,
            false => {
                let before = self.streams[index].bytes;
                if let Err(error) = self.write_to_spool(stream, &bytes) {
                    self.streams[index].broken = true;
                    self.spool_error.get_or_insert(error);
                }
                usize::try_from(self.streams[index].bytes - before).unwrap_or(bytes.len())
            }
        };
        self.streams[index].keep_in_memory(&bytes[written..]);
    }

    fn write_to_spool(&mut self, stream: Stream, bytes: &[u8]) -> Result<()> {
        let index = stream.index();
        if self.streams[index].file.is_none() {
            let file = self.dir.create_private(&self.dir.spool(self.id, stream))?;
            self.streams[index].file = Some(file);
        }
        // A single stream has only one order; the index is written once both have bytes.
        let both = self.streams.iter().all(|spool| spool.file.is_some());
        if both && self.chunks_written < self.chunks.bytes().len() {
            self.write_chunks();
        }
        crash_point("before output");
        self.streams[index]
            .write(bytes)
            .map_err(|error| Error::io("write", &self.dir.spool(self.id, stream), error))
    }

    /// A failure here costs only the order that readers see during the run; the whole index is
    /// committed at the end.
    fn write_chunks(&mut self) {
        if self.chunk_file.is_none() {
            self.chunk_file = self.dir.create_private(&self.dir.chunks(self.id)).ok();
        }
        let rest = &self.chunks.bytes()[self.chunks_written..];
        if let Some(file) = &mut self.chunk_file {
            match file.write_all(rest) {
                Ok(()) => self.chunks_written += rest.len(),
                Err(_) => self.chunks_written = usize::MAX, // a gap would misplace all that follows
            }
        }
    }

    /// Bytes stored so far.
    pub fn stored_bytes(&self, stream: Stream) -> u64 {
        self.streams[stream.index()].bytes
    }

    /// Bytes lost so far, and the first error.
    pub fn lost_bytes(&self) -> Option<(u64, &Error)> {
        let lost: u64 = self.streams.iter().map(|spool| spool.lost).sum();
        self.spool_error.as_ref().filter(|_| lost > 0).map(|error| (lost, error))
    }

    /// Syncs large output, then commits the outcome. The caller supplies what only the runner
    /// knows; what was stored of each stream is filled in here. On an error the run has no outcome
    /// in the record and reads `interrupted`.
    pub fn finish(
        self,
        store: &mut Store,
        outcome: Redacted<RunOutcome>,
    ) -> Result<FinishedRecording> {
        self.end(outcome).commit(store)
    }

    /// Ends the recording without committing the outcome, for a caller that commits it with the
    /// intent of the next run. Syncs large output, and fills in what was stored of each stream.
    pub fn end(mut self, outcome: Redacted<RunOutcome>) -> EndedRecording {
        self.sync_large_output();
        crash_point("output synced");
        let (hashes, lost) = Default::default();
        let mut ended = EndedRecording { recording: self, outcome, hashes, lost };
        ended.fill_in();
        ended
    }

    fn sync_large_output(&mut self) {
        let mut any = false;
        for stream in Stream::BOTH {
            let spool = &self.streams[stream.index()];
            if spool.bytes <= INLINE_LIMIT {
                continue;
            }
            any = true;
            if let Some(file) = &spool.file
                && let Err(error) = file.sync_data()
            {
                let path = self.dir.spool(self.id, stream);
                self.spool_error.get_or_insert(Error::io("sync", &path, error));
            }
        }
        if any && let Err(error) = sync_dir(&self.dir.spool_dir()) {
            self.spool_error.get_or_insert(error);
        }
    }

    /// Removes files whose content is in the database now. A remaining file is removed by the next
    /// recovery, which finds it by the live file; so the live file goes last.
    fn remove_files(self, store: &mut Store) -> Result<()> {
        let mut removed = Ok(());
        for stream in Stream::BOTH {
            let spool = &self.streams[stream.index()];
            if spool.file.is_some() && spool.bytes <= INLINE_LIMIT {
                removed = removed.and(remove(&self.dir.spool(self.id, stream)));
            }
        }
        if self.chunk_file.is_some() {
            removed = removed.and(remove(&self.dir.chunks(self.id)));
        }
        crash_point("spool removed");
        if removed.is_ok() {
            removed = store.release_live_file(self.live);
        }
        crash_point("live file removed");
        removed
    }
}

impl EndedRecording {
    /// The outcome as it will be committed: byte counts and hashes are those of the stored bytes.
    pub fn outcome(&self) -> &Redacted<RunOutcome> {
        &self.outcome
    }

    /// Fills in what was stored of each stream and what was lost.
    fn fill_in(&mut self) {
        let Self { recording, outcome, hashes, lost } = self;
        *hashes = recording.streams.each_ref().map(Spool::hash);
        let chunks = hashes.iter().any(Option::is_some).then_some(recording.chunks.bytes());
        let stored = hashes.each_ref().map(|stored| match stored {
            Some(stored) => (stored.bytes, Some(stored.hash.to_hex().to_string())),
            None => (0, None),
        });
        outcome.set_stored(stored, chunks.map(order_hash));
        *lost = [recording.streams[0].lost, recording.streams[1].lost];
        if *lost != [0, 0] {
            outcome.set_truncated();
        }
    }

    /// Commits the outcome. On an error the run has no outcome in the record and reads
    /// `interrupted`.
    pub fn commit(mut self, store: &mut Store) -> Result<FinishedRecording> {
        match self.commit_by(store, Claim::Continue, |_, _| Ok(())) {
            // The outcome matters more than the small output that the database would hold.
            Err(full @ Error::DiskFull { .. }) => {
                self.recording.streams.iter_mut().for_each(Spool::give_up_small);
                self.fill_in();
                self.commit_by(store, Claim::Continue, |_, _| Ok(()))?;
                self.recording.spool_error.get_or_insert(full);
            }
            committed => committed?,
        }
        Ok(self.finished(store))
    }

    /// Commits the outcome together with the intent of the next run, because one commit costs less
    /// than two. If that fails, each is tried separately and returns its own error.
    pub fn commit_and_begin(
        mut self,
        store: &mut Store,
        next: &Redacted<Intent>,
    ) -> (Result<FinishedRecording>, Result<Recording>) {
        let begun = store.begin_by(next.id(), |store| {
            self.commit_by(store, Claim::Begin, |tx, dir| insert_intent(tx, dir, next))
        });
        match begun {
            Ok(begun) => (Ok(self.finished(store)), Ok(begun)),
            Err(_) => {
                let finished = self.commit(store);
                (finished, store.begin(next))
            }
        }
    }

    /// Commits the outcome together with the writes of `work`.
    fn commit_by<T>(
        &mut self,
        store: &mut Store,
        claim: Claim,
        work: impl FnOnce(&Connection, &StoreDir) -> Result<T>,
    ) -> Result<T> {
        let Self { recording, outcome, hashes, .. } = self;
        let chunks = hashes.iter().any(Option::is_some).then_some(recording.chunks.bytes());
        let mut contents = Vec::with_capacity(2);
        for (stream, output) in Stream::BOTH.into_iter().zip(hashes) {
            if let Some(output) = output.clone() {
                let spool = &recording.streams[stream.index()];
                let inline = (spool.bytes <= INLINE_LIMIT).then_some(&spool.small[..]);
                contents.push(StreamContent { stream, output, inline });
            }
        }
        let inline: usize =
            contents.iter().filter_map(|content| content.inline).map(<[u8]>::len).sum();
        let claim = match claim {
            Claim::Begin => Claim::BeginAfter(inline as u64),
            _ if inline > 0 => Claim::Output(inline as u64),
            claim => claim,
        };
        let of = (recording.id, recording.seq);
        store.claiming(claim, |store| {
            store.write(Durability::Power, "record the outcome", |tx, dir| {
                insert_outcome(tx, dir, of, outcome, &contents, chunks)?;
                work(tx, dir)
            })
        })
    }

    /// Completes the recording after the commit.
    fn finished(mut self, store: &mut Store) -> FinishedRecording {
        let lost = self.lost;
        // A full disk that lost no bytes is not reported; a failed sync is.
        let error = self
            .recording
            .spool_error
            .take()
            .filter(|error| lost != [0, 0] || !matches!(error, Error::DiskFull { .. }));
        let removed = self.recording.remove_files(store);
        FinishedRecording { outcome: self.outcome, lost, error: error.or(removed.err()) }
    }
}
