//! Looks at what a run does: the files it changes and the tests it runs, compared with the runs of
//! the same command before it.

use std::path::{Path, PathBuf};

use retake_effects::Effects;
use retake_effects::files::{Changes, Rules, Snapshot, Tracker, cache_name};
use retake_effects::progress::{self, History};
use retake_effects::summary;
use retake_effects::tests::reports::{self, Report};
use retake_effects::tests::{self, Parser, TestResults};
use retake_engine::Finished;
use retake_store::RunFilter;
use retake_types::{Outcome, Stream};

use crate::config::Config;
use crate::drive::{Observer, Past};
use crate::place::Place;
use crate::{signals, term};

/// Where snapshots of tracked directories are kept, below the record.
pub(crate) const SNAPSHOTS: &str = "snapshots";
/// How many earlier runs of a command its tests are compared with.
const COMPARED: usize = 20;

/// What to look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// The directory whose files are tracked.
    pub(crate) track: Option<PathBuf>,
    /// Whether every file is read, whatever its timestamps say.
    pub(crate) exact: bool,
    pub(crate) tests: bool,
}

impl Wanted {
    pub(crate) fn anything(&self) -> bool {
        self.track.is_some() || self.tests
    }
}

/// Watches one run.
pub(crate) struct Watch {
    files: Option<Files>,
    parser: Option<Parser>,
    printed: Tail,
    /// Where report files are looked for, and the patterns of further places.
    directory: PathBuf,
    report_places: Vec<String>,
    started: std::time::SystemTime,
}

impl Watch {
    pub(crate) fn begin(wanted: &Wanted, cwd: &Path, place: &Place, config: &Config) -> Self {
        let track = wanted.track.as_deref();
        Self {
            files: track.and_then(|root| Files::begin(root, wanted.exact, place, config)),
            parser: wanted.tests.then(Parser::new),
            printed: Tail::default(),
            directory: cwd.to_owned(),
            report_places: config.words("tests.reports").to_vec(),
            started: std::time::SystemTime::now(),
        }
    }

    /// What became of the tests that the run ran.
    pub(crate) fn results(&mut self, finished: &Finished) -> Option<TestResults> {
        let code = match finished.outcome {
            Outcome::Exited(code) => Some(code),
            _ => None,
        };
        self.parser.take().and_then(|parser| parser.finish(code, self.reports()))
    }

    /// Everything that is known of the run.
    pub(crate) fn told(
        &mut self,
        results: Option<TestResults>,
        past: Past<'_>,
    ) -> serde_json::Value {
        let changes = self.files.as_mut().and_then(Files::changes);
        // Most commands run no tests, and a look into the past costs as much as a short command.
        let history = if results.is_some() { history(past) } else { History::new() };
        let progress = progress::judge(changes.as_ref(), results.as_ref(), &history);
        let summary = summary::extract(self.printed.bytes());
        let effects = Effects::new(changes.as_ref(), results, progress, summary);
        let mut value = serde_json::to_value(effects).expect("effects are plain data");
        if let Some(files) = &self.files
            && files.tracker.root() != real(&self.directory)
        {
            value["root"] = files.tracker.root().to_string_lossy().into();
        }
        value
    }

    /// The report files that the run wrote.
    fn reports(&self) -> Vec<Report> {
        match reports::find(&self.directory, self.started, &self.report_places) {
            Ok(found) => {
                for (path, error) in &found.unusable {
                    term::say(&format!("the test report {} is left out: {error}", path.display()));
                }
                found.reports
            }
            Err(error) => {
                term::say(&format!("tests.reports: {error}"));
                Vec::new()
            }
        }
    }
}

/// How the tests went in the recorded runs of the same command in the same directory.
fn history(past: Past<'_>) -> History {
    let mut history = History::new();
    let Past { intent, store: Some(store) } = past else { return history };
    let filter = RunFilter {
        command: Some(intent.command.clone()),
        cwd: Some(PathBuf::from(&intent.working_directory)),
        until: Some(intent.start_time),
        ..RunFilter::default()
    };
    // Without a past there is nothing to compare with, which is what is said then.
    let Ok(page) = store.list(&filter, None, COMPARED) else { return history };
    for run in page.runs.iter().rev().filter(|run| run.intent.command == intent.command) {
        let effects = run.ending.as_ref().and_then(|ending| ending.effects.clone());
        let effects = effects.and_then(|value| serde_json::from_value::<Effects>(value).ok());
        if let Some(results) = effects.and_then(|effects| effects.test_results) {
            history.push(&results);
        }
    }
    history
}

/// The end of what was said, as much as is searched for a summary.
#[derive(Default)]
pub(crate) struct Tail(Vec<u8>);

impl Tail {
    const KEPT: usize = 256 * 1024;

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let tail = &bytes[bytes.len().saturating_sub(Self::KEPT)..];
        if self.0.len() + tail.len() > 2 * Self::KEPT {
            self.0.drain(..self.0.len().saturating_sub(Self::KEPT));
        }
        self.0.extend_from_slice(tail);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The parsers' word for a stream.
pub(crate) fn test_stream(stream: Stream) -> tests::Stream {
    match stream {
        Stream::Stdout => tests::Stream::Stdout,
        Stream::Stderr => tests::Stream::Stderr,
    }
}

/// The files of one directory before a run.
pub(crate) struct Files {
    tracker: Tracker,
    before: Snapshot,
}

impl Files {
    /// Takes the first snapshot. What cannot be tracked is said and left out: the run is what
    /// matters.
    pub(crate) fn begin(root: &Path, exact: bool, place: &Place, config: &Config) -> Option<Self> {
        snapshot(root, exact, place, config)
            .map_err(|error| term::say(&format!("changed files are not known: {error}")))
            .ok()
    }

    /// What changed since, kept for the next run's first snapshot.
    pub(crate) fn changes(&mut self) -> Option<Changes> {
        let changes = match self.tracker.snapshot() {
            Ok(after) => self.before.changes(&after),
            Err(error) => {
                term::say(&format!("changed files are not known: {error}"));
                return None;
            }
        };
        if let Some(problem) = self.tracker.problem() {
            term::say(&problem.to_string());
        }
        if let Err(error) = self.tracker.save() {
            term::say(&error.to_string());
        }
        Some(changes)
    }
}

impl Observer for Watch {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if let Some(parser) = &mut self.parser {
            parser.push(test_stream(stream), bytes);
        }
        if stream == Stream::Stdout {
            self.printed.push(bytes);
        }
    }

    fn effects(&mut self, finished: &Finished, past: Past<'_>) -> Option<serde_json::Value> {
        let results = self.results(finished);
        Some(self.told(results, past))
    }
}

fn snapshot(
    root: &Path,
    exact: bool,
    place: &Place,
    config: &Config,
) -> Result<Files, retake_effects::files::Error> {
    let mut rules = Rules::new().ignore(config.words("tracking.ignore"))?;
    if let Ok(own) = real(&place.store).strip_prefix(real(root)) {
        rules = rules.exclude(own);
    }
    let directory = place.store.join(SNAPSHOTS).join(cache_name(&real(root)));
    let tracker = Tracker::new(root, rules)?.exact(exact).with_cache(&directory);
    let mut tracker = tracker.stop_on(signals::asked());
    let before = tracker.snapshot()?;
    Ok(Files { tracker, before })
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
