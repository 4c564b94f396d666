//! Lists runs by start time. Every filter names the index that serves it.
//!
//! Pages continue from a key, never by OFFSET, so page 10,000 costs what page 1 does.

use std::collections::HashSet;
use std::path::PathBuf;

use jiff::Timestamp;
use retake_types::{Kind, LoopId, OutcomeKind, Run, RunId, State, text};
use rusqlite::types::Value;

use crate::base::ledger::{parse_ending, parse_ending_summary, parse_intent};
use crate::base::projection::{INTERRUPTED, OK, kind_number, status};
use crate::base::{live_file, schema};
use crate::{Error, Result, Store};

/// Which runs to list; the default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    pub status: Option<RunStatus>,
    pub kind: Option<Kind>,
    pub loop_id: Option<LoopId>,
    pub parent: Option<RunId>,
    pub run_id: Option<String>,
    pub session_id: Option<String>,
    pub task_id: Option<String>,
    pub step_id: Option<String>,
    pub tool_call_id: Option<String>,
    pub worktree_id: Option<String>,
    pub repo_sha: Option<String>,
    /// Every one must match.
    pub labels: Vec<(String, String)>,
    /// A shell-style pattern (`*`, `?`, `[a-z]`) over the whole command line.
    pub command: Option<String>,
    pub cwd: Option<PathBuf>,
    /// Ran on this machine: it recorded the run, or the run was placed on it.
    pub host: Option<String>,
    /// Changed this file, or one below this directory; absolute.
    pub changed: Option<PathBuf>,
    /// Ran tests, some of which failed.
    pub tests_failed: bool,
    /// Started at or after.
    pub since: Option<Timestamp>,
    /// Started before.
    pub until: Option<Timestamp>,
}

impl RunFilter {
    /// The runs of which `last`, `last-ok` and `last-failed` name the newest one.
    #[must_use]
    pub fn of_newest(word: &str) -> Option<Self> {
        let status = match word {
            "last" => None,
            "last-ok" => Some(RunStatus::Ok),
            "last-failed" => Some(RunStatus::Failed),
            _ => return None,
        };
        Some(Self { status, ..Self::default() })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    Running,
    Ok,
    /// Every outcome except success.
    Failed,
    Outcome(OutcomeKind),
}

/// The order of listed runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartOrder {
    #[default]
    NewestFirst,
    OldestFirst,
}

impl StartOrder {
    /// The SQL sort order, and the comparison of later rows with earlier ones.
    fn sql(self) -> (&'static str, &'static str) {
        match self {
            Self::NewestFirst => ("DESC", "<"),
            Self::OldestFirst => ("ASC", ">"),
        }
    }
}

/// How much of a run is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunDetail {
    Whole,
    /// Without the details of test results, of which only the counts are read.
    Summary,
}

/// Where a page ended: the start and number of its last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunCursor {
    pub(crate) start_us: i64,
    pub(crate) seq: i64,
}

#[derive(Clone, Debug)]
pub struct RunPage {
    pub runs: Vec<Run>,
    /// Where the next page begins; `None` after the last page.
    pub next: Option<RunCursor>,
}

/// A row with everything that makes up a run.
pub(crate) struct FoundRun {
    pub(crate) seq: i64,
    pub(crate) start_us: i64,
    intent: Option<Vec<u8>>,
    outcome: Option<(i64, Option<Vec<u8>>)>,
}

pub(crate) const RUN_COLUMNS: &str = "r.seq, r.start_us, i.body, r.outcome_seq, o.body";
pub(crate) const RUN_JOINS: &str =
    "JOIN ledger i ON i.seq = r.seq LEFT JOIN ledger o ON o.seq = r.outcome_seq";

impl FoundRun {
    pub(crate) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let outcome = match row.get::<_, Option<i64>>(3)? {
            Some(seq) => Some((seq, row.get(4)?)),
            None => None,
        };
        Ok(Self { seq: row.get(0)?, start_us: row.get(1)?, intent: row.get(2)?, outcome })
    }
}

/// The text and parameters of a query under construction.
pub(crate) struct Clauses {
    from: String,
    conditions: Vec<String>,
    parameters: Vec<Value>,
}

impl RunFilter {
    pub(crate) fn clauses(&self) -> Clauses {
        let mut clauses =
            Clauses { from: String::new(), conditions: Vec::new(), parameters: Vec::new() };
        // The first index found drives the query, so the most selective filters come first.
        let mut index = None;
        let ids = [
            ("tool_call_id", "runs_tool_call", &self.tool_call_id),
            ("step_id", "runs_step", &self.step_id),
            ("task_id", "runs_task", &self.task_id),
            ("run_id", "runs_run_id", &self.run_id),
            ("session_id", "runs_session", &self.session_id),
            ("repo_sha", "runs_repo_sha", &self.repo_sha),
            ("worktree_id", "runs_worktree", &self.worktree_id),
        ];
        for (column, name, value) in ids {
            if let Some(value) = value {
                clauses.equal(column, Value::Text(value.clone()));
                index.get_or_insert(name);
            }
        }
        if let Some(loop_id) = self.loop_id {
            clauses.equal("loop", Value::Blob(loop_id.as_bytes().to_vec()));
            index.get_or_insert("runs_loop");
        }
        if let Some(parent) = self.parent {
            clauses.equal("parent", Value::Blob(parent.as_bytes().to_vec()));
            index.get_or_insert("runs_parent");
        }
        if let Some(command) = &self.command {
            if command.contains(['*', '?', '[']) {
                clauses.condition("r.command GLOB", Value::Text(command.clone()));
            } else {
                clauses.equal("command", Value::Text(command.clone()));
                index.get_or_insert("runs_command");
            }
        }
        self.add_status(&mut clauses, &mut index);
        if let Some(cwd) = &self.cwd {
            clauses.equal("cwd", Value::Text(cwd.to_string_lossy().into_owned()));
            index.get_or_insert("runs_cwd");
        }
        if let Some(kind) = self.kind {
            clauses.conditions.push(format!("r.kind = {}", kind_number(kind)));
            if kind != Kind::Exec {
                clauses.conditions.push("r.kind > 0".to_owned());
                index.get_or_insert("runs_kind");
            }
        }
        for (bound, at) in [(">=", self.since), ("<", self.until)] {
            if let Some(at) = at {
                clauses.condition(&format!("r.start_us {bound}"), at.as_microsecond().into());
            }
        }
        if let Some(host) = &self.host {
            clauses.parameters.push(Value::Text(host.clone()));
            clauses.conditions.push(host_condition(clauses.parameters.len()));
        }
        self.add_effects(&mut clauses);
        clauses.from = match self.labels.split_first() {
            // Filters on effects select few runs: their numbers lead the query, and the result is
            // sorted.
            None if self.by_effects() => "runs r".to_owned(),
            None => format!("runs r INDEXED BY {}", index.unwrap_or("runs_start")),
            Some((first, rest)) => {
                clauses.condition("l.key =", Value::Text(first.0.clone()));
                clauses.condition("l.value =", Value::Text(first.1.clone()));
                for (key, value) in rest {
                    clauses.parameters.push(Value::Text(key.clone()));
                    clauses.parameters.push(Value::Text(value.clone()));
                    let count = clauses.parameters.len();
                    clauses.conditions.push(label_condition(count));
                }
                "labels l CROSS JOIN runs r ON r.seq = l.run".to_owned()
            }
        };
        clauses
    }

    fn add_status(&self, clauses: &mut Clauses, index: &mut Option<&'static str>) {
        match self.status {
            None => {}
            Some(RunStatus::Ok) => {
                clauses.conditions.push(format!("r.status = {OK}"));
                index.get_or_insert("runs_status");
            }
            Some(RunStatus::Failed) => {
                clauses.conditions.push("r.status > 0".to_owned());
                index.get_or_insert("runs_failed");
            }
            // Few, and known from their live files: an index would cost every run two pages.
            Some(RunStatus::Running) => clauses.conditions.push("r.status IS NULL".to_owned()),
            // Includes runs of dead runners that recovery has not marked yet.
            Some(RunStatus::Outcome(OutcomeKind::Interrupted)) => {
                clauses.conditions.push(format!("(r.status = {INTERRUPTED} OR r.status IS NULL)"));
            }
            // Nearly every run exited, regardless of the code: the order by start serves best.
            Some(RunStatus::Outcome(OutcomeKind::Exited)) => {
                clauses.conditions.push("r.status IN (0, 1)".to_owned());
            }
            Some(RunStatus::Outcome(word)) => {
                clauses.conditions.push(format!("r.status = {}", status(word, None)));
                index.get_or_insert("runs_status");
            }
        }
    }

    fn add_effects(&self, clauses: &mut Clauses) {
        if let Some(path) = &self.changed {
            let path = text::path(path);
            let below = format!("{}/", path.trim_end_matches('/'));
            clauses.parameters.push(Value::Text(path.trim_end_matches('/').to_owned()));
            clauses.parameters.push(Value::Text(below.clone()));
            // `0` comes after `/`: everything below the directory sorts between the two.
            clauses.parameters.push(Value::Text(format!("{}0", &below[..below.len() - 1])));
            let last = clauses.parameters.len();
            clauses.conditions.push(format!(
                "r.seq IN (SELECT run FROM changes WHERE path = ?{} OR path >= ?{} AND path < ?{last})",
                last - 2,
                last - 1
            ));
        }
        if self.tests_failed {
            clauses.conditions.push(
                "r.seq IN (SELECT run FROM effects INDEXED BY effects_tests_failed
                   WHERE tests_failed > 0)"
                    .to_owned(),
            );
        }
    }

    /// Whether matching runs are found without a full scan: every condition has an index, or
    /// matches most runs.
    pub(crate) fn is_searchable(&self) -> bool {
        let pattern = |command: &String| command.contains(['*', '?', '[']);
        self.host.is_none()
            && !self.command.as_ref().is_some_and(pattern)
            && self.status != Some(RunStatus::Outcome(OutcomeKind::Interrupted))
    }

    /// Whether it matches every run.
    fn is_open(&self) -> bool {
        let clauses = self.clauses();
        clauses.conditions.is_empty() && self.labels.is_empty()
    }

    /// The query that selects matching runs among the given numbers. The numbers lead, so no index
    /// of a filter is named.
    fn among_numbers(&self, numbers: &[i64], live: Option<&[RunId]>) -> (String, Vec<Value>) {
        let mut clauses = Self { labels: Vec::new(), ..self.clone() }.clauses();
        for (key, value) in &self.labels {
            clauses.parameters.push(Value::Text(key.clone()));
            clauses.parameters.push(Value::Text(value.clone()));
            let count = clauses.parameters.len();
            clauses.conditions.push(label_condition(count));
        }
        let numbers: Vec<Value> = numbers.iter().map(|number| Value::from(*number)).collect();
        clauses.one_of("r.seq", numbers);
        if let Some(ids) = live {
            let ids = ids.iter().map(|id| Value::Blob(id.as_bytes().to_vec()));
            clauses.one_of("r.id", ids.collect());
        }
        let sql =
            format!("SELECT r.seq, r.id FROM runs r WHERE {}", clauses.conditions.join(" AND "));
        (sql, clauses.parameters)
    }

    /// Whether it needs the tables of effects, which earlier releases lack.
    pub(crate) fn by_effects(&self) -> bool {
        self.changed.is_some() || self.tests_failed
    }

    fn order_columns(&self) -> (&'static str, &'static str) {
        if self.labels.is_empty() { ("r.start_us", "r.seq") } else { ("l.start_us", "l.run") }
    }

    /// The query for one page and its parameters.
    pub(crate) fn sql(
        &self,
        selected: (&str, &str),
        after: Option<RunCursor>,
        limit: usize,
        among: Option<&[RunId]>,
    ) -> (String, Vec<Value>) {
        self.sql_in(StartOrder::NewestFirst, selected, after, limit, among)
    }

    pub(crate) fn sql_in(
        &self,
        order: StartOrder,
        (columns, joins): (&str, &str),
        after: Option<RunCursor>,
        limit: usize,
        among: Option<&[RunId]>,
    ) -> (String, Vec<Value>) {
        let mut clauses = self.clauses();
        if let Some(ids) = among {
            let ids = ids.iter().map(|id| Value::Blob(id.as_bytes().to_vec()));
            clauses.one_of("r.id", ids.collect());
            if self.labels.is_empty() {
                clauses.from = "runs r".to_owned();
            }
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let (start, seq) = self.order_columns();
        let (direction, beyond) = order.sql();
        if let Some(cursor) = after {
            clauses.parameters.push(cursor.start_us.into());
            clauses.parameters.push(cursor.seq.into());
            let count = clauses.parameters.len();
            clauses
                .conditions
                .push(format!("({start}, {seq}) {beyond} (?{}, ?{count})", count - 1));
        }
        let filter = if clauses.conditions.is_empty() {
            String::new()
        } else {
            format!("WHERE {}", clauses.conditions.join(" AND "))
        };
        let sql = format!(
            "SELECT {columns} FROM {} {joins} {filter}
             ORDER BY {start} {direction}, {seq} {direction} LIMIT {limit}",
            clauses.from
        );
        (sql, clauses.parameters)
    }

    /// The query for a page, for tests and tools that examine its query plan.
    #[doc(hidden)]
    pub fn explainable(
        &self,
        order: StartOrder,
        later_page: bool,
        limit: usize,
    ) -> (String, Vec<Value>) {
        let after = later_page.then_some(RunCursor { start_us: 0, seq: 0 });
        self.sql_in(order, (RUN_COLUMNS, RUN_JOINS), after, limit, None)
    }

    pub(crate) fn admits(&self, run: &Run) -> bool {
        match self.status {
            Some(RunStatus::Running) => run.state == State::Running,
            Some(RunStatus::Outcome(OutcomeKind::Interrupted)) => run.state == State::Interrupted,
            _ => true,
        }
    }
}

impl Clauses {
    fn equal(&mut self, column: &str, value: Value) {
        self.condition(&format!("r.{column} ="), value);
    }

    fn condition(&mut self, left: &str, value: Value) {
        self.parameters.push(value);
        self.conditions.push(format!("{left} ?{}", self.parameters.len()));
    }

    fn one_of(&mut self, column: &str, values: Vec<Value>) {
        let first = self.parameters.len() + 1;
        let marks: Vec<String> = (0..values.len()).map(|i| format!("?{}", first + i)).collect();
        self.conditions.push(format!("{column} IN ({})", marks.join(", ")));
        self.parameters.extend(values);
    }
}

/// SQL condition: a run has a label whose value is this parameter and whose key is the one before.
fn label_condition(value: usize) -> String {
    format!(
        "EXISTS (SELECT 1 FROM labels m WHERE m.key = ?{} AND m.value = ?{value}
           AND m.start_us = r.start_us AND m.run = r.seq)",
        value - 1
    )
}

/// SQL condition: a run was recorded on the machine in this parameter, or placed on it.
fn host_condition(host: usize) -> String {
    let of = |seq: &str, path: &str| {
        format!(
            "(SELECT json_extract(CAST(body AS TEXT), '{path}') FROM ledger WHERE seq = r.{seq})"
        )
    };
    let (recorded, node) =
        (of("seq", "$.intent.host"), of("outcome_seq", "$.outcome.ending.ranOn.node"));
    format!("?{host} IN ({recorded}, {node})")
}

/// Numbers of runs per query.
const ASKED: usize = 500;

/// Applies a filter to runs that were found in another way.
pub(crate) struct Sieve<'a> {
    store: &'a Store,
    filter: &'a RunFilter,
    open: bool,
    live: Option<Vec<RunId>>,
    /// Whether nothing can match: the record lacks what the filter asks for.
    shut: bool,
}

impl<'a> Sieve<'a> {
    pub(crate) fn new(store: &'a Store, filter: &'a RunFilter) -> Result<Self> {
        let live = match filter.status {
            Some(RunStatus::Running) => Some(live_file::live_runs(&store.dir)?),
            _ => None,
        };
        let shut = filter.by_effects() && !store.has_effects()?;
        Ok(Self { store, filter, open: filter.is_open(), live, shut })
    }

    /// Whether everything matches, so that no query is needed.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut
    }

    /// The only runs that can match, if the filter selects running ones.
    pub(crate) fn live(&self) -> Option<&[RunId]> {
        self.live.as_deref()
    }

    /// The numbers whose runs match.
    pub(crate) fn pass(&self, numbers: &[i64]) -> Result<HashSet<i64>> {
        if self.open {
            return Ok(numbers.iter().copied().collect());
        }
        let mut passed = HashSet::new();
        if self.shut {
            return Ok(passed);
        }
        for some in numbers.chunks(ASKED) {
            let (sql, parameters) = self.filter.among_numbers(some, self.live.as_deref());
            let found: Vec<(i64, [u8; 16])> = self
                .store
                .connection
                .prepare_cached(&sql)
                .and_then(|mut statement| {
                    let parameters = rusqlite::params_from_iter(parameters);
                    statement.query_map(parameters, |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
                })
                .map_err(|error| self.store.failed("search", error))?;
            for (number, id) in found {
                // A row does not show whether a run without an outcome still runs.
                let unsure = matches!(
                    self.filter.status,
                    Some(RunStatus::Outcome(OutcomeKind::Interrupted))
                );
                if !unsure || self.filter.admits(&self.store.get(RunId::from_bytes(id))?) {
                    passed.insert(number);
                }
            }
        }
        Ok(passed)
    }
}

impl Store {
    /// One page of runs, newest first.
    pub fn list(
        &self,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<RunPage> {
        let (page, unreadable) = self.list_readable(filter, after, limit)?;
        unreadable.into_iter().next().map_or(Ok(page), Err)
    }

    /// The same, but skips runs with unreadable ledger entries, and reports an error for each.
    pub fn list_readable(
        &self,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<(RunPage, Vec<Error>)> {
        self.list_in(StartOrder::NewestFirst, filter, after, limit)
    }

    /// The same in either order. With a host, a page may be short although more runs follow, and
    /// says where the next one begins.
    pub fn list_in(
        &self,
        order: StartOrder,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<(RunPage, Vec<Error>)> {
        self.list_with(RunDetail::Whole, order, filter, after, limit)
    }

    /// The same, with the given detail.
    pub(crate) fn list_with(
        &self,
        detail: RunDetail,
        order: StartOrder,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: usize,
    ) -> Result<(RunPage, Vec<Error>)> {
        if let Some(host) = &filter.host {
            return self.list_of_host((filter, host), detail, order, after, limit);
        }
        let mut unreadable = Vec::new();
        let mut page = RunPage { runs: Vec::new(), next: after };
        if filter.by_effects() && !self.has_effects()? {
            return Ok((RunPage { runs: Vec::new(), next: None }, unreadable));
        }
        let live = match filter.status {
            Some(RunStatus::Running) => Some(live_file::live_runs(&self.dir)?),
            _ => None,
        };
        while page.runs.len() < limit {
            // One more than wanted shows whether there is a next page.
            let wanted = (limit - page.runs.len()).saturating_add(1);
            let (sql, parameters) =
                filter.sql_in(order, (RUN_COLUMNS, RUN_JOINS), page.next, wanted, live.as_deref());
            let found = self.select(&sql, parameters)?;
            let more = found.len() == wanted;
            for row in found.into_iter().take(wanted - 1) {
                page.next = Some(RunCursor { start_us: row.start_us, seq: row.seq });
                match self.assemble(row, detail) {
                    Ok(run) if filter.admits(&run) => page.runs.push(run),
                    Ok(_) => {}
                    Err(error @ Error::BadEntry { .. }) => unreadable.push(error),
                    Err(error) => return Err(error),
                }
            }
            if !more {
                page.next = None;
                break;
            }
        }
        Ok((page, unreadable))
    }

    /// A read-only store may still have the schema of an earlier release.
    pub(crate) fn has_effects(&self) -> Result<bool> {
        Ok(schema::version(&self.connection, &self.dir)? >= schema::WITH_EFFECTS)
    }

    pub(crate) fn select(&self, sql: &str, parameters: Vec<Value>) -> Result<Vec<FoundRun>> {
        self.connection
            .prepare(sql)
            .and_then(|mut statement| {
                statement
                    .query_map(rusqlite::params_from_iter(parameters), FoundRun::read)?
                    .collect()
            })
            .map_err(|error| self.failed("list runs", error))
    }

    pub(crate) fn assemble(&self, found: FoundRun, detail: RunDetail) -> Result<Run> {
        let intent = parse_intent(found.seq, found.intent.as_deref())?;
        let outcome = match found.outcome {
            Some((seq, body)) => Some(match detail {
                RunDetail::Whole => parse_ending(seq, body.as_deref())?,
                RunDetail::Summary => parse_ending_summary(seq, body.as_deref())?,
            }),
            None => None,
        };
        let state = match &outcome {
            Some(outcome) if outcome.kind == OutcomeKind::Interrupted => State::Interrupted,
            Some(_) => State::Finished,
            None => self.unfinished_state(&intent)?,
        };
        Ok(Run { intent, state, outcome, recorded: true })
    }

    fn unfinished_state(&self, intent: &retake_types::Intent) -> Result<State> {
        if live_file::run_is_alive(&self.dir, intent.id()) {
            return Ok(State::Running);
        }
        // It may have finished after the row was read; then it is not interrupted.
        Ok(if self.seq_and_finished(intent.id())?.1 { State::Running } else { State::Interrupted })
    }
}
