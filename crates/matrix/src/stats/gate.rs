//! `--fail-if slower:5%`: when a comparison is to fail a build.

use std::str::FromStr;

use super::{Comparison, Verdict};

/// Trips on a sure verdict in one direction whose size reaches a limit. A comparison that is not
/// sure never trips, so that two equal programs fail a build no more often than the stated
/// confidence allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    verdict: Verdict,
    limit: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no gate; write slower:5% or faster:10%")]
pub struct GateError(String);

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Self, GateError> {
        let wrong = || GateError(text.to_owned());
        let (word, limit) = text.split_once(':').unwrap_or((text, "0%"));
        let verdict = match word.trim() {
            "slower" => Verdict::Slower,
            "faster" => Verdict::Faster,
            _ => return Err(wrong()),
        };
        let limit = parse_percent(limit).ok_or_else(wrong)?;
        Ok(Self { verdict, limit })
    }
}

/// `5%` as 0.05; the sign may be left out. `None` for what is negative or no number.
pub fn parse_percent(text: &str) -> Option<f64> {
    let text = text.trim();
    let number: f64 = text.strip_suffix('%').unwrap_or(text).trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number / 100.0)
}

impl Gate {
    pub fn trips(&self, comparison: &Comparison) -> bool {
        let Some(ratio) = comparison.ratio.filter(|_| comparison.verdict == self.verdict) else {
            return false;
        };
        // 5 % more and 5 % less are equally far from 1.
        ratio.max(1.0 / ratio) >= 1.0 + self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Criteria, Side, compare};

    #[test]
    fn gates_are_read() {
        assert_eq!("slower:5%".parse(), Ok(Gate { verdict: Verdict::Slower, limit: 0.05 }));
        assert_eq!("faster: 2.5".parse(), Ok(Gate { verdict: Verdict::Faster, limit: 0.025 }));
        assert_eq!("slower".parse(), Ok(Gate { verdict: Verdict::Slower, limit: 0.0 }));
        for wrong in ["", "worse:5%", "slower:x", "slower:-5%", "slower:inf"] {
            assert!(wrong.parse::<Gate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_gate_trips_on_a_sure_verdict_of_its_size_only() {
        let a = [10.0, 10.1, 10.2, 9.9, 9.8, 10.05, 9.95, 10.15];
        let against = |factor: f64, gate: &str| {
            let b = a.map(|x| x * factor);
            let side = |name, values| Side { name, values, blocks: &[], failed: 0 };
            let comparison = compare(side("a", &a), side("b", &b), "wall", &Criteria::default());
            gate.parse::<Gate>().unwrap().trips(&comparison)
        };
        assert!(against(1.2, "slower:5%"));
        assert!(!against(1.2, "slower:30%"));
        assert!(!against(0.8, "slower:5%"));
        assert!(against(0.8, "faster:5%"));
        assert!(!against(1.0, "slower:0%"));
    }
}
