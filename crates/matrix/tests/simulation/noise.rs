//! Typical noise of benchmarks.

use retake_matrix::random::Random;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Noise {
    /// 5 % around the middle.
    Normal,
    /// 10 %, skewed to the right.
    Lognormal,
    /// Two levels 15 % apart, as frequency scaling and layout make them.
    Bimodal,
    /// 5 % with infinite variance: a few samples are absurdly large.
    HeavyTail,
    /// Whole milliseconds with many ties.
    Rounded,
    /// 3 % around a level that drifts by 60 % during the measurement.
    Drift,
    /// 3 %, and 15 % slower after a third of the time.
    Step,
    /// 3 %, and gradually 20 % slower from beginning to end.
    Ramp,
    /// 2 % around a level with memory: slow periods last about ten samples.
    Autocorrelated,
}

const ALL: [Noise; 9] = [
    Noise::Normal,
    Noise::Lognormal,
    Noise::Bimodal,
    Noise::HeavyTail,
    Noise::Rounded,
    Noise::Drift,
    Noise::Step,
    Noise::Ramp,
    Noise::Autocorrelated,
];

/// Runs the same for every kind of noise, on all cores; returns the results in the order of the
/// documentation.
pub(crate) fn for_all<T: Send>(work: impl Fn(Noise) -> T + Sync) -> Vec<(Noise, T)> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads = ALL.map(|noise| (noise, scope.spawn(move || work(noise))));
        let joined = threads.map(|(noise, thread)| match thread.join() {
            Ok(found) => (noise, found),
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.into()
    })
}

pub(crate) fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * random.unit()).cos()
}

impl Noise {
    /// The name in the documentation.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Lognormal => "lognormal",
            Self::Bimodal => "bimodal",
            Self::HeavyTail => "heavy tail",
            Self::Rounded => "rounded",
            Self::Drift => "drift",
            Self::Step => "step",
            Self::Ramp => "ramp",
            Self::Autocorrelated => "autocorrelated",
        }
    }

    /// One sample, at a time from 0 to 1 and with a true factor.
    pub(crate) fn sample(self, random: &mut Random, at: f64, factor: f64) -> f64 {
        match self {
            Self::Normal => factor * (100.0 + 5.0 * normal(random)),
            Self::Lognormal => factor * 100.0 * (0.10 * normal(random)).exp(),
            Self::Bimodal => {
                let level = if random.unit() < 0.65 { 100.0 } else { 115.0 };
                factor * (level + 1.5 * normal(random))
            }
            Self::HeavyTail => {
                // Student's t with two degrees of freedom.
                let t = normal(random) / (-(1.0 - random.unit()).ln()).sqrt();
                factor * 100.0 * (0.05 * t).exp()
            }
            Self::Rounded => (factor * (20.3 + normal(random))).ceil(),
            Self::Drift => {
                let level = 1.0 + 0.6 * (0.5 - 0.5 * (9.0 * at).cos());
                factor * level * (100.0 + 3.0 * normal(random))
            }
            Self::Step => {
                let level = if at < 1.0 / 3.0 { 1.0 } else { 1.15 };
                factor * level * (100.0 + 3.0 * normal(random))
            }
            Self::Ramp => factor * (1.0 + 0.2 * at) * (100.0 + 3.0 * normal(random)),
            Self::Autocorrelated => factor * (100.0 + 2.0 * normal(random)),
        }
    }

    /// The true ratio of medians for a factor: rounding changes a median too.
    pub(crate) fn truth(self, factor: f64) -> f64 {
        match self {
            Self::Rounded => (factor * 20.3).ceil() / 20.3f64.ceil(),
            _ => factor,
        }
    }

    /// Blocks with one sample of every cell, in random order, as the planner makes them.
    pub(crate) fn blocks(
        self,
        random: &mut Random,
        blocks: usize,
        factors: &[f64],
    ) -> Vec<Vec<f64>> {
        let mut values = vec![Vec::with_capacity(blocks); factors.len()];
        let mut level = 0.0;
        for block in 0..blocks {
            let mut order: Vec<usize> = (0..factors.len()).collect();
            random.shuffle(&mut order);
            for (place, &cell) in order.iter().enumerate() {
                let at = (block as f64 + place as f64 / factors.len() as f64) / blocks as f64;
                let mut value = self.sample(random, at, factors[cell]);
                if self == Self::Autocorrelated {
                    level = 0.9 * level + 0.19f64.sqrt() * 0.08 * normal(random);
                    value *= f64::exp(level);
                }
                values[cell].push(value);
            }
        }
        values
    }
}
