//! Caches which variables look secret: a loop asks for the same names with every run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use retake_store::redact::is_secret_name;

/// By the name of a variable.
type ByName<T> = HashMap<String, T, BuildHasherDefault<NameHasher>>;

/// Fast for short names. Names with equal hashes would only slow down their author's own run.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        for word in words.iter().chain([&last]) {
            self.write_u64(u64::from_le_bytes(*word));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = u128::from(self.0 ^ word ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        self.0 = (mixed >> 64) as u64 ^ mixed as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// An environment with more names than this is generated; stop caching.
const MOST: usize = 10_000;

thread_local! {
    static KNOWN: RefCell<ByName<bool>> = RefCell::default();
}

/// Whether the value of a variable with this name must be kept out of the record.
pub(crate) fn looks_secret(name: &str) -> bool {
    KNOWN.with_borrow_mut(|known| {
        if let Some(secret) = known.get(name) {
            return *secret;
        }
        if known.len() >= MOST {
            known.clear();
        }
        let secret = is_secret_name(name);
        known.insert(name.to_owned(), secret);
        secret
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cached_answer_equals_the_rule_and_the_cache_is_bounded() {
        for name in ["API_TOKEN", "HOME", "DB_PASSWORD", "PATH"] {
            for _ in 0..3 {
                assert_eq!(looks_secret(name), is_secret_name(name), "{name}");
            }
        }
        for number in 0..=MOST {
            assert!(!looks_secret(&format!("X{number}")));
        }
        assert!(KNOWN.with_borrow(HashMap::len) <= MOST);
    }
}
