//! Runs: a list, details, and a search in their output.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::http::Uri;
use retake_store::{RunDetail, SearchEffort, SearchResults, StartOrder, StoredRunTree};
use retake_types::{Run, RunId, Stream};
use serde::Serialize;

use super::run_id;
use crate::app::App;
use crate::error::{ApiError, RequestError};
use crate::params::Params;
use crate::projects::State;
use crate::store_pool::Store;

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 500;

/// How much output a search reads for one page of hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchDepth {
    /// The index, and a little output that is not indexed yet: fast.
    Indexed,
    /// Also the middle of large outputs, byte for byte, up to a time limit.
    Everything,
}

impl SearchDepth {
    /// Maximum number of outputs with the words that are compared with the filters.
    pub(crate) const SIFTED: usize = 20_000;
    pub(crate) const TIME: Duration = Duration::from_secs(3);
    /// Bytes that a fast search reads besides the index.
    const GLANCE: u64 = 2 << 20;

    pub(crate) fn from_params(params: &Params) -> Result<Self, RequestError> {
        Ok(if params.flag("deep")? { Self::Everything } else { Self::Indexed })
    }

    pub(crate) fn effort(self) -> SearchEffort {
        SearchEffort {
            scanned_bytes: match self {
                Self::Indexed => Self::GLANCE,
                Self::Everything => u64::MAX,
            },
            time: Self::TIME,
            sifted: Self::SIFTED,
            detail: RunDetail::Summary,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct RunList {
    runs: Vec<Run>,
    next: Option<String>,
    /// Why runs of this page are missing: their ledger entries cannot be read.
    unreadable: Vec<String>,
}

pub(crate) async fn runs(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<RunList>, ApiError> {
    let params = Params::from_uri(&uri);
    let (filter, cursor, limit) =
        (params.filter()?, params.cursor()?, params.limit(DEFAULT_LIMIT, MAX_LIMIT)?);
    let list = move |store: &Store| {
        let order = StartOrder::NewestFirst;
        Ok(store.list_in(RunDetail::Summary, order, &filter, cursor, limit)?)
    };
    let (page, unreadable) = app.store.read(list).await?;
    Ok(Json(RunList {
        runs: page.runs,
        next: page.next.map(|next| next.to_string()),
        unreadable: unreadable.iter().map(ToString::to_string).collect(),
    }))
}

/// A run with the runs inside it.
#[derive(Serialize)]
pub(crate) struct RunTree {
    #[serde(flatten)]
    run: Run,
    children: Vec<RunTree>,
}

impl RunTree {
    fn of(tree: StoredRunTree) -> Self {
        Self { run: tree.run, children: tree.children.into_iter().map(Self::of).collect() }
    }
}

pub(crate) async fn run(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<RunTree>, ApiError> {
    let tree = app.store.read(move |store| Ok(store.tree(run_id(store, &id)?)?)).await?;
    Ok(Json(RunTree::of(tree)))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HitList {
    hits: Vec<Hit>,
    next: Option<String>,
    cut_short: bool,
    skipped_bytes: u64,
    /// Outputs that are lost or were altered; no part of them is shown.
    damaged: Vec<DamagedOutput>,
}

#[derive(Serialize)]
struct DamagedOutput {
    run: RunId,
    stream: Stream,
}

#[derive(Serialize)]
struct Hit {
    run: Run,
    stream: Stream,
    snippet: String,
    /// Ranges of the matches in the snippet, in bytes.
    matches: Vec<[usize; 2]>,
}

impl HitList {
    fn of(found: SearchResults) -> Self {
        let hits = found.hits.into_iter().map(|hit| Hit {
            matches: hit.matches.iter().map(|range| [range.start, range.end]).collect(),
            run: hit.run,
            stream: hit.stream,
            snippet: hit.snippet,
        });
        let damaged = found.damaged.iter().map(|&(run, stream)| DamagedOutput { run, stream });
        Self {
            hits: hits.collect(),
            next: found.next.map(|next| next.to_string()),
            cut_short: found.cut_short,
            skipped_bytes: found.skipped_bytes,
            damaged: damaged.collect(),
        }
    }
}

pub(crate) async fn search(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<HitList>, ApiError> {
    let params = Params::from_uri(&uri);
    let text = params.get("q").unwrap_or_default().to_owned();
    if !text.contains(char::is_alphanumeric) {
        return Err(RequestError::bad_request("q takes words: letters and digits").into());
    }
    let (filter, from, limit) =
        (params.filter()?, params.number("cursor")?, params.limit(20, 100)?);
    let depth = SearchDepth::from_params(&params)?;
    let query =
        move |store: &Store| Ok(store.search_from(&text, &filter, from, limit, depth.effort())?);
    let found = match depth {
        SearchDepth::Indexed => app.store.read(query).await?,
        SearchDepth::Everything => app.store.read_large(query).await?,
    };
    Ok(Json(HitList::of(found)))
}
