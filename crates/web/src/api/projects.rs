//! The projects of a shared record.

use std::sync::Arc;

use axum::Json;
use serde::Serialize;

use crate::app::App;
use crate::error::ApiError;
use crate::projects::State;

#[derive(Serialize)]
pub(crate) struct ProjectList {
    /// Sorted by name; empty for the record of one machine.
    projects: Vec<String>,
    /// The project of this request; null for all of them.
    project: Option<String>,
}

pub(crate) async fn projects(State(app): State<Arc<App>>) -> Result<Json<ProjectList>, ApiError> {
    let projects = app.store.read(|store| Ok(store.projects()?)).await?;
    let project = app.shared.as_ref().and_then(|scope| scope.project.clone());
    Ok(Json(ProjectList { projects, project }))
}
