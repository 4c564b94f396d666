//! Statistics that can be trusted: summaries, comparisons of two cells, and comparisons that stay
//! valid when someone looks after every sample.
//!
//! Pure functions over numbers. Why these methods, and which were rejected, is in
//! `docs/design/statistics.md`; `tests/simulation.rs` holds them to their promises.

mod bootstrap;
mod compare;
mod gate;
mod rank;
mod sequence;
pub(crate) mod special;
mod summary;
mod together;

pub(crate) use bootstrap::Medians;
pub(crate) use compare::enough_blocks;
pub use compare::{Comparison, Counts, Criteria, Method, Side, Verdict, compare};
pub use gate::{Gate, GateError, parse_percent};
pub use rank::{rank_test, signed_rank_test};
pub use sequence::{Boundary, Sequence};
pub(crate) use special::{ln_beta, normal_point, student_point};
pub use summary::{Summary, summarise};
pub use together::Combined;

/// Below this many samples of either side nothing is decided.
pub const FEWEST: usize = 5;
