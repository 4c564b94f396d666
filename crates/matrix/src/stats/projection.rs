//! Estimates how many blocks a comparison needs until it is decided.

use super::sequence::log_wealth;

/// A larger number is impractical.
const MOST: u64 = 1 << 24;

/// The total number of blocks a comparison needs if the next ones are like those so far: until its
/// interval excludes 0, or is within `band`. `differences` are those of the blocks so far. `None`
/// if no number of blocks would suffice.
pub(crate) fn blocks_needed(differences: &[f64], band: f64, alpha: f64) -> Option<u64> {
    let n = differences.len() as f64;
    // What was constant in a few blocks may vary in the next.
    let share = |holds: &dyn Fn(f64) -> bool| {
        (differences.iter().filter(|&&x| holds(x)).count() as f64 + 0.5) / (n + 1.0)
    };
    let apart = share(&|x| x > 0.0).max(share(&|x| x < 0.0));
    let equal = share(&|x| x > -band).min(share(&|x| x < band));
    let target = (2.0 / alpha).ln();
    let enough = |share: f64, n: u64| log_wealth((share * n as f64) as usize, n as usize) >= target;
    let least = |share: f64| {
        if share <= 0.5 {
            return None;
        }
        let mut high = 8;
        while !enough(share, high) {
            high *= 2;
            if high > MOST {
                return None;
            }
        }
        let mut low = high / 2;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if enough(share, middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(high)
    };
    match (least(apart), least(equal)) {
        (Some(x), Some(y)) => Some(x.min(y)),
        (x, y) => x.or(y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_difference_needs_few_and_a_narrow_margin_many() {
        let clear: Vec<f64> = (0..8).map(|i| 0.2 + 0.01 * f64::from(i)).collect();
        assert!(blocks_needed(&clear, 0.02, 0.05).unwrap() < 20);
        let noise: Vec<f64> = (0..40).map(|i| 0.05 * (f64::from(i) * 2.399).sin()).collect();
        let wide = blocks_needed(&noise, 0.04, 0.05).unwrap();
        let narrow = blocks_needed(&noise, 0.01, 0.05).unwrap();
        assert!(wide < narrow, "{wide} {narrow}");
    }
}
