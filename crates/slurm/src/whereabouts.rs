//! Where the cells of batches are, in words for a line that is seen for a moment.

use std::collections::BTreeSet;

use super::collect::State;

/// How many wait and how many run, and where; `None` if all are done.
pub fn whereabouts<'a>(states: impl Iterator<Item = &'a State>) -> Option<String> {
    let (mut queued, mut running, mut nodes) = (0, 0, BTreeSet::new());
    for state in states {
        match state {
            State::Queued => queued += 1,
            State::Running { node } => {
                running += 1;
                nodes.extend(node.as_deref());
            }
            State::Done => {}
        }
    }
    let on = match nodes.len() {
        0 => String::new(),
        1..=4 => format!(" on {}", nodes.into_iter().collect::<Vec<_>>().join(" ")),
        count => format!(" on {count} nodes"),
    };
    (queued + running > 0).then(|| format!("{queued} queued, {running} running{on}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_nowhere() {
        let running = |node: &str| State::Running { node: Some(node.to_owned()) };
        let said = |states: &[State]| whereabouts(states.iter());
        assert_eq!(said(&[State::Done]), None);
        assert_eq!(
            said(&[State::Queued, State::Done, running("n2"), running("n1"), running("n2")]),
            Some("1 queued, 3 running on n1 n2".to_owned())
        );
        let many: Vec<State> = (0..5).map(|n| running(&format!("n{n}"))).collect();
        assert_eq!(said(&many), Some("0 queued, 5 running on 5 nodes".to_owned()));
    }
}
