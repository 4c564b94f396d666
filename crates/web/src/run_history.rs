//! A run among the runs of the same command: the ones before and after it, the last that passed, and
//! what has changed since.

use std::collections::BTreeSet;
use std::path::Path;

use retake_runner::fingerprint::{self, ChangeCounts};
use retake_runner::run_differences::{Difference, differences};
use retake_store::{NearestRun, RunNeighbours, RunSeries};
use retake_types::loop_record::matrix::CellLabels;
use retake_types::{Effects, Observations, Run, State};

use crate::error::RequestError;
use crate::store_pool::Store;

/// How many runs in between are searched for changed files.
const MAX_WATCHED: usize = 40;

/// The position of a run among those of the same command.
pub(crate) struct RunHistory {
    pub(crate) series: RunSeries,
    pub(crate) neighbours: RunNeighbours,
    /// Only of a failed run.
    pub(crate) since: Option<Box<SincePassed>>,
}

/// The last run that passed, and the differences to it.
pub(crate) struct SincePassed {
    pub(crate) passed: Run,
    pub(crate) changes: RunChanges,
}

/// The differences of two runs, apart from their output.
pub(crate) struct RunChanges {
    pub(crate) differences: Vec<Difference>,
    /// Inherited variables; `None` if the record does not say.
    pub(crate) inherited: Option<ChangeCounts>,
    /// The program's file: what it was, and what it is.
    pub(crate) program: Option<[String; 2]>,
    /// Files that recorded runs in between changed, as absolute paths.
    pub(crate) files: BTreeSet<String>,
    /// All of them are listed.
    pub(crate) files_complete: bool,
}

impl RunHistory {
    pub(crate) fn read(store: &Store, run: &Run) -> Result<Self, RequestError> {
        let series = RunSeries::of(run, CellLabels::CELL);
        let neighbours = store.neighbours(run, &series)?;
        let failed = run.state != State::Running && !run.success();
        let since = match neighbours.last_passed {
            // The iterations of an agent differ in everything.
            NearestRun::Found(id) if failed && series != RunSeries::Loop => {
                let passed = store.get(id)?;
                let changes = RunChanges::between(store, &passed, run)?;
                Some(Box::new(SincePassed { passed, changes }))
            }
            _ => None,
        };
        Ok(Self { series, neighbours, since })
    }
}

impl RunChanges {
    pub(crate) fn between(store: &Store, a: &Run, b: &Run) -> Result<Self, RequestError> {
        let recorded = (a.intent.variables.as_deref(), b.intent.variables.as_deref());
        let inherited = match recorded {
            (Some(a), Some(b)) => fingerprint::compare_recorded(a, b),
            _ => None,
        };
        let program = match (&a.intent.program, &b.intent.program) {
            (Some(a), Some(b)) if a != b => {
                let text = |file: &retake_types::ProgramFile| {
                    let modified = retake_types::text::moment(file.modified);
                    format!("{} ({} bytes, of {modified})", file.path, file.bytes)
                };
                Some([text(a), text(b)])
            }
            _ => None,
        };
        let between = store.watched_between(a, b, MAX_WATCHED)?;
        let files = between.runs.iter().flat_map(changed_files).collect();
        Ok(Self {
            differences: differences(a, b),
            inherited,
            program,
            files,
            files_complete: between.complete,
        })
    }
}

/// The files that a run changed, as absolute paths.
pub(crate) fn changed_files(run: &Run) -> Vec<String> {
    let effects = run.outcome.as_ref().and_then(|outcome| outcome.effects.as_ref());
    let Some(observed) = effects.and_then(Effects::observations) else { return Vec::new() };
    let cwd = run.intent.working_directory();
    let root = Path::new(&cwd).join(observed.root.as_deref().unwrap_or_default());
    let Observations { files_created, files_modified, files_deleted, files_renamed, .. } = observed;
    let renamed = files_renamed.iter().flat_map(|pair| [&pair.from, &pair.to]);
    let all = files_created.iter().chain(files_modified).chain(files_deleted).chain(renamed);
    all.map(|path| root.join(path).to_string_lossy().into_owned()).collect()
}
