//! Both streams of a run as one, in order of arrival; and lines from either end of any output.

use std::io::{self, Read, Seek, SeekFrom};

use retake_types::{RunId, Stream};

use crate::chunks::Chunk;
use crate::output::{OutputReader, sought};
use crate::{Result, Store};

/// A contiguous piece of one stream, at its place in the merged order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: u64,
    stream: Stream,
    offset: u64,
    length: u64,
    at_us: Option<u64>,
}

/// Both streams in the order in which they arrived, as one readable and seekable whole.
#[derive(Debug)]
pub struct MergedReader {
    readers: [OutputReader; 2],
    pieces: Vec<Piece>,
    length: u64,
    position: u64,
}

/// Where a byte of the merged output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub stream: Stream,
    /// How many more bytes follow from the same stream.
    pub left: u64,
    /// Microseconds since the recording began, where known.
    pub at_us: Option<u64>,
}

impl Store {
    /// Both streams in order of arrival. Bytes whose order is not known come last.
    pub fn read_merged(&self, id: RunId) -> Result<MergedReader> {
        // Before the order is read: whatever is in the files then has its place in the index.
        let readers =
            [self.read_output(id, Stream::Stdout)?, self.read_output(id, Stream::Stderr)?];
        let chunks = self.chunks_of(id)?;
        Ok(MergedReader::new(readers, &chunks))
    }
}

impl MergedReader {
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

    /// Of the next byte to be read; `None` at the end.
    pub fn origin(&self) -> Option<Origin> {
        let piece = self.piece()?;
        let left = piece.at + piece.length - self.position;
        Some(Origin { stream: piece.stream, left, at_us: piece.at_us })
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

impl Read for MergedReader {
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

impl Seek for MergedReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = sought(to, self.position, self.length)?;
        Ok(self.position)
    }
}

const BLOCK: usize = 64 * 1024;

/// How many bytes the first `lines` lines take. A last line without a newline counts.
pub fn head_end(output: &mut (impl Read + Seek), lines: u64) -> io::Result<u64> {
    let mut end = output.seek(SeekFrom::Start(0))?;
    let (mut buffer, mut left) = (vec![0; BLOCK], lines);
    while left > 0 {
        let read = output.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        for newline in memchr::memchr_iter(b'\n', &buffer[..read]) {
            left -= 1;
            if left == 0 {
                return Ok(end + newline as u64 + 1);
            }
        }
        end += read as u64;
    }
    Ok(if lines == 0 { 0 } else { end })
}

/// Where the last `lines` lines begin. A last line without a newline counts.
pub fn tail_start(output: &mut (impl Read + Seek), lines: u64) -> io::Result<u64> {
    let length = output.seek(SeekFrom::End(0))?;
    let (mut start, mut left) = (length, lines);
    if lines == 0 {
        return Ok(length);
    }
    let mut buffer = vec![0; BLOCK];
    while start > 0 {
        let block = start.min(BLOCK as u64);
        let from = start - block;
        output.seek(SeekFrom::Start(from))?;
        let buffer = &mut buffer[..block as usize];
        output.read_exact(buffer)?;
        // The newline that ends the last line does not begin another.
        let searched = if start == length && buffer.last() == Some(&b'\n') {
            &buffer[..buffer.len() - 1]
        } else {
            &buffer[..]
        };
        for newline in memchr::memrchr_iter(b'\n', searched) {
            left -= 1;
            if left == 0 {
                return Ok(from + newline as u64 + 1);
            }
        }
        start = from;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn slices(text: &[u8], lines: u64) -> (Vec<u8>, Vec<u8>) {
        let mut output = Cursor::new(text);
        let end = head_end(&mut output, lines).unwrap() as usize;
        let start = tail_start(&mut output, lines).unwrap() as usize;
        (text[..end].to_vec(), text[start..].to_vec())
    }

    #[test]
    fn lines_are_counted_like_head_and_tail_do() {
        let text = b"a\nbb\nccc\n";
        assert_eq!(slices(text, 0), (b"".to_vec(), b"".to_vec()));
        assert_eq!(slices(text, 1), (b"a\n".to_vec(), b"ccc\n".to_vec()));
        assert_eq!(slices(text, 2), (b"a\nbb\n".to_vec(), b"bb\nccc\n".to_vec()));
        assert_eq!(slices(text, 9), (text.to_vec(), text.to_vec()));
        assert_eq!(slices(b"a\nb", 1), (b"a\n".to_vec(), b"b".to_vec()));
        assert_eq!(slices(b"\n\n", 1), (b"\n".to_vec(), b"\n".to_vec()));
        assert_eq!(slices(b"", 3), (b"".to_vec(), b"".to_vec()));
    }

    #[test]
    fn lines_are_found_across_blocks() {
        let text: Vec<u8> = (0..40_000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
        let (head, tail) = slices(&text, 30_000);
        assert_eq!(memchr::memchr_iter(b'\n', &head).count(), 30_000);
        assert!(tail.starts_with(b"line 10000\n"));
    }
}
