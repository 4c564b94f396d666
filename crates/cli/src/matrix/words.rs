//! What is to be known of a measurement: what disturbs it and what to do about it, and what is not part
//! of it.

use retake_matrix::stats::value_text;
use retake_types::loop_record::matrix::Disturbance;

/// That the start of a shell is not part of the numbers.
pub(super) fn shell_start(ms: f64) -> String {
    format!(
        "the start of a shell, {}, is subtracted from wall, cpu, user and sys",
        value_text(ms, Some("ms"))
    )
}

pub(super) fn disturbance(disturbance: &Disturbance) -> String {
    match disturbance {
        Disturbance::OtherLoad { used, cpus } => format!(
            "other programs used {used:.1} of {cpus} CPUs; wait for them, or keep a CPU free with \
             --pin and fewer workers"
        ),
        Disturbance::Stolen { part } => format!(
            "the hypervisor gave {:.0} % of the CPU time to others; measure on a machine of your own",
            100.0 * part
        ),
        Disturbance::FrequencyScaling { governor } => format!(
            "the CPU frequency changes with the load (governor {governor}); \
             `cpupower frequency-set -g performance` keeps it"
        ),
        Disturbance::Throttled { times } => format!(
            "the CPUs got too hot and were slowed down {times} times; cool them, or measure shorter"
        ),
        Disturbance::Limited { times } => format!(
            "a limit on CPU time stopped the runs {times} times; raise the limit of this container"
        ),
        Disturbance::NoFreeCpu { workers, cpus } => format!(
            "{workers} workers on {cpus} CPUs leave none free; fewer workers (--workers) measure \
             better"
        ),
    }
}
