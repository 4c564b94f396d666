//! A failing state as a finding, with or without its cause.

use retake_crash::model::{
    Circumstance, Explainer, Finding, ProofAnswer, ProofRole, ProofState, path_text,
};
use retake_types::loop_record::crash::{
    CrashFinding, CrashProofAnswer, CrashProofRole, CrashProofState,
};

use crate::exploration_plan::FailingState;

/// The verdict on a state that was not checked again because of a signal.
pub(crate) const NOT_REPEATED: &str = "failed, and was not run again";

/// Failing states without a known cause, as one finding: that of the smallest.
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
    Some(CrashFinding { unexplained: true, ..finding(cause, state.label.clone(), verdict, output) })
}

/// A cause with the check of its smallest state.
pub(crate) fn finding(
    cause: Finding,
    label: Option<String>,
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
        label,
        acknowledgements: cause.acks,
        verdict,
        output,
        named_operations: cause.named,
        survivor: match cause.circumstance {
            Some(Circumstance::Survivor(number)) => Some(number),
            _ => None,
        },
        proven: cause.proof.complete,
        proof: cause.proof.states.iter().map(proof_state).collect(),
        ..CrashFinding::default()
    }
}

fn proof_state(state: &ProofState) -> CrashProofState {
    let (role, operation) = match state.role {
        ProofRole::Loss => (CrashProofRole::Loss, None),
        ProofRole::NothingLost => (CrashProofRole::NothingLost, None),
        ProofRole::GivenBack(operation) => (CrashProofRole::GivenBack, Some(operation)),
        ProofRole::MomentBefore => (CrashProofRole::MomentBefore, None),
        ProofRole::MomentAfter => (CrashProofRole::MomentAfter, None),
    };
    let answer = match state.answer {
        ProofAnswer::Fails => CrashProofAnswer::Fails,
        ProofAnswer::Passes => CrashProofAnswer::Passes,
        ProofAnswer::FailsOtherwise => CrashProofAnswer::FailsOtherwise,
    };
    CrashProofState { key: state.key.to_string(), role, operation, answer }
}
