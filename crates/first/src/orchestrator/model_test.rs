//! A test under a model of a file system: every state that a crash after any operation may leave,
//! from one recording, each checked by the test's own check.
//!
//! The model determines the states and why one fails; this runs the checks and reports
//! the findings.

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::child_process::RunningChildren;
use super::plan::FailedPhase;
use super::recorded_workload::{RecordedWorkload, StateDirectories, StateToCheck};
use super::report::say;
use super::run_directories::RunDirectories;
use super::session::Session;
use super::verdict::{self, Check, Execution};
use crate::variables;
use retake_crash::log;
use retake_crash::model::{
    self, CrashState, CrashStates, Explainer, FailureKind, Finding, Model, StateKey,
};
use retake_crash::text::count;
use retake_crash::verify::in_parallel;

/// The check fails on the state at the end of the recording.
const UNHARMED: &str = "the check fails on the state without a crash";

pub(crate) struct ModelTest<'a> {
    session: &'a Session<'a>,
    dirs: &'a RunDirectories,
    states: &'a StateDirectories,
    running: RunningChildren,
    /// The number of the next state, which names its directory.
    next: AtomicUsize,
}

/// Tries every state of a recorded workload. The error is the message to fail the test with.
pub(crate) fn run(
    session: &Session<'_>,
    dirs: &RunDirectories,
    recorded: &RecordedWorkload,
) -> Result<(), String> {
    match verdict::execution(&recorded.outcome, usize::MAX) {
        Execution::Ended { .. } => {}
        Execution::Crashed { .. } => return Err("the workload crashed by itself".to_owned()),
        Execution::Failed { reason } => return Err(reason),
    }
    // A passing test prints nothing that anyone reads: an untested part must be a failure.
    if let Some(left) = recorded.left_running() {
        return Err(left);
    }
    let model = session.options.model;
    let model_test = ModelTest::new(session, dirs, &recorded.states);
    let acks = usize::MAX;
    match model_test.check(&recorded.end, 1, "", acks) {
        Ok(Check::Passed { .. }) => {}
        Ok(Check::Failed { reason }) => return Err(format!("{UNHARMED}: {reason}")),
        Err(error) => return Err(format!("cannot run a child: {error}")),
    }
    let told = model_test.explore(model)?;
    let (findings, tried, coverage) = told;
    say(&format!("{model}: {coverage}"));
    if findings.is_empty() {
        say(&format!("{model}: all {} passed", count(tried as u64, "state")));
        return Ok(());
    }
    let kept = dirs.crash_log();
    File::create(&kept)
        .and_then(|file| log::write(file, &recorded.states.recording))
        .map_err(|error| format!("{}: {error}", kept.display()))?;
    let messages: Vec<String> =
        findings.iter().map(|(finding, reason)| model_test.tell(finding, reason, &kept)).collect();
    Err(messages.join("\n"))
}

/// Checks one state of a log again, and nothing else.
pub(crate) fn replay(
    session: &Session<'_>,
    dirs: &RunDirectories,
    path: &Path,
    key: &str,
) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(|error| told(&error))?;
    let recording = log::read(file).map_err(|error| told(&error))?;
    let key: StateKey = key.parse().map_err(|error| format!("{}: {error}", variables::STATE))?;
    let options = options(session);
    let state = model::rebuild(&recording, session.options.model, &options, &key)
        .map_err(|error| error.to_string())?
        .ok_or_else(|| format!("the recording has no state {key}"))?;
    let states = StateDirectories::replayed(recording).map_err(|error| told(&error))?;
    let model_test = ModelTest::new(session, dirs, &states);
    match model_test.check_state(&state).map_err(|error| format!("cannot run a child: {error}"))? {
        Check::Passed { .. } => {
            say(&format!("state {key}: OK"));
            Ok(())
        }
        Check::Failed { reason } => {
            say(&format!("state {key}: FAILED"));
            say(&format!("reason: {reason}"));
            Err(format!("state {key} failed\n  reason: {reason}"))
        }
    }
}

fn options(session: &Session<'_>) -> model::ExploreOptions {
    model::ExploreOptions { seed: session.seed, ..model::ExploreOptions::default() }
}

type Explored = (Vec<(Finding, String)>, usize, String);

impl<'a> ModelTest<'a> {
    fn new(
        session: &'a Session<'a>,
        dirs: &'a RunDirectories,
        states: &'a StateDirectories,
    ) -> Self {
        Self { session, dirs, states, running: RunningChildren::new(), next: AtomicUsize::new(1) }
    }

    fn explore(&self, model: Model) -> Result<Explored, String> {
        let recording = &self.states.recording;
        let options = options(self.session);
        let wrong = |error: model::BadGlob| error.to_string();
        let mut explainer = Explainer::new(recording, model, &options).map_err(wrong)?;
        let asked = options.clone();
        let mut states = CrashStates::new(recording, model, options).map_err(wrong)?;
        let test = self.session.options;
        let keep_going = self.session.variables.keep_going.unwrap_or(test.keep_going);
        let last = test.max_crashes.unwrap_or(usize::MAX);
        let (mut tried, mut reasons, mut broken) = (0, Vec::new(), None);
        let wanted = states.by_ref().filter(|state| state.key.point.operation as usize <= last);
        in_parallel(
            test.jobs,
            wanted,
            |_, state: &CrashState| self.check_state(state),
            |state, checked| {
                tried += 1;
                match checked {
                    Ok(Check::Passed { .. }) => ControlFlow::Continue(()),
                    Ok(Check::Failed { reason }) => {
                        let kind = |reason: &str| FailureKind::new("", reason);
                        let fails = |state: &CrashState| match self.check_state(state) {
                            Ok(Check::Failed { reason }) => Some(kind(&reason)),
                            _ => None,
                        };
                        let id = explainer.add(&state, Some(kind(&reason)), fails);
                        if !reasons.iter().any(|(known, _)| *known == id) {
                            reasons.push((id, reason));
                        }
                        if keep_going { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                    }
                    Err(error) => {
                        broken = Some(format!("cannot run a child: {error}"));
                        ControlFlow::Break(())
                    }
                }
            },
        );
        if let Some(broken) = broken {
            return Err(broken);
        }
        let reason = |one: &Finding| {
            // A cause found after another one has no reason yet.
            let state = model::rebuild(recording, model, &asked, &one.key).ok().flatten();
            let state = state.map(|state| CrashState { acks: one.acks, ..state });
            match state.map(|state| self.check_state(&state)) {
                Some(Ok(Check::Failed { reason })) => reason,
                _ => {
                    let found = reasons.iter().find(|(known, _)| *known == one.id);
                    found.map_or_else(String::new, |(_, reason)| reason.clone())
                }
            }
        };
        let findings =
            explainer.findings().into_iter().map(|one| (one.clone(), reason(&one))).collect();
        Ok((findings, tried, states.coverage().to_string()))
    }

    fn check_state(&self, state: &CrashState) -> io::Result<Check> {
        let label = state.label.as_deref().unwrap_or_default();
        self.check(&state.tree, state.key.point.operation as usize, label, state.acks)
    }

    fn check(
        &self,
        tree: &model::Tree,
        point: usize,
        label: &str,
        acks: usize,
    ) -> io::Result<Check> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let state = StateToCheck { tree, acks, point_id: point, label };
        let mut place = self.states.place(point)?;
        let outcome = self.states.check(
            &mut place,
            &state,
            &self.running,
            &|place| {
                let phase = FailedPhase::Verify;
                self.session.child_command(self.dirs, number, phase, &place.seen, Vec::new())
            },
            &|| {},
        )?;
        let check = match outcome {
            Ok(outcome) => verdict::check(&outcome),
            Err(_unwanted) => Check::Failed { reason: "ended".into() },
        };
        self.states.put_back(place);
        self.dirs.remove(number)?;
        Ok(check)
    }

    /// Reports one finding, and leaves its state beside the log.
    fn tell(&self, finding: &Finding, reason: &str, log: &Path) -> String {
        let Finding { id, sentence, states, key, .. } = finding;
        let model = self.session.options.model;
        let directory = self.dirs.finding(id);
        if let Err(error) = self.keep(key, &directory) {
            say(&format!("{}: {error}", directory.display()));
        }
        let (log, directory) = (log.display(), directory.display());
        let repro = self.session.invocation.replay(
            &log.to_string(),
            &key.to_string(),
            self.session.seed,
            self.session.index,
        );
        say(&format!("{model}: {id} FAILED (see {directory})"));
        say(sentence);
        let fail = if *states == 1 { "fails" } else { "fail" };
        say(&format!("{} {fail} for this; reason: {reason}", count(*states as u64, "state")));
        say("to reproduce:");
        #[expect(clippy::print_stderr, reason = "a test speaks through its captured output")]
        {
            eprintln!("  {repro}");
        }
        format!(
            "{model}: {sentence}\n  reason: {reason}\n  directory: {directory}\n  to reproduce: \
             {repro}"
        )
    }

    fn keep(&self, key: &StateKey, directory: &Path) -> io::Result<()> {
        let recording = &self.states.recording;
        let rebuilt =
            model::rebuild(recording, self.session.options.model, &options(self.session), key);
        if let Ok(Some(state)) = rebuilt {
            fs::create_dir(directory)?;
            retake_crash::materialise(&state.tree, directory)?;
        }
        Ok(())
    }
}
