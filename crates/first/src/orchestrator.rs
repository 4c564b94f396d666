//! The supervisor: joins the plan, real children, the directories and the report.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::channel::Message;
use crate::drive::{self, Children, Outcome};
use crate::events::{CrashPoint, Events, Summary};
use crate::name::Invocation;
use crate::once::Once;
use crate::options::Options;
use crate::place::Place;
use crate::plan::{Executed, FailedPhase, Finish, Goal, Line, Plan, Step};
use crate::power;
use crate::problem::Problem;
use crate::process::{Launch, Running};
use crate::report::{Told, say};
use crate::state::Eye;
use crate::trace::Trace;
use crate::variables::{self, RECORD, Variables};
use crate::verdict::{self, Check, Execution};
use retake_crash::model::Model;
use retake_crash::recorder::RecordError;
use retake_crash::scratch::ignore_missing;

/// One FIRST test of a test function.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) invocation: &'a Invocation,
    pub(crate) index: usize,
    pub(crate) seed: u64,
    pub(crate) options: &'a Options,
    pub(crate) variables: &'a Variables,
}

/// Tries the crash points. The error is the message to fail the test with.
pub(crate) fn run(session: &Session<'_>) -> Result<(), String> {
    let variables = session.variables;
    let told = |problem: Problem| problem.to_string();
    let events = Events::open(variables.events.as_deref()).map_err(told)?;
    let place = Place::make(
        variables.work_dir.as_deref(),
        &session.invocation.test,
        session.index,
        variables.keep_artifacts,
    )
    .map_err(told)?;
    if let (Some(log), Some(state)) = (&variables.replay, &variables.state) {
        let replayed = power::replay(session, &place, log, state);
        place.tidy();
        return replayed;
    }
    if session.options.model != Model::Kill {
        match once(session, &place) {
            Ok(Some(once)) => {
                let result = power::run(session, &place, &once);
                complain(std::fs::remove_file(place.recording_log()), "the recording's output");
                place.tidy();
                return result;
            }
            Ok(None) => weaker(session, &format!("{RECORD}=0")),
            Err(error) if error.needs_re_execution() => weaker(session, &error.to_string()),
            Err(error) => {
                place.tidy();
                return Err(error.to_string());
            }
        }
    }
    let mut supervisor =
        Supervisor { session, place, events, summary: Summary::default(), failures: Vec::new() };
    let finish = supervisor.explore();
    supervisor.close(&finish)
}

/// The crash points are killed instead: no write is ever lost.
fn weaker(session: &Session<'_>, why: &str) {
    let model = session.options.model;
    say(&format!("not recorded ({why}): weaker than {model}, crash points are only killed"));
}

/// Records the workload, unless it was said not to.
fn once(session: &Session<'_>, place: &Place) -> Result<Option<Once>, RecordError> {
    if session.variables.record == Some(false) {
        return Ok(None);
    }
    let log = place.recording_log();
    let launch = |root: &Path| {
        let mut launch = session.launch(place, 1, FailedPhase::Execution, root, Vec::new());
        // No workload has that many points.
        launch.set.push((variables::CRASH_TARGET, usize::MAX.to_string().into()));
        launch.log = log.clone();
        launch
    };
    let recorded = Once::record(session.variables.work_dir.as_deref(), launch);
    if recorded.is_err() {
        complain(ignore_missing(std::fs::remove_file(&log)), &log.display().to_string());
    }
    recorded.map(Some)
}

impl<'a> Session<'a> {
    /// A child of this test.
    pub(crate) fn launch(
        &self,
        place: &Place,
        target: usize,
        phase: FailedPhase,
        directory: &Path,
        mut set: Vec<(&'static str, OsString)>,
    ) -> Launch<'a> {
        let word = match phase {
            FailedPhase::Execution => "EXECUTION",
            FailedPhase::Verify => "VERIFY",
        };
        set.extend([
            (variables::PHASE, word.into()),
            (variables::CRASH_TARGET, target.to_string().into()),
            (variables::WORK_DIR, directory.into()),
            (variables::SEED, self.seed.to_string().into()),
            (variables::TEST_NAME, self.invocation.test.as_str().into()),
            (variables::TEST_INDEX, self.index.to_string().into()),
        ]);
        Launch {
            target,
            program: &self.invocation.program,
            arguments: &self.invocation.arguments,
            set,
            log: place.log(target, phase),
            timeout: self.options.timeout,
            namespace: None,
        }
    }
}

struct Supervisor<'a> {
    session: &'a Session<'a>,
    place: Place,
    events: Events,
    summary: Summary,
    failures: Vec<String>,
}

impl Supervisor<'_> {
    fn explore(&mut self) -> Finish {
        let (variables, options) = (self.session.variables, self.session.options);
        let mut plan = Plan::new(Goal {
            only: variables.only,
            max_crashes: options.max_crashes,
            keep_going: variables.keep_going.unwrap_or(options.keep_going),
            jobs: options.jobs,
        });
        let mut workshop = Workshop {
            session: self.session,
            place: &self.place,
            running: Running::new(),
            eye: Eye::default(),
            once: None,
            promises: Mutex::new(HashMap::new()),
        };
        workshop.once = workshop.record();
        let mut lines = Vec::new();
        let told = &mut |line: Line, duration: Duration| {
            // A directory goes, or a failure is told, before the next line.
            lines.extend(tell(
                self.session,
                &self.place,
                &self.events,
                &mut self.summary,
                &line,
                duration,
            ));
        };
        let children = Children {
            run: &|step| workshop.run(step),
            end_beyond: &|bound| workshop.running.end_beyond(bound),
        };
        let finish = drive::drive(&mut plan, options.jobs, &children, told);
        if workshop.once.is_some() {
            let log = self.place.recording_log();
            complain(std::fs::remove_file(&log), &log.display().to_string());
        }
        self.failures = lines;
        for target in plan.untold() {
            let directory = self.place.run_dir(target);
            complain(self.place.remove(target), &directory.display().to_string());
        }
        finish
    }

    /// Says how it ended. What ran ahead and was not needed has removed itself.
    fn close(self, finish: &Finish) -> Result<(), String> {
        let Self { session, place, events, summary, failures } = self;
        let passed = summary.ok + summary.pruned;
        complain(events.summary(&session.invocation.test, session.index, &summary), "FIRST_EVENTS");
        place.tidy();
        match finish {
            Finish::Exhausted => say(&format!("all {passed} crash points passed")),
            Finish::Limited if session.variables.only.is_some() => {}
            Finish::Limited => {
                say(&format!("the first {passed} crash points passed; there may be more"));
            }
            Finish::PastTheEnd { points } => say(&format!(
                "the workload has {points} crash points; there is no crash point {}",
                session.variables.only.unwrap_or_default()
            )),
            Finish::Failed => return Err(failures.join("\n")),
        }
        Ok(())
    }
}

/// Tells one result. The message of a failure comes back for the end.
fn tell(
    session: &Session<'_>,
    place: &Place,
    events: &Events,
    summary: &mut Summary,
    line: &Line,
    duration: Duration,
) -> Option<String> {
    let target = drive::target(line);
    let directory = place.run_dir(target);
    let (status, label, reason) = match line {
        Line::Passed { label, .. } => {
            say(&format!("crash point {target}: OK"));
            summary.ok += 1;
            ("ok", Some(label.as_str()), None)
        }
        Line::Same { label, earlier, .. } => {
            say(&format!("crash point {target}: OK (same state as {earlier})"));
            summary.pruned += 1;
            ("pruned", Some(label.as_str()), None)
        }
        Line::Failed(failure) => {
            summary.failed += 1;
            ("failed", failure.label.as_deref(), Some(failure.reason.as_str()))
        }
    };
    let event = CrashPoint {
        test: &session.invocation.test,
        index: session.index,
        target,
        label,
        status,
        work_dir: &directory,
        duration,
        reason,
    };
    complain(events.crash_point(&event), "FIRST_EVENTS");
    let Line::Failed(failure) = line else {
        complain(place.passed(target), &directory.display().to_string());
        return None;
    };
    let told = Told {
        failure,
        directory: &directory,
        log: &place.log(target, failure.phase),
        seed: session.seed,
        repro: session.invocation.reproduce(target, session.seed, session.index),
    };
    told.print();
    complain(told.record(&place.record(target)), &place.record(target).display().to_string());
    Some(told.message())
}

/// A verdict stands even where its paperwork fails, but not silently.
fn complain(result: io::Result<()>, what: &str) {
    if let Err(error) = result {
        say(&format!("{what}: {error}"));
    }
}

/// Makes the children. Called on several threads.
struct Workshop<'a> {
    session: &'a Session<'a>,
    place: &'a Place,
    running: Running,
    eye: Eye,
    /// Where the workload could be recorded.
    once: Option<Once>,
    /// By target, where it was not: what was promised before the crash.
    promises: Mutex<HashMap<usize, Vec<Vec<u8>>>>,
}

impl Workshop<'_> {
    fn run(&self, step: &Step) -> Outcome {
        match step {
            Step::Execute { target } => Outcome::Executed(self.execute(*target)),
            Step::Verify { target, label } => Outcome::Checked(self.verify(*target, label)),
        }
    }

    /// Records the workload, unless it was said not to, or only one crash is wanted: that one is a
    /// real one.
    fn record(&self) -> Option<Once> {
        if self.session.variables.only.is_some() || self.session.options.model != Model::Kill {
            return None;
        }
        match once(self.session, self.place) {
            Ok(once) => once,
            Err(error) => {
                say(&format!(
                    "not recorded ({error}): each crash point runs the workload again, which is \
                     slower, and weaker where its runs differ"
                ));
                None
            }
        }
    }

    fn execute(&self, target: usize) -> Executed {
        if let Some(executed) = self.once.as_ref().and_then(|once| once.executed(target)) {
            return self.as_if_crashed(target, executed);
        }
        let fail = |reason: String| Executed {
            result: Execution::Failed { reason },
            trace: Trace::default(),
            state: None,
        };
        let directory = match self.place.fresh(target) {
            Ok(directory) => directory,
            Err(error) => {
                let path = self.place.run_dir(target);
                return fail(format!("cannot make the directory {}: {error}", path.display()));
            }
        };
        let launch = self.launch(target, FailedPhase::Execution, &directory, Vec::new());
        let ending = match self.running.run(&launch) {
            Ok(Ok(ending)) => ending,
            Ok(Err(_unwanted)) => {
                complain(self.place.remove(target), &directory.display().to_string());
                return fail("ended, because nobody waits for it".into());
            }
            Err(error) => return fail(format!("cannot run a child: {error}")),
        };
        let mut result = verdict::execution(&ending, target);
        let mut state = None;
        match &result {
            Execution::Crashed { .. } if !directory.is_dir() => {
                let reason = "the workload deleted or replaced its own directory".into();
                result = Execution::Failed { reason };
            }
            // Not readable means not comparable, so it is checked whatever it is like.
            Execution::Crashed { .. } => state = self.eye.look(&directory).ok(),
            Execution::Ended { .. } => {
                complain(self.place.remove(target), &directory.display().to_string());
            }
            Execution::Failed { .. } => {}
        }
        let promises = ending.messages.iter().filter_map(|message| match message {
            Message::Promise { said } => Some(said.clone()),
            _ => None,
        });
        self.promised().insert(target, promises.collect());
        Executed { result, trace: Trace::of(&ending.messages), state }
    }

    /// A failed workload leaves its directory and its output, as if it had been run for this
    /// target alone.
    fn as_if_crashed(&self, target: usize, executed: Executed) -> Executed {
        let keep = matches!(executed.result, Execution::Failed { .. });
        if let Some(once) = self.once.as_ref().filter(|_| keep) {
            let directory = self.place.run_dir(target);
            let kept = once.stand(target).and_then(|stand| {
                stand.keep(&directory)?;
                stand.remove()
            });
            complain(kept, &directory.display().to_string());
            complain(self.keep_recording_log(target), &directory.display().to_string());
        }
        executed
    }

    /// What the workload said, beside the directory that is kept.
    fn keep_recording_log(&self, target: usize) -> io::Result<()> {
        let log = self.place.log(target, FailedPhase::Execution);
        std::fs::copy(self.place.recording_log(), log).map(|_| ())
    }

    fn promised(&self) -> MutexGuard<'_, HashMap<usize, Vec<Vec<u8>>>> {
        self.promises.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks what the recording says a crash at this point leaves.
    fn verify_recorded(&self, once: &Once, target: usize, label: &str) -> io::Result<Check> {
        let stand = once.stand(target)?;
        let set = vec![
            (variables::CRASH_POINT_ID, target.to_string().into()),
            (variables::CRASH_LABEL, label.into()),
            (variables::ACKS, stand.acks.clone().into()),
        ];
        let mut launch = self.launch(target, FailedPhase::Verify, &stand.seen, set);
        launch.namespace = stand.namespace.clone();
        let check = match self.running.run(&launch)? {
            Ok(ending) => match verdict::check(&ending) {
                Check::Passed { .. } if !stand.directory.is_dir() => {
                    Check::Failed { reason: "verify deleted or replaced its directory".into() }
                }
                check => check,
            },
            Err(_unwanted) => Check::Failed { reason: "ended, because nobody waits for it".into() },
        };
        let failed = matches!(check, Check::Failed { .. });
        if stand.directory.is_dir() && (failed || self.session.variables.keep_artifacts) {
            stand.keep(&self.place.run_dir(target))?;
            self.keep_recording_log(target)?;
        }
        stand.remove()?;
        Ok(check)
    }

    fn verify(&self, target: usize, label: &str) -> Check {
        if let Some(once) = &self.once {
            return self.verify_recorded(once, target, label).unwrap_or_else(|error| {
                Check::Failed { reason: format!("cannot run a child: {error}") }
            });
        }
        let directory = self.place.run_dir(target);
        let acks = self.place.acks(target);
        let promises = self.promised().remove(&target).unwrap_or_default();
        if let Err(error) = std::fs::write(&acks, retake_crash::verify::ack_lines(&promises)) {
            return Check::Failed { reason: format!("{}: {error}", acks.display()) };
        }
        let set = vec![
            (variables::CRASH_POINT_ID, target.to_string().into()),
            (variables::CRASH_LABEL, label.into()),
            (variables::ACKS, acks.into()),
        ];
        let launch = self.launch(target, FailedPhase::Verify, &directory, set);
        match self.running.run(&launch) {
            Ok(Ok(ending)) => match verdict::check(&ending) {
                Check::Passed { .. } if !directory.is_dir() => {
                    Check::Failed { reason: "verify deleted or replaced its directory".into() }
                }
                check => check,
            },
            Ok(Err(_unwanted)) => {
                complain(self.place.remove(target), &directory.display().to_string());
                Check::Failed { reason: "ended, because nobody waits for it".into() }
            }
            Err(error) => Check::Failed { reason: format!("cannot run a child: {error}") },
        }
    }

    fn launch(
        &self,
        target: usize,
        phase: FailedPhase,
        directory: &Path,
        set: Vec<(&'static str, OsString)>,
    ) -> Launch<'_> {
        self.session.launch(self.place, target, phase, directory, set)
    }
}
