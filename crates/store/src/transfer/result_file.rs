//! Records one run into a file, for a machine without a store.
//! [`Store::import`](crate::Store::import) reads it.
//!
//! Small output is kept in memory, large output in a file next to the result; bytes that a failing
//! disk rejects are counted as lost and never end the run.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use retake_types::{Intent, Redacted, RunOutcome, Stream};

use crate::base::arrival_order::{ChunkLog, order_hash};
use crate::read::output::INLINE_LIMIT;
use crate::redact::RedactedBytes;
use crate::transfer::export::{ExportLine, PART, write_line};
use crate::{Error, Result};

/// The result of a run in progress.
#[derive(Debug)]
pub struct ResultFile {
    /// The path for large output, without the suffix of its stream.
    beside: PathBuf,
    streams: [PendingStream; 2],
    chunks: ChunkLog,
    begun: Instant,
    error: Option<Error>,
}

#[derive(Debug, Default)]
struct PendingStream {
    bytes: u64,
    lost: u64,
    hasher: blake3::Hasher,
    small: Vec<u8>,
    file: Option<(File, PathBuf)>,
    broken: bool,
}

impl ResultFile {
    pub fn new(beside: &Path) -> Self {
        Self {
            beside: beside.to_owned(),
            streams: Default::default(),
            chunks: ChunkLog::default(),
            begun: Instant::now(),
            error: None,
        }
    }

    /// Keeps bytes of a stream. Never fails: bytes that cannot be kept are counted as lost.
    pub fn append(&mut self, stream: Stream, bytes: RedactedBytes<'_>) {
        if bytes.is_empty() {
            return;
        }
        let waiting = &mut self.streams[stream.index()];
        if waiting.broken {
            waiting.lost += bytes.len() as u64;
            return;
        }
        let at_us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let offset = waiting.bytes;
        let path = {
            let mut name = self.beside.clone().into_os_string();
            name.push(".");
            name.push(stream.as_str());
            PathBuf::from(name)
        };
        match waiting.take(&bytes, path) {
            Ok(()) => self.chunks.note(stream, offset, at_us),
            Err((path, error)) => {
                waiting.broken = true;
                waiting.lost += bytes.len() as u64;
                self.error.get_or_insert(Error::io("write", &path, error));
            }
        }
    }

    /// Bytes lost so far, and the first error.
    pub fn lost_bytes(&self) -> Option<(u64, &Error)> {
        let lost = self.streams.iter().map(|waiting| waiting.lost).sum();
        self.error.as_ref().map(|error| (lost, error))
    }

    /// Writes the whole run, and fills in what was stored of each stream.
    pub fn finish(
        mut self,
        intent: &Redacted<Intent>,
        mut outcome: Redacted<RunOutcome>,
        to: &mut impl Write,
    ) -> Result<()> {
        let hash = |waiting: &PendingStream| {
            (waiting.bytes > 0).then(|| waiting.hasher.finalize().to_hex().to_string())
        };
        let [stdout, stderr] = &self.streams;
        let captured = stdout.bytes + stderr.bytes > 0;
        outcome.set_stored(
            [(stdout.bytes, hash(stdout)), (stderr.bytes, hash(stderr))],
            captured.then(|| order_hash(self.chunks.bytes())),
        );
        if self.streams.iter().any(|waiting| waiting.lost > 0) {
            outcome.set_truncated();
        }
        let run = ExportLine::Run {
            intent: Box::new(intent.clone()),
            outcome: Box::new(outcome),
            chunks: BASE64.encode(self.chunks.bytes()),
        };
        write_line(to, &run)?;
        for stream in Stream::BOTH {
            let waiting = &mut self.streams[stream.index()];
            let mut offset = 0;
            while offset < waiting.bytes {
                let part = waiting.part(offset)?;
                let base64 = BASE64.encode(&part);
                write_line(to, &ExportLine::Output { run: intent.id(), stream, offset, base64 })?;
                offset += part.len() as u64;
            }
        }
        Ok(())
    }
}

impl PendingStream {
    fn take(
        &mut self,
        bytes: &[u8],
        path: PathBuf,
    ) -> std::result::Result<(), (PathBuf, io::Error)> {
        if self.bytes + bytes.len() as u64 <= INLINE_LIMIT {
            self.small.extend_from_slice(bytes);
        } else {
            if self.file.is_none() {
                let made = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&path)
                    .map_err(|error| (path.clone(), error))?;
                let (file, _) = self.file.insert((made, path.clone()));
                file.write_all(&self.small).map_err(|error| (path.clone(), error))?;
                self.small = Vec::new();
            }
            if let Some((file, path)) = &mut self.file {
                file.write_all(bytes).map_err(|error| (path.clone(), error))?;
            }
        }
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// The bytes of one line, from an offset.
    fn part(&mut self, offset: u64) -> Result<Vec<u8>> {
        let length = usize::try_from(self.bytes - offset).unwrap_or(PART).min(PART);
        let Some((file, path)) = &mut self.file else {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            return Ok(self.small[from..from + length].to_vec());
        };
        let mut part = vec![0; length];
        file.seek(io::SeekFrom::Start(offset))
            .and_then(|_| file.read_exact(&mut part))
            .map_err(|error| Error::io("read", path, error))?;
        Ok(part)
    }
}

impl Drop for PendingStream {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.file {
            // A remaining file is removed with its directory.
            drop(std::fs::remove_file(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_output_needs_no_file_and_large_output_leaves_none() {
        let dir = tempfile::tempdir().unwrap();
        let beside = dir.path().join("p");
        let mut result = ResultFile::new(&beside);
        result.append(Stream::Stdout, RedactedBytes::for_test(&[b'x'; 64 * 1024]));
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
        result.append(Stream::Stdout, RedactedBytes::for_test(b"y"));
        assert_eq!(std::fs::metadata(dir.path().join("p.stdout")).unwrap().len(), 64 * 1024 + 1);
        assert_eq!(result.streams[0].part(64 * 1024 - 1).unwrap(), b"xy");
        drop(result);
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }

    #[test]
    fn output_that_cannot_be_written_is_counted() {
        let mut result = ResultFile::new(Path::new("/nonexistent/p"));
        result.append(Stream::Stderr, RedactedBytes::for_test(&[b'x'; 70 * 1024]));
        result.append(Stream::Stderr, RedactedBytes::for_test(b"more"));
        assert_eq!(result.lost_bytes().unwrap().0, 70 * 1024 + 4);
    }
}
