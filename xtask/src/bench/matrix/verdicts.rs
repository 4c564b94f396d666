//! How often verdicts are right: two commands whose work has a known ratio, judged by retake and by
//! hyperfine, on a quiet machine and beside a neighbour that comes and goes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use retake_matrix::random::Random;
use serde_json::Value;

use super::{TemporaryDirectory, text};
use crate::bench::median;
use crate::page::Page;

const RATIOS: [f64; 3] = [1.00, 1.02, 1.10];
/// The work of the first command: some milliseconds.
const WORK: u64 = 6_000;
/// How long both tools are measured for each row, unless the environment says otherwise.
const ROW: Duration = Duration::from_secs(75);
const MOST_TRIALS: usize = 60;
/// What retake is asked to decide, and how long it may take.
const MARGIN: &str = "1%";
const BUDGET: &str = "3s";

/// What came of the trials of one tool.
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

/// The largest rate that leaves 5 % for so few of so many: the bound of Clopper and Pearson, from one
/// side.
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

/// Work that takes a time in proportion to its size and nothing else.
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

/// A process that is ended with its owner.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
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

/// The verdict that one reads from hyperfine's numbers: intervals of mean ± 1.96 standard errors that
/// do not overlap.
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

pub(super) fn run(page: &mut Page) -> Result<(), String> {
    page.section(
        "Verdicts about a known ratio",
        &format!(
            "Two commands do work of a known ratio, some milliseconds of arithmetic. `retake matrix try \
             --until-sure {MARGIN} --budget {BUDGET}` decides how often it runs them; hyperfine then runs each as \
             often, one command after the other. Its verdict is `faster` or `slower` where the intervals of mean ± \
             1.96 standard errors do not overlap; it has no word for `same`. Right is `same` for 1.00 and `slower` \
             for the others. Beside the number of wrong verdicts stands the largest rate that such a number leaves \
             possible (95 %, one side). The neighbour uses all CPUs for 50 to 550 ms and pauses as long, in turn.",
        ),
    );
    let seconds = std::env::var("RETAKE_BENCH_ROW_SECONDS").ok().and_then(|s| s.parse().ok());
    let row_time = seconds.map_or(ROW, Duration::from_secs_f64);
    let own = std::env::current_exe().map_err(text)?;
    let retake = own.with_file_name("retake");
    let directory = TemporaryDirectory::new("verdicts")?;
    let has_hyperfine = Command::new("hyperfine").arg("--version").output().is_ok();
    let mut all = vec![("retake", Tally::default())];
    all.extend(has_hyperfine.then(|| ("hyperfine", Tally::default())));
    let mut rows = Vec::new();
    for condition in ["quiet", "noisy neighbour"] {
        for ratio in RATIOS {
            eprintln!("verdicts: {condition}, {ratio:.2}");
            let _neighbour = match condition {
                "quiet" => None,
                _ => Some(Ended(
                    Command::new(&own)
                        .args(["spin", "matrix", "neighbour", "1"])
                        .spawn()
                        .map_err(text)?,
                )),
            };
            let command = |size: f64| format!("{} spin matrix work {size:.0}", own.display());
            let commands = [command(WORK as f64), command(WORK as f64 * ratio)];
            let (mut ours, mut theirs) = (Tally::default(), Tally::default());
            let start = Instant::now();
            for trial in 0..MOST_TRIALS {
                if start.elapsed() > row_time && trial > 0 {
                    break;
                }
                let store = directory.path.join(format!("{}-{trial}", rows.len()));
                let (verdict, runs) = by_retake(&retake, &store, &commands)?;
                ours.add(ratio, verdict, runs as f64);
                if has_hyperfine {
                    let verdict = by_hyperfine(&directory.path, &commands, runs)?;
                    theirs.add(ratio, verdict, runs as f64);
                }
            }
            for ((tool, all), tally) in all.iter_mut().zip([ours, theirs]) {
                rows.push(tally.row(condition, &format!("{ratio:.2}"), tool));
                all.add_all(&tally);
            }
        }
    }
    rows.extend(all.iter().map(|(tool, tally)| tally.row("all", "", tool)));
    let head = ["machine", "ratio", "", "trials", "right", "no verdict", "wrong", "runs of each"];
    page.table(&head, &rows);
    Ok(())
}
