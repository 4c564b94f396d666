//! Random numbers that are the same on every machine and in every release, so that a recorded seed
//! reproduces its order. Not for secrets.
//!
//! xoshiro256++ (Blackman and Vigna), seeded through SplitMix64, as its authors recommend.

/// A stream of random numbers determined by a seed.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        }))
    }

    /// A separate stream for one part of a plan, so that parts are independent.
    pub fn for_part(seed: u64, part: u64) -> Self {
        Self::new(seed ^ part.wrapping_add(1).wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in 0..bound. Lemire's method without the division in the usual case.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(bound);
            let low = wide as u64;
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (wide >> 64) as usize;
            }
        }
    }

    /// Fisher-Yates shuffle.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything_for_ever() {
        let mut random = Random::new(42);
        // Computed once; changing these numbers would change the meaning of recorded seeds.
        let first: Vec<_> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(
            first,
            [15_021_278_609_987_233_951, 5_881_210_131_331_364_753, 18_149_643_915_985_481_100]
        );
    }

    #[test]
    fn every_order_of_three_comes_equally_often() {
        let mut random = Random::new(1);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..6000 {
            let mut items = [0, 1, 2];
            random.shuffle(&mut items);
            *counts.entry(items).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (880..1120).contains(count)), "{counts:?}");
    }

    #[test]
    fn below_one_is_zero_and_units_are_units() {
        let mut random = Random::new(7);
        assert!((0..100).all(|_| random.below(1) == 0));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
