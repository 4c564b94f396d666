//! Summary statistics of one cell's samples.

use serde::Serialize;

/// Samples beyond this many scaled median absolute deviations are marked; Iglewicz and Hoaglin.
const FAR: f64 = 3.5;

/// The summary of one sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub samples: usize,
    pub median: f64,
    /// The median absolute deviation, unscaled.
    pub mad: f64,
    pub min: f64,
    pub max: f64,
    pub mean: f64,
    /// Indexes of outliers. They are marked, never dropped.
    pub outliers: Vec<usize>,
}

/// The median of sorted samples.
pub(crate) fn median_of_sorted(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    0.5 * (sorted[(n - 1) / 2] + sorted[n / 2])
}

/// The median of any samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let sorted = sorted(samples);
    (!sorted.is_empty()).then(|| median_of_sorted(&sorted))
}

/// The probability of finding drift where there is none.
const FALSE_DRIFT: f64 = 0.01;
/// Smaller drift is not reported.
const SMALL_DRIFT: f64 = 0.02;

/// Drift in samples of one thing in the order of measurement: the later ones divided by the earlier
/// ones, split where they differ most clearly.
pub fn drift(samples: &[f64]) -> Option<f64> {
    let n = samples.len();
    let splits = 3..n.saturating_sub(2);
    let level = FALSE_DRIFT / splits.len().max(1) as f64;
    let clearest = splits
        .map(|at| (at, super::rank_test(&samples[..at], &samples[at..])))
        .min_by(|(_, p), (_, q)| p.total_cmp(q))?;
    let (before, after) = (median(&samples[..clearest.0])?, median(&samples[clearest.0..])?);
    let ratio = after / before;
    (clearest.1 <= level && before > 0.0 && (ratio - 1.0).abs() > SMALL_DRIFT).then_some(ratio)
}

/// The sorted samples, without NaN.
pub(crate) fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// `None` without a finite sample.
pub fn summarise(samples: &[f64]) -> Option<Summary> {
    let values = sorted(samples);
    let (&min, &max) = (values.first()?, values.last()?);
    let median = median_of_sorted(&values);
    let distances = sorted(&values.iter().map(|x| (x - median).abs()).collect::<Vec<_>>());
    let mad = median_of_sorted(&distances);
    // If more than half of the samples are equal, the MAD is 0 and uninformative.
    let scale = if mad > 0.0 {
        mad / 0.674_5
    } else {
        1.253_314 * distances.iter().sum::<f64>() / distances.len() as f64
    };
    let outliers = (samples.iter().enumerate())
        .filter(|(_, x)| scale > 0.0 && ((*x - median) / scale).abs() > FAR)
        .map(|(place, _)| place)
        .collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    Some(Summary { samples: values.len(), median, mad, min, max, mean, outliers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_deviation_and_outliers() {
        let summary = summarise(&[10.0, 11.0, 9.0, 10.5, 9.5, 50.0]).unwrap();
        assert_eq!(summary.median, 10.25);
        assert_eq!(summary.mad, 0.75);
        assert_eq!(summary.outliers, [5]);
        assert_eq!((summary.min, summary.max, summary.samples), (9.0, 50.0, 6));
    }

    #[test]
    fn equal_samples_have_no_outliers_and_one_odd_one_is_seen_among_them() {
        assert_eq!(summarise(&[1.0; 9]).unwrap().outliers, [0usize; 0]);
        let mut samples = [1.0; 9];
        samples[4] = 2.0;
        assert_eq!(summarise(&samples).unwrap().outliers, [4]);
    }

    #[test]
    fn steps_and_ramps_are_drift_but_noise_is_not() {
        let noise = |i: usize| 1.0 + 0.02 * (i as f64 * 2.4).sin();
        let flat: Vec<f64> = (0..20).map(|i| 100.0 * noise(i)).collect();
        assert_eq!(drift(&flat), None);
        let step: Vec<f64> =
            (0..20).map(|i| if i < 8 { 100.0 } else { 115.0 } * noise(i)).collect();
        assert!((1.1..1.2).contains(&drift(&step).unwrap()));
        let ramp: Vec<f64> = (0..20).map(|i| (100.0 + i as f64) * noise(i)).collect();
        assert!(drift(&ramp).unwrap() > 1.05);
        assert_eq!(drift(&[1.0, 2.0]), None);
    }

    #[test]
    fn an_empty_sample_has_no_summary() {
        assert_eq!(summarise(&[]), None);
        assert_eq!(summarise(&[f64::NAN, f64::INFINITY]), None);
    }
}
