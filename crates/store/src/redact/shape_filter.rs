//! Finds where a token of a known shape may begin, in one pass over the bytes.
//!
//! Each shape has an anchor: four bytes that always occur in it, usually the first ones of its
//! prefix, or rarer ones. The anchors are divided into eight groups. For each of the four positions
//! a table says which groups have a given byte there, so four lookups and an "and" yield the groups
//! that may match at a place in the text. Two such divisions together leave about one place per
//! kilobyte of ordinary text, which is compared exactly. A vector register does this for 64 or 32
//! places at once. Passwords in URLs are found by the `@` after them.
//! Rejected: an automaton for all prefixes, which reads byte by byte; examining only long runs of
//! letters and digits, which are frequent in ordinary logs; tables for half-bytes, as in the Teddy
//! algorithm, which leave a hundred places per kilobyte with this many anchors.

use std::sync::LazyLock;

use super::anchor_groups::GROUPS;
#[cfg(target_arch = "x86_64")]
use super::anchor_groups::{SYMBOL_OF_HIGH, SYMBOL_OF_LOW};
use super::finder::Candidate;
use super::shape_match::{LONGEST_KEY_LINE, USERINFO, ends_userinfo};
use super::shapes::{ANCHOR, FoundBy, SHAPES, Shape};

/// How many divisions into groups there are.
const DIVISIONS: usize = 2;
/// Number of symbols, which replace bytes where a register holds only 16 entries.
#[cfg(target_arch = "x86_64")]
const SYMBOLS: usize = 32;
const SLOTS: usize = 1024;
/// How many vectors of 32 bytes are examined before their candidates are compared.
#[cfg(target_arch = "x86_64")]
const TOGETHER: usize = 32;
/// The end of a list of shapes.
const NONE: u16 = u16::MAX;

#[derive(Debug)]
pub(crate) struct ShapeFilter {
    /// For each division, position in an anchor and byte: the groups that may have it there.
    groups: [[[u8; 256]; ANCHOR]; DIVISIONS],
    /// The same by the symbol of a byte: less exact, because several bytes share a symbol.
    #[cfg(target_arch = "x86_64")]
    by_symbol: [[[u8; SYMBOLS]; ANCHOR]; DIVISIONS],
    /// The groups of both divisions in one number, the second in its upper half.
    both: [[u16; 256]; ANCHOR],
    /// One bit per pair of bytes: whether an anchor begins with them, or they with an `@`.
    pairs: Vec<u64>,
    /// By hash of three bytes: the list of shapes whose anchor begins with them.
    slots: [u16; SLOTS],
    listed: Vec<Listed>,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "there is one kind"))]
    vectors: Vectors,
}

/// A shape in the list of a slot.
#[derive(Clone, Copy, Debug)]
struct Listed {
    shape: u8,
    next: u16,
}

/// How many places can be examined together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vectors {
    One,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Looks up whole bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

pub(crate) static FILTER: LazyLock<ShapeFilter> =
    LazyLock::new(|| ShapeFilter::new(Vectors::best()));

impl Vectors {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vbmi") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::One
    }
}

/// Symbols for vector lookups: the fifth bit is repeated in the highest.
#[cfg(target_arch = "x86_64")]
const LOOKED_UP_LOW: [u8; 16] = with_top_bit(SYMBOL_OF_LOW);
#[cfg(target_arch = "x86_64")]
const LOOKED_UP_HIGH: [u8; 16] = with_top_bit(SYMBOL_OF_HIGH);

#[cfg(target_arch = "x86_64")]
const fn with_top_bit(mut symbols: [u8; 16]) -> [u8; 16] {
    let mut at = 0;
    while at < symbols.len() {
        symbols[at] |= (symbols[at] & 16) << 3;
        at += 1;
    }
    symbols
}

fn slot([a, b, c]: [u8; 3]) -> usize {
    (u32::from_le_bytes([a, b, c, 0]).wrapping_mul(0x9E37_79B1) >> 22) as usize
}

/// The groups of an anchor, as bits. An anchor missing from the table is in all groups.
fn groups_of(anchor: &[u8]) -> [u8; DIVISIONS] {
    match GROUPS.binary_search_by_key(&anchor, |(known, _)| known) {
        Ok(at) => GROUPS[at].1.map(|group| 1 << group),
        Err(_) => [1; DIVISIONS],
    }
}

#[cfg(target_arch = "x86_64")]
fn symbol(byte: u8) -> usize {
    let low = SYMBOL_OF_LOW[usize::from(byte & 15)];
    usize::from(low ^ SYMBOL_OF_HIGH[usize::from(byte >> 4)])
}

impl ShapeFilter {
    fn new(vectors: Vectors) -> Self {
        let mut filter = Self {
            groups: [[[0; 256]; ANCHOR]; DIVISIONS],
            #[cfg(target_arch = "x86_64")]
            by_symbol: [[[0; SYMBOLS]; ANCHOR]; DIVISIONS],
            both: [[0; 256]; ANCHOR],
            pairs: vec![0; 1 << 10],
            slots: [NONE; SLOTS],
            listed: Vec::with_capacity(SHAPES.len() + 64),
            vectors,
        };
        for (index, shape) in SHAPES.iter().enumerate() {
            let Some(anchor) = shape.anchor() else { continue };
            let groups = groups_of(anchor);
            for place in 0..ANCHOR {
                match anchor.get(place) {
                    Some(byte) => filter.add(place, *byte, groups),
                    None => shape.following().for_each(|byte| filter.add(place, byte, groups)),
                }
            }
            let index = u8::try_from(index).expect("fewer shapes than a byte can number");
            match *anchor {
                [a, b, c, ..] => filter.list([a, b, c], index),
                [a, b] => shape.following().for_each(|c| filter.list([a, b, c], index)),
                _ => unreachable!("an anchor has two bytes at least"),
            }
            filter.add_pair(anchor[0], anchor[1]);
        }
        (0..=255).for_each(|byte| filter.add_pair(b'@', byte));
        filter
    }

    fn add(&mut self, place: usize, byte: u8, groups: [u8; DIVISIONS]) {
        self.both[place][usize::from(byte)] |= u16::from_le_bytes(groups);
        for (division, group) in groups.into_iter().enumerate() {
            self.groups[division][place][usize::from(byte)] |= group;
            #[cfg(target_arch = "x86_64")]
            {
                self.by_symbol[division][place][symbol(byte)] |= group;
            }
        }
    }

    fn add_pair(&mut self, first: u8, second: u8) {
        let pair = usize::from(u16::from_le_bytes([first, second]));
        self.pairs[pair / 64] |= 1 << (pair % 64);
    }

    fn list(&mut self, first: [u8; 3], shape: u8) {
        let next = u16::try_from(self.listed.len()).expect("few shapes");
        let next = std::mem::replace(&mut self.slots[slot(first)], next);
        self.listed.push(Listed { shape, next });
    }

    /// The first place noticed at or after `from` where a shape may begin: its whole prefix
    /// matches, as far as the bytes go.
    pub(crate) fn find(&self, bytes: &[u8], from: usize) -> Option<Candidate> {
        let mut at = from;
        #[cfg(target_arch = "x86_64")]
        {
            // For a text shorter than a vector, loading the tables does not pay.
            let is_long = |width: usize| bytes.len() >= from + width + ANCHOR;
            if self.vectors == Vectors::Avx512 && is_long(64) {
                // SAFETY: `Vectors::best` found that the processor has these instructions.
                match unsafe { self.find_in_64s(bytes, at) } {
                    Ok(candidate) => return Some(candidate),
                    Err(searched) => at = searched,
                }
            }
            if self.vectors != Vectors::One && is_long(2 * 32) {
                // SAFETY: as above.
                match unsafe { self.find_in_32s(bytes, at) } {
                    Ok(candidate) => return Some(candidate),
                    Err(searched) => at = searched,
                }
            }
        }
        while at < bytes.len() {
            let pair = match bytes[at..] {
                [first, second, ..] => usize::from(u16::from_le_bytes([first, second])),
                [only] => usize::from(only),
                [] => break,
            };
            if self.pairs[pair / 64] >> (pair % 64) & 1 != 0
                && let Some(found) = self.exactly(bytes, at)
            {
                return Some(found);
            }
            at += 1;
        }
        at_the_end(bytes, from)
    }

    /// Whether each division has a group with these bytes. Missing bytes match everything.
    #[inline]
    fn may_be_anchor(&self, bytes: &[u8]) -> bool {
        let groups = match bytes.first_chunk() {
            Some(&[a, b, c, d]) => {
                self.both[0][usize::from(a)]
                    & self.both[1][usize::from(b)]
                    & self.both[2][usize::from(c)]
                    & self.both[3][usize::from(d)]
            }
            None => {
                let places = self.both.iter().zip(bytes);
                places.fold(!0, |groups, (place, byte)| groups & place[usize::from(*byte)])
            }
        };
        groups.to_le_bytes().iter().all(|division| *division != 0)
    }

    /// Compares with the shapes whose anchor is at `at`.
    #[inline]
    fn exactly(&self, bytes: &[u8], at: usize) -> Option<Candidate> {
        if bytes[at] == b'@' {
            return Some(Candidate { at, start: user_info(bytes, at)? });
        }
        if !self.may_be_anchor(&bytes[at..]) {
            return None;
        }
        let mut next = self.slots[slot(*bytes[at..].first_chunk()?)];
        while next != NONE {
            let listed = self.listed[usize::from(next)];
            let shape = &SHAPES[usize::from(listed.shape)];
            let start = match shape.found_by {
                FoundBy::Prefix(offset) => {
                    at.checked_sub(offset).filter(|&start| is_there(bytes, start, shape))
                }
                FoundBy::KeyLine => key_line(bytes, at),
                FoundBy::UserInfo => None,
            };
            if let Some(start) = start {
                return Some(Candidate { at, start });
            }
            next = listed.next;
        }
        None
    }

    /// Of the places with a set bit, the first one where a shape may begin.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn exactly_at(&self, bytes: &[u8], at: usize, mut places: u64) -> Option<Candidate> {
        while places != 0 {
            let found = self.exactly(bytes, at + places.trailing_zeros() as usize);
            if found.is_some() {
                return found;
            }
            places &= places - 1;
        }
        None
    }

    /// Searches whole vectors; without a candidate, returns where it stopped.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn find_in_64s(&self, bytes: &[u8], from: usize) -> Result<Candidate, usize> {
        use std::arch::x86_64::{
            __m512i, _mm512_and_si512, _mm512_cmpeq_epi8_mask, _mm512_loadu_si512,
            _mm512_permutex2var_epi8, _mm512_set1_epi8, _mm512_test_epi8_mask,
        };
        const WIDTH: usize = 64;
        // Written out: the standard library's per-element functions are compiled without these
        // instructions, and cost a call with all vectors in memory if not inlined. Bytes beyond
        // ASCII are looked up as if they were ASCII, and the comparison rejects them.
        let half = |table: &[u8; 256], from: usize| {
            let half: &[u8; WIDTH] = table[from..].first_chunk().expect("256 entries");
            // SAFETY: the 64 bytes exist.
            unsafe { _mm512_loadu_si512(half.as_ptr().cast()) }
        };
        let table = |table: &[u8; 256]| [half(table, 0), half(table, WIDTH)];
        let [a, b, c, d] = &self.groups[0];
        let first: [[__m512i; 2]; ANCHOR] = [table(a), table(b), table(c), table(d)];
        let [a, b, c, d] = &self.groups[1];
        let second: [[__m512i; 2]; ANCHOR] = [table(a), table(b), table(c), table(d)];
        let load = |at: usize| {
            // SAFETY: called only if 64 bytes follow.
            unsafe { _mm512_loadu_si512(bytes.as_ptr().add(at).cast()) }
        };
        let lookup = |[low, high]: [__m512i; 2], chunk| _mm512_permutex2var_epi8(low, chunk, high);
        let groups = |tables: &[[__m512i; 2]; ANCHOR], chunks: &[__m512i; ANCHOR]| {
            let begin =
                _mm512_and_si512(lookup(tables[0], chunks[0]), lookup(tables[1], chunks[1]));
            let end = _mm512_and_si512(lookup(tables[2], chunks[2]), lookup(tables[3], chunks[3]));
            _mm512_test_epi8_mask(begin, end)
        };
        let at_sign = _mm512_set1_epi8(b'@'.cast_signed());
        let mut at = from;
        while at + WIDTH + ANCHOR <= bytes.len() {
            let chunks = [load(at), load(at + 1), load(at + 2), load(at + 3)];
            let places = groups(&first, &chunks) & groups(&second, &chunks)
                | _mm512_cmpeq_epi8_mask(chunks[0], at_sign);
            if places != 0
                && let Some(found) = self.exactly_at(bytes, at, places)
            {
                return Ok(found);
            }
            at += WIDTH;
        }
        Err(at)
    }

    /// The same for 32 places at once, by the symbols of bytes.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn find_in_32s(&self, bytes: &[u8], from: usize) -> Result<Candidate, usize> {
        use std::arch::x86_64::{
            __m128i, __m256i, _mm_loadu_si128, _mm256_alignr_epi8, _mm256_and_si256,
            _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8, _mm256_loadu_si256,
            _mm256_movemask_epi8, _mm256_or_si256, _mm256_permute2x128_si256, _mm256_set1_epi8,
            _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_xor_si256,
        };
        const WIDTH: usize = 32;
        let table = |table: &[u8]| {
            let table: &[u8; 16] = table.first_chunk().expect("16 entries");
            // SAFETY: the table has 16 bytes.
            _mm256_broadcastsi128_si256(unsafe {
                _mm_loadu_si128(table.as_ptr().cast::<__m128i>())
            })
        };
        // Written out, as above.
        let halves = |symbols: &[u8; SYMBOLS]| [table(symbols), table(&symbols[16..])];
        let [a, b, c, d] = &self.by_symbol[0];
        let first: [[__m256i; 2]; ANCHOR] = [halves(a), halves(b), halves(c), halves(d)];
        let [a, b, c, d] = &self.by_symbol[1];
        let second: [[__m256i; 2]; ANCHOR] = [halves(a), halves(b), halves(c), halves(d)];
        let (low, high) = (table(&LOOKED_UP_LOW), table(&LOOKED_UP_HIGH));
        let top = _mm256_set1_epi8(-128);
        let (half, at_sign) = (_mm256_set1_epi8(15), _mm256_set1_epi8(b'@'.cast_signed()));
        let none = _mm256_setzero_si256();
        let load = |at: usize| {
            // SAFETY: called only if 32 bytes follow.
            let chunk = unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast::<__m256i>()) };
            let halves = _mm256_and_si256(_mm256_srli_epi16::<4>(chunk), half);
            let symbols = _mm256_xor_si256(
                _mm256_shuffle_epi8(low, chunk),
                _mm256_shuffle_epi8(high, halves),
            );
            (chunk, symbols)
        };
        let lookup = |[low, high]: [__m256i; 2], place: __m256i| {
            // A lookup yields 0 where the highest bit is set. That bit repeats the fifth bit of a
            // symbol, which selects the half of the table.
            let other = _mm256_xor_si256(place, top);
            _mm256_or_si256(_mm256_shuffle_epi8(low, place), _mm256_shuffle_epi8(high, other))
        };
        let groups = |tables: &[[__m256i; 2]; ANCHOR], places: &[__m256i; ANCHOR]| {
            let begin =
                _mm256_and_si256(lookup(tables[0], places[0]), lookup(tables[1], places[1]));
            let end = _mm256_and_si256(lookup(tables[2], places[2]), lookup(tables[3], places[3]));
            _mm256_and_si256(begin, end)
        };
        let mut at = from;
        if at + WIDTH > bytes.len() {
            return Err(at);
        }
        let (mut chunk, mut symbols) = load(at);
        // One vector in four has a candidate, which branch prediction cannot foresee: candidates
        // are collected, and compared together afterwards.
        let mut noted = [(0, 0); TOGETHER];
        loop {
            let vectors = ((bytes.len() - at) / WIDTH).saturating_sub(1).min(TOGETHER);
            if vectors == 0 {
                return Err(at);
            }
            let end = at + vectors * WIDTH;
            let mut count = 0;
            while at < end {
                let (next_chunk, next_symbols) = load(at + WIDTH);
                let middle = _mm256_permute2x128_si256::<0x21>(symbols, next_symbols);
                let places: [__m256i; ANCHOR] = [
                    symbols,
                    _mm256_alignr_epi8::<1>(middle, symbols),
                    _mm256_alignr_epi8::<2>(middle, symbols),
                    _mm256_alignr_epi8::<3>(middle, symbols),
                ];
                let missing = _mm256_or_si256(
                    _mm256_cmpeq_epi8(groups(&first, &places), none),
                    _mm256_cmpeq_epi8(groups(&second, &places), none),
                );
                let found = !_mm256_movemask_epi8(missing).cast_unsigned()
                    | _mm256_movemask_epi8(_mm256_cmpeq_epi8(chunk, at_sign)).cast_unsigned();
                noted[count % TOGETHER] = (at, found);
                count += usize::from(found != 0);
                (chunk, symbols) = (next_chunk, next_symbols);
                at += WIDTH;
            }
            for &(place, found) in &noted[..count] {
                if let Some(found) = self.exactly_at(bytes, place, u64::from(found)) {
                    return Ok(found);
                }
            }
        }
    }
}

/// Whether the prefix matches and is followed by an allowed byte, as far as the bytes go.
fn is_there(bytes: &[u8], start: usize, shape: &Shape) -> bool {
    let rest = &bytes[start..];
    match rest.strip_prefix(shape.prefix) {
        Some(rest) => shape.may_be_body(rest),
        None => shape.prefix.starts_with(rest),
    }
}

/// The position of `://`, plain or escaped, whose user and password end at `at`.
fn user_info(bytes: &[u8], at: usize) -> Option<usize> {
    let from = at.saturating_sub(USERINFO + 5);
    let end = from + bytes[from..at].iter().rposition(|byte| ends_userinfo(*byte))? + 1;
    let before = [b"://".as_slice(), b":\\/\\/"];
    before.iter().find(|text| bytes[..end].ends_with(text)).map(|text| end - text.len())
}

/// The start of the line that announces a private key, if `at` is in it.
fn key_line(bytes: &[u8], at: usize) -> Option<usize> {
    let from = at.saturating_sub(LONGEST_KEY_LINE);
    memchr::memmem::rfind(&bytes[from..at], b"-----BEGIN ").map(|found| from + found)
}

/// A prefix that the end cuts off before its anchor. Each has its own place of notice.
fn at_the_end(bytes: &[u8], from: usize) -> Option<Candidate> {
    let end = bytes.len();
    [user_info, key_line].iter().enumerate().find_map(|(ending, look)| {
        let at = end + ending;
        let start = if at >= from { look(bytes, end)? } else { return None };
        Some(Candidate { at, start })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::redact::shapes::Kind;

    /// Every kind of search that this processor supports.
    fn filters() -> Vec<ShapeFilter> {
        let mut kinds = vec![Vectors::One];
        #[cfg(target_arch = "x86_64")]
        {
            let best = Vectors::best();
            kinds.extend((best != Vectors::One).then_some(Vectors::Avx2));
            kinds.extend((best == Vectors::Avx512).then_some(best));
        }
        kinds.into_iter().map(ShapeFilter::new).collect()
    }

    /// Candidates in order, each noticed after the one before.
    fn all(filter: &ShapeFilter, bytes: &[u8]) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        while let Some(next) = filter.find(bytes, found.last().map_or(0, |last| last.at + 1)) {
            assert!(found.last().is_none_or(|last| last.at < next.at), "{next:?}");
            found.push(next);
        }
        found
    }

    #[test]
    fn an_anchor_determines_where_its_shape_begins() {
        // Of two shapes with the same anchor, at most one can match at a place, or both begin
        // there.
        let start = |shape: &Shape| match shape.found_by {
            FoundBy::Prefix(offset) => Some(offset),
            FoundBy::KeyLine | FoundBy::UserInfo => None,
        };
        for (at, one) in SHAPES.iter().enumerate() {
            for other in &SHAPES[..at] {
                let (Some(before), Some(other_before)) = (start(one), start(other)) else {
                    continue;
                };
                let (long, short) = match before >= other_before {
                    true => (&one.prefix[before - other_before..], other.prefix),
                    false => (&other.prefix[other_before - before..], one.prefix),
                };
                let both = long.iter().zip(short).all(|(one, other)| one == other);
                assert!(!both || before == other_before, "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn every_anchor_is_found_at_every_place() {
        for filter in filters() {
            for shape in &SHAPES {
                for before in 0..200 {
                    let mut text = vec![b' '; before];
                    text.extend(super::super::tests::sample(shape));
                    text.extend([b' '; 100]);
                    let expected = match shape.kind {
                        Kind::AfterDigit(..) => before + 1,
                        _ => before,
                    };
                    let found = filter.find(&text, 0);
                    assert_eq!(found.map(|found| found.start), Some(expected), "{shape:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_vector_search_finds_the_same_as_the_tables(
            noise in proptest::collection::vec(
                ("[a-zA-Z0-9_:/.@= \u{e9}-]{0,60}", any::<prop::sample::Index>(), any::<bool>()),
                0..12,
            ),
        ) {
            let mut text = Vec::new();
            for (filler, pick, whole) in &noise {
                text.extend(filler.as_bytes());
                let prefix = SHAPES[pick.index(SHAPES.len())].prefix;
                text.extend(&prefix[..prefix.len() - usize::from(!*whole)]);
            }
            let filters = filters();
            let expected = all(&filters[0], &text);
            for filter in &filters[1..] {
                prop_assert_eq!(&expected, &all(filter, &text));
            }
        }
    }
}
