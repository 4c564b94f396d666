//! The JSON API: what `docs/api.md` describes, and nothing else.

mod logs;
mod loops;
mod overview;
mod runs;

pub(super) use logs::{find, logs, run_events};
pub(super) use loops::query;
pub(super) use loops::{act, loop_events, loops, one_loop};
pub(super) use overview::Overview;
pub(super) use overview::{audit, overview, verify};
pub(super) use runs::{EFFORT, run, runs, search};

use retake_store::Store;
use retake_types::{LoopId, RunId};

use super::error::RequestError;

/// The one run that an address names: an id, a unique part of one, or `last`.
pub(super) fn run_id(store: &Store, text: &str) -> Result<RunId, RequestError> {
    match text.parse() {
        Ok(id) => Ok(id),
        Err(_) => Ok(store.find(text)?.intent.id()),
    }
}

pub(super) fn loop_id(text: &str) -> Result<LoopId, RequestError> {
    text.parse().map_err(|_| RequestError::not_found(format!("`{text}` is not the id of a loop")))
}
