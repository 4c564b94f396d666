//! What a run has written after an offset of each stream, up to a limit in bytes: for stateless or
//! slow observers.

use std::io;

use retake_types::{RunId, Stream};

use crate::base::live_file;
use crate::read::output_reader::OutputReader;
use crate::read::record_reader::RecordReader;
use crate::{Error, Result, Store};

/// Some bytes of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPart {
    pub stream: Stream,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// The output after given offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOutput {
    /// In order of arrival.
    pub parts: Vec<OutputPart>,
    /// The run is over and this is the rest of its output.
    pub over: bool,
    /// More output is available already.
    pub more: bool,
}

impl Store {
    /// The output after these offsets, up to `most` bytes.
    pub fn output_after(&self, id: RunId, after: [u64; 2], most: usize) -> Result<NewOutput> {
        // Checked before reading: what a live runner writes afterwards is seen by the next call.
        let alive = live_file::run_is_alive(&self.dir, id);
        new_output(self, (id, alive), after, most)
    }
}

/// The output after these offsets, up to `most` bytes; the caller checked before whether the run
/// was alive.
pub fn new_output(
    record: &dyn RecordReader,
    (id, alive): (RunId, bool),
    after: [u64; 2],
    most: usize,
) -> Result<NewOutput> {
    let mut readers =
        [record.read_output(id, Stream::Stdout)?, record.read_output(id, Stream::Stderr)?];
    let fresh = Stream::BOTH.map(|s| readers[s.index()].length() > after[s.index()]);
    let mut new = NewOutput { parts: Vec::new(), over: false, more: false };
    match fresh {
        [false, false] => {}
        // The order matters only if both streams have output.
        [true, true] => interleaved_after(record, id, after, most, &mut new)?,
        [out, _] => {
            let stream = if out { Stream::Stdout } else { Stream::Stderr };
            let (reader, offset) = (&mut readers[stream.index()], after[stream.index()]);
            let bytes = up_to(reader, offset, most).map_err(|error| Error::reading(id, error))?;
            new.more = offset + (bytes.len() as u64) < reader.length();
            new.parts.push(OutputPart { stream, offset, bytes });
        }
    }
    new.over = !alive && !new.more;
    Ok(new)
}

fn interleaved_after(
    record: &dyn RecordReader,
    id: RunId,
    mut after: [u64; 2],
    most: usize,
    new: &mut NewOutput,
) -> Result<()> {
    let mut interleaved = record.read_interleaved(id)?;
    let mut left = most;
    for index in 0..interleaved.pieces() {
        let (stream, offset, length) = interleaved.piece_at(index);
        let from = &mut after[stream.index()];
        let end = offset + length;
        while *from >= offset && *from < end {
            if left == 0 {
                new.more = true;
                return Ok(());
            }
            let wanted = usize::try_from(end - *from).unwrap_or(usize::MAX).min(left);
            let mut bytes = vec![0; wanted];
            let read = match interleaved.read_stream_at(stream, &mut bytes, *from) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                read => read,
            }
            .map_err(|error| Error::reading(id, error))?;
            bytes.truncate(read);
            match new.parts.last_mut() {
                Some(last)
                    if last.stream == stream && last.offset + last.bytes.len() as u64 == *from =>
                {
                    last.bytes.append(&mut bytes);
                }
                _ => new.parts.push(OutputPart { stream, offset: *from, bytes }),
            }
            *from += read as u64;
            left -= read;
        }
    }
    Ok(())
}

fn up_to(reader: &mut OutputReader, offset: u64, most: usize) -> io::Result<Vec<u8>> {
    let left = usize::try_from(reader.length().saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut bytes = vec![0; left.min(most)];
    let mut filled = 0;
    while filled < bytes.len() {
        match reader.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => filled += read,
        }
    }
    Ok(bytes)
}
