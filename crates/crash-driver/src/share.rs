//! A part of an exploration that another machine does: which states, and what it answers.
//!
//! The states of a recording have an order that is the same everywhere, so a number names a state
//! and nothing but numbers travels.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use retake_runner::signals;

/// States by number: the first is 1, and both ends belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    pub from: u64,
    pub to: u64,
}

impl Share {
    pub fn states(self) -> u64 {
        self.to + 1 - self.from
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from, self.to)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once('-').ok_or("is not FROM-TO")?;
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        let share = Self { from: number(from)?, to: number(to)? };
        if share.from == 0 || share.to < share.from || share.to == u64::MAX {
            return Err("is empty, or does not begin with 1 or more".to_owned());
        }
        Ok(share)
    }
}

/// Shares in one exploration; each is a run of the record.
const MOST: u64 = 256;
/// Starting a share costs about as much as so many checks.
const LEAST: u64 = 16;
/// Every share has to find its states first; its checks are to take so many times as long.
const WORTH: f64 = 4.0;

/// How many states a share should have, given how long it takes to find all of them and to check
/// one.
pub fn size(total: u64, finding: Duration, check: Duration) -> u64 {
    let worth = WORTH * finding.as_secs_f64() / check.as_secs_f64().max(0.001);
    LEAST.max(worth.ceil() as u64).max(total.div_ceil(MOST))
}

/// What is left of all states, in parts of at most this size.
pub fn rest(total: u64, done: &[Share], size: u64) -> Vec<Share> {
    let mut done = done.to_vec();
    done.sort_unstable();
    let beyond = Share { from: total + 1, to: total + 1 };
    let (mut next, mut rest) = (1, Vec::new());
    for known in done.into_iter().chain([beyond]) {
        while next < known.from.min(total + 1) {
            let to = (next + size - 1).min(known.from - 1).min(total);
            rest.push(Share { from: next, to });
            next = to + 1;
        }
        next = next.max(known.to + 1);
    }
    rest
}

/// What a machine says of its share: one line on stdout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// How many distinct states there are in all, as found there.
    pub distinct: u64,
    pub verified: u64,
    pub complete: bool,
    /// By number.
    pub failing: Vec<u64>,
    /// States that recover, but not from a crash while they do.
    pub relapsing: Vec<u64>,
    /// How many states during recovery were checked.
    pub during_recovery: u64,
    /// Why checks did not see the path that was recorded, if so.
    pub elsewhere: Option<String>,
}

/// How long after a process of ours the signal that ended it may reach us.
const HEARING: Duration = Duration::from_millis(500);

/// Whether a check failed because all of us are to end: a scheduler signals every process.
pub(super) fn told_to_stop(how: &str) -> bool {
    const SIGNS: [&str; 4] = ["SIGTERM", "SIGKILL", " 143", " 137"];
    let until = Instant::now() + HEARING;
    let suspicious = SIGNS.iter().any(|sign| how.ends_with(sign));
    while suspicious && signals::received().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    signals::received().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(from: u64, to: u64) -> Share {
        Share { from, to }
    }

    #[test]
    fn what_is_left_is_split_and_nothing_twice() {
        assert_eq!(rest(10, &[], 4), [share(1, 4), share(5, 8), share(9, 10)]);
        assert_eq!(rest(10, &[share(5, 8)], 4), [share(1, 4), share(9, 10)]);
        assert_eq!(rest(10, &[share(3, 6), share(1, 4)], 9), [share(7, 10)]);
        assert_eq!(rest(10, &[share(1, 10)], 4), []);
        assert_eq!(rest(3, &[share(1, 9)], 4), []);
        assert_eq!(rest(0, &[], 4), []);
    }

    #[test]
    fn shares_are_worth_their_beginning_and_not_too_many() {
        let size = |total, finding, check| {
            size(total, Duration::from_millis(finding), Duration::from_millis(check))
        };
        assert_eq!(size(100, 1, 10), 16);
        assert_eq!(size(100, 1000, 10), 400);
        assert_eq!(size(256_000, 1, 10), 1000);
    }

    #[test]
    fn shares_are_read_as_they_are_written() {
        assert_eq!("5-9".parse(), Ok(share(5, 9)));
        assert_eq!(share(5, 9).to_string(), "5-9");
        for wrong in ["", "5", "0-3", "9-5", "a-b", "1-18446744073709551615"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }
}
