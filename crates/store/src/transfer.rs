//! Taking runs out of one record and into another, without loss and exactly once.
//!
//! A run is one JSON line with its intent, ending, order of arrival and the beginning of its
//! output; further lines carry the rest of large output, so that memory stays bounded.

use std::fs::File;
use std::io::{BufRead, Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use retake_types::{Ending, Intent, Run, RunId, Stream};
use serde::{Deserialize, Serialize};

use crate::away::awaited;
use crate::dir::{Dir, remove, sync_dir};
use crate::output::{INLINE_LIMIT, Kept};
use crate::recording::{insert_intent, insert_outcome};
use crate::store::Durability;
use crate::{Error, Result, Store};

/// Output bytes in one line.
pub(crate) const PART: usize = 768 * 1024;

/// Runs taken in with one commit.
const BATCH: usize = 256;

/// An audit record, with exactly the keys of the specification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    pub event_type: &'static str,
    pub timestamp: Timestamp,
    pub run_id: Option<String>,
    pub session_id: Option<String>,
    pub task_id: Option<String>,
    pub step_id: Option<String>,
    pub tool_call_id: Option<String>,
    pub worktree_id: Option<String>,
    pub repo_sha: Option<String>,
    pub command: String,
    pub exit_code: Option<i32>,
    pub duration_ms: Option<u64>,
}

impl AuditRecord {
    pub fn of(run: &Run) -> Self {
        let ids = run.intent.request.correlation_ids.clone();
        Self {
            event_type: "command_execution",
            timestamp: run.intent.start_time,
            run_id: ids.run_id,
            session_id: ids.session_id,
            task_id: ids.task_id,
            step_id: ids.step_id,
            tool_call_id: ids.tool_call_id,
            worktree_id: ids.worktree_id,
            repo_sha: ids.repo_sha,
            command: run.intent.command().to_owned(),
            exit_code: run.ending.as_ref().and_then(|ending| ending.exit_code),
            duration_ms: run.ending.as_ref().map(|ending| ending.duration_ms),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Line {
    Run {
        intent: Box<Intent>,
        ending: Box<Ending>,
        /// The order of arrival, in base64.
        chunks: String,
    },
    Output {
        run: RunId,
        stream: Stream,
        offset: u64,
        base64: String,
    },
}

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub imported: Vec<RunId>,
    /// Runs that were already in the record.
    pub known: u64,
}

impl Store {
    /// Writes one finished run with all of its output as JSON lines; `false` for a run that has
    /// no outcome yet, of which nothing is written.
    pub fn export(&self, run: &Run, to: &mut impl Write) -> Result<bool> {
        let Some(ending) = &run.ending else { return Ok(false) };
        let id = run.intent.id();
        let chunks: Option<Vec<u8>> = self
            .connection
            .query_row("SELECT chunks FROM runs WHERE id = ?1", [id.as_bytes()], |row| row.get(0))
            .map_err(|error| self.failed("export a run", error))?;
        let line = Line::Run {
            intent: Box::new(run.intent.clone()),
            ending: Box::new(ending.clone()),
            chunks: BASE64.encode(chunks.unwrap_or_default()),
        };
        write_line(to, &line)?;
        for stream in Stream::BOTH {
            let mut output = self.read_output(id, stream)?;
            let (mut offset, length) = (0, output.length());
            while offset < length {
                let mut part = Vec::new();
                Read::by_ref(&mut output).take(PART as u64).read_to_end(&mut part).map_err(
                    |error| Error::OutputLost {
                        id,
                        stream: stream.as_str(),
                        detail: error.to_string(),
                    },
                )?;
                if part.is_empty() {
                    let detail = format!("{length} bytes were recorded, {offset} are there");
                    return Err(Error::OutputLost { id, stream: stream.as_str(), detail });
                }
                let base64 = BASE64.encode(&part);
                write_line(to, &Line::Output { run: id, stream, offset, base64 })?;
                offset += part.len() as u64;
            }
        }
        Ok(true)
    }

    /// Reads what `export` or a parcel wrote. A run that is already here is left as it is, except
    /// that one that is away gets its outcome; what came before a line that is not usable is
    /// imported.
    pub fn import(&mut self, from: &mut impl BufRead) -> Result<Imported> {
        let mut result = Imported::default();
        let mut complete = Vec::new();
        let read = self.read_runs(from, &mut complete, &mut result);
        self.adopt(&mut complete, &mut result)?;
        read.map(|()| result)
    }

    fn read_runs(
        &mut self,
        from: &mut impl BufRead,
        complete: &mut Vec<Arriving>,
        result: &mut Imported,
    ) -> Result<()> {
        let mut arriving: Option<Arriving> = None;
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
                _ => Some(serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?),
            };
            match line {
                Some(Line::Output { run, stream, offset, base64 }) => match &mut arriving {
                    Some(arriving) if arriving.intent.id() == run => {
                        let part = BASE64.decode(base64).map_err(|error| bad(error.to_string()))?;
                        arriving.take(&self.dir, stream, offset, &part, &bad)?;
                    }
                    _ => return Err(bad(format!("output of run {run} without the run"))),
                },
                next => {
                    if let Some(done) = arriving.take() {
                        done.check(&bad)?;
                        complete.push(done);
                        if complete.len() >= BATCH {
                            self.adopt(complete, result)?;
                        }
                    }
                    let Some(Line::Run { intent, ending, chunks }) = next else { return Ok(()) };
                    let chunks = BASE64.decode(chunks).map_err(|error| bad(error.to_string()))?;
                    arriving = Some(Arriving::new(*intent, *ending, chunks));
                }
            }
        }
    }

    /// Takes complete runs in with one commit.
    fn adopt(&mut self, complete: &mut Vec<Arriving>, result: &mut Imported) -> Result<()> {
        if complete.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(complete);
        let take_in = |tx: &rusqlite::Transaction<'_>, dir: &Dir| {
            let mut imported = Vec::new();
            for arriving in &batch {
                let id = arriving.intent.id();
                let failed = |error| Error::sqlite("import runs", dir.database(), error);
                let seq = match awaited(tx, dir, id).map_err(failed)? {
                    Some(seq) => seq,
                    None => match insert_intent(tx, dir, &arriving.intent) {
                        Ok(seq) => seq,
                        Err(Error::Duplicate { .. }) => continue,
                        Err(error) => return Err(error),
                    },
                };
                arriving.settle(dir)?;
                let chunks = Some(&arriving.chunks[..]);
                insert_outcome(tx, dir, (id, seq), &arriving.ending, &arriving.kept(), chunks)?;
                imported.push(id);
            }
            Ok(imported)
        };
        let imported =
            self.write_then(Durability::Power, "import runs", take_in, |imported, dir| {
                imported.iter().try_for_each(|id| remove(&dir.away(*id)))
            })?;
        result.known += (batch.len() - imported.len()) as u64;
        result.imported.extend(imported);
        Ok(())
    }
}

pub(crate) fn write_line(to: &mut impl Write, line: &Line) -> Result<()> {
    let failed = |error| Error::io("write", std::path::Path::new("the export"), error);
    let mut text = serde_json::to_vec(line).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    to.write_all(&text).map_err(failed)
}

/// A run that is being imported. Large output waits in a file of its own.
struct Arriving {
    intent: Intent,
    ending: Ending,
    chunks: Vec<u8>,
    streams: [Part; 2],
}

#[derive(Default)]
struct Part {
    bytes: u64,
    hasher: blake3::Hasher,
    small: Vec<u8>,
    file: Option<(File, std::path::PathBuf)>,
}

impl Arriving {
    fn new(intent: Intent, ending: Ending, chunks: Vec<u8>) -> Self {
        Self { intent, ending, chunks, streams: Default::default() }
    }

    fn take(
        &mut self,
        dir: &Dir,
        stream: Stream,
        offset: u64,
        bytes: &[u8],
        bad: &dyn Fn(String) -> Error,
    ) -> Result<()> {
        let id = self.intent.id();
        let part = &mut self.streams[stream.index()];
        if offset != part.bytes {
            return Err(bad(format!("{} is not contiguous at byte {offset}", stream.as_str())));
        }
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

    /// The output must be the one that the ending names.
    fn check(&self, bad: &dyn Fn(String) -> Error) -> Result<()> {
        let recorded = [
            (Stream::Stdout, self.ending.stdout_bytes, &self.ending.stdout_blake3),
            (Stream::Stderr, self.ending.stderr_bytes, &self.ending.stderr_blake3),
        ];
        for (stream, bytes, hash) in recorded {
            let part = &self.streams[stream.index()];
            let hashed = (part.bytes > 0).then(|| part.hasher.finalize().to_hex().to_string());
            if part.bytes != bytes || hashed != *hash {
                return Err(bad(format!(
                    "the {} of run {} is not complete or not the recorded one",
                    stream.as_str(),
                    self.intent.id()
                )));
            }
        }
        Ok(())
    }

    /// Gives large output its final name, synced, before anything refers to it.
    fn settle(&self, dir: &Dir) -> Result<()> {
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

    fn kept(&self) -> Vec<Kept<'_>> {
        let kept = |stream: Stream| {
            let part = &self.streams[stream.index()];
            let inline = part.file.is_none().then_some(&part.small[..]);
            (part.bytes > 0).then(|| Kept {
                stream,
                bytes: part.bytes,
                hash: part.hasher.finalize(),
                inline,
            })
        };
        Stream::BOTH.into_iter().filter_map(kept).collect()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        for part in &self.streams {
            if let Some((_, path)) = &part.file {
                // The import failed or was not needed; doctor finds what cannot be removed.
                drop(std::fs::remove_file(path));
            }
        }
    }
}
