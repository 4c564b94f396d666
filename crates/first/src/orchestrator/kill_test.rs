//! A test under the model `kill`: the workload is killed at each crash point, and the resulting state is checked.
//!
//! Runs the steps of the plan as children. If the workload could be recorded, a crash is taken
//! from the recording instead of a child that kills itself.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use retake_crash::model::Model;

use super::child_process::{ChildCommand, RunningChildren};
use super::directory_digest::DirectoryHasher;
use super::events::{CrashPoint, Events, Summary};
use super::look_ahead::LookAhead;
use super::plan::{Executed, FailedPhase, Finish, Goal, Line, Plan, Step};
use super::plan_driver::{self, ChildRunner, PointOutcome};
use super::point_trace::PointTrace;
use super::recorded_workload::{CheckPlace, RecordedWorkload, StateToCheck, keep_directory};
use super::report::{FailureReport, say};
use super::run_directories::RunDirectories;
use super::session::{Session, record_workload, report_error};
use super::verdict::{self, Check, Execution};
use crate::channel::Message;
use crate::variables;
use retake_crash::text::count;

/// Tries the crash points. The error is the message to fail the test with.
pub(super) fn run(
    session: &Session<'_>,
    dirs: RunDirectories,
    events: Events,
) -> Result<(), String> {
    let mut supervisor =
        Supervisor { session, dirs, events, summary: Summary::default(), failures: Vec::new() };
    let finish = supervisor.explore();
    supervisor.close(&finish)
}

struct Supervisor<'a> {
    session: &'a Session<'a>,
    dirs: RunDirectories,
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
        let mut runner = StepRunner {
            session: self.session,
            dirs: &self.dirs,
            running: RunningChildren::new(),
            hasher: DirectoryHasher::default(),
            recorded: None,
            promises: Mutex::new(HashMap::new()),
            ahead: LookAhead::new(options.jobs),
        };
        runner.recorded = runner.record();
        if let Some(left) = runner.recorded.as_ref().and_then(RecordedWorkload::left_running) {
            say(&left);
        }
        let mut lines = Vec::new();
        let told = &mut |line: Line, duration: Duration| {
            // A directory is removed, or a failure reported, before the next line.
            lines.extend(tell(
                self.session,
                &self.dirs,
                &self.events,
                &mut self.summary,
                &line,
                duration,
            ));
        };
        let children = ChildRunner {
            run: &|step| runner.run(step),
            end_beyond: &|bound| runner.running.end_beyond(bound),
        };
        let finish = plan_driver::drive(&mut plan, options.jobs, &children, told);
        if runner.recorded.is_some() {
            let log = self.dirs.recording_log();
            report_error(std::fs::remove_file(&log), &log.display().to_string());
        }
        self.failures = lines;
        for target in plan.untold() {
            let directory = self.dirs.run_dir(target);
            report_error(self.dirs.remove(target), &directory.display().to_string());
        }
        finish
    }

    /// Reports the end. Runs that were ahead and not needed have removed themselves.
    fn close(self, finish: &Finish) -> Result<(), String> {
        let Self { session, dirs, events, mut summary, failures } = self;
        let passed = summary.ok + summary.pruned;
        let only = session.variables.only;
        let result = match finish {
            Finish::Exhausted => Ok(Some(format!("all {} passed", count(passed, "crash point")))),
            Finish::Limited if only.is_some() => Ok(None),
            Finish::Limited => {
                let points = count(passed, "crash point");
                Ok(Some(format!("the first {points} passed; there may be more")))
            }
            // The point was selected, and a fix may have removed it: nothing shows that it passes.
            Finish::PastTheEnd { points } => {
                let why = format!(
                    "the workload has {}; there is no crash point {}: nothing was tested",
                    count(*points as u64, "crash point"),
                    only.unwrap_or_default()
                );
                summary.reason = Some(why.clone());
                Err(why)
            }
            Finish::Failed => Err(failures.join("\n")),
        };
        let written = events.summary(&session.invocation.test, session.index, &summary);
        report_error(written, variables::EVENTS);
        dirs.remove_if_empty();
        result.map(|said| {
            if let Some(line) = said {
                say(&line);
            }
        })
    }
}

/// Reports one result. Returns the message of a failure for the end.
fn tell(
    session: &Session<'_>,
    dirs: &RunDirectories,
    events: &Events,
    summary: &mut Summary,
    line: &Line,
    duration: Duration,
) -> Option<String> {
    let target = plan_driver::target(line);
    let directory = dirs.run_dir(target);
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
    report_error(events.crash_point(&event), variables::EVENTS);
    let Line::Failed(failure) = line else {
        report_error(dirs.passed(target), &directory.display().to_string());
        return None;
    };
    let told = FailureReport {
        failure,
        directory: &directory,
        log: &dirs.log(target, failure.phase),
        seed: session.seed,
        repro: session.invocation.reproduce(target, session.seed, session.index),
    };
    told.print();
    report_error(told.record(&dirs.record(target)), &dirs.record(target).display().to_string());
    Some(told.message())
}

fn not_executed(reason: String) -> Executed {
    Executed { result: Execution::Failed { reason }, trace: PointTrace::default(), state: None }
}

/// Runs the children. Called on several threads.
struct StepRunner<'a> {
    session: &'a Session<'a>,
    dirs: &'a RunDirectories,
    running: RunningChildren,
    hasher: DirectoryHasher,
    /// Set if the workload could be recorded.
    recorded: Option<RecordedWorkload>,
    /// If not, by target: the promises made before the crash.
    promises: Mutex<HashMap<usize, Vec<Vec<u8>>>>,
    ahead: LookAhead,
}

impl StepRunner<'_> {
    fn run(&self, step: &Step) -> PointOutcome {
        match step {
            Step::Execute { target } => PointOutcome::Executed(self.execute(*target)),
            Step::Verify { target, label } => PointOutcome::Checked(self.verify(*target, label)),
        }
    }

    /// Records the workload, unless that is disabled, or only one crash is requested: that one is a
    /// real one.
    fn record(&self) -> Option<RecordedWorkload> {
        if self.session.variables.only.is_some() || self.session.options.model != Model::Kill {
            return None;
        }
        match record_workload(self.session, self.dirs) {
            Ok(recorded) => recorded,
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
        let Some(recorded) = &self.recorded else { return self.execute_killed(target) };
        match recorded.executed(target) {
            Some(executed) => self.as_if_crashed(target, executed),
            None => self.confirm_end(recorded, target),
        }
    }

    /// Runs the workload once more, beyond the end of the recording: it must end there again. It
    /// runs in the recorded directory, in memory if possible, because no crash happens there.
    fn confirm_end(&self, recorded: &RecordedWorkload, target: usize) -> Executed {
        let root = &recorded.states.recording.root;
        let executed = self.execute_in(target, root);
        let kept = match executed.result {
            Execution::Ended { .. } => Ok(()),
            _ if !root.is_dir() => Ok(()),
            _ => keep_directory(root, &self.dirs.run_dir(target)),
        };
        report_error(kept, &self.dirs.run_dir(target).display().to_string());
        report_error(retake_crash::scratch::empty_dir(root), &root.display().to_string());
        executed
    }

    /// Runs the workload until it kills itself at this point.
    fn execute_killed(&self, target: usize) -> Executed {
        let directory = match self.dirs.create_run_dir(target) {
            Ok(directory) => directory,
            Err(error) => {
                let path = self.dirs.run_dir(target);
                return not_executed(format!(
                    "cannot make the directory {}: {error}",
                    path.display()
                ));
            }
        };
        self.execute_in(target, &directory)
    }

    /// Runs the workload in an existing, empty directory. The result is kept, unless the workload
    /// ended: then its run is removed.
    fn execute_in(&self, target: usize, directory: &Path) -> Executed {
        let fail = not_executed;
        let command = self.child_command(target, FailedPhase::Execution, directory, Vec::new());
        let outcome = match self.running.run(&command) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_unwanted)) => {
                report_error(self.dirs.remove(target), &directory.display().to_string());
                return fail("ended, because nobody waits for it".into());
            }
            Err(error) => return fail(format!("cannot run a child: {error}")),
        };
        let mut result = verdict::execution(&outcome, target);
        let mut state = None;
        match &result {
            Execution::Crashed { .. } if !directory.is_dir() => {
                let reason = "the workload deleted or replaced its own directory".into();
                result = Execution::Failed { reason };
            }
            // An unreadable state cannot be compared, so it is always checked.
            Execution::Crashed { .. } => state = self.hasher.digest(directory).ok(),
            Execution::Ended { .. } => {
                report_error(self.dirs.remove(target), &directory.display().to_string());
            }
            Execution::Failed { .. } => {}
        }
        let promises = outcome.messages.iter().filter_map(|message| match message {
            Message::Promise { said } => Some(said.clone()),
            _ => None,
        });
        self.promised().insert(target, promises.collect());
        Executed { result, trace: PointTrace::of(&outcome.messages), state }
    }

    /// A failed workload keeps its directory and its output, as if it had been run for this
    /// target alone.
    fn as_if_crashed(&self, target: usize, executed: Executed) -> Executed {
        let keep = matches!(executed.result, Execution::Failed { .. });
        if let Some(recorded) = self.recorded.as_ref().filter(|_| keep) {
            let directory = self.dirs.run_dir(target);
            let kept = self
                .dirs
                .create_run_dir(target)
                .and_then(|to| retake_crash::materialise(recorded.state(target).0, &to));
            report_error(kept, &directory.display().to_string());
            report_error(self.keep_recording_log(target), &directory.display().to_string());
        }
        executed
    }

    /// Keeps the workload's output, beside the kept directory.
    fn keep_recording_log(&self, target: usize) -> io::Result<()> {
        let log = self.dirs.log(target, FailedPhase::Execution);
        std::fs::copy(self.dirs.recording_log(), log).map(|_| ())
    }

    fn promised(&self) -> MutexGuard<'_, HashMap<usize, Vec<Vec<u8>>>> {
        self.promises.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the state that a crash at this point leaves according to the recording.
    fn verify_recorded(
        &self,
        recorded: &RecordedWorkload,
        target: usize,
        label: &str,
    ) -> io::Result<Check> {
        let (tree, acks) = recorded.state(target);
        let state = StateToCheck { tree, acks, point_id: target, label };
        let mut place = recorded.states.place(target)?;
        let command = |place: &CheckPlace| {
            self.child_command(target, FailedPhase::Verify, &place.seen, Vec::new())
        };
        let meanwhile = || self.prepare_after(recorded, target);
        let outcome =
            recorded.states.check(&mut place, &state, &self.running, &command, &meanwhile)?;
        let check = match outcome {
            Ok(outcome) => match verdict::check(&outcome) {
                Check::Passed { .. } if !place.directory.is_dir() => {
                    Check::Failed { reason: "verify deleted or replaced its directory".into() }
                }
                check => check,
            },
            Err(_unwanted) => {
                recorded.states.put_back(place);
                return Ok(Check::Failed { reason: "ended, because nobody waits for it".into() });
            }
        };
        if matches!(check, Check::Failed { .. }) || self.session.variables.keep_artifacts {
            place.keep_log(&self.dirs.log(target, FailedPhase::Verify))?;
        }
        let (check, confirmed) = match check {
            Check::Failed { reason } => self.confirm(target, label, reason),
            Check::Passed { looked } => {
                self.ahead.passed(tree, looked);
                (Check::Passed { looked }, false)
            }
        };
        let failed = matches!(check, Check::Failed { .. });
        if !confirmed
            && place.directory.is_dir()
            && (failed || self.session.variables.keep_artifacts)
        {
            keep_directory(&place.directory, &self.dirs.run_dir(target))?;
            self.keep_recording_log(target)?;
        }
        recorded.states.put_back(place);
        Ok(check)
    }

    /// Writes the state that is probably checked after this one.
    fn prepare_after(&self, recorded: &RecordedWorkload, target: usize) {
        let next = self.ahead.after(target, |target| recorded.point(target));
        if let Some(next) = next {
            let (tree, acks) = recorded.state(next);
            // The label is only for a check that is started as a program, unlike this one.
            let state = StateToCheck { tree, acks, point_id: next, label: "" };
            // An error is handled, or reported, when the state is checked.
            _ = recorded.states.prepare(&state, &|place| {
                self.child_command(next, FailedPhase::Verify, &place.seen, Vec::new())
            });
        }
    }

    /// A failure in the recording is reported after a real kill has shown it: the workload
    /// runs again, kills itself at the point, and the result is checked. Returns whether that fails, too.
    fn confirm(&self, target: usize, label: &str, reason: String) -> (Check, bool) {
        // The output of the recorded state's check, until it is known which of the two counts.
        let log = self.dirs.log(target, FailedPhase::Verify);
        let said = log.with_extension("recorded");
        report_error(std::fs::rename(&log, &said), &log.display().to_string());
        let unconfirmed = |how: &str| {
            // A new run that behaves differently is no reason to doubt the recorded one.
            let directory = self.dirs.run_dir(target);
            report_error(self.dirs.remove(target), &directory.display().to_string());
            report_error(std::fs::rename(&said, &log), &log.display().to_string());
            (Check::Failed { reason: format!("{reason}\n{how}") }, false)
        };
        match self.execute_killed(target).result {
            Execution::Crashed { .. } => match self.verify_killed(target, label) {
                confirmed @ Check::Failed { .. } => {
                    let acks = self.dirs.acks(target);
                    report_error(std::fs::remove_file(&acks), &acks.display().to_string());
                    report_error(std::fs::remove_file(&said), &said.display().to_string());
                    (confirmed, true)
                }
                Check::Passed { .. } => unconfirmed(
                    "(the recorded run fails; a fresh one that was killed at this point passes: the \
                     workload does not do the same each time)",
                ),
            },
            Execution::Ended { .. } => unconfirmed(
                "(the recorded run fails; a fresh one does not come to this point: the workload does \
                 not do the same each time)",
            ),
            Execution::Failed { reason: other } => unconfirmed(&format!(
                "(the recorded run fails; a fresh one could not be killed: {other})"
            )),
        }
    }

    fn verify(&self, target: usize, label: &str) -> Check {
        match &self.recorded {
            Some(recorded) => {
                self.verify_recorded(recorded, target, label).unwrap_or_else(|error| {
                    Check::Failed { reason: format!("cannot run a child: {error}") }
                })
            }
            None => self.verify_killed(target, label),
        }
    }

    /// Checks the state after a real kill.
    fn verify_killed(&self, target: usize, label: &str) -> Check {
        let directory = self.dirs.run_dir(target);
        let acks = self.dirs.acks(target);
        let promises = self.promised().remove(&target).unwrap_or_default();
        if let Err(error) = std::fs::write(&acks, retake_crash::verify::ack_lines(&promises)) {
            return Check::Failed { reason: format!("{}: {error}", acks.display()) };
        }
        let set = vec![
            (variables::CRASH_POINT_ID, target.to_string().into()),
            (variables::CRASH_LABEL, label.into()),
            (variables::ACKS, acks.into()),
        ];
        let command = self.child_command(target, FailedPhase::Verify, &directory, set);
        match self.running.run(&command) {
            Ok(Ok(outcome)) => match verdict::check(&outcome) {
                Check::Passed { .. } if !directory.is_dir() => {
                    Check::Failed { reason: "verify deleted or replaced its directory".into() }
                }
                check => check,
            },
            Ok(Err(_unwanted)) => {
                report_error(self.dirs.remove(target), &directory.display().to_string());
                Check::Failed { reason: "ended, because nobody waits for it".into() }
            }
            Err(error) => Check::Failed { reason: format!("cannot run a child: {error}") },
        }
    }

    fn child_command(
        &self,
        target: usize,
        phase: FailedPhase,
        directory: &Path,
        set: Vec<(&'static str, OsString)>,
    ) -> ChildCommand<'_> {
        self.session.child_command(self.dirs, target, phase, directory, set)
    }
}
