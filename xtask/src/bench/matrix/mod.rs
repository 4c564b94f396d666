//! How often the verdicts of a matrix are right, and its cost beyond its runs: the driver, the plan,
//! the statistics, resetting trees.

mod reset;
mod verdicts;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use retake_engine::{Cancel, Keeper, KeeperSettings, Launch, LiveOutput};
use retake_matrix::config::{Config, Order};
use retake_matrix::explain::explain;
use retake_matrix::plan::{
    CellSchedule, Identity, Matrix, ScheduleMode, ScheduleOptions, baselines,
};
use retake_matrix::random::Random;
use retake_matrix::stats::{Criteria, Side, compare};
use retake_matrix::table::{Measured, Table};
use retake_runner::loop_driver::Next;
use retake_store::Store;

use crate::bench::exec::{intent, plain, timed};
use crate::bench::median;
use crate::bench::record::outcome;
use crate::page::Page;

/// Fewer with `RETAKE_BENCH_ROUNDS`, to try it out.
fn rounds() -> usize {
    std::env::var("RETAKE_BENCH_ROUNDS").ok().and_then(|count| count.parse().ok()).unwrap_or(9)
}

const CELLS: usize = 1000;

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "matrix: verdicts, and the cost beyond the runs",
        "`cargo xtask bench matrix` writes this page. Every figure is the median of interleaved rounds of one run; \
         compare ratios, not times.",
    );
    verdicts::run(&mut page)?;
    cells(&mut page)?;
    reset::run(&mut page)?;
    planning(&mut page)?;
    statistics(&mut page)?;
    page.write("matrix.md")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A directory that is removed at the end.
struct TemporaryDirectory {
    path: PathBuf,
}

impl TemporaryDirectory {
    fn new(name: &str) -> Result<Self, String> {
        let name = format!("retake-bench-matrix-{name}-{}", std::process::id());
        let directory = Self { path: std::env::temp_dir().join(name) };
        directory.empty()?;
        Ok(directory)
    }

    fn empty(&self) -> Result<(), String> {
        // It may be missing.
        _ = std::fs::remove_dir_all(&self.path);
        std::fs::create_dir_all(&self.path).map_err(text)
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // Best effort: it is in the directory for temporary files.
        _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Makes it a project without a record.
fn renew_project(directory: &TemporaryDirectory) -> Result<(), String> {
    directory.empty()?;
    std::fs::create_dir_all(directory.path.join(".agent")).map_err(text)?;
    let values: Vec<String> = (0..CELLS).map(|n| n.to_string()).collect();
    let config = format!(
        "command: 'true'\niterations: 1\nreset: never\naxes: {{n: [{}]}}\n",
        values.join(", ")
    );
    std::fs::write(directory.path.join("matrix.yml"), config).map_err(text)
}

fn cells(page: &mut Page) -> Result<(), String> {
    page.section(
        "1,000 cells of true",
        "`command: 'true'`, `reset: never`, one iteration of each of 1,000 values of an axis, in a project without a \
         record. `true` is a builtin, so each cell is `sh -c true`. The base runs the same command \
         as often through the same engine and commits intent and outcome of each, without a \
         matrix. hyperfine records nothing. \
         Ratios are medians of the ratios within each round; CPU is that of the whole tree.",
    );
    let own = std::env::current_exe().map_err(text)?;
    let retake = own.with_file_name("retake").display().to_string();
    let project = TemporaryDirectory::new("cells")?;
    let store = project.path.join(".agent/data").display().to_string();
    let config = project.path.join("matrix.yml").display().to_string();
    let run = |workers: &str| {
        let shell = format!(
            "cd {} && exec {retake} matrix run -q -f {config} --workers {workers}",
            project.path.display()
        );
        vec!["sh".to_owned(), "-c".into(), shell]
    };
    let runs = CELLS.to_string();
    let hyperfine =
        ["hyperfine", "-N", "--style", "none", "--warmup", "0", "--runs", &runs, "sh -c true"];
    let variants: Vec<(&str, Vec<String>)> = vec![
        ("recorded engine", vec![own.display().to_string(), "spin".into(), "matrix".into(), store]),
        ("matrix run, 1 worker", run("1")),
        ("matrix run, 2 workers", run("2")),
        ("matrix run, 4 workers", run("4")),
        ("hyperfine -N", hyperfine.map(str::to_owned).to_vec()),
    ];
    let mut costs: Vec<Vec<Option<(f64, f64)>>> = vec![Vec::new(); variants.len()];
    let rounds = rounds();
    for round in 0..rounds {
        eprint!("\rcells: round {} of {rounds}", round + 1);
        // The first variant is a different one in each round.
        for place in (0..variants.len()).map(|at| (at + round) % variants.len()) {
            renew_project(&project)?;
            let cost = timed(&variants[place].1).ok();
            costs[place].push(cost.map(|(wall, cpu, _)| (wall / 1e6, cpu / 1e6)));
        }
    }
    eprintln!();
    let rows: Vec<Vec<String>> = variants
        .iter()
        .zip(&costs)
        .map(|((name, _), ours)| {
            let known: Vec<(f64, f64)> = ours.iter().flatten().copied().collect();
            if known.is_empty() {
                let none = String::new;
                return vec![(*name).into(), "did not run".into(), none(), none(), none()];
            }
            let both = ours.iter().zip(&costs[0]).filter_map(|(ours, base)| ours.zip(*base));
            let of = |pick: fn(&(f64, f64)) -> f64| {
                let ratios: Vec<f64> = both.clone().map(|(a, b)| pick(&a) / pick(&b)).collect();
                let absolute: Vec<f64> = known.iter().map(pick).collect();
                [format!("{:.2}", median(&absolute)), format!("{:.2}", median(&ratios))]
            };
            let ([wall, wall_ratio], [cpu, cpu_ratio]) = (of(|cost| cost.0), of(|cost| cost.1));
            vec![(*name).into(), wall, wall_ratio, cpu, cpu_ratio]
        })
        .collect();
    page.table(&["", "wall s", "ratio", "CPU s", "ratio"], &rows);
    Ok(())
}

pub(crate) fn spin(batch: &[&str]) -> Result<(), String> {
    match batch {
        ["work", size] => verdicts::work(size),
        ["neighbour", seed] => verdicts::neighbour(seed),
        [store] => record_runs(store),
        _ => Err("spin matrix STORE | work SIZE | neighbour SEED".into()),
    }
}

/// The base: the same number of recorded runs and nothing else.
fn record_runs(store: &str) -> Result<(), String> {
    let mut keeper = Keeper::start(KeeperSettings::default()).map_err(text)?;
    let cancel = Cancel::new().map_err(text)?;
    let request = Launch::new(["/bin/sh", "-c", "true"]);
    let command =
        retake_engine::Command::new(request).map_err(|problems| format!("{problems:?}"))?;
    let mut store = Store::open(Path::new(store)).map_err(text)?;
    for _ in 0..CELLS {
        let recording = store.begin(&plain(intent())).map_err(text)?;
        let finished = keeper.run(&command, &cancel, LiveOutput::default(), &mut |_| {});
        let code = finished.outcome.exit_code().ok_or("the keeper was killed")?;
        recording.finish(&mut store, plain(outcome(code, b""))).map_err(text)?;
    }
    Ok(())
}

fn planning(page: &mut Page) -> Result<(), String> {
    page.section("Planning 100,000 cells", "Cells, keys, the plan, and all of its steps.");
    let list = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let config = format!(
        "command: 'true'\niterations: 1\naxes: {{a: [{}], b: [{}], c: [{}]}}\n",
        list(100),
        list(100),
        list(10)
    );
    let config = Config::read(Path::new("matrix.yml"), &config).map_err(text)?;
    let mut walls = Vec::new();
    for _ in 0..rounds() {
        let start = Instant::now();
        let matrix = Matrix::of(&config);
        let keys = Identity::new(&config.command.text(), &config.env).keys(&matrix);
        let (mode, order) = (ScheduleMode::Pending, Order::Interleaved);
        let options = ScheduleOptions { iterations: 1, warmup: 0, mode, order, seed: 1 };
        let mut plan = CellSchedule::new(&keys, &[], &[], &options);
        while let Next::Run(step) = plan.next_step() {
            plan.done(&step, true);
        }
        walls.push(start.elapsed().as_secs_f64());
        if plan.ok() != 100_000 {
            return Err(format!("{} of 100000 cells were planned", plan.ok()));
        }
    }
    page.table(&["", "wall s"], &[vec!["all of it".into(), format!("{:.3}", median(&walls))]]);
    Ok(())
}

fn statistics(page: &mut Page) -> Result<(), String> {
    page.section(
        "The statistics of a 10 x 10 x 100 matrix",
        "Every value against the first of its axis, and the decomposition of `explain`.",
    );
    let list = (0..10).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let mut yaml = String::from("command: 'true'\niterations: 100\naxes:\n");
    for axis in ["a", "b"] {
        writeln!(yaml, "  {axis}: [{list}]").map_err(text)?;
    }
    let config = Config::read(Path::new("matrix.yml"), &yaml).map_err(text)?;
    let matrix = Matrix::of(&config);
    let mut random = Random::new(1);
    let blocks: Vec<u64> = (0..100).collect();
    let samples: Vec<Vec<f64>> = (0..matrix.cells.len())
        .map(|_| (0..100).map(|_| 100.0 + 5.0 * random.unit()).collect())
        .collect();
    let pairs = baselines(&matrix);
    let (mut compared, mut explained) = (Vec::new(), Vec::new());
    for _ in 0..rounds() {
        let start = Instant::now();
        let criteria = Criteria { comparisons: pairs.len(), ..Criteria::default() };
        for &(a, b) in &pairs {
            let side =
                |cell: usize| Side { name: "", values: &samples[cell], blocks: &blocks, failed: 0 };
            std::hint::black_box(compare(side(a), side(b), "wall", &criteria));
        }
        compared.push(start.elapsed().as_secs_f64());
        let cells = matrix.cells.iter().zip(&samples).map(|(cell, values)| Measured {
            place: cell.0.iter().map(|at| *at as usize).collect(),
            values: values.clone(),
            blocks: blocks.clone(),
            failed: 0,
        });
        let table = Table {
            metric: "wall".into(),
            axes: matrix.axes.clone(),
            cells: cells.collect(),
            looked_at: false,
        };
        let start = Instant::now();
        std::hint::black_box(explain(&table, &[], 0.02, 0.95, 1));
        explained.push(start.elapsed().as_secs_f64());
    }
    let rows = [
        vec![format!("{} comparisons", pairs.len()), format!("{:.3}", median(&compared))],
        vec!["explain".into(), format!("{:.3}", median(&explained))],
    ];
    page.table(&["", "wall s"], &rows);
    Ok(())
}
