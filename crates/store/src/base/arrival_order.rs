//! The chunk index: in which order, and when, the bytes of both streams arrived.
//!
//! Each entry opens a chunk: the stream, the length of that stream's previous chunk, and the
//! microseconds since the previous entry, as two varints of a few bytes. A chunk ends where the
//! next one of its stream begins, so an entry is final when it is written and a torn tail costs
//! only the entries it tore. It holds no output.

use retake_types::Stream;

/// Bytes of one stream that arrive within this time of each other share a chunk.
const WINDOW_US: u64 = 1_000;
/// Each time the index has grown by this much, the window doubles, so it stays bounded.
const STEP: usize = 64 * 1024;
const LIMIT: usize = 1024 * 1024;

/// Where a chunk begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) stream: Stream,
    pub(crate) offset: u64,
    /// Microseconds since the recording began.
    pub(crate) at_us: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ChunkLog {
    bytes: Vec<u8>,
    starts: [u64; 2],
    latest: Option<(Stream, u64)>,
}

impl ChunkLog {
    /// Records that bytes arrived for `stream` at `offset`; opens a chunk if the order would
    /// otherwise be lost.
    pub(crate) fn note(&mut self, stream: Stream, offset: u64, at_us: u64) {
        let doublings = self.bytes.len() / STEP;
        let window = WINDOW_US << doublings.min(20);
        let before = match self.latest {
            None => 0,
            Some((latest, before)) => {
                let recent = at_us.saturating_sub(before) < window;
                // While the index is small, every change of stream is kept exactly.
                if recent && (latest == stream || doublings > 0) {
                    return;
                }
                before
            }
        };
        if self.bytes.len() >= LIMIT {
            return;
        }
        let previous = offset - self.starts[stream.index()];
        put(&mut self.bytes, previous << 1 | stream.index() as u64);
        put(&mut self.bytes, at_us.saturating_sub(before));
        self.starts[stream.index()] = offset;
        self.latest = Some((stream, at_us.max(before)));
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The hash by which an outcome names an order of arrival.
pub(crate) fn order_hash(order: &[u8]) -> String {
    blake3::hash(order).to_hex().to_string()
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads an index that may still be growing, or be torn.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkReader {
    consumed: usize,
    starts: [u64; 2],
    at_us: u64,
}

impl ChunkReader {
    pub(crate) fn read_all(bytes: &[u8]) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        Self::default().read(bytes, &mut chunks);
        chunks
    }

    /// Appends the complete entries that follow those already read.
    pub(crate) fn read(&mut self, bytes: &[u8], chunks: &mut Vec<Chunk>) {
        let mut rest = &bytes[self.consumed.min(bytes.len())..];
        while let Some((tag, after)) = take(rest) {
            let Some((delta, after)) = take(after) else { return };
            let stream = if tag & 1 == 0 { Stream::Stdout } else { Stream::Stderr };
            let start = &mut self.starts[stream.index()];
            *start = start.saturating_add(tag >> 1);
            self.at_us = self.at_us.saturating_add(delta);
            chunks.push(Chunk { stream, offset: *start, at_us: self.at_us });
            self.consumed += rest.len() - after.len();
            rest = after;
        }
    }
}

fn take(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7F) << (7 * index);
        if byte < 0x80 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_stream_within_a_millisecond_is_one_chunk_and_a_change_of_stream_is_not() {
        let mut log = ChunkLog::default();
        log.note(Stream::Stdout, 0, 10);
        log.note(Stream::Stdout, 100, 900);
        log.note(Stream::Stderr, 0, 950);
        log.note(Stream::Stdout, 200, 960);
        log.note(Stream::Stdout, 300, 5_000);
        let seen: Vec<_> = ChunkReader::read_all(log.bytes())
            .into_iter()
            .map(|chunk| (chunk.stream.index(), chunk.offset, chunk.at_us))
            .collect();
        assert_eq!(seen, [(0, 0, 10), (1, 0, 950), (0, 200, 960), (0, 300, 5_000)]);
    }

    proptest! {
        #[test]
        fn any_order_reads_back_and_a_torn_tail_loses_only_itself(
            steps in proptest::collection::vec((any::<bool>(), 0u64..1 << 40, 0u64..1 << 30), 0..60),
            cut in 0usize..400,
        ) {
            let mut log = ChunkLog::default();
            let (mut offsets, mut now, mut expected) = ([0u64; 2], 0, Vec::new());
            for (err, length, pause) in steps {
                now += pause + WINDOW_US;
                let stream = Stream::BOTH[usize::from(err)];
                log.note(stream, offsets[stream.index()], now);
                expected.push(Chunk { stream, offset: offsets[stream.index()], at_us: now });
                offsets[stream.index()] += length;
            }
            prop_assert_eq!(ChunkReader::read_all(log.bytes()), expected.clone());
            let torn = ChunkReader::read_all(&log.bytes()[..cut.min(log.bytes().len())]);
            prop_assert_eq!(&torn[..], &expected[..torn.len()]);
        }
    }

    #[test]
    fn the_index_stays_bounded() {
        let mut log = ChunkLog::default();
        for index in 0..3_000_000u64 {
            log.note(Stream::BOTH[(index % 2) as usize], index / 2, index * 1_500);
        }
        assert!(log.bytes().len() < LIMIT, "{}", log.bytes().len());
    }
}
