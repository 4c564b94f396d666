//! All named tests of all runs.

use std::sync::Arc;

use axum::Json;
use axum::http::Uri;
use jiff::Timestamp;
use serde::Serialize;

use crate::app::App;
use crate::error::ApiError;
use crate::params::Params;
use crate::projects::State;
use crate::test_summary::{TestQuery, TestSummaries, TestSummary};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TestList {
    tests: Vec<TestSummary>,
    count: usize,
    counted_at: Timestamp,
}

pub(crate) async fn tests(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<TestList>, ApiError> {
    let params = Params::from_uri(&uri);
    let query = TestQuery::from_params(&params)?;
    let all = app.tests.get(&app.store, (), TestSummaries::count).await?;
    let (tests, count) = query.page(&all, params.limit(50, 500)?);
    let tests = tests.into_iter().cloned().collect();
    Ok(Json(TestList { tests, count, counted_at: all.counted_at }))
}
