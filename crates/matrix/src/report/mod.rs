//! Reports about a matrix: the grid of its state, and one HTML page with everything.
//!
//! Text is returned, never printed.

mod cells;
mod history;
mod html;
mod status;
mod svg;

pub use html::{Page, render};
pub use status::{PhaseRow, RunRow, Status, StatusCell, compact, grid};
pub use svg::over_commits;
