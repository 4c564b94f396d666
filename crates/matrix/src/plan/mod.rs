//! The plan of a matrix: which cells there are, what is still to run, and in which order.
//!
//! Pure: no process, no clock, no database. The driver asks for a step, runs it, and tells the
//! outcome.

mod cells;
mod pairs;
mod sampler;
mod schedule;

pub use cells::{Cell, CellKey, FilterError, Identity, Matrix};
pub use pairs::{Selector, SelectorError, baselines};
pub use sampler::{Sampler, Shot};
pub use schedule::{Mode, Next, Options, PastRun, Plan, Step, StepKind};
