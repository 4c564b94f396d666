//! How often verdicts are right: two commands whose work has a known ratio, judged by retake and by
//! hyperfine, on a quiet machine and beside an intermittent load.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use retake_matrix::random::Random;
use serde_json::Value;

use super::{TemporaryDirectory, text};
use crate::bench::median;
use crate::page::Page;

const RATIOS: [f64; 3] = [1.00, 1.02, 1.10];
/// The duration of the first command, including its start.
const TARGET: Duration = Duration::from_millis(4);
/// With no wrong verdict in this many trials, the rate is at most 5 % (95 %, one-sided).
const TRIALS: usize = 60;
/// The margin and the budget for retake.
const MARGIN: &str = "1%";
const BUDGET: &str = "800ms";

/// Other load on the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Quiet,
    Neighbour,
}

impl Condition {
    fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Neighbour => "noisy neighbour",
        }
    }

    /// The total time for all ratios, unless the environment says otherwise: for example a tenth of it,
    /// to try it out.
    fn time(self) -> Duration {
        let part = std::env::var("RETAKE_BENCH_VERDICTS").ok().and_then(|part| part.parse().ok());
        let all = match self {
            Self::Quiet => Duration::from_secs(150),
            // Fewer comparisons are decided within the budget.
            Self::Neighbour => Duration::from_secs(300),
        };
        all.mul_f64(part.unwrap_or(1.0))
    }
}

/// The results of the trials of one tool.
#[derive(Default)]
struct Tally {
    right: usize,
    none: usize,
    wrong: usize,
    /// Of each command.
    runs: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Faster,
    Same,
    Slower,
    None,
}

impl Tally {
    fn add(&mut self, ratio: f64, verdict: Verdict, runs: f64) {
        let truth = if ratio > 1.0 { Verdict::Slower } else { Verdict::Same };
        match verdict {
            Verdict::None => self.none += 1,
            found if found == truth => self.right += 1,
            _ => self.wrong += 1,
        }
        self.runs.push(runs);
    }

    fn add_all(&mut self, other: &Self) {
        self.right += other.right;
        self.none += other.none;
        self.wrong += other.wrong;
        self.runs.extend(&other.runs);
    }

    fn row(&self, condition: &str, ratio: &str, tool: &str) -> Vec<String> {
        let trials = self.right + self.none + self.wrong;
        let bound = 100.0 * upper_bound(self.wrong, trials);
        vec![
            condition.to_owned(),
            ratio.to_owned(),
            tool.to_owned(),
            trials.to_string(),
            self.right.to_string(),
            self.none.to_string(),
            format!("{} (at most {bound:.0} %)", self.wrong),
            format!("{:.0}", median(&self.runs)),
        ]
    }
}

/// The largest rate for which this few of this many have a probability of 5 %: the one-sided bound of
/// Clopper and Pearson.
fn upper_bound(found: usize, of: usize) -> f64 {
    // The probability of at most `found`, if each has the probability p.
    let at_most = |p: f64| {
        let mut term = (1.0 - p).powf(of as f64);
        let mut sum = term;
        for k in 0..found {
            term *= (of - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
            sum += term;
        }
        sum
    };
    if found >= of {
        return 1.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if at_most(middle) > 0.05 { low = middle } else { high = middle }
    }
    high
}

/// Work that takes a time proportional to its size, plus the start of a program.
pub(super) fn work(size: &str) -> Result<(), String> {
    let size: u64 = size.parse().map_err(text)?;
    let mut state = 1u64;
    for _ in 0..size * 1000 {
        state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    std::hint::black_box(state);
    Ok(())
}

/// Uses all CPUs for a while and none for a while, until it is killed.
pub(super) fn neighbour(seed: &str) -> Result<(), String> {
    let mut random = Random::new(seed.parse().map_err(text)?);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    loop {
        let until = Instant::now() + Duration::from_secs_f64(0.05 + 0.5 * random.unit());
        std::thread::scope(|scope| {
            for _ in 0..cpus {
                scope.spawn(|| {
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                });
            }
        });
        std::thread::sleep(Duration::from_secs_f64(0.05 + 0.5 * random.unit()));
    }
}

/// A process that is killed with its owner.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have exited by itself.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().map_err(text)?;
    match output.stdout.is_empty() && !output.status.success() {
        true => Err(format!("{command:?} ended with {}", output.status)),
        false => Ok(output.stdout),
    }
}

/// The verdict of retake, and how often it ran each command.
fn by_retake(
    retake: &Path,
    store: &Path,
    commands: &[String; 2],
) -> Result<(Verdict, usize), String> {
    let mut command = Command::new(retake);
    command.arg("--store").arg(store).args(["matrix", "try", "-q", "--json", "--shell", "none"]);
    command.args(["--until-sure", MARGIN, "--budget", BUDGET]).args(commands);
    let answer: Value = serde_json::from_slice(&output(&mut command)?).map_err(text)?;
    let comparison = &answer["comparisons"][0];
    let verdict = match comparison["verdict"].as_str() {
        Some("faster") => Verdict::Faster,
        Some("same") => Verdict::Same,
        Some("slower") => Verdict::Slower,
        _ => Verdict::None,
    };
    let runs = answer["ok"].as_u64().unwrap_or(0) as usize;
    Ok((verdict, runs.div_ceil(2)))
}

/// The verdict according to hyperfine's numbers: whether intervals of mean ± 1.96 standard errors
/// overlap.
fn by_hyperfine(directory: &Path, commands: &[String; 2], runs: usize) -> Result<Verdict, String> {
    let file = directory.join("hyperfine.json");
    let mut command = Command::new("hyperfine");
    command.args(["-N", "--style", "none", "--runs", &runs.max(2).to_string()]);
    command.arg("--export-json").arg(&file).args(commands).stdout(Stdio::null());
    output(&mut command)?;
    let document = std::fs::read(&file).map_err(text)?;
    let document: Value = serde_json::from_slice(&document).map_err(text)?;
    let interval = |at: usize| {
        let result = &document["results"][at];
        let number = |key: &str| result[key].as_f64().ok_or(format!("no {key}"));
        let count = result["times"].as_array().map_or(1, Vec::len) as f64;
        let error = 1.96 * number("stddev")? / count.sqrt();
        Ok::<_, String>((number("mean")? - error, number("mean")? + error))
    };
    let (a, b) = (interval(0)?, interval(1)?);
    Ok(match () {
        () if b.0 > a.1 => Verdict::Slower,
        () if b.1 < a.0 => Verdict::Faster,
        () => Verdict::None,
    })
}

/// The cost of work: the start of the program, and each unit of work, in seconds.
struct Calibration {
    start: f64,
    unit: f64,
}

impl Calibration {
    /// Measures no work and much work in turn.
    fn measure(own: &Path) -> Result<Self, String> {
        const MUCH: u64 = 8_000;
        let once = |size: u64| {
            let begun = Instant::now();
            output(Command::new(own).args(["spin", "matrix", "work", &size.to_string()]))?;
            Ok::<_, String>(begun.elapsed().as_secs_f64())
        };
        let (mut nothing, mut much) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            nothing.push(once(0)?);
            much.push(once(MUCH)?);
        }
        let start = median(&nothing);
        Ok(Self { start, unit: (median(&much) - start) / MUCH as f64 })
    }

    /// The size of the work of a command with this duration, including its start.
    fn size(&self, seconds: f64) -> f64 {
        ((seconds - self.start) / self.unit).max(1.0)
    }

    /// Two commands whose durations have a ratio.
    fn commands(&self, own: &Path, ratio: f64) -> [String; 2] {
        let first = TARGET.as_secs_f64().max(2.0 * self.start);
        [first, first * ratio]
            .map(|seconds| format!("{} spin matrix work {:.0}", own.display(), self.size(seconds)))
    }
}

/// The trials of one ratio.
struct Row {
    ratio: f64,
    commands: [String; 2],
    tools: Vec<(&'static str, Tally)>,
    spent: Duration,
}

impl Row {
    fn trials(&self) -> usize {
        self.tools[0].1.runs.len()
    }

    /// Retake decides how often it runs the commands; hyperfine then runs them as often.
    fn trial(&mut self, retake: &Path, directory: &Path) -> Result<(), String> {
        let begun = Instant::now();
        let store = directory.join("store");
        // Every trial begins without a record, which may be missing.
        _ = std::fs::remove_dir_all(&store);
        let (verdict, runs) = by_retake(retake, &store, &self.commands)?;
        for (tool, tally) in &mut self.tools {
            let verdict = match *tool {
                "retake" => verdict,
                _ => by_hyperfine(directory, &self.commands, runs)?,
            };
            tally.add(self.ratio, verdict, runs as f64);
        }
        self.spent += begun.elapsed();
        Ok(())
    }
}

/// All ratios under one condition. The next trial is one of the ratio with the least time so far, so that
/// quick decisions get their trials soon and leave the time to the others.
fn trials(
    condition: Condition,
    mut rows: Vec<Row>,
    own: &Path,
    directory: &Path,
) -> Result<Vec<Row>, String> {
    let retake = own.with_file_name("retake");
    let _neighbour = match condition {
        Condition::Quiet => None,
        Condition::Neighbour => Some(Ended(
            Command::new(own).args(["spin", "matrix", "neighbour", "1"]).spawn().map_err(text)?,
        )),
    };
    let begun = Instant::now();
    loop {
        let open = rows.iter_mut().filter(|row| row.trials() < TRIALS);
        let Some(row) = open.min_by_key(|row| row.spent) else { break };
        if begun.elapsed() > condition.time() && row.trials() > 0 {
            break;
        }
        row.trial(&retake, directory)?;
        let counts: Vec<String> = rows.iter().map(|row| row.trials().to_string()).collect();
        eprint!("\rverdicts, {}: {} of {TRIALS} trials", condition.name(), counts.join(", "));
    }
    eprintln!();
    Ok(rows)
}

pub(super) fn run(page: &mut Page) -> Result<(), String> {
    let own = std::env::current_exe().map_err(text)?;
    let directory = TemporaryDirectory::new("verdicts")?;
    let calibration = Calibration::measure(&own)?;
    let version = Command::new("hyperfine").arg("--version").output().ok();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    page.section(
        "Verdicts about a known ratio",
        &format!(
            "Two commands do arithmetic. The first takes about {} ms, the second that times the ratio, their start \
             ({:.1} ms, measured beforehand) included. `retake matrix try --shell none --until-sure {MARGIN} --budget \
             {BUDGET}` decides how often it runs them; {} then runs each as often, without a shell, one command after \
             the other. Its verdict is `slower` or `faster` where the intervals of mean ± 1.96 standard errors do not \
             overlap; it has no verdict `same`, so it cannot be right about 1.00, only not wrong. \
             Right is `same` for 1.00 and `slower` for the others; any other verdict is wrong, \
             also `same` for 1.02. The bound beside the number of wrong verdicts is the largest \
             rate compatible with it (95 %, one-sided). The neighbour alternately uses all CPUs \
             and pauses, each for a random 50 to 550 ms. Up to {TRIALS} trials of each \
             ratio, as many as fit into {} and {} seconds for the three.",
            TARGET.as_millis(),
            1e3 * calibration.start,
            version.as_deref().unwrap_or("hyperfine (which is not here)"),
            Condition::Quiet.time().as_secs(),
            Condition::Neighbour.time().as_secs(),
        ),
    );
    let tools = || {
        let mut tools = vec![("retake", Tally::default())];
        tools.extend(version.is_some().then(|| ("hyperfine", Tally::default())));
        tools
    };
    let mut all = tools();
    let mut lines = Vec::new();
    for condition in [Condition::Quiet, Condition::Neighbour] {
        let row = |ratio: f64| Row {
            ratio,
            commands: calibration.commands(&own, ratio),
            tools: tools(),
            spent: Duration::ZERO,
        };
        let rows = RATIOS.map(row).into();
        for row in trials(condition, rows, &own, &directory.path)? {
            for ((tool, all), (_, tally)) in all.iter_mut().zip(&row.tools) {
                lines.push(tally.row(condition.name(), &format!("{:.2}", row.ratio), tool));
                all.add_all(tally);
            }
        }
    }
    lines.extend(all.iter().map(|(tool, tally)| tally.row("all", "", tool)));
    let head = ["machine", "ratio", "", "trials", "right", "no verdict", "wrong", "runs of each"];
    page.table(&head, &lines);
    Ok(())
}
