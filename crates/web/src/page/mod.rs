//! The pages. Each works without its script, which only adds what HTML alone cannot do.

mod agent;
mod badge;
mod bisection;
mod compare;
mod crash;
mod diff;
mod failure;
mod fleet;
mod layout;
mod loops;
mod matrix;
mod output;
mod output_lines;
mod overview;
mod raw;
mod run;
mod run_columns;
mod run_table;
mod runs;
mod tests;
mod transcript;

use axum::extract::Path;
use axum::response::Response;

use crate::assets;

pub(crate) use compare::compare;
pub(crate) use fleet::fleet_agent;
pub(crate) use layout::PageError;
pub(crate) use loops::{loops, one_loop};
pub(crate) use overview::overview;
pub(crate) use raw::raw;
pub(crate) use run::run;
pub(crate) use runs::runs;
pub(crate) use tests::{test, tests};

pub(crate) async fn asset(Path(name): Path<String>) -> Result<Response, PageError> {
    Ok(assets::response(&name)?)
}
