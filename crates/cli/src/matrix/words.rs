//! Messages about a measurement: what disturbs it and what to do about it, and what it excludes.

use retake_matrix::config::{CHROME, CODE};
use retake_matrix::driver::short_sha;
use retake_matrix::plan::FilterError;
use retake_matrix::stats::value_text;
use retake_types::{Disturbance, DisturbedNode, SeenDisturbance};

use crate::term;

/// Cells whose medians cannot be compared directly.
pub(super) const MIXED_SESSIONS: &str = "the cells were measured in different sessions: medians \
     beside each other may differ by what the machine did in between; a change compares only runs of \
     common sessions";

/// A text with the first digits of each commit only.
pub(super) fn short_commits(text: &str) -> String {
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let hex = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        let kept = if matches!(hex, 40 | 64) { short_sha(&rest[..hex]) } else { &rest[..hex] };
        short.push_str(kept);
        let other: usize =
            rest[hex..].chars().take_while(|c| !c.is_ascii_hexdigit()).map(char::len_utf8).sum();
        short.push_str(&rest[hex..hex + other]);
        rest = &rest[hex + other..];
    }
    short
}

/// Why a filter selects nothing.
pub(super) fn filter(error: &FilterError) -> String {
    match error {
        FilterError::Value { axis, .. } if axis == CODE => {
            format!("{error}; --refs selects from code.refs: add it there")
        }
        FilterError::Value { axis, .. } if axis == CHROME => {
            format!("{error}; --chrome selects from chrome.versions: add it there")
        }
        error => error.to_string(),
    }
}

/// The start of a shell is not part of the values.
pub(super) fn shell_start(ms: f64) -> String {
    format!(
        "the start of a shell, {}, is subtracted from wall, cpu, user and sys",
        value_text(ms, Some("ms"))
    )
}

/// What disturbed a measurement, on which machine if it is another one, and what to do about it.
pub(super) fn seen_disturbance(seen: &SeenDisturbance) -> String {
    let what = what_disturbs(&seen.disturbance);
    match &seen.on {
        None => disturbance(&seen.disturbance),
        Some(DisturbedNode { node, disturbed_runs, runs }) => {
            let runs = term::count(*runs as u64, "run");
            let remedy = remedy_elsewhere(&seen.disturbance);
            format!("on {node}, in {disturbed_runs} of {runs}: {what}; {remedy}")
        }
    }
}

/// What disturbs a measurement on this machine, and what to do about it.
pub(super) fn disturbance(disturbance: &Disturbance) -> String {
    format!("{}; {}", what_disturbs(disturbance), remedy(disturbance))
}

fn what_disturbs(disturbance: &Disturbance) -> String {
    match disturbance {
        Disturbance::OtherLoad { used, cpus } => {
            format!("other programs used {used:.1} of {cpus} CPUs, which disturbs measurements")
        }
        Disturbance::Stolen { part } => {
            format!("the hypervisor gave {:.0} % of the CPU time to others", 100.0 * part)
        }
        Disturbance::FrequencyScaling { governor } => {
            format!("the CPU frequency changes with the load (governor {governor})")
        }
        Disturbance::Throttled { times } => {
            format!("the CPUs got too hot and were slowed down {}", term::count(*times, "time"))
        }
        Disturbance::Limited { times } => {
            format!("a limit on CPU time stopped the runs {}", term::count(*times, "time"))
        }
        Disturbance::NoFreeCpu { workers, cpus } => format!(
            "{} on {} leave none free",
            term::count(*workers as u64, "worker"),
            term::count(*cpus as u64, "CPU")
        ),
    }
}

fn remedy(disturbance: &Disturbance) -> &'static str {
    match disturbance {
        Disturbance::OtherLoad { .. } => "wait until they end, or measure on an idle machine",
        Disturbance::Stolen { .. } => "measure on a dedicated machine",
        Disturbance::FrequencyScaling { .. } => "`cpupower frequency-set -g performance` keeps it",
        Disturbance::Throttled { .. } => "improve cooling, or measure for less time",
        Disturbance::Limited { .. } => "raise the limit of this container",
        Disturbance::NoFreeCpu { .. } => "fewer workers (--workers) measure better",
    }
}

/// The same for a machine that a scheduler chose.
fn remedy_elsewhere(disturbance: &Disturbance) -> &'static str {
    match disturbance {
        Disturbance::OtherLoad { .. } | Disturbance::NoFreeCpu { .. } => {
            "ask for whole machines: slurm.options: [--exclusive]"
        }
        Disturbance::Stolen { .. } => "measure on dedicated machines",
        Disturbance::FrequencyScaling { .. } => {
            "ask for a fixed frequency: slurm.options: [--cpu-freq=performance]"
        }
        Disturbance::Throttled { .. } => "leave this machine out: slurm.options: [--exclude=NODE]",
        Disturbance::Limited { .. } => "ask for more CPUs: slurm.options: [--cpus-per-task=2]",
    }
}
