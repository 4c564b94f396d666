//! From failing states to findings: each cause once, with its smallest state checked once more for
//! the output of the check.

use std::cell::Cell;
use std::time::Instant;

use retake_crash::model::{CrashState, Explainer, rebuild};
use retake_runner::signals;
use retake_types::loop_record::crash::CrashFinding;

use crate::check::{CheckOutcome, FLAKY};
use crate::check_worker::{CheckInput, CheckWorker};
use crate::error::CrashTestError;
use crate::event::CrashEvent;
use crate::exploration::{Exploration, acks, files_before};
use crate::exploration_plan::FailingState;
use crate::failing_state::{NOT_REPEATED, finding, unexplained};

/// No crash is needed: the program's first operation is still to come.
fn start_sentence(files: u64) -> String {
    let accept = match files {
        0 => "an empty one",
        _ => "its files as they were",
    };
    format!(
        "the check fails on the directory as it was before the program did anything: start from a valid \
         state with --fresh=DIR, or let the check accept {accept}"
    )
}

/// The findings of failing states, in order. After a signal no further
/// state is explained; the rest become one finding without an explanation.
pub fn findings(
    exploration: &Exploration<'_>,
    failing: &[FailingState],
    worker: &mut CheckWorker,
) -> Result<Vec<CrashFinding>, CrashTestError> {
    let Exploration { recording, model, options, observer, check, .. } = exploration;
    let mut explainer = Explainer::new(recording, *model, options).map_err(CrashTestError::Glob)?;
    let acks = acks(recording);
    let failure = Cell::new(None);
    let begun = Instant::now();
    let (mut causes, mut explained) = (Vec::new(), 0);
    for (at, FailingState { state, failure: known, .. }) in failing.iter().enumerate() {
        if signals::received().is_some() {
            break;
        }
        let (states, elapsed) = (failing.len(), begun.elapsed());
        observer.event(CrashEvent::Explaining { explained: at, states, elapsed });
        let kind = match known {
            Some(failed) => Some(failed.kind()),
            // It was found on another machine, and how the check fails distinguishes causes.
            None => {
                let again = rebuild(recording, *model, options, &state.key);
                match again.map_err(CrashTestError::Glob)? {
                    Some(again) => match worker.check(check, CheckInput::new(&again, &acks))? {
                        CheckOutcome::Failed(failed) => Some(failed.kind()),
                        CheckOutcome::Passed | CheckOutcome::Cancelled => None,
                    },
                    None => None,
                }
            }
        };
        explainer.add(state, kind, |state| {
            match worker.check(check, CheckInput::new(state, &acks)) {
                Ok(CheckOutcome::Failed(failed)) => Some(failed.kind()),
                Ok(CheckOutcome::Passed | CheckOutcome::Cancelled) => None,
                Err(error) => {
                    failure.set(Some(error));
                    None
                }
            }
        });
        if let Some(error) = failure.take() {
            return Err(error.into());
        }
        // An interrupted explanation may be wrong.
        if signals::received().is_some() {
            break;
        }
        causes = explainer.findings();
        explained = at + 1;
    }
    let mut findings = Vec::new();
    for cause in causes {
        let state =
            rebuild(recording, *model, options, &cause.key).map_err(CrashTestError::Glob)?;
        let state = state.map(|state| CrashState { acks: cause.acks, ..state });
        let checked = match &state {
            Some(state) => worker.check(check, CheckInput::new(state, &acks))?,
            // It failed, even if a signal keeps it from being checked again.
            None => CheckOutcome::Cancelled,
        };
        let (verdict, output) = match checked {
            CheckOutcome::Failed(failed) => (failed.verdict(), failed.output),
            CheckOutcome::Passed => (FLAKY.to_owned(), String::new()),
            CheckOutcome::Cancelled => (NOT_REPEATED.to_owned(), String::new()),
        };
        let label = state.and_then(|state| state.label);
        let at_start = cause.key.point.operation == 0 && cause.acks == 0;
        let mut finding = finding(cause, label, verdict, output);
        if at_start {
            finding.sentence = start_sentence(files_before(recording));
        }
        findings.push(finding);
    }
    findings.extend(unexplained(&explainer, &failing[explained..]));
    for (at, finding) in findings.iter_mut().enumerate() {
        finding.id = format!("F{}", at + 1);
    }
    observer.event(CrashEvent::PhaseOver);
    Ok(findings)
}
