//! Runs of many machines: by id, page by page, and neighbours of a run.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use postgres::Row;
use retake_store::{
    DurationOrder, DurationPage, DurationPlace, Error, GroupedPage, LedgerContent, LoopRuns,
    NearestRun, RunCursor, RunDetail, RunEntry, RunFilter, RunNeighbours, RunPage, RunSeries,
    RunsBetween, StartOrder,
};
use retake_types::{Effects, Kind, LoopId, Observations, OutcomeKind, Run, RunId, State};

use super::run_filter::{Conditions, FAILED, PASSED};
use super::{SharedRecord, StoreResult, limited};

/// Maximum number of runs read for one page if a condition cannot be part of the query.
const LOOKED_AT: usize = 10_000;
/// Number of rows per query while loops are grouped.
const ASKED: usize = 2000;
/// The number of newest runs in which an id's end or a caller's id is searched.
const NEWEST: i64 = 200_000;
const CANDIDATES: i64 = 50;
/// How long after its parent's end a run may have begun: clocks of nodes differ.
const AFTER_PARENT: &str = "1 minute";

const LISTING: &str = "list runs";

/// The columns of a run, from a table named `run`.
const COLUMNS: &str = "run.id::text, run.seq, begun.body, run.outcome_seq, ended.body";
const ENTRIES: &str =
    "LEFT JOIN retake.ledger AS begun ON begun.record = run.record AND begun.seq = run.seq
     LEFT JOIN retake.ledger AS ended ON ended.record = run.record AND ended.seq = run.outcome_seq";

fn id_of(text: &str) -> RunId {
    // The column's type guarantees a valid id.
    text.parse().unwrap_or_else(|_| RunId::from_bytes([0; 16]))
}

impl SharedRecord {
    /// The runs in a selection of rows of `retake.runs`, in the same order.
    fn selected(
        &self,
        detail: RunDetail,
        rows: &str,
        order: &str,
        parameters: &[&super::Parameter],
    ) -> StoreResult<Vec<(RunId, StoreResult<Run>)>> {
        let sql = format!("SELECT {COLUMNS} FROM ({rows}) AS run {ENTRIES} ORDER BY {order}");
        let found = self.query(LISTING, &sql, parameters)?;
        Ok(found.iter().map(|row| (id_of(row.get(0)), self.assemble(row, detail))).collect())
    }

    fn assemble(&self, row: &Row, detail: RunDetail) -> StoreResult<Run> {
        let (id, seq): (RunId, i64) = (id_of(row.get(0)), row.get(1));
        let bad = |seq: i64, detail: &str| Error::BadEntry { seq, detail: detail.to_owned() };
        let body: Option<&str> = row.get(2);
        let body = body.ok_or_else(|| bad(seq, "it was erased"))?;
        let intent = match LedgerContent::parse(seq, body)? {
            LedgerContent::Intent(intent) if intent.id() == id => *intent,
            _ => return Err(bad(seq, "it is not the intent of this run")),
        };
        let outcome = match row.get::<_, Option<i64>>(3) {
            None => None,
            Some(seq) => {
                let body: Option<&str> = row.get(4);
                let own = body.map(|body| LedgerContent::parse_with(detail, seq, body));
                Some(match own.transpose()? {
                    Some(LedgerContent::Outcome { run, outcome }) if run == id => *outcome,
                    // A copy of the record has pushed its outcome.
                    _ => self
                        .outcome_elsewhere(id, seq)?
                        .ok_or_else(|| bad(seq, "it is not the outcome of this run"))?,
                })
            }
        };
        let state = match &outcome {
            Some(outcome) if outcome.kind == OutcomeKind::Interrupted => State::Interrupted,
            Some(_) => State::Finished,
            None => State::Running,
        };
        Ok(Run { intent, state, outcome, recorded: true })
    }

    fn outcome_elsewhere(
        &self,
        id: RunId,
        seq: i64,
    ) -> StoreResult<Option<retake_types::Redacted<retake_types::RunOutcome>>> {
        let rows = self.query(
            "look for an outcome",
            "SELECT entry.body FROM retake.records AS record
             JOIN retake.ledger AS entry ON entry.record = record.id AND entry.seq = $1
             WHERE strpos(entry.body, $2) > 0",
            &[&seq, &id.to_string()],
        )?;
        for row in &rows {
            if let Ok(LedgerContent::Outcome { run, outcome }) =
                LedgerContent::parse(seq, row.get(0))
                && run == id
            {
                return Ok(Some(*outcome));
            }
        }
        Ok(None)
    }

    pub(super) fn run(&self, id: RunId) -> StoreResult<Run> {
        let rows = format!(
            "SELECT * FROM retake.runs AS run WHERE run.id = $1::text::uuid AND {}",
            self.of_project("run")
        );
        let found = self.selected(RunDetail::Whole, &rows, "run.id", &[&id.to_string()])?;
        let missing = || Error::NotFound { text: id.to_string() };
        found.into_iter().next().map(|(_, run)| run).ok_or_else(missing)?
    }

    /// Runs by their ids, if they can be read.
    fn runs_by_id(&self, ids: &[RunId]) -> StoreResult<(HashMap<RunId, Run>, Vec<Error>)> {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let rows = "SELECT * FROM retake.runs AS run WHERE run.id = ANY ($1::text[]::uuid[])";
        let (mut runs, mut unreadable) = (HashMap::new(), Vec::new());
        for (id, run) in self.selected(RunDetail::Summary, rows, "run.id", &[&ids])? {
            match run {
                Ok(run) => _ = runs.insert(id, run),
                Err(error @ Error::BadEntry { .. }) => unreadable.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok((runs, unreadable))
    }

    /// Like [`Store::find`](retake_store::Store::find); ends of ids and callers' ids match only the newest runs.
    pub(super) fn run_named(&self, text: &str) -> StoreResult<Run> {
        let wanted = text.trim().to_ascii_lowercase();
        let missing = || Error::NotFound { text: text.to_owned() };
        if let Some(filter) = RunFilter::of_newest(&wanted) {
            let order = StartOrder::NewestFirst;
            let page = self.page(RunDetail::Whole, order, &filter, None, 1)?.0;
            return page.runs.into_iter().next().ok_or_else(missing);
        }
        if let Ok(id) = wanted.parse::<RunId>() {
            match self.run(id) {
                Err(Error::NotFound { .. }) => {}
                found => return found,
            }
        }
        let digits: String = wanted.chars().filter(|c| *c != '-').collect();
        let part =
            (1..=32).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let bound = |filler: char| -> String {
            digits.chars().chain(std::iter::repeat(filler)).take(32).collect()
        };
        let of_project = self.of_project("run");
        let newest = format!(
            "SELECT run.id, run.correlation_ids FROM retake.runs AS run WHERE {of_project}
             ORDER BY run.id DESC LIMIT {NEWEST}"
        );
        let mut sql = format!(
            "SELECT run.id::text FROM ({newest}) AS run
             WHERE run.correlation_ids ->> 'runId' = $1"
        );
        let text = text.trim().to_owned();
        let (low, high) = (bound('0'), bound('f'));
        let mut parameters: Vec<&super::Parameter> = vec![&text];
        if part {
            sql = format!(
                "{sql} OR replace(run.id::text, '-', '') LIKE '%' || $4
                       OR right(run.id::text, 8) LIKE $4 || '%'
                 UNION SELECT run.id::text FROM retake.runs AS run
                 WHERE run.id BETWEEN $2::text::uuid AND $3::text::uuid AND {of_project}"
            );
            parameters.extend::<[&super::Parameter; 3]>([&low, &high, &digits]);
        }
        let sql = format!("{sql} ORDER BY 1 DESC LIMIT {CANDIDATES}");
        let rows = self.query("look up an id", &sql, &parameters)?;
        let candidates: Vec<RunId> = rows.iter().map(|row| id_of(row.get(0))).collect();
        match candidates[..] {
            [] => Err(missing()),
            [id] => self.run(id),
            _ => Err(Error::Ambiguous { text, candidates }),
        }
    }

    pub(super) fn runs_inside(&self, parent: &Run) -> StoreResult<Vec<Run>> {
        let end = parent.outcome.as_ref().map(|outcome| outcome.end_time.to_string());
        // Only runs that began while it ran.
        let rows = format!(
            "SELECT * FROM retake.runs AS run
             WHERE run.parent_id = $1::text::uuid AND run.id > $1::text::uuid
               AND run.id < retake.id_at(coalesce($2::text::timestamptz, now())
                                         + interval '{AFTER_PARENT}')"
        );
        let id = parent.intent.id().to_string();
        let found = self.selected(RunDetail::Whole, &rows, "run.id", &[&id, &end])?;
        found.into_iter().map(|(_, run)| run).collect()
    }

    /// One page of runs, sorted by id: ids begin with the start time.
    pub(super) fn page(
        &self,
        detail: RunDetail,
        order: StartOrder,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: usize,
    ) -> StoreResult<(RunPage, Vec<Error>)> {
        let (direction, beyond) = match order {
            StartOrder::NewestFirst => ("DESC", "<"),
            StartOrder::OldestFirst => ("ASC", ">"),
        };
        let mut page = RunPage { runs: Vec::new(), next: after };
        let (mut unreadable, mut looked_at) = (Vec::new(), 0);
        while page.runs.len() < limit && looked_at < LOOKED_AT {
            let mut conditions = Conditions::of(self, filter);
            if let Some(cursor) = page.next {
                let last = cursor.run_id().to_string();
                conditions.with(&format!("run.id {beyond} {{}}::text::uuid"), last);
            }
            // One more than requested shows whether there is a next page.
            let wanted = (limit - page.runs.len()).saturating_add(1);
            let rows = format!(
                "SELECT * FROM retake.runs AS run WHERE {} ORDER BY run.id {direction} LIMIT {}",
                conditions.text(),
                limited(wanted)
            );
            let order = format!("run.id {direction}");
            let found = self.selected(detail, &rows, &order, &conditions.parameters())?;
            let more = found.len() == wanted;
            for (id, run) in found.into_iter().take(wanted - 1) {
                looked_at += 1;
                page.next = Some(RunCursor::of_run(id));
                match run {
                    Ok(run) if has_changed(&run, filter.changed.as_deref()) => page.runs.push(run),
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

    pub(super) fn duration_page(
        &self,
        filter: &RunFilter,
        order: DurationOrder,
        after: Option<DurationPlace>,
        limit: usize,
    ) -> StoreResult<DurationPage> {
        let mut conditions = Conditions::of(self, filter);
        conditions.plain("run.duration_ms IS NOT NULL");
        let direction = match order {
            DurationOrder::SlowestFirst => "DESC",
            DurationOrder::FastestFirst => "ASC",
        };
        let passed = after.map_or(0, DurationPlace::position);
        let order = format!("run.duration_ms {direction}, run.id {direction}");
        let rows = format!(
            "SELECT * FROM retake.runs AS run WHERE {} ORDER BY {order} LIMIT {} OFFSET {passed}",
            conditions.text(),
            limited(limit.saturating_add(1))
        );
        let found = self.selected(RunDetail::Summary, &rows, &order, &conditions.parameters())?;
        let next = passed + limit as u64;
        let mut page = DurationPage {
            next: (found.len() > limit).then(|| DurationPlace::at_position(next)),
            ..DurationPage::default()
        };
        for (_, run) in found.into_iter().take(limit) {
            match run {
                Ok(run) if has_changed(&run, filter.changed.as_deref()) => page.runs.push(run),
                Ok(_) => {}
                Err(error @ Error::BadEntry { .. }) => page.unreadable.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(page)
    }

    /// Runs in a list in which a loop is one entry, at the position of its newest run.
    pub(super) fn grouped_page(
        &self,
        kind: Option<Kind>,
        after: Option<RunCursor>,
        limit: usize,
    ) -> StoreResult<GroupedPage> {
        let mut page = GroupedPage { next: after, ..GroupedPage::default() };
        let (mut entries, mut looked) = (Vec::new(), 0);
        let mut loops: BTreeMap<LoopId, Option<LoopRow>> = BTreeMap::new();
        'pages: loop {
            let mut conditions = Conditions::of(self, &RunFilter { kind, ..RunFilter::default() });
            if let Some(cursor) = page.next {
                conditions.with("run.id < {}::text::uuid", cursor.run_id().to_string());
            }
            let sql = format!(
                "SELECT run.id::text, run.kind, run.loop_id::text FROM retake.runs AS run
                 WHERE {} ORDER BY run.id DESC LIMIT {ASKED}",
                conditions.text()
            );
            let rows = self.query(LISTING, &sql, &conditions.parameters())?;
            let of_loop = |row: &Row| match row.get::<_, &str>(1) == Kind::Exec.as_str() {
                true => None,
                false => row.get::<_, &str>(2).parse::<LoopId>().ok(),
            };
            let new: HashSet<LoopId> =
                rows.iter().filter_map(of_loop).filter(|id| !loops.contains_key(id)).collect();
            let mut known = self.loop_rows(&new)?;
            loops.extend(new.iter().map(|id| (*id, known.remove(id))));
            for row in &rows {
                if entries.len() == limit {
                    break 'pages;
                }
                let id = id_of(row.get(0));
                page.next = Some(RunCursor::of_run(id));
                match of_loop(row) {
                    None => entries.push((id, None)),
                    Some(of) => {
                        // A loop whose newest run is on an earlier page is listed there.
                        if loops[&of].as_ref().is_some_and(|row| row.newest == id) {
                            entries.push((id, Some(of)));
                        }
                    }
                }
            }
            looked += rows.len();
            if rows.len() < ASKED {
                page.next = None;
                break;
            }
            if looked >= LOOKED_AT {
                break;
            }
        }
        let ids: Vec<RunId> = entries.iter().map(|(id, _)| *id).collect();
        let (mut runs, unreadable) = self.runs_by_id(&ids)?;
        page.unreadable = unreadable.iter().map(ToString::to_string).collect();
        for (id, of) in entries {
            let Some(run) = runs.remove(&id) else { continue };
            let row = of.and_then(|of| loops.remove(&of)?.map(|row| (of, row)));
            page.entries.push(match row {
                None => RunEntry::Run(Box::new(run)),
                Some((id, row)) => RunEntry::Loop(LoopRuns {
                    id,
                    newest: Box::new(run),
                    runs: row.runs,
                    failed: row.failed,
                    unfinished: row.unfinished,
                    more: false,
                }),
            });
        }
        Ok(page)
    }

    fn loop_rows(&self, ids: &HashSet<LoopId>) -> StoreResult<HashMap<LoopId, LoopRow>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        // Ids sort as text in the same order.
        let sql = format!(
            "SELECT run.loop_id::text, max(run.id::text), count(*),
                    count(*) FILTER (WHERE {FAILED}), count(*) FILTER (WHERE run.outcome IS NULL)
             FROM retake.runs AS run WHERE run.loop_id = ANY ($1::text[]::uuid[]) AND {}
             GROUP BY run.loop_id",
            self.of_project("run")
        );
        let rows = self.query("count the runs of loops", &sql, &[&ids])?;
        let read = |row: &Row| {
            let number = |column: usize| row.get::<_, i64>(column).unsigned_abs();
            let counted = LoopRow {
                newest: id_of(row.get(1)),
                runs: number(2),
                failed: number(3),
                unfinished: number(4),
            };
            Some((row.get::<_, &str>(0).parse().ok()?, counted))
        };
        Ok(rows.iter().filter_map(read).collect())
    }

    pub(super) fn neighbours_of(
        &self,
        run: &Run,
        series: &RunSeries,
    ) -> StoreResult<RunNeighbours> {
        Ok(RunNeighbours {
            previous: self.nearest(run, series, "<", false)?,
            next: self.nearest(run, series, ">", false)?,
            last_passed: self.nearest(run, series, "<", true)?,
        })
    }

    /// The nearest run of a series, of the same project. Directories differ between machines, so only the
    /// command must be the same.
    fn nearest(
        &self,
        run: &Run,
        series: &RunSeries,
        beyond: &str,
        passed: bool,
    ) -> StoreResult<NearestRun> {
        let order = if beyond == "<" { "DESC" } else { "ASC" };
        let mut conditions = Conditions::new(self);
        let id = run.intent.id().to_string();
        conditions.with(&format!("run.id {beyond} {{}}::text::uuid"), id.clone());
        conditions
            .with("run.project = (SELECT project FROM retake.runs WHERE id = {}::text::uuid)", id);
        match series {
            RunSeries::Command => {
                conditions.with("run.command = {}", run.intent.command().to_owned());
                conditions.with("run.kind = {}", run.intent.kind().as_str());
            }
            RunSeries::Loop => {
                conditions.with("run.loop_id = {}::text::uuid", run.intent.loop_id().to_string());
            }
            RunSeries::Label(key) => {
                let value = run.intent.request.labels.get(key).cloned().unwrap_or_default();
                conditions.label(key, &value);
            }
        }
        if passed {
            conditions.plain(PASSED);
        }
        let sql = format!(
            "SELECT run.id::text FROM retake.runs AS run WHERE {} ORDER BY run.id {order} LIMIT 1",
            conditions.text()
        );
        let action = "look for runs of the same command";
        let found = self.query(action, &sql, &conditions.parameters())?;
        Ok(found.first().map_or(NearestRun::None, |row| NearestRun::Found(id_of(row.get(0)))))
    }

    /// Runs on the machine of the later one whose effects were observed.
    pub(super) fn effects_between(
        &self,
        a: &Run,
        b: &Run,
        most: usize,
    ) -> StoreResult<RunsBetween> {
        let mut conditions = Conditions::new(self);
        conditions.with("run.id > {}::text::uuid", a.intent.id().to_string());
        conditions.with("run.id < {}::text::uuid", b.intent.id().to_string());
        conditions.with("run.host = {}", b.intent.host.clone());
        conditions.plain("run.effects IS NOT NULL");
        let rows = format!(
            "SELECT * FROM retake.runs AS run WHERE {} ORDER BY run.id DESC LIMIT {}",
            conditions.text(),
            limited(most.saturating_add(1))
        );
        let found =
            self.selected(RunDetail::Summary, &rows, "run.id DESC", &conditions.parameters())?;
        // Runs of another machine cannot have changed files on this one.
        let mut between = RunsBetween {
            runs: Vec::new(),
            complete: found.len() <= most && a.intent.host == b.intent.host,
        };
        for (_, run) in found.into_iter().take(most) {
            match run {
                Ok(run) => between.runs.push(run),
                Err(Error::BadEntry { .. }) => between.complete = false,
                Err(error) => return Err(error),
            }
        }
        Ok(between)
    }

    /// The slowest run of each of the slowest commands among these rows.
    pub(super) fn first_of_each_command(
        &self,
        ids: &[RunId],
        limit: usize,
    ) -> StoreResult<Vec<Run>> {
        let (mut runs, _) = self.runs_by_id(ids)?;
        let mut known = HashSet::new();
        let mut slowest = Vec::new();
        for id in ids {
            let Some(run) = runs.remove(id) else { continue };
            if slowest.len() < limit && known.insert(run.intent.command().to_owned()) {
                slowest.push(run);
            }
        }
        Ok(slowest)
    }
}

/// Counts of a loop's runs.
struct LoopRow {
    newest: RunId,
    runs: u64,
    failed: u64,
    unfinished: u64,
}

/// Whether a run changed a file, or one below a directory.
fn has_changed(run: &Run, path: Option<&Path>) -> bool {
    let Some(path) = path else { return true };
    let effects = run.outcome.as_ref().and_then(|outcome| outcome.effects.as_ref());
    let Some(observed) = effects.and_then(Effects::observations) else { return false };
    let cwd = run.intent.working_directory();
    let root = Path::new(&cwd).join(observed.root.as_deref().unwrap_or_default());
    let Observations { files_created, files_modified, files_deleted, files_renamed, .. } = observed;
    let renamed = files_renamed.iter().flat_map(|pair| [&pair.from, &pair.to]);
    let mut all = files_created.iter().chain(files_modified).chain(files_deleted).chain(renamed);
    all.any(|file| root.join(file).starts_with(path))
}
