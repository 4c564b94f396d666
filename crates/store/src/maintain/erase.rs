//! Erasing: bodies, columns, output, index and WAL. The chain keeps the hashes and gets a marker.

use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use retake_types::{Kind, Run, RunId, State, Stream};
use rusqlite::{Connection, Transaction};

use crate::base::dir::{StoreDir, remove};
use crate::base::effect_rows::EffectRows;
use crate::base::imports;
use crate::base::ledger::{self, Entry, Marker, Reason};
use crate::base::live_file;
use crate::base::reserve::{self, Claim};
use crate::base::store::Durability;
use crate::base::write_lock::WriteTurn;
use crate::maintain::erased_words::ErasedWords;
use crate::maintain::obsolete_files;
use crate::read::output::{self, Storage, output_key};
use crate::read::runs::{RunFilter, RunStatus};
use crate::read::search_index;
use crate::{Error, Result, Store};

/// How long an erasure waits for readers, so that the WAL can be emptied.
const WAL_PATIENCE: Duration = Duration::from_secs(5);
/// Runs erased per transaction, so that a large prune lets other writers in.
const BATCH: usize = 200;
const RETENTION_CHECKED: &str = "retention_checked_us";

/// What was erased.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Erased {
    pub runs: Vec<RunId>,
    /// Bytes of output, as the runs wrote them.
    pub output_bytes: u64,
    /// Whether a reader kept the WAL in use: the rest is erased at the next checkpoint.
    pub wal_in_use: bool,
}

/// Which runs to prune.
#[derive(Clone, Debug)]
pub struct Prune {
    /// Runs that started before this.
    pub before: Timestamp,
    pub keep_failed: bool,
    /// Empty means exec runs only: other loops are erased only on request.
    pub kinds: Vec<Kind>,
    /// Only reports what would be erased.
    pub dry_run: bool,
}

struct PlannedErasure {
    run: Run,
    seq: i64,
    outcome_seq: Option<i64>,
    /// The indexed text of each stream whose file is already removed.
    texts: [Option<String>; 2],
}

impl Store {
    /// Erases one run permanently.
    pub fn delete(&mut self, id: RunId) -> Result<Erased> {
        let run = self.get(id)?;
        if run.state == State::Running {
            return Err(Error::StillRunning { id });
        }
        let mut erased = Erased::default();
        self.erase(vec![id], Reason::Delete, &mut erased)?;
        self.finish_erasing(&mut erased)?;
        Ok(erased)
    }

    /// Erases old runs.
    pub fn prune(&mut self, prune: &Prune) -> Result<Erased> {
        self.prune_except(prune, &[])
    }

    /// The same, except for runs whose intent is among these entries.
    fn prune_except(&mut self, prune: &Prune, kept: &[(i64, i64)]) -> Result<Erased> {
        let kinds = if prune.kinds.is_empty() { &[Kind::Exec][..] } else { &prune.kinds[..] };
        let mut erased = Erased::default();
        for &kind in kinds {
            let filter = RunFilter {
                kind: Some(kind),
                until: Some(prune.before),
                status: prune.keep_failed.then_some(RunStatus::Ok),
                ..RunFilter::default()
            };
            let mut cursor = None;
            loop {
                // Unreadable runs are kept: they are evidence.
                let (page, _) = self.list_readable(&filter, cursor, BATCH)?;
                let mut ids = Vec::new();
                for run in page.runs.iter().filter(|run| run.state != State::Running) {
                    let id = run.intent.id();
                    if kept.is_empty() || !self.is_among(id, kept)? {
                        ids.push(id);
                    }
                }
                if prune.dry_run {
                    erased.output_bytes += page.runs.iter().map(output_bytes).sum::<u64>();
                    erased.runs.extend(ids);
                } else {
                    self.erase(ids, Reason::Prune, &mut erased)?;
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        if !prune.dry_run {
            self.finish_erasing(&mut erased)?;
        }
        Ok(erased)
    }

    /// Whether the intent of a run is one of these entries.
    fn is_among(&self, id: RunId, entries: &[(i64, i64)]) -> Result<bool> {
        match self.seq_and_finished(id) {
            Ok((seq, _)) => Ok(entries.iter().any(|(first, last)| (*first..=*last).contains(&seq))),
            // Another process erased it since it was listed.
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Prunes exec runs older than `days`, at most once a day. `None` if not due. Imported runs are
    /// kept for `days` from their import.
    pub fn retain(&mut self, days: u32, now: Timestamp) -> Result<Option<Erased>> {
        let failed = |store: &Self, error| store.failed("check the retention", error);
        let checked: Option<i64> = self
            .setting(RETENTION_CHECKED)
            .map_err(|error| failed(self, error))?
            .and_then(|text| text.parse().ok());
        let day = 24 * 60 * 60 * 1_000_000;
        if checked.is_some_and(|checked| (0..day).contains(&(now.as_microsecond() - checked))) {
            return Ok(None);
        }
        // A cutoff before the earliest timestamp means that nothing is old enough.
        let before = now.checked_sub((i64::from(days) * 24).hours()).ok();
        self.write(Durability::Process, "note the retention check", |tx, dir| {
            let noted = |error| Error::sqlite("note the retention check", dir.database(), error);
            if let Some(before) = before {
                imports::forget_before(tx, before).map_err(noted)?;
            }
            tx.execute(
                "INSERT INTO settings (name, value) VALUES (?1, ?2)
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (RETENTION_CHECKED, now.as_microsecond().to_string()),
            )
            .map_err(noted)
        })?;
        let Some(before) = before else { return Ok(Some(Erased::default())) };
        let prune = Prune { before, keep_failed: false, kinds: Vec::new(), dry_run: false };
        let kept = imports::since(&self.connection, before).map_err(|error| failed(self, error))?;
        self.prune_except(&prune, &kept).map(Some)
    }

    fn setting(&self, name: &str) -> rusqlite::Result<Option<String>> {
        use rusqlite::OptionalExtension;
        self.connection
            .query_row("SELECT value FROM settings WHERE name = ?1", [name], |row| row.get(0))
            .optional()
    }

    /// What is needed to erase a run.
    fn plan_erasure(&self, id: RunId) -> Result<PlannedErasure> {
        let run = self.get(id)?;
        let (seq, _) = self.seq_and_finished(id)?;
        let outcome_seq = self
            .connection
            .query_row("SELECT outcome_seq FROM runs WHERE seq = ?1", [seq], |row| row.get(0))
            .map_err(|error| match error {
                rusqlite::Error::QueryReturnedNoRows => Error::NotFound { text: id.to_string() },
                error => self.failed("look up the outcome", error),
            })?;
        Ok(PlannedErasure { run, seq, outcome_seq, texts: [None, None] })
    }

    /// Erases these runs: in one transaction, or in smaller ones if the disk is too full.
    fn erase(&mut self, ids: Vec<RunId>, reason: Reason, erased: &mut Erased) -> Result<()> {
        let mut planned = Vec::new();
        for id in ids {
            match self.plan_erasure(id) {
                Ok(run) => planned.push(run),
                // Another process erased it since it was listed.
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.claiming(Claim::Erase, |store| store.erase_as_fits(planned, reason, erased))
    }

    fn erase_as_fits(
        &mut self,
        mut planned: Vec<PlannedErasure>,
        reason: Reason,
        erased: &mut Erased,
    ) -> Result<()> {
        if planned.is_empty() {
            return Ok(());
        }
        match self.erase_together(&planned, reason, erased) {
            Err(Error::DiskFull { .. }) if planned.len() > 1 => {
                let rest = planned.split_off(planned.len() / 2);
                self.erase_as_fits(planned, reason, erased)?;
                self.erase_as_fits(rest, reason, erased)
            }
            // Not even one fits, so its output is removed first. After a crash in between, the run
            // is still listed, without its output.
            Err(Error::DiskFull { .. }) if self.remove_output_first(&mut planned[0])? => {
                self.erase_together(&planned, reason, erased)
            }
            done => done,
        }
    }

    /// Removes the files of a run that is about to be erased; `false` if it has none.
    fn remove_output_first(&self, planned: &mut PlannedErasure) -> Result<bool> {
        let failed = |error| self.failed("erase output", error);
        let _turn = WriteTurn::take(&self.dir)?;
        let id = planned.run.intent.id();
        let mut removed = false;
        for stream in Stream::BOTH {
            let key = output_key(planned.seq, stream);
            let Some(stored) = output::load(&self.connection, key).map_err(failed)? else {
                continue;
            };
            let file = match stored.storage {
                Storage::Inline => continue,
                Storage::Raw => self.dir.spool(id, stream),
                Storage::Compressed
                    if is_shared(&self.connection, key, &stored.output.hash).map_err(failed)? =>
                {
                    continue;
                }
                Storage::Compressed => self.dir.output(&stored.output.hash),
            };
            let run = (id, planned.seq);
            planned.texts[stream.index()] = output::open(&self.connection, &self.dir, run, stream)
                .ok() // unreadable: then its words cannot be taken out one by one either
                .and_then(|mut output| search_index::text_of(&mut output).ok());
            remove(&file)?;
            removed = true;
        }
        Ok(removed)
    }

    fn erase_together(
        &mut self,
        planned: &[PlannedErasure],
        reason: Reason,
        erased: &mut Erased,
    ) -> Result<()> {
        let (runs, _) = self.write_then(
            Durability::Power,
            "erase runs",
            |tx, dir| {
                let there = |planned: &&PlannedErasure| {
                    let there = tx.query_row(
                        "SELECT 1 FROM runs WHERE seq = ?1",
                        [planned.seq],
                        |_| Ok(()),
                    );
                    there.is_ok() && !live_file::run_is_alive(dir, planned.run.intent.id())
                };
                let planned: Vec<&PlannedErasure> = planned.iter().filter(there).collect();
                let mut files = Vec::new();
                if planned.is_empty() {
                    return Ok((Vec::new(), files));
                }
                let failed = |error| Error::sqlite("erase words", dir.database(), error);
                let mut words = ErasedWords::new().map_err(failed)?;
                for planned in &planned {
                    planned.erase(tx, dir, &mut files, &mut words)?;
                }
                words.remove_from_separators(tx).map_err(failed)?;
                for file in &files {
                    obsolete_files::note(tx, dir, file).map_err(failed)?;
                }
                let marker = marker(reason, &planned);
                ledger::append(tx, &Entry::Marker(marker))
                    .map_err(|error| Error::sqlite("mark the erasure", dir.database(), error))?;
                let runs: Vec<(RunId, u64)> = planned
                    .iter()
                    .map(|planned| (planned.run.intent.id(), output_bytes(&planned.run)))
                    .collect();
                Ok((runs, files))
            },
            |(_, files), _| files.iter().try_for_each(|file| remove(file)),
        )?;
        for (id, bytes) in runs {
            erased.runs.push(id);
            erased.output_bytes += bytes;
        }
        Ok(())
    }

    /// Empties the WAL, which still contains the erased bytes.
    fn finish_erasing(&mut self, erased: &mut Erased) -> Result<()> {
        if !erased.runs.is_empty() {
            self.claiming(Claim::Erase, Self::remove_obsolete_files)?;
            erased.wal_in_use = !self.truncate_wal(WAL_PATIENCE)?;
            reserve::keep_wal_room(&self.dir);
        }
        Ok(())
    }
}

fn output_bytes(run: &Run) -> u64 {
    run.outcome.as_ref().map_or(0, |outcome| outcome.stdout_bytes + outcome.stderr_bytes)
}

fn marker(reason: Reason, planned: &[&PlannedErasure]) -> Marker {
    let mut seqs: Vec<i64> = planned
        .iter()
        .flat_map(|planned| [Some(planned.seq), planned.outcome_seq])
        .flatten()
        .collect();
    seqs.sort_unstable();
    let mut erased: Vec<(i64, i64)> = Vec::new();
    for seq in seqs {
        match erased.last_mut() {
            Some(last) if last.1 + 1 == seq => last.1 = seq,
            _ => erased.push((seq, seq)),
        }
    }
    Marker { reason, at: Timestamp::now(), runs: planned.len() as u64, erased }
}

impl PlannedErasure {
    fn erase(
        &self,
        tx: &Transaction<'_>,
        dir: &StoreDir,
        files: &mut Vec<std::path::PathBuf>,
        words: &mut ErasedWords,
    ) -> Result<()> {
        let failed = |error| Error::sqlite("erase a run", dir.database(), error);
        let intent = &self.run.intent;
        for stream in Stream::BOTH {
            self.erase_output(tx, dir, stream, files, words)?;
        }
        files.push(dir.chunks(intent.id()));
        files.push(dir.live(intent.id()));
        for (key, value) in &intent.request.labels {
            tx.execute(
                "DELETE FROM labels WHERE key = ?1 AND value = ?2 AND start_us = ?3 AND run = ?4",
                (key, value, intent.start_time.as_microsecond(), self.seq),
            )
            .map_err(failed)?;
        }
        if let Some(footprint) = self.run.outcome.as_deref().and_then(EffectRows::of) {
            footprint.remove(tx, self.seq).map_err(failed)?;
        }
        tx.execute("DELETE FROM runs WHERE seq = ?1", [self.seq]).map_err(failed)?;
        for seq in [Some(self.seq), self.outcome_seq].into_iter().flatten() {
            tx.execute("UPDATE ledger SET body = NULL WHERE seq = ?1", [seq]).map_err(failed)?;
        }
        Ok(())
    }

    fn erase_output(
        &self,
        tx: &Transaction<'_>,
        dir: &StoreDir,
        stream: Stream,
        files: &mut Vec<std::path::PathBuf>,
        words: &mut ErasedWords,
    ) -> Result<()> {
        let failed = |error| Error::sqlite("erase output", dir.database(), error);
        let (id, output_key) = (self.run.intent.id(), output_key(self.seq, stream));
        files.push(dir.spool(id, stream));
        let Some(stored) = output::load(tx, output_key).map_err(failed)? else { return Ok(()) };
        let pending: bool = tx
            .query_row("SELECT pending FROM outputs WHERE place = ?1", [output_key], |row| {
                row.get(0)
            })
            .map_err(failed)?;
        let (hash, storage) = (stored.output.hash, stored.storage);
        if !pending {
            let text = self.texts[stream.index()].clone().or_else(|| {
                let mut output = output::open(tx, dir, (id, self.seq), stream).ok()?;
                search_index::text_of(&mut output).ok()
            });
            match text {
                Some(text) => {
                    search_index::remove(tx, output_key, &text).map_err(failed)?;
                    words.add(&text).map_err(failed)?;
                }
                // Its text is unknown, so it cannot be removed: rebuild the whole index.
                None => search_index::reset(tx).map_err(failed)?,
            }
        }
        tx.execute("DELETE FROM outputs WHERE place = ?1", [output_key]).map_err(failed)?;
        if storage == Storage::Compressed && !is_shared(tx, output_key, &hash).map_err(failed)? {
            files.push(dir.output(&hash));
        }
        Ok(())
    }
}

/// Whether another stream uses the same compressed file.
fn is_shared(
    connection: &Connection,
    output_key: i64,
    hash: &blake3::Hash,
) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM outputs WHERE hash = ?1 AND storage = 2 AND place <> ?2")?
        .exists((hash.as_bytes(), output_key))
}
