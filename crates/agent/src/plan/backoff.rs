//! How long to wait before a failed request is retried.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
    /// After this many retries the attempt counts as failed.
    pub tries: u32,
    /// The seed of the jitter, so that a plan is reproducible.
    pub seed: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(60), tries: 10, seed: 0 }
    }
}

impl Backoff {
    /// The wait before retry `number`, counted from 1: doubles, and is randomly shortened by up to
    /// half, so that many loops do not retry at the same moment.
    pub fn delay(&self, number: u32) -> Duration {
        let doubled = 1u32.checked_shl(number.saturating_sub(1)).filter(|n| *n > 0);
        let full = doubled
            .and_then(|factor| self.first.checked_mul(factor))
            .map_or(self.longest, |delay| delay.min(self.longest));
        let share = mix(self.seed.wrapping_add(u64::from(number))) as f64 / u64::MAX as f64;
        full.mul_f64(0.5 + share / 2.0)
    }
}

/// SplitMix64: sufficient for jitter.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_longest_with_jitter() {
        for seed in 0..200 {
            let backoff = Backoff { seed, ..Backoff::default() };
            for (number, full) in [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (99, 60.0)] {
                let delay = backoff.delay(number).as_secs_f64();
                assert!((full / 2.0..=full).contains(&delay), "{number}: {delay}");
            }
        }
        let of = |seed| Backoff { seed, ..Backoff::default() }.delay(5);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
