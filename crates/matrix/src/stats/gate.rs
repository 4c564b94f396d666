//! `--fail-if slower:5%`: conditions under which a comparison fails a build.

use std::str::FromStr;

use super::{Comparison, Counts, Verdict};

/// A condition, and the comparisons it applies to.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    pub rule: GateRule,
    /// A ref to compare everything else with; `None` for the regular baseline, the first value of
    /// each axis.
    pub against: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateRule {
    /// A sure change in one direction whose estimate reaches a limit. An undecided comparison never
    /// trips it, so that equal programs fail a build no more often than the stated confidence
    /// allows.
    Change {
        verdict: Verdict,
        limit: f64,
        /// Whether the whole interval must be beyond the limit, not only the estimate.
        whole: bool,
    },
    /// Any undecided comparison.
    Unsure,
    /// Any iteration that only failed.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid condition; write slower:5% (the estimate is 5 % or more), slower:5%! (the whole interval \
     is), slower (of any size), faster:10% or unsure, each with @main to compare with that branch, or failed"
)]
pub struct GateError(String);

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Self, GateError> {
        let wrong = || GateError(text.to_owned());
        // A ref may contain another @, a rule cannot.
        let (rule, against) = match text.trim().split_once('@') {
            Some((_, "")) => return Err(wrong()),
            Some((rule, reference)) => (rule, Some(reference.to_owned())),
            None => (text.trim(), None),
        };
        if rule == "unsure" {
            return Ok(Self { rule: GateRule::Unsure, against });
        }
        if rule == "failed" {
            // A failed run fails the build whatever it is compared with.
            return match against {
                Some(_) => Err(wrong()),
                None => Ok(Self { rule: GateRule::Failed, against }),
            };
        }
        let (rest, whole) = match rule.strip_suffix('!') {
            Some(rest) => (rest, true),
            None => (rule, false),
        };
        let (word, limit) = rest.split_once(':').unwrap_or((rest, "0%"));
        let verdict = match word.trim() {
            "slower" => Verdict::Slower,
            "faster" => Verdict::Faster,
            _ => return Err(wrong()),
        };
        let limit = parse_percent(limit).ok_or_else(wrong)?;
        Ok(Self { rule: GateRule::Change { verdict, limit, whole }, against })
    }
}

/// `5%` as 0.05; the sign is optional. `None` for a negative or invalid number.
pub fn parse_percent(text: &str) -> Option<f64> {
    let text = text.trim();
    let number: f64 = text.strip_suffix('%').unwrap_or(text).trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number / 100.0)
}

impl Gate {
    pub fn trips(&self, comparison: &Comparison) -> bool {
        match self.rule {
            GateRule::Unsure => comparison.verdict == Verdict::NotSure,
            GateRule::Failed => comparison.failed != Counts::default(),
            GateRule::Change { verdict, limit, whole } => {
                let size = if whole { comparison.least_size() } else { comparison.size() };
                comparison.verdict == verdict && size.is_some_and(|size| size >= limit)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Criteria, Side, compare};

    #[test]
    fn gates_are_read() {
        let gate = |verdict, limit, whole| {
            Ok(Gate { rule: GateRule::Change { verdict, limit, whole }, against: None })
        };
        let against = |text: &str| text.parse::<Gate>().unwrap().against;
        assert_eq!("slower:5%".parse(), gate(Verdict::Slower, 0.05, false));
        assert_eq!("slower:5%!".parse(), gate(Verdict::Slower, 0.05, true));
        assert_eq!("faster: 2.5".parse(), gate(Verdict::Faster, 0.025, false));
        assert_eq!("slower".parse(), gate(Verdict::Slower, 0.0, false));
        assert_eq!("failed".parse(), Ok(Gate { rule: GateRule::Failed, against: None }));
        assert_eq!("unsure".parse(), Ok(Gate { rule: GateRule::Unsure, against: None }));
        assert_eq!(against("slower:5%@main").as_deref(), Some("main"));
        assert_eq!(against("slower:5%!@origin/main").as_deref(), Some("origin/main"));
        assert_eq!(against("unsure@HEAD@{1}").as_deref(), Some("HEAD@{1}"));
        assert_eq!(
            "slower:5%!@x".parse::<Gate>().unwrap().rule,
            "slower:5%!".parse::<Gate>().unwrap().rule
        );
        for wrong in [
            "",
            "worse:5%",
            "slower:x",
            "slower:-5%",
            "slower:inf",
            "unsure:5%",
            "!",
            "@main",
            "slower:5%@",
            "failed:5%",
            "failed@main",
        ] {
            assert!(wrong.parse::<Gate>().is_err(), "{wrong}");
        }
    }

    /// Twelve blocks whose ratios vary around a factor.
    fn against(factor: f64, spread: f64, gate: &str) -> bool {
        let a: Vec<f64> = (0..12).map(|i| 100.0 + f64::from(i)).collect();
        let noise = |i: usize| 1.0 + spread * (i as f64 / 11.0 - 0.5);
        let b: Vec<f64> = a.iter().enumerate().map(|(i, x)| x * factor * noise(i)).collect();
        let blocks: Vec<u64> = (0..12).collect();
        let side = |name, values| Side { name, values, blocks: &blocks, failed: 0 };
        let comparison = compare(side("a", &a), side("b", &b), "wall", &Criteria::default());
        gate.parse::<Gate>().unwrap().trips(&comparison)
    }

    #[test]
    fn a_gate_trips_on_a_sure_verdict_of_its_size_only() {
        assert!(against(1.2, 0.01, "slower:5%"));
        assert!(!against(1.2, 0.01, "slower:30%"));
        assert!(!against(0.8, 0.01, "slower:5%"));
        assert!(against(0.8, 0.01, "faster:5%"));
        assert!(!against(1.0, 0.01, "slower:0%"));
    }

    #[test]
    fn the_estimate_decides_or_the_whole_interval_with_an_exclamation_mark() {
        // Surely slower, by about 8 %, but possibly only by 2 %.
        assert!(against(1.08, 0.13, "slower:5%"));
        assert!(!against(1.08, 0.13, "slower:5%!"));
        assert!(against(1.2, 0.05, "slower:5%!"));
        assert!(!against(1.08, 0.13, "slower:9%"), "the estimate is less than that");
    }

    #[test]
    fn unsure_trips_where_nothing_is_decided() {
        assert!(against(1.0, 0.5, "unsure"));
        assert!(!against(1.0, 0.001, "unsure"));
        assert!(!against(1.3, 0.01, "unsure"));
    }
}
