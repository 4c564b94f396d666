//! 128-bit digests that can be added and subtracted, so that the digest of a whole tree
//! is updated with each change instead of being recomputed.
//!
//! They distinguish states of one exploration. They resist accidental collisions, not malicious ones.

const KEYS: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db];

/// The digest of some bytes in some role; `role` distinguishes a page from a name.
pub(crate) fn bytes(role: u64, bytes: &[u8]) -> u128 {
    let mut low = KEYS[0] ^ role;
    let mut high = KEYS[1] ^ role.rotate_left(32) ^ bytes.len() as u64;
    let (chunks, rest) = bytes.as_chunks::<16>();
    for chunk in chunks {
        (low, high) = step(low, high, chunk);
    }
    if !rest.is_empty() {
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        (low, high) = step(low, high, &last);
    }
    join(low, high)
}

/// The digest of some numbers in some role.
pub(crate) fn numbers<const N: usize>(role: u64, numbers: [u128; N]) -> u128 {
    let mut low = KEYS[2] ^ role;
    let mut high = KEYS[3] ^ role.rotate_left(32);
    for number in numbers {
        (low, high) = step(low, high, &number.to_le_bytes());
    }
    join(low, high)
}

fn step(low: u64, high: u64, chunk: &[u8; 16]) -> (u64, u64) {
    let (first, second) = chunk.split_at(8);
    let first = first.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
    let second = second.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
    (
        mix(first ^ KEYS[2], second ^ low),
        mix(second.rotate_left(17) ^ KEYS[3], first ^ high).wrapping_add(low),
    )
}

fn mix(one: u64, two: u64) -> u64 {
    let product = u128::from(one) * u128::from(two);
    (product as u64) ^ ((product >> 64) as u64)
}

fn join(low: u64, high: u64) -> u128 {
    let first = mix(low ^ KEYS[1], high ^ KEYS[2]);
    let second = mix(high.rotate_left(29) ^ KEYS[0], low ^ KEYS[3]).wrapping_add(low);
    (u128::from(first) << 64) | u128::from(second)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_changed_bit_length_or_role_changes_the_digest() {
        let mut seen = HashSet::new();
        let mut count = 0;
        for role in 0..3 {
            for length in [0, 1, 15, 16, 17, 64] {
                let mut text = vec![0; length];
                seen.insert(bytes(role, &text));
                count += 1;
                for bit in 0..length * 8 {
                    text[bit / 8] ^= 1 << (bit % 8);
                    seen.insert(bytes(role, &text));
                    count += 1;
                    text[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn sums_of_small_numbers_do_not_meet() {
        let mut seen = HashSet::new();
        for one in 0..150 {
            for two in 0..150 {
                assert!(
                    seen.insert(
                        numbers(1, [one])
                            .wrapping_add(numbers(2, [two]))
                            .wrapping_add(numbers(3, [one, two]))
                    )
                );
            }
        }
    }
}
