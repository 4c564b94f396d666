//! Both streams of a run as one, in order of arrival.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use retake_types::{RunId, Stream};

use crate::base::arrival_order::Chunk;
use crate::read::output_reader::{OutputReader, sought};
use crate::{Result, Store};

/// A contiguous piece of one stream, at its offset in the interleaved order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: u64,
    stream: Stream,
    offset: u64,
    length: u64,
    at_us: Option<u64>,
}

/// Both streams in order of arrival, as one readable and seekable stream.
#[derive(Debug)]
pub struct InterleavedReader {
    readers: [OutputReader; 2],
    pieces: Vec<Piece>,
    length: u64,
    position: u64,
}

/// The origin of a byte of the interleaved output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteOrigin {
    pub stream: Stream,
    /// How many more bytes follow from the same stream.
    pub left: u64,
    /// Microseconds since the recording began, if known.
    pub at_us: Option<u64>,
}

impl Store {
    /// Both streams in order of arrival. Bytes of unknown order come last.
    pub fn read_interleaved(&self, id: RunId) -> Result<InterleavedReader> {
        // Opened before the order is read, so that the index covers every byte in the files.
        let readers =
            [self.read_output(id, Stream::Stdout)?, self.read_output(id, Stream::Stderr)?];
        let chunks = self.chunks_of(id)?;
        Ok(InterleavedReader::new(readers, &chunks))
    }
}

impl InterleavedReader {
    /// Streams of unknown order: one after the other.
    pub fn of_streams(readers: [OutputReader; 2]) -> Self {
        Self::new(readers, &[])
    }

    fn new(readers: [OutputReader; 2], chunks: &[Chunk]) -> Self {
        let lengths = [readers[0].length(), readers[1].length()];
        let mut pieces: Vec<Piece> = Vec::with_capacity(chunks.len() + 2);
        let mut ends = lengths;
        for chunk in chunks.iter().rev() {
            let end = &mut ends[chunk.stream.index()];
            let offset = chunk.offset.min(*end);
            if offset < *end {
                let (stream, length) = (chunk.stream, *end - offset);
                pieces.push(Piece { at: 0, stream, offset, length, at_us: Some(chunk.at_us) });
            }
            *end = offset;
        }
        pieces.reverse();
        // A torn index may lack the beginning of a stream as well as its end.
        for stream in Stream::BOTH {
            let length = ends[stream.index()];
            if length > 0 {
                pieces.push(Piece { at: 0, stream, offset: 0, length, at_us: None });
            }
        }
        let mut at = 0;
        for piece in &mut pieces {
            piece.at = at;
            at += piece.length;
        }
        Self { readers, pieces, length: at, position: 0 }
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    /// The origin of the next byte; `None` at the end.
    pub fn origin(&self) -> Option<ByteOrigin> {
        let piece = self.piece()?;
        let left = piece.at + piece.length - self.position;
        Some(ByteOrigin { stream: piece.stream, left, at_us: piece.at_us })
    }

    /// The interleaved offsets of the pieces of a range of a stream, with their times in
    /// microseconds.
    pub fn arrivals(&self, stream: Stream, range: Range<u64>) -> Vec<(u64, Option<u64>)> {
        let within = |piece: &&Piece| {
            piece.stream == stream
                && piece.offset < range.end
                && piece.offset + piece.length > range.start
        };
        let found = self.pieces.iter().filter(within);
        let mut found: Vec<_> =
            found.map(|piece| (piece.offset.max(range.start), piece.at_us)).collect();
        // Bytes of unknown order are stored last; sort them to their place.
        found.sort_by_key(|(offset, _)| *offset);
        found
    }

    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Stream, offset and length of a piece.
    pub(crate) fn piece_at(&self, index: usize) -> (Stream, u64, u64) {
        let piece = self.pieces[index];
        (piece.stream, piece.offset, piece.length)
    }

    pub(crate) fn read_stream_at(
        &mut self,
        stream: Stream,
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        self.readers[stream.index()].read_at(buffer, offset)
    }

    fn piece(&self) -> Option<Piece> {
        if self.position >= self.length {
            return None;
        }
        let next = self.pieces.partition_point(|piece| piece.at <= self.position);
        self.pieces.get(next.checked_sub(1)?).copied()
    }
}

impl Read for InterleavedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.piece() else { return Ok(0) };
        let within = self.position - piece.at;
        let left = usize::try_from(piece.length - within).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let reader = &mut self.readers[piece.stream.index()];
        let read = reader.read_at(&mut buffer[..wanted], piece.offset + within)?;
        if read == 0 && wanted > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the output file was cut"));
        }
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for InterleavedReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = sought(to, self.position, self.length)?;
        Ok(self.position)
    }
}
