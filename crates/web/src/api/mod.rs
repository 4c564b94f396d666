//! The JSON API, as described in `docs/api.md`.

mod again;
mod logs;
mod loops;
mod overview;
mod projects;
mod runs;
mod tests;

pub(crate) use again::again;
pub(crate) use logs::{count, find, line, logs, run_events};
pub(crate) use loops::{MAX_BODY, act, apply, loop_events, loop_query, loops, one_loop};
pub(crate) use overview::{Overview, audit, overview, verify};
pub(crate) use projects::projects;
pub(crate) use runs::{SearchDepth, run, runs, search};
pub(crate) use tests::tests;

use retake_types::{LoopId, RunId};

use crate::error::RequestError;
use crate::store_pool::Store;

/// The run that an address names: an id, a unique part of one, or `last`.
pub(crate) fn run_id(store: &Store, text: &str) -> Result<RunId, RequestError> {
    match text.parse() {
        Ok(id) => Ok(id),
        Err(_) => Ok(store.find(text)?.intent.id()),
    }
}

pub(crate) fn loop_id(text: &str) -> Result<LoopId, RequestError> {
    text.parse().map_err(|_| RequestError::not_found(format!("`{text}` is not the id of a loop")))
}
