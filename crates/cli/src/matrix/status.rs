//! `retake matrix status`: the progress of every cell.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use retake_matrix::config::{CHROME, CODE};
use retake_matrix::driver::PhaseFailure;
use retake_matrix::report::{PhaseRow, Status, StatusCell, compact, grid};
use retake_store::Store;
use retake_types::loop_record::matrix::{CellKey, CellRole};
use retake_types::{RunId, Stream};

use super::events;
use super::export_files::{Answer, Exports, Lines};
use super::open::{Common, Filters, View};
use super::redacted_output::RedactedOutput;
use crate::{Exit, Failure, term};

/// Show the progress of every cell: successful and requested iterations
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
    /// One character for each cell
    #[arg(long, conflicts_with = "json")]
    compact: bool,
    /// Show failures, the end of their output, and how to run them again
    #[arg(long, conflicts_with = "json")]
    failures: bool,
    #[command(flatten)]
    exports: Exports,
}

/// The margin of the changes in exported tables.
const MARGIN: f64 = 0.02;

pub(super) fn cells(view: &View) -> Vec<StatusCell> {
    let View { matrix, resources, keys, recorded, project, .. } = view;
    let one = |(cell, key): (&retake_matrix::plan::Cell, &_)| {
        let axes: BTreeMap<String, String> = (0..matrix.axes.len())
            .map(|axis| (matrix.axes[axis].name.clone(), matrix.value(cell, axis).to_owned()))
            .collect();
        let sha = axes.get(CODE).and_then(|reference| resources.commits.get(reference)).cloned();
        let runs = recorded.of(*key).iter().map(|row| row.to_run_row()).collect();
        StatusCell::new(axes, sha, project.config.iterations, runs)
    };
    matrix.cells.iter().zip(keys).map(one).collect()
}

pub(super) fn status(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let files = args.exports.files(args.common.json)?;
    let view = View::open(&args.common, &args.filters, store)?;
    let last = view.last_run();
    let order = last.map_or_else(
        || view.project.config.order.as_str().to_owned(),
        |planned| planned.order.clone(),
    );
    let document = Status {
        cells: cells(&view),
        seed: last.map(|planned| planned.seed),
        order,
        unavailable: view.resources.unavailable.iter().map(ToString::to_string).collect(),
        phase_failures: phase_failures(&view)?,
    };
    let shown = RedactedOutput::of(&view.project);
    if !files.is_empty() {
        let metrics = [view.results(&view.samples("wall")?, MARGIN)];
        let answer = Answer { document: &document, metrics: &metrics, lines: Lines::Cells };
        files.write(&answer, &shown)?;
    }
    if args.common.json {
        shown.document(&document)?;
        return Ok(Exit::OK);
    }
    if files.has_stdout() {
        return Ok(Exit::OK);
    }
    let cells = document.cells;
    let draw = if args.compact { compact } else { grid };
    shown.lines(&draw(&view.matrix.axes, &cells))?;
    for (sha, refs) in view.resources.same_commits() {
        term::say(&events::same_commit(&sha, &refs));
    }
    if args.failures {
        failures(&view, &cells, &shown)?;
    }
    Ok(Exit::OK)
}

/// How many lines of a cell's last failure are shown.
const LINES: usize = 10;
const BYTES: u64 = 4096;

fn failures(view: &View, cells: &[StatusCell], shown: &RedactedOutput) -> Result<(), Failure> {
    let mut text = String::new();
    for PhaseRow { phase, name, id, exit_code } in phase_failures(view)? {
        text += &format!("\n{name}\n  {phase}  exit:{exit_code}  retake runs logs {id}\n");
        for line in last_lines(view, &id)? {
            text += &format!("    {line}\n");
        }
    }
    for (place, cell) in cells.iter().enumerate().filter(|(_, cell)| cell.failed > 0) {
        // A failed iteration that succeeded later does not count as failed.
        let succeeded: HashSet<u64> =
            cell.runs.iter().filter(|run| run.ok).map(|run| run.iteration).collect();
        let failed = cell.runs.iter().filter(|run| !succeeded.contains(&run.iteration));
        text += &format!("\n{}\n", view.name(place));
        for run in failed.clone() {
            let (number, code, id) = (run.iteration, run.exit_code, &run.id);
            let missing = match &run.missing[..] {
                [] => String::new(),
                names => format!("  no number for {}", names.join(", ")),
            };
            let ended = match run.timed_out {
                true => "timed out".to_owned(),
                false => format!("exit:{code}"),
            };
            text += &format!("  #{number}  {ended}{missing}  retake runs logs {id}\n");
        }
        if let Some(run) = failed.max_by_key(|run| run.timestamp) {
            for line in last_lines(view, &run.id)? {
                text += &format!("    {line}\n");
            }
        }
        text += &format!("  again: {}\n", retry(view, cell));
    }
    shown.lines(&text)
}

/// Failures of the last run besides iterations.
fn phase_failures(view: &View) -> Result<Vec<PhaseRow>, Failure> {
    let last = view.loops.iter().find(|(_, plan)| plan.purpose.is_run());
    let (Some(store), Some((last, _))) = (&view.store, last) else { return Ok(Vec::new()) };
    let mut places: HashMap<CellKey, usize> = HashMap::with_capacity(view.keys.len());
    for (place, key) in view.keys.iter().enumerate() {
        places.entry(*key).or_insert(place);
    }
    let name = |key: &CellKey| places.get(key).map(|place| view.name(*place));
    let row = |PhaseFailure { role, id, exit_code }: PhaseFailure| {
        let (phase, name) = match &role {
            CellRole::Setup(name) => ("setup", name.clone()),
            // Skip cells that the filters leave out, or that belong to another configuration.
            CellRole::Warmup(key) => ("warmup", name(key)?),
            CellRole::Hook(hook, key) => (hook.as_str(), name(key)?),
            CellRole::Iteration(_) => return None,
        };
        Some(PhaseRow { phase, name, id: id.to_string(), exit_code })
    };
    Ok(PhaseFailure::of_loop(store, last.id)?.into_iter().filter_map(row).collect())
}

/// The last lines of a run's stderr, or of its stdout if stderr is empty.
fn last_lines(view: &View, id: &str) -> Result<Vec<String>, Failure> {
    let (Some(store), Ok(id)) = (&view.store, id.parse::<RunId>()) else { return Ok(Vec::new()) };
    last_lines_of(store, id)
}

/// The last line of a failed run, if it wrote any.
pub(super) fn last_line(store: &Store, id: RunId) -> Option<String> {
    // Only an illustration of the message: the run is named beside it.
    let lines = last_lines_of(store, id).ok()?;
    lines.into_iter().rev().map(|line| line.trim().to_owned()).find(|line| !line.is_empty())
}

fn last_lines_of(store: &Store, id: RunId) -> Result<Vec<String>, Failure> {
    for stream in [Stream::Stderr, Stream::Stdout] {
        let mut bytes = Vec::new();
        let mut output = store.read_output(id, stream)?;
        let length = output.seek(SeekFrom::End(0));
        length
            .and_then(|length| output.seek(SeekFrom::Start(length.saturating_sub(BYTES))))
            .and_then(|_| output.take(BYTES).read_to_end(&mut bytes))
            .map_err(|error| Failure::from(retake_store::Error::reading(id, error)))?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        if !lines.is_empty() {
            let from = lines.len().saturating_sub(LINES);
            return Ok(lines[from..].iter().map(|line| (*line).to_owned()).collect());
        }
    }
    Ok(Vec::new())
}

/// The command that runs the failed iterations of a cell again.
fn retry(view: &View, cell: &StatusCell) -> String {
    let mut words = vec!["retake matrix run".to_owned()];
    for axis in &view.matrix.axes {
        let value = cell.axes.get(&axis.name).map_or("", String::as_str);
        words.push(match axis.name.as_str() {
            CHROME => format!("--chrome {}", quoted(value)),
            CODE => format!("--refs {}", quoted(value)),
            name => format!("--axis {}", quoted(&format!("{name}={value}"))),
        });
    }
    words.join(" ")
}

/// Quoted for a shell, if necessary.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@,+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
