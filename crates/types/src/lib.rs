//! The words retake speaks: ids, outcomes, error codes, and the JSON shape of a run.
//!
//! Every other crate and every reader of `--json` shares these types. Nothing here runs a
//! process, opens a file or reads a clock.

mod effects;
mod error;
mod id;
mod outcome;
mod run;
mod terms;

pub use effects::{
    Better, Confidence, CountedUnit, Effects, Framework, LineChange, Measurements, Metric, Metrics,
    Observations, ProgressReason, RenamedPath, ResultsSource, RunProgress, TestDetail, TestResults,
    TestStatus,
};
pub use error::{ErrorCode, RunError};
pub use id::{CorrelationIds, LoopId, RunId};
pub use outcome::{LimitKind, Outcome, StartFailure, Word, signal_name};
pub use run::{
    Ending, EnvMode, EnvPolicy, Intent, Kind, LeftFate, LeftProcess, Limits, RanOn, Run, State,
    Stream, Usage,
};
pub use terms::{ProgramFile, Terms};
