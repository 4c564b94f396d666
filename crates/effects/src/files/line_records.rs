//! Counts added and removed lines without keeping any text.
//!
//! A line count only needs to tell old lines apart, so each line is kept as a 64-bit hash with a
//! random seed per tracker: an eighth or less of the text, no secrets on disk, and nothing to
//! compress. A record is checked against the content's hash and its own checksum; if anything is
//! wrong, the counts are missing, never wrong.
//! it is believed; whatever is wrong with it, the counts are then absent, never wrong.

use imara_diff::{Algorithm, Diff, InternedInput};
use retake_types::LineChange;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Larger files have no line counts.
pub(super) const MAX_BYTES: usize = 2 << 20;
/// Files with more lines have no line counts: comparing them takes more than linear time.
const MAX_LINES: usize = 100_000;

const MAGIC: u32 = 0x6c69_6e65;
const HEAD: usize = 24;
const TAIL: usize = 8;

/// The place of a file's record: a segment and an offset in it, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordPosition(pub(super) u64);

impl RecordPosition {
    pub(super) const NONE: Self = Self(0);

    pub(super) fn new(segment: u16, offset: u64) -> Option<Self> {
        (offset < 1 << 48 && segment < u16::MAX)
            .then(|| Self((u64::from(segment) + 1) << 48 | offset))
    }

    pub(super) fn get(self) -> Option<(u16, u64)> {
        let segment = (self.0 >> 48).checked_sub(1)?;
        Some((segment as u16, self.0 & ((1 << 48) - 1)))
    }
}

/// Appends the record of a text to `out`; appends nothing and returns `false` if the content is
/// binary or has too many lines.
pub(super) fn encode(content: &[u8], hash: &[u8; 32], seed: u64, out: &mut Vec<u8>) -> bool {
    // The same test as git's, but on the whole content.
    if content.len() > MAX_BYTES || memchr::memchr(0, content).is_some() {
        return false;
    }
    let start = out.len();
    out.extend_from_slice(&hash[..16]);
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let mut count = 0;
    let mut from = 0;
    let ends = memchr::memchr_iter(b'\n', content).map(|at| at + 1);
    let rest = (content.last().is_some_and(|byte| *byte != b'\n')).then_some(content.len());
    for end in ends.chain(rest) {
        // The newline is part of the line: a last line that gains one has changed.
        out.extend_from_slice(&xxh3_64_with_seed(&content[from..end], seed).to_le_bytes());
        from = end;
        count += 1;
    }
    if count > MAX_LINES {
        out.truncate(start);
        return false;
    }
    out[start + 20..start + HEAD].copy_from_slice(&(count as u32).to_le_bytes());
    let sum = xxh3_64(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
    true
}

/// The length of the record with this head, if it belongs to this content.
pub(super) fn record_len(head: &[u8; HEAD], hash: &[u8; 32]) -> Option<usize> {
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let count = word(20) as usize;
    let ours = head[..16] == hash[..16] && word(16) == MAGIC && count <= MAX_LINES;
    ours.then_some(HEAD + count * 8 + TAIL)
}

/// The lines of a complete record with a correct checksum.
pub(super) fn decode(record: &[u8]) -> Option<Vec<u64>> {
    let (body, sum) = record.split_last_chunk::<TAIL>()?;
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let (lines, []) = body.get(HEAD..)?.as_chunks::<8>() else { return None };
    Some(lines.iter().map(|line| u64::from_le_bytes(*line)).collect())
}

/// Compares two texts. The work is bounded: Histogram falls back to Myers with git's heuristics,
/// which give up a minimal result to save time.
pub(super) fn compare(before: &[u64], after: &[u64]) -> LineChange {
    let mut input = InternedInput::default();
    input.reserve(before.len() as u32, after.len() as u32);
    input.update_before(before.iter().copied());
    input.update_after(after.iter().copied());
    let diff = Diff::compute(Algorithm::Histogram, &input);
    LineChange {
        added: u64::from(diff.count_additions()),
        removed: u64::from(diff.count_removals()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<u64> {
        let hash = *blake3::hash(text.as_bytes()).as_bytes();
        let mut record = Vec::new();
        assert!(encode(text.as_bytes(), &hash, 7, &mut record));
        let head = record.first_chunk::<HEAD>().unwrap();
        assert_eq!(record_len(head, &hash), Some(record.len()));
        assert_eq!(record_len(head, &[0; 32]), None, "another content's record");
        decode(&record).unwrap()
    }

    fn change(before: &str, after: &str) -> (u64, u64) {
        let change = compare(&lines(before), &lines(after));
        (change.added, change.removed)
    }

    #[test]
    fn counts_are_git_s() {
        assert_eq!(change("", ""), (0, 0));
        assert_eq!(change("a\nb\nc\n", "a\nB\nc\n"), (1, 1));
        assert_eq!(change("a\nb\nc\n", "a\nb\nc\nd\ne\n"), (2, 0));
        assert_eq!(change("a\nb\nc\n", "b\n"), (0, 2));
        assert_eq!(change("a\nb", "a\nb\n"), (1, 1), "the newline belongs to its line");
        assert_eq!(change("a\n", "a\r\n"), (1, 1));
        assert_eq!(change("", "one\ntwo"), (2, 0));
    }

    #[test]
    fn binary_and_huge_content_has_no_lines() {
        let mut out = vec![1];
        assert!(!encode(b"a\0b", &[0; 32], 0, &mut out));
        assert!(!encode(&vec![b'\n'; MAX_LINES + 1], &[0; 32], 0, &mut out));
        assert!(!encode(&vec![b'x'; MAX_BYTES + 1], &[0; 32], 0, &mut out));
        assert_eq!(out, [1]);
    }

    #[test]
    fn a_damaged_record_is_not_believed() {
        let mut record = Vec::new();
        assert!(encode(b"a\nb\n", &[3; 32], 0, &mut record));
        for at in 0..record.len() {
            let mut damaged = record.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "byte {at}");
            assert_eq!(decode(&record[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn texts_without_a_common_line_end_in_time() {
        let before: Vec<u64> = (0..MAX_LINES as u64).collect();
        let after: Vec<u64> = (0..MAX_LINES as u64).map(|n| n + (1 << 40)).collect();
        let all = MAX_LINES as u64;
        assert_eq!(compare(&before, &after), LineChange { added: all, removed: all });
        // Every second line is moved elsewhere: the hard case for Myers.
        let shuffled: Vec<u64> = (0..all).map(|n| n * 7919 % all).collect();
        let change = compare(&before, &shuffled);
        assert_eq!(change.added, change.removed);
    }
}
