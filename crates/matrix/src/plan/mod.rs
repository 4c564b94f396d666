//! The plan of a matrix: its cells, the remaining runs, and their order.
//!
//! Pure: no process, no clock, no database. The driver asks for a step, runs it, and reports the
//! result.

mod cells;
mod matrix_plan;
mod pairs;
mod sampler;
mod schedule;
mod shard;

pub use cells::{Cell, FilterError, Identity, Matrix, PairNames};
pub use matrix_plan::{
    CellResult, FailedHook, FinishedStep, MatrixPlan, MatrixProgress, PlanKind, SamplingPlan,
};
pub use pairs::{ComparedPairs, Selector, SelectorError, baselines};
pub use sampler::{MOST_BLOCKS, Sampler, Shot};
pub use schedule::{CellSchedule, CellStep, CellStepKind, PastRun, ScheduleMode, ScheduleOptions};
pub use shard::{BadShard, Durations, Shard, ShardPlan, UnknownAxis};
