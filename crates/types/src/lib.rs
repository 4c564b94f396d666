//! The words retake speaks: ids, outcomes, error codes, and the JSON shape of a run.
//!
//! Every other crate and every reader of `--json` shares these types. Nothing here runs a
//! process, opens a file or reads a clock.

mod error;
mod id;
mod loop_state;
mod outcome;
mod run;
mod terms;

pub use error::{ErrorCode, RunError};
pub use id::{CorrelationIds, LoopId, RunId};
pub use loop_state::{LoopState, StopReason};
pub use outcome::{LimitKind, Outcome, StartFailure, Word, signal_name};
pub use run::{
    Ending, EnvMode, EnvPolicy, Intent, Kind, LeftFate, LeftProcess, Limits, RanOn, Run, State,
    Stream, Usage,
};
pub use terms::{ProgramFile, Terms};
