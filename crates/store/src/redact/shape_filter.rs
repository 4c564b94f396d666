//! Finds where a token of a known shape may begin, in one pass over the bytes.
//!
//! Searching for the beginnings of all shapes at once was rejected: there are too many for a vector
//! search, which then stumbles over false starts. What they have in common is found instead, and is
//! rare in output:
//!
//! - A token is a long run of letters, digits and a few signs. A vector register tests 32 bytes at
//!   once; four aligned groups of four such bytes in a row are in every run of 19 bytes.
//! - What is known by its surroundings has a byte that is rare in itself, such as the `@` after a
//!   password in a URL.
//!
//! Only blocks that have one of the two are looked at more closely, and there only the places where a
//! shape may begin are compared. Beyond the end everything may still come: a run that reaches the end
//! counts as long.

use std::sync::LazyLock;

use super::finder::Candidate;
use super::shapes::{FoundBy, LONGEST_KEY_LINE, SHAPES, USERINFO, ends_userinfo};

/// Bytes of a block that is skipped or looked at.
const BLOCK: usize = 128;
/// Places that are tested at once.
const WIDTH: usize = 32;
/// How far before a block a run may begin that shows in it.
const OVERLAP: usize = 16;
/// How far before a long run a fixed text may begin that says what the run is.
const BEFORE_RUN: usize = 96;
/// How many parts of a path may stand between that text and the run, and the run itself.
const PATH_PARTS: usize = 4;
const SLOTS: usize = 4096;

/// Kinds of bytes; a byte of a run has any.
const DIGIT: u8 = 1;
/// The columns of the letters in ASCII.
const LETTER: u8 = 2;
const LATE_LETTER: u8 = 4;
const SIGN: u8 = 8;
/// The rare bytes: one bit for each combination of halves that gives no other byte.
const AT_OR_H: u8 = 16;
const QUESTION: u8 = 32;
const AMPERSAND_OR_V: u8 = 64;
const SMALL_Z: u8 = 128;
const RARE: u8 = AT_OR_H | QUESTION | AMPERSAND_OR_V | SMALL_Z;

/// By the low and by the high half of a byte, the kinds it may be of. Bytes beyond ASCII are of none.
const LOW: [u8; 16] = low_halves();
const HIGH: [u8; 16] = [
    0,
    0,
    SIGN | AMPERSAND_OR_V,
    DIGIT | QUESTION,
    LETTER | AT_OR_H,
    LATE_LETTER | AMPERSAND_OR_V,
    LETTER,
    LATE_LETTER | SMALL_Z,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
];

const fn low_halves() -> [u8; 16] {
    let mut table = [0; 16];
    let mut low = 0;
    while low < 16 {
        if low < 10 {
            table[low] |= DIGIT;
        }
        if low > 0 {
            table[low] |= LETTER;
        }
        // `p` to `z`, and `_`.
        if low < 11 || low == 15 {
            table[low] |= LATE_LETTER;
        }
        // `%`, `+`, `-`, `.`
        if matches!(low, 5 | 11 | 13 | 14) {
            table[low] |= SIGN;
        }
        if matches!(low, 0 | 8) {
            table[low] |= AT_OR_H;
        }
        if low == 15 {
            table[low] |= QUESTION;
        }
        if low == 6 {
            table[low] |= AMPERSAND_OR_V;
        }
        if low == 10 {
            table[low] |= SMALL_Z;
        }
        low += 1;
    }
    table
}

const fn kinds(byte: u8) -> u8 {
    LOW[(byte & 15) as usize] & HIGH[(byte >> 4) as usize]
}

fn in_run(byte: u8) -> bool {
    kinds(byte) != 0
}

/// One bit for each of 32 bytes.
#[derive(Clone, Copy)]
struct Masks {
    run: u32,
    word: u32,
    rare: u32,
}

#[derive(Debug)]
pub(crate) struct ShapeFilter {
    /// Whether a shape begins with three bytes of this hash.
    begins: Vec<bool>,
    /// The shapes that are found where a word begins, by the hash of their first three bytes.
    words: Vec<Vec<u8>>,
    /// The fixed texts with a rare byte, and where it is in them.
    rare: Vec<(&'static [u8], usize)>,
    /// The fixed texts that say what a run after them is.
    before_run: Vec<&'static [u8]>,
    vectors: bool,
}

pub(crate) static FILTER: LazyLock<ShapeFilter> = LazyLock::new(ShapeFilter::new);

fn slot(bytes: [u8; 3]) -> usize {
    let [a, b, c] = bytes;
    (u32::from_le_bytes([a, b, c, 0]).wrapping_mul(0x9E37_79B1) >> 20) as usize
}

/// Whether the prefix is there, as far as the bytes go.
fn is_there(bytes: &[u8], start: usize, prefix: &[u8]) -> bool {
    bytes.get(start..).is_some_and(|rest| rest.starts_with(prefix) || prefix.starts_with(rest))
}

impl ShapeFilter {
    fn new() -> Self {
        let mut filter = Self {
            begins: vec![false; SLOTS],
            words: vec![Vec::new(); SLOTS],
            rare: Vec::new(),
            before_run: Vec::new(),
            #[cfg(target_arch = "x86_64")]
            vectors: is_x86_feature_detected!("avx2"),
            #[cfg(not(target_arch = "x86_64"))]
            vectors: false,
        };
        for (index, shape) in SHAPES.iter().enumerate() {
            let index = u8::try_from(index).expect("fewer shapes than a byte can number");
            match shape.found_by {
                FoundBy::Word => {
                    let first = shape.prefix.first_chunk().expect("three bytes at least");
                    filter.begins[slot(*first)] = true;
                    filter.words[slot(*first)].push(index);
                }
                FoundBy::RareByte(offset) => filter.rare.push((shape.prefix, offset)),
                FoundBy::BeforeRun => filter.before_run.push(shape.prefix),
                FoundBy::KeyLine | FoundBy::UserInfo => {}
            }
        }
        filter
    }

    /// The first place noticed at or after `from` where a shape may begin: all of its fixed beginning
    /// is there, as far as the bytes go.
    pub(crate) fn find(&self, bytes: &[u8], from: usize) -> Option<Candidate> {
        let mut at = from;
        while at < bytes.len() {
            let block = self.skip(bytes, at);
            let (low, high) =
                (at.max(block.saturating_sub(OVERLAP)), bytes.len().min(block + BLOCK));
            if let Some(found) = self.look(bytes, (low, high), from) {
                return Some(found);
            }
            at = high;
        }
        at_the_end(bytes, from).or_else(|| {
            let at = bytes.len() + ENDINGS;
            let start = self.before_run(bytes, bytes.len())?;
            (at >= from && !bytes.last().is_some_and(|byte| in_run(*byte)))
                .then_some(Candidate { at, start })
        })
    }

    /// The next block that may have a place worth comparing, or that is not whole.
    fn skip(&self, bytes: &[u8], at: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.vectors {
            // SAFETY: the processor has AVX2, as was asked when the filter was made.
            return unsafe { self.skip_vectors(bytes, at) };
        }
        let _ = bytes;
        at
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn skip_vectors(&self, bytes: &[u8], from: usize) -> usize {
        use std::arch::x86_64::{
            __m256i, _mm256_castsi256_ps, _mm256_cmpeq_epi8, _mm256_cmpeq_epi32,
            _mm256_loadu_si256, _mm256_movemask_ps, _mm256_or_si256, _mm256_set1_epi8,
            _mm256_setzero_si256, _mm256_testz_si256,
        };
        const PARTS: usize = BLOCK / WIDTH;
        let tables = tables();
        let (zero, rare) = (_mm256_setzero_si256(), _mm256_set1_epi8(RARE.cast_signed()));
        // One bit for each four bytes that belong to a run; the upper half is of this block.
        let mut groups = 0u64;
        let mut at = from;
        while at + BLOCK + WIDTH <= bytes.len() {
            let mut parts = [zero; PARTS];
            groups >>= WIDTH;
            let mut any = zero;
            for (part, kinds) in parts.iter_mut().enumerate() {
                // SAFETY: the block is inside, as the loop asks.
                let chunk = unsafe {
                    _mm256_loadu_si256(bytes.as_ptr().add(at + part * WIDTH).cast::<__m256i>())
                };
                *kinds = kinds_vector(chunk, tables[0], tables[1]);
                any = _mm256_or_si256(any, *kinds);
                let whole = _mm256_cmpeq_epi32(_mm256_cmpeq_epi8(*kinds, zero), zero);
                let bits = _mm256_movemask_ps(_mm256_castsi256_ps(whole)).cast_unsigned();
                groups |= u64::from(bits) << (WIDTH + part * 8);
            }
            let pairs = groups & groups >> 1;
            let rows = pairs & pairs >> 2;
            // A row that begins before the block, or a run whose first whole group is the first of the
            // block and which may begin before it, is left to a closer look.
            let before = rows >> (WIDTH - 3) & 15;
            if before != 0 && at > from {
                return at;
            }
            let has_rare = _mm256_testz_si256(any, rare) == 0;
            if (has_rare || rows >> WIDTH != 0)
                && self.has_interest(bytes, at, &parts, has_rare, tables)
            {
                return at;
            }
            at += BLOCK;
        }
        at
    }

    /// Whether a block has a place that is worth comparing.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    fn has_interest(
        &self,
        bytes: &[u8],
        at: usize,
        parts: &[std::arch::x86_64::__m256i; BLOCK / WIDTH],
        has_rare: bool,
        tables: [std::arch::x86_64::__m256i; 2],
    ) -> bool {
        let after =
            bytes[at + BLOCK..].first_chunk().map_or(!0, |after| masks_vectors(after, tables).run);
        let masks = parts.map(|part| masks_of(part));
        let before = at.checked_sub(1).map_or(0, |before| kinds(bytes[before]));
        let mut run_before = u32::from(before != 0);
        let mut word_before = u32::from(before & WORD != 0);
        for (part, here) in masks.iter().enumerate() {
            let next = masks.get(part + 1).map_or(after, |next| next.run);
            let mut long = u64::from(here.run) | u64::from(next) << WIDTH;
            for step in [1, 2, 4, 8] {
                long &= long >> step;
            }
            let runs = here.run & !(here.run << 1 | run_before);
            let words = here.word & !(here.word << 1 | word_before);
            run_before = here.run >> (WIDTH - 1);
            word_before = here.word >> (WIDTH - 1);
            let mut places = (runs | words) & long as u32;
            while places != 0 {
                if self
                    .is_worth_comparing(bytes, at + part * WIDTH + places.trailing_zeros() as usize)
                {
                    return true;
                }
                places &= places - 1;
            }
        }
        has_rare
            && masks.iter().enumerate().any(|(part, here)| {
                let mut places = here.rare;
                while places != 0 {
                    let place = at + part * WIDTH + places.trailing_zeros() as usize;
                    if is_worth_comparing(bytes[place], bytes[place + 1]) {
                        return true;
                    }
                    places &= places - 1;
                }
                false
            })
    }

    /// Whether a shape may begin at the beginning of a word or a run, or end before it.
    #[inline]
    fn is_worth_comparing(&self, bytes: &[u8], at: usize) -> bool {
        let begins = bytes[at..].first_chunk().is_some_and(|first| self.begins[slot(*first)]);
        begins || matches!(bytes[..at], [.., before, b'=' | b'/' | b'~'] if ends_text(before))
    }

    /// Compares all places of a part where a shape may begin or show.
    fn look(&self, bytes: &[u8], part: (usize, usize), from: usize) -> Option<Candidate> {
        #[cfg(target_arch = "x86_64")]
        if self.vectors {
            // SAFETY: as above.
            return unsafe { self.look_vectors(bytes, part, from) };
        }
        self.look_with(bytes, part, from, masks_by_byte)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn look_vectors(&self, bytes: &[u8], part: (usize, usize), from: usize) -> Option<Candidate> {
        let tables = tables();
        self.look_with(bytes, part, from, |chunk| masks_vectors(chunk, tables))
    }

    #[inline(always)]
    fn look_with(
        &self,
        bytes: &[u8],
        (low, high): (usize, usize),
        from: usize,
        masks: impl Fn(&[u8; WIDTH]) -> Masks,
    ) -> Option<Candidate> {
        let masks = |at: usize| match bytes.get(at..).and_then(<[u8]>::first_chunk) {
            Some(chunk) => masks(chunk),
            None => masks(&padded(bytes, at)),
        };
        let before = low.checked_sub(1).map(|at| bytes[at]);
        let mut run_before = u32::from(before.is_some_and(in_run));
        let mut word_before = u32::from(before.is_some_and(|byte| kinds(byte) & WORD != 0));
        let mut next = masks(low);
        for at in (low..high).step_by(WIDTH) {
            let here = next;
            next = masks(at + WIDTH);
            let mut long = u64::from(here.run) | u64::from(next.run) << WIDTH;
            for step in [1, 2, 4, 8] {
                long &= long >> step;
            }
            let begins = |mask: u32, before: u32| mask & !(mask << 1 | before) & long as u32;
            let runs = begins(here.run, run_before);
            let words = begins(here.word, word_before);
            let mut places = here.rare | runs | words;
            if high - at < WIDTH {
                places &= (1 << (high - at)) - 1;
            }
            while places != 0 {
                let bit = places.trailing_zeros();
                places &= places - 1;
                let place = at + bit as usize;
                let is = |mask: u32| mask >> bit & 1 != 0;
                if is(runs)
                    && place > from
                    && let Some(start) = self.before_run(bytes, place)
                {
                    return Some(Candidate { at: place - 1, start });
                }
                if place < from {
                    continue;
                }
                if is(words) && self.begins_word(bytes, place) {
                    return Some(Candidate { at: place, start: place });
                }
                if is(here.rare)
                    && let Some(start) = self.around_rare_byte(bytes, place)
                {
                    return Some(Candidate { at: place, start });
                }
            }
            run_before = here.run >> (WIDTH - 1);
            word_before = here.word >> (WIDTH - 1);
        }
        None
    }

    fn begins_word(&self, bytes: &[u8], at: usize) -> bool {
        let Some(first) = bytes[at..].first_chunk() else {
            return false; // what is shorter is held back as the beginning of one
        };
        let slot = slot(*first);
        self.begins[slot]
            && self.words[slot]
                .iter()
                .any(|&index| is_there(bytes, at, SHAPES[usize::from(index)].prefix))
    }

    /// Where a text begins that ends before a run, or before as many parts of a path as a URL has.
    fn before_run(&self, bytes: &[u8], run: usize) -> Option<usize> {
        let near = &bytes[run.saturating_sub(BEFORE_RUN)..run];
        let mut end = near.len();
        for _ in 0..PATH_PARTS {
            // The byte before the last one tells most of them apart from everything else.
            let [.., before, b'=' | b'/' | b'~'] = near[..end] else { return None };
            if ends_text(before) {
                let text = self.before_run.iter().find(|text| near[..end].ends_with(text));
                if let Some(text) = text {
                    return Some(run - near.len() + end - text.len());
                }
            }
            if near[end - 1] != b'/' {
                return None;
            }
            end = memchr::memrchr(b'/', &near[..end - 1])? + 1;
        }
        None
    }

    fn around_rare_byte(&self, bytes: &[u8], at: usize) -> Option<usize> {
        match bytes[at] {
            b'@' => user_info(bytes, at),
            b'V' if bytes[..at].ends_with(b"PRI") => key_line(bytes, at),
            b'V' => None,
            byte => {
                // What stands after it is compared first: most often that is all.
                let next = bytes.get(at + 1).copied();
                self.rare.iter().find_map(|&(text, offset)| {
                    let differs =
                        text[offset] != byte || next.is_some_and(|n| text[offset + 1] != n);
                    let start = if differs { return None } else { at.checked_sub(offset)? };
                    is_there(bytes, start, text).then_some(start)
                })
            }
        }
    }
}

/// Whether a text before a run may have this as its last but one byte.
fn ends_text(byte: u8) -> bool {
    matches!(byte, b'n' | b'y' | b's' | b'k' | b'6' | b'/')
}

/// Whether a rare byte is what it is looked for with this one after it.
fn is_worth_comparing(rare: u8, next: u8) -> bool {
    match rare {
        b'?' | b'&' => matches!(next, b'a' | b'c' | b'p' | b't'),
        b'z' => next == b'a',
        b'H' => matches!(next, b'O' | b'2'),
        b'V' => next == b'A',
        _ => true,
    }
}

/// What is there of 32 bytes; beyond the end anything may come.
#[cold]
fn padded(bytes: &[u8], at: usize) -> [u8; WIDTH] {
    let mut padded = [b'A'; WIDTH];
    let rest = bytes.get(at..).unwrap_or_default();
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

fn masks_by_byte(chunk: &[u8; WIDTH]) -> Masks {
    let mut masks = Masks { run: 0, word: 0, rare: 0 };
    for (place, &byte) in chunk.iter().enumerate() {
        let kinds = kinds(byte);
        masks.run |= u32::from(kinds != 0) << place;
        masks.word |= u32::from(kinds & WORD != 0) << place;
        masks.rare |= u32::from(kinds & RARE != 0) << place;
    }
    masks
}

const WORD: u8 = DIGIT | LETTER | LATE_LETTER;

/// Where `://` is whose user and password reach to `at`.
fn user_info(bytes: &[u8], at: usize) -> Option<usize> {
    let from = at.saturating_sub(USERINFO + 3);
    let end = from + bytes[from..at].iter().rposition(|byte| ends_userinfo(*byte))?;
    let start = end.checked_sub(2)?;
    (bytes[start..=end] == *b"://").then_some(start)
}

/// Where the line begins that says that a private key follows.
fn key_line(bytes: &[u8], at: usize) -> Option<usize> {
    let from = at.saturating_sub(LONGEST_KEY_LINE);
    memchr::memmem::rfind(&bytes[from..at], b"-----BEGIN ").map(|found| from + found)
}

/// How many of what may still come are looked for at the end by themselves.
const ENDINGS: usize = 2;

/// What the end may have cut off before it shows.
fn at_the_end(bytes: &[u8], from: usize) -> Option<Candidate> {
    let end = bytes.len();
    [user_info, key_line].iter().enumerate().find_map(|(ending, look)| {
        let at = end + ending;
        let start = if at >= from { look(bytes, end)? } else { return None };
        Some(Candidate { at, start })
    })
}

/// The kinds of 32 bytes, as [`kinds`] gives them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn kinds_vector(
    chunk: std::arch::x86_64::__m256i,
    low: std::arch::x86_64::__m256i,
    high: std::arch::x86_64::__m256i,
) -> std::arch::x86_64::__m256i {
    use std::arch::x86_64::{
        _mm256_and_si256, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi16,
    };
    // A lookup gives nothing for bytes beyond ASCII.
    let lows = _mm256_shuffle_epi8(low, chunk);
    let halves = _mm256_and_si256(_mm256_srli_epi16::<4>(chunk), _mm256_set1_epi8(15));
    _mm256_and_si256(lows, _mm256_shuffle_epi8(high, halves))
}

/// A table for each half of a vector.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn tables() -> [std::arch::x86_64::__m256i; 2] {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm256_broadcastsi128_si256};
    [&LOW, &HIGH].map(|table| {
        // SAFETY: a table has the 16 bytes that are read.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast::<__m128i>()) };
        _mm256_broadcastsi128_si256(table)
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn masks_vectors(chunk: &[u8; WIDTH], [low, high]: [std::arch::x86_64::__m256i; 2]) -> Masks {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256};
    // SAFETY: the chunk has the 32 bytes that are read.
    let chunk = unsafe { _mm256_loadu_si256(chunk.as_ptr().cast::<__m256i>()) };
    masks_of(kinds_vector(chunk, low, high))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn masks_of(kinds: std::arch::x86_64::__m256i) -> Masks {
    use std::arch::x86_64::{
        _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_movemask_epi8, _mm256_set1_epi8,
        _mm256_setzero_si256,
    };
    let any = |of: u8| {
        let these = _mm256_and_si256(kinds, _mm256_set1_epi8(of.cast_signed()));
        let none = _mm256_cmpeq_epi8(these, _mm256_setzero_si256());
        !_mm256_movemask_epi8(none).cast_unsigned()
    };
    Masks { run: any(!0), word: any(WORD), rare: any(RARE) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A run of this many bytes is found for sure.
    const LONG_RUN: usize = 19;

    #[test]
    fn the_tables_name_exactly_these_bytes() {
        let named = |of: u8| -> Vec<u8> { (0..=255).filter(|&b| kinds(b) & of != 0).collect() };
        assert_eq!(named(RARE), b"&?@HVz");
        let extra = |byte: &u8| !byte.is_ascii_alphanumeric() && *byte != b'_';
        let words: Vec<u8> = named(WORD).into_iter().filter(extra).collect();
        assert_eq!(words, b"\x7f");
        let signs: Vec<u8> = named(!0).into_iter().filter(extra).collect();
        assert_eq!(signs, b"%&+-.?@\x7f");
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

    proptest! {
        #[test]
        fn vectors_find_what_the_tables_say(
            noise in proptest::collection::vec(
                ("[a-zA-Z0-9_:/.@= -]{0,60}", any::<prop::sample::Index>(), "[a-zA-Z0-9]{0,40}"),
                0..12,
            ),
        ) {
            let mut text = String::new();
            for (filler, pick, body) in &noise {
                text.push_str(filler);
                text.push_str(&String::from_utf8_lossy(SHAPES[pick.index(SHAPES.len())].prefix));
                text.push_str(body);
            }
            let slow = ShapeFilter { vectors: false, ..ShapeFilter::new() };
            let (fast, slow) = (all(&FILTER, text.as_bytes()), all(&slow, text.as_bytes()));
            // Without vectors every block is looked at, and shorter runs show: nothing more is missed.
            for candidate in &fast {
                prop_assert!(slow.contains(candidate), "{candidate:?}");
            }
            for candidate in slow.iter().filter(|candidate| !fast.contains(candidate)) {
                let run = text.as_bytes()[candidate.at..].iter().skip(1).take_while(|b| in_run(**b));
                prop_assert!(run.count() < LONG_RUN, "{candidate:?} is missed");
            }
        }
    }
}
