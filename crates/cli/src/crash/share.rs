//! `retake crash share`: checks one machine's share of the states of an exploration. Started by another
//! retake, not by people.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_crash::model::{ExploreOptions, Model};
use retake_crash_driver::check::Check;
use retake_crash_driver::check_worker::CheckWorkers;
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::exploration::Exploration;
use retake_crash_driver::recovery_crashes::RecoveryCrashes;
use retake_crash_driver::remote_exploration::ShareCommand;
use retake_crash_driver::share_answers::{ShareAnswer, ShareError};
use retake_crash_driver::state_range::StateRange;
use retake_engine::Variable;
use retake_runner::signals;
use retake_slurm::PROCESSORS_VARIABLE;

use super::options::{read_log, some_time};
use super::{CrashFailure, error_text};
use crate::{Exit, Failure, term};

/// Check some of the crash states of a log, and print the numbers of those that fail
#[derive(clap::Args)]
pub(super) struct Args {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Which states, by number
    #[arg(long, value_name = "FROM-TO")]
    states: StateRange,
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
    /// Start no further checks after this time, in milliseconds since 1970
    #[arg(long, value_name = "MILLISECONDS")]
    until: Option<i64>,
    /// Number of parallel checks [default: the processors that the scheduler assigned]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

/// The arguments that start this command for a share.
pub(super) fn arguments(command: &ShareCommand<'_>) -> Vec<String> {
    let ShareCommand { log, range, model, seed, check, recovery, until, jobs } = command;
    let mut arguments = vec![
        "crash".to_owned(),
        "share".to_owned(),
        format!("--states={range}"),
        log.display().to_string(),
        format!("--model={}", model.name()),
        format!("--seed={seed}"),
        format!("--verify={}", check.command()),
        format!("--verify-timeout={}ms", check.timeout().as_millis()),
    ];
    if *recovery {
        arguments.push("--recovery".to_owned());
    }
    arguments.extend(until.map(|until| format!("--until={}", until.as_millisecond())));
    arguments.extend(jobs.map(|jobs| format!("--jobs={jobs}")));
    arguments
}

pub(super) fn share(args: &Args) -> Result<Exit, CrashFailure> {
    let answered = check_share(args);
    if let Err(CrashFailure::NotTested(error)) = &answered
        && signals::received().is_none()
    {
        // The submitter reads errors and answers from the same stream.
        term::data(&term::json_line(&ShareError { error: error_text(error) })?)?;
    }
    let answer = answered?;
    term::data(&term::json_line(&answer)?)?;
    let clean = answer.failing.is_empty() && answer.failing_recovery.is_empty();
    Ok(if clean { Exit::OK } else { Exit::FAILED })
}

fn check_share(args: &Args) -> Result<ShareAnswer, CrashFailure> {
    signals::end_descriptor().map_err(CrashTestError::NoDescriptor)?;
    let recording = read_log(&args.log)?;
    let cwd = std::env::current_dir().map_err(|source| Failure::File {
        action: "find",
        path: PathBuf::from("."),
        source,
    })?;
    // Exactly the variables that were sent, without the one that only shares get.
    let mut environment = Variable::all_own();
    environment.retain(|known| known.name() != PROCESSORS_VARIABLE);
    let request = Check::request(&args.verify, cwd, args.verify_timeout);
    let check = Check::with(request, environment);
    let options = ExploreOptions { seed: args.seed, ..ExploreOptions::default() };
    let jobs = args.jobs.unwrap_or_else(processors);
    let mut workers =
        CheckWorkers::start(jobs, &recording, !args.recovery).map_err(CrashTestError::NoWorkers)?;
    let recovery = args.recovery.then(|| RecoveryCrashes::new(&check, args.model, options.clone()));
    let exploration = Exploration {
        recording: &recording,
        model: args.model,
        options,
        check: &check,
        deadline: args.until.map(deadline),
        recovery: recovery.as_ref(),
        observer: &(),
        range: Some(args.states),
    };
    // A check that lacks something on this machine would fail on every state.
    exploration.check_uncrashed(&mut workers.workers[0])?;
    let explored = exploration.explore(&mut workers.workers)?;
    // The signal may have terminated checks, which then count as failed.
    if signals::received().is_some() {
        return Err(CrashTestError::Cancelled.into());
    }
    Ok(ShareAnswer {
        distinct: (!explored.coverage.cut_short).then(|| explored.coverage.distinct_states()),
        verified: explored.verified,
        complete: explored.complete,
        failing: explored.failing.iter().map(|found| found.number).collect(),
        failing_recovery: recovery.as_ref().map(RecoveryCrashes::failing).unwrap_or_default(),
        during_recovery: recovery.as_ref().map_or(0, RecoveryCrashes::checked),
        recovery_changes_nothing: recovery.as_ref().is_some_and(RecoveryCrashes::changes_nothing),
        other_path: workers.other_path.clone(),
    })
}

/// How many processors the scheduler assigned.
fn processors() -> usize {
    let given =
        std::env::var(PROCESSORS_VARIABLE).ok().and_then(|count| count.parse::<usize>().ok());
    given
        .filter(|count| (1..=512).contains(count))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Clocks of machines differ a little, and so may the deadline.
fn deadline(until: i64) -> Instant {
    let left = until.saturating_sub(Timestamp::now().as_millisecond());
    Instant::now() + Duration::from_millis(u64::try_from(left).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_arguments_of_a_share_round_trip() {
        let request = Check::request("test -e a", "/r", Duration::from_millis(1500));
        let check = Check::with(request, Vec::new());
        let asked = ShareCommand {
            log: Path::new("/shared/log"),
            range: StateRange { from: 17, to: 32 },
            model: Model::Posix,
            seed: 7,
            check: &check,
            recovery: true,
            until: Timestamp::from_millisecond(1_700_000_000_123).ok(),
            jobs: Some(3),
        };
        let words = arguments(&asked);
        assert_eq!(words[..2], ["crash", "share"]);
        let Command { args } = Command::try_parse_from(&words[1..]).unwrap();
        assert_eq!(args.log, asked.log);
        assert_eq!(args.states, asked.range);
        assert_eq!((args.model, args.seed), (asked.model, asked.seed));
        assert_eq!((args.verify.as_str(), args.verify_timeout), ("test -e a", check.timeout()));
        assert_eq!((args.recovery, args.jobs), (true, Some(3)));
        assert_eq!(args.until, Some(1_700_000_000_123));
    }
}
