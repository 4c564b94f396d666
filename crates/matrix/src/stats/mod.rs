//! Statistics that can be trusted: summaries, comparisons of two cells, and comparisons that stay
//! valid when someone looks after every sample.
//!
//! Pure functions over numbers. Why these methods, and which were rejected, is in
//! `docs/design/statistics.md`; `tests/simulation.rs` holds them to their promises.

mod bootstrap;
mod change_points;
mod compare;
mod gate;
mod projection;
mod rank;
mod reason;
mod scale;
mod sequence;
pub(crate) mod special;
mod summary;
mod together;
mod words;

pub(crate) use bootstrap::Medians;
pub use bootstrap::median_interval;
pub use change_points::{
    ChangeCriteria, ChangePoint, Evidence, Observation, SessionSpread, change_points,
    session_spread,
};
pub(crate) use compare::enough_blocks;
pub(crate) use compare::in_common;
pub use compare::{
    Comparison, Counts, Criteria, Difference, Method, Side, Values, Verdict, compare,
};
pub use gate::{Gate, GateError, GateRule, parse_percent};
pub use rank::{rank_test, signed_rank_test};
pub use reason::{Reason, percent};
pub use sequence::{Boundary, Sequence, SequenceVerdict};
pub(crate) use special::{ln_beta, normal_point, student_point};
pub use summary::{Summary, drift, median, summarise};
pub use together::Combined;
pub use words::{is_time, value_text};

/// Below this many samples of either side nothing is decided.
pub const FEWEST: usize = 5;
