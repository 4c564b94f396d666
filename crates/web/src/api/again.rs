//! Runs a recorded command again.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use retake_types::RunId;
use serde::Serialize;

use super::run_id;
use crate::app::App;
use crate::error::{ApiError, RequestError};
use crate::projects::State;

#[derive(Serialize)]
pub(crate) struct StartedRun {
    /// The new run.
    id: RunId,
}

pub(crate) async fn again(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<StartedRun>, ApiError> {
    let rerun = app.rerun.as_ref().ok_or_else(|| {
        RequestError::forbidden(
            "this server does not run commands; start it with `retake ui --allow-run`",
        )
    })?;
    let id = rerun.start(&app.store, move |store| run_id(store, &id)).await?;
    Ok(Json(StartedRun { id }))
}
