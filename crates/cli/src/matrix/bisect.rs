//! `retake matrix bisect`: since when?

use std::collections::BTreeMap;
use std::path::Path;

use retake_matrix::bisect::{Answer, Bisect, Judge, Settings};
use retake_matrix::browsers::BrowserRequest;
use retake_matrix::config::{CHROME, CODE};
use retake_matrix::git::Git;
use retake_matrix::plan::{Cell, FilterError, Matrix};
use retake_types::{LoopId, StopReason};

use super::open::{self, Common, Filters, Project, git_failure, percent};
use crate::Exit;
use crate::Failure;
use crate::term;
use retake_matrix::driver::chronicle;
use retake_matrix::driver::chronicle::Planned;
use retake_matrix::driver::history::History;
use retake_matrix::driver::search::Ended;
use retake_matrix::driver::search::Search;
use retake_matrix::driver::setting::Setting;
use retake_matrix::driver::supply::Supply;
use retake_matrix::driver::versions;
use retake_runner::project_lock::Lock;
use retake_runner::screen::Screen;
use retake_runner::signals;
use retake_runner::worker::Slot;

/// Find where an axis turns from good to bad, over runs that may lie
///
/// By exit code (0 is good, 125 cannot be judged, all else and a timeout is bad), or by a metric.
/// For code the commits between the two refs are searched; for chrome all versions between the two
/// that the index of Chrome for Testing knows, downloaded as needed, and those configured; for other
/// axes the configured values.
/// The other axes stand at their first value, or at the one that a filter names.
#[derive(clap::Args)]
pub(super) struct Args {
    /// What is known to be good
    #[arg(long, value_name = "VALUE")]
    good: String,
    /// What is known to be bad; it may come before the good one
    #[arg(long, value_name = "VALUE")]
    bad: String,
    /// Judge by this metric instead of the exit code
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// Bad is what is worse than the good end by more than this, such as 5%
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "metric")]
    threshold: Option<f64>,
    /// Say nothing while it runs
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
}

pub(super) fn bisect(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let mut setting = open::setting(&args.common, store, Project::Make)?;
    let (searched, rest): (Vec<String>, Vec<String>) =
        args.filters.axis.iter().cloned().partition(|text| !text.contains('='));
    let [axis] = &searched[..] else {
        return Err(Failure::Usage(
            "say which axis to search, once: --axis code, --axis chrome, or one of yours".into(),
        ));
    };
    let others = Filters {
        chrome: args.filters.chrome.clone(),
        refs: args.filters.refs.clone(),
        axis: rest,
    };
    let matrix = frame(&setting, axis, &others.pairs()?)?;
    if axis == CHROME {
        admit(&mut setting, &args.good)?;
        admit(&mut setting, &args.bad)?;
    }
    let mut slot = open::slots(&setting, 1)?.remove(0);
    let lock = Lock::acquire(&setting.agent, "bisect")
        .map_err(|error| Failure::Refused(error.to_string()));
    let answer = lock.and_then(|lock| {
        let screen = Screen::new(args.quiet);
        let answer = search(args, &mut setting, axis, matrix, &mut slot, &screen);
        screen.clear();
        drop(lock);
        answer
    });
    let stopped = signals::received();
    slot.end().retain();
    if let Some(signal) = stopped {
        return Ok(Exit::Signal(signal));
    }
    let answer = answer?;
    if args.common.json {
        term::document(&answer)?;
    } else {
        term::data(format!("{}\n", term::visible(&answer.sentence)).as_bytes())?;
    }
    Ok(if answer.last_good.is_some() { Exit::OK } else { Exit::FAILED })
}

/// All axes, and one value of each but the searched one.
fn frame(
    setting: &Setting,
    axis: &str,
    filters: &[(String, String)],
) -> Result<(Matrix, Vec<u32>), Failure> {
    let usage = |error: FilterError| Failure::Usage(error.to_string());
    let axes = setting.matrix.all_axes();
    let known: Vec<String> = axes.iter().map(|axis| axis.name.clone()).collect();
    if !known.iter().any(|name| name == axis) {
        return Err(usage(FilterError::Axis { name: axis.to_owned(), known }));
    }
    let mut place = vec![0u32; axes.len()];
    let mut chosen: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, value) in filters {
        let at = known.iter().position(|known| known == name);
        let at = at
            .ok_or_else(|| usage(FilterError::Axis { name: name.clone(), known: known.clone() }))?;
        let values = &axes[at].values;
        let found = values.iter().position(|known| known == value).ok_or_else(|| {
            usage(FilterError::Value {
                axis: name.clone(),
                value: value.clone(),
                known: values.clone(),
            })
        })?;
        if name == axis || chosen.insert(name, value).is_some_and(|other| other != value) {
            return Err(Failure::Usage(format!(
                "the search needs one value of {name}, so name one"
            )));
        }
        place[at] = u32::try_from(found).unwrap_or(u32::MAX);
    }
    Ok((Matrix { axes, cells: Vec::new() }, place))
}

/// A browser that the configuration does not list may be an end.
fn admit(setting: &mut Setting, value: &str) -> Result<(), Failure> {
    let Some(chrome) = &mut setting.matrix.chrome else { return Ok(()) };
    if !chrome.requests.contains_key(value) {
        let request =
            value.parse::<BrowserRequest>().map_err(|error| Failure::Usage(error.to_string()))?;
        chrome.requests.insert(value.to_owned(), request);
        chrome.versions.push(value.to_owned());
    }
    Ok(())
}

/// What is searched: all points, a few of them to begin with if there are many, and the ends.
struct Line {
    points: Vec<String>,
    first: Option<Vec<String>>,
    good: String,
    bad: String,
}

fn line(
    args: &Args,
    setting: &mut Setting,
    axis: &str,
    matrix: &Matrix,
    pins: &mut BTreeMap<String, String>,
    slot: &mut Slot,
    screen: &Screen,
) -> Result<Line, Failure> {
    if axis == CODE {
        let (points, good, bad) = commits(args, setting, slot)?;
        return Ok(Line { points, first: None, good, bad });
    }
    if axis == CHROME {
        let found = versions::between(setting, pins, (&args.good, &args.bad), screen)
            .map_err(|error| Failure::Refused(error.to_string()))?;
        let versions::Line { points, milestones, good, bad } = found;
        return Ok(Line { points, first: milestones, good, bad });
    }
    let points = matrix.axis(axis).map(|at| matrix.axes[at].values.clone()).unwrap_or_default();
    Ok(Line { points, first: None, good: args.good.clone(), bad: args.bad.clone() })
}

fn search(
    args: &Args,
    setting: &mut Setting,
    axis: &str,
    (mut matrix, place): (Matrix, Vec<u32>),
    slot: &mut Slot,
    screen: &Screen,
) -> Result<Answer, Failure> {
    let lock = Lock::path(&setting.agent);
    chronicle::bury(slot.store()?, Some(&lock))?;
    let loops = chronicle::read(slot.store()?, &setting.file)?;
    let mut pins = chronicle::pins(&loops);
    let line = line(args, setting, axis, &matrix, &mut pins, slot, screen)?;
    let judge = match &args.metric {
        Some(_) => Judge::Metric { threshold: args.threshold },
        None => Judge::ExitCode,
    };
    let plan = |points: &[String], good: &str, bad: &str| {
        Bisect::new(points.to_vec(), good, bad, Settings::new(judge))
            .map_err(|error| Failure::Usage(error.to_string()))
    };
    let begin = plan(line.first.as_ref().unwrap_or(&line.points), &line.good, &line.bad)?;
    let at = matrix.axis(axis).unwrap_or(0);
    matrix.axes[at].values = line.points.clone();
    let planned = Planned {
        purpose: format!("bisect {axis}"),
        config: setting.file.to_string_lossy().into_owned(),
        lock,
        order: setting.matrix.order.as_str().to_owned(),
        command: setting.redactor().redact_str(&setting.matrix.command).0.into_owned(),
        workers: 1,
        axes: Planned::axes_of(&matrix.axes),
        pins: pins.clone(),
        environment: chronicle::environment(),
        ..Planned::default()
    };
    let mut recording = chronicle::begin(slot.store()?, &planned)?;
    let loop_id: LoopId = recording.id();
    let mut stage = |bisect: Bisect| -> Result<Answer, Stopped> {
        matrix.axes[at].values = bisect.points().to_vec();
        matrix.cells = (0..bisect.points().len())
            .map(|point| {
                let mut place = place.clone();
                place[at] = u32::try_from(point).unwrap_or(u32::MAX);
                Cell(place.into())
            })
            .collect();
        let mut supply = resolve(setting, axis, slot, &mut matrix, pins.clone())?;
        let keys = supply.identity.keys(&matrix);
        let history = History::read(slot.store().map_err(Failure::from)?, &keys);
        let history = history.map_err(Failure::from)?;
        let search = Search {
            setting,
            supply: &mut supply,
            matrix: &matrix,
            axis: axis.to_owned(),
            metric: args.metric.clone(),
            loop_id,
            screen,
        };
        Ok(search.run(slot, bisect, keys, &history)?)
    };
    let found = stage(begin).and_then(|answer| match (&answer.last_good, &answer.first_bad) {
        (Some(good), Some(bad)) if line.first.is_some() => {
            Ok(stage(plan(&line.points, good, bad)?)?.after(answer))
        }
        _ => Ok(answer),
    });
    let reason = match &found {
        Ok(_) => StopReason::Completed,
        Err(Stopped::Ended(Ended::Interrupted)) => StopReason::Interrupted,
        Err(_) => StopReason::Failed,
    };
    if let Ok(answer) = &found {
        chronicle::answered(slot.store()?, &mut recording, answer)?;
    }
    recording.finish(slot.store()?, &reason)?;
    found.map_err(|stopped| match stopped {
        Stopped::Failed(failure) => failure,
        Stopped::Ended(Ended::Broken(why)) => Failure::Refused(why),
        Stopped::Ended(Ended::Interrupted) => Failure::Refused("interrupted".to_owned()),
    })
}

/// Why there is no answer.
enum Stopped {
    Failed(Failure),
    Ended(Ended),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Ended> for Stopped {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

/// The commits between the two ends, oldest first, and which of them the ends are.
fn commits(
    args: &Args,
    setting: &Setting,
    slot: &mut Slot,
) -> Result<(Vec<String>, String, String), Failure> {
    let Some(repo) = setting.repo() else {
        return Err(Failure::Usage("there is no code to search; add code.refs".to_owned()));
    };
    let (keeper, cancel) = slot.parts();
    let found = Git::open(keeper, cancel, repo, std::env::vars_os()).and_then(|mut git| {
        let (good, bad) = (git.resolve(&args.good)?, git.resolve(&args.bad)?);
        let between = git.between(&good, &bad)?;
        Ok((between.shas, good.sha, bad.sha))
    });
    found.map_err(|error| git_failure(&error))
}

/// What the values stand for. The points of a search over code are commits already.
fn resolve(
    setting: &Setting,
    axis: &str,
    slot: &mut Slot,
    matrix: &mut Matrix,
    pins: BTreeMap<String, String>,
) -> Result<Supply, Failure> {
    let cells = matrix.cells.clone();
    if axis == CODE {
        // Nothing to look up, and nothing that could be missing.
        matrix.cells.clear();
    }
    let mut supply =
        Supply::resolve(slot, setting, matrix, pins).map_err(|error| git_failure(&error))?;
    if axis == CODE {
        matrix.cells = cells;
        let shas: Vec<String> = matrix.used(CODE).into_iter().map(str::to_owned).collect();
        shas.iter().for_each(|sha| supply.know_commit(sha, sha));
    } else if let Some(problem) = supply.unavailable.first() {
        // The one ref that the search stands on.
        return Err(Failure::Refused(problem.clone()));
    }
    Ok(supply)
}
