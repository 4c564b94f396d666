//! What a run wrote: in windows, by a text in it, and as it is written.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;

use crate::App;
use crate::output_search::{self, Place, TextSearch};
use crate::live::{self, Listener, RunSubscription};
use crate::output_window::{WindowRequest, OutputSource, OutputWindow};
use crate::params::Params;
use crate::error::{ApiError, RequestError};
use super::run_id;

pub(crate) async fn logs(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<OutputWindow>, ApiError> {
    let view = WindowRequest::of(&Params::of(&uri))?;
    let look = move |store: &retake_store::Store| view.window(store, run_id(store, &id)?);
    let window = match view.which {
        OutputSource::One(_) => app.store.read(look).await,
        OutputSource::Interleaved => app.store.read_large(look).await,
    };
    Ok(Json(window?))
}

pub(crate) async fn find(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Place>, ApiError> {
    let params = Params::of(&uri);
    let which = OutputSource::of(&params)?;
    let text = params.get("text").unwrap_or_default().to_owned();
    let (from, since) = (params.number("offset")?.unwrap_or(0), params.number("since")?);
    let search = TextSearch { text, from, since };
    // Reads up to 64 MiB: one at a time.
    let found = app
        .reader
        .read_large(move |store| output_search::find(store, run_id(store, &id)?, which, &search));
    Ok(Json(found.await?))
}

pub(crate) async fn run_events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = Params::of(&uri);
    let from = live::offsets(live::resumed(&headers, &params).as_deref())?;
    let subscription = RunSubscription { from, spans: params.flag("spans")?, latest: params.flag("latest")? };
    let id = app
        .reader
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
