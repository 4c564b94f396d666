//! Rank tests: whether two samples are alike (Mann-Whitney), and whether the ratios of blocks are
//! symmetric around 1 (Wilcoxon's signed ranks).
//!
//! Exact for small samples, including ties; otherwise the normal approximation with corrections for
//! ties and continuity. If both samples have the same source, a p-value below p occurs with
//! probability p at most, for any noise.

use super::special::normal_tail;

/// Up to this total number of samples every assignment is counted.
const EXACT: usize = 40;

/// The two-sided p-value.
pub fn rank_test(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let (ranks, ties) = doubled_ranks(a, b);
    let sum: u64 = ranks[..a.len()].iter().sum();
    if ranks.len() <= EXACT {
        exact(&ranks, a.len(), sum)
    } else {
        normal(a.len(), b.len(), sum, ties)
    }
}

/// The two-sided p-value of differences that should be above 0 as often as below.
pub fn signed_rank_test(differences: &[f64]) -> f64 {
    let moved: Vec<f64> = differences.iter().copied().filter(|d| *d != 0.0).collect();
    if moved.is_empty() {
        return 1.0;
    }
    let sizes: Vec<f64> = moved.iter().map(|d| d.abs()).collect();
    let (ranks, ties) = doubled_ranks(&sizes, &[]);
    let sum: u64 = moved.iter().zip(&ranks).filter(|(d, _)| **d > 0.0).map(|(_, rank)| rank).sum();
    let total: u64 = ranks.iter().sum();
    let centre = 0.5 * total as f64;
    let n = moved.len() as f64;
    if moved.len() > EXACT {
        let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - ties / 48.0;
        let z = ((0.5 * (sum as f64 - centre)).abs() - 0.5).max(0.0) / variance.sqrt();
        return (2.0 * normal_tail(z)).min(1.0);
    }
    let mut ways = vec![0.0f64; usize::try_from(total).unwrap_or(usize::MAX) + 1];
    ways[0] = 1.0;
    for &rank in &ranks {
        let rank = rank as usize;
        for sum in (rank..ways.len()).rev() {
            ways[sum] += ways[sum - rank];
        }
    }
    let distance = (sum as f64 - centre).abs() - 1e-9;
    let far = ways.iter().enumerate().filter(|(sum, _)| (*sum as f64 - centre).abs() >= distance);
    (far.map(|(_, ways)| ways).sum::<f64>() / 2f64.powf(n)).min(1.0)
}

/// The smallest p-value possible for samples of these sizes.
pub(crate) fn smallest_p(a: usize, b: usize) -> f64 {
    let ways = (1..=a.min(b)).fold(1.0, |ways, i| ways * (a.max(b) + i) as f64 / i as f64);
    2.0 / ways
}

/// Twice the mid-ranks, so that they are integers, and the sum of t³−t over the ties.
fn doubled_ranks(a: &[f64], b: &[f64]) -> (Vec<u64>, f64) {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_unstable_by(|&x, &y| all[x].total_cmp(&all[y]));
    let mut ranks = vec![0; all.len()];
    let mut ties = 0.0;
    let mut start = 0;
    while start < order.len() {
        let same = order[start..].iter().take_while(|&&i| all[i] == all[order[start]]).count();
        let same = same.max(1);
        for &place in &order[start..start + same] {
            ranks[place] = (2 * start + same + 1) as u64;
        }
        let t = same as f64;
        ties += t * t * t - t;
        start += same;
    }
    (ranks, ties)
}

/// Counts, for every sum, the ways to choose `size` of the ranks.
fn exact(ranks: &[u64], size: usize, observed: u64) -> f64 {
    let total: u64 = ranks.iter().sum();
    let width = usize::try_from(total).unwrap_or(usize::MAX) + 1;
    let mut ways = vec![0.0f64; (size + 1) * width];
    ways[0] = 1.0;
    for (done, &rank) in ranks.iter().enumerate() {
        let rank = rank as usize;
        for chosen in (1..=size.min(done + 1)).rev() {
            let (less, more) = ways.split_at_mut(chosen * width);
            let less = &less[(chosen - 1) * width..];
            for sum in rank..width {
                more[sum] += less[sum - rank];
            }
        }
    }
    let row = &ways[size * width..];
    let all: f64 = row.iter().sum();
    // At least as far from the middle as observed, on either side.
    let centre = size as f64 * total as f64 / ranks.len() as f64;
    let distance = (observed as f64 - centre).abs() - 1e-9;
    let far = row.iter().enumerate().filter(|(sum, _)| (*sum as f64 - centre).abs() >= distance);
    (far.map(|(_, ways)| ways).sum::<f64>() / all).min(1.0)
}

fn normal(a: usize, b: usize, doubled_sum: u64, ties: f64) -> f64 {
    let (a, b) = (a as f64, b as f64);
    let n = a + b;
    let u = 0.5 * doubled_sum as f64 - a * (a + 1.0) / 2.0;
    let variance = a * b / 12.0 * (n + 1.0 - ties / (n * (n - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((u - a * b / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    (2.0 * normal_tail(z)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_separation_gives_the_smallest_p() {
        let p = rank_test(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]);
        assert!((p - 2.0 / 252.0).abs() < 1e-12, "{p}");
        assert!((smallest_p(5, 5) - 2.0 / 252.0).abs() < 1e-12);
    }

    #[test]
    fn known_p_values() {
        // R: wilcox.test(c(1.1,2.2,3.3,4.4), c(2.5,3.5,4.5,5.5,6.5)), exact
        let p = rank_test(&[1.1, 2.2, 3.3, 4.4], &[2.5, 3.5, 4.5, 5.5, 6.5]);
        assert!((p - 0.111_111_111).abs() < 1e-6, "{p}");
    }

    #[test]
    fn signed_ranks_have_known_p_values() {
        assert!((signed_rank_test(&[1.0, 2.0, 3.0, 4.0, 5.0]) - 2.0 / 32.0).abs() < 1e-12);
        // R: wilcox.test(c(-1,2,3,4,5,6,7,8), exact)
        let p = signed_rank_test(&[-1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert!((p - 0.015_625).abs() < 1e-12, "{p}");
        assert_eq!(signed_rank_test(&[0.0; 8]), 1.0);
        assert_eq!(signed_rank_test(&[1.0, -1.0, 1.0, -1.0]), 1.0);
        let many: Vec<f64> =
            (1..=60).map(|i| f64::from(i) * if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
        let p = signed_rank_test(&many);
        assert!((0.036..0.0365).contains(&p), "{p}");
    }

    #[test]
    fn equal_values_are_no_evidence_in_any_number() {
        assert_eq!(rank_test(&[1.0; 5], &[1.0; 5]), 1.0);
        assert_eq!(rank_test(&[1.0; 50], &[1.0; 50]), 1.0);
    }

    #[test]
    fn where_they_meet_the_normal_p_is_the_exact_one_or_a_little_more() {
        let a: Vec<f64> = (0..20).map(f64::from).collect();
        let b: Vec<f64> = (0..20).map(|x| f64::from(x) + 5.3).collect();
        let (ranks, ties) = doubled_ranks(&a, &b);
        let sum = ranks[..20].iter().sum();
        let (exact, normal) = (exact(&ranks, 20, sum), normal(20, 20, sum, ties));
        assert!((exact..1.2 * exact).contains(&normal), "{exact} {normal}");
    }

    #[test]
    fn the_order_of_the_sets_does_not_matter() {
        let (a, b) = ([1.0, 2.0, 2.0, 3.0, 9.0], [2.0, 4.0, 5.0, 5.0, 6.0, 7.0]);
        assert!((rank_test(&a, &b) - rank_test(&b, &a)).abs() < 1e-12);
    }
}
