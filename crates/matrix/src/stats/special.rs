//! Functions of probability theory used by the other statistics.

/// The logarithm of the gamma function, for positive arguments (Lanczos, g = 7, nine terms).
pub(crate) fn ln_gamma(x: f64) -> f64 {
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        return (std::f64::consts::PI / (std::f64::consts::PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let t = x + 7.5;
    let sum = (1..9).fold(C[0], |sum, i| sum + C[i] / (x + i as f64));
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

pub(crate) fn ln_beta(a: f64, b: f64) -> f64 {
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
}

/// The regularised incomplete beta function (continued fraction, modified Lentz).
pub(crate) fn beta_cdf(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast on one side; the other follows by symmetry.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta_cdf(1.0 - x, b, a);
    }
    let front = (a * x.ln() + b * (-x).ln_1p() - ln_beta(a, b)).exp() / a;
    front * fraction(x, a, b)
}

fn fraction(x: f64, a: f64, b: f64) -> f64 {
    let floor = |v: f64| if v.abs() < 1e-300 { 1e-300 } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / floor(1.0 - (a + b) * x / (a + 1.0));
    let mut result = d;
    for m in 1..10_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / floor(1.0 + even * d);
        c = floor(1.0 + even / c);
        result *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / floor(1.0 + odd * d);
        c = floor(1.0 + odd / c);
        let step = d * c;
        result *= step;
        if (step - 1.0).abs() < 1e-14 {
            break;
        }
    }
    result
}

/// The upper tail of the standard normal distribution, with a small relative error even far out.
pub(crate) fn normal_tail(z: f64) -> f64 {
    if z < 0.0 {
        return 1.0 - normal_tail(-z);
    }
    if z < 4.0 {
        // erf by its series, which converges everywhere and is precise enough here.
        let mut term = z;
        let mut sum = z;
        let mut n = 1.0;
        while term.abs() > 1e-17 * sum.abs() && n < 400.0 {
            term *= z * z / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
        return (0.5 - density * sum).max(0.0);
    }
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let tail = (1..60).rev().fold(z, |tail, k| z + f64::from(k) / tail);
    density / tail
}

/// The quantile of Student's distribution with `tail` above it, for `tail` below one half.
pub(crate) fn student_point(tail: f64, degrees: f64) -> f64 {
    let above = |t: f64| 0.5 * beta_cdf(degrees / (degrees + t * t), 0.5 * degrees, 0.5);
    let mut high = 1.0;
    while above(high) > tail && high < 1e12 {
        high *= 2.0;
    }
    bisect(0.0, high, |t| above(t) > tail)
}

/// The quantile of the normal distribution with `tail` above it, for `tail` below one half.
pub(crate) fn normal_point(tail: f64) -> f64 {
    bisect(0.0, 40.0, |z| normal_tail(z) > tail)
}

/// The point at which a monotonic condition stops holding.
fn bisect(mut low: f64, mut high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, expected: f64) {
        assert!((got - expected).abs() <= 1e-9 * expected.abs().max(1e-30), "{got} {expected}");
    }

    #[test]
    fn known_values() {
        close(ln_gamma(5.0), 24f64.ln());
        close(ln_gamma(0.5), std::f64::consts::PI.sqrt().ln());
        close(beta_cdf(0.5, 3.0, 3.0), 0.5);
        close(beta_cdf(0.25, 1.0, 1.0), 0.25);
        // P(Bin(5, 0.2) >= 3)
        close(beta_cdf(0.2, 3.0, 3.0), 0.05792);
        close(normal_tail(1.959_963_984_540_054), 0.025);
        close(normal_tail(-1.0), 0.841_344_746_068_542_9);
        close(normal_tail(6.0), 9.865_876_450_376_98e-10);
        close(normal_tail(3.999_999_999), normal_tail(4.0) + 1.338_302_258e-13);
        close(student_point(0.025, 4.0), 2.776_445_105_197_792_5);
        close(student_point(0.025, 100.0), 1.983_971_518_523_552);
        close(normal_point(0.025), 1.959_963_984_540_054);
    }

    #[test]
    fn the_incomplete_beta_function_of_large_arguments_is_a_probability() {
        for n in [100.0, 1_000.0, 100_000.0] {
            let below = beta_cdf(0.49, n, n);
            let above = beta_cdf(0.51, n, n);
            assert!((0.0..0.5).contains(&below) && (0.5..=1.0).contains(&above));
            close(below + above, 1.0);
        }
    }
}
