//! The output of a run: windows, a search for text, and events while it is written.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;

use super::run_id;
use crate::app::App;
use crate::error::{ApiError, RequestError};
use crate::live::{self, Listener, RunSubscription};
use crate::output_search::{self, SearchResult, TextSearch};
use crate::output_window::{OutputSource, OutputWindow, WindowRequest};
use crate::params::Params;

pub(crate) async fn logs(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<OutputWindow>, ApiError> {
    let request = WindowRequest::from_params(&Params::from_uri(&uri))?;
    let query = move |store: &retake_store::Store| request.window(store, run_id(store, &id)?);
    let window = match request.source {
        OutputSource::One(_) => app.store.read(query).await,
        OutputSource::Interleaved => app.store.read_large(query).await,
    };
    Ok(Json(window?))
}

pub(crate) async fn find(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<SearchResult>, ApiError> {
    let params = Params::from_uri(&uri);
    let source = OutputSource::from_params(&params)?;
    let text = params.get("text").unwrap_or_default().to_owned();
    let (from, since) = (params.number("offset")?.unwrap_or(0), params.number("since")?);
    let search = TextSearch { text, from, since };
    // Reads up to 64 MiB: one at a time.
    let found = app.store.read_large(move |store| {
        output_search::find_text(store, run_id(store, &id)?, source, &search)
    });
    Ok(Json(found.await?))
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
