//! The commits of a branch, and all recorded results of each: of every session, and every
//! configuration that measures the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use retake_runner::worker::Worker;
use retake_types::Better;
use retake_types::loop_record::matrix::{CellKey, CommitCells, MeasuredCommit, MeasuredCommits};

use super::error::MatrixError;
use super::project::MatrixProject;
use super::recorded_results::{RecordedResults, ResultRow};
use super::resources::{Resources, short_sha};
use super::samples::CONDITIONS;
use crate::config::{CODE, Config};
use crate::export::{CellResults, MetricResults, RunResults};
use crate::git::{Commit, Git};
use crate::history::{Change, CommitHistory, CommitRow, CommitSeries, Session};
use crate::plan::Matrix;
use crate::stats::{
    ChangeCriteria, ChangePoint, Evidence, Observation, Verdict, change_points, median_interval,
    session_spread, summarise,
};

/// Maximum newest commits of a branch to examine.
const MOST_COMMITS: usize = 20_000;

/// Defaults of a metric whose runs do not report unit and direction.
#[derive(Clone, Debug, Default)]
pub struct MetricDefaults {
    pub unit: Option<String>,
    pub better: Better,
}

impl MetricDefaults {
    pub fn of(config: &Config, metric: &str) -> Self {
        let configured = config.metrics.iter().find(|known| known.name == metric);
        let unit = configured.and_then(|known| known.unit.clone());
        Self { unit, better: config.better(metric) }
    }
}

/// The commits of a branch, oldest first.
#[derive(Clone, Debug)]
pub struct CommitChain {
    /// As requested.
    pub reference: String,
    pub commits: Vec<Commit>,
}

impl CommitChain {
    pub fn read(
        worker: &mut Worker,
        project: &MatrixProject,
        reference: &str,
    ) -> Result<Self, MatrixError> {
        let repo = project.repo().ok_or(MatrixError::NoCode)?;
        let (keeper, cancel) = worker.parts();
        let mut git = Git::open(keeper, cancel, repo, std::env::vars_os())?;
        let tip = git.resolve(reference)?;
        let commits = git.first_parents(&tip, MOST_COMMITS)?;
        Ok(Self { reference: reference.to_owned(), commits })
    }

    /// The cells of the commits, one line of cells per combination of the other axes: of all
    /// commits, or of the given ones.
    pub fn lines(
        &self,
        matrix: &Matrix,
        resources: &Resources,
        wanted: impl Fn(&str) -> bool,
    ) -> CommitLines {
        let commits = self.commits.iter().enumerate().filter(|(_, commit)| wanted(&commit.sha));
        let mut measured = MeasuredCommits {
            reference: self.reference.clone(),
            commits: commits
                .map(|(place, Commit { sha, subject })| MeasuredCommit {
                    sha: sha.clone(),
                    subject: subject.clone(),
                    place,
                })
                .collect(),
            lines: Vec::new(),
        };
        let mut identity = resources.identity.clone();
        for commit in &measured.commits {
            identity.resolve_code(&commit.sha, &commit.sha);
        }
        let shas: Vec<String> = measured.commits.iter().map(|one| one.sha.clone()).collect();
        let lines = matrix.lines_of(CODE, &shas).into_iter();
        measured.lines =
            lines.map(|(name, line)| CommitCells { name, keys: identity.keys(&line) }).collect();
        CommitLines { measured, looked_at: self.commits.len() }
    }
}

/// The cells of a branch's commits.
#[derive(Clone, Debug)]
pub struct CommitLines {
    measured: MeasuredCommits,
    looked_at: usize,
}

impl CommitLines {
    /// The commits that a loop recorded.
    pub fn recorded(measured: MeasuredCommits) -> Self {
        let looked_at = measured.commits.last().map_or(0, |last| last.place + 1);
        Self { measured, looked_at }
    }

    pub fn into_measured(self) -> MeasuredCommits {
        self.measured
    }

    pub fn keys(&self) -> Vec<CellKey> {
        self.measured.lines.iter().flat_map(|line| line.keys.iter().copied()).collect()
    }

    /// A metric over the commits.
    pub fn history(
        &self,
        recorded: &RecordedResults,
        metric: &str,
        defaults: MetricDefaults,
        margin: f64,
    ) -> CommitHistory {
        let MetricDefaults { mut unit, mut better } = defaults;
        for row in self.keys().iter().flat_map(|key| recorded.of(*key)) {
            if let Some(found) = row.metrics.get(metric) {
                unit = found.unit.clone().map(Into::into).or(unit);
                better = found.better.unwrap_or(better);
            }
        }
        let lines = &self.measured.lines;
        let criteria =
            ChangeCriteria { margin, histories: lines.len(), ..ChangeCriteria::default() };
        let mut history = CommitHistory {
            reference: self.measured.reference.clone(),
            metric: metric.to_owned(),
            unit,
            looked_at: self.looked_at,
            fewest: criteria.fewest_blocks(),
            better,
            sessions: Vec::new(),
            series: Vec::new(),
        };
        let mut used: BTreeSet<usize> = BTreeSet::new();
        let values: Vec<Line> =
            lines.iter().map(|line| Line::read(&line.keys, recorded, metric)).collect();
        used.extend(values.iter().flat_map(|line| &line.observations).map(|one| one.session));
        let numbers: BTreeMap<usize, usize> =
            used.iter().enumerate().map(|(place, session)| (*session, place + 1)).collect();
        history.sessions = sessions(&used, recorded, &self.keys());
        for (line, CommitCells { name, .. }) in values.iter().zip(lines) {
            let mut series = line.series(&self.measured.commits, &numbers);
            series.cell.clone_from(name);
            for point in change_points(&line.observations, &criteria) {
                let mut change = self.change(&point, better);
                change.conditions = line.conditions(&point, &history.sessions, &numbers);
                series.changes.push(change);
            }
            history.series.push(series);
        }
        history
    }

    /// All measurements of the commits in a history of the metric, for other programs.
    pub fn results(&self, recorded: &RecordedResults, history: &CommitHistory) -> MetricResults {
        let mut cells = Vec::new();
        for CommitCells { name, keys } in &self.measured.lines {
            for (commit, key) in self.measured.commits.iter().zip(keys) {
                let (results, failed) = recorded.results(*key);
                let runs: Vec<RunResults> = results.values().map(|row| row.to_results()).collect();
                if runs.is_empty() && failed.is_empty() {
                    continue;
                }
                let short = short_sha(&commit.sha);
                cells.push(CellResults {
                    name: match name {
                        Some(name) => format!("{short} {name}"),
                        None => short.to_owned(),
                    },
                    parameters: [(CODE.to_owned(), commit.sha.clone())].into(),
                    values: runs
                        .iter()
                        .filter_map(|run| Some(run.metrics.get(history.metric.as_str())?.value))
                        .collect(),
                    failed: failed.len(),
                    change: None,
                    runs,
                });
            }
        }
        MetricResults {
            metric: history.metric.clone(),
            unit: history.unit.clone(),
            shell_start: None,
            cells,
        }
    }

    fn change(&self, point: &ChangePoint, better: Better) -> Change {
        let commits = &self.measured.commits;
        let worse = point.is_more() == (better == Better::Lower);
        Change {
            commit: commits[point.commit].sha.clone(),
            subject: commits[point.commit].subject.clone(),
            before: commits[point.before].sha.clone(),
            between: commits[point.commit].place - commits[point.before].place - 1,
            verdict: if worse { Verdict::Slower } else { Verdict::Faster },
            evidence: point.evidence,
            ratio: point.ratio(),
            interval: point.ratio_interval(),
            difference: point.difference(),
            difference_interval: point.difference_interval(),
            conditions: Vec::new(),
        }
    }
}

fn sessions(used: &BTreeSet<usize>, recorded: &RecordedResults, keys: &[CellKey]) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    for &index in used {
        let Some((loop_id, started)) = recorded.session_start(index) else { continue };
        let environments = recorded.environments(keys, &BTreeSet::from([index]));
        // Several machines of one session give several values.
        let condition = |name: &&str| {
            let values: BTreeSet<&str> =
                environments.iter().filter_map(|known| Some(known.get(*name)?.as_str())).collect();
            let text = values.into_iter().collect::<Vec<_>>().join(", ");
            (!text.is_empty()).then(|| ((*name).to_owned(), text))
        };
        let conditions: BTreeMap<String, String> =
            CONDITIONS.iter().filter_map(condition).collect();
        let before = sessions.last().map(|session| &session.conditions);
        let differs = conditions
            .iter()
            .filter(|(name, value)| {
                before.and_then(|known| known.get(*name)).is_some_and(|known| known != *value)
            })
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let number = sessions.len() + 1;
        sessions.push(Session { number, loop_id, started, conditions, differs });
    }
    sessions
}

/// The values of one line of cells.
#[derive(Default)]
struct Line {
    observations: Vec<Observation>,
    failed: BTreeMap<usize, usize>,
}

impl Line {
    fn read(keys: &[CellKey], recorded: &RecordedResults, metric: &str) -> Self {
        let mut line = Self::default();
        // Runs on different machines were not measured in turn, even in one round.
        let mut blocks: HashMap<(usize, u64, Option<&str>), u64> = HashMap::new();
        for (commit, key) in keys.iter().enumerate() {
            if recorded.of(*key).is_empty() {
                continue;
            }
            let (results, failed) = recorded.results(*key);
            line.failed.insert(commit, failed.len());
            for (block, row) in results {
                let row: &ResultRow = row;
                let Some(found) = row.metrics.get(metric) else { continue };
                let next = blocks.len() as u64;
                let place = (block.session, block.round, row.node.as_deref());
                let number = *blocks.entry(place).or_insert(next);
                line.observations.push(Observation {
                    commit,
                    session: block.session,
                    block: (!row.blocked).then_some(number),
                    value: found.value,
                });
            }
        }
        line
    }

    fn series(&self, commits: &[MeasuredCommit], numbers: &BTreeMap<usize, usize>) -> CommitSeries {
        let mut by_commit: BTreeMap<usize, Vec<&Observation>> =
            self.failed.keys().map(|commit| (*commit, Vec::new())).collect();
        for one in &self.observations {
            by_commit.entry(one.commit).or_default().push(one);
        }
        let spread = session_spread(&self.observations);
        let row = |(commit, seen): (&usize, &Vec<&Observation>)| {
            let values: Vec<f64> = seen.iter().map(|one| one.value).collect();
            let summary = summarise(&values);
            let sessions: BTreeSet<usize> =
                seen.iter().filter_map(|one| numbers.get(&one.session).copied()).collect();
            let interval =
                summary.as_ref().zip(median_interval(&values)).map(|(summary, interval)| {
                    match &spread {
                        Some(spread) => spread.widen(summary.median, interval, sessions.len()),
                        None => interval,
                    }
                });
            CommitRow {
                sha: commits[*commit].sha.clone(),
                subject: commits[*commit].subject.clone(),
                summary,
                interval,
                failed: self.failed.get(commit).copied().unwrap_or(0),
                sessions: sessions.into_iter().collect(),
                place: commits[*commit].place,
            }
        };
        CommitSeries {
            cell: None,
            commits: by_commit.iter().map(row).collect(),
            changes: Vec::new(),
            session_spread: spread.and_then(|spread| spread.part()),
        }
    }

    /// Properties of the machine that differ before and after a change between sessions.
    fn conditions(
        &self,
        point: &ChangePoint,
        sessions: &[Session],
        numbers: &BTreeMap<usize, usize>,
    ) -> Vec<(String, Vec<String>)> {
        if point.evidence == Evidence::SameSessions {
            return Vec::new();
        }
        let of = |commit: usize, name: &str| -> BTreeSet<String> {
            let seen = self.observations.iter().filter(|one| one.commit == commit);
            let used = seen.filter_map(|one| sessions.get(numbers.get(&one.session)? - 1));
            used.filter_map(|session| session.conditions.get(name).cloned()).collect()
        };
        let differing = |name: &&str| {
            let (before, after) = (of(point.before, name), of(point.commit, name));
            let all: Vec<String> = before.union(&after).cloned().collect();
            (before != after && all.len() > 1).then(|| ((*name).to_owned(), all))
        };
        CONDITIONS.iter().filter_map(differing).collect()
    }
}
