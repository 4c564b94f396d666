//! Loops, one or many, what happens to them, and steering them.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;

use crate::App;
use crate::live::{self, Listener};
use crate::loops::control::{self, Action, Done};
use crate::loops::{LoopQuery, RunningLoops, LoopSummary, LoopView};
use crate::params::Params;
use crate::server::LONGEST_BODY;
use crate::error::{ApiError, RequestError};
use super::loop_id;

#[derive(Serialize)]
pub(crate) struct LoopList {
    pub(crate) loops: Vec<LoopSummary>,
    pub(crate) next: Option<String>,
}

impl App {
    pub(crate) async fn loops(&self, params: &Params) -> Result<LoopList, RequestError> {
        let (kind, limit) = (params.kind()?, params.limit(50, 200)?);
        let cursor = params.parsed("cursor", "a place in this list")?;
        let workspaces = self.workspaces.clone();
        self.store
            .read(move |store| {
                let running_loops = RunningLoops::look(store)?;
                let page = store.page_loops(kind, cursor, limit)?;
                let summary = |record| running_loops.summary(store, record, workspaces.as_ref());
                Ok(LoopList {
                    next: page.next.map(|next| next.to_string()),
                    loops: page.loops.into_iter().map(summary).collect::<Result<_, RequestError>>()?,
                })
            })
            .await
    }
}

pub(crate) async fn loops(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<LoopList>, ApiError> {
    Ok(Json(app.loops(&Params::of(&uri)).await?))
}

/// What part of a loop an address asks for.
pub(crate) fn query(params: &Params) -> Result<LoopQuery, RequestError> {
    let metric = params.get("metric").map(str::to_owned);
    Ok(LoopQuery { metric, after: params.number("after")?.unwrap_or(0) })
}

pub(crate) async fn one_loop(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<LoopView>, ApiError> {
    Ok(Json(app.loop_view(loop_id(&id)?, query(&Params::of(&uri))?).await?))
}

pub(crate) async fn loop_events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    let id = loop_id(&id)?;
    let from = live::LoopPosition::of(live::resumed(&headers, &Params::of(&uri)).as_deref())?;
    app.store.read(move |store| Ok(store.get_loop(id)?)).await?;
    let (response, listener) = Listener::open(&app)?;
    tokio::spawn(live::follow_loop(app, id, from, listener));
    Ok(response)
}

pub(crate) async fn act(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Done>, ApiError> {
    let id = loop_id(&id)?;
    let body = body.map_err(|rejected| match rejected.status() {
        StatusCode::PAYLOAD_TOO_LARGE => RequestError::too_large(format!(
            "a message has at most {} bytes; put what is longer into a file and tell its name",
            LONGEST_BODY
        )),
        _ => RequestError::bad_request(rejected.body_text()),
    })?;
    let action: Action = serde_json::from_slice(&body).map_err(|error| {
        RequestError::bad_request(format!(
            "{error}; send {{\"action\": \"stop\"}}, pause, resume, or tell with a message"
        ))
    })?;
    let workspaces = app.workspaces.clone();
    let done =
        app.store.read(move |store| control::act(workspaces.as_ref(), &store.get_loop(id)?, &action));
    Ok(Json(done.await?))
}
