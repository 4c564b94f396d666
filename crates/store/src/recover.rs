//! Recovery: what a runner that died left behind becomes a complete record of an interrupted run.
//!
//! Runs at the start of recording commands. When nothing is left it costs one directory read.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use jiff::Timestamp;
use retake_types::{Ending, Intent, Outcome, Run, RunId, State, Stream};

use crate::dir::{Dir, remove, sync_dir};
use crate::lock::{LiveLock, live_ids};
use crate::output::{self, INLINE_LIMIT, Kept, Storage, place};
use crate::recording::insert_outcome;
use crate::store::Durability;
use crate::{Error, Result, Store};

/// What the spool holds of one stream of a dead runner.
struct Remains {
    stream: Stream,
    bytes: u64,
    hash: blake3::Hash,
    small: Option<Vec<u8>>,
}

impl Store {
    /// Marks every run whose runner died as interrupted and returns them, so that the caller can
    /// look for processes they left behind.
    pub fn recover(&mut self) -> Result<Vec<Run>> {
        let mut recovered = Vec::new();
        for id in live_ids(&self.dir)? {
            let path = self.dir.live(id);
            let Some(lock) = LiveLock::adopt(&path)? else { continue };
            if let Some(run) = self.bury(id)? {
                recovered.push(run);
            }
            lock.release(&path)?;
        }
        Ok(recovered)
    }

    /// Completes or tidies one run of a dead runner. The caller holds its lock.
    pub(crate) fn bury(&mut self, id: RunId) -> Result<Option<Run>> {
        match self.whereabouts(id) {
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
            Ok((seq, true)) => self.tidy(id, seq).map(|()| None),
            Ok((seq, false)) => self.interrupt(id, seq).map(Some),
        }
    }

    fn interrupt(&mut self, id: RunId, seq: i64) -> Result<Run> {
        let intent = self.get(id)?.intent;
        let mut remains = Vec::new();
        for stream in Stream::BOTH {
            remains.extend(Remains::read(&self.dir, id, stream)?);
        }
        if remains.iter().any(|left| left.small.is_none()) {
            sync_dir(&self.dir.spool_dir())?;
        }
        let ending = interrupted(&self.dir, &intent, &remains);
        let chunks = match fs::read(self.dir.chunks(id)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::io("read", &self.dir.chunks(id), error)),
        };
        let kept: Vec<Kept<'_>> = remains.iter().map(Remains::kept).collect();
        self.write(Durability::Power, "record the interruption", |tx, dir| {
            insert_outcome(tx, dir, (id, seq), &ending, &kept, Some(&chunks))
        })?;
        self.tidy(id, seq)?;
        Ok(Run { intent, state: State::Interrupted, ending: Some(ending), recorded: true })
    }

    /// Removes the spool files that nothing refers to any more.
    fn tidy(&self, id: RunId, seq: i64) -> Result<()> {
        for stream in Stream::BOTH {
            let stored = output::load(&self.connection, place(seq, stream))
                .map_err(|error| self.failed("look up the output", error))?;
            if stored.is_none_or(|stored| stored.storage != Storage::Raw) {
                remove(&self.dir.spool(id, stream))?;
            }
        }
        remove(&self.dir.chunks(id))
    }
}

fn interrupted(dir: &Dir, intent: &Intent, remains: &[Remains]) -> Ending {
    // The last sign of life: the moment of death itself nobody wrote down.
    let last_sign = Stream::BOTH
        .into_iter()
        .map(|stream| dir.spool(intent.id(), stream))
        .chain([dir.live(intent.id())])
        .filter_map(|path| modified(&path))
        .max()
        .unwrap_or(intent.start_time)
        .max(intent.start_time);
    let lived = last_sign.duration_since(intent.start_time).as_millis();
    let of = |stream| remains.iter().find(|left| left.stream == stream);
    let bytes = |stream| of(stream).map_or(0, |left| left.bytes);
    let hash = |stream| of(stream).map(|left| left.hash.to_hex().to_string());
    Ending {
        duration_ms: u64::try_from(lived).unwrap_or(0).max(1),
        stdout_bytes: bytes(Stream::Stdout),
        stderr_bytes: bytes(Stream::Stderr),
        stdout_raw_bytes: bytes(Stream::Stdout),
        stderr_raw_bytes: bytes(Stream::Stderr),
        stdout_blake3: hash(Stream::Stdout),
        stderr_blake3: hash(Stream::Stderr),
        ..Ending::bare(&Outcome::Interrupted, last_sign)
    }
}

/// `None` for a file that is gone or has no usable time; another sign of life decides then.
fn modified(path: &Path) -> Option<Timestamp> {
    Timestamp::try_from(path.metadata().ok()?.modified().ok()?).ok()
}

impl Remains {
    /// `None` when the stream never had a byte.
    fn read(dir: &Dir, id: RunId, stream: Stream) -> Result<Option<Self>> {
        let path = dir.spool(id, stream);
        let failed = |error| Error::io("read", &path, error);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let (mut hasher, mut bytes, mut small) = (blake3::Hasher::new(), 0, Some(Vec::new()));
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
        Ok(Some(Self { stream, bytes, hash: hasher.finalize(), small }))
    }

    fn kept(&self) -> Kept<'_> {
        Kept {
            stream: self.stream,
            bytes: self.bytes,
            hash: self.hash,
            inline: self.small.as_deref(),
        }
    }
}
