//! The record as a whole: figures over time, running runs and loops, and the verification of the chain.

use std::sync::Arc;

use axum::Json;
use axum::http::Uri;
use jiff::Timestamp;
use retake_store::{Head, RunFilter, RunStatus, Verification};
use retake_types::Run;
use serde::Serialize;

use crate::app::App;
use crate::audit::AuditState;
use crate::error::{ApiError, RequestError};
use crate::figures::{Figures, TimeRange};
use crate::loops::{LoopSummary, RunningLoops};
use crate::params::Params;
use crate::projects::State;
use crate::store_pool::Store;
use crate::test_summary::TestSummaries;

/// How many of each are listed.
const RUNNING: usize = 20;
const FAILURES: usize = 10;
/// The newest failures in which repeated ones are counted.
const COUNTED_FAILURES: usize = 60;
const LOOPS: usize = 8;

/// The content of the overview.
pub(crate) struct Overview {
    pub(crate) figures: Arc<Figures>,
    pub(crate) running: Vec<Run>,
    /// The newest failures; those of the same command in the same directory once, with their number.
    pub(crate) failures: Vec<(Run, usize)>,
    pub(crate) loops: Vec<LoopSummary>,
    pub(crate) audit: AuditState,
    pub(crate) tests: Arc<TestSummaries>,
}

impl App {
    pub(crate) async fn overview(&self, params: &Params) -> Result<Overview, RequestError> {
        let figures = match params.get("range") {
            Some(_) => {
                let range = TimeRange::parse(params.get("range"))?;
                self.figures.get(&self.store, range, Figures::count).await?
            }
            None => self.fitting_figures().await?,
        };
        let workspaces = self.workspaces.clone();
        let lists = self.store.read(move |store| {
            let of = |status| RunFilter { status: Some(status), ..RunFilter::default() };
            let running_loops = RunningLoops::read(store)?;
            let loops = store.page_loops(None, None, LOOPS)?.loops;
            let loops = loops
                .into_iter()
                .map(|record| running_loops.summary(store, record, workspaces.as_ref()));
            Ok((
                store.newest_summaries(&of(RunStatus::Running), RUNNING)?,
                repeated(store.newest_summaries(&of(RunStatus::Failed), COUNTED_FAILURES)?),
                loops.collect::<Result<_, RequestError>>()?,
            ))
        });
        let (running, failures, loops) = lists.await?;
        let tests = self.tests.get(&self.store, (), TestSummaries::count).await?;
        Ok(Overview { figures, running, failures, loops, audit: self.audit.state(), tests })
    }
}

/// Merges runs of the same command in the same directory: the newest, and how many there are.
fn repeated(runs: Vec<Run>) -> Vec<(Run, usize)> {
    let mut found: Vec<(Run, usize)> = Vec::new();
    for run in runs {
        let same = |known: &(Run, usize)| {
            let (a, b) = (&known.0.intent, &run.intent);
            a.command() == b.command() && a.working_directory() == b.working_directory()
        };
        match found.iter().position(same) {
            Some(at) => found[at].1 += 1,
            None if found.len() < FAILURES => found.push((run, 1)),
            None => {}
        }
    }
    found
}

impl App {
    /// A week, or everything if the record is younger.
    async fn fitting_figures(&self) -> Result<Arc<Figures>, RequestError> {
        let week = self.figures.get(&self.store, TimeRange::Week, Figures::count).await?;
        match week.totals.first {
            Some(first) if first > week.since => {
                self.figures.get(&self.store, TimeRange::All, Figures::count).await
            }
            _ => Ok(week),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OverviewDocument {
    range: &'static str,
    since: Timestamp,
    until: Timestamp,
    slices: Vec<SliceDocument>,
    runs: u64,
    failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<DiskDocument>,
    running: Vec<Run>,
    recent_failures: Vec<Run>,
    loops: Vec<LoopSummary>,
    audit: AuditDocument,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SliceDocument {
    ok: u64,
    failed: u64,
    unfinished: u64,
    p50_ms: Option<u64>,
    p95_ms: Option<u64>,
}

#[derive(Serialize)]
struct DiskDocument {
    database: u64,
    spool: u64,
    output: u64,
}

pub(crate) async fn overview(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<OverviewDocument>, ApiError> {
    let overview = app.overview(&Params::from_uri(&uri)).await?;
    let figures = &overview.figures;
    let slices = figures.slices.iter().map(|slice| SliceDocument {
        ok: slice.ok,
        failed: slice.failed,
        unfinished: slice.unfinished,
        p50_ms: slice.p50_ms,
        p95_ms: slice.p95_ms,
    });
    let disk = figures.disk.map(|disk| DiskDocument {
        database: disk.database,
        spool: disk.spool,
        output: disk.output,
    });
    Ok(Json(OverviewDocument {
        range: figures.range.as_str(),
        since: figures.since,
        until: figures.until,
        slices: slices.collect(),
        runs: figures.totals.runs,
        failed: figures.totals.failed,
        disk,
        audit: AuditDocument::of(&overview.audit, figures.head),
        running: overview.running,
        recent_failures: overview.failures.into_iter().map(|(run, _)| run).collect(),
        loops: overview.loops,
    }))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditDocument {
    /// Of the record of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<String>,
    /// `not_verified`, `verifying`, `intact`, `broken`, `failed`.
    state: &'static str,
    at: Option<Timestamp>,
    detail: Option<String>,
}

impl AuditDocument {
    fn of(audit: &AuditState, head: Option<Head>) -> Self {
        let head = head.map(|head| head.to_string());
        let (state, at, detail) = match audit {
            AuditState::NotVerified => ("not_verified", None, None),
            AuditState::Verifying { since } => ("verifying", Some(*since), None),
            AuditState::Failed { at, why } => ("failed", Some(*at), Some(why.clone())),
            AuditState::Verified { at, found: Verification::Intact(_) } => {
                ("intact", Some(*at), None)
            }
            AuditState::Verified { at, found: Verification::Broken(found) } => {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                ("broken", Some(*at), Some(found.join("\n")))
            }
        };
        Self { head, state, at, detail }
    }
}

pub(crate) async fn audit(State(app): State<Arc<App>>) -> Result<Json<AuditDocument>, ApiError> {
    let head = |store: &Store| Ok(store.as_store().map(retake_store::Store::head).transpose()?);
    let head = app.store.read(head).await?;
    Ok(Json(AuditDocument::of(&app.audit.state(), head)))
}

pub(crate) async fn verify(State(app): State<Arc<App>>) -> Result<Json<AuditDocument>, ApiError> {
    app.audit.verify(&app.store);
    audit(State(app)).await
}
