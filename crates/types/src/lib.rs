//! The values that every crate shares: ids, the request of a run, outcomes, configuration sections,
//! error codes and the JSON shape of a run.
//!
//! Every other crate and every reader of `--json` shares these types. Nothing here runs a
//! process, opens a file or reads a clock.

pub mod config;
mod denial;
mod disturbance;
mod effects;
mod error;
pub mod exec_flags;
mod id;
mod intent;
mod left_for_host;
pub mod loop_record;
mod loop_state;
mod measured_run;
mod network;
mod os_text;
mod outcome;
mod redacted;
mod refusal;
pub mod request;
mod run;
mod sandbox;
#[cfg(feature = "test-support")]
pub mod test_support;
pub mod text;
mod units;
mod usage;

pub use denial::{Denial, DeniedOperation};
pub use disturbance::{Disturbance, DisturbedNode, NodeDisturbances, SeenDisturbance};
pub use effects::{
    Better, Confidence, CountedUnit, Effects, Framework, LineChange, Measurements, Metric,
    MetricText, Metrics, Observations, ProgressReason, RenamedPath, ResultsSource, RunProgress,
    TestDetail, TestResults, TestStatus,
};
pub use error::{ErrorCode, ErrorDetail, RunError};
pub use id::{CorrelationIds, LoopId, RunId};
pub use intent::{Intent, ProgramFile, REDACTION_MARK, RedactedParts};
pub use left_for_host::{LeftFile, LeftFileKind, LeftForHost};
pub use loop_state::{LoopState, StopReason};
pub use measured_run::{MeasuredIntent, MeasuredOutcome, MeasuredRequest, MeasuredRun};
pub use network::{
    HostPattern, HostProblem, HostTarget, NetworkRefusal, NetworkRequest, NetworkRule, NetworkUse,
    ParentProxyProblem, is_public,
};
pub use os_text::OsText;
pub use outcome::{LimitKind, Outcome, OutcomeKind, StartFailure, signal_name};
pub use redacted::{Redact, Redacted, Redactions, TextRedactor};
pub use refusal::{RefusalReason, RequestField, RequestString};
pub use request::RunRequest;
pub use run::{
    EnvMode, Kind, LeftCounts, LeftFate, LeftProcess, Limits, RanOn, Run, RunOutcome, ShellMode,
    State, Stream,
};
pub use sandbox::{
    DroppedPromise, ListedWrites, PathAccess, PathGrant, PathRule, ReportedRuns, SandboxFailure,
    SandboxLevel, SandboxMode, SandboxPart, SandboxReport, SandboxRequest, ShownAt,
    is_withheld_variable, path_access,
};
pub use units::{UnitError, parse_duration, parse_size};
pub use usage::Usage;

/// For counts that JSON omits when zero.
fn is_zero(number: &u64) -> bool {
    *number == 0
}
