//! `retake crash share`: the part of an exploration that a machine was given. For orders of another
//! retake, not for people.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_crash::model::{ExploreOptions, Model};

use super::Trouble;
use super::options::{read_log, some_time};
use crate::Exit;
use crate::term;
use retake_crash_driver::explore::Exploration;
use retake_crash_driver::relapse::Relapses;
use retake_crash_driver::share::Answer;
use retake_crash_driver::share::Share;
use retake_crash_driver::station::Check;
use retake_crash_driver::station::Stations;
use retake_crash_driver::untested::Untested;
use retake_runner::screen::Screen;
use retake_runner::signals;
use retake_slurm::order::PROCESSORS;

/// Check some of the crash states of a log, and answer with the numbers of those that fail
#[derive(clap::Args)]
pub(super) struct Args {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Which, by number
    #[arg(long, value_name = "FROM-TO")]
    states: Share,
    #[arg(long, value_name = "CMD")]
    verify: String,
    #[arg(long, value_name = "MODEL")]
    model: Model,
    #[arg(long, value_name = "N")]
    seed: u64,
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    verify_timeout: Duration,
    #[arg(long)]
    recovery: bool,
    /// Begin no check after this time, in milliseconds since 1970
    #[arg(long, value_name = "MILLISECONDS")]
    until: Option<i64>,
    /// How many checks at once [default: as many as the scheduler gave processors]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

pub(super) fn share(args: &Args) -> Result<Exit, Trouble> {
    let refused =
        |what: &str, error: &dyn std::fmt::Display| Untested::Refused(format!("{what}: {error}"));
    signals::end_descriptor().map_err(|error| refused("no descriptor is left", &error))?;
    let recording = read_log(&args.log)?;
    let cwd = std::env::current_dir().map_err(|error| refused("no directory", &error))?;
    let check = Check {
        command: args.verify.clone(),
        timeout: args.verify_timeout,
        // Exactly what was sent, but for what only a share is told.
        environment: std::env::vars_os().filter(|(name, _)| name != PROCESSORS).collect(),
        cwd,
    };
    let options = ExploreOptions { seed: args.seed, ..ExploreOptions::default() };
    let jobs = args.jobs.unwrap_or_else(given);
    let mut stations = Stations::start(jobs, &recording.root, !args.recovery)
        .map_err(|error| refused("no check can be started", &error))?;
    let relapses = args
        .recovery
        .then(|| Relapses::new(&check, &recording.root, args.model, options.clone()))
        .transpose()
        .map_err(|error| Untested::unchecked(&error))?;
    let screen = Screen::new(true);
    let exploration = Exploration {
        recording: &recording,
        model: args.model,
        options,
        check: &check,
        deadline: args.until.map(deadline),
        relapses: relapses.as_ref(),
        screen: &screen,
        share: Some(args.states),
    };
    // A check that lacks something on this machine would fail on every state.
    exploration.check_uncrashed(&mut stations.stations[0])?;
    let explored = exploration.explore(&mut stations.stations)?;
    // What was checked until then may be what the same signal did to the checks.
    if signals::received().is_some() {
        return Err(Untested::Cancelled.into());
    }
    let answer = Answer {
        distinct: explored.coverage.distinct_states(),
        verified: explored.verified,
        complete: explored.complete,
        failing: explored.numbers,
        relapsing: relapses.as_ref().map(Relapses::patients).unwrap_or_default(),
        during_recovery: relapses.as_ref().map_or(0, Relapses::checked),
        elsewhere: stations.elsewhere.clone(),
    };
    drop(stations);
    term::data(&term::json_line(&answer)?)?;
    let clean = answer.failing.is_empty() && answer.relapsing.is_empty();
    Ok(if clean { Exit::OK } else { Exit::FAILED })
}

/// How many processors are for us.
fn given() -> usize {
    let told = std::env::var(PROCESSORS).ok().and_then(|count| count.parse::<usize>().ok());
    told.filter(|count| (1..=512).contains(count))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Clocks of machines differ a little, and so may the end.
fn deadline(until: i64) -> Instant {
    let left = until.saturating_sub(Timestamp::now().as_millisecond());
    Instant::now() + Duration::from_millis(u64::try_from(left).unwrap_or(0))
}
