//! Loops, one or many, what happens to them, and steering them.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;

use super::super::App;
use super::super::live::{self, Listener};
use super::super::loops::steer::{self, Action, Done};
use super::super::loops::{Asked, AtWork, Summary, Whole};
use super::super::params::Params;
use super::super::server::LONGEST_BODY;
use super::super::trouble::{ApiTrouble, Trouble};
use super::loop_id;

#[derive(Serialize)]
pub(crate) struct LoopList {
    pub(crate) loops: Vec<Summary>,
    pub(crate) next: Option<String>,
}

impl App {
    pub(crate) async fn loops(&self, params: &Params) -> Result<LoopList, Trouble> {
        let (kind, limit) = (params.kind()?, params.limit(50, 200)?);
        let cursor = params.parsed("cursor", "a place in this list")?;
        let places = self.places.clone();
        self.reader
            .look(move |store| {
                let at_work = AtWork::look(store)?;
                let page = store.page_loops(kind, cursor, limit)?;
                let summary = |record| at_work.summary(store, record, places.as_ref());
                Ok(LoopList {
                    next: page.next.map(|next| next.to_string()),
                    loops: page.loops.into_iter().map(summary).collect::<Result<_, Trouble>>()?,
                })
            })
            .await
    }
}

pub(crate) async fn loops(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<LoopList>, ApiTrouble> {
    Ok(Json(app.loops(&Params::of(&uri)).await?))
}

/// What part of a loop an address asks for.
pub(crate) fn asked(params: &Params) -> Result<Asked, Trouble> {
    let metric = params.get("metric").map(str::to_owned);
    Ok(Asked { metric, after: params.number("after")?.unwrap_or(0) })
}

pub(crate) async fn one_loop(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Whole>, ApiTrouble> {
    Ok(Json(app.whole(loop_id(&id)?, asked(&Params::of(&uri))?).await?))
}

pub(crate) async fn loop_events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiTrouble> {
    let id = loop_id(&id)?;
    let from = live::Heard::of(live::resumed(&headers, &Params::of(&uri)).as_deref())?;
    app.reader.look(move |store| Ok(store.get_loop(id)?)).await?;
    let (response, listener) = Listener::open(&app)?;
    tokio::spawn(live::follow_loop(app, id, from, listener));
    Ok(response)
}

pub(crate) async fn act(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Done>, ApiTrouble> {
    let id = loop_id(&id)?;
    let body = body.map_err(|rejected| match rejected.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Trouble::too_large(format!(
            "a message has at most {} bytes; put what is longer into a file and tell its name",
            LONGEST_BODY
        )),
        _ => Trouble::bad_request(rejected.body_text()),
    })?;
    let action: Action = serde_json::from_slice(&body).map_err(|error| {
        Trouble::bad_request(format!(
            "{error}; send {{\"action\": \"stop\"}}, pause, resume, or tell with a message"
        ))
    })?;
    let places = app.places.clone();
    let done =
        app.reader.look(move |store| steer::act(places.as_ref(), &store.get_loop(id)?, &action));
    Ok(Json(done.await?))
}
