//! What a run wrote: in windows, by a text in it, and as it is written.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;

use super::super::App;
use super::super::find::{self, Place, Question};
use super::super::live::{self, Listener, Wish};
use super::super::log::{View, Which, Window};
use super::super::params::Params;
use super::super::trouble::{ApiTrouble, Trouble};
use super::run_id;

pub(crate) async fn logs(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Window>, ApiTrouble> {
    let view = View::of(&Params::of(&uri))?;
    let look = move |store: &retake_store::Store| view.window(store, run_id(store, &id)?);
    let window = match view.which {
        Which::One(_) => app.reader.look(look).await,
        Which::Merged => app.reader.large_look(look).await,
    };
    Ok(Json(window?))
}

pub(crate) async fn find(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Place>, ApiTrouble> {
    let params = Params::of(&uri);
    let which = Which::of(&params)?;
    let text = params.get("text").unwrap_or_default().to_owned();
    let (from, since) = (params.number("offset")?.unwrap_or(0), params.number("since")?);
    let question = Question { text, from, since };
    // Reads up to 64 MiB: one at a time.
    let found = app
        .reader
        .large_look(move |store| find::find(store, run_id(store, &id)?, which, &question));
    Ok(Json(found.await?))
}

pub(crate) async fn run_events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiTrouble> {
    let params = Params::of(&uri);
    let from = live::offsets(live::resumed(&headers, &params).as_deref())?;
    let wish = Wish { from, spans: params.flag("spans")?, latest: params.flag("latest")? };
    let id = app
        .reader
        .look(move |store| {
            let id = run_id(store, &id)?;
            store.get(id)?;
            Ok::<_, Trouble>(id)
        })
        .await?;
    let (response, listener) = Listener::open(&app)?;
    tokio::spawn(live::follow_run(app, id, wish, listener));
    Ok(response)
}
