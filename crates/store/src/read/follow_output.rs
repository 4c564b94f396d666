//! Following the output of a run that another process records.

use std::io;

use retake_types::{RunId, Stream};

use crate::base::live_file;
use crate::{Error, Result, Store};

/// Returns what a run has written since the last poll. It never waits: the caller decides how often
/// to poll.
#[derive(Debug)]
pub struct OutputFollower {
    id: RunId,
    wanted: Option<Stream>,
    given: [u64; 2],
}

impl Store {
    /// Follows one stream, or both in order of arrival, from the beginning.
    pub fn follow(&self, id: RunId, wanted: Option<Stream>) -> OutputFollower {
        OutputFollower { id, wanted, given: [0, 0] }
    }
}

impl OutputFollower {
    /// Starts at these offsets, for a reader that reconnects.
    pub fn from_offsets(mut self, given: [u64; 2]) -> Self {
        self.given = given;
        self
    }

    pub fn offsets(&self) -> [u64; 2] {
        self.given
    }

    /// Passes the new bytes to `out`; `true` once the run is over and everything was passed.
    pub fn poll(&mut self, store: &Store, out: &mut impl FnMut(Stream, &[u8])) -> Result<bool> {
        // Checked before reading: what a live runner writes afterwards is seen by the next poll.
        let alive = live_file::run_is_alive(&store.dir, self.id);
        let mut interleaved = store.read_interleaved(self.id)?;
        let mut buffer = vec![0; 64 * 1024];
        for index in 0..interleaved.pieces() {
            let (stream, offset, length) = interleaved.piece_at(index);
            if self.wanted.is_some_and(|wanted| wanted != stream) {
                continue;
            }
            let given = &mut self.given[stream.index()];
            let end = offset + length;
            while *given >= offset && *given < end {
                let left = usize::try_from(end - *given).unwrap_or(usize::MAX).min(buffer.len());
                let read = interleaved
                    .read_stream_at(stream, &mut buffer[..left], *given)
                    .and_then(|read| match read {
                        0 => Err(io::ErrorKind::UnexpectedEof.into()),
                        read => Ok(read),
                    })
                    .map_err(|error| Error::reading(self.id, error))?;
                out(stream, &buffer[..read]);
                *given += read as u64;
            }
        }
        Ok(!alive)
    }
}
