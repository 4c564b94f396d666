//! Reads a whole output in parts on several threads: for searches that must examine every byte.
//!
//! Reading stored output means decompressing and checking it, which costs more than searching.
//! Parts are examined in any order and returned in sequence.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, Range};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Bytes examined at once: several blocks of a stored output.
const PART: u64 = 2 << 20;
/// A disk does not benefit from more threads, and each holds parts in memory.
const MOST_THREADS: usize = 4;

/// How many readers a scan of this many bytes uses.
pub fn scan_threads(bytes: u64) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = usize::try_from(bytes.div_ceil(PART)).unwrap_or(usize::MAX);
    cores.min(MOST_THREADS).min(parts).max(1)
}

/// Passes every part of a range and its offset to `look`, and the results to `take` in sequence.
/// Each reader has its own thread; a single reader uses the current one.
pub(crate) fn scan_parts<R: Read + Seek + Send, T: Send>(
    mut readers: Vec<R>,
    range: Range<u64>,
    look: &(dyn Fn(u64, &[u8]) -> T + Sync),
    take: &mut dyn FnMut(T) -> ControlFlow<()>,
) -> io::Result<()> {
    let parts = range.end.saturating_sub(range.start).div_ceil(PART);
    let part = |index: u64| {
        let start = range.start + index * PART;
        start..(start + PART).min(range.end)
    };
    if let [reader] = &mut readers[..] {
        let mut buffer = Vec::new();
        for index in 0..parts {
            let found = look_at(reader, part(index), &mut buffer, look)?;
            if take(found).is_break() {
                break;
            }
        }
        return Ok(());
    }
    let step = readers.len() as u64;
    std::thread::scope(|scope| {
        let mut results: Vec<Receiver<io::Result<T>>> = Vec::new();
        for (first, mut reader) in (0..).zip(readers) {
            // Results are not buffered: a reader that is ahead waits.
            let (sender, receiver): (SyncSender<io::Result<T>>, _) = sync_channel(0);
            results.push(receiver);
            scope.spawn(move || {
                let mut buffer = Vec::new();
                let mut index: u64 = first;
                while index < parts {
                    let found = look_at(&mut reader, part(index), &mut buffer, look);
                    let failed = found.is_err();
                    // The receiver needs no more results.
                    if sender.send(found).is_err() || failed {
                        return;
                    }
                    index += step;
                }
            });
        }
        for index in 0..parts {
            let receiver = &results[usize::try_from(index % step).unwrap_or(0)];
            let found = receiver.recv().map_err(|_| io::Error::other("a search thread died"))??;
            if take(found).is_break() {
                break;
            }
        }
        drop(results);
        Ok(())
    })
}

fn look_at<T>(
    reader: &mut (impl Read + Seek),
    part: Range<u64>,
    buffer: &mut Vec<u8>,
    look: &(dyn Fn(u64, &[u8]) -> T + Sync),
) -> io::Result<T> {
    let length = usize::try_from(part.end - part.start).map_err(io::Error::other)?;
    buffer.resize(length, 0);
    reader.seek(SeekFrom::Start(part.start))?;
    reader.read_exact(buffer)?;
    Ok(look(part.start, buffer))
}

/// A result of a scan by lines.
pub enum ScannedLines<'a, T> {
    /// Whole lines: their range, their number, and the result of `look`.
    Lines { at: Range<u64>, lines: u64, found: T },
    /// A part of a line that spans several parts, without the newline that `ends` it.
    Piece { at: u64, bytes: &'a [u8], ends: bool },
}

/// One part, split at its first and last newline.
struct LinePart<T> {
    at: u64,
    /// Everything before the first newline; the line may have begun in an earlier part.
    head: Vec<u8>,
    head_ends: bool,
    /// Whole lines: their bytes, their number, and the result.
    whole: Option<(u64, u64, T)>,
    tail: Vec<u8>,
}

/// The same by lines: `look` gets whole lines, each with its newline. The end of the range does not
/// end a line; with `begun`, the range starts inside a line.
pub fn scan_lines<R: Read + Seek + Send, T: Send>(
    readers: Vec<R>,
    range: Range<u64>,
    begun: bool,
    look: &(dyn Fn(&[u8]) -> T + Sync),
    take: &mut dyn FnMut(ScannedLines<'_, T>) -> ControlFlow<()>,
) -> io::Result<()> {
    let start = range.start;
    let look = |at: u64, bytes: &[u8]| {
        let first = match at == start && !begun {
            true => Some(0),
            false => memchr::memchr(b'\n', bytes).map(|at| at + 1),
        };
        let Some(first) = first else {
            let (head, tail) = (bytes.to_vec(), Vec::new());
            return LinePart { at, head, head_ends: false, whole: None, tail };
        };
        let end = memchr::memrchr(b'\n', bytes).map_or(first, |at| at + 1).max(first);
        let lines = &bytes[first..end];
        let whole = (!lines.is_empty()).then(|| {
            let count = memchr::memchr_iter(b'\n', lines).count() as u64;
            (lines.len() as u64, count, look(lines))
        });
        LinePart {
            at,
            head: bytes[..first.saturating_sub(1)].to_vec(),
            head_ends: first > 0,
            whole,
            tail: bytes[end..].to_vec(),
        }
    };
    let mut take = |part: LinePart<T>| {
        let LinePart { at, head, head_ends, whole, tail } = part;
        if head_ends || !head.is_empty() {
            take(ScannedLines::Piece { at, bytes: &head, ends: head_ends })?;
        }
        let at = at + head.len() as u64 + u64::from(head_ends);
        let mut length = 0;
        if let Some((bytes, lines, found)) = whole {
            length = bytes;
            take(ScannedLines::Lines { at: at..at + bytes, lines, found })?;
        }
        match tail.is_empty() {
            true => ControlFlow::Continue(()),
            false => take(ScannedLines::Piece { at: at + length, bytes: &tail, ends: false }),
        }
    };
    scan_parts(readers, range, &look, &mut take)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn bytes(length: usize) -> Vec<u8> {
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..length).map(|_| if byte() < 3 { b'\n' } else { b'a' + byte() % 26 }).collect()
    }

    /// Splits a range into lines with this many readers.
    fn lines(text: &[u8], range: Range<u64>, begun: bool, readers: usize) -> (Vec<u8>, u64) {
        let readers: Vec<_> = (0..readers).map(|_| Cursor::new(text)).collect();
        let (mut seen, mut count) = (Vec::new(), 0);
        let mut take = |scanned: ScannedLines<'_, Vec<u8>>| {
            match scanned {
                ScannedLines::Lines { at, lines, found } => {
                    assert_eq!(at.start, range.start + seen.len() as u64);
                    assert!(found.ends_with(b"\n"));
                    count += lines;
                    seen.extend(found);
                    assert_eq!(at.end, range.start + seen.len() as u64);
                }
                ScannedLines::Piece { at, bytes, ends } => {
                    assert_eq!(at, range.start + seen.len() as u64);
                    seen.extend_from_slice(bytes);
                    if ends {
                        count += 1;
                        seen.push(b'\n');
                    }
                }
            }
            ControlFlow::Continue(())
        };
        let look = |lines: &[u8]| lines.to_vec();
        scan_lines(readers, range.clone(), begun, &look, &mut take).unwrap();
        (seen, count)
    }

    #[test]
    fn every_byte_is_seen_once_and_in_order() {
        let part = PART as usize;
        let mut text = bytes(3 * part + 1000);
        // A line that spans three parts, one that ends with a part, and empty lines around it.
        text[part / 2..2 * part + 5].fill(b'x');
        text[3 * part - 1] = b'\n';
        text[3 * part] = b'\n';
        let length = text.len() as u64;
        for range in [0..length, 7..length, 0..length - 1, 5..PART, 0..0, PART - 1..PART + 1] {
            let wanted = &text[range.start as usize..range.end as usize];
            let newlines = memchr::memchr_iter(b'\n', wanted).count() as u64;
            for (readers, begun) in [(1, false), (1, true), (2, true), (3, false)] {
                let (seen, count) = lines(&text, range.clone(), begun, readers);
                assert!(seen == wanted, "{range:?} by {readers}");
                assert_eq!(count, newlines, "{range:?} by {readers}");
            }
        }
    }

    #[test]
    fn a_scan_ends_early_and_with_the_error_of_a_reader() {
        let text = bytes(6 * PART as usize);
        let mut seen = 0;
        let mut take = |at: u64| {
            seen += 1;
            if at == 2 * PART { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let readers = vec![Cursor::new(&text), Cursor::new(&text)];
        scan_parts(readers, 0..6 * PART, &|at, _| at, &mut take).unwrap();
        assert_eq!(seen, 3);
        let mut seen = 0;
        let mut take = |_: u64| {
            seen += 1;
            ControlFlow::Continue(())
        };
        let readers = vec![Cursor::new(&text), Cursor::new(&text)];
        let beyond = scan_parts(readers, 0..7 * PART, &|at, _| at, &mut take);
        assert_eq!(beyond.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(seen, 6, "what comes before the error is seen");
    }
}
