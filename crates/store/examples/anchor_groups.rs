//! Generates `src/redact/anchor_groups.rs`: divides the anchors of all shapes into groups so that
//! few places of ordinary text look like an anchor.
//!
//!     cargo run --release -p retake-store --example anchor_groups FILE... > groups.rs
//!
//! The files are typical captured text: logs, source code, lists of packages, base64. Starting from
//! random groups, single anchors are moved while that reduces the number of places.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for developers")]
#![allow(clippy::unwrap_used, dead_code, reason = "a tool that uses a part of what it includes")]

use std::collections::BTreeMap;
use std::collections::HashMap;

#[path = "../src/redact/shapes.rs"]
mod shapes;

use shapes::{ANCHOR, SHAPES};

const GROUPS: u64 = 8;
const SYMBOLS: u64 = 32;
const MOVES: usize = 12_000;

/// The possible bytes at each position of an anchor.
type Bytes = [Vec<u8>; ANCHOR];
type Divisions = [Vec<u8>; 2];
type Tables = [[[u8; 256]; ANCHOR]; 2];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn anchors() -> BTreeMap<&'static [u8], Bytes> {
    let mut anchors: BTreeMap<&'static [u8], Bytes> = BTreeMap::new();
    for shape in &SHAPES {
        let Some(anchor) = shape.anchor() else { continue };
        let bytes = anchors.entry(anchor).or_default();
        for (place, bytes) in bytes.iter_mut().enumerate() {
            match anchor.get(place) {
                Some(byte) => *bytes = vec![*byte],
                None => bytes.extend(shape.following()),
            }
        }
    }
    anchors
}

/// How often each sequence of four bytes occurs in the files.
fn windows() -> Vec<([u8; ANCHOR], u64)> {
    let mut counts: HashMap<[u8; ANCHOR], u64> = HashMap::new();
    for file in std::env::args().skip(1) {
        for window in std::fs::read(file).unwrap().windows(ANCHOR) {
            *counts.entry(window.try_into().unwrap()).or_default() += 1;
        }
    }
    counts.into_iter().collect()
}

fn tables(anchors: &[Bytes], divisions: &Divisions, symbols: Option<&[u8; 32]>) -> Tables {
    let mut tables = [[[0; 256]; ANCHOR]; 2];
    for (table, groups) in tables.iter_mut().zip(divisions) {
        for (anchor, group) in anchors.iter().zip(groups) {
            for (table, bytes) in table.iter_mut().zip(anchor) {
                bytes.iter().for_each(|byte| table[usize::from(*byte)] |= 1 << group);
            }
        }
        for table in table.iter_mut() {
            let Some(symbols) = symbols else { continue };
            let symbol = |byte: usize| symbols[byte & 15] ^ symbols[16 + (byte >> 4)];
            let mut by_symbol = [0; SYMBOLS as usize];
            (0..128).for_each(|byte| by_symbol[usize::from(symbol(byte))] |= table[byte]);
            (0..128).for_each(|byte| table[byte] = by_symbol[usize::from(symbol(byte))]);
        }
    }
    tables
}

/// How many places of the text look like an anchor.
fn places(windows: &[([u8; ANCHOR], u64)], tables: &Tables) -> u64 {
    let looks_like_one = |window: &[u8; ANCHOR]| {
        tables.iter().all(|table| {
            let places = table.iter().zip(window);
            places.fold(!0, |groups, (table, byte)| groups & table[usize::from(*byte)]) != 0
        })
    };
    windows.iter().filter(|(window, _)| looks_like_one(window)).map(|(_, count)| count).sum()
}

fn main() {
    let (anchors, windows) = (anchors(), windows());
    let bytes: Vec<Bytes> = anchors.values().cloned().collect();
    let total: u64 = windows.iter().map(|(_, count)| count).sum();
    let per_kilobyte = |places: u64| places as f64 * 1024.0 / total as f64;
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut divisions: Divisions =
        [0, 1].map(|_| bytes.iter().map(|_| random.below(GROUPS) as u8).collect());
    let count = |divisions: &Divisions| places(&windows, &tables(&bytes, divisions, None));
    let mut fewest = count(&divisions);
    for round in 0..MOVES {
        let (division, at) = (random.below(2) as usize, random.below(bytes.len() as u64) as usize);
        let before = divisions[division][at];
        divisions[division][at] = random.below(GROUPS) as u8;
        match count(&divisions) {
            now if now <= fewest => fewest = now,
            _ => divisions[division][at] = before,
        }
        if round % 1000 == 0 {
            eprintln!("groups: {:.2} places in a kilobyte", per_kilobyte(fewest));
        }
    }
    let mut symbols = [0; 32].map(|_: u8| random.below(SYMBOLS) as u8);
    let count = |symbols: &[u8; 32]| places(&windows, &tables(&bytes, &divisions, Some(symbols)));
    let mut fewest_by_symbol = count(&symbols);
    for _ in 0..MOVES / 3 {
        let at = random.below(32) as usize;
        let before = symbols[at];
        symbols[at] = random.below(SYMBOLS) as u8;
        match count(&symbols) {
            now if now <= fewest_by_symbol => fewest_by_symbol = now,
            _ => symbols[at] = before,
        }
    }
    let (exact, by_symbol) = (per_kilobyte(fewest), per_kilobyte(fewest_by_symbol));
    eprintln!("{exact:.2} places in a kilobyte, {by_symbol:.2} by symbols");
    println!(
        "//! Which groups the anchors of shapes are in, and the symbols of bytes: see `shape_filter`.\n//!\n\
         //! Made by `cargo run --release -p retake-store --example anchor_groups FILE...`. An anchor that is\n\
         //! missing here is found all the same, but more places have to be compared.\n\n\
         /// By the anchor, in order.\n\
         pub(crate) const GROUPS: [(&[u8], [u8; 2]); {}] = [",
        anchors.len()
    );
    for (at, anchor) in anchors.keys().enumerate() {
        let groups = [divisions[0][at], divisions[1][at]];
        println!("    (b\"{}\", {groups:?}),", anchor.escape_ascii());
    }
    println!("];\n\n/// The symbol of a byte is that of its low half, xor that of its high half.");
    println!("#[cfg(target_arch = \"x86_64\")]");
    println!("pub(crate) const SYMBOL_OF_LOW: [u8; 16] = {:?};", &symbols[..16]);
    println!("#[cfg(target_arch = \"x86_64\")]");
    println!("pub(crate) const SYMBOL_OF_HIGH: [u8; 16] = {:?};", &symbols[16..]);
}
