//! Finds where a token of a known shape may begin, in one pass over the bytes.
//!
//! Each shape has an anchor: four bytes that are always there, most often the first ones of its fixed
//! beginning, or others of it that are rarer. The anchors are divided into eight groups. For each of the
//! four places a table says which groups have a given byte there, so four lookups and an "and" give the
//! groups that a place in the text may belong to. Two such divisions together leave about one place in
//! a kilobyte of ordinary text, which is compared exactly. A vector register does this for 64 or 32
//! places at once. Passwords in URLs are found by the `@` after them.
//!
//! Rejected: an automaton for all beginnings, which reads one byte after the other; looking only at long
//! runs of letters and digits, which ordinary logs are full of; tables for the halves of bytes, as the
//! Teddy algorithm has them, which leave a hundred places in a kilobyte for this many anchors.

use std::sync::LazyLock;

use super::anchor_groups::GROUPS;
#[cfg(target_arch = "x86_64")]
use super::anchor_groups::{SYMBOL_OF_HIGH, SYMBOL_OF_LOW};
use super::finder::Candidate;
use super::shape_match::{LONGEST_KEY_LINE, USERINFO, ends_userinfo};
use super::shapes::{ANCHOR, FoundBy, SHAPES, Shape};

/// How often the anchors are divided.
const DIVISIONS: usize = 2;
/// What a byte is looked up by where a register holds only 16 entries.
#[cfg(target_arch = "x86_64")]
const SYMBOLS: usize = 32;
const SLOTS: usize = 1024;
/// How many vectors of 32 bytes are looked at before places in them are compared.
#[cfg(target_arch = "x86_64")]
const TOGETHER: usize = 32;
/// The end of a list of shapes.
const NONE: u16 = u16::MAX;

#[derive(Debug)]
pub(crate) struct ShapeFilter {
    /// For each division, each place in an anchor and each byte: the groups that may have it there.
    groups: [[[u8; 256]; ANCHOR]; DIVISIONS],
    /// The same by the symbol of a byte: less exact, because several bytes have the same.
    #[cfg(target_arch = "x86_64")]
    by_symbol: [[[u8; SYMBOLS]; ANCHOR]; DIVISIONS],
    /// The groups of both divisions in one number, the second in its upper half.
    both: [[u16; 256]; ANCHOR],
    /// One bit for each two bytes: whether an anchor begins with them, or they with an `@`.
    pairs: Vec<u64>,
    /// Where the list begins of the shapes whose anchor begins with three bytes of this hash.
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

/// How many places can be looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vectors {
    One,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// With lookups of whole bytes.
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

/// Symbols as a vector looks them up: with the fifth bit again in the highest.
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

/// The groups of an anchor, as bits. One that is not in the table is found all the same.
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

    /// The first place noticed at or after `from` where a shape may begin: all of its fixed beginning
    /// is there, as far as the bytes go.
    pub(crate) fn find(&self, bytes: &[u8], from: usize) -> Option<Candidate> {
        let mut at = from;
        #[cfg(target_arch = "x86_64")]
        {
            // A text that fills no vector is not worth loading the tables of one.
            let is_long = |width: usize| bytes.len() >= from + width + ANCHOR;
            if self.vectors == Vectors::Avx512 && is_long(64) {
                // SAFETY: the processor has what is asked for, as `Vectors::best` found out.
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

    /// Whether each division has a group with these bytes. Beyond the end everything may still come.
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

    /// Of the places with a bit, the first one where a shape may begin.
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

    /// Searches as many bytes as fill vectors and says how far it came, if it found nothing.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn find_in_64s(&self, bytes: &[u8], from: usize) -> Result<Candidate, usize> {
        use std::arch::x86_64::{
            __m512i, _mm512_and_si512, _mm512_cmpeq_epi8_mask, _mm512_loadu_si512,
            _mm512_permutex2var_epi8, _mm512_set1_epi8, _mm512_test_epi8_mask,
        };
        const WIDTH: usize = 64;
        // Written out: what the standard library does for each element of an array is compiled without
        // these instructions, and is a call with all vectors in memory where it is not inlined.
        // Bytes beyond ASCII are looked up as if they were not, and left to the comparison.
        let half = |table: &[u8; 256], from: usize| {
            let half: &[u8; WIDTH] = table[from..].first_chunk().expect("256 entries");
            // SAFETY: the 64 bytes that are read are there.
            unsafe { _mm512_loadu_si512(half.as_ptr().cast()) }
        };
        let table = |table: &[u8; 256]| [half(table, 0), half(table, WIDTH)];
        let [a, b, c, d] = &self.groups[0];
        let first: [[__m512i; 2]; ANCHOR] = [table(a), table(b), table(c), table(d)];
        let [a, b, c, d] = &self.groups[1];
        let second: [[__m512i; 2]; ANCHOR] = [table(a), table(b), table(c), table(d)];
        let load = |at: usize| {
            // SAFETY: asked for only where 64 bytes follow.
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

    /// The same, 32 places at once, by the symbols of bytes.
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
            // SAFETY: the table has the 16 bytes that are read.
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
            // SAFETY: asked for only where 32 bytes follow.
            let chunk = unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast::<__m256i>()) };
            let halves = _mm256_and_si256(_mm256_srli_epi16::<4>(chunk), half);
            let symbols = _mm256_xor_si256(
                _mm256_shuffle_epi8(low, chunk),
                _mm256_shuffle_epi8(high, halves),
            );
            (chunk, symbols)
        };
        let lookup = |[low, high]: [__m256i; 2], place: __m256i| {
            // A lookup gives nothing where the highest bit is set, which is the fifth bit of a symbol
            // again: it says which half of the table the symbol is in.
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
        // One vector in four has a place to compare, which no branch predicts: they are noted, and
        // compared together afterwards.
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

/// Whether the prefix is there and what may follow it, as far as the bytes go.
fn is_there(bytes: &[u8], start: usize, shape: &Shape) -> bool {
    let rest = &bytes[start..];
    match rest.strip_prefix(shape.prefix) {
        Some(rest) => shape.may_be_body(rest),
        None => shape.prefix.starts_with(rest),
    }
}

/// Where `://` is, as it stands there or escaped, whose user and password reach to `at`.
fn user_info(bytes: &[u8], at: usize) -> Option<usize> {
    let from = at.saturating_sub(USERINFO + 5);
    let end = from + bytes[from..at].iter().rposition(|byte| ends_userinfo(*byte))? + 1;
    let before = [b"://".as_slice(), b":\\/\\/"];
    before.iter().find(|text| bytes[..end].ends_with(text)).map(|text| end - text.len())
}

/// Where the line begins that says that a private key follows, if `at` is in it.
fn key_line(bytes: &[u8], at: usize) -> Option<usize> {
    let from = at.saturating_sub(LONGEST_KEY_LINE);
    memchr::memmem::rfind(&bytes[from..at], b"-----BEGIN ").map(|found| from + found)
}

/// What the end may have cut off before its anchor. Each is noticed at a place of its own.
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

    /// Every kind of search that this processor has.
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
    fn an_anchor_says_where_its_shape_begins() {
        // Of two shapes with the same anchor at most one can be at a place, or begins there, too.
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
        fn vectors_find_what_the_tables_say(
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
