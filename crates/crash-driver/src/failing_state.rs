//! A failing state as a finding, with its cause or without.

use retake_crash::model::{CrashState, Explainer, Finding, path_text};
use retake_types::loop_record::crash::CrashFinding;

use crate::exploration_plan::FailingState;

/// The verdict on a state that a signal kept from being checked again.
pub(crate) const NOT_REPEATED: &str = "failed, and was not run again";

/// States that fail and whose cause was not found, as one finding: that of the smallest.
pub(crate) fn unexplained(
    explainer: &Explainer<'_>,
    failing: &[FailingState],
) -> Option<CrashFinding> {
    let smallest = failing.iter().min_by_key(|one| (one.state.lost.len(), one.state.key.point))?;
    let FailingState { state, failure, .. } = smallest;
    let cause = Finding { states: failing.len(), ..explainer.unexplained(state) };
    let (verdict, output) = match failure {
        Some(failed) => (failed.verdict(), failed.output.clone()),
        None => (NOT_REPEATED.to_owned(), String::new()),
    };
    Some(CrashFinding { unexplained: true, ..finding(cause, state, verdict, output) })
}

/// A cause with the check of its smallest state.
pub(crate) fn finding(
    cause: Finding,
    state: &CrashState,
    verdict: String,
    output: String,
) -> CrashFinding {
    CrashFinding {
        id: cause.id,
        sentence: cause.sentence,
        files: cause.files.iter().map(|path| path_text(path)).collect(),
        lost_operations: cause.lost_operations,
        states: cause.states as u64,
        key: cause.key.to_string(),
        operation: cause.key.point.operation,
        label: state.label.clone(),
        acknowledgements: state.acks,
        verdict,
        output,
        ..CrashFinding::default()
    }
}
