//! Benchmarks against peers, measured in the same run.
//!
//! Rounds are interleaved and reported as medians: on a shared machine only ratios within one run
//! mean anything.

mod agent;
mod crash;
mod effects;
mod exec;
mod first;
mod matrix;
mod mcp;
mod record;
mod record_output;
mod sandbox;
mod slurm;
mod ui;

pub(crate) fn run(name: &str) -> Result<(), String> {
    match name {
        "agent" => agent::run(),
        "crash" => crash::run(),
        "effects" => effects::run(),
        "exec" => exec::run(),
        "first" => first::run(),
        "matrix" => matrix::run(),
        "mcp" => mcp::run(),
        "record" => record::run(),
        "sandbox" => sandbox::run(),
        "slurm" => slurm::run(),
        "ui" => ui::run(),
        _ => Err(format!(
            "there is no benchmark {name}; there are: agent, crash, effects, exec, first, matrix, mcp, record, sandbox, slurm, ui"
        )),
    }
}

pub(crate) fn spin(batch: &[&str]) -> Result<(), String> {
    match batch {
        ["effects", batch @ ..] => effects::spin(batch),
        ["matrix", batch @ ..] => matrix::spin(batch),
        ["record", batch @ ..] => record_output::spin(batch),
        ["sandbox", batch @ ..] => sandbox::spin(batch),
        _ => exec::spin(batch),
    }
}

/// The middle value.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
