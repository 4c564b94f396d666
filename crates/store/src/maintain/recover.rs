//! Recovery: turns what a dead runner left into a complete record of an interrupted run, and ends a
//! loop that nothing continues.
//!
//! Runs at the start of recording commands. With nothing to recover it costs two directory reads,
//! one of them for earlier releases.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use jiff::Timestamp;
use retake_types::{
    Intent, Kind, LeftProcess, LoopId, Outcome, Redacted, Run, RunId, RunOutcome, State,
    StopReason, Stream,
};

use crate::base::arrival_order::order_hash;
use crate::base::block_hashes::{OutputHash, OutputHasher};
use crate::base::dir::{StoreDir, remove, sync_dir};
use crate::base::live_file::{self, LiveFile, LiveNames, Liveness};
use crate::base::store::Durability;
use crate::read::output::{self, INLINE_LIMIT, Storage, output_key};
use crate::redact::Redactor;
use crate::write::run_entries::{StreamContent, insert_outcome};
use crate::{Error, Result, Store, StoredLoop};

/// One stream in the spool of a dead runner.
struct SpoolContent {
    stream: Stream,
    output: OutputHash,
    small: Option<Vec<u8>>,
}

/// What `recover` found and marked.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    pub runs: Vec<Run>,
    pub loops: Vec<StoredLoop>,
}

/// Ends the processes that a run left behind and returns what they were.
pub type EndLeftovers<'a> = dyn FnMut(&Intent) -> Vec<LeftProcess> + 'a;

impl Recovered {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.loops.is_empty()
    }
}

impl Store {
    /// Marks every run whose runner died as interrupted, and ends the loops whose runner died.
    ///
    /// A loop of an agent stays open and keeps its live file, because the next start of the agent
    /// continues it ([`Store::adopt_loop`]); until then it reads as not alive. Loops of all other
    /// kinds end with the reason `interrupted`. An open loop without a live file, which an earlier
    /// release recorded, is left alone.
    pub fn recover(&mut self) -> Result<Recovered> {
        self.recover_ending(&mut |_| Vec::new())
    }

    /// The same, but `end_leftovers` first ends the processes that a run left behind; its result is
    /// recorded with the outcome.
    pub fn recover_ending(&mut self, end_leftovers: &mut EndLeftovers<'_>) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let names = LiveNames::read(&self.dir)?;
        names.remove_idle(&self.dir)?;
        for id in names.ids() {
            let Some(live) = LiveFile::adopt(&self.dir, id)? else { continue };
            recovered.runs.extend(self.recover_run(id, end_leftovers)?);
            live.release()?;
        }
        for id in self.recoverable_loops(&names) {
            let Some(live) = LiveFile::adopt(&self.dir, id)? else { continue };
            recovered.loops.extend(self.interrupt_loop(id)?);
            live.release()?;
        }
        for (id, live) in live_file::dead_crash_loops(&self.dir)? {
            recovered.loops.extend(self.interrupt_loop(id)?);
            live.release()?;
        }
        Ok(recovered)
    }

    /// Whether `recover` may find a run or a loop; works on a read-only store. Running runs count,
    /// because only `recover` can tell them apart.
    pub(crate) fn may_need_recovery(&self) -> bool {
        let dead = |id: &LoopId| self.loop_liveness(*id) == Liveness::Dead;
        let left = |names: LiveNames| {
            !names.ids::<RunId>().is_empty() || self.recoverable_loops(&names).iter().any(dead)
        };
        LiveNames::read(&self.dir).is_ok_and(left)
            || live_file::dead_crash_loops(&self.dir).is_ok_and(|dead| !dead.is_empty())
    }

    /// Whether `recover` would find a run whose runner is dead; works on a read-only store.
    pub fn has_dead_runs(&self) -> bool {
        let dead = |id: &RunId| live_file::liveness(&self.dir, *id) == Liveness::Dead;
        LiveNames::read(&self.dir).is_ok_and(|names| names.ids().iter().any(dead))
    }

    /// The loops whose live file is removed once their runner is dead.
    fn recoverable_loops(&self, names: &LiveNames) -> Vec<LoopId> {
        let mut loops: Vec<LoopId> = names.ids();
        let stays =
            |stored: &StoredLoop| stored.kind == Kind::Agent && stored.stop_reason.is_none();
        loops.retain(|id| !self.get_loop(*id).is_ok_and(|stored| stays(&stored)));
        loops
    }

    /// Ends one loop of a dead runner. The caller holds its live file.
    fn interrupt_loop(&mut self, id: LoopId) -> Result<Option<StoredLoop>> {
        match self.get_loop(id) {
            Ok(stored) if stored.stop_reason.is_none() => {
                self.finish_loop(id, &StopReason::Interrupted)?;
                self.get_loop(id).map(Some)
            }
            // The runner died before the loop was recorded, or after it had ended.
            Ok(_) | Err(Error::NoLoop { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Completes one run of a dead runner, or removes its files. The caller holds its live file.
    fn recover_run(
        &mut self,
        id: RunId,
        end_leftovers: &mut EndLeftovers<'_>,
    ) -> Result<Option<Run>> {
        match self.seq_and_finished(id) {
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
            Ok((seq, true)) => self.remove_spool_files(id, seq).map(|()| None),
            Ok((seq, false)) => self.interrupt_run(id, seq, end_leftovers).map(Some),
        }
    }

    fn interrupt_run(
        &mut self,
        id: RunId,
        seq: i64,
        end_leftovers: &mut EndLeftovers<'_>,
    ) -> Result<Run> {
        let intent = self.get(id)?.intent;
        // Before reading the output, because running processes may still write.
        let left = end_leftovers(&intent);
        let mut contents = Vec::new();
        for stream in Stream::BOTH {
            contents.extend(SpoolContent::read(&self.dir, id, stream)?);
        }
        if contents.iter().any(|left| left.small.is_none()) {
            sync_dir(&self.dir.spool_dir())?;
        }
        let chunks = match fs::read(self.dir.chunks(id)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::io("read", &self.dir.chunks(id), error)),
        };
        let outcome = interrupted(&self.dir, &intent, &contents, &chunks, left);
        let streams: Vec<StreamContent<'_>> = contents.iter().map(SpoolContent::content).collect();
        self.write(Durability::Power, "record the interruption", |tx, dir| {
            insert_outcome(tx, dir, (id, seq), &outcome, &streams, Some(&chunks))
        })?;
        self.remove_spool_files(id, seq)?;
        Ok(Run { intent, state: State::Interrupted, outcome: Some(outcome), recorded: true })
    }

    /// Removes the spool files that nothing refers to.
    fn remove_spool_files(&self, id: RunId, seq: i64) -> Result<()> {
        for stream in Stream::BOTH {
            let stored = output::load(&self.connection, output_key(seq, stream))
                .map_err(|error| self.failed("look up the output", error))?;
            if stored.is_none_or(|stored| stored.storage != Storage::Raw) {
                remove(&self.dir.spool(id, stream))?;
            }
        }
        remove(&self.dir.chunks(id))
    }
}

fn interrupted(
    dir: &StoreDir,
    intent: &Intent,
    contents: &[SpoolContent],
    chunks: &[u8],
    left: Vec<LeftProcess>,
) -> Redacted<RunOutcome> {
    let death = time_of_death(&dir.live(intent.id()));
    // Without a witness, the last change of one of its files: the runner was alive at least until
    // then.
    let last_change = Stream::BOTH
        .into_iter()
        .map(|stream| dir.spool(intent.id(), stream))
        .chain([dir.live(intent.id())])
        .filter_map(|path| modified(&path))
        .max();
    let end = death.or(last_change).unwrap_or(intent.start_time).max(intent.start_time);
    let lived = end.duration_since(intent.start_time).as_millis();
    let of = |stream| contents.iter().find(|left| left.stream == stream);
    let bytes = |stream| of(stream).map_or(0, |left| left.output.bytes);
    let hash = |stream| of(stream).map(|left| left.output.hash.to_hex().to_string());
    let mut outcome = RunOutcome {
        duration_ms: u64::try_from(lived).unwrap_or(0).max(1),
        stdout_raw_bytes: bytes(Stream::Stdout),
        stderr_raw_bytes: bytes(Stream::Stderr),
        end_known: death.is_some(),
        ..RunOutcome::bare(&Outcome::Interrupted, end)
    };
    let order = (!contents.is_empty()).then(|| order_hash(chunks));
    outcome.set_stored(Stream::BOTH.map(|stream| (bytes(stream), hash(stream))), order);
    outcome.set_left(left);
    // The secret values of the run's own redactor died with its runner.
    Redacted::new(outcome, &mut Redactor::shapes())
}

/// The runner's time of death, if a witness marked it in the live file.
fn time_of_death(live: &Path) -> Option<Timestamp> {
    let marked = live.metadata().is_ok_and(|metadata| metadata.len() > 0);
    modified(live).filter(|_| marked)
}

/// `None` if the file is gone or has no usable time; the next file decides then.
fn modified(path: &Path) -> Option<Timestamp> {
    Timestamp::try_from(path.metadata().ok()?.modified().ok()?).ok()
}

impl SpoolContent {
    /// `None` if the stream had no output.
    fn read(dir: &StoreDir, id: RunId, stream: Stream) -> Result<Option<Self>> {
        let path = dir.spool(id, stream);
        let failed = |error| Error::io("read", &path, error);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let (mut hasher, mut bytes, mut small) = (OutputHasher::default(), 0, Some(Vec::new()));
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let read = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            hasher.update(&buffer[..read]);
            bytes += read as u64;
            if bytes > INLINE_LIMIT {
                small = None;
            } else if let Some(small) = &mut small {
                small.extend_from_slice(&buffer[..read]);
            }
        }
        if bytes == 0 {
            return Ok(None);
        }
        if small.is_none() {
            file.sync_data().map_err(failed)?;
        }
        Ok(Some(Self { stream, output: hasher.finish(), small }))
    }

    fn content(&self) -> StreamContent<'_> {
        StreamContent {
            stream: self.stream,
            output: self.output.clone(),
            inline: self.small.as_deref(),
        }
    }
}
