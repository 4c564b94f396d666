//! Reliable statistics: summaries, comparisons of two cells, and comparisons that stay valid if
//! checked after every sample.
//!
//! Pure functions over numbers. `docs/design/statistics.md` explains these methods and the rejected
//! ones; `tests/simulation` verifies their promises.

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
pub(crate) use special::{ln_beta, normal_point, normal_tail, student_point};
pub use summary::{Summary, drift, median, summarise};
pub use together::Combined;
pub use words::{changes_heading, is_time, value_text};

/// With fewer samples of either side nothing is decided.
pub const FEWEST: usize = 5;
