//! `retake matrix bisect`: finds where a value turns from good to bad.

use std::path::Path;

use retake_matrix::bisect::MOST_SAMPLES;
use retake_matrix::driver::{BisectOptions, BisectResult, BisectRun, short_sha};
use retake_runner::signals;
use retake_types::config::SandboxedCommand;
use retake_types::loop_record::matrix::PointVerdict;

use super::events::{self, EventScreen};
use super::export_files::{Answer, Exports, Lines};
use super::open::{self, Common, Filters, IfMissing, percent};
use super::redacted_output::RedactedOutput;
use super::words;
use crate::exec::{self, SandboxArgs};
use crate::{Exit, Failure, context, term};

/// With fewer samples a median has no interval.
const FEWEST_SAMPLES: usize = 6;
const LARGEST_SAMPLES: usize = 100_000;

/// Find where an axis turns from good to bad, tolerating flaky runs
///
/// By exit code (0 is good, 125 cannot be judged, everything else and a timeout is bad), or by a
/// metric, such as --metric wall --threshold 5%: every point is then measured alternately with the
/// good end. For code the commits between the two refs are searched; for chrome all versions between the
/// two that the index of Chrome for Testing knows, downloaded as needed, and those configured; for
/// other axes the configured values. The other axes keep their first value, or the one that a
/// filter names.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A value known to be good
    #[arg(long, value_name = "VALUE")]
    good: String,
    /// A value known to be bad; it may come before the good one
    #[arg(long, value_name = "VALUE")]
    bad: String,
    /// Judge by this metric instead of the exit code
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// A value is bad if it differs from the good end by more than this, in the direction of the
    /// bad end, such as 5%
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "metric")]
    threshold: Option<f64>,
    /// Trust every run: one run per point, the ends untested, as `git bisect run` does
    #[arg(long)]
    quick: bool,
    /// Measure a point at most N times; more decide smaller differences and flakier commands
    #[arg(long, value_name = "N", default_value_t = MOST_SAMPLES,
        value_parser = samples)]
    samples: usize,
    /// Print no progress
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    sandbox: SandboxArgs,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    exports: Exports,
}

fn samples(text: &str) -> Result<usize, String> {
    let wrong = || format!("write a number from {FEWEST_SAMPLES} to {LARGEST_SAMPLES}");
    let number = text.parse().map_err(|_| wrong())?;
    match (FEWEST_SAMPLES..=LARGEST_SAMPLES).contains(&number) {
        true => Ok(number),
        false => Err(wrong()),
    }
}

pub(super) fn bisect(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let files = args.exports.files(args.common.json)?.quiet(args.quiet);
    let (mut project, config) =
        open::project(&args.common, store, IfMissing::Create { quiet: args.quiet })?;
    project.sandbox = exec::sandbox_of(SandboxedCommand::Matrix, &args.sandbox, &config)?;
    let (searched, rest): (Vec<String>, Vec<String>) =
        args.filters.axis.iter().cloned().partition(|text| !text.contains('='));
    let [axis] = &searched[..] else {
        return Err(Failure::Usage(
            "name the axis to search, once: --axis code, --axis chrome, or an axis of the configuration".into(),
        ));
    };
    let others = Filters {
        chrome: args.filters.chrome.clone(),
        refs: args.filters.refs.clone(),
        axis: rest,
    };
    let options = BisectOptions {
        axis: axis.clone(),
        good: args.good.clone(),
        bad: args.bad.clone(),
        metric: args.metric.clone(),
        threshold: args.threshold,
        quick: args.quick,
        most_samples: args.samples,
        filters: others.pairs()?,
    };
    let screen = EventScreen::new(args.quiet, &project);
    let run = BisectRun::new(project, options, &screen)?;
    let shown = RedactedOutput::of(run.project());
    let mut worker = open::workers(run.project(), 1)?.remove(0);
    let found = run.run(&mut worker);
    screen.screen().clear();
    let stopped = signals::received();
    context::finish(worker.end(), &config);
    if let Some(signal) = stopped {
        screen.interrupted(&events::run_again("retake matrix bisect"));
        return Ok(Exit::Signal(signal));
    }
    let BisectResult { answer, results } = found?;
    for disturbance in answer.disturbances.iter().filter(|_| !args.quiet) {
        term::say(&words::disturbance(disturbance));
    }
    let (metrics, lines) = ([results], Lines::Points(&answer));
    files.write(&Answer { document: &answer, metrics: &metrics, lines }, &shown)?;
    let lacks_metric = args.metric.is_some() && metrics[0].lacks_metric();
    if args.common.json {
        shown.document(&answer)?;
    } else if lacks_metric {
        term::say(&answer.sentence);
    } else if !files.has_stdout() {
        let sentence = words::short_commits(&answer.sentence);
        shown.lines(&format!("{}\n", term::visible(&sentence)))?;
        if let (Some(commit), Some(subject)) = (answer.changed_at(), &answer.subject) {
            let line = format!("{} {subject}\n", short_sha(commit));
            shown.lines(&line)?;
        }
    }
    let all_good = answer.steps.iter().all(|step| step.verdict == PointVerdict::Good);
    if answer.last_good.is_none() && args.metric.is_none() && all_good {
        term::say("to find what made it slow: --metric wall --threshold 5%");
    }
    Ok(if answer.last_good.is_some() { Exit::OK } else { Exit::FAILED })
}
