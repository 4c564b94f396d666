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
use std::time::{Duration, Instant};

use super::child_process::RunningChildren;
use super::events::{CheckedState, Events, FoundCause, Summary};
use super::plan::FailedPhase;
use super::recorded_workload::{RecordedWorkload, StateDirectories, StateToCheck};
use super::report::{print_output, say};
use super::run_directories::RunDirectories;
use super::session::{Session, report_error};
use super::verdict::{self, Check, Execution};
use crate::json::Object;
use crate::variables;
use retake_crash::log;
use retake_crash::model::{
    self, CrashState, CrashStates, Explainer, FailureKind, Finding, Model, StateKey,
};
use retake_crash::scratch::ignore_missing;
use retake_crash::text::count;
use retake_crash::verify::in_parallel;

/// The check fails on the state at the end of the recording.
const UNHARMED: &str = "the check fails on the state without a crash";

pub(crate) struct ModelTest<'a> {
    session: &'a Session<'a>,
    dirs: &'a RunDirectories,
    events: &'a Events,
    states: &'a StateDirectories,
    running: RunningChildren,
    /// The number of the next state, which names its directory.
    next: AtomicUsize,
}

/// Tries every state of a recorded workload. The error is the message to fail the test with.
pub(crate) fn run(
    session: &Session<'_>,
    dirs: &RunDirectories,
    events: &Events,
    recorded: &RecordedWorkload,
) -> Result<(), String> {
    let model_test = ModelTest::new(session, dirs, events, &recorded.states);
    let (summary, result) = match model_test.try_workload(recorded) {
        Ok(explored) => (explored.summary(), model_test.report(&explored)),
        Err(why) => {
            let reason = Some(why.clone());
            (Summary { findings: Some(0), reason, ..Summary::default() }, Err(why))
        }
    };
    let written = events.summary(&session.invocation.test, session.index, &summary);
    report_error(written, variables::EVENTS);
    result
}

/// Checks one state of a log again, and nothing else.
pub(crate) fn replay(
    session: &Session<'_>,
    dirs: &RunDirectories,
    events: &Events,
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
    say(&format!(
        "state {key} of a recording: the workload is not run; after changing it, run the test without {}",
        variables::REPLAY
    ));
    let model_test = ModelTest::new(session, dirs, events, &states);
    let log = dirs.check_log("state");
    let begun = Instant::now();
    let check = model_test
        .check_state(&state, Some(&log))
        .map_err(|error| format!("cannot run a child: {error}"))?;
    let failed = matches!(check, Check::Failed { .. });
    model_test.tell_program(&state, &check, begun.elapsed());
    let summary =
        Summary { ok: u64::from(!failed), failed: u64::from(failed), ..Summary::default() };
    let written = events.summary(&session.invocation.test, session.index, &summary);
    report_error(written, variables::EVENTS);
    match check {
        Check::Passed { .. } => {
            report_error(ignore_missing(fs::remove_file(&log)), &log.display().to_string());
            say(&format!("state {key}: OK"));
            Ok(())
        }
        Check::Failed { reason } => {
            say(&format!("state {key}: FAILED"));
            say(&format!("reason: {reason}"));
            print_output(&log, FailedPhase::Verify.word());
            Err(format!("state {key} failed\n  reason: {reason}"))
        }
    }
}

fn options(session: &Session<'_>) -> model::ExploreOptions {
    model::ExploreOptions { seed: session.seed, ..model::ExploreOptions::default() }
}

/// The results of all states that were tried.
struct Explored {
    findings: Vec<Finding>,
    /// By id: how the check failed when the finding was found.
    reasons: Vec<(String, String)>,
    tried: u64,
    failed: u64,
    coverage: String,
    /// The operation before the state that failed, if states after it were not tried.
    stopped_at: Option<u32>,
}

impl Explored {
    fn summary(&self) -> Summary {
        Summary {
            ok: self.tried - self.failed,
            failed: self.failed,
            findings: Some(self.findings.len() as u64),
            ..Summary::default()
        }
    }
}

impl<'a> ModelTest<'a> {
    fn new(
        session: &'a Session<'a>,
        dirs: &'a RunDirectories,
        events: &'a Events,
        states: &'a StateDirectories,
    ) -> Self {
        let (running, next) = (RunningChildren::new(), AtomicUsize::new(1));
        Self { session, dirs, events, states, running, next }
    }

    /// Tries every state. The error says why that is impossible.
    fn try_workload(&self, recorded: &RecordedWorkload) -> Result<Explored, String> {
        let said = self.dirs.recording_log();
        let said = said.display();
        match verdict::execution(&recorded.outcome, usize::MAX) {
            Execution::Ended { .. } => {}
            Execution::Crashed { .. } => return Err("the workload crashed by itself".to_owned()),
            Execution::Failed { reason } => {
                return Err(format!("{reason}\n  output of the workload: {said}"));
            }
        }
        // A passing test prints nothing that anyone reads: an untested part must be a failure.
        if let Some(left) = recorded.left_running() {
            return Err(left);
        }
        let log = self.dirs.check_log("no_crash");
        match self.check(&recorded.end, 1, "", usize::MAX, Some(&log)) {
            Ok(Check::Passed { .. }) => {
                report_error(ignore_missing(fs::remove_file(&log)), &log.display().to_string());
            }
            Ok(Check::Failed { reason }) => {
                let log = log.display();
                return Err(format!("{UNHARMED}: {reason}\n  output of the check: {log}"));
            }
            Err(error) => return Err(format!("cannot run a child: {error}")),
        }
        self.explore(self.session.options.model)
    }

    /// Reports the findings. The error is the message to fail the test with.
    fn report(&self, explored: &Explored) -> Result<(), String> {
        let model = self.session.options.model;
        let Explored { findings, reasons, tried, coverage, stopped_at, .. } = explored;
        say(&format!("{model}: {coverage}"));
        if let Some(operation) = stopped_at {
            let place = match operation {
                0 => "before op 1".to_owned(),
                operation => format!("at op {operation}"),
            };
            say(&format!(
                "stopped {place}; {}=1 tries the states after it, too",
                variables::KEEP_GOING
            ));
        }
        if findings.is_empty() {
            say(&format!("{model}: all {} passed", count(*tried, "state")));
            return Ok(());
        }
        let kept = self.dirs.crash_log();
        File::create(&kept)
            .and_then(|file| log::write(file, &self.states.recording))
            .map_err(|error| format!("{}: {error}", kept.display()))?;
        let messages: Vec<String> = findings
            .iter()
            .map(|finding| {
                // A cause found after another one has no reason yet.
                let known = reasons.iter().find(|(id, _)| *id == finding.id);
                let known = known.map_or("", |(_, reason)| reason.as_str());
                self.tell(finding, known, &kept)
            })
            .collect();
        Err(messages.join("\n"))
    }

    fn explore(&self, model: Model) -> Result<Explored, String> {
        let recording = &self.states.recording;
        let options = options(self.session);
        let wrong = |error: model::BadGlob| error.to_string();
        let mut explainer = Explainer::new(recording, model, &options).map_err(wrong)?;
        let states = CrashStates::new(recording, model, options).map_err(wrong)?;
        let test = self.session.options;
        let keep_going = self.session.variables.keep_going.unwrap_or(test.keep_going);
        let last = test.max_crashes.unwrap_or(usize::MAX);
        let (mut tried, mut failed, mut reasons, mut broken) = (0, 0, Vec::new(), None);
        let coverage = states.coverage().to_string();
        let mut taken = 0;
        let mut wanted = states
            .filter(|state| state.key.point.operation as usize <= last)
            .inspect(|_| taken += 1);
        let mut failed_at = None;
        in_parallel(
            test.jobs,
            wanted.by_ref(),
            |_, state: &CrashState| {
                let begun = Instant::now();
                self.check_state(state, None).map(|check| (check, begun.elapsed()))
            },
            |state, checked| {
                tried += 1;
                if let Ok((check, duration)) = &checked {
                    self.tell_program(&state, check, *duration);
                }
                match checked {
                    Ok((Check::Passed { .. }, _)) => ControlFlow::Continue(()),
                    Ok((Check::Failed { reason }, _)) => {
                        failed += 1;
                        failed_at = Some(state.key.point.operation);
                        let kind = |reason: &str| FailureKind::new("", reason);
                        let fails = |state: &CrashState| match self.check_state(state, None) {
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
        let untried = wanted.next().is_some() || taken > tried;
        let stopped_at = failed_at.filter(|_| untried);
        let findings = explainer.findings();
        Ok(Explored { findings, reasons, tried, failed, coverage, stopped_at })
    }

    fn check_state(&self, state: &CrashState, log: Option<&Path>) -> io::Result<Check> {
        let label = state.label.as_deref().unwrap_or_default();
        self.check(&state.tree, state.key.point.operation as usize, label, state.acks, log)
    }

    /// Writes the event of a checked state.
    fn tell_program(&self, state: &CrashState, check: &Check, duration: Duration) {
        let written = self.events.state(&CheckedState {
            test: &self.session.invocation.test,
            index: self.session.index,
            state: &state.key.to_string(),
            point: state.key.point.operation as usize,
            label: state.label.as_deref(),
            duration,
            reason: match check {
                Check::Passed { .. } => None,
                Check::Failed { reason } => Some(reason),
            },
        });
        report_error(written, variables::EVENTS);
    }

    /// Checks a state; the output of the check is kept in `log`, if given.
    fn check(
        &self,
        tree: &model::Tree,
        point: usize,
        label: &str,
        acks: usize,
        log: Option<&Path>,
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
        if let Some(log) = log {
            let written = self.dirs.log(number, FailedPhase::Verify);
            place.keep_log(&written)?;
            ignore_missing(fs::rename(written, log))?;
        }
        self.states.put_back(place);
        self.dirs.remove(number)?;
        Ok(check)
    }

    /// Reports one finding, and leaves its state, its description and the output of its check beside the log.
    fn tell(&self, finding: &Finding, known: &str, log: &Path) -> String {
        let Finding { id, sentence, states, key, .. } = finding;
        let Session { invocation, index, seed, .. } = self.session;
        let model = self.session.options.model;
        let directory = self.dirs.finding(id);
        let (label, reason) = match self.keep(finding, &directory) {
            Ok((label, reason)) => (label, reason.unwrap_or_else(|| known.to_owned())),
            Err(error) => {
                say(&format!("{}: {error}", directory.display()));
                (None, known.to_owned())
            }
        };
        let state = key.to_string();
        let repro = invocation.replay(&log.display().to_string(), &state, *seed, *index);
        let record = Object::new()
            .string("id", id)
            .string("model", model.name())
            .string("sentence", sentence)
            .string("state", &state)
            .number("states", *states as u64)
            .string_or_null("label", label.as_deref())
            .string("phase", FailedPhase::Verify.word())
            .string("reason", &reason)
            .number("seed", *seed)
            .string("repro", &repro);
        let path = self.dirs.finding_record(id);
        report_error(fs::write(&path, record.line()), &path.display().to_string());
        let written = self.events.finding(&FoundCause {
            test: &invocation.test,
            index: *index,
            id,
            sentence,
            state: &state,
            states: *states,
            reason: &reason,
            work_dir: &directory,
        });
        report_error(written, variables::EVENTS);
        let directory = directory.display();
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

    /// Keeps the state of a finding and the output of its check. Returns the label before the crash, and how
    /// the check fails.
    fn keep(
        &self,
        finding: &Finding,
        directory: &Path,
    ) -> io::Result<(Option<String>, Option<String>)> {
        let recording = &self.states.recording;
        let options = options(self.session);
        let rebuilt = model::rebuild(recording, self.session.options.model, &options, &finding.key);
        let Ok(Some(state)) = rebuilt else { return Ok((None, None)) };
        fs::create_dir(directory)?;
        retake_crash::materialise(&state.tree, directory)?;
        let state = CrashState { acks: finding.acks, ..state };
        let reason = match self.check_state(&state, Some(&self.dirs.check_log(&finding.id)))? {
            Check::Failed { reason } => Some(reason),
            Check::Passed { .. } => None,
        };
        Ok((state.label, reason))
    }
}
