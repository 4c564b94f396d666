//! What makes measurements noisy or wrong, as far as the machine reports it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A condition that makes measurements noisy or wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Disturbance {
    /// Other programs used this many of the CPUs.
    OtherLoad { used: f64, cpus: usize },
    /// The hypervisor gave this part of the CPU time to other machines.
    Stolen { part: f64 },
    /// The frequency changes with the load.
    FrequencyScaling { governor: String },
    /// CPUs were throttled for heat this many times.
    Throttled { times: u64 },
    /// A CPU limit, such as a container's, throttled retake this many times.
    Limited { times: u64 },
    /// Workers occupy every CPU, so retake and other programs disturb them.
    NoFreeCpu { workers: usize, cpus: usize },
}

impl Disturbance {
    /// Merges another disturbance of the same kind: the worse of two states, the sum of two counts.
    /// Returns whether the kind was the same.
    fn absorb(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::OtherLoad { used, cpus }, Self::OtherLoad { used: more, cpus: of }) => {
                if more > used {
                    (*used, *cpus) = (*more, *of);
                }
            }
            (Self::Stolen { part }, Self::Stolen { part: more }) => *part = part.max(*more),
            (Self::Throttled { times }, Self::Throttled { times: more })
            | (Self::Limited { times }, Self::Limited { times: more }) => *times += more,
            (Self::FrequencyScaling { governor }, Self::FrequencyScaling { governor: other }) => {
                return governor == other;
            }
            (Self::NoFreeCpu { workers, cpus }, Self::NoFreeCpu { workers: more, cpus: of }) => {
                if more > workers {
                    (*workers, *cpus) = (*more, *of);
                }
            }
            _ => return false,
        }
        true
    }
}

/// A disturbance, and the machine it was seen on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenDisturbance {
    #[serde(flatten)]
    pub disturbance: Disturbance,
    /// `None` for the machine that runs the loop.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub on: Option<DisturbedNode>,
}

/// Another machine, and how many of its runs were disturbed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisturbedNode {
    pub node: String,
    pub disturbed_runs: usize,
    pub runs: usize,
}

impl From<Disturbance> for SeenDisturbance {
    fn from(disturbance: Disturbance) -> Self {
        Self { disturbance, on: None }
    }
}

/// Disturbances on other machines, collected run by run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeDisturbances {
    nodes: BTreeMap<String, OfNode>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct OfNode {
    runs: usize,
    /// Each kind with the number of disturbed runs.
    seen: Vec<(Disturbance, usize)>,
}

impl NodeDisturbances {
    /// Adds one run on a machine and its disturbances.
    pub fn add(&mut self, node: &str, disturbances: &[Disturbance]) {
        let of_node = self.nodes.entry(node.to_owned()).or_default();
        of_node.runs += 1;
        for disturbance in disturbances {
            match of_node
                .seen
                .iter_mut()
                .find_map(|(known, runs)| known.absorb(disturbance).then_some(runs))
            {
                Some(runs) => *runs += 1,
                None => of_node.seen.push((disturbance.clone(), 1)),
            }
        }
    }

    /// Each kind once per machine.
    pub fn list(&self) -> Vec<SeenDisturbance> {
        let of_node = |(node, OfNode { runs, seen }): (&String, &OfNode)| {
            let (node, runs) = (node.clone(), *runs);
            let one = move |(disturbance, disturbed): &(Disturbance, usize)| SeenDisturbance {
                disturbance: disturbance.clone(),
                on: Some(DisturbedNode { node: node.clone(), disturbed_runs: *disturbed, runs }),
            };
            seen.iter().map(one).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of_node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_of_a_machine_are_counted_and_the_worst_is_kept() {
        let mut nodes = NodeDisturbances::default();
        let load = |used| Disturbance::OtherLoad { used, cpus: 4 };
        nodes.add("n2", &[load(1.0), Disturbance::Throttled { times: 2 }]);
        nodes.add("n1", &[]);
        nodes.add("n2", &[load(3.0)]);
        nodes.add("n2", &[Disturbance::Throttled { times: 3 }]);
        let on =
            |disturbed_runs| Some(DisturbedNode { node: "n2".to_owned(), disturbed_runs, runs: 3 });
        let expected = [
            SeenDisturbance { disturbance: load(3.0), on: on(2) },
            SeenDisturbance { disturbance: Disturbance::Throttled { times: 5 }, on: on(2) },
        ];
        assert_eq!(nodes.list(), expected);
    }

    #[test]
    fn disturbances_recorded_without_a_node_are_still_read() {
        let old = r#"{"kind":"stolen","part":0.25}"#;
        let read: SeenDisturbance = serde_json::from_str(old).unwrap();
        assert_eq!(read, Disturbance::Stolen { part: 0.25 }.into());
        assert_eq!(serde_json::to_string(&read).unwrap(), old);
        let on = Some(DisturbedNode { node: "n1".to_owned(), disturbed_runs: 1, runs: 4 });
        let seen = SeenDisturbance { on, ..read };
        let text = serde_json::to_string(&seen).unwrap();
        assert_eq!(serde_json::from_str::<SeenDisturbance>(&text).unwrap(), seen, "{text}");
        assert!(text.contains(r#""node":"n1","disturbedRuns":1,"runs":4"#), "{text}");
    }
}
