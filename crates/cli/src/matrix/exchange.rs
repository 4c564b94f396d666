//! `retake matrix export` and `import`: results in chrome-ranger's own layout.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use retake_matrix::config::{CHROME as CHROME_AXIS, CODE as CODE_AXIS};
use retake_matrix::exchange::{self, Export as Written, Imported, RunLine};
use retake_matrix::plan::{Cell, CellKey, FilterError, Matrix};
use retake_store::redact::Redactor;
use retake_store::{Error, Store};
use retake_types::{Better, Ending, Kind, Measurements, Metric, Outcome, RunId, Stream};
use serde::Serialize;

use super::open::{self, Common, Filters, Project, View};
use crate::Exit;
use crate::Failure;
use crate::term;
use retake_matrix::driver::history::AXIS;
use retake_matrix::driver::history::CHROME;
use retake_matrix::driver::history::KEY;
use retake_matrix::driver::history::PLANNED;
use retake_matrix::driver::history::SHA;
use retake_matrix::driver::setting::Setting;
use retake_matrix::driver::supply::Supply;
use retake_runner::prepare;

/// Write the results as chrome-ranger would: DIR/runs.jsonl and DIR/output/
#[derive(clap::Args)]
pub(super) struct Export {
    /// Where to; what is there is added to
    directory: PathBuf,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
}

/// Take over results of chrome-ranger: the directory with runs.jsonl, such as .chrome-ranger
///
/// They count as results of the configured command, for their version and commit.
#[derive(clap::Args)]
pub(super) struct Import {
    /// The directory that holds runs.jsonl
    directory: PathBuf,
    /// The value of an axis that the runs do not know
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
struct Taken {
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
    let mut rows: Vec<_> = keys.iter().flat_map(|key| view.history.of(*key)).collect();
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
    if args.common.json {
        term::document(&Exported { runs })?;
    } else {
        let count = term::count(runs as u64, "run");
        term::say(&format!("wrote {count} to {}", args.directory.display()));
    }
    Ok(Exit::OK)
}

pub(super) fn import(args: &Import, store: Option<&Path>) -> Result<Exit, Failure> {
    let setting = open::setting(&args.common, store, Project::Make)?;
    let (runs, mut notes) = exchange::read(&args.directory).map_err(|error| failed(&error))?;
    let mut matrix = Matrix::of(&setting.matrix);
    let mut slot = open::slots(&setting, 1)?.remove(0);
    // Only to know the key of a cell; nothing is looked up.
    matrix.cells.clear();
    let mut supply = Supply::resolve(&mut slot, &setting, &mut matrix, Default::default())
        .map_err(|error| open::git_failure(&error))?;
    let versions = setting.matrix.chrome.as_ref().map(|chrome| chrome.versions.clone());
    supply.know_programs(&mut slot, &setting, &versions.unwrap_or_default());
    drop(slot.end());
    let mut store = Store::open(&setting.place.store)?;
    let redactor = setting.redactor();
    let (mut imported, mut known) = (0, 0);
    let given = open::assignments(&args.axis)?;
    let axes: Vec<String> = setting.matrix.all_axes().into_iter().map(|axis| axis.name).collect();
    if let Some((name, _)) = given.iter().find(|(name, _)| !axes.contains(name)) {
        let error = FilterError::Axis { name: name.clone(), known: axes };
        return Err(Failure::Usage(error.to_string()));
    }
    let mut cells = Vec::new();
    for run in runs {
        match cell(&setting, &supply, &run.line, &given) {
            Ok((key, axes)) => cells.push(Taking { run, key, axes }),
            Err(why) => notes.push(format!("{}: {why}", run.line.id)),
        }
    }
    // As many as there are of a cell were planned, as far as anyone can tell.
    let mut sizes: HashMap<CellKey, u64> = HashMap::new();
    for taking in &cells {
        let size = sizes.entry(taking.key).or_default();
        *size = (*size).max(taking.run.line.iteration + 1);
    }
    for taking in &cells {
        match take(&mut store, &setting, &redactor, taking, sizes[&taking.key]) {
            Ok(true) => imported += 1,
            Ok(false) => known += 1,
            Err(why) => notes.push(format!("{}: {why}", taking.run.line.id)),
        }
    }
    for note in &notes {
        term::say(note);
    }
    if args.common.json {
        term::document(&Taken { imported, known, notes })?;
    } else {
        term::say(&format!(
            "took over {}; {known} were here already",
            term::count(imported as u64, "run")
        ));
    }
    Ok(Exit::OK)
}

/// A run to take over, and where it belongs.
struct Taking {
    run: Imported,
    key: CellKey,
    /// Its value of every axis, as it is shown.
    axes: BTreeMap<String, String>,
}

/// The cell of a run. Axes that it does not know are given, or have one value only.
fn cell(
    setting: &Setting,
    supply: &Supply,
    line: &RunLine,
    given: &[(String, String)],
) -> Result<(CellKey, BTreeMap<String, String>), String> {
    let mut axes = setting.matrix.all_axes();
    let mut shown = BTreeMap::new();
    for axis in &mut axes {
        let name = axis.name.as_str();
        let said = line.axes.get(name);
        let said = said.or_else(|| Some(&given.iter().find(|(given, _)| given == name)?.1));
        let value = match (name, said, &axis.values[..]) {
            (CHROME_AXIS, ..) => &line.chrome,
            // Its commit is what counts, and its ref is what is shown.
            (CODE_AXIS, ..) => &line.sha,
            (_, Some(said), _) => said,
            (_, None, [only]) => only,
            (name, None, _) => {
                return Err(format!("its value of {name} is unknown; give it as --axis {name}=…"));
            }
        };
        let value = value.clone();
        let label = if name == CODE_AXIS { line.reference.clone() } else { value.clone() };
        shown.insert(name.to_owned(), label);
        axis.values = vec![value];
    }
    let cells = vec![Cell(vec![0; axes.len()].into())];
    let keys = supply.identity.keys(&Matrix { axes, cells });
    keys.first().map(|key| (*key, shown)).ok_or_else(|| "it has no cell".to_owned())
}

/// Records one run as it was; `false` if it is known.
fn take(
    store: &mut Store,
    setting: &Setting,
    redactor: &Redactor,
    taking: &Taking,
    planned: u64,
) -> Result<bool, String> {
    let Taking { run, key, axes } = taking;
    let line = &run.line;
    let id: RunId = line.id.parse().map_err(|_| "its id is no UUID".to_owned())?;
    let home = setting.home();
    let (command, _) = redactor.redact_str(&setting.matrix.command);
    let mut intent = prepare::empty_intent(command.clone().into_owned(), &home);
    intent.id() = id;
    intent.kind() = Kind::Matrix;
    intent.iteration() = line.iteration;
    intent.request.command.is_shell() = true;
    intent.arguments() = vec!["/bin/sh".into(), "-c".into(), command.into_owned()];
    intent.start_time = line.timestamp;
    intent.parent_id = None;
    let mut put = |name: &str, value: &str| {
        if !value.is_empty() {
            intent.request.labels.insert(name.to_owned(), value.to_owned());
        }
    };
    put(KEY, &key.to_string());
    put(CHROME, &line.chrome);
    put(SHA, &line.sha);
    put("matrix.imported", "chrome-ranger");
    for (name, value) in axes {
        put(&format!("{AXIS}{name}"), value);
    }
    intent.request.correlation_ids.repo_sha = Some(line.sha.clone()).filter(|sha| !sha.is_empty());
    let mut recording = match store.begin(&intent) {
        Ok(recording) => recording,
        Err(Error::Duplicate { .. }) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let mut redactions = 0;
    for (stream, path) in [(Stream::Stdout, &run.stdout), (Stream::Stderr, &run.stderr)] {
        let Some(path) = path else { continue };
        let mut clean = redactor.stream();
        let mut file = File::open(path).map_err(|error| error.to_string())?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            match file.read(&mut buffer).map_err(|error| error.to_string())? {
                0 => break,
                read => {
                    clean
                        .push(&buffer[..read], &mut |bytes: &[u8]| recording.append(stream, bytes));
                }
            }
        }
        clean.finish(&mut |bytes: &[u8]| recording.append(stream, bytes));
        redactions += clean.count();
    }
    let took = std::time::Duration::from_millis(line.duration_ms);
    let ended = line.timestamp.checked_add(took).unwrap_or(line.timestamp);
    // CPU time and memory were not measured: only the wall time is known.
    let wall = Metric {
        value: line.duration_ms as f64,
        unit: Some("ms".to_owned()),
        better: Some(Better::Lower),
    };
    let measured = Measurements {
        metrics: [("wall".to_owned(), wall)].into(),
        planned: Some(planned),
        notes: Vec::new(),
    };
    let ending = Ending {
        duration_ms: line.duration_ms.max(1),
        stdout_raw_bytes: size(run.stdout.as_deref()),
        stderr_raw_bytes: size(run.stderr.as_deref()),
        redactions,
        effects: Some(measured.into()),
        ..Ending::bare(&Outcome::Exited(line.exit_code), ended)
    };
    recording.finish(store, ending).map(|_| true).map_err(|error| error.to_string())
}

fn size(path: Option<&Path>) -> u64 {
    path.and_then(|path| path.metadata().ok()).map_or(0, |meta| meta.len())
}
