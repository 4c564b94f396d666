//! From failing states to findings: each cause once, with its smallest state checked once more for
//! what the check says about it.

use std::cell::Cell;

use retake_crash::model::{CrashState, Explainer, path_text, rebuild};
use retake_runner::signals;
use retake_types::loop_record::crash::CrashFinding;

use crate::check::{CheckOutcome, FLAKY};
use crate::check_worker::{CheckInput, CheckWorker};
use crate::error::CrashTestError;
use crate::event::CrashEvent;
use crate::exploration::{Exploration, acks};

/// The findings of failing states, in their order. After a signal that asks for the end these are
/// the ones found until then.
pub fn findings(
    exploration: &Exploration<'_>,
    failing: &[CrashState],
    worker: &mut CheckWorker,
) -> Result<Vec<CrashFinding>, CrashTestError> {
    let Exploration { recording, model, options, observer, check, .. } = exploration;
    let mut explainer = Explainer::new(recording, *model, options).map_err(CrashTestError::Glob)?;
    let acks = acks(recording);
    let failure = Cell::new(None);
    let mut causes = Vec::new();
    for (at, state) in failing.iter().enumerate() {
        observer.event(CrashEvent::Explaining { state: at + 1, states: failing.len() });
        explainer.add(state, |state| match worker.check(check, CheckInput::new(state, &acks)) {
            Ok(CheckOutcome::Failed(_)) => true,
            Ok(CheckOutcome::Passed | CheckOutcome::Cancelled) => false,
            Err(error) => {
                failure.set(Some(error));
                false
            }
        });
        if let Some(error) = failure.take() {
            return Err(error.into());
        }
        // An explanation that was cut short may be wrong.
        if signals::received().is_some() {
            break;
        }
        causes = explainer.findings();
    }
    let mut findings = Vec::new();
    for cause in causes {
        let state =
            rebuild(recording, *model, options, &cause.key).map_err(CrashTestError::Glob)?;
        let Some(state) = state else { continue };
        let (verdict, output) = match worker.check(check, CheckInput::new(&state, &acks))? {
            CheckOutcome::Failed(failed) => (failed.verdict(), failed.output),
            CheckOutcome::Passed => (FLAKY.to_owned(), String::new()),
            CheckOutcome::Cancelled => ("was not asked again".to_owned(), String::new()),
        };
        findings.push(CrashFinding {
            id: cause.id,
            sentence: cause.sentence,
            files: cause.files.iter().map(|path| path_text(path)).collect(),
            lost_operations: cause.lost_operations,
            states: cause.states as u64,
            repro: String::new(),
            key: cause.key.to_string(),
            operation: cause.key.point.operation,
            label: state.label,
            acknowledgements: state.acks,
            verdict,
            output,
            recovery: false,
        });
    }
    observer.event(CrashEvent::PhaseOver);
    Ok(findings)
}
