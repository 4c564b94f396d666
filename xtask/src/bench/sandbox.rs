//! The cost of confinement: the first command of a worker, further ones, and reports of denials,
//! compared with the same worker without it and with the usual sandboxes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::notice;
use retake_runner::prepare::PreparedRun;
use retake_runner::project::Project;
use retake_runner::worker::Worker;
use retake_types::request::{CommandRequest, LoopPosition, RunRequest};
use retake_types::{SandboxLevel, SandboxMode};

use super::exec::{scratch, timed};
use super::median;
use crate::page::Page;
use crate::test::{install_packages, npm_program};

/// The sandbox of Claude Code.
const SRT: &str = "@anthropic-ai/sandbox-runtime@0.0.78";
/// The other programs, and their Debian packages.
const PEERS: [(&str, &str); 4] =
    [("bwrap", "bubblewrap"), ("socat", "socat"), ("rg", "ripgrep"), ("npm", "npm")];
const ROUNDS: usize = 15;
/// Number of commands of one worker.
const COMMANDS: usize = 100;
/// Number of files that one command opens for writing.
const WRITES: usize = 5000;
/// Disables namespaces from here on, as in many containers.
const WITHOUT_NAMESPACES: &str = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";

/// How the commands of a worker are confined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Off,
    Full,
    Landlock,
}

impl Variant {
    const ALL: [Self; 3] = [Self::Off, Self::Full, Self::Landlock];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Full => "full",
            Self::Landlock => "landlock",
        }
    }
}

/// Microseconds of a worker's first command, of a further one, and of one that opens many files.
#[derive(Clone, Copy)]
struct Cost {
    first: f64,
    further: f64,
    writes: f64,
}

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "sandbox: the cost of confinement",
        "`cargo xtask bench sandbox` writes this page. Every figure is the median of interleaved rounds of one run; \
         compare ratios, not times.",
    );
    let directory = scratch()?.join("sandbox");
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let peers = peers(&directory)?;
    let mut costs = [const { Vec::new() }; Variant::ALL.len()];
    let mut walls = vec![Vec::new(); peers.len()];
    for round in 0..ROUNDS {
        eprint!("\rsandbox: round {} of {ROUNDS}", round + 1);
        for (costs, variant) in costs.iter_mut().zip(Variant::ALL) {
            costs.push(measured(variant, &directory)?);
        }
        for (walls, (_, words)) in walls.iter_mut().zip(&peers) {
            // A peer that does not work here has no figures; the page says why.
            walls.extend(timed(words).ok().map(|(wall, _, _)| wall));
        }
    }
    eprintln!();
    levels(&mut page, &costs);
    others(&mut page, &costs, &peers, &walls);
    page.write("sandbox.md")
}

fn middle(costs: &[Cost], of: fn(&Cost) -> f64) -> f64 {
    median(&costs.iter().map(of).collect::<Vec<_>>())
}

fn levels(page: &mut Page, costs: &[Vec<Cost>; Variant::ALL.len()]) {
    page.section(
        "/bin/true on a worker, request to result, not recorded",
        "The first command makes the namespaces, mounts and rules; each further one inherits them. The \
         last column is the additional cost of opening a file for writing, which is checked for \
         the report of denials.",
    );
    let [off, full, landlock] = costs;
    let rows =
        [("no sandbox", off), ("full", full), ("Landlock", landlock)].map(|(name, costs)| {
            let (first, further) = (middle(costs, |c| c.first), middle(costs, |c| c.further));
            let per_write =
                (middle(costs, |c| c.writes) - middle(off, |c| c.writes)) / WRITES as f64;
            vec![
                name.to_owned(),
                format!("{first:.0}"),
                format!("{:.0}", first - middle(off, |c| c.first)),
                format!("{further:.0}"),
                format!("{:.3}", further / middle(off, |c| c.further)),
                format!("{per_write:.1}"),
            ]
        });
    page.table(
        &["", "first µs", "over none", "further µs", "ratio", "µs per opening for writing"],
        &rows,
    );
}

fn others(
    page: &mut Page,
    costs: &[Vec<Cost>; Variant::ALL.len()],
    peers: &[(&'static str, Vec<String>)],
    walls: &[Vec<f64>],
) {
    page.section(
        "Other sandboxes, a whole command",
        "Each starts its own program for every command. `retake` is a further command of a worker.",
    );
    let further = middle(&costs[1], |c| c.further);
    let mut rows =
        vec![vec!["retake, full".to_owned(), format!("{further:.0}"), "1.00".to_owned()]];
    for ((name, words), walls) in peers.iter().zip(walls) {
        rows.push(match walls.is_empty() {
            true => vec![(*name).to_owned(), why_not(words), String::new()],
            false => {
                let wall = median(walls);
                vec![(*name).to_owned(), format!("{wall:.0}"), format!("{:.2}", wall / further)]
            }
        });
    }
    page.table(&["", "wall µs", "ratio"], &rows);
}

/// The last message of a program that fails.
fn why_not(words: &[String]) -> String {
    let reason = match Command::new(&words[0]).args(&words[1..]).output() {
        Err(error) => error.to_string(),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = text.lines().rfind(|line| !line.trim().is_empty());
            last.map_or_else(|| output.status.to_string(), |line| line.trim().to_owned())
        }
    };
    format!("does not run here: {}", reason.replace('|', "\\|"))
}

fn peers(directory: &Path) -> Result<Vec<(&'static str, Vec<String>)>, String> {
    install_packages(&PEERS)?;
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let here = directory.display();
    let srt = npm_program(&[SRT], "node_modules/.bin/srt", "SRT")?.display().to_string();
    Ok(vec![
        ("/bin/true alone", words("/bin/true")),
        (
            "bwrap, read-only root and one directory",
            words(&format!("bwrap --ro-bind / / --bind {here} {here} /bin/true")),
        ),
        (
            "bwrap, all namespaces",
            words(&format!(
                "bwrap --ro-bind / / --bind {here} {here} --tmpfs /tmp --dev /dev --proc /proc --unshare-all /bin/true"
            )),
        ),
        ("srt -c true", vec![srt, "-c".to_owned(), "true".to_owned()]),
    ])
}

/// Measures in a separate process.
fn measured(variant: Variant, directory: &Path) -> Result<Cost, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = match variant {
        Variant::Landlock => {
            let mut command = Command::new("unshare");
            command.args(["-Ur", "sh", "-c", WITHOUT_NAMESPACES, "sh"]).arg(own);
            command
        }
        Variant::Off | Variant::Full => Command::new(own),
    };
    command.args(["spin", "sandbox", variant.name()]).arg(directory);
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match numbers[..] {
        [first, further, writes] => Ok(Cost { first, further, writes }),
        _ => Err(format!("{}: {}", variant.name(), String::from_utf8_lossy(&output.stderr))),
    }
}

/// Runs commands on one worker and prints their durations.
pub(crate) fn spin(batch: &[&str]) -> Result<(), String> {
    let &[name, directory] = batch else { return Err("spin sandbox VARIANT DIRECTORY".into()) };
    let variant = Variant::ALL.into_iter().find(|variant| variant.name() == name);
    let variant = variant.ok_or("VARIANT is off, full or landlock")?;
    let directory = PathBuf::from(directory);
    let mut config = Config::load(None).map_err(|error| error.to_string())?;
    config.execution.audit.enabled = false;
    let project = Project::with_store(Some(directory.clone()), directory.join("store"));
    let context = RunContext::new(&project, &config, notice::ignore(), |_, _| {});
    let mut worker = Worker::independent(&context).map_err(|error| error.to_string())?;
    let first = one(variant, &["/bin/true"], &directory, &context, &mut worker)?;
    let mut further = Vec::with_capacity(COMMANDS);
    for _ in 0..COMMANDS {
        further.push(one(variant, &["/bin/true"], &directory, &context, &mut worker)?);
    }
    let script = format!("i=0; while [ $i -lt {WRITES} ]; do : > file; i=$((i+1)); done");
    let words = ["/bin/sh", "-c", &script];
    let writes: Result<Vec<f64>, String> =
        (0..5).map(|_| one(variant, &words, &directory, &context, &mut worker)).collect();
    println!("{first} {} {}", median(&further), median(&writes?));
    Ok(())
}

fn one(
    variant: Variant,
    words: &[&str],
    directory: &Path,
    context: &Arc<RunContext>,
    worker: &mut Worker,
) -> Result<f64, String> {
    let start = Instant::now();
    let command = CommandRequest::arguments("x", words.iter().copied());
    let mut request = RunRequest::new(LoopPosition::exec(), command, directory);
    request.sandbox.mode = match variant {
        Variant::Off => SandboxMode::Off,
        Variant::Full => SandboxMode::Strict,
        Variant::Landlock => SandboxMode::BestEffort,
    };
    let prepared = PreparedRun::new(request, context).map_err(|refused| refused.listed())?;
    let finished = worker.run_unrecorded(prepared);
    let took = start.elapsed().as_secs_f64() * 1e6;
    if !finished.outcome.success() {
        return Err(format!("{:?}", finished.outcome));
    }
    let outcome = finished.run.outcome.as_ref();
    let level = outcome.and_then(|outcome| outcome.sandbox.as_ref()).map(|report| report.level);
    let expected = match variant {
        Variant::Off => None,
        Variant::Full => Some(SandboxLevel::Full),
        Variant::Landlock => Some(SandboxLevel::Landlock),
    };
    if level != expected {
        return Err(format!("{}: confined as {level:?}", variant.name()));
    }
    Ok(took)
}
