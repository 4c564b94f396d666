//! What a run has written since a place in each stream, at most so much at a time: for observers
//! that keep no state here and may be slow.

use std::io;

use retake_types::{RunId, Stream};

use crate::output::OutputReader;
use crate::{Error, Result, Store, lock};

/// Some bytes of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub stream: Stream,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// What there is to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// In order of arrival.
    pub pieces: Vec<Piece>,
    /// The run is over and everything was told.
    pub over: bool,
    /// There is more to be told at once.
    pub more: bool,
}

impl Store {
    /// What follows these offsets, up to `most` bytes.
    pub fn output_after(&self, id: RunId, after: [u64; 2], most: usize) -> Result<News> {
        // Before the bytes: what a living runner writes after this look is seen by the next one.
        let alive = lock::is_alive(&self.dir, id);
        let mut readers =
            [self.read_output(id, Stream::Stdout)?, self.read_output(id, Stream::Stderr)?];
        let fresh = Stream::BOTH.map(|s| readers[s.index()].length() > after[s.index()]);
        let mut news = News { pieces: Vec::new(), over: false, more: false };
        match fresh {
            [false, false] => {}
            // The order matters only where there are two.
            [true, true] => self.merged_after(id, after, most, &mut news)?,
            [out, _] => {
                let stream = if out { Stream::Stdout } else { Stream::Stderr };
                let (reader, offset) = (&mut readers[stream.index()], after[stream.index()]);
                let bytes =
                    up_to(reader, offset, most).map_err(|error| lost(id, stream, &error))?;
                news.more = offset + (bytes.len() as u64) < reader.length();
                news.pieces.push(Piece { stream, offset, bytes });
            }
        }
        news.over = !alive && !news.more;
        Ok(news)
    }

    fn merged_after(
        &self,
        id: RunId,
        mut after: [u64; 2],
        most: usize,
        news: &mut News,
    ) -> Result<()> {
        let mut merged = self.read_merged(id)?;
        let mut left = most;
        for index in 0..merged.pieces() {
            let (stream, offset, length) = merged.piece_at(index);
            let from = &mut after[stream.index()];
            let end = offset + length;
            while *from >= offset && *from < end {
                if left == 0 {
                    news.more = true;
                    return Ok(());
                }
                let wanted = usize::try_from(end - *from).unwrap_or(usize::MAX).min(left);
                let mut bytes = vec![0; wanted];
                let read = match merged.read_stream_at(stream, &mut bytes, *from) {
                    Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                    read => read,
                }
                .map_err(|error| lost(id, stream, &error))?;
                bytes.truncate(read);
                match news.pieces.last_mut() {
                    Some(last)
                        if last.stream == stream
                            && last.offset + last.bytes.len() as u64 == *from =>
                    {
                        last.bytes.append(&mut bytes);
                    }
                    _ => news.pieces.push(Piece { stream, offset: *from, bytes }),
                }
                *from += read as u64;
                left -= read;
            }
        }
        Ok(())
    }
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

fn lost(id: RunId, stream: Stream, error: &io::Error) -> Error {
    Error::OutputLost { id, stream: stream.as_str(), detail: error.to_string() }
}
