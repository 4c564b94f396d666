//! Benchmarks against peers, measured in the same run.
//!
//! Rounds are interleaved and reported as medians: on a shared machine only ratios within one run
//! mean anything.

mod agent;
mod crash;
mod effects;
mod exec;
mod first;
mod fleet;
mod growth;
mod matrix;
mod mcp;
mod postgres;
mod record;
mod record_output;
mod sandbox;
mod slurm;
mod ui;

/// A benchmark that writes its own page.
type Benchmark = fn() -> Result<(), String>;

const ALL: [(&str, Benchmark); 14] = [
    ("exec", exec::run),
    ("record", record::run),
    ("sandbox", sandbox::run),
    ("effects", effects::run),
    ("first", first::run),
    ("crash", crash::run),
    ("matrix", matrix::run),
    ("agent", agent::run),
    ("fleet", fleet::run),
    ("mcp", mcp::run),
    ("ui", ui::run),
    ("slurm", slurm::run),
    ("postgres", postgres::run),
    ("growth", growth::run),
];

/// Runs one of them, or `all`, and updates the page about which promises are kept.
pub(crate) fn run(name: &str) -> Result<(), String> {
    let chosen = ALL.iter().filter(|(known, _)| name == "all" || name == *known);
    let mut any = false;
    for (_, benchmark) in chosen {
        benchmark()?;
        any = true;
    }
    if !any {
        let names: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
        return Err(format!("there is no benchmark {name}; there are: all, {}", names.join(", ")));
    }
    crate::promises::write()
}

pub(crate) fn spin(batch: &[&str]) -> Result<(), String> {
    match batch {
        ["agent", batch @ ..] => agent::spin(batch),
        ["effects", batch @ ..] => effects::spin(batch),
        ["growth", batch @ ..] => growth::spin(batch),
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
