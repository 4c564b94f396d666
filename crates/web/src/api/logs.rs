//! The output of a run: windows, line numbers, searches, and events while it is written.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use serde::Serialize;

use super::run_id;
use crate::app::App;
use crate::error::{ApiError, RequestError};
use crate::live::{self, Listener, RunSubscription};
use crate::output_search::{self, Direction, MatchCount, OutputSearch, SearchResult, Wanted};
use crate::output_source::OutputSource;
use crate::output_window::{OutputWindow, WindowRequest};
use crate::params::Params;
use crate::projects::State;
use crate::store_pool::Store;

/// Maximum number of bytes that one request for a line number reads.
const COUNTED_AT_ONCE: u64 = 64 << 20;

pub(crate) async fn logs(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<OutputWindow>, ApiError> {
    let request = WindowRequest::from_params(&Params::from_uri(&uri))?;
    let reading = app.clone();
    let query = move |store: &Store| request.window(store, run_id(store, &id)?, &reading.lines);
    let window = match request.needs_order() {
        false => app.store.read(query).await,
        true => app.store.read_large(query).await,
    };
    Ok(Json(window?))
}

/// The text or the errors that a request searches for.
fn wanted(params: &Params) -> Result<Wanted, RequestError> {
    Ok(match params.flag("errors")? {
        true => Wanted::Errors,
        false => Wanted::Text(params.get("text").unwrap_or_default().to_owned()),
    })
}

pub(crate) async fn find(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<SearchResult>, ApiError> {
    let params = Params::from_uri(&uri);
    let source = OutputSource::from_params(&params)?;
    let direction = match params.flag("back")? {
        true => Direction::Backwards,
        false => Direction::Forwards,
    };
    let (from, since) = (params.number("offset")?.unwrap_or(0), params.number("since")?);
    let search = OutputSearch { wanted: wanted(&params)?, from, direction, since };
    // Reads up to 64 MiB: only one at a time.
    let found = app
        .store
        .read_large(move |store| output_search::find(store, run_id(store, &id)?, source, &search));
    Ok(Json(found.await?))
}

pub(crate) async fn count(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<MatchCount>, ApiError> {
    let params = Params::from_uri(&uri);
    let source = OutputSource::from_params(&params)?;
    let wanted = wanted(&params)?;
    let from = params.number("offset")?.unwrap_or(0);
    let range = from..params.number("until")?.unwrap_or(u64::MAX);
    let count = app.store.read_large(move |store| {
        output_search::count(store, run_id(store, &id)?, source, (&wanted, range))
    });
    Ok(Json(count.await?))
}

/// The number of a line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LineNumber {
    /// Of the line at the offset; null if it is not counted yet.
    line: Option<u64>,
    counted_to: u64,
    length: u64,
}

pub(crate) async fn line(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<LineNumber>, ApiError> {
    let params = Params::from_uri(&uri);
    let source = OutputSource::from_params(&params)?;
    let offset = params.number("offset")?.unwrap_or(0);
    let reading = app.clone();
    let number = app.store.read_large(move |store| {
        let id = run_id(store, &id)?;
        let lost = |error| RequestError::from(retake_store::Error::reading(id, error));
        let (asked, lines) = ((offset, COUNTED_AT_ONCE), &reading.lines);
        let (length, counted) = match source {
            OutputSource::One(stream) => {
                let mut output = store.read_output(id, stream)?;
                let length = output.length();
                (length, lines.line_at((id, source), &mut output, length, asked))
            }
            OutputSource::Interleaved => {
                let mut output = store.read_interleaved(id)?;
                let length = output.length();
                (length, lines.line_at((id, source), &mut output, length, asked))
            }
        };
        let (line, counted_to) = counted.map_err(lost)?;
        Ok(LineNumber { line, counted_to, length })
    });
    Ok(Json(number.await?))
}

pub(crate) async fn run_events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = Params::from_uri(&uri);
    let from = live::offsets(live::resume_position(&headers, &params).as_deref())?;
    let subscription =
        RunSubscription { from, spans: params.flag("spans")?, latest: params.flag("latest")? };
    let id = app
        .store
        .read(move |store| {
            let id = run_id(store, &id)?;
            store.get(id)?;
            Ok::<_, RequestError>(id)
        })
        .await?;
    let (response, listener) = Listener::open(&app)?;
    tokio::spawn(live::follow_run(app, id, subscription, listener));
    Ok(response)
}
