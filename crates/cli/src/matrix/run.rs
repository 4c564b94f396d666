//! `retake matrix run`: runs what is still pending, on the record.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use retake_matrix::driver::{
    CellRow, Iterations, MatrixProject, MatrixRun, MatrixRunOptions, MatrixRunResult, allowed_cpus,
    pin_process,
};
use retake_matrix::plan::ScheduleMode;
use retake_matrix::stats::{Comparison, Gate, Verdict};
use retake_runner::signals;
use retake_runner::worker::Worker;
use retake_types::loop_record::matrix::Disturbance;
use retake_types::{LoopId, parse_duration};
use serde::Serialize;

use super::events::{self, EventScreen};
use super::open::{self, Common, Filters, IfMissing, margin};
use super::{compare, remote, table, words};
use crate::{Exit, Failure, context, term};

/// Run what has no successful run yet, every iteration of all cells in a new random order
///
/// What cannot be had (a ref, a browser, a setup) is listed and makes the exit code 1; the rest
/// runs. Failing iterations are results: they are counted, and tried again by the next run.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
    /// Add so many iterations to every cell
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with = "replace")]
    append: Option<u64>,
    /// Run everything again; each old run goes when its new one is there
    #[arg(long)]
    replace: bool,
    /// Go on until every comparison is decided at this margin, such as 2%
    #[arg(long, value_name = "PERCENT", value_parser = margin,
        conflicts_with_all = ["append", "replace"])]
    until_sure: Option<f64>,
    /// With --until-sure: begin nothing after this time, such as 10m, and let no run take longer than
    /// it; `none` continues until every comparison is conclusive
    /// [default: 1h]
    #[arg(long, value_name = "TIME", requires = "until_sure")]
    budget: Option<Budget>,
    /// What --until-sure and --fail-if compare
    #[arg(long, value_name = "NAME", default_value = "wall")]
    metric: String,
    /// Exit with 1 if a comparison is sure and its estimate at least so large: slower:5%, faster:10%;
    /// with the whole interval beyond it: slower:5%!; if it is not sure: unsure. slower:5%@main
    /// measures the tip of main in turn with the cells of this run, and compares them with it
    #[arg(long, value_name = "VERDICT:PERCENT[@REF]")]
    fail_if: Vec<Gate>,
    /// Whether what new runs are compared with is run again beside them: only runs of one session can
    /// be compared [default: again with --fail-if, stored otherwise; --until-sure always does]
    #[arg(long, value_name = "WHICH", value_enum, conflicts_with = "until_sure")]
    baseline: Option<Baseline>,
    /// How many at once; more than one measures the workers too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    workers: Option<u16>,
    /// Run on other machines: slurm, or slurm:PARTITION; see the configuration under slurm
    #[arg(long, value_name = "WHERE", conflicts_with_all = ["workers", "pin"])]
    on: Option<String>,
    /// Tie every worker to a CPU of its own
    #[arg(long)]
    pin: bool,
    /// The seed of the random order, to repeat one
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Keep secrets in what is recorded
    #[arg(long)]
    no_redact: bool,
    /// Say nothing while it runs, and show no table
    #[arg(long, short)]
    quiet: bool,
}

/// What new runs are compared with.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Baseline {
    /// Run again, in turn with what is new
    Again,
    /// What is stored
    Stored,
}

/// How long sampling may go on.
#[derive(Clone, Copy)]
struct Budget(Option<Duration>);

impl Default for Budget {
    /// A difference within the margin can take thousands of runs to be sure of, and one of exactly
    /// the margin all the time there is.
    fn default() -> Self {
        Self(Some(Duration::from_secs(3600)))
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        match parse_duration(text).map_err(|error| error.to_string())? {
            Duration::ZERO => Err("is 0; write `none` for no limit".to_owned()),
            duration => Ok(Self(Some(duration))),
        }
    }
}

/// What `run --json` prints.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    loop_id: LoopId,
    seed: u64,
    order: &'a str,
    /// Iterations that were to be run; unknown with --until-sure.
    total: Option<usize>,
    ok: usize,
    failed: usize,
    /// Cells that were given up because their warmup failed.
    skipped: Vec<String>,
    unavailable: &'a [String],
    /// What disturbed the measurement.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    disturbances: &'a [Disturbance],
    cells: &'a [CellRow],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    comparisons: &'a [Comparison],
}

/// Cells under way on other machines while their results decide how many there will be.
const UNDECIDED: usize = 32;

pub(super) fn run(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let (mut project, config) = open::project(&args.common, store, IfMissing::Create)?;
    project.redact = !args.no_redact;
    let screen = EventScreen::new(args.quiet);
    let mut executor = match &args.on {
        Some(on) => Some(remote::open(on, &config, &mut project, screen.notify())?),
        None => None,
    };
    if args.on.is_some()
        && let Some(hook) = project.config.hooks().next()
    {
        return Err(Failure::Usage(format!(
            "--on: {hook} runs on this machine only; leave it out of the configuration"
        )));
    }
    let matrix = open::cells(&project, &args.filters.pairs()?)?;
    let undecided_limit = match usize::try_from(config.slurm.max_in_flight) {
        Ok(limit @ 1..) => limit,
        _ => UNDECIDED,
    };
    let options = args.options(&project, undecided_limit);
    let run = MatrixRun { project: &project, options: &options, observer: &screen };
    run.check(&matrix)?;
    let count = if args.on.is_some() { 1 } else { options.workers };
    let cpus = if args.pin { cpus(count)? } else { Vec::new() };
    // Keepers first: before the lock, the record and every thread.
    let mut workers = open::workers(&project, count)?;
    for (worker, cpu) in workers.iter().zip(cpus) {
        pin(worker, cpu)?;
    }
    let exit = run
        .run(&mut workers, matrix, executor.as_mut())
        .map_err(remote::failure)
        .and_then(|result| args.show(&result, &screen));
    let stopped = signals::received();
    if let Some(ended) = workers.into_iter().map(Worker::end).last() {
        context::finish(ended, &config);
    }
    match stopped {
        Some(signal) => {
            screen.interrupted("retake matrix run");
            Ok(Exit::Signal(signal))
        }
        None => exit,
    }
}

impl Args {
    fn options(&self, project: &MatrixProject, undecided_limit: usize) -> MatrixRunOptions {
        let iterations = match (self.until_sure, self.append, self.replace) {
            (Some(margin), ..) => Iterations::UntilSure { margin, budget: self.budget() },
            (None, Some(more), _) => Iterations::Fixed(ScheduleMode::Append(more)),
            (None, None, true) => Iterations::Fixed(ScheduleMode::Replace),
            (None, None, false) => Iterations::Fixed(ScheduleMode::Pending),
        };
        MatrixRunOptions {
            iterations,
            metric: self.metric.clone(),
            gates: self.fail_if.clone(),
            baseline_again: match self.baseline {
                Some(baseline) => baseline == Baseline::Again,
                None => !self.fail_if.is_empty(),
            },
            seed: self.seed,
            workers: self.workers.map_or(project.config.workers, usize::from),
            undecided_limit,
        }
    }

    fn budget(&self) -> Option<Duration> {
        self.budget.unwrap_or_default().0
    }

    fn show(&self, result: &MatrixRunResult, screen: &EventScreen) -> Result<Exit, Failure> {
        let (ok, failed) = (result.ok, result.failed);
        let unavailable: Vec<String> = result.unavailable.iter().map(events::unavailable).collect();
        let skipped: Vec<String> =
            result.skipped.iter().map(|cell| result.matrix.short_name(*cell)).collect();
        for problem in &unavailable {
            term::say(&format!("not run: {problem}"));
        }
        for cell in &skipped {
            let hooks = match result.hooks {
                true => "its warmup, prepare or conclude failed",
                false => "its warmup failed",
            };
            term::say(&format!("not run: {cell}: {hooks}"));
        }
        let missing = !unavailable.is_empty() || !skipped.is_empty();
        if ok + failed == 0 && !missing && result.spent.is_none() {
            screen.screen().line("Done. Nothing was pending.");
        } else {
            let count = term::count((ok + failed) as u64, "run");
            screen.screen().line(&format!("Done. {count}: {ok} ok, {failed} failed."));
        }
        if let (Some((decided, all)), Some(budget)) = (result.spent, self.budget())
            && decided < all
        {
            screen.screen().notice(&format!(
                "the budget of {} is spent, and {} of {} is not decided; run again to go on",
                term::duration(budget),
                all - decided,
                term::count(all as u64, "comparison"),
            ));
        }
        if self.common.json {
            term::document(&Document {
                loop_id: result.loop_id,
                seed: result.seed,
                order: result.order.as_str(),
                total: result.total,
                ok,
                failed,
                skipped,
                unavailable: &unavailable,
                disturbances: &result.disturbances,
                cells: &result.rows,
                comparisons: &result.comparisons,
            })?;
        } else if !self.quiet {
            self.show_table(result)?;
        }
        if result.all_failed() {
            term::say("every iteration failed; `retake matrix status --failures` lists them");
            return Ok(Exit::FAILED);
        }
        if missing {
            return Ok(Exit::FAILED);
        }
        if result.untried {
            term::say("some cells have no result at all; give them more time");
            return Ok(Exit::FAILED);
        }
        let tripped = result.tripped.iter().filter_map(|place| result.comparisons.get(*place));
        Ok(compare::fail(tripped))
    }
}

impl Args {
    /// The numbers, and what is not decided.
    fn show_table(&self, result: &MatrixRunResult) -> Result<(), Failure> {
        for disturbance in &result.disturbances {
            term::say(&words::disturbance(disturbance));
        }
        if result.rows.is_empty() {
            return Ok(());
        }
        let unit = result.unit.as_deref();
        let table = table::render(&self.metric, unit, &result.rows);
        term::data(term::visible_lines(&table).as_bytes())?;
        let open = result.comparisons.iter().filter(|one| one.verdict == Verdict::NotSure);
        // Without a question nobody waits for an answer.
        let asked = self.until_sure.is_some() || !self.fail_if.is_empty();
        for comparison in open.clone().filter(|_| asked) {
            term::data(format!("{}\n", term::visible(&comparison.sentence())).as_bytes())?;
        }
        compare::advise(open.filter(|_| asked));
        Ok(())
    }
}

/// The CPUs that we may use, one for each worker.
fn cpus(workers: usize) -> Result<Vec<usize>, Failure> {
    let cpus = allowed_cpus()
        .map_err(|error| Failure::Refused(format!("--pin: {}", term::plain(&error))))?;
    if cpus.len() < workers {
        return Err(Failure::Usage(format!(
            "--pin: {} for {}; every worker needs one of its own",
            term::count(cpus.len() as u64, "CPU"),
            term::count(workers as u64, "worker")
        )));
    }
    Ok(cpus)
}

/// Ties a keeper to a CPU; everything it starts inherits that.
fn pin(worker: &Worker, cpu: usize) -> Result<(), Failure> {
    pin_process(worker.keeper_pid(), cpu)
        .map_err(|error| Failure::Refused(format!("--pin: CPU {cpu}: {}", term::plain(&error))))
}
