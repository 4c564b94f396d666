//! What most matrix commands start from: the configuration, the selected cells, and their recorded
//! results.

use std::path::{Path, PathBuf};

use retake_engine::KeeperSession;
use retake_matrix::config::{CHROME, CODE, Config as MatrixConfig, ConfigError};
use retake_matrix::driver::{
    self, CommitChain, CommitLines, MatrixProject, MetricDefaults, RecordedResults, Resources,
    Samples, git_variables, mark_dead_loops_if_writable, read_loops,
};
use retake_matrix::export::MetricResults;
use retake_matrix::history::CommitHistory;
use retake_matrix::plan::{Matrix, baselines};
use retake_matrix::stats::parse_percent;
use retake_runner::config::Config;
use retake_runner::project::Project;
use retake_runner::worker::Worker;
use retake_store::{Error, Store, StoredLoop};
use retake_types::config::SandboxedCommand;
use retake_types::loop_record::matrix::{CellKey, MatrixEntry, MatrixLoopPlan};
use retake_types::{SandboxRequest, SeenDisturbance};

use crate::{Failure, context, init, term, words};

/// The configuration, and the form of the result.
#[derive(clap::Args)]
pub(super) struct Common {
    /// The configuration [default: matrix.yml or chrome-ranger.yaml in the current directory]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Selects cells.
#[derive(clap::Args)]
pub(super) struct Filters {
    /// Only these browsers, as the configuration names them
    #[arg(long, num_args = 1.., value_name = "VERSION")]
    pub(super) chrome: Vec<String>,
    /// Only these refs
    #[arg(long, num_args = 1.., value_name = "REF")]
    pub(super) refs: Vec<String>,
    /// Only this value of an axis; repeat for further values
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) axis: Vec<String>,
}

impl Filters {
    pub(super) fn pairs(&self) -> Result<Vec<(String, String)>, Failure> {
        let of = |name: &str, values: &[String]| -> Vec<(String, String)> {
            values.iter().map(|value| (name.to_owned(), value.clone())).collect()
        };
        let mut pairs = of(CHROME, &self.chrome);
        pairs.extend(of(CODE, &self.refs));
        pairs.extend(assignments(&self.axis)?);
        Ok(pairs)
    }
}

/// The values of `--axis NAME=VALUE`.
pub(super) fn assignments(texts: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let one = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(Failure::Usage(format!("--axis {text}: write NAME=VALUE, such as node=20"))),
    };
    texts.iter().map(one).collect()
}

/// What to do without a project.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IfMissing {
    Create { quiet: bool },
    Ignore,
}

pub(super) fn here() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|source| Failure::File {
        action: "find",
        path: PathBuf::from("."),
        source,
    })
}

/// An invalid configuration is a usage error.
pub(super) fn load(file: Option<&Path>) -> Result<MatrixConfig, ConfigError> {
    let here = std::env::current_dir()
        .map_err(|error| ConfigError::Unreadable { path: PathBuf::from("."), error })?;
    let file = match file {
        Some(file) => here.join(file),
        None => MatrixConfig::find(&here)?,
    };
    let file = std::path::absolute(&file)
        .map_err(|error| ConfigError::Unreadable { path: file.clone(), error })?;
    MatrixConfig::load(&file)
}

/// The matrix of the configuration, and retake's own configuration.
pub(super) fn project(
    common: &Common,
    store: Option<&Path>,
    if_missing: IfMissing,
) -> Result<(MatrixProject, Config), Failure> {
    let matrix = load(common.file.as_deref()).map_err(|error| config_failure(&error))?;
    for warning in &matrix.warnings {
        term::say(warning);
    }
    if let IfMissing::Create { quiet } = if_missing {
        let created = make_project()?;
        let directory = created.first().and_then(|path| path.parent()).filter(|_| !quiet);
        if let Some(directory) = directory {
            term::say(&format!("created {} (worktrees and settings)", directory.display()));
        }
    }
    project_of(matrix, store, None)
}

/// The project of a matrix from a file or a command line. `scratch` is its temporary directory, if that
/// is not the project's `.agent/`.
pub(super) fn project_of(
    matrix: MatrixConfig,
    store: Option<&Path>,
    scratch: Option<&Path>,
) -> Result<(MatrixProject, Config), Failure> {
    let here = here()?;
    let project = Project::find(&here, store)?;
    let config = Config::load(project.root.as_deref())?;
    if !config.execution.audit.enabled {
        return Err(Failure::Usage(
            "execution.audit.enabled is off, and a matrix needs the record; turn it on".into(),
        ));
    }
    let project = MatrixProject {
        file: matrix.file.clone(),
        config: matrix,
        context: context::run_context(&project, &config),
        agent_directory: match scratch {
            Some(scratch) => scratch.to_owned(),
            None => project.root.as_deref().unwrap_or(&here).join(".agent"),
        },
        shared: None,
        unset: git_variables(),
        redact: true,
        sandbox: config.sandbox.request(SandboxedCommand::Matrix, None, SandboxRequest::default()),
    };
    Ok((project, config))
}

/// What is wrong with a configuration file, and how to create a missing one.
pub(super) fn config_failure(error: &ConfigError) -> Failure {
    match error {
        ConfigError::Missing => Failure::Usage(format!("{error}; `retake matrix init` writes one")),
        error => Failure::Usage(error.to_string()),
    }
}

/// Creates `.agent/` at the top of the repository, or in the current directory without one, unless a
/// project already exists.
pub(super) fn make_project() -> Result<Vec<PathBuf>, Failure> {
    let here = here()?;
    if Project::find(&here, None)?.root.is_some() {
        return Ok(Vec::new());
    }
    let top = here.ancestors().find(|dir| dir.join(".git").exists()).unwrap_or(&here);
    init::make(top)
}

/// The cells that match the filters.
pub(super) fn cells(
    project: &MatrixProject,
    filters: &[(String, String)],
) -> Result<Matrix, Failure> {
    project.cells(filters).map_err(|error| Failure::Usage(super::words::filter(&error)))
}

/// Started before anything is locked or opened.
pub(super) fn workers(project: &MatrixProject, count: usize) -> Result<Vec<Worker>, Failure> {
    Worker::start(count, KeeperSession::Own, &project.context)
        .map_err(|error| Failure::Refused(words::no_process(&error)))
}

/// A matrix and its recorded results.
pub(super) struct View {
    pub(super) project: MatrixProject,
    /// The cells that match the filters and whose refs exist.
    pub(super) matrix: Matrix,
    pub(super) resources: Resources,
    pub(super) keys: Vec<CellKey>,
    pub(super) recorded: RecordedResults,
    /// Newest first.
    pub(super) loops: Vec<(StoredLoop, MatrixLoopPlan)>,
    pub(super) store: Option<Store>,
}

impl View {
    pub(super) fn open(
        common: &Common,
        filters: &Filters,
        store: Option<&Path>,
    ) -> Result<Self, Failure> {
        Ok(Self::open_and(common, filters, store, |_, _| ())?.0)
    }

    /// The same, and a query to git that needs a worker.
    pub(super) fn open_and<T>(
        common: &Common,
        filters: &Filters,
        store: Option<&Path>,
        ask: impl FnOnce(&mut Worker, &MatrixProject) -> T,
    ) -> Result<(Self, T), Failure> {
        let (project, _) = project(common, store, IfMissing::Ignore)?;
        let mut matrix = cells(&project, &filters.pairs()?)?;
        let mut worker = workers(&project, 1)?.remove(0);
        let opened = match project.context.project.read_store() {
            Err(Error::NoStore { .. }) => None,
            opened => Some(opened?),
        };
        if let Some(opened) = &opened {
            mark_dead_loops_if_writable(opened);
        }
        let loops = match &opened {
            Some(opened) => read_loops(opened, &project.file)?,
            None => Vec::new(),
        };
        let resources =
            Resources::resolve(&mut worker, &project, &mut matrix, driver::pins(&loops));
        let asked = ask(&mut worker, &project);
        drop(worker.end());
        let resources = resources.map_err(|error| Failure::Refused(error.to_string()))?;
        for unavailable in &resources.unavailable {
            term::say(&unavailable.to_string());
        }
        let keys = resources.identity.keys(&matrix);
        let recorded = match &opened {
            Some(opened) => RecordedResults::read(opened, &keys)?,
            None => RecordedResults::default(),
        };
        let view = Self { project, matrix, resources, keys, recorded, loops, store: opened };
        Ok((view, asked))
    }

    /// The cells of all commits of a branch, configured or not, and their recorded results.
    pub(super) fn commits(
        &self,
        chain: &CommitChain,
        filters: &Filters,
    ) -> Result<(CommitLines, RecordedResults), Failure> {
        let all = cells(&self.project, &filters.pairs()?)?;
        let lines = chain.lines(&all, &self.resources, |_| true);
        let recorded = match &self.store {
            Some(store) => RecordedResults::read_all(store, &lines.keys())?,
            None => RecordedResults::default(),
        };
        Ok((lines, recorded))
    }

    /// The values of a metric, if any.
    pub(super) fn samples_if_any(&self, metric: &str) -> Samples<'_> {
        Samples::of(&self.matrix, &self.keys, &self.recorded, &self.project.config, metric)
    }

    /// The values of a metric; a metric without any is an error.
    pub(super) fn samples(&self, metric: &str) -> Result<Samples<'_>, Failure> {
        let samples = self.samples_if_any(metric);
        let known = self.recorded.metrics();
        if !samples.any() && !known.iter().any(|name| name == metric) {
            return Err(Failure::Usage(format!(
                "no run has reported {metric}; choose from {}",
                known.join(", ")
            )));
        }
        Ok(samples)
    }

    /// All cells of a metric, each with its change against the first value of its axis.
    pub(super) fn results(&self, samples: &Samples<'_>, margin: f64) -> MetricResults {
        let pairs = baselines(&self.matrix);
        let comparisons = samples.compare(&pairs, margin, &self.resources);
        samples.results(&samples.rows(&pairs, &comparisons))
    }

    /// A metric over commits.
    pub(super) fn history(
        &self,
        (lines, recorded): &(CommitLines, RecordedResults),
        metric: &str,
        margin: f64,
    ) -> CommitHistory {
        let defaults = MetricDefaults::of(&self.project.config, metric);
        lines.history(recorded, metric, defaults, margin)
    }

    /// The plan of the last run; a bisection plans neither order nor seed.
    pub(super) fn last_run(&self) -> Option<&MatrixLoopPlan> {
        let mut plans = self.loops.iter().map(|(_, plan)| plan);
        plans.find(|plan| plan.purpose.is_run())
    }

    /// What disturbed the last run.
    pub(super) fn disturbances(&self) -> Result<Vec<SeenDisturbance>, Failure> {
        let last = self.loops.iter().find(|(_, plan)| plan.purpose.is_run());
        let (Some((record, _)), Some(store)) = (last, &self.store) else { return Ok(Vec::new()) };
        let entries = store.loop_entries(record.id, 0, 100)?;
        let disturbances =
            entries.iter().filter_map(|entry| match serde_json::from_str(&entry.body).ok()? {
                MatrixEntry::Disturbed { disturbances } => Some(disturbances),
                MatrixEntry::Answer { .. } | MatrixEntry::Commits { .. } => None,
            });
        Ok(disturbances.flatten().collect())
    }

    /// The short name of a cell.
    pub(super) fn name(&self, cell: usize) -> String {
        self.matrix.short_name(cell)
    }
}

/// For clap: a percentage above 0, such as `5%`.
pub(super) fn margin(text: &str) -> Result<f64, String> {
    match percent(text)? {
        0.0 => Err("no number of runs decides 0%: equal programs never measure exactly equal; \
                    write the smallest difference that matters, such as 1%"
            .to_owned()),
        margin => Ok(margin),
    }
}

/// For clap: a percentage, such as `5%`.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    parse_percent(text).ok_or_else(|| "write a percentage, such as 5%".to_owned())
}
