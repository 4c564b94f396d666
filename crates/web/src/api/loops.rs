//! Loops: a list, details, events, and control.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::Path;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;

use super::loop_id;
use crate::app::App;
use crate::error::{ApiError, RequestError};
use crate::live::{self, Listener};
use crate::loops::agent::IterationWindow;
use crate::loops::control::{self, ActionResult, LoopAction};
use crate::loops::{LoopQuery, LoopSummary, LoopView, RunningLoops};
use crate::params::Params;
use crate::projects::State;

/// Maximum size of a request's body: a message to an agent, with room to spare.
pub(crate) const MAX_BODY: usize = 128 << 10;

#[derive(Serialize)]
pub(crate) struct LoopList {
    pub(crate) loops: Vec<LoopSummary>,
    pub(crate) next: Option<String>,
}

impl App {
    pub(crate) async fn loops(&self, params: &Params) -> Result<LoopList, RequestError> {
        let (kind, limit) = (params.kind()?, params.limit(50, 200)?);
        let cursor = params.parsed("cursor", "a position in this list")?;
        let workspaces = self.workspaces.clone();
        self.store
            .read(move |store| {
                let running_loops = RunningLoops::read(store)?;
                let page = store.page_loops(kind, cursor, limit)?;
                let summary = |record| running_loops.summary(store, record, workspaces.as_ref());
                Ok(LoopList {
                    next: page.next.map(|next| next.to_string()),
                    loops: page
                        .loops
                        .into_iter()
                        .map(summary)
                        .collect::<Result<_, RequestError>>()?,
                })
            })
            .await
    }
}

pub(crate) async fn loops(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<LoopList>, ApiError> {
    Ok(Json(app.loops(&Params::from_uri(&uri)).await?))
}

/// The part of a loop that an address asks for.
pub(crate) fn loop_query(params: &Params) -> Result<LoopQuery, RequestError> {
    let metric = params.get("metric").map(str::to_owned);
    let iterations = IterationWindow {
        before: params.parsed("before", "the number of an iteration")?,
        limit: match params.get("limit") {
            Some(_) => Some(params.limit(0, usize::MAX)?),
            None => None,
        },
    };
    Ok(LoopQuery { metric, after: params.number("after")?.unwrap_or(0), iterations })
}

pub(crate) async fn one_loop(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<LoopView>, ApiError> {
    Ok(Json(app.loop_view(loop_id(&id)?, loop_query(&Params::from_uri(&uri))?).await?))
}

pub(crate) async fn loop_events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    let id = loop_id(&id)?;
    let from = live::EntryPosition::parse(
        live::resume_position(&headers, &Params::from_uri(&uri)).as_deref(),
    )?;
    app.store.read(move |store| Ok(store.get_loop(id)?)).await?;
    let (response, listener) = Listener::open(&app)?;
    tokio::spawn(live::follow_loop(app, id, from, listener));
    Ok(response)
}

/// Merges the work of one agent of a fleet into the branch that is checked out.
pub(crate) async fn apply(
    State(app): State<Arc<App>>,
    Path((id, name)): Path<(String, String)>,
) -> Result<Json<ActionResult>, ApiError> {
    Ok(Json(app.fleet_apply(loop_id(&id)?, name).await?))
}

pub(crate) async fn act(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ActionResult>, ApiError> {
    let id = loop_id(&id)?;
    let body = body.map_err(|rejected| match rejected.status() {
        StatusCode::PAYLOAD_TOO_LARGE => RequestError::too_large(format!(
            "a message has at most {} bytes; put longer text into a file and send its name",
            MAX_BODY
        )),
        _ => RequestError::bad_request(rejected.body_text()),
    })?;
    let action: LoopAction = serde_json::from_slice(&body).map_err(|error| {
        RequestError::bad_request(format!(
            "{error}; send {{\"action\": \"stop\"}}, pause, resume, or tell with a message"
        ))
    })?;
    let workspaces = app.workspaces.clone();
    let done = app
        .store
        .read(move |store| control::act(workspaces.as_ref(), &store.get_loop(id)?, &action));
    Ok(Json(done.await?))
}
