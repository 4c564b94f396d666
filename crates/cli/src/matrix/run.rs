//! `retake matrix run`: runs the pending cells, and records them.

use std::path::Path;

use retake_matrix::driver::{MatrixProject, MatrixRunOptions};
use retake_matrix::plan::ScheduleMode;
use retake_types::config::SandboxedCommand;

use super::events::EventScreen;
use super::measure::{Measurement, Measuring, Origin, UNDECIDED};
use super::open::{self, Common, Filters, IfMissing};
use super::remote;
use super::shard::{ShardPart, Sharding};
use crate::exec::{self, SandboxArgs};
use crate::{Exit, Failure};

/// Run every cell that has no successful run yet, each iteration in a new random order
///
/// Unavailable refs and browsers and failed setups are listed, and the exit code is 1; the other
/// cells run. Failing iterations are results: they are counted, and retried by the next run.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    sandbox: SandboxArgs,
    #[command(flatten)]
    filters: Filters,
    /// Add N iterations to every cell
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["replace", "until_sure"])]
    append: Option<u64>,
    /// Run until every cell has N iterations, instead of the number in the configuration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000),
        conflicts_with_all = ["append", "until_sure"])]
    iterations: Option<u64>,
    /// Run everything again, replacing each old run once its new one is recorded
    #[arg(long, conflicts_with = "until_sure")]
    replace: bool,
    /// What --until-sure and --fail-if compare
    #[arg(long, value_name = "NAME", default_value = "wall")]
    metric: String,
    /// Whether the baseline is measured again together with the new runs: only runs of one session
    /// can be compared [default: again with --fail-if, stored otherwise; --until-sure always does]
    #[arg(long, value_name = "WHICH", value_enum, conflicts_with = "until_sure")]
    baseline: Option<Baseline>,
    /// How many runs in parallel; with more than one they disturb each other's measurements
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    workers: Option<u16>,
    /// Run on other machines: slurm, or slurm:PARTITION; see the configuration under slurm
    #[arg(long, value_name = "WHERE", conflicts_with_all = ["workers", "pin"])]
    on: Option<String>,
    /// Mark runs of an earlier --on slurm as lost where their results cannot be reached, and run
    /// their cells again
    #[arg(long)]
    give_up: bool,
    #[command(flatten)]
    sharding: Sharding,
    #[command(flatten)]
    measuring: Measuring,
}

/// What new runs are compared with.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Baseline {
    /// Run again, in turn with the new runs
    Again,
    /// The stored runs
    Stored,
}

pub(super) fn run(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let if_missing = IfMissing::Create { quiet: args.measuring.quiet };
    let (mut project, config) = open::project(&args.common, store, if_missing)?;
    project.redact = !args.measuring.no_redact;
    if let Some(iterations) = args.iterations {
        project.config.iterations = iterations;
    }
    project.sandbox = exec::sandbox_of(SandboxedCommand::Matrix, &args.sandbox, &config)?;
    if args.on.is_some() && project.sandbox.is_on() {
        return Err(Failure::Usage(crate::words::SANDBOX_IS_LOCAL.to_owned()));
    }
    let screen = EventScreen::new(args.measuring.quiet, &project);
    let executor = match &args.on {
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
    if args.give_up {
        remote::give_up(&project)?;
    }
    let mut matrix = open::cells(&project, &args.filters.pairs()?)?;
    let part = args.sharding.part(&mut matrix, &project)?;
    if let Some(part) = part.as_ref().filter(|_| matrix.cells.is_empty()) {
        return part.nothing_to_run(&project);
    }
    let undecided_limit = match usize::try_from(config.slurm.max_in_flight) {
        Ok(limit @ 1..) => limit,
        _ => UNDECIDED,
    };
    let measurement = Measurement {
        measuring: &args.measuring,
        origin: Origin::File,
        options: MatrixRunOptions {
            undecided_limit,
            shard: part.as_ref().map(ShardPart::planned),
            ..args.options(&project)
        },
        project: &project,
        config: &config,
        screen,
        json: args.common.json,
        part: part.as_ref(),
        hint: None,
    };
    measurement.make(matrix, executor)
}

impl Args {
    fn options(&self, project: &MatrixProject) -> MatrixRunOptions {
        let fixed = match (self.append, self.replace) {
            (Some(more), _) => ScheduleMode::Append(more),
            (None, true) => ScheduleMode::Replace,
            (None, false) => ScheduleMode::Pending,
        };
        let mut options = self.measuring.options(project, fixed, &self.metric);
        if let Some(baseline) = self.baseline {
            options.baseline_again = baseline == Baseline::Again;
        }
        if let Some(workers) = self.workers {
            options.workers = usize::from(workers);
        }
        options
    }
}
