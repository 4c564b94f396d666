//! `retake matrix run`: runs what is still pending, on the record.

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use retake_matrix::config::Order;
use retake_matrix::plan::{CellKey, Matrix, Mode, Options, Plan, baselines};
use retake_matrix::stats::{Comparison, Gate};
use retake_types::LoopId;
use retake_types::parse_duration;
use retake_types::{LoopId, StopReason};
use serde::Serialize;

use super::compare;
use super::open::{self, Common, Filters, Project, git_failure, percent};
use crate::Exit;
use crate::Failure;
use crate::term;
use retake_matrix::driver::agenda::Agenda;
use retake_matrix::driver::agenda::Sampling;
use retake_matrix::driver::chronicle;
use retake_matrix::driver::chronicle::Planned;
use retake_matrix::driver::history::History;
use retake_matrix::driver::iterate::Ground;
use retake_matrix::driver::samples::Samples;
use retake_matrix::driver::setting::Setting;
use retake_matrix::driver::supply::Supply;
use retake_matrix::driver::supply::Trouble;
use retake_matrix::driver::supply::short;
use retake_matrix::driver::work::Worked;
use retake_matrix::driver::work::work;
use retake_runner::project_lock::Lock;
use retake_runner::screen::Screen;
use retake_runner::signals;
use retake_runner::worker::Slot;
use retake_slurm::matrix;
use retake_slurm::shared::Shared;
use retake_slurm::shared::Turn;
use retake_slurm::slurm::Target;

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
    #[arg(long, value_name = "PERCENT", value_parser = percent,
        conflicts_with_all = ["append", "replace"])]
    until_sure: Option<f64>,
    /// With --until-sure: begin nothing after this time, such as 10m; `none` goes on for ever
    /// [default: 1h]
    #[arg(long, value_name = "TIME", requires = "until_sure")]
    budget: Option<Budget>,
    /// What --until-sure and --fail-if compare
    #[arg(long, value_name = "NAME", default_value = "wall")]
    metric: String,
    /// Exit with 1 if a comparison is surely so: slower:5%, faster:10%
    #[arg(long, value_name = "VERDICT:PERCENT")]
    fail_if: Vec<Gate>,
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
    /// Say nothing while it runs
    #[arg(long, short)]
    quiet: bool,
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
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    comparisons: &'a [Comparison],
}

/// The margin of `--fail-if` without `--until-sure`.
const MARGIN: f64 = 0.02;

pub(super) fn run(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let mut setting = open::setting(&args.common, store, Project::Make)?;
    let on = args.on.as_ref().map(|on| Target::of(on, &setting.config));
    let on = on.transpose().map_err(Failure::Usage)?;
    if on.is_some() {
        let shared = Shared::of(&setting.config);
        setting.shared = Some(shared.map_err(|error| Failure::Usage(error.to_string()))?);
    }
    let matrix = open::cells(&setting, &args.filters.pairs()?)?;
    if args.until_sure.is_some() && baselines(&matrix).is_empty() {
        return Err(Failure::Usage(
            "--until-sure compares cells, and there are no two that differ in one value".into(),
        ));
    }
    let workers = match on {
        Some(_) => 1,
        None => args.workers.map_or(setting.matrix.workers, usize::from),
    };
    let cpus = if args.pin { cpus(workers)? } else { Vec::new() };
    // Keepers first: before the lock, the record and every thread.
    let mut slots = open::slots(&setting, workers)?;
    for (slot, cpu) in slots.iter_mut().zip(cpus) {
        pin(slot.parts().0.pid(), cpu)?;
    }
    let lock =
        Lock::acquire(&setting.agent, "run").map_err(|error| Failure::Refused(error.to_string()));
    let exit = lock.and_then(|lock| {
        let screen = Screen::new(args.quiet);
        let exit =
            Invocation { args, setting: &setting, on: on.as_ref(), screen }.run(&mut slots, matrix);
        drop(lock);
        exit
    });
    let stopped = signals::received();
    slots.into_iter().map(Slot::end).last().into_iter().for_each(|ended| ended.retain());
    match stopped {
        Some(signal) => Ok(Exit::Signal(signal)),
        None => exit,
    }
}

struct Invocation<'a> {
    args: &'a Args,
    setting: &'a Setting,
    /// Where cells run, if not here.
    on: Option<&'a Target>,
    screen: Screen,
}

impl Invocation<'_> {
    fn run(&self, slots: &mut [Slot], mut matrix: Matrix) -> Result<Exit, Failure> {
        let Self { args, setting, screen, .. } = self;
        let slot = &mut slots[0];
        elsewhere::attach(slot, screen).map_err(Failure::Refused)?;
        let lock = Lock::path(&setting.agent);
        let mut buried = chronicle::bury(slot.store()?, Some(&lock))?;
        buried.extend(chronicle::configurations(slot.recovered_loops()));
        let loops = chronicle::read(slot.store()?, &setting.file)?;
        if buried.iter().any(|config| Path::new(config) == setting.file) {
            screen.notice("an earlier run was interrupted; this one goes on where it was");
        }
        let pins = chronicle::pins(&loops);
        let mut supply = Supply::resolve(slot, setting, &mut matrix, pins)
            .map_err(|error| git_failure(&error))?;
        for (sha, refs) in supply.same_commits() {
            let refs = refs.join(" and ");
            screen.notice(&format!("{refs} are one commit, {}, and share their runs", short(&sha)));
        }
        let turn = self.turn()?;
        if let Err(trouble) = supply.provide_browsers(setting, &mut matrix, screen) {
            return stopped(trouble);
        }
        drop(turn);
        let order =
            if args.until_sure.is_some() { Order::Interleaved } else { setting.matrix.order };
        let seed = args.seed.unwrap_or_else(random_seed);
        let planned = self.planned(&matrix, &supply, seed, order);
        let recording = chronicle::begin(slot.store()?, &planned)?;
        let loop_id = recording.id();
        let done = self.execute(slots, &mut matrix, &mut supply, loop_id, seed, order);
        let reason = match (&done, signals::received()) {
            (_, Some(_)) => StopReason::Interrupted,
            (Ok(Exit::Code(0)), None) => StopReason::Completed,
            (Ok(_), None) => StopReason::Incomplete,
            (Err(_), None) => StopReason::Failed,
        };
        recording.finish(slots[0].store()?, &reason)?;
        done
    }

    /// The turn to make something in the shared directory, which others may want to make as well.
    fn turn(&self) -> Result<Option<Turn>, Failure> {
        let turn = self.setting.shared.as_ref().map(Shared::turn).transpose();
        turn.map_err(|error| Failure::Refused(error.to_string()))
    }

    fn planned(&self, matrix: &Matrix, supply: &Supply, seed: u64, order: Order) -> Planned {
        let config = &self.setting.matrix;
        let redactor = self.setting.redactor();
        let clean = |text: &str| redactor.redact_str(text).0.into_owned();
        Planned {
            purpose: match self.args.until_sure {
                Some(margin) => format!("run --until-sure {}%", margin * 100.0),
                None => "run".to_owned(),
            },
            config: self.setting.file.to_string_lossy().into_owned(),
            lock: Lock::path(&self.setting.agent),
            seed,
            order: order.as_str().to_owned(),
            command: clean(&config.command),
            setup: config.setup.as_deref().map(clean),
            iterations: config.iterations,
            workers: self.args.workers.map_or(config.workers, usize::from),
            axes: Planned::axes_of(&matrix.axes),
            pins: supply.pins.clone(),
            commits: supply.commits.clone(),
            checksums: supply.checksums.clone(),
            unavailable: supply.unavailable.clone(),
            environment: chronicle::environment(),
        }
    }

    fn execute(
        &self,
        slots: &mut [Slot],
        matrix: &mut Matrix,
        supply: &mut Supply,
        loop_id: LoopId,
        seed: u64,
        order: Order,
    ) -> Result<Exit, Failure> {
        let Self { args, setting, screen, .. } = self;
        let slot = &mut slots[0];
        let turn = self.turn()?;
        if let Err(trouble) = supply.provide_code(slot, setting, matrix, loop_id, screen) {
            return stopped(trouble);
        }
        drop(turn);
        let keys = supply.identity.keys(matrix);
        let history = History::read(slot.store()?, &keys)?;
        let agenda = self.agenda(matrix, &keys, &history, seed, order);
        let Worked { agenda, broken } = {
            let ground = Ground {
                setting,
                supply,
                matrix,
                keys: &keys,
                loop_id,
                adaptive: args.until_sure.is_some(),
                sizes: agenda.sizes(),
                blocked: order == Order::Blocked,
            };
            match (self.on, &setting.shared) {
                (Some(target), Some(shared)) => {
                    elsewhere::work(&mut slots[0], &ground, agenda, screen, shared, target)
                }
                _ => work(slots, &ground, agenda, screen),
            }
        };
        if let Some(problem) = broken {
            return Err(Failure::Refused(problem));
        }
        if signals::received().is_some() {
            // The caller ends by the signal.
            return Ok(Exit::FAILED);
        }
        let comparisons = self.comparisons(slots, matrix, &keys, supply, &agenda)?;
        self.tell(&agenda, matrix, supply, loop_id, seed, order, &comparisons)
    }

    fn budget(&self) -> Option<Duration> {
        self.args.budget.unwrap_or_default().0
    }

    fn agenda(
        &self,
        matrix: &Matrix,
        keys: &[CellKey],
        history: &History,
        seed: u64,
        order: Order,
    ) -> Agenda {
        let config = &self.setting.matrix;
        let Some(margin) = self.args.until_sure else {
            let mode = match (self.args.append, self.args.replace) {
                (Some(more), _) => Mode::Append(more),
                (None, true) => Mode::Replace,
                (None, false) => Mode::Pending,
            };
            let (iterations, warmup) = (config.iterations, config.warmup);
            let options = Options { iterations, warmup, mode, order, seed };
            return Agenda::Fixed(Box::new(Plan::new(keys, &history.past(), &options)));
        };
        let pairs = distinct(&baselines(matrix), keys);
        let samples = Samples::of(matrix, keys, history, config, &self.args.metric);
        let criteria = samples.criteria(margin, pairs.len());
        let sampler = samples.sampler(&pairs, criteria, seed);
        let mut cells: Vec<usize> = pairs.iter().flat_map(|&(a, b)| [a, b]).collect();
        cells.sort_unstable();
        cells.dedup();
        let warm = if sampler.finished() { 0 } else { config.warmup };
        let warmups = (0..warm).flat_map(|_| cells.iter().copied()).collect();
        let deadline = self.budget().map(|budget| Instant::now() + budget);
        let metric = self.args.metric.clone();
        Agenda::UntilSure(Box::new(Sampling::new(sampler, metric, deadline, warmups)))
    }

    /// What --until-sure has found, or what --fail-if asks about.
    fn comparisons(
        &self,
        slots: &mut [Slot],
        matrix: &Matrix,
        keys: &[CellKey],
        supply: &Supply,
        agenda: &Agenda,
    ) -> Result<Vec<Comparison>, Failure> {
        let name = |cell| open::name(matrix, cell);
        if let Agenda::UntilSure(sampling) = agenda {
            return Ok(sampling.sampler.comparisons(&self.args.metric, name));
        }
        if self.args.fail_if.is_empty() {
            return Ok(Vec::new());
        }
        let history = History::read(slots[0].store()?, keys)?;
        let config = &self.setting.matrix;
        let samples = Samples::of(matrix, keys, &history, config, &self.args.metric);
        Ok(samples.compare(&baselines(matrix), MARGIN, supply, name))
    }

    #[expect(clippy::too_many_arguments, reason = "each is told once")]
    fn tell(
        &self,
        agenda: &Agenda,
        matrix: &Matrix,
        supply: &Supply,
        loop_id: LoopId,
        seed: u64,
        order: Order,
        comparisons: &[Comparison],
    ) -> Result<Exit, Failure> {
        let (ok, failed) = (agenda.ok(), agenda.failed());
        let skipped: Vec<String> =
            agenda.skipped().into_iter().map(|cell| open::name(matrix, cell)).collect();
        for problem in &supply.unavailable {
            term::say(&format!("not run: {problem}"));
        }
        for cell in &skipped {
            term::say(&format!("not run: {cell}: its warmup failed"));
        }
        let spent = matches!(agenda, Agenda::UntilSure(sampling) if sampling.spent());
        if ok + failed == 0 && supply.unavailable.is_empty() && skipped.is_empty() && !spent {
            self.screen.line("Done. Nothing was pending.");
        } else {
            let count = term::count((ok + failed) as u64, "run");
            self.screen.line(&format!("Done. {count}: {ok} ok, {failed} failed."));
        }
        if let (Agenda::UntilSure(sampling), Some(budget)) = (agenda, self.budget())
            && sampling.spent()
            && let (decided, all) = sampling.sampler.progress()
            && decided < all
        {
            self.screen.notice(&format!(
                "the budget of {} is spent, and {} of {} is not decided; run again to go on",
                term::duration(budget),
                all - decided,
                term::count(all as u64, "comparison"),
            ));
        }
        if self.args.common.json {
            term::document(&Document {
                loop_id,
                seed,
                order: order.as_str(),
                total: agenda.total(),
                ok,
                failed,
                skipped: skipped.clone(),
                unavailable: &supply.unavailable,
                comparisons,
            })?;
        } else {
            compare::tell(comparisons)?;
        }
        if ok == 0 && failed > 0 {
            term::say("every iteration failed; `retake matrix status --failures` lists them");
            return Ok(Exit::FAILED);
        }
        if !supply.unavailable.is_empty() || !skipped.is_empty() {
            return Ok(Exit::FAILED);
        }
        let tried = |c: &Comparison| c.samples.a + c.failed.a > 0 && c.samples.b + c.failed.b > 0;
        if matches!(agenda, Agenda::UntilSure(_)) && !comparisons.iter().all(tried) {
            term::say("some cells have no result at all; give them more time");
            return Ok(Exit::FAILED);
        }
        Ok(compare::gate(&self.args.fail_if, comparisons))
    }
}

fn stopped(trouble: Trouble) -> Result<Exit, Failure> {
    match trouble {
        // The caller ends by the signal.
        Trouble::Interrupted => Ok(Exit::FAILED),
        Trouble::Failed(why) => Err(Failure::Refused(why)),
    }
}

/// Pairs of cells that are really two: cells with one key are run once, as the first of them.
fn distinct(pairs: &[(usize, usize)], keys: &[CellKey]) -> Vec<(usize, usize)> {
    let first = |cell: usize| keys.iter().position(|key| *key == keys[cell]).unwrap_or(cell);
    let mut kept: Vec<(usize, usize)> = Vec::new();
    for pair in pairs.iter().map(|&(a, b)| (first(a), first(b))) {
        if pair.0 != pair.1 && !kept.contains(&pair) {
            kept.push(pair);
        }
    }
    kept
}

/// Small enough for every reader of JSON.
fn random_seed() -> u64 {
    let bytes = *LoopId::new().as_bytes();
    let low = u128::from_be_bytes(bytes);
    u64::try_from(low & ((1 << 53) - 1)).unwrap_or_default()
}

/// The CPUs that we may use, one for each worker.
fn cpus(workers: usize) -> Result<Vec<usize>, Failure> {
    // SAFETY: zero is a valid set, filled by the query for ourselves.
    let allowed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &raw mut set) != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Failure::Refused(format!("--pin: {}", term::plain(&error))));
        }
        set
    };
    let most = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: the numbers are below the size of the set.
    let cpus: Vec<usize> =
        (0..most).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &allowed) }).collect();
    if cpus.len() < workers {
        return Err(Failure::Usage(format!(
            "--pin: {workers} workers need as many CPUs, and there are {}",
            cpus.len()
        )));
    }
    Ok(cpus)
}

/// Ties a keeper to a CPU; everything it starts inherits that.
fn pin(pid: i32, cpu: usize) -> Result<(), Failure> {
    // SAFETY: a set of our own with a number that is in it.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(pid, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Failure::Refused(format!("--pin: CPU {cpu}: {}", term::plain(&error))))
}
