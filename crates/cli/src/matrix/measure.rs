//! What `retake matrix run` and `retake matrix try` share: the options of a measurement, its workers, and
//! the results.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use retake_matrix::driver::{
    CellRow, Iterations, MatrixProject, MatrixRun, MatrixRunOptions, MatrixRunResult, allowed_cpus,
    pin_process,
};
use retake_matrix::plan::{MOST_BLOCKS, Matrix, ScheduleMode};
use retake_matrix::stats::{Comparison, Gate, GateRule, Verdict};
use retake_runner::config::Config;
use retake_runner::worker::Worker;
use retake_runner::{metrics, signals};
use retake_store::Store;
use retake_types::{LoopId, RunId, SeenDisturbance, parse_duration};
use serde::Serialize;

use super::events::{self, EventScreen, SeenFailure, SeenFailures};
use super::export_files::{Answer, ExportFiles, Exports, Lines};
use super::open::{self, margin};
use super::redacted_output::RedactedOutput;
use super::remote::Executor;
use super::shard::ShardPart;
use super::{compare, remote, status, table, words};
use crate::{Exit, Failure, ci_files, context, term};

/// Options of a measurement and of its comparisons.
#[derive(clap::Args)]
pub(super) struct Measuring {
    /// Keep running until every comparison is decided at this margin, such as 2%
    #[arg(long, value_name = "PERCENT", value_parser = margin)]
    pub(super) until_sure: Option<f64>,
    /// With --until-sure: start no run after this time, such as 10m, and terminate longer runs;
    /// `none` continues until every comparison is conclusive [default: 1h]
    #[arg(long, value_name = "TIME", requires = "until_sure")]
    budget: Option<Budget>,
    /// Exit with 1 if a comparison is conclusive and its estimate reaches this size: slower:5%,
    /// faster:10%. slower:5%! requires the whole interval to reach it, slower alone any size; unsure
    /// exits with 1 if a comparison is not conclusive, failed if an iteration failed. slower:5%@main
    /// measures the tip of main alternately with the cells of this run, and compares them with it
    #[arg(long, value_name = "VERDICT:PERCENT[@REF]")]
    pub(super) fail_if: Vec<Gate>,
    /// Pin every worker to its own CPU
    #[arg(long)]
    pub(super) pin: bool,
    /// Seed of the random order, to repeat that order
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Record secrets instead of replacing them
    #[arg(long)]
    pub(super) no_redact: bool,
    /// Append the results as Markdown to a file, such as "$GITHUB_STEP_SUMMARY"
    #[arg(long, value_name = "FILE")]
    pub(super) summary: Option<PathBuf>,
    /// Print no progress and no table
    #[arg(long, short)]
    pub(super) quiet: bool,
    #[command(flatten)]
    exports: Exports,
}

/// Time limit of --until-sure.
#[derive(Clone, Copy)]
struct Budget(Option<Duration>);

impl Default for Budget {
    /// A difference within the margin can take thousands of runs to confirm, and one of exactly the margin
    /// never ends.
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

impl Measuring {
    fn budget(&self) -> Option<Duration> {
        self.budget.unwrap_or_default().0
    }

    /// The options of a run. `fixed` sets the number of iterations unless --until-sure was given.
    pub(super) fn options(
        &self,
        project: &MatrixProject,
        fixed: ScheduleMode,
        metric: &str,
    ) -> MatrixRunOptions {
        MatrixRunOptions {
            iterations: match self.until_sure {
                Some(margin) => Iterations::UntilSure { margin, budget: self.budget() },
                None => Iterations::Fixed(fixed),
            },
            metric: metric.to_owned(),
            gates: self.fail_if.clone(),
            compared: true,
            // Failures are judged without a baseline.
            baseline_again: self.fail_if.iter().any(|gate| gate.rule != GateRule::Failed),
            seed: self.seed,
            workers: project.config.workers,
            undecided_limit: UNDECIDED,
            shard: None,
        }
    }
}

/// The metric that replaces unavailable counters of the processor.
const CPU: &str = "cpu";

/// How many cells may be in progress on other machines while their results decide the number of iterations.
pub(super) const UNDECIDED: usize = 32;

/// The output of `--json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    loop_id: LoopId,
    seed: u64,
    order: &'a str,
    /// Planned iterations; unknown with --until-sure.
    total: Option<usize>,
    ok: usize,
    failed: usize,
    /// Cells that were skipped because their warmup failed.
    skipped: Vec<String>,
    unavailable: &'a [String],
    /// What disturbed the measurement.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    disturbances: &'a [SeenDisturbance],
    /// Duration of a shell's start, which is subtracted from times.
    #[serde(skip_serializing_if = "Option::is_none")]
    shell_start_ms: Option<f64>,
    cells: &'a [CellRow],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    comparisons: &'a [Comparison],
}

/// The source of the matrix, which decides how to continue later.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    File,
    CommandLine,
}

impl Origin {
    fn command(self) -> &'static str {
        match self {
            Self::File => "retake matrix run",
            Self::CommandLine => "retake matrix try",
        }
    }
}

/// A measurement that is ready to start.
pub(super) struct Measurement<'a> {
    pub(super) measuring: &'a Measuring,
    pub(super) origin: Origin,
    pub(super) project: &'a MatrixProject,
    pub(super) config: &'a Config,
    pub(super) options: MatrixRunOptions,
    pub(super) screen: EventScreen,
    pub(super) json: bool,
    /// The shard of the matrix that is run, if it is not all of it.
    pub(super) part: Option<&'a ShardPart>,
    /// What may explain failures.
    pub(super) hint: Option<String>,
}

impl Measurement<'_> {
    pub(super) fn make(
        &self,
        matrix: Matrix,
        mut executor: Option<Executor>,
    ) -> Result<Exit, Failure> {
        let Self { project, screen, .. } = self;
        let options = &mut self.options.clone();
        let files = self.measuring.exports.files(self.json)?.quiet(self.measuring.quiet);
        options.compared = !self.measuring.quiet
            || self.json
            || !files.is_empty()
            || self.measuring.summary.is_some()
            || self.measuring.until_sure.is_some()
            || !options.gates.is_empty();
        MatrixRun { project, options, observer: screen }.check(&matrix)?;
        let count = if executor.is_some() { 1 } else { options.workers };
        let cpus = if self.measuring.pin { cpus(count)? } else { Vec::new() };
        // Keepers first: before the lock, the record and every thread.
        let mut workers = open::workers(project, count)?;
        for (worker, cpu) in workers.iter().zip(cpus) {
            pin(worker, cpu)?;
        }
        if executor.is_none() {
            self.fall_back(options, &mut workers);
        }
        let exit = MatrixRun { project, options, observer: screen }
            .run(&mut workers, matrix, executor.as_mut())
            .map_err(remote::failure)
            .and_then(|result| {
                if let Some(part) = self.part {
                    part.write_bundle(workers[0].store()?, &result, project)?;
                }
                self.summarize(&result)?;
                let store = workers[0].store().ok().map(|store| &*store);
                self.show(&result, &files, store)
            });
        let stopped = signals::received();
        if let Some(ended) = workers.into_iter().map(Worker::end).last() {
            context::finish(ended, self.config);
        }
        match stopped {
            Some(signal) => {
                screen.interrupted(&self.continuation());
                Ok(Exit::Signal(signal))
            }
            None => exit,
        }
    }

    /// How to continue after a signal. --append counts from the recorded iterations, so repeating it adds too many.
    fn continuation(&self) -> String {
        let append = matches!(self.options.iterations, Iterations::Fixed(ScheduleMode::Append(_)));
        match self.origin {
            Origin::File if append => match self.screen.size() {
                Some(size) => format!(" To complete it: `{}`", with_iterations(size)),
                None => " The cells had different numbers of iterations: `retake matrix status` \
                         shows them, and `retake matrix run --iterations N` with --refs, --chrome or \
                         --axis completes some of them."
                    .to_owned(),
            },
            Origin::File => events::run_again(self.origin.command()),
            _ => String::new(),
        }
    }

    /// Compares CPU time instead of a counter of the processor that cannot be read.
    fn fall_back(&self, options: &mut MatrixRunOptions, workers: &mut [Worker]) {
        if metrics::COUNTED.contains(&options.metric.as_str())
            && let Some(Err(error)) = workers.first_mut().map(Worker::counters)
        {
            let why = events::no_counters(&options.metric, &error);
            self.screen.screen().notice(&format!("{why}; cpu is compared instead"));
            CPU.clone_into(&mut options.metric);
        }
    }

    fn show(
        &self,
        result: &MatrixRunResult,
        files: &ExportFiles,
        store: Option<&Store>,
    ) -> Result<Exit, Failure> {
        let seen = self.screen.failures();
        let Self { screen, .. } = self;
        let (ok, failed) = (result.ok, result.failed);
        let unavailable: Vec<String> = result.unavailable.iter().map(events::unavailable).collect();
        let short = |cell: &usize| match result.matrix.short_name(*cell) {
            // The only cell of a matrix without axes has no name.
            name if name.is_empty() => "the command".to_owned(),
            name => name,
        };
        let skipped: Vec<String> = result.skipped.iter().map(short).collect();
        let shown = RedactedOutput::of(self.project);
        for problem in &unavailable {
            shown.say(&format!("not run: {problem}"));
        }
        for (name, cell) in skipped.iter().zip(&result.skipped) {
            let hooks = match result.hooks {
                true => "its warmup, prepare or conclude failed",
                false => "its warmup failed",
            };
            let why = seen.around.get(cell).map_or_else(String::new, |run| seen.why(*run, store));
            shown.say(&format!("not run: {name}: {hooks}{why}"));
        }
        let missing = !unavailable.is_empty() || !skipped.is_empty();
        if ok + failed == 0 && !missing && result.spent.is_none() {
            screen.screen().line("Done. Nothing was pending.");
        } else {
            let count = term::count((ok + failed) as u64, "run");
            screen.screen().line(&format!("Done. {count}: {ok} ok, {failed} failed."));
        }
        self.say_spent(result);
        let document = Document {
            loop_id: result.loop_id,
            seed: result.seed,
            order: result.order.as_str(),
            total: result.total,
            ok,
            failed,
            skipped,
            unavailable: &unavailable,
            disturbances: &result.disturbances,
            shell_start_ms: result.results.shell_start,
            cells: &result.rows,
            comparisons: &result.comparisons,
        };
        if self.json {
            shown.document(&document)?;
        } else if !self.measuring.quiet && !files.has_stdout() {
            self.show_table(result, &shown)?;
        }
        let metrics = std::slice::from_ref(&result.results);
        files.write(&Answer { document: &document, metrics, lines: Lines::Cells }, &shown)?;
        self.exit(result, missing, &shown, (&seen, store))
    }

    /// Adds the results to the summary of a CI job.
    fn summarize(&self, result: &MatrixRunResult) -> Result<(), Failure> {
        let Some(file) = &self.measuring.summary else { return Ok(()) };
        let part = self.part.map_or_else(String::new, |part| format!(", shard {}", part.shard));
        let mut text = format!(
            "### retake matrix{part}\n\n{}: {} ok, {} failed\n\n",
            term::count((result.ok + result.failed) as u64, "run"),
            result.ok,
            result.failed
        );
        for problem in result.unavailable.iter().map(events::unavailable) {
            text.push_str(&format!("- not run: {}\n", ci_files::markdown(&problem)));
        }
        text.push_str(&result.results.markdown());
        let shown = RedactedOutput::of(self.project);
        ci_files::append(file, &shown.text(&text))
    }

    fn say_spent(&self, result: &MatrixRunResult) {
        if result.given_up > 0 {
            self.screen.screen().notice(&format!(
                "{} would take more than {MOST_BLOCKS} iterations and {} given up; a larger margin \
                 takes fewer",
                term::count(result.given_up as u64, "comparison"),
                if result.given_up == 1 { "is" } else { "are" }
            ));
        }
        if let (Some((decided, all)), Some(budget)) = (result.spent, self.measuring.budget())
            && decided < all
        {
            let more = match self.origin {
                Origin::File => "run again to continue",
                Origin::CommandLine => "give it more with --budget",
            };
            self.screen.screen().notice(&format!(
                "the budget of {} is exhausted, with {} of {} undecided; {more}",
                term::duration(budget),
                all - decided,
                term::count(all as u64, "comparison"),
            ));
        }
    }

    fn exit(
        &self,
        result: &MatrixRunResult,
        missing: bool,
        shown: &RedactedOutput,
        (seen, store): (&SeenFailures, Option<&Store>),
    ) -> Result<Exit, Failure> {
        if let Some(first) = seen.first.as_ref().filter(|_| !self.measuring.quiet) {
            let SeenFailure { name, run, exit_code, timed_out } = first;
            let why = seen.why(*run, store);
            let ended = match timed_out {
                Some(time) => format!("timed out after {}", term::duration(*time)),
                None => format!("exit code {exit_code}"),
            };
            let hint = match exit_code {
                126 => "; make it executable with chmod +x",
                _ => "",
            };
            shown.say(&format!("the first failure: {name}, {ended}{why}{hint}"));
            if let Some(hint) = &self.hint {
                shown.say(hint);
            }
        }
        match (self.origin, result.failed) {
            (Origin::File, _) if result.all_failed() => {
                term::say("every iteration failed; `retake matrix status --failures` lists them");
                return Ok(Exit::FAILED);
            }
            (Origin::File, _) if result.trips_failed() => {
                term::say(&format!(
                    "--fail-if: {} failed; `retake matrix status --failures` lists them",
                    term::count(result.state.failed as u64, "iteration")
                ));
                compare::fail(result.tripped_comparisons(), shown);
                return Ok(Exit::FAILED);
            }
            (Origin::File, 1..) if !self.measuring.quiet => term::say(&format!(
                "{} failed, which the next run tries again: `retake matrix status --failures` lists \
                 them; --fail-if failed makes that an error",
                term::count(result.failed as u64, "run"),
            )),
            (Origin::CommandLine, failed @ 1..) => {
                term::say(&format!(
                    "{} failed and {} not measured: see `retake runs list --failed` and \
                     `retake runs logs ID`, or count failures as results with --ignore-failure",
                    term::count(failed as u64, "run"),
                    if failed == 1 { "is" } else { "are" }
                ));
                return Ok(Exit::FAILED);
            }
            _ => {}
        }
        if missing {
            return Ok(Exit::FAILED);
        }
        if result.lacks_metric() {
            let (metric, known) = (&result.results.metric, result.results.known_metrics());
            term::say(&format!("no run has reported {metric}; choose from {}", known.join(", ")));
            return Ok(Exit::FAILED);
        }
        if result.untried {
            term::say("some cells have no result at all; give them more time");
            return Ok(Exit::FAILED);
        }
        Ok(compare::fail(result.tripped_comparisons(), shown))
    }

    /// Prints the table, and the comparisons that are not decided.
    fn show_table(&self, result: &MatrixRunResult, shown: &RedactedOutput) -> Result<(), Failure> {
        for disturbance in &result.disturbances {
            term::say(&words::seen_disturbance(disturbance));
        }
        if result.rows.is_empty() {
            return Ok(());
        }
        let unit = result.results.unit.as_deref();
        if let Some(start) = result.results.shell_start {
            term::say(&words::shell_start(start));
        }
        if result.mixed_sessions {
            term::say(words::MIXED_SESSIONS);
        }
        let width = term::width();
        // Redacted before the columns are aligned.
        let named = |row: &CellRow| CellRow { name: shown.text(&row.name), ..row.clone() };
        let rows: Vec<CellRow> = result.rows.iter().map(named).collect();
        let table = table::render(&result.results.metric, unit, &rows, width);
        shown.lines(&table)?;
        let open = result.comparisons.iter().filter(|one| one.verdict == Verdict::NotSure);
        // Undecided comparisons matter only if a decision was asked for.
        let asked = self.measuring.until_sure.is_some() || !self.measuring.fail_if.is_empty();
        for comparison in open.clone().filter(|_| asked) {
            shown.lines(&format!("{}\n", term::visible(&comparison.sentence())))?;
        }
        compare::advise(open.filter(|_| asked));
        Ok(())
    }
}

impl SeenFailures {
    /// The end of a run's output, and where the rest is.
    fn why(&self, run: RunId, store: Option<&Store>) -> String {
        let line = store.and_then(|store| status::last_line(store, run));
        let line = line.map_or_else(String::new, |line| format!(": {}", term::cut(&line, LINE)));
        format!("{line}; see `retake runs logs {}`", run.short())
    }
}

/// A longer last line of an output is cut.
const LINE: usize = 200;

/// This command with `--iterations N` instead of `--append`.
fn with_iterations(size: u64) -> String {
    let mut words = vec!["retake".to_owned()];
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--append" {
            arguments.next();
        } else if !argument.starts_with("--append=") {
            words.push(status::quoted(&argument));
            continue;
        }
        words.push(format!("--iterations {size}"));
    }
    words.join(" ")
}

/// One CPU for each worker, of those that this process may use.
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

/// Pins a keeper to a CPU; all processes it starts inherit that.
fn pin(worker: &Worker, cpu: usize) -> Result<(), Failure> {
    pin_process(worker.keeper_pid(), cpu)
        .map_err(|error| Failure::Refused(format!("--pin: CPU {cpu}: {}", term::plain(&error))))
}
