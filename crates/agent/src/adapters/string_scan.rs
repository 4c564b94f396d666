//! Scans JSON strings 64 bytes at a time for their ends and escaped bytes.
//!
//! Source code in JSON has an escape every few dozen bytes. Searching from one to the next costs
//! more for calls and branch mispredictions than for bytes; with bit operations, all escapes of a
//! block are found at once.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_set1_epi8,
    _mm_sub_epi8,
};

/// Several bytes that are compared at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    #[cfg(target_arch = "x86_64")]
    bytes: [__m128i; 4],
    #[cfg(not(target_arch = "x86_64"))]
    bytes: [u8; Self::WIDTH],
    /// The number of leading bytes to ignore.
    before: u32,
}

impl Block {
    pub(crate) const WIDTH: usize = 64;

    /// The bytes from a position on; missing positions never match.
    #[inline]
    pub(crate) fn at(bytes: &[u8], place: usize) -> Option<Self> {
        let rest = bytes.get(place..).filter(|rest| !rest.is_empty())?;
        if let Some(block) = rest.first_chunk() {
            return Some(Self::new(block, 0));
        }
        // Usually the end of a longer text, whose last bytes fill a block.
        if let Some(block) = bytes.last_chunk() {
            return Some(Self::new(block, (Self::WIDTH - rest.len()) as u32));
        }
        let mut block = [0; Self::WIDTH];
        block[..rest.len()].copy_from_slice(rest);
        Some(Self::new(&block, 0))
    }

    #[inline]
    fn new(bytes: &[u8; Self::WIDTH], before: u32) -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let (quarters, _) = bytes.as_chunks::<16>();
            // SAFETY: every x86-64 processor has SSE2, and the 16 bytes exist.
            let load = |at: usize| unsafe { _mm_loadu_si128(quarters[at].as_ptr().cast()) };
            Self { bytes: [load(0), load(1), load(2), load(3)], before }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self { bytes: *bytes, before }
    }

    /// A bit for each position with this byte. The byte must not be zero.
    #[inline]
    pub(crate) fn places_of(&self, byte: u8) -> u64 {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: every x86-64 processor has SSE2.
            self.places(|bytes| unsafe {
                _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte.cast_signed())))
            })
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.places(|at| at == byte)
    }

    /// A bit for each position with a digit.
    #[inline]
    pub(crate) fn digits(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: every x86-64 processor has SSE2.
            self.places(|bytes| unsafe {
                let value = _mm_sub_epi8(bytes, _mm_set1_epi8(b'0'.cast_signed()));
                let digit = _mm_cmpeq_epi8(_mm_min_epu8(value, _mm_set1_epi8(9)), value);
                _mm_movemask_epi8(digit)
            })
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.places(|at| at.is_ascii_digit())
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn places(&self, find: impl Fn(__m128i) -> i32) -> u64 {
        let places = |at: usize| u64::from(find(self.bytes[at]).cast_unsigned()) << (16 * at);
        (places(0) | places(1) | places(2) | places(3)) >> self.before
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    fn places(&self, find: impl Fn(u8) -> bool) -> u64 {
        let bytes = self.bytes.iter().rev();
        bytes.fold(0, |places, at| places << 1 | u64::from(find(*at))) >> self.before
    }
}

/// Splits the bytes into blocks; the last one may be shorter.
#[inline]
pub(crate) fn blocks_of(bytes: &[u8]) -> impl Iterator<Item = Block> {
    (0..bytes.len()).step_by(Block::WIDTH).filter_map(move |place| Block::at(bytes, place))
}

/// Finds the bytes of consecutive blocks that a backslash escapes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Escapes {
    /// One if the last byte of the previous block escapes the first one of the next.
    carried: u64,
}

impl Escapes {
    /// The escaped bytes of the next block, given its backslashes.
    ///
    /// An unescaped backslash starts a run; within a run every second byte is escaped, and so is
    /// the byte after a run of odd length. Adding the starts at odd positions to the runs carries
    /// each of them through its run and leaves a bit right after it; of the bytes that follow a
    /// backslash, those at even positions are escaped, and after such a run those at odd positions.
    #[inline]
    pub(crate) fn of(&mut self, backslashes: u64) -> u64 {
        const EVEN: u64 = 0x5555_5555_5555_5555;
        if backslashes == 0 {
            return std::mem::take(&mut self.carried);
        }
        let unescaped = backslashes & !self.carried;
        let follows = unescaped << 1 | self.carried;
        let at_odd = unescaped & !EVEN & !follows;
        let (sum, carried) = at_odd.overflowing_add(unescaped);
        self.carried = u64::from(carried);
        (EVEN ^ (sum << 1)) & follows
    }
}

/// The number of line feeds in the content of a string.
pub(crate) fn line_feeds(content: &[u8]) -> usize {
    let (mut escapes, mut found) = (Escapes::default(), 0);
    for block in blocks_of(content) {
        let escaped = escapes.of(block.places_of(b'\\'));
        found += (escaped & block.places_of(b'n')).count_ones() as usize;
    }
    found
}

/// How many blocks of 16 bytes are examined before the general search is called.
#[cfg(target_arch = "x86_64")]
const NEAR: usize = 8;

/// The position of the next backslash. For a near one, calling the general search costs more than
/// the search itself, so it is found here.
#[inline]
pub(crate) fn next_backslash(bytes: &[u8], from: usize) -> Option<usize> {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only advanced below"))]
    let mut at = from;
    #[cfg(target_arch = "x86_64")]
    for _ in 0..NEAR {
        let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<16>) else { break };
        // SAFETY: every x86-64 processor has SSE2, and the 16 bytes exist.
        let found = unsafe {
            let bytes = _mm_loadu_si128(chunk.as_ptr().cast());
            _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\'.cast_signed())))
        };
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize);
        }
        at += chunk.len();
    }
    memchr::memchr(b'\\', bytes.get(at..)?).map(|found| at + found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Positions around the ends of blocks, and beyond the near range.
        #[test]
        fn next_backslash_equals_a_plain_search(
            before in 0usize..300,
            after in 0usize..40,
            from in 0usize..300,
            byte in prop::sample::select(vec![b'"', b'\\', b'x']),
        ) {
            let mut bytes = vec![b'a'; before];
            bytes.push(byte);
            bytes.extend(vec![b'\\'; after]);
            let plain = bytes.get(from..).and_then(|rest| rest.iter().position(|b| *b == b'\\'));
            prop_assert_eq!(next_backslash(&bytes, from), plain.map(|at| from + at));
        }

        /// Includes runs of backslashes across the ends of blocks.
        #[test]
        fn escaped_bytes_are_those_that_reading_byte_by_byte_escapes(
            text in "([a-z\"n/0-9:é]{0,70}|\\\\{1,70}){0,12}",
        ) {
            let bytes = text.as_bytes();
            let (mut expected, mut at, mut feeds) = (vec![false; bytes.len() + 1], 0, 0);
            while at < bytes.len() {
                if bytes[at] == b'\\' {
                    at += 1;
                    expected[at] = true;
                    feeds += usize::from(bytes.get(at) == Some(&b'n'));
                }
                at += 1;
            }
            let mut escapes = Escapes::default();
            for (number, block) in blocks_of(bytes).enumerate() {
                let escaped = escapes.of(block.places_of(b'\\'));
                let from = number * Block::WIDTH;
                for (place, byte) in bytes[from..].iter().take(Block::WIDTH).enumerate() {
                    prop_assert_eq!(escaped >> place & 1 == 1, expected[from + place]);
                    prop_assert_eq!(block.places_of(*byte) >> place & 1, 1);
                    prop_assert_eq!(block.digits() >> place & 1 == 1, byte.is_ascii_digit());
                }
            }
            prop_assert_eq!(line_feeds(bytes), feeds);
        }
    }
}
