//! What most commands of a matrix begin with: the configuration, the cells that are meant, and
//! what the record knows of them.

use std::path::{Path, PathBuf};

use retake_engine::KeeperSession;
use retake_matrix::config::{CHROME, CODE, Config as MatrixConfig, ConfigError};
use retake_matrix::git::GitError;
use retake_matrix::plan::{CellKey, Matrix};
use retake_matrix::stats::parse_percent;
use retake_store::{Error, Store, StoredLoop};

use crate::Failure;
use crate::init;
use crate::term;
use retake_matrix::driver::chronicle;
use retake_matrix::driver::chronicle::Planned;
use retake_matrix::driver::history::History;
use retake_matrix::driver::samples::Samples;
use retake_matrix::driver::setting::Setting;
use retake_matrix::driver::setting::misleading;
use retake_matrix::driver::supply::Supply;
use retake_runner::config::Config;
use retake_runner::project::Place;
use retake_runner::worker::Audit;
use retake_runner::worker::Slot;

/// Which configuration, and how to answer.
#[derive(clap::Args)]
pub(super) struct Common {
    /// The configuration [default: matrix.yml or chrome-ranger.yaml here]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Which cells.
#[derive(clap::Args)]
pub(super) struct Filters {
    /// Only these browsers, as the configuration names them
    #[arg(long, num_args = 1.., value_name = "VERSION")]
    pub(super) chrome: Vec<String>,
    /// Only these refs
    #[arg(long, num_args = 1.., value_name = "REF")]
    pub(super) refs: Vec<String>,
    /// Only this value of an axis; several of one axis add up
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

/// What `--axis NAME=VALUE` says.
pub(super) fn assignments(texts: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let one = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(Failure::Usage(format!("--axis {text}: write NAME=VALUE, such as node=20"))),
    };
    texts.iter().map(one).collect()
}

/// Whether a project is made where there is none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Project {
    Make,
    Look,
}

pub(super) fn here() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|source| Failure::File {
        action: "find",
        path: PathBuf::from("."),
        source,
    })
}

/// A configuration that is not usable is a usage error.
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

pub(super) fn setting(
    common: &Common,
    store: Option<&Path>,
    project: Project,
) -> Result<Setting, Failure> {
    let matrix = load(common.file.as_deref()).map_err(|error| Failure::Usage(error.to_string()))?;
    for warning in &matrix.warnings {
        term::say(warning);
    }
    let here = here()?;
    if project == Project::Make {
        make_project()?;
    }
    let place = Place::find(&here, store)?;
    let config = Config::load(place.project.as_deref())?;
    if !config.truth("execution.audit.enabled") {
        return Err(Failure::Usage(
            "execution.audit.enabled is off, and a matrix lives in the record; turn it on".into(),
        ));
    }
    let agent = place.project.as_deref().unwrap_or(&here).join(".agent");
    let (file, unset, shared) = (matrix.file.clone(), misleading(), None);
    Ok(Setting { file, matrix, config, place, agent, shared, unset })
}

/// Makes `.agent/` at the top of the repository, or here where there is none, unless we are in a
/// project already.
pub(super) fn make_project() -> Result<Vec<PathBuf>, Failure> {
    let here = here()?;
    if Place::find(&here, None)?.project.is_some() {
        return Ok(Vec::new());
    }
    let top = here.ancestors().find(|dir| dir.join(".git").exists()).unwrap_or(&here);
    init::make(top)
}

/// The cells that the filters leave.
pub(super) fn cells(setting: &Setting, filters: &[(String, String)]) -> Result<Matrix, Failure> {
    setting.cells(filters).map_err(|error| Failure::Usage(error.to_string()))
}

/// The slots, before anything is locked or opened.
pub(super) fn slots(setting: &Setting, count: usize) -> Result<Vec<Slot>, Failure> {
    Slot::start(count, KeeperSession::Own, &setting.place, Audit::of(&setting.config)).map_err(
        |error| Failure::Refused(format!("no process could be made: {}", term::plain(&error))),
    )
}

pub(super) fn git_failure(error: &GitError) -> Failure {
    Failure::Refused(error.to_string())
}

/// A matrix with everything that is known of it.
pub(super) struct View {
    pub(super) setting: Setting,
    /// What the filters and what there is leave.
    pub(super) matrix: Matrix,
    pub(super) supply: Supply,
    pub(super) keys: Vec<CellKey>,
    pub(super) history: History,
    /// Newest first.
    pub(super) loops: Vec<(StoredLoop, Planned)>,
    pub(super) store: Option<Store>,
}

impl View {
    pub(super) fn open(
        common: &Common,
        filters: &Filters,
        store: Option<&Path>,
    ) -> Result<Self, Failure> {
        let setting = setting(common, store, Project::Look)?;
        let mut matrix = cells(&setting, &filters.pairs()?)?;
        let mut slot = slots(&setting, 1)?.remove(0);
        let opened = match Store::open_read_only(&setting.place.store) {
            Err(Error::NoStore { .. }) => None,
            opened => Some(opened?),
        };
        if let Some(opened) = &opened {
            chronicle::tend(opened);
        }
        let loops = match &opened {
            Some(opened) => chronicle::read(opened, &setting.file)?,
            None => Vec::new(),
        };
        let supply = Supply::resolve(&mut slot, &setting, &mut matrix, chronicle::pins(&loops))
            .map_err(|error| git_failure(&error));
        drop(slot.end());
        let supply = supply?;
        for problem in &supply.unavailable {
            term::say(problem);
        }
        let keys = supply.identity.keys(&matrix);
        let history = match &opened {
            Some(opened) => History::read(opened, &keys)?,
            None => History::default(),
        };
        Ok(Self { setting, matrix, supply, keys, history, loops, store: opened })
    }

    /// The numbers of a metric; one that no run has is a mistake.
    pub(super) fn samples(&self, metric: &str) -> Result<Samples<'_>, Failure> {
        let samples =
            Samples::of(&self.matrix, &self.keys, &self.history, &self.setting.matrix, metric);
        let known = self.history.metrics();
        if !samples.any() && !known.iter().any(|name| name == metric) {
            return Err(Failure::Usage(format!(
                "no run has reported {metric}; there is {}",
                known.join(", ")
            )));
        }
        Ok(samples)
    }

    /// What the last run planned; a search plans neither order nor seed.
    pub(super) fn last_run(&self) -> Option<&Planned> {
        let mut plans = self.loops.iter().map(|(_, planned)| planned);
        plans.find(|planned| planned.purpose.starts_with("run"))
    }

    /// A cell in a word or a few.
    pub(super) fn name(&self, cell: usize) -> String {
        name(&self.matrix, cell)
    }
}

/// A cell by its values; the bare value where there is one axis only.
pub(super) fn name(matrix: &Matrix, cell: usize) -> String {
    match &matrix.axes[..] {
        [_] => matrix.value(&matrix.cells[cell], 0).to_owned(),
        _ => matrix.name(&matrix.cells[cell]),
    }
}

/// `5%`, for clap.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    parse_percent(text).ok_or_else(|| "write a part of a hundred, such as 5%".to_owned())
}
