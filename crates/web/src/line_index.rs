//! Counts line feeds in an output, so that lines have numbers and addresses.
//!
//! Counting reads, and so verifies, all output before a position. Counts are cached and continued; a request
//! that would take too long returns how far it got.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Mutex, PoisonError};

use retake_types::{RunId, Stream};

use crate::output_source::OutputSource;

/// A count is cached for every block of this many bytes.
const EVERY: u64 = 256 << 10;
/// How many outputs' counts are cached.
const KEPT: usize = 32;

/// The line feeds before each block of an output, as far as they are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineIndex {
    /// The first is 0; one for each counted block, and one for the end.
    before: Vec<u64>,
    counted_to: u64,
    line_feeds: u64,
}

/// The offset and number of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineStart {
    pub(crate) line: u64,
    pub(crate) offset: u64,
}

fn count(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

impl LineIndex {
    pub(crate) fn counted_to(&self) -> u64 {
        self.counted_to
    }

    /// Continues counting up to an offset.
    fn extend(&mut self, output: &mut (impl Read + Seek), to: u64) -> io::Result<()> {
        let mut buffer = Vec::new();
        output.seek(SeekFrom::Start(self.counted_to))?;
        while self.counted_to < to {
            let block_end = (self.counted_to / EVERY + 1) * EVERY;
            if self.counted_to.is_multiple_of(EVERY) {
                self.before.push(self.line_feeds);
            }
            let wanted = block_end.min(to) - self.counted_to;
            buffer.clear();
            let read = Read::by_ref(output).take(wanted).read_to_end(&mut buffer)? as u64;
            self.line_feeds += count(&buffer);
            self.counted_to += read;
            if read < wanted {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// The number of the line at an offset, from 1; `None` if it is not counted yet.
    fn line_at(&self, output: &mut (impl Read + Seek), offset: u64) -> io::Result<Option<u64>> {
        if offset > self.counted_to {
            return Ok(None);
        }
        if offset == self.counted_to {
            return Ok(Some(self.line_feeds + 1));
        }
        let block = offset / EVERY;
        let before = usize::try_from(block).ok().and_then(|block| self.before.get(block));
        let Some(before) = before else { return Ok(None) };
        let mut buffer = Vec::new();
        output.seek(SeekFrom::Start(block * EVERY))?;
        Read::by_ref(output).take(offset - block * EVERY).read_to_end(&mut buffer)?;
        Ok(Some(before + count(&buffer) + 1))
    }

    /// The offset of a line; `None` if it is not within the counted part.
    fn offset_of(&self, output: &mut (impl Read + Seek), line: u64) -> io::Result<Option<u64>> {
        let Some(feeds) = line.checked_sub(1) else { return Ok(None) };
        if feeds == 0 {
            return Ok(Some(0));
        }
        if feeds > self.line_feeds {
            return Ok(None);
        }
        // The last block with fewer line feeds before it.
        let block = self.before.partition_point(|before| *before < feeds).saturating_sub(1);
        let (start, before) = (block as u64 * EVERY, self.before[block]);
        let mut buffer = Vec::new();
        output.seek(SeekFrom::Start(start))?;
        let end = (start + EVERY).min(self.counted_to);
        Read::by_ref(output).take(end - start).read_to_end(&mut buffer)?;
        let wanted = usize::try_from(feeds - before - 1).unwrap_or(usize::MAX);
        let feed = buffer.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(wanted);
        Ok(feed.map(|(at, _)| start + at as u64 + 1))
    }
}

type Output = (RunId, Option<Stream>);

/// The counts of recently shown outputs, the latest first.
#[derive(Default)]
pub(crate) struct LineIndexes(Mutex<VecDeque<(Output, LineIndex)>>);

impl LineIndexes {
    /// Takes a count out of the cache: two requests for the same output count twice instead of waiting.
    fn take(&self, key: Output, length: u64) -> LineIndex {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().find(|(known, _)| *known == key).map(|(_, index)| index.clone());
        kept.retain(|(known, _)| *known != key);
        // An output that became shorter is a different one.
        known.filter(|index| index.counted_to <= length).unwrap_or_default()
    }

    fn put(&self, key: Output, index: LineIndex) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(known, _)| *known != key);
        kept.truncate(KEPT - 1);
        kept.push_front((key, index));
    }

    fn with<T>(
        &self,
        (id, source): (RunId, OutputSource),
        output: &mut (impl Read + Seek),
        length: u64,
        work: impl FnOnce(&mut LineIndex, &mut dyn ReadSeek) -> io::Result<T>,
    ) -> io::Result<T> {
        let stream = match source {
            OutputSource::One(stream) => Some(stream),
            OutputSource::Interleaved => None,
        };
        let mut index = self.take((id, stream), length);
        let result = work(&mut index, output);
        self.put((id, stream), index);
        result
    }

    /// The number of the line at an offset, if reading at most `effort` more bytes finds it; and how far
    /// the output is counted.
    pub(crate) fn line_at(
        &self,
        of: (RunId, OutputSource),
        output: &mut (impl Read + Seek),
        length: u64,
        (offset, effort): (u64, u64),
    ) -> io::Result<(Option<u64>, u64)> {
        self.with(of, output, length, |index, mut output| {
            let to = index.counted_to.saturating_add(effort).min(offset.min(length));
            index.extend(&mut output, to)?;
            Ok((index.line_at(&mut output, offset.min(length))?, index.counted_to()))
        })
    }

    /// The offset of a line, or of the last line if there are fewer. `None` if the line is more than
    /// `effort` bytes beyond the counted part.
    pub(crate) fn start_of(
        &self,
        of: (RunId, OutputSource),
        output: &mut (impl Read + Seek),
        length: u64,
        (line, effort): (u64, u64),
    ) -> io::Result<Option<LineStart>> {
        /// After this many bytes, counting checks whether it has passed the line.
        const STEP: u64 = 4 << 20;
        self.with(of, output, length, |index, mut output| {
            let limit = index.counted_to.saturating_add(effort).min(length);
            loop {
                if let Some(offset) = index.offset_of(&mut output, line)? {
                    // No line begins after the last line feed.
                    if offset < length || line == 1 {
                        return Ok(Some(LineStart { line, offset }));
                    }
                }
                if index.counted_to >= limit {
                    break;
                }
                let to = index.counted_to.saturating_add(STEP).min(limit);
                index.extend(&mut output, to)?;
            }
            if index.counted_to < length {
                return Ok(None);
            }
            // One more line than line feeds, unless the last one is empty.
            for line in [index.line_feeds + 1, index.line_feeds.max(1)] {
                if let Some(offset) =
                    index.offset_of(&mut output, line)?.filter(|at| *at < length || line == 1)
                {
                    return Ok(Some(LineStart { line, offset }));
                }
            }
            Ok(Some(LineStart { line: 1, offset: 0 }))
        })
    }
}

/// An output with random access.
trait ReadSeek: Read + Seek {}

impl<T: Read + Seek> ReadSeek for T {}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    const OF: (OutputSource, u64) = (OutputSource::One(Stream::Stdout), u64::MAX);

    #[test]
    fn numbers_and_places_of_lines_agree() {
        let text: Vec<u8> = (0..120_000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let (id, length) = (RunId::new(), text.len() as u64);
        assert!(length > 4 * EVERY);
        let indexes = LineIndexes::default();
        let mut output = Cursor::new(&text);
        for line in [1, 2, 30_000, 119_999, 120_000, 5] {
            let start =
                indexes.start_of((id, OF.0), &mut output, length, (line, OF.1)).unwrap().unwrap();
            let here = format!("line {}\n", line - 1);
            assert!(text[start.offset as usize..].starts_with(here.as_bytes()), "{line}");
            for at in [start.offset, start.offset + 3] {
                let (found, _) =
                    indexes.line_at((id, OF.0), &mut output, length, (at, OF.1)).unwrap();
                assert_eq!(found, Some(line));
            }
        }
        // A line beyond the end selects the last one.
        let last = indexes.start_of((id, OF.0), &mut output, length, (900_000, OF.1)).unwrap();
        assert_eq!(last.unwrap().line, 120_000);
        let end = indexes.line_at((id, OF.0), &mut output, length, (length, OF.1)).unwrap();
        assert_eq!(end, (Some(120_001), length));
    }

    #[test]
    fn a_count_continues_where_it_ended_and_an_output_may_grow() {
        let (id, indexes) = (RunId::new(), LineIndexes::default());
        let mut text = vec![b'\n'; 3 * EVERY as usize];
        let length = text.len() as u64;
        let mut output = Cursor::new(text.clone());
        let ask = |output: &mut Cursor<Vec<u8>>, length, effort| {
            indexes.line_at((id, OF.0), output, length, (length, effort)).unwrap()
        };
        assert_eq!(ask(&mut output, length, EVERY + 7), (None, EVERY + 7));
        assert_eq!(ask(&mut output, length, EVERY), (None, 2 * EVERY + 7));
        assert_eq!(ask(&mut output, length, EVERY), (Some(length + 1), length));
        text.extend(b"more\n");
        let mut output = Cursor::new(text.clone());
        assert_eq!(ask(&mut output, length + 5, 100), (Some(length + 2), length + 5));
        // Another output of the same run is shorter.
        let mut short = Cursor::new(b"a\nb".to_vec());
        assert_eq!(ask(&mut short, 3, 100), (Some(2), 3));
    }

    #[test]
    fn outputs_without_a_last_line_feed_or_without_anything_have_lines() {
        let start = |text: &str, line| {
            let indexes = LineIndexes::default();
            let mut output = Cursor::new(text.as_bytes());
            let length = text.len() as u64;
            let found = indexes.start_of((RunId::new(), OF.0), &mut output, length, (line, OF.1));
            let found = found.unwrap().unwrap();
            (found.line, found.offset)
        };
        assert_eq!(start("", 1), (1, 0));
        assert_eq!(start("", 7), (1, 0));
        assert_eq!(start("a\nb", 2), (2, 2));
        assert_eq!(start("a\nb", 3), (2, 2));
        assert_eq!(start("a\nb\n", 3), (2, 2));
        assert_eq!(start("\n\n", 2), (2, 1));
    }
}
