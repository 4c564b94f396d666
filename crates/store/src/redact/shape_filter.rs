//! Finds where a token of a known shape may begin, in one pass over the bytes.
//!
//! Each shape is found by four bytes of its fixed beginning, its anchor. As in the Teddy algorithm a
//! vector register looks up both halves of each byte and so tests 32 places at once for all anchors;
//! the few places that are left are compared exactly. Where the processor has no AVX2 the same tables
//! are used one place at a time.

use std::sync::LazyLock;

use super::finder::Candidate;
use super::shapes::SHAPES;

/// Bytes of an anchor.
const ANCHOR: usize = 4;
/// Anchors are put into as many groups as a byte has bits.
const GROUPS: usize = 8;
const SLOTS: usize = 1024;
/// Places that are tested at once.
const WIDTH: usize = 32;

#[derive(Debug)]
pub(crate) struct ShapeFilter {
    /// For each byte of an anchor: the groups that have a byte with this low, and this high half. Twice,
    /// since a lookup stays within each half of a vector.
    low: [[u8; WIDTH]; ANCHOR],
    high: [[u8; WIDTH]; ANCHOR],
    /// The groups whose last byte may be anything.
    open: u8,
    /// The shapes with an anchor of this hash; most slots are empty.
    slots: Vec<Vec<u8>>,
    /// The shapes with three bytes and anything.
    open_shapes: Vec<u8>,
    vectors: bool,
}

pub(crate) static FILTER: LazyLock<ShapeFilter> = LazyLock::new(ShapeFilter::new);

fn slot(anchor: [u8; ANCHOR]) -> usize {
    (u32::from_le_bytes(anchor).wrapping_mul(0x9E37_79B1) >> 22) as usize
}

impl ShapeFilter {
    fn new() -> Self {
        let mut filter = Self {
            low: [[0; WIDTH]; ANCHOR],
            high: [[0; WIDTH]; ANCHOR],
            open: 0,
            slots: vec![Vec::new(); SLOTS],
            open_shapes: Vec::new(),
            #[cfg(target_arch = "x86_64")]
            vectors: is_x86_feature_detected!("avx2"),
            #[cfg(not(target_arch = "x86_64"))]
            vectors: false,
        };
        for (index, shape) in SHAPES.iter().enumerate() {
            let anchor = &shape.prefix[shape.offset..];
            let group = 1 << (shape.group % GROUPS);
            for place in 0..ANCHOR {
                match anchor.get(place) {
                    Some(byte) => {
                        for half in [0, WIDTH / 2] {
                            filter.low[place][half + usize::from(byte & 15)] |= group;
                            filter.high[place][half + usize::from(byte >> 4)] |= group;
                        }
                    }
                    None => {
                        filter.low[place].iter_mut().for_each(|groups| *groups |= group);
                        filter.high[place].iter_mut().for_each(|groups| *groups |= group);
                    }
                }
            }
            let index = u8::try_from(index).expect("fewer shapes than a byte can number");
            match anchor.first_chunk() {
                Some(anchor) => filter.slots[slot(*anchor)].push(index),
                None => {
                    filter.open |= group;
                    filter.open_shapes.push(index);
                }
            }
        }
        filter
    }

    /// The first place at or after `from` where the anchor of a shape is, and all of its fixed
    /// beginning as far as the bytes go.
    pub(crate) fn find(&self, bytes: &[u8], from: usize) -> Option<Candidate> {
        let mut at = from;
        #[cfg(target_arch = "x86_64")]
        if self.vectors {
            // SAFETY: the processor has AVX2, as was asked when the filter was made.
            match unsafe { self.find_vectors(bytes, from) } {
                Ok(candidate) => return Some(candidate),
                Err(searched) => at = searched,
            }
        }
        while let Some(four) = bytes.get(at..).and_then(<[u8]>::first_chunk::<ANCHOR>) {
            let groups = self.groups(four);
            if groups != 0
                && let Some(found) = self.exactly(bytes, at, groups)
            {
                return Some(found);
            }
            at += 1;
        }
        None
    }

    fn groups(&self, four: &[u8; ANCHOR]) -> u8 {
        let mut groups = !0;
        for (place, byte) in four.iter().enumerate() {
            groups &= self.low[place][usize::from(byte & 15)];
            groups &= self.high[place][usize::from(byte >> 4)];
        }
        groups
    }

    /// Compares all of the shapes that the place may belong to.
    #[inline]
    fn exactly(&self, bytes: &[u8], at: usize, groups: u8) -> Option<Candidate> {
        let four = bytes[at..].first_chunk::<ANCHOR>()?;
        let closed = self.slots[slot(*four)].iter();
        let open = if groups & self.open == 0 { &[][..] } else { &self.open_shapes[..] };
        closed
            .chain(open)
            .filter_map(|&index| {
                let shape = &SHAPES[usize::from(index)];
                let start = at.checked_sub(shape.offset)?;
                let rest = &bytes[start..];
                let there = rest.starts_with(shape.prefix) || shape.prefix.starts_with(rest);
                there.then_some(Candidate { at, start })
            })
            .min_by_key(|candidate| candidate.start)
    }

    /// The same for as many bytes as fill vectors; otherwise says how far it came.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn find_vectors(&self, bytes: &[u8], from: usize) -> Result<Candidate, usize> {
        use std::arch::x86_64::{
            __m256i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8,
            _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16,
            _mm256_testz_si256,
        };
        let (mut low, mut high) =
            ([_mm256_setzero_si256(); ANCHOR], [_mm256_setzero_si256(); ANCHOR]);
        for place in 0..ANCHOR {
            // SAFETY: each table has the 32 bytes that are read.
            unsafe {
                low[place] = _mm256_loadu_si256(self.low[place].as_ptr().cast::<__m256i>());
                high[place] = _mm256_loadu_si256(self.high[place].as_ptr().cast::<__m256i>());
            }
        }
        let half = _mm256_set1_epi8(15);
        let mut at = from;
        while at + WIDTH + ANCHOR <= bytes.len() {
            let mut groups = _mm256_set1_epi8(-1);
            for place in 0..ANCHOR {
                // SAFETY: `at + place + 32` is at most `at + 32 + 4`, which is inside.
                let chunk =
                    unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at + place).cast::<__m256i>()) };
                let lows = _mm256_shuffle_epi8(low[place], _mm256_and_si256(chunk, half));
                let shifted = _mm256_and_si256(_mm256_srli_epi16::<4>(chunk), half);
                let highs = _mm256_shuffle_epi8(high[place], shifted);
                groups = _mm256_and_si256(groups, _mm256_and_si256(lows, highs));
            }
            if _mm256_testz_si256(groups, groups) == 0 {
                let none = _mm256_cmpeq_epi8(groups, _mm256_setzero_si256());
                let mut places = !_mm256_movemask_epi8(none) as u32;
                while places != 0 {
                    let place = at + places.trailing_zeros() as usize;
                    // The exact groups are cheap to find again for the few places there are.
                    let here = bytes[place..].first_chunk().map_or(0, |four| self.groups(four));
                    if let Some(found) = self.exactly(bytes, place, here) {
                        return Ok(found);
                    }
                    places &= places - 1;
                }
            }
            at += WIDTH;
        }
        Err(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn vectors_find_what_the_tables_say(
            noise in proptest::collection::vec(("[a-zA-Z_:/.-]{0,40}", any::<prop::sample::Index>()), 0..12),
        ) {
            let mut text = String::new();
            for (filler, pick) in &noise {
                text.push_str(filler);
                text.push_str(&String::from_utf8_lossy(SHAPES[pick.index(SHAPES.len())].prefix));
            }
            let slow = ShapeFilter { vectors: false, ..ShapeFilter::new() };
            let mut at = 0;
            loop {
                let found = FILTER.find(text.as_bytes(), at);
                prop_assert_eq!(found, slow.find(text.as_bytes(), at));
                match found {
                    Some(candidate) => at = candidate.at + 1,
                    None => break,
                }
            }
        }
    }
}
