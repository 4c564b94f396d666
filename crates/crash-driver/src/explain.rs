//! From failing states to findings: each cause once, with its smallest state checked once more for
//! what the check says about it.

use std::cell::Cell;

use retake_crash::model::{CrashState, Explainer, path_text, rebuild};

use super::explore::{Exploration, acks};
use super::finding::Finding;
use super::station::{Scene, Station, Verdict};
use super::untested::Untested;
use retake_runner::signals;

/// The findings of failing states, in their order. `repro` makes the command of a finding from its
/// id. Whoever asks for the end gets those that were found until then.
pub fn findings(
    exploration: &Exploration<'_>,
    failing: &[CrashState],
    station: &mut Station,
    repro: &dyn Fn(&str) -> String,
) -> Result<Vec<Finding>, Untested> {
    let Exploration { recording, model, options, screen, .. } = exploration;
    let mut explainer = Explainer::new(recording, *model, options).map_err(Untested::Glob)?;
    let acks = acks(recording);
    let broken = Cell::new(None);
    let mut causes = Vec::new();
    for (at, state) in failing.iter().enumerate() {
        screen.live(&format!("explaining {} of {} failing states", at + 1, failing.len()));
        explainer.add(state, |state| match station.check(exploration.check, scene(state, &acks)) {
            Ok(Verdict::Failed { .. }) => true,
            Ok(Verdict::Passed | Verdict::Cancelled) => false,
            Err(error) => {
                broken.set(Some(error));
                false
            }
        });
        if let Some(error) = broken.take() {
            return Err(Untested::unchecked(&error));
        }
        // Half an explanation is none.
        if signals::received().is_some() {
            break;
        }
        causes = explainer.findings();
    }
    let mut findings = Vec::new();
    for cause in causes {
        let state = rebuild(recording, *model, options, &cause.key).map_err(Untested::Glob)?;
        let Some(state) = state else { continue };
        let verdict = station
            .check(exploration.check, scene(&state, &acks))
            .map_err(|error| Untested::unchecked(&error))?;
        let (how, output) = match verdict {
            Verdict::Failed { how, output } => (how, output),
            Verdict::Passed => ("fails only sometimes".to_owned(), String::new()),
            Verdict::Cancelled => ("was not asked again".to_owned(), String::new()),
        };
        findings.push(Finding {
            repro: repro(&cause.id),
            id: cause.id,
            sentence: cause.sentence,
            files: cause.files.iter().map(|path| path_text(path)).collect(),
            lost_operations: cause.lost_operations,
            states: cause.states as u64,
            key: cause.key.to_string(),
            operation: cause.key.point.operation,
            label: state.label,
            acknowledgements: state.acks,
            verdict: how,
            output,
            recovery: false,
        });
    }
    screen.clear();
    Ok(findings)
}

pub fn scene<'a>(state: &'a CrashState, acks: &'a [&'a [u8]]) -> Scene<'a> {
    Scene {
        tree: &state.tree,
        operation: state.key.point.operation,
        label: state.label.as_deref(),
        acks: &acks[..state.acks.min(acks.len())],
    }
}
