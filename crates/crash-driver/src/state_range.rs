//! Ranges of states, which other machines check.
//!
//! The states of a recording have the same order everywhere, so a number identifies a state
//! and only numbers are sent.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// States by number: the first is 1, and both ends are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateRange {
    pub from: u64,
    pub to: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStateRange {
    #[error("is not FROM-TO")]
    NoRange,
    #[error("is not a number: {0}")]
    NoNumber(&'static str),
    #[error("is empty, or does not begin with 1 or more")]
    Empty,
    #[error("is not K/N with K from 1 to N, and N at most 10000")]
    NoShard,
}

impl StateRange {
    pub(crate) const ALL: Self = Self { from: 1, to: u64::MAX };

    pub fn states(self) -> u64 {
        self.to + 1 - self.from
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

impl fmt::Display for StateRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from, self.to)
    }
}

impl FromStr for StateRange {
    type Err = BadStateRange;

    fn from_str(text: &str) -> Result<Self, BadStateRange> {
        let (from, to) = text.split_once('-').ok_or(BadStateRange::NoRange)?;
        let number = |text: &str, end| text.parse().map_err(|_| BadStateRange::NoNumber(end));
        let range = Self { from: number(from, "FROM")?, to: number(to, "TO")? };
        if range.from == 0 || range.to < range.from || range.to == u64::MAX {
            return Err(BadStateRange::Empty);
        }
        Ok(range)
    }
}

/// One shard of an exploration: the K of K/N, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShard {
    pub number: u64,
    pub of: u64,
}

impl StateShard {
    /// The states of this shard, out of `total`; the shards of one exploration cover every state once.
    pub fn range(self, total: u64) -> StateRange {
        let end = |number: u64| {
            let all = u128::from(total) * u128::from(number) / u128::from(self.of.max(1));
            u64::try_from(all).unwrap_or(u64::MAX)
        };
        StateRange { from: end(self.number - 1) + 1, to: end(self.number) }
    }
}

impl fmt::Display for StateShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for StateShard {
    type Err = BadStateRange;

    fn from_str(text: &str) -> Result<Self, BadStateRange> {
        let (number, of) = text.split_once('/').ok_or(BadStateRange::NoShard)?;
        match (number.parse(), of.parse()) {
            (Ok(number), Ok(of)) if (1..=of).contains(&number) && of <= 10_000 => {
                Ok(Self { number, of })
            }
            _ => Err(BadStateRange::NoShard),
        }
    }
}

/// Maximum number of shares in one exploration; each is a run in the record.
const MOST: u64 = 256;
/// Starting a share costs about as much as this many checks.
const LEAST: u64 = 16;
/// Every share first has to determine its states; its checks should take this many times as long.
const WORTH: f64 = 4.0;

/// The size of a share, given how long it takes to determine all states and to check
/// one.
pub(crate) fn share_size(total: u64, finding: Duration, check: Duration) -> u64 {
    let worth = WORTH * finding.as_secs_f64() / check.as_secs_f64().max(0.001);
    LEAST.max(worth.ceil() as u64).max(total.div_ceil(MOST))
}

/// The states outside of the known ranges, in ranges of at most this size.
pub(crate) fn uncovered(total: u64, known: &[StateRange], size: u64) -> Vec<StateRange> {
    let mut known = known.to_vec();
    known.sort_unstable();
    let beyond = StateRange { from: total + 1, to: total + 1 };
    let (mut next, mut ranges) = (1, Vec::new());
    for known in known.into_iter().chain([beyond]) {
        while next < known.from.min(total + 1) {
            let to = (next + size - 1).min(known.from - 1).min(total);
            ranges.push(StateRange { from: next, to });
            next = to + 1;
        }
        next = next.max(known.to + 1);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_every_state_once() {
        for (total, of) in [(0, 3), (1, 3), (10, 3), (9, 3), (1000, 7), (u64::MAX, 10_000)] {
            let mut next = 1;
            for number in 1..=of {
                let range = StateShard { number, of }.range(total);
                assert_eq!(range.from, next, "{number}/{of} of {total}");
                next = range.to.wrapping_add(1);
            }
            assert_eq!(next.wrapping_sub(1), total);
        }
        assert_eq!("2/3".parse(), Ok(StateShard { number: 2, of: 3 }));
        for wrong in ["", "0/1", "2/1", "1/0", "x/2", "1/10001"] {
            assert_eq!(wrong.parse::<StateShard>(), Err(BadStateRange::NoShard), "{wrong}");
        }
    }

    fn range(from: u64, to: u64) -> StateRange {
        StateRange { from, to }
    }

    #[test]
    fn uncovered_states_are_split_into_disjoint_ranges() {
        assert_eq!(uncovered(10, &[], 4), [range(1, 4), range(5, 8), range(9, 10)]);
        assert_eq!(uncovered(10, &[range(5, 8)], 4), [range(1, 4), range(9, 10)]);
        assert_eq!(uncovered(10, &[range(3, 6), range(1, 4)], 9), [range(7, 10)]);
        assert_eq!(uncovered(10, &[range(1, 10)], 4), []);
        assert_eq!(uncovered(3, &[range(1, 9)], 4), []);
        assert_eq!(uncovered(0, &[], 4), []);
    }

    #[test]
    fn shares_are_worth_their_beginning_and_not_too_many() {
        let size = |total, finding, check| {
            share_size(total, Duration::from_millis(finding), Duration::from_millis(check))
        };
        assert_eq!(size(100, 1, 10), 16);
        assert_eq!(size(100, 1000, 10), 400);
        assert_eq!(size(256_000, 1, 10), 1000);
    }

    #[test]
    fn ranges_are_read_as_they_are_written() {
        assert_eq!("5-9".parse(), Ok(range(5, 9)));
        assert_eq!(range(5, 9).to_string(), "5-9");
        for wrong in ["", "5", "0-3", "9-5", "a-b", "1-18446744073709551615"] {
            assert!(wrong.parse::<StateRange>().is_err(), "{wrong}");
        }
    }
}
