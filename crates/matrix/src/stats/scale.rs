//! The scale on which two samples are compared, and the step size of their values.
//!
//! Values above 0 are compared as ratios, on logarithms. A metric with a zero or negative value has
//! no ratios and is compared by differences, in its own unit.

use super::summary::{median_of_sorted, sorted};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    Ratio,
    /// `size` is the typical size of a value, of which margins are fractions.
    Difference {
        size: f64,
    },
}

impl Scale {
    pub(crate) fn of(a: &[f64], b: &[f64]) -> Self {
        let all = || a.iter().chain(b).copied();
        if all().all(|x| x > 0.0) {
            return Self::Ratio;
        }
        let sizes = sorted(&all().map(f64::abs).collect::<Vec<_>>());
        let middle = if sizes.is_empty() { 0.0 } else { median_of_sorted(&sizes) };
        // If most values are 0, the mean size of the others.
        let mean = || sizes.iter().sum::<f64>() / sizes.len().max(1) as f64;
        Self::Difference { size: if middle > 0.0 { middle } else { mean() } }
    }

    pub(crate) fn at(self, value: f64) -> f64 {
        match self {
            Self::Ratio => value.ln(),
            Self::Difference { .. } => value,
        }
    }

    /// The distance of B from A: 0 if equal.
    pub(crate) fn between(self, a: f64, b: f64) -> f64 {
        self.at(b) - self.at(a)
    }

    /// A fraction of one, as a distance.
    pub(crate) fn distance(self, part: f64) -> f64 {
        match self {
            Self::Ratio => part.ln_1p(),
            Self::Difference { size } => part * size,
        }
    }
}

/// The step between values that come in steps; otherwise 0.
pub(crate) fn step(a: &[f64], b: &[f64]) -> f64 {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let values = sorted(&all);
    let Some(largest) = values.iter().map(|x| x.abs()).reduce(f64::max) else { return 0.0 };
    let gaps = values.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 1e-9 * largest);
    let distinct = 1 + gaps.clone().count();
    match distinct {
        1 => decimal_step(values[0]),
        // Values that are rarely equal are as fine as they look.
        _ if 2 * distinct > values.len() => 0.0,
        _ => gaps.fold(f64::INFINITY, f64::min),
    }
}

/// For a single value: the weight of its last decimal, at most 1.
fn decimal_step(value: f64) -> f64 {
    let whole = |scaled: f64| (scaled - scaled.round()).abs() < 1e-6 * scaled.abs().max(1.0);
    let places = (0..9).find(|&places| whole(value * 10f64.powi(places)));
    places.map_or(0.0, |places| 10f64.powi(-places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_with_a_zero_are_compared_by_differences() {
        assert_eq!(Scale::of(&[1.0], &[2.0]), Scale::Ratio);
        assert_eq!(Scale::of(&[0.0, 4.0, 5.0], &[4.0, 3.0]), Scale::Difference { size: 4.0 });
        let mostly_zero = Scale::of(&[0.0, 0.0, 0.0], &[0.0, 2.0]);
        assert_eq!(mostly_zero, Scale::Difference { size: 0.4 });
        assert_eq!(mostly_zero.between(0.0, 2.0), 2.0);
        assert_eq!(mostly_zero.distance(0.5), 0.2);
    }

    #[test]
    fn steps_are_seen_and_fine_values_have_none() {
        assert_eq!(step(&[2.0, 3.0, 3.0, 2.0], &[3.0, 3.0, 4.0, 4.0]), 1.0);
        assert_eq!(step(&[3.0; 5], &[3.0; 5]), 1.0);
        assert!((step(&[0.25; 5], &[0.25; 5]) - 0.01).abs() < 1e-12);
        assert_eq!(step(&[1.01, 1.13, 1.27], &[1.02, 1.09, 1.31]), 0.0);
        assert_eq!(step(&[], &[]), 0.0);
    }
}
