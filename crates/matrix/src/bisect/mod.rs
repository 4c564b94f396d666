//! Searches for the point where a property changes, tolerating flaky runs.
//!
//! A pure planner: it returns the next point to run and takes the observation. For every position
//! of the change, it tracks how well that position explains all runs so far, with unknown failure
//! rates before and after it; it asks where an answer is most informative, and stops when one
//! position is likely enough. A deterministic property costs little more than bisection by halving;
//! one that fails every third time costs more runs, and the answer states its confidence.
//!
//! A metric is never compared across time: probing a point runs the point and the good end in
//! random order, and only the ratio of the two counts. A machine that gets slower during the search
//! slows both.

mod ends;
mod evidence;
mod plan;
mod settings;

use retake_types::Better;
use retake_types::loop_record::matrix::{BisectAnswer, JudgedPoint, PointVerdict};

use crate::stats::{median, median_interval};
use evidence::{BAD_PRIOR, GOOD_PRIOR, entropy, evidence};

pub use plan::{BisectPlan, BisectStep, PointResult};
pub use settings::{BisectError, BisectSettings, Judge, MOST_SAMPLES, Observation};

#[derive(Clone, Debug, Default)]
struct Point {
    good: usize,
    bad: usize,
    /// Logarithms of its values divided by the paired values of the good end.
    ratios: Vec<f64>,
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
    Halving,
    Ends,
    Search,
    Check,
    Done,
}

/// The state of a search.
#[derive(Clone, Debug)]
pub struct Bisect {
    names: Vec<String>,
    /// Whether the good end comes after the bad one, as in a search for what made it better.
    good_is_later: bool,
    /// What the user calls the good end and the bad one.
    given: [String; 2],
    points: Vec<Point>,
    /// Points in the order they were first asked or answered.
    visits: Vec<usize>,
    settings: BisectSettings,
    phase: Phase,
    /// Larger is worse (or smaller, if negative).
    cut: Option<f64>,
    ends_differ: bool,
    /// Whether the metric is better at the bad end.
    improved: bool,
    /// The values of the good end, in order.
    beside: Vec<f64>,
    /// Whether no further run would be informative.
    nothing_to_ask: bool,
}

/// Initial runs at each end: for exit codes, and for a metric.
const END_RUNS: usize = 2;
const END_VALUES: usize = 3;
/// Points to check for a second change after the answer is found.
const CHECKS: usize = 2;
/// The factor by which an answer by metric is more likely to be wrong than its votes say.
const DOUBT: f64 = 1.5;
/// The prior probability of a second change.
const SECOND_CHANGE: f64 = 0.05;
/// Log odds that the ends differ, three to one, which suffice to start; later results must add the
/// rest.
const ENOUGH_ODDS: f64 = 1.1;
/// Runs at each end after which the ends may be found not to differ.
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
        Ok(Self {
            points: vec![Point::default(); names.len()],
            names,
            good_is_later: from > to,
            given: [good, bad].map(str::to_owned),
            visits: Vec::new(),
            settings,
            phase: if settings.quick { Phase::Halving } else { Phase::Ends },
            cut: None,
            ends_differ: settings.quick,
            improved: false,
            beside: Vec::new(),
            nothing_to_ask: false,
        })
    }

    /// Names of the two ends for people.
    #[must_use]
    pub fn with_given_names(mut self, good: &str, bad: &str) -> Self {
        self.given = [good, bad].map(str::to_owned);
        self
    }

    /// Whether every run of a point must be paired with one of the good end.
    pub fn needs_pairs(&self) -> bool {
        matches!(self.settings.judge, Judge::Metric { .. })
    }

    /// Sets the better direction of the metric, which a run may report.
    pub fn set_better(&mut self, better: Better) {
        self.settings.better = Some(better);
        self.count_votes();
    }

    /// Whether the metric is better at the bad end, as far as its runs say.
    fn improves(&self) -> bool {
        let last = &self.points[self.points.len() - 1];
        let (Some(better), Some(middle)) = (self.settings.better, median(&last.ratios)) else {
            return false;
        };
        last.timeouts == 0
            && match better {
                Better::Lower => middle < 0.0,
                Better::Higher => middle > 0.0,
            }
    }

    fn certainly_improves(&self) -> bool {
        let ratios = &self.points[self.points.len() - 1].ratios;
        self.improves() && median_interval(ratios).is_some_and(|[a, b]| a > 0.0 || b < 0.0)
    }

    /// Whether the whole interval of the difference of the ends is beyond the threshold.
    fn exceeds_threshold(&self) -> bool {
        let Judge::Metric { threshold: Some(_) } = self.settings.judge else { return false };
        let last = &self.points[self.points.len() - 1];
        let Some(cut) = self.cut.filter(|_| last.timeouts == 0) else { return false };
        median_interval(&last.ratios)
            .is_some_and(|[low, high]| if cut < 0.0 { high < cut } else { low > cut })
    }

    /// Whether the interval of the difference of the ends covers the threshold. Too few values for
    /// an interval cover anything.
    fn covers_threshold(&self) -> bool {
        let Judge::Metric { threshold: Some(_) } = self.settings.judge else { return false };
        let last = &self.points[self.points.len() - 1];
        let Some(cut) = self.cut.filter(|_| last.timeouts == 0) else { return false };
        match median_interval(&last.ratios) {
            Some([low, high]) => low <= cut && cut <= high,
            None => !last.ratios.is_empty(),
        }
    }

    /// The points from the good end to the bad one.
    pub fn points(&self) -> &[String] {
        &self.names
    }

    /// Processes the observation of a run: a requested one, or one from the record.
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
            // A failed run measured nothing.
            Observation::Exit(_) => state.skipped |= state.ratios.is_empty(),
            Observation::Value { value, beside } if by_metric && index > 0 => {
                let ratio = match (value > 0.0, beside > 0.0) {
                    (true, true) => (value / beside).ln(),
                    // Without a ratio there is still a direction.
                    _ => (value - beside) * f64::INFINITY,
                };
                let ratio = if value == beside { 0.0 } else { ratio };
                if !ratio.is_nan() {
                    state.skipped = false;
                    state.ratios.push(ratio);
                    self.beside.push(beside);
                    if !std::mem::replace(&mut self.points[0].visited, true) {
                        self.visits.push(0);
                    }
                }
            }
            Observation::Value { .. } => {}
        }
        self.count_votes();
    }

    /// In a search by metric every value votes for the side of the cut it is on.
    fn count_votes(&mut self) {
        let Judge::Metric { threshold } = self.settings.judge else {
            for point in &mut self.points {
                point.bad += std::mem::take(&mut point.timeouts);
            }
            return;
        };
        let last = self.points.len() - 1;
        let end = &self.points[last];
        let middle = median(&end.ratios);
        let hung = end.timeouts > 0;
        // Without a value of the bad end, bad is the direction that is worse.
        let lower_is_worse = self.settings.better == Some(Better::Higher);
        let upwards = middle.map_or(!lower_is_worse, |middle| middle >= 0.0);
        let (cut, upwards) = match (threshold, middle) {
            (Some(threshold), _) if upwards => (threshold.ln_1p(), true),
            (Some(threshold), _) => (-threshold.ln_1p(), false),
            (None, Some(middle)) => (0.5 * middle, upwards),
            (None, None) if hung => (f64::INFINITY, true),
            (None, None) => return,
        };
        self.cut = Some(cut);
        for point in &mut self.points {
            let bad = point.ratios.iter().filter(|x| (**x > cut) == upwards && **x != cut).count();
            point.good = point.ratios.len() - bad;
            point.bad = bad + point.timeouts;
        }
        // The good end is not measured against itself. The spread of the bad end around its median
        // shows how noise affects a ratio.
        let middle = middle.unwrap_or(0.0);
        let noise = self.points[last].ratios.iter().map(|ratio| ratio - middle);
        let bad = noise.filter(|x| (*x > cut) == upwards && *x != cut).count();
        let runs = self.points[last].ratios.len();
        (self.points[0].good, self.points[0].bad) = (runs - bad, bad);
    }

    /// The next point to run; `None` when the search is over.
    pub fn next_point(&mut self) -> Option<&str> {
        loop {
            let index = match self.phase {
                Phase::Halving => self.next_half(),
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
            Judge::Metric { .. } if index == 0 => self.beside.len() + point.timeouts,
            Judge::Metric { .. } => point.ratios.len() + point.timeouts,
        }
    }

    /// Whether the runs of the bad end, which alone tell that there is a change of this size, do
    /// not suffice, and may not be repeated.
    fn cannot_exceed_threshold(&self) -> bool {
        matches!(self.settings.judge, Judge::Metric { threshold: Some(_) })
            && self.exhausted(self.points.len() - 1)
            && self.hypotheses().changed() < self.settings.confidence
    }

    /// The middle of the remaining interval; each point only once.
    fn next_half(&mut self) -> Option<usize> {
        let last = self.points.len() - 1;
        let by_level = matches!(self.settings.judge, Judge::Metric { threshold: None });
        if by_level && self.runs_at(last) == 0 && !self.points[last].skipped {
            return Some(last);
        }
        if !self.improved && self.improves() {
            (self.ends_differ, self.improved) = (false, true);
            self.phase = Phase::Done;
            return None;
        }
        let (good, bad) = self.halves();
        let open = |index: &usize| !self.points[*index].skipped;
        let middle = good + (bad - good) / 2;
        let nearest = (good + 1..bad).filter(open).min_by_key(|index| index.abs_diff(middle));
        if nearest.is_none() {
            self.phase = Phase::Done;
        }
        nearest
    }

    /// The last known good point and the first known bad one after it, by single answers.
    fn halves(&self) -> (usize, usize) {
        let last = self.points.len() - 1;
        let inner = 1..last;
        let is_bad = |index: &usize| self.points[*index].bad > self.points[*index].good;
        let bad = inner.clone().find(is_bad).unwrap_or(last);
        let is_good = |index: &usize| self.points[*index].samples() > 0 && !is_bad(index);
        (inner.filter(|index| *index < bad).rfind(is_good).unwrap_or(0), bad)
    }

    /// The ends must be confirmed before points between them have any meaning.
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
        let fewer = match self.settings.judge {
            Judge::ExitCode => ends.into_iter().min_by_key(|&end| self.runs_at(end))?,
            // Every probe measures the good end.
            Judge::Metric { .. } => last,
        };
        if self.runs_at(fewer) < needed {
            return Some(fewer);
        }
        let odds = self.odds_of_ends();
        if odds >= ENOUGH_ODDS {
            // What made it better is not what broke it.
            if self.improves() {
                let certain = self.certainly_improves();
                if !certain && self.runs_at(fewer) < self.settings.most_samples {
                    return Some(fewer);
                }
                self.improved = certain;
                self.phase = Phase::Done;
                return None;
            }
            self.ends_differ = true;
            self.phase = Phase::Search;
            return None;
        }
        if self.is_reversed() {
            self.phase = Phase::Done;
            return None;
        }
        // A bad end that fails every other time may pass several times in a row.
        let hopeless =
            odds < -(10f64.ln()) && self.runs_at(fewer) >= GIVE_UP_RUNS && !self.covers_threshold();
        if hopeless || self.runs_at(fewer) >= self.settings.most_samples {
            // Not certainly by the threshold, but certainly better.
            self.improved = !hopeless && self.covers_threshold() && self.certainly_improves();
            self.phase = Phase::Done;
            return None;
        }
        Some(fewer)
    }

    /// For each position k, the probability that the points before k are good and the others bad,
    /// with the implied failure rates on both sides. The first entry is k = 1.
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

    /// The most likely position, as (last good, first bad, probability). The probabilities of
    /// skipped points between the two are added, since no run can distinguish them.
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
        best.2 = self.doubted(best.2);
        best
    }

    /// Votes of a metric vary more than coin tosses; simulations determined the factor.
    fn doubted(&self, probability: f64) -> f64 {
        let doubt = if self.needs_pairs() { DOUBT } else { 1.0 };
        (1.0 - doubt * (1.0 - probability)).max(0.0)
    }

    fn exhausted(&self, index: usize) -> bool {
        // The good end paired with itself is uninformative.
        self.needs_pairs() && index == 0
            || self.points[index].skipped
            || self.runs_at(index) >= self.settings.most_samples
    }

    fn next_search(&mut self) -> Option<usize> {
        let hypotheses = self.hypotheses();
        let changed = hypotheses.changed();
        if self.odds_of_ends() < 0.0 {
            // The difference of the ends may have been chance.
            self.ends_differ = false;
            self.phase = Phase::Ends;
            return None;
        }
        let (good, bad, likeliest) = self.likeliest();
        if likeliest * changed >= self.settings.confidence {
            self.phase = Phase::Check;
            return None;
        }
        let last = self.points.len() - 1;
        if self.cannot_exceed_threshold() {
            self.phase = Phase::Done;
            return None;
        }
        // The place is known; whether there is a change at all is not yet.
        let telling = match self.settings.judge {
            Judge::ExitCode => [0, last, good, bad],
            Judge::Metric { .. } => [last; 4],
        };
        if likeliest >= self.settings.confidence
            && let Some(index) = self.fewest_runs(telling)
        {
            return Some(index);
        }
        let posterior = self.posterior();
        // The information of an answer at each point, accumulated from the left.
        let n = self.points.len();
        let (mut bad_weight, mut bad_rate, mut bad_entropy) = (0.0, 0.0, 0.0);
        let mut good_rate: f64 = posterior.iter().map(|(p, good, _)| p * good).sum();
        let mut good_entropy: f64 = posterior.iter().map(|(p, good, _)| p * entropy(*good)).sum();
        let mut best: Option<(usize, f64)> = None;
        for index in 0..n {
            // In the hypotheses so far, the change is at or before this point.
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

    /// The search itself never detects a second change, so several skipped points are checked.
    fn next_check(&mut self) -> Option<usize> {
        let (good, bad, _) = self.likeliest();
        // An odd answer is noise or a second change: ask again until it is clear.
        let doubtful = |index: usize| {
            let odds = self.contradiction(index, bad);
            odds > -self.clear() && odds < self.clear() && !self.exhausted(index)
        };
        if let Some(index) = (0..self.points.len()).find(|&index| doubtful(index)) {
            return Some(index);
        }
        if self.visits.len() < self.points.len().ilog2() as usize + 2 + CHECKS {
            let unseen =
                |index: &usize| self.points[*index].samples() == 0 && !self.exhausted(*index);
            // The middle of the widest unchecked interval.
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
                return Some(from + (to - from) / 2);
            }
        }
        let monotone = self.monotone();
        if !monotone
            && self.differ(good, bad) < self.settings.confidence
            && let Some(index) = self.fewest_runs([good, bad])
        {
            return Some(index);
        }
        // The checks may have made the answer doubtful; then the search continues.
        let decided = self.certainty() >= self.settings.confidence || !monotone;
        self.phase = if decided || self.nothing_to_ask { Phase::Done } else { Phase::Search };
        None
    }

    /// The one with the fewest runs that may run again.
    fn fewest_runs<const N: usize>(&self, points: [usize; N]) -> Option<usize> {
        let open = points.into_iter().filter(|&index| !self.exhausted(index));
        open.min_by_key(|&index| self.runs_at(index))
    }

    /// The probability of the likeliest place: that there is a change, and that it is there.
    fn certainty(&self) -> f64 {
        self.likeliest().2 * self.hypotheses().changed()
    }

    /// The odds required for a clear answer, as a logarithm.
    fn clear(&self) -> f64 {
        (self.settings.confidence / (1.0 - self.settings.confidence)).ln()
    }

    /// The log odds that a point is on the other side of `bad`: from its own runs, the rates of all
    /// others, and the prior of a second change.
    fn contradiction(&self, index: usize, bad: usize) -> f64 {
        let point = &self.points[index];
        if point.samples() == 0 {
            return f64::NEG_INFINITY;
        }
        let others = |range: std::ops::Range<usize>| {
            let others = range.filter(|&other| other != index).map(|other| &self.points[other]);
            others.fold((0, 0), |(fails, passes), p| (fails + p.bad, passes + p.good))
        };
        let expected = |prior: [f64; 2], (fails, passes): (usize, usize)| {
            evidence(prior, fails + point.bad, passes + point.good) - evidence(prior, fails, passes)
        };
        let if_good = expected(GOOD_PRIOR, others(0..bad));
        let if_bad = expected(BAD_PRIOR, others(bad..self.points.len()));
        let against = if index >= bad { if_good - if_bad } else { if_bad - if_good };
        let seen = self.points.iter().filter(|point| point.samples() > 0).count().max(1);
        against + (SECOND_CHANGE / seen as f64).ln()
    }

    /// Whether no point clearly contradicts the answer.
    fn monotone(&self) -> bool {
        let (_, bad, _) = self.likeliest();
        (0..self.points.len()).all(|index| self.contradiction(index, bad) < self.clear())
    }

    fn verdict(&self, index: usize) -> PointVerdict {
        let point = &self.points[index];
        if point.skipped || point.samples() == 0 {
            return PointVerdict::Skip;
        }
        let posterior = self.posterior();
        // A point's own runs decide; if they are evenly split, its neighbours do.
        let rates = posterior
            .iter()
            .fold((0.0, 0.0), |sum, (p, good, bad)| (sum.0 + p * good, sum.1 + p * bad));
        let log = |rate: f64| {
            let rate = rate.clamp(1e-6, 1.0 - 1e-6);
            point.bad as f64 * rate.ln() + point.good as f64 * (1.0 - rate).ln()
        };
        if log(rates.1) > log(rates.0) { PointVerdict::Bad } else { PointVerdict::Good }
    }

    /// The current answer.
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
            at: None,
            good_is_later: self.good_is_later,
            trusted: self.settings.quick,
            last_good: None,
            first_bad: None,
            confidence: 0.0,
            monotone: true,
            steps,
            skipped: Vec::new(),
            subject: None,
            drift: None,
            disturbances: Vec::new(),
            sentence: String::new(),
        };
        answer.drift = crate::stats::drift(&self.beside);
        if !self.ends_differ {
            answer.sentence = self.why_ends_do_not_differ();
            return answer;
        }
        let (mut good, mut bad, _) = self.likeliest();
        answer.monotone = self.settings.quick || self.monotone();
        answer.confidence = match answer.monotone {
            true => self.certainty(),
            // A single change does not explain the runs; only the two points are compared.
            false => self.differ(good, bad),
        };
        if self.settings.quick {
            (good, bad) = self.halves();
            answer.confidence = self.posterior()[good..bad].iter().map(|place| place.0).sum();
        }
        // More digits say nothing, and would not all be read back from JSON.
        answer.confidence = (answer.confidence * 1e6).floor() / 1e6;
        answer.last_good = Some(self.names[good].clone());
        answer.first_bad = Some(self.names[bad].clone());
        answer.skipped = self.names[good + 1..bad].to_vec();
        answer.write_sentence();
        let contradicted = self.contradicted(good, bad).filter(|_| self.settings.quick);
        let unsure = !self.settings.quick && answer.confidence < self.settings.confidence;
        if contradicted.is_some() || unsure {
            answer.sentence = match contradicted {
                Some(point) => self.why_contradicted(point, &answer.sentence),
                None if self.cannot_exceed_threshold() => self.ends_alike(),
                None => self.why_unsure(&answer.sentence),
            };
            (answer.last_good, answer.first_bad) = (None, None);
            answer.skipped.clear();
            answer.confidence = 0.0;
        }
        answer
    }
}
