//! The commits of a branch, and what the record knows of each: every session, every configuration
//! that measures the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use retake_runner::worker::Worker;
use retake_types::Better;
use retake_types::loop_record::matrix::CellKey;

use super::error::MatrixError;
use super::project::MatrixProject;
use super::recorded_results::{RecordedResults, ResultRow};
use super::resources::Resources;
use super::samples::CONDITIONS;
use crate::config::{CODE, Config};
use crate::git::{Commit, Git};
use crate::history::{Change, CommitHistory, CommitRow, CommitSeries, Session};
use crate::plan::{Cell, Matrix};
use crate::stats::{
    ChangeCriteria, ChangePoint, Evidence, Observation, Verdict, change_points, median_interval,
    session_spread, summarise,
};

/// Commits of a branch that are looked at, the newest.
const MOST_COMMITS: usize = 20_000;

/// The commits of a branch, oldest first.
#[derive(Clone, Debug)]
pub struct CommitChain {
    /// As it was asked for.
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

    /// The cells of all commits: a line of them for each combination of the other axes.
    pub fn lines(&self, matrix: &Matrix, resources: &Resources) -> CommitLines {
        let mut lines = CommitLines { chain: self.clone(), names: Vec::new(), keys: Vec::new() };
        let Some(code) = matrix.axis(CODE) else { return lines };
        let mut identity = resources.identity.clone();
        for commit in &self.commits {
            identity.resolve_code(&commit.sha, &commit.sha);
        }
        let mut rest: Vec<Cell> = Vec::new();
        for cell in &matrix.cells {
            let mut cell = cell.clone();
            cell.0[code] = 0;
            if !rest.contains(&cell) {
                rest.push(cell);
            }
        }
        let others: Vec<usize> =
            matrix.varying_axes().into_iter().filter(|axis| *axis != code).collect();
        for cell in rest {
            let name: Vec<String> = others
                .iter()
                .map(|&axis| format!("{}={}", matrix.axes[axis].name, matrix.value(&cell, axis)))
                .collect();
            let mut line = matrix.clone();
            line.axes[code].values = self.commits.iter().map(|commit| commit.sha.clone()).collect();
            line.cells = (0..self.commits.len())
                .map(|commit| {
                    let mut cell = cell.clone();
                    cell.0[code] = u32::try_from(commit).unwrap_or(u32::MAX);
                    cell
                })
                .collect();
            lines.names.push((!name.is_empty()).then(|| name.join(" ")));
            lines.keys.push(identity.keys(&line));
        }
        lines
    }
}

/// The cells of the commits of a branch.
#[derive(Clone, Debug)]
pub struct CommitLines {
    chain: CommitChain,
    /// Of each line: the values of the other axes.
    names: Vec<Option<String>>,
    /// Of each line, one for each commit.
    keys: Vec<Vec<CellKey>>,
}

impl CommitLines {
    pub fn keys(&self) -> Vec<CellKey> {
        self.keys.concat()
    }

    /// A metric over the commits.
    pub fn history(
        &self,
        recorded: &RecordedResults,
        config: &Config,
        metric: &str,
        margin: f64,
    ) -> CommitHistory {
        let mut unit = None;
        let mut better = None;
        for row in self.keys.iter().flatten().flat_map(|key| recorded.of(*key)) {
            if let Some(found) = row.metrics.get(metric) {
                unit = found.unit.clone().or(unit);
                better = found.better.or(better);
            }
        }
        let configured = config.metrics.iter().find(|known| known.name == metric);
        let better = better.unwrap_or_else(|| config.better(metric));
        let criteria =
            ChangeCriteria { margin, histories: self.keys.len(), ..ChangeCriteria::default() };
        let mut history = CommitHistory {
            reference: self.chain.reference.clone(),
            metric: metric.to_owned(),
            unit: unit.or_else(|| configured?.unit.clone()),
            looked_at: self.chain.commits.len(),
            sessions: Vec::new(),
            series: Vec::new(),
        };
        let mut used: BTreeSet<usize> = BTreeSet::new();
        let lines: Vec<Line> = self
            .keys
            .iter()
            .map(|keys| {
                let line = Line::read(keys, recorded, metric);
                used.extend(line.observations.iter().map(|one| one.session));
                line
            })
            .collect();
        let numbers: BTreeMap<usize, usize> =
            used.iter().enumerate().map(|(place, session)| (*session, place + 1)).collect();
        history.sessions = sessions(&used, recorded);
        for (line, name) in lines.iter().zip(&self.names) {
            let mut series = line.series(&self.chain.commits, &numbers);
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

    fn change(&self, point: &ChangePoint, better: Better) -> Change {
        let commits = &self.chain.commits;
        let worse = point.is_more() == (better == Better::Lower);
        Change {
            commit: commits[point.commit].sha.clone(),
            subject: commits[point.commit].subject.clone(),
            before: commits[point.before].sha.clone(),
            between: point.commit - point.before - 1,
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

fn sessions(used: &BTreeSet<usize>, recorded: &RecordedResults) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    for &index in used {
        let Some((loop_id, started)) = recorded.session_start(index) else { continue };
        let environment = recorded.session(index).map(|plan| &plan.environment);
        let conditions: BTreeMap<String, String> = CONDITIONS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), environment?.get(*name)?.clone())))
            .collect();
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
        // What ran on different machines was not measured in turn, whatever its round.
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

    fn series(&self, commits: &[Commit], numbers: &BTreeMap<usize, usize>) -> CommitSeries {
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
            }
        };
        CommitSeries {
            cell: None,
            commits: by_commit.iter().map(row).collect(),
            changes: Vec::new(),
            session_spread: spread.and_then(|spread| spread.part()),
        }
    }

    /// What of the machine is not the same before and after a change that was seen from session to
    /// session.
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
