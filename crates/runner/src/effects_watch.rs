//! Observes what a run does: the files it changes and the tests it runs, compared with earlier runs
//! of the same command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retake_effects::files::{Changes, Snapshot, Tracker, TrackingRules, cache_name};
use retake_effects::progress_detection::{self, PastResults};
use retake_effects::test_results::reports::{self, TestReport};
use retake_effects::test_results::{OutputCuts, TestOutputParser};
use retake_effects::{agent_summary, observations};
use retake_engine::ProcessResult;
use retake_store::RunFilter;
use retake_store::redact::Redactor;
use retake_types::request::{CommandForm, CommandRequest};
use retake_types::{Effects, OsText, Outcome, RunRequest, Stream, TestResults, text};

use crate::context::RunContext;
use crate::notice::Notice;
use crate::run::{Observer, Past};
use crate::signals;

/// The directory of snapshots of tracked directories, below the record.
pub const SNAPSHOTS: &str = "snapshots";
/// How many earlier runs of a command tests are compared with.
const COMPARED: usize = 20;

/// Observes one run.
pub struct EffectsWatch {
    files: Option<FileWatch>,
    tests: Option<TestWatch>,
    printed: Tail,
    /// Where to look for report files, and the patterns of the configuration and of the command line.
    directory: PathBuf,
    report_patterns: Vec<String>,
    timeout: Option<Duration>,
    started: std::time::SystemTime,
    context: Arc<RunContext>,
}

impl EffectsWatch {
    pub fn begin(request: &RunRequest, redactor: &Redactor, context: &Arc<RunContext>) -> Self {
        let (wanted, cwd) = (&request.effects, request.cwd.as_path());
        let track = wanted.track.as_ref().map(OsText::as_path);
        Self {
            files: track.and_then(|root| FileWatch::begin(root, wanted.exact, redactor, context)),
            tests: if wanted.tests { TestWatch::of(&request.command) } else { None },
            printed: Tail::default(),
            directory: cwd.to_owned(),
            report_patterns: match wanted.tests {
                true => [&context.test_reports[..], &reports::named_by(&request.command)].concat(),
                false => Vec::new(),
            },
            timeout: request.timeout_ms.map(Duration::from_millis),
            started: std::time::SystemTime::now(),
            context: context.clone(),
        }
    }

    /// The results of the tests that the run ran.
    pub fn results(&mut self, result: &ProcessResult) -> Option<TestResults> {
        let code = match result.outcome {
            Outcome::Exited(code) => Some(code),
            _ => None,
        };
        let mut results = self.tests.take()?.finish(code, self.reports())?;
        if let (Outcome::TimedOut, Some(timeout)) = (&result.outcome, self.timeout) {
            let timeout = text::duration(timeout);
            results.fail_running(&format!("running when the timeout of {timeout} ended the run"));
        }
        Some(results)
    }

    /// All effects of the run.
    pub fn effects_of(&mut self, results: Option<TestResults>, past: Past<'_>) -> Effects {
        let changes = self.files.as_mut().and_then(FileWatch::changes);
        // Most commands run no tests, and reading earlier results costs as much as a short command.
        let history = if results.is_some() { history(past) } else { PastResults::new() };
        let progress = progress_detection::detect(changes.as_ref(), results.as_ref(), &history);
        let summary = agent_summary::extract(self.printed.bytes());
        let mut observed = observations(changes.as_ref(), results, progress, summary);
        if let Some(files) = &self.files
            && files.tracker.root() != real(&self.directory)
        {
            observed.root = Some(text::path(files.tracker.root()).into_owned());
        }
        observed.into()
    }

    /// The report files that the run wrote.
    fn reports(&self) -> Vec<TestReport> {
        match reports::find(&self.directory, self.started, &self.report_patterns) {
            Ok(found) => {
                for (path, error) in &found.unusable {
                    let (path, error) = (path.clone(), error.to_string());
                    (self.context.notify)(Notice::ReportUnreadable { path, error });
                }
                found.reports
            }
            Err(error) => {
                (self.context.notify)(Notice::ReportPattern(error.to_string()));
                Vec::new()
            }
        }
    }
}

/// Finds test results in the output of a command.
struct TestWatch {
    /// Which parts of the output the command cuts off.
    cuts: OutputCuts,
    /// Created for the first bytes: many commands print nothing.
    parser: Option<TestOutputParser>,
}

impl TestWatch {
    /// `None` for a search command, which runs no tests.
    fn of(command: &CommandRequest) -> Option<Self> {
        let cuts = match &command.form {
            CommandForm::Arguments(arguments) => {
                let arguments: Vec<_> = arguments.iter().map(OsText::to_string_lossy).collect();
                OutputCuts::of_arguments(&arguments)?
            }
            CommandForm::Line(_) | CommandForm::ShellArguments(_) => {
                OutputCuts::of_command_line(&command.text)?
            }
        };
        Some(Self { cuts, parser: None })
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let new = || TestOutputParser::of_cut_output(self.cuts);
        self.parser.get_or_insert_with(new).push(stream, bytes);
    }

    fn finish(self, code: Option<i32>, reports: Vec<TestReport>) -> Option<TestResults> {
        match self.parser {
            None if reports.is_empty() => None,
            None => TestOutputParser::of_cut_output(self.cuts).finish(code, reports),
            Some(parser) => parser.finish(code, reports),
        }
    }
}

/// Test results of earlier runs of the same command in the same directory.
fn history(past: Past<'_>) -> PastResults {
    let mut history = PastResults::new();
    let Past { intent, store: Some(store) } = past else { return history };
    let filter = RunFilter {
        command: Some(intent.command().to_owned()),
        cwd: Some(intent.request.directory()),
        until: Some(intent.start_time),
        ..RunFilter::default()
    };
    // An unreadable record counts as an empty one.
    let Ok(page) = store.list(&filter, None, COMPARED) else { return history };
    for run in page.runs.iter().rev().filter(|run| run.intent.command() == intent.command()) {
        let effects = run.outcome.as_ref().and_then(|outcome| outcome.effects.as_ref());
        let observed = effects.and_then(Effects::observations);
        if let Some(results) = observed.and_then(|observed| observed.test_results.as_ref()) {
            history.push(results);
        }
    }
    history
}

/// The end of the output, as long as the search for a summary needs.
#[derive(Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    const KEPT: usize = 256 * 1024;

    pub fn push(&mut self, bytes: &[u8]) {
        let tail = &bytes[bytes.len().saturating_sub(Self::KEPT)..];
        if self.0.len() + tail.len() > 2 * Self::KEPT {
            self.0.drain(..self.0.len().saturating_sub(Self::KEPT));
        }
        self.0.extend_from_slice(tail);
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The files of one directory before a run.
pub struct FileWatch {
    tracker: Tracker,
    before: Snapshot,
    /// Decides which names must not be recorded.
    redactor: Redactor,
    context: Arc<RunContext>,
}

impl FileWatch {
    /// Takes the first snapshot. A tracking failure is reported and must not fail the run.
    pub fn begin(
        root: &Path,
        exact: bool,
        redactor: &Redactor,
        context: &Arc<RunContext>,
    ) -> Option<Self> {
        snapshot(root, exact, redactor, context)
            .map_err(|error| (context.notify)(Notice::ChangesUnknown(error.to_string())))
            .ok()
    }

    /// The changes since, kept for the next run's first snapshot.
    pub fn changes(&mut self) -> Option<Changes> {
        let changes = match self.tracker.snapshot() {
            Ok(after) => self.before.changes(&after),
            Err(error) => {
                (self.context.notify)(Notice::ChangesUnknown(error.to_string()));
                return None;
            }
        };
        if let Some(problem) = self.tracker.problem() {
            (self.context.notify)(Notice::TrackingImpaired(problem.to_string()));
        }
        if let Err(error) = self.tracker.save(&mut self.redactor) {
            (self.context.notify)(Notice::TrackingImpaired(error.to_string()));
        }
        Some(changes)
    }
}

impl Observer for EffectsWatch {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if let Some(tests) = &mut self.tests {
            tests.push(stream, bytes);
        }
        if stream == Stream::Stdout {
            self.printed.push(bytes);
        }
    }

    fn effects(&mut self, result: &ProcessResult, past: Past<'_>) -> Option<Effects> {
        let results = self.results(result);
        Some(self.effects_of(results, past))
    }
}

fn snapshot(
    root: &Path,
    exact: bool,
    redactor: &Redactor,
    context: &Arc<RunContext>,
) -> Result<FileWatch, retake_effects::files::Error> {
    let mut rules = TrackingRules::new().ignore(&context.tracking_ignore)?;
    let store = context.project.store().ok();
    if let Some(store) = store
        && let Ok(own) = real(store).strip_prefix(real(root))
    {
        rules = rules.exclude(own);
    }
    let mut tracker = Tracker::new(root, rules)?.exact(exact);
    if let Some(store) = store {
        tracker = tracker.with_cache(&store.join(SNAPSHOTS).join(cache_name(&real(root))));
    }
    let mut tracker = tracker.stop_on(signals::asked());
    let before = tracker.snapshot()?;
    Ok(FileWatch { tracker, before, redactor: redactor.clone(), context: context.clone() })
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
