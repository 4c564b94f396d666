//! Since when? A search for the point where a property changes, over runs that may lie.
//!
//! A pure planner: it says which point to run next and takes the observation. It keeps, for every
//! position of the change, how well that position explains all runs so far, with unknown rates of
//! failure before and after it; it asks where an answer is most informative, and stops when one
//! position is likely enough. A property that never lies costs little more than halving; one that fails every
//! third time costs more runs, and the answer says how sure it is.

mod plan;

use retake_types::loop_record::matrix::{BisectAnswer, JudgedPoint, PointVerdict};

use crate::stats::ln_beta;

pub use plan::{BisectPlan, BisectStep};

/// The observation of one run at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// The exit code: 0 is good, 125 means that this point cannot be judged, all else is bad.
    Exit(i32),
    /// Counts as bad: what hangs is not good.
    TimedOut,
    /// The metric of a successful run.
    Value(f64),
    /// Nothing could be run here: no browser, no setup.
    Unavailable,
}

/// What makes a point bad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Judge {
    ExitCode,
    /// The metric is worse than at the good end by more than this part, or, without one, closer to
    /// the bad end than to the good one.
    Metric {
        threshold: Option<f64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BisectSettings {
    pub judge: Judge,
    /// Stop when the answer is this likely.
    pub confidence: f64,
    /// Stop asking one point after this many runs.
    pub most_samples: usize,
}

impl BisectSettings {
    pub fn new(judge: Judge) -> Self {
        Self { judge, confidence: 0.95, most_samples: 30 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BisectError {
    #[error("{0} is not one of the points to search")]
    Unknown(String),
    #[error("{0} is given as good and as bad; they must differ")]
    Same(String),
}

#[derive(Clone, Debug, Default)]
struct Point {
    good: usize,
    bad: usize,
    values: Vec<f64>,
    timeouts: usize,
    skipped: bool,
    visited: bool,
}

impl Point {
    fn samples(&self) -> usize {
        self.good + self.bad
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Ends,
    Search,
    Check,
    Done,
}

/// The state of a search.
#[derive(Clone, Debug)]
pub struct Bisect {
    names: Vec<String>,
    points: Vec<Point>,
    /// Places in the order they were asked or first answered.
    visits: Vec<usize>,
    settings: BisectSettings,
    phase: Phase,
    /// What is worse is larger (or smaller, if negative).
    cut: Option<f64>,
    ends_differ: bool,
    checks_left: usize,
    /// No further run would be informative.
    nothing_to_ask: bool,
}

/// How rates of failure are expected before anything is known: mostly never on the good side and
/// always on the bad one, with much room to learn otherwise.
const GOOD_PRIOR: [f64; 2] = [0.3, 1.0];
const BAD_PRIOR: [f64; 2] = [1.0, 0.3];
/// Runs at each end before anything else: of exit codes, and of a metric.
const END_RUNS: usize = 2;
const END_VALUES: usize = 5;
/// Runs at each end before they are found not to differ.
const GIVE_UP_RUNS: usize = 6;

impl Bisect {
    /// `points` in their natural order, oldest first; good and bad may be in either order.
    pub fn new(
        points: Vec<String>,
        good: &str,
        bad: &str,
        settings: BisectSettings,
    ) -> Result<Self, BisectError> {
        let index = |name: &str| {
            points.iter().position(|p| p == name).ok_or_else(|| BisectError::Unknown(name.into()))
        };
        let (from, to) = (index(good)?, index(bad)?);
        if from == to {
            return Err(BisectError::Same(good.into()));
        }
        let mut names = points[from.min(to)..=from.max(to)].to_vec();
        if from > to {
            names.reverse();
        }
        let checks = names.len().ilog2() as usize + 2;
        Ok(Self {
            points: vec![Point::default(); names.len()],
            names,
            visits: Vec::new(),
            settings,
            phase: Phase::Ends,
            cut: None,
            ends_differ: false,
            checks_left: checks,
            nothing_to_ask: false,
        })
    }

    /// The points from the good end to the bad one.
    pub fn points(&self) -> &[String] {
        &self.names
    }

    /// Takes the observation of a run: one asked for, or one from the record.
    pub fn observe(&mut self, point: &str, observation: Observation) {
        let Some(index) = self.names.iter().position(|name| name == point) else { return };
        if !self.points[index].visited {
            self.points[index].visited = true;
            self.visits.push(index);
        }
        let by_metric = matches!(self.settings.judge, Judge::Metric { .. });
        let state = &mut self.points[index];
        match observation {
            Observation::Unavailable | Observation::Exit(125) => state.skipped = true,
            Observation::TimedOut => state.timeouts += 1,
            Observation::Exit(0) if !by_metric => state.good += 1,
            Observation::Exit(_) if !by_metric => state.bad += 1,
            // A run that failed measured nothing.
            Observation::Exit(_) => state.skipped |= state.values.is_empty(),
            Observation::Value(value) if by_metric && value.is_finite() => {
                state.skipped = false;
                state.values.push(value);
            }
            Observation::Value(_) => {}
        }
        self.count_votes();
    }

    /// In a search by metric every value votes, by the side of the cut it lies on.
    fn count_votes(&mut self) {
        let Judge::Metric { threshold } = self.settings.judge else {
            for point in &mut self.points {
                point.bad += std::mem::take(&mut point.timeouts);
            }
            return;
        };
        let last = self.points.len() - 1;
        let middle = |point: &Point| crate::stats::summarise(&point.values).map(|s| s.median);
        let (good, bad) = (middle(&self.points[0]), middle(&self.points[last]));
        let hung = self.points[last].timeouts > 0;
        let Some(good) = good else { return };
        let (cut, upwards) = match (bad, threshold) {
            (Some(bad), Some(threshold)) if bad < good => (good / (1.0 + threshold), false),
            (Some(bad), None) => ((good * bad).abs().sqrt(), bad >= good),
            (_, Some(threshold)) => (good * (1.0 + threshold), true),
            (None, None) if hung => (f64::INFINITY, true),
            (None, None) => return,
        };
        self.cut = Some(cut);
        for point in &mut self.points {
            let bad = point.values.iter().filter(|x| (**x > cut) == upwards && **x != cut).count();
            point.good = point.values.len() - bad;
            point.bad = bad + point.timeouts;
        }
    }

    /// The point to run next; `None` when the search is over.
    pub fn next_point(&mut self) -> Option<&str> {
        loop {
            let index = match self.phase {
                Phase::Ends => self.next_end(),
                Phase::Search => self.next_search(),
                Phase::Check => self.next_check(),
                Phase::Done => return None,
            };
            if let Some(index) = index {
                return Some(&self.names[index]);
            }
        }
    }

    fn runs_at(&self, index: usize) -> usize {
        let point = &self.points[index];
        match self.settings.judge {
            Judge::ExitCode => point.samples(),
            Judge::Metric { .. } => point.values.len() + point.timeouts,
        }
    }

    /// The ends must be what they are said to be before anything between them means anything.
    fn next_end(&mut self) -> Option<usize> {
        let last = self.points.len() - 1;
        let needed = match self.settings.judge {
            Judge::ExitCode => END_RUNS,
            Judge::Metric { .. } => END_VALUES,
        };
        let ends = [0, last];
        if ends.iter().any(|&end| self.points[end].skipped) {
            self.phase = Phase::Done;
            return None;
        }
        let fewer = ends.into_iter().min_by_key(|&end| self.runs_at(end))?;
        if self.runs_at(fewer) < needed {
            return Some(fewer);
        }
        let odds = self.ends_odds();
        // Three to one for «they differ» lets the search begin; what it finds must add the rest.
        if odds > 3f64.ln() {
            self.ends_differ = true;
            self.phase = Phase::Search;
            return None;
        }
        // A bad end that fails every other time passes a few times in a row.
        let hopeless = odds < -(10f64.ln()) && self.runs_at(fewer) >= GIVE_UP_RUNS;
        if hopeless || self.runs_at(fewer) >= self.settings.most_samples {
            self.phase = Phase::Done;
            return None;
        }
        Some(fewer)
    }

    /// How much better two rates explain the ends, good rarer than bad, than one does.
    fn ends_odds(&self) -> f64 {
        let (good, bad) = (&self.points[0], &self.points[self.points.len() - 1]);
        let apart =
            evidence(GOOD_PRIOR, good.bad, good.good) + evidence(BAD_PRIOR, bad.bad, bad.good);
        let (fails, passes) = (good.bad + bad.bad, good.good + bad.good);
        let together = evidence(GOOD_PRIOR, fails, passes).max(evidence(BAD_PRIOR, fails, passes));
        apart - together.max(evidence([1.0, 1.0], fails, passes))
    }

    /// For each position k, how likely it is that the points before k are good and the others bad;
    /// with the rates of failure on both sides that this would mean. The first entry stands for k = 1.
    fn posterior(&self) -> Vec<(f64, f64, f64)> {
        let total_bad: usize = self.points.iter().map(|p| p.bad).sum();
        let total_good: usize = self.points.iter().map(|p| p.good).sum();
        let (mut fails, mut passes) = (0, 0);
        let mut positions = Vec::with_capacity(self.points.len());
        for point in &self.points[..self.points.len() - 1] {
            fails += point.bad;
            passes += point.good;
            let (later_fails, later_passes) = (total_bad - fails, total_good - passes);
            let log = evidence(GOOD_PRIOR, fails, passes)
                + evidence(BAD_PRIOR, later_fails, later_passes);
            let rate = |prior: [f64; 2], fails: usize, passes: usize| {
                (prior[0] + fails as f64) / (prior[0] + prior[1] + (fails + passes) as f64)
            };
            positions.push((
                log,
                rate(GOOD_PRIOR, fails, passes),
                rate(BAD_PRIOR, later_fails, later_passes),
            ));
        }
        let most = positions.iter().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = positions.iter().map(|p| (p.0 - most).exp()).sum();
        positions.iter_mut().for_each(|p| p.0 = (p.0 - most).exp() / sum);
        positions
    }

    /// The likeliest position, as (last good, first bad, probability). Skipped points between the two
    /// share their probability, since no run can distinguish them.
    fn likeliest(&self) -> (usize, usize, f64) {
        let posterior = self.posterior();
        let mut best = (0, 1, f64::NEG_INFINITY);
        let mut start = 0;
        while start < posterior.len() {
            let mut end = start + 1;
            let mut probability = posterior[start].0;
            while end < self.points.len() - 1 && self.points[end].skipped {
                probability += posterior[end].0;
                end += 1;
            }
            if probability > best.2 {
                best = (start, end, probability);
            }
            start = end;
        }
        best
    }

    fn exhausted(&self, index: usize) -> bool {
        self.points[index].skipped || self.runs_at(index) >= self.settings.most_samples
    }

    fn next_search(&mut self) -> Option<usize> {
        if self.likeliest().2 >= self.settings.confidence {
            self.phase = Phase::Check;
            return None;
        }
        let posterior = self.posterior();
        // The information of an answer at each point, summed from the left.
        let n = self.points.len();
        let (mut bad_weight, mut bad_rate, mut bad_entropy) = (0.0, 0.0, 0.0);
        let mut good_rate: f64 = posterior.iter().map(|(p, good, _)| p * good).sum();
        let mut good_entropy: f64 = posterior.iter().map(|(p, good, _)| p * entropy(*good)).sum();
        let mut best: Option<(usize, f64)> = None;
        for index in 0..n {
            // The change lies at or before this point in the hypotheses seen so far.
            if index > 0 {
                let (p, good, bad) = posterior[index - 1];
                bad_weight += p;
                bad_rate += p * bad;
                bad_entropy += p * entropy(bad);
                good_rate -= p * good;
                good_entropy -= p * entropy(good);
            }
            if self.exhausted(index) || bad_weight <= 0.0 && index > 0 {
                continue;
            }
            let information = entropy(bad_rate + good_rate) - bad_entropy - good_entropy;
            if best.is_none_or(|(_, most)| information > most + 1e-12) {
                best = Some((index, information));
            }
        }
        match best {
            Some((index, information)) if information > 1e-9 => Some(index),
            _ => {
                self.nothing_to_ask = true;
                self.phase = Phase::Check;
                None
            }
        }
    }

    /// A search never sees a second change by itself, so a few points it passed over are looked at.
    fn next_check(&mut self) -> Option<usize> {
        let (good, bad, _) = self.likeliest();
        let doubtful = |index: usize| {
            // One odd answer is noise or a second change: ask again until it is clear.
            let point = &self.points[index];
            let expected_bad = index >= bad;
            let (with, against) =
                if expected_bad { (point.bad, point.good) } else { (point.good, point.bad) };
            against > 0 && against >= with && against < 4 && !self.exhausted(index)
        };
        if let Some(index) = (0..self.points.len()).find(|&index| doubtful(index)) {
            return Some(index);
        }
        if self.checks_left > 0 {
            let unseen =
                |index: &usize| self.points[*index].samples() == 0 && !self.points[*index].skipped;
            // The middle of the widest stretch not looked at.
            let mut widest: Option<(usize, usize)> = None;
            let mut start = None;
            for index in 0..=self.points.len() {
                let open =
                    index < self.points.len() && unseen(&index) && !(index > good && index < bad);
                match (open, start) {
                    (true, None) => start = Some(index),
                    (false, Some(from)) => {
                        if widest.is_none_or(|(a, b)| index - from > b - a) {
                            widest = Some((from, index));
                        }
                        start = None;
                    }
                    _ => {}
                }
            }
            if let Some((from, to)) = widest {
                self.checks_left -= 1;
                return Some(from + (to - from) / 2);
            }
        }
        // The checks may have made the answer doubtful; then it is searched on.
        let decided = self.likeliest().2 >= self.settings.confidence || !self.monotone();
        self.phase = if decided || self.nothing_to_ask { Phase::Done } else { Phase::Search };
        None
    }

    /// Whether some point clearly contradicts the answer.
    fn monotone(&self) -> bool {
        let (_, bad, _) = self.likeliest();
        self.points.iter().enumerate().all(|(index, point)| {
            let (with, against) =
                if index >= bad { (point.bad, point.good) } else { (point.good, point.bad) };
            // Twice as likely to be on the other side, after four answers or unanimously.
            !(against >= 2 && against > with && (against >= 4 || with == 0))
        })
    }

    fn verdict(&self, index: usize) -> PointVerdict {
        let point = &self.points[index];
        if point.skipped || point.samples() == 0 {
            return PointVerdict::Skip;
        }
        let posterior = self.posterior();
        // A point's own runs decide; where they are evenly split, its neighbours do.
        let rates = posterior
            .iter()
            .fold((0.0, 0.0), |sum, (p, good, bad)| (sum.0 + p * good, sum.1 + p * bad));
        let log = |rate: f64| {
            let rate = rate.clamp(1e-6, 1.0 - 1e-6);
            point.bad as f64 * rate.ln() + point.good as f64 * (1.0 - rate).ln()
        };
        if log(rates.1) > log(rates.0) { PointVerdict::Bad } else { PointVerdict::Good }
    }

    /// What is known now.
    pub fn answer(&self, axis: &str) -> BisectAnswer {
        let steps: Vec<JudgedPoint> = self
            .visits
            .iter()
            .map(|&index| JudgedPoint {
                point: self.names[index].clone(),
                verdict: self.verdict(index),
                samples: self.runs_at(index),
            })
            .collect();
        let mut answer = BisectAnswer {
            axis: axis.to_owned(),
            last_good: None,
            first_bad: None,
            confidence: 0.0,
            monotone: true,
            steps,
            skipped: Vec::new(),
            subject: None,
            drift: None,
            sentence: String::new(),
        };
        let last = self.points.len() - 1;
        if !self.ends_differ {
            answer.sentence = if let Some(end) =
                [0, last].into_iter().find(|&e| self.points[e].skipped)
            {
                format!("{} cannot be judged, so there is nothing to search from", self.names[end])
            } else if self.points[0].samples() == 0 || self.points[last].samples() == 0 {
                "the ends are not judged yet".to_owned()
            } else if matches!(self.settings.judge, Judge::Metric { .. }) {
                format!("{} and {} do not differ by as much", self.names[0], self.names[last])
            } else if self.verdict(0) == PointVerdict::Bad
                || self.points[0].bad > self.points[0].good
            {
                format!("{} is given as good and is bad", self.names[0])
            } else {
                format!("{} is given as bad and is good", self.names[last])
            };
            return answer;
        }
        let (good, bad, confidence) = self.likeliest();
        answer.last_good = Some(self.names[good].clone());
        answer.first_bad = Some(self.names[bad].clone());
        answer.skipped = self.names[good + 1..bad].to_vec();
        answer.monotone = self.monotone();
        answer.confidence = confidence;
        answer.write_sentence();
        answer
    }
}

/// The logarithm of the probability of such answers, the rate unknown.
fn evidence(prior: [f64; 2], fails: usize, passes: usize) -> f64 {
    ln_beta(prior[0] + fails as f64, prior[1] + passes as f64) - ln_beta(prior[0], prior[1])
}

fn entropy(p: f64) -> f64 {
    let part = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    part(p) + part(1.0 - p)
}
