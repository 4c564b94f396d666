//! `retake matrix export` and `import`: results in chrome-ranger's format.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};

use retake_matrix::config::{CHROME, CODE, COMMAND, CommandConfig};
use retake_matrix::driver::{MatrixProject, Resources};
use retake_matrix::exchange::{self, Export as Written, Imported, RunLine};
use retake_matrix::plan::{Cell, Durations, FilterError, Matrix};
use retake_runner::{prepare, regular_file};
use retake_store::redact::Redactor;
use retake_store::{Error, Store};
use retake_types::loop_record::matrix::{CellKey, CellLabels, CellRole};
use retake_types::request::LoopPosition;
use retake_types::{
    Better, Intent, Kind, LoopId, Measurements, Metric, Outcome, Redacted, Redactions, RunId,
    RunOutcome, Stream,
};
use serde::Serialize;

use super::open::{self, Common, Filters, IfMissing, View};
use super::redacted_output::RedactedOutput;
use crate::{Exit, Failure, term};

/// The file for `--durations`.
const DURATIONS: &str = "durations.json";

/// Write the results in chrome-ranger's format: DIR/runs.jsonl and DIR/output/
///
/// Also writes DIR/durations.json, with which `matrix run --shard --durations` makes shards that
/// take about the same time.
#[derive(clap::Args)]
pub(super) struct Export {
    /// Destination; existing data is appended to
    directory: PathBuf,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
}

/// Import results of chrome-ranger: the directory with runs.jsonl, such as .chrome-ranger
///
/// They count as results of the configured command, for the browser version and commit they name.
#[derive(clap::Args)]
pub(super) struct Import {
    /// The directory that holds runs.jsonl
    directory: PathBuf,
    /// The value of an axis that the imported runs do not name
    #[arg(long, value_name = "NAME=VALUE")]
    axis: Vec<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Serialize)]
struct Exported {
    runs: usize,
}

#[derive(Serialize)]
struct Imports {
    imported: usize,
    known: usize,
    notes: Vec<String>,
}

fn failed(error: &exchange::ExchangeError) -> Failure {
    Failure::Refused(error.to_string())
}

pub(super) fn export(args: &Export, store: Option<&Path>) -> Result<Exit, Failure> {
    let view = View::open(&args.common, &args.filters, store)?;
    let mut written = Written::create(&args.directory).map_err(|error| failed(&error))?;
    let known: std::collections::HashSet<String> = exchange::read(&args.directory)
        .map(|(runs, _)| runs.into_iter().map(|run| run.line.id).collect())
        .unwrap_or_default();
    let mut keys = view.keys.clone();
    keys.sort_unstable();
    keys.dedup();
    let mut rows: Vec<_> = keys.iter().flat_map(|key| view.recorded.of(*key)).collect();
    rows.sort_by_key(|row| row.started);
    let mut runs = 0;
    if let Some(store) = &view.store {
        for row in rows.into_iter().filter(|row| !known.contains(&row.id.to_string())) {
            let line = RunLine {
                id: row.id.to_string(),
                chrome: row.chrome.clone().unwrap_or_default(),
                reference: row.reference.clone().unwrap_or_default(),
                sha: row.sha.clone().unwrap_or_default(),
                axes: row.axes.clone(),
                metrics: row.metrics.clone(),
                iteration: row.iteration,
                timestamp: row.started,
                duration_ms: row.duration_ms,
                exit_code: row.exit_code,
            };
            let mut stdout = store.read_output(row.id, Stream::Stdout)?;
            let mut stderr = store.read_output(row.id, Stream::Stderr)?;
            written.add(&line, &mut stdout, &mut stderr).map_err(|error| failed(&error))?;
            runs += 1;
        }
    }
    written.finish().map_err(|error| failed(&error))?;
    write_durations(&view, &args.directory)?;
    if args.common.json {
        term::document(&Exported { runs })?;
    } else {
        let count = term::count(runs as u64, "run");
        term::say(&format!("wrote {count} to {}", args.directory.display()));
    }
    Ok(Exit::OK)
}

/// The mean duration of the successful iterations of each cell, for `matrix run --shard`.
fn write_durations(view: &View, directory: &Path) -> Result<(), Failure> {
    let (mut durations, shown) = (Durations::default(), RedactedOutput::of(&view.project));
    for (cell, key) in view.matrix.cells.iter().zip(&view.keys) {
        let ok = view.recorded.of(*key).iter().filter(|row| row.ok);
        let times: Vec<f64> = ok.map(|row| row.duration_ms as f64).collect();
        if !times.is_empty() {
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            durations.cells_ms.insert(shown.text(&view.matrix.name(cell)), mean.max(1.0));
        }
    }
    let text = serde_json::to_string_pretty(&durations).expect("plain data") + "\n";
    super::export_files::write(&directory.join(DURATIONS), text.as_bytes())
}

pub(super) fn import(args: &Import, store: Option<&Path>) -> Result<Exit, Failure> {
    let (project, _) =
        open::project(&args.common, store, IfMissing::Create { quiet: args.common.json })?;
    let (runs, mut notes) = exchange::read(&args.directory).map_err(|error| failed(&error))?;
    let mut matrix = Matrix::of(&project.config);
    let mut worker = open::workers(&project, 1)?.remove(0);
    // Only the keys of cells are needed; no cell is looked up.
    matrix.cells.clear();
    let mut resources = Resources::resolve(&mut worker, &project, &mut matrix, BTreeMap::new())
        .map_err(|error| Failure::Refused(error.to_string()))?;
    let versions = project.config.chrome.as_ref().map(|chrome| chrome.versions.clone());
    resources.identify_programs(&mut worker, &project, &versions.unwrap_or_default());
    drop(worker.end());
    let mut store = project.context.project.open_store(&project.context.notify)?;
    let redactor = project.redactor();
    let (mut imported, mut known) = (0, 0);
    let given = open::assignments(&args.axis)?;
    let axes: Vec<String> = project.config.all_axes().into_iter().map(|axis| axis.name).collect();
    if let Some((name, _)) = given.iter().find(|(name, _)| !axes.contains(name)) {
        let error = FilterError::Axis { name: name.clone(), known: axes };
        return Err(Failure::Usage(error.to_string()));
    }
    let mut cells = Vec::new();
    for run in runs {
        match cell(&project, &resources, &run.line, &given) {
            Ok((key, axes)) => cells.push(RunToImport { run, key, axes }),
            Err(why) => notes.push(format!("{}: {why}", run.line.id)),
        }
    }
    // The best guess at the plan: as many iterations as there are of a cell.
    let mut sizes: HashMap<CellKey, u64> = HashMap::new();
    for taking in &cells {
        let size = sizes.entry(taking.key).or_default();
        *size = (*size).max(taking.run.line.iteration + 1);
    }
    for taking in &cells {
        match import_run(&mut store, &project, &redactor, taking, sizes[&taking.key]) {
            Ok(true) => imported += 1,
            Ok(false) => known += 1,
            Err(why) => notes.push(format!("{}: {why}", taking.run.line.id)),
        }
    }
    for note in &notes {
        term::say(note);
    }
    if args.common.json {
        term::document(&Imports { imported, known, notes })?;
    } else {
        term::say(&format!(
            "imported {}; {known} already recorded",
            term::count(imported as u64, "run")
        ));
    }
    Ok(Exit::OK)
}

/// A run to import, and the cell it belongs to.
struct RunToImport {
    run: Imported,
    key: CellKey,
    /// Its value of every axis, as displayed.
    axes: BTreeMap<String, String>,
}

/// The cell of a run. Axes that the run does not name are given, or have only one value.
fn cell(
    project: &MatrixProject,
    resources: &Resources,
    line: &RunLine,
    given: &[(String, String)],
) -> Result<(CellKey, BTreeMap<String, String>), String> {
    let mut axes = project.config.all_axes();
    let mut shown = BTreeMap::new();
    for axis in &mut axes {
        let name = axis.name.as_str();
        let said = line.axes.get(name);
        let said = said.or_else(|| Some(&given.iter().find(|(given, _)| given == name)?.1));
        let value = match (name, said, &axis.values[..]) {
            (CHROME, ..) => &line.chrome,
            // The commit selects the cell, the ref is displayed.
            (CODE, ..) => &line.sha,
            (_, Some(said), _) => said,
            (_, None, [only]) => only,
            (name, None, _) => {
                return Err(format!("its value of {name} is unknown; give it as --axis {name}=…"));
            }
        };
        let value = value.clone();
        let label = if name == CODE { line.reference.clone() } else { value.clone() };
        shown.insert(name.to_owned(), label);
        axis.values = vec![value];
    }
    let cells = vec![Cell(vec![0; axes.len()].into())];
    let matrix = Matrix { axes, cells, commands: Vec::new(), fills_values: false };
    let keys = resources.identity.keys(&matrix);
    keys.first().map(|key| (*key, shown)).ok_or_else(|| "it has no cell".to_owned())
}

/// The intent that the run would have here.
fn intent(
    project: &MatrixProject,
    redactor: &Redactor,
    RunToImport { run, key, axes }: &RunToImport,
) -> Result<Redacted<Intent>, String> {
    let line = &run.line;
    let id: RunId = line.id.parse().map_err(|_| "its id is not a UUID".to_owned())?;
    let position =
        LoopPosition { kind: Kind::Matrix, id: LoopId::new(), iteration: line.iteration };
    let command = match &project.config.command {
        CommandConfig::One(text) => text.clone(),
        CommandConfig::Several(_) => axes.get(COMMAND).cloned().unwrap_or_default(),
    };
    let mut request = project.request(&command, &project.directory(), position);
    request.id = id;
    request.environment.unset.clear();
    let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let labels = CellLabels {
        axes: axes.iter().filter_map(|(name, value)| Some((name.clone(), known(value)?))).collect(),
        chrome: known(&line.chrome),
        sha: known(&line.sha),
        imported: Some("chrome-ranger".to_owned()),
        ..CellLabels::new(CellRole::Iteration(*key))
    };
    labels.write_to(&mut request.labels);
    request.correlation_ids.repo_sha = labels.sha;
    let mut intent = prepare::bare_intent(request);
    intent.start_time = line.timestamp;
    intent.parent_id = None;
    Ok(Redacted::new(intent, &mut redactor.clone()))
}

/// Records one run unchanged; `false` if it is recorded already.
fn import_run(
    store: &mut Store,
    project: &MatrixProject,
    redactor: &Redactor,
    to_import: &RunToImport,
    planned: u64,
) -> Result<bool, String> {
    let intent = intent(project, redactor, to_import)?;
    let run = &to_import.run;
    let line = &run.line;
    let mut recording = match store.begin(&intent) {
        Ok(recording) => recording,
        Err(Error::Duplicate { .. }) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let mut redactions = Redactions::default();
    for (stream, path) in [(Stream::Stdout, &run.stdout), (Stream::Stderr, &run.stderr)] {
        let Some(path) = path else { continue };
        let mut clean = redactor.stream();
        let mut file = regular_file::open(path).map_err(|error| error.to_string())?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            match file.read(&mut buffer).map_err(|error| error.to_string())? {
                0 => break,
                read => {
                    clean.push(&buffer[..read], &mut |bytes| recording.append(stream, bytes));
                }
            }
        }
        clean.finish(&mut |bytes| recording.append(stream, bytes));
        redactions.add_all(&clean.redactions());
    }
    let took = std::time::Duration::from_millis(line.duration_ms);
    let ended = line.timestamp.checked_add(took).unwrap_or(line.timestamp);
    // chrome-ranger records only the wall time.
    let wall = Metric {
        value: line.duration_ms as f64,
        unit: Some("ms".into()),
        better: Some(Better::Lower),
    };
    let mut metrics = line.metrics.clone();
    metrics.entry("wall".into()).or_insert(wall);
    let measured = Measurements { metrics, planned: Some(planned), ..Measurements::default() };
    let outcome = RunOutcome {
        duration_ms: line.duration_ms.max(1),
        stdout_raw_bytes: size(run.stdout.as_deref()),
        stderr_raw_bytes: size(run.stderr.as_deref()),
        effects: Some(measured.into()),
        ..RunOutcome::bare(&Outcome::Exited(line.exit_code), ended)
    };
    let mut outcome = Redacted::new(outcome, &mut redactor.clone());
    outcome.set_redactions(redactions);
    recording.finish(store, outcome).map(|_| true).map_err(|error| error.to_string())
}

fn size(path: Option<&Path>) -> u64 {
    path.and_then(|path| path.metadata().ok()).map_or(0, |meta| meta.len())
}
