//! From failing states to findings: each cause once.

use std::collections::BTreeMap;

use first::model::{Options, StateKey, rebuild};

use super::explore::{Exploration, acks};
use super::finding::Finding;
use super::station::{Scene, Station, Verdict};
use super::untested::Untested;

/// The findings of failing states. `repro` makes the command of a finding from its id.
pub(crate) fn findings(
    exploration: &Exploration<'_>,
    failing: &[StateKey],
    station: &mut Station,
    repro: &dyn Fn(&str) -> String,
) -> Result<Vec<Finding>, Untested> {
    let options: &Options = &exploration.options;
    let acks = acks(exploration.recording);
    let mut groups: BTreeMap<Vec<u32>, (u64, &StateKey)> = BTreeMap::new();
    for key in failing {
        let state = rebuild(exploration.recording, exploration.model, options, key);
        let Some(state) = state.map_err(Untested::Glob)? else { continue };
        groups.entry(state.lost).or_insert((0, key)).0 += 1;
    }
    let mut findings = Vec::new();
    for (at, (lost, (states, key))) in groups.into_iter().enumerate() {
        let state = rebuild(exploration.recording, exploration.model, options, key);
        let Some(state) = state.map_err(Untested::Glob)? else { continue };
        let scene = Scene {
            tree: &state.tree,
            operation: key.point.operation,
            label: state.label.as_deref(),
            acks: &acks[..state.acks.min(acks.len())],
        };
        let verdict = station.check(exploration.check, scene);
        let (how, output) = match verdict {
            Ok(Verdict::Failed { how, output }) => (how, output),
            _ => (String::new(), String::new()),
        };
        let id = format!("F{}", at + 1);
        findings.push(Finding {
            sentence: format!("state {key} fails"),
            files: Vec::new(),
            lost_operations: lost,
            states,
            repro: repro(&id),
            key: key.to_string(),
            operation: key.point.operation,
            label: state.label,
            acknowledgements: state.acks,
            verdict: how,
            output,
            id,
        });
    }
    Ok(findings)
}
