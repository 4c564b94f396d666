//! A crash test on the record: begun before anything runs, and always ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use retake_crash::operation::Recording;
use retake_crash_driver::changes::changes_anything;
use retake_crash_driver::check_worker::CheckWorkers;
use retake_crash_driver::crash_test::CrashTest;
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::event::CrashObserver;
use retake_crash_driver::fault_run::{FaultLaunch, FaultRun};
use retake_crash_driver::finding::{Findings, recovery_log};
use retake_crash_driver::loop_recorder::CrashRecorder;
use retake_crash_driver::remote_exploration::RemoteExplorer;
use retake_crash_driver::report::CrashReport;
use retake_crash_driver::source_places::SourcePlaces;
use retake_engine::{Launch, quote};
use retake_runner::signals;
use retake_types::loop_record::crash::{CrashFaults, CrashPlan, CrashPurpose};
use retake_types::request::millis;
use retake_types::{SandboxRequest, StopReason};

use super::bundle::ExploredShard;
use super::options::{CrashProject, ExplorationArgs, write_log};
use super::output::write_report;
#[cfg(feature = "slurm")]
use super::remote::RemoteTarget;
use super::{CrashFailure, fault, newest};
use crate::{Exit, Failure, bundle_file, term};

/// A build without Slurm has no remote targets.
#[cfg(not(feature = "slurm"))]
enum RemoteTarget {}

#[cfg(not(feature = "slurm"))]
impl RemoteTarget {
    fn find(on: &str, _project: &CrashProject) -> Result<Self, Failure> {
        Err(Failure::Usage(format!("--on {on}: this retake was built without Slurm")))
    }

    fn explorer<'a>(
        self,
        _project: &'a CrashProject,
        _jobs: Option<u16>,
    ) -> std::io::Result<Box<dyn RemoteExplorer + 'a>> {
        match self {}
    }
}

/// How many logs of tests with findings are kept.
const KEPT_LOGS: usize = 20;

/// What is tested.
pub(super) enum Source {
    Program { command: String, root: PathBuf },
    Log { log: PathBuf, root: PathBuf },
}

impl Source {
    /// The program, or the log that is explored instead, as one line.
    fn text(&self) -> String {
        match self {
            Self::Program { command, .. } => command.clone(),
            Self::Log { log, .. } => log.to_string_lossy().into_owned(),
        }
    }
}

pub(super) struct CrashSession<'a> {
    pub(super) project: &'a CrashProject,
    args: &'a ExplorationArgs,
    source: Source,
    pub(super) recorder: CrashRecorder<'a>,
    observer: &'a dyn CrashObserver,
    begun: Instant,
    /// The machines that check states; `None` for this machine.
    remote: Option<RemoteTarget>,
    /// How checks are confined.
    sandbox: SandboxRequest,
    /// Which calls are made to fail, if any.
    pub(super) faults: Option<CrashFaults>,
}

impl<'a> CrashSession<'a> {
    pub(super) fn begin(
        project: &'a CrashProject,
        args: &'a ExplorationArgs,
        source: Source,
        faults: Option<CrashFaults>,
        begun: Instant,
        observer: &'a dyn CrashObserver,
    ) -> Result<Self, CrashFailure> {
        if let Some(bundle) = &args.bundle {
            bundle_file::check_place(bundle)?;
        }
        let sandbox = project.sandbox(&args.sandbox)?;
        if sandbox.is_on() && faults.is_some() {
            let why = "--faults records the program again and again, and what is recorded cannot be \
                       confined; give --sandbox=off or leave --faults out";
            return Err(Failure::Usage(why.to_owned()).into());
        }
        if args.on.is_some() && faults.is_some() {
            let why = "--faults runs the program on this machine; leave --on or --faults out";
            return Err(Failure::Usage(why.to_owned()).into());
        }
        if sandbox.is_on() && args.on.is_some() {
            return Err(Failure::Usage(crate::words::SANDBOX_IS_LOCAL.to_owned()).into());
        }
        if sandbox.is_on() && args.recovery {
            let why = "--recovery records checks, and what is recorded cannot be confined; \
                       give --sandbox=off or leave --recovery out";
            return Err(Failure::Usage(why.to_owned()).into());
        }
        let remote = args.on.as_ref().map(|on| RemoteTarget::find(on, project)).transpose()?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let (purpose, root, command, log) = match &source {
            Source::Program { command, root } => {
                (CrashPurpose::Run, root, Some(command.clone()), None)
            }
            Source::Log { log, root } => (CrashPurpose::Explore, root, None, Some(text(log))),
        };
        let plan = CrashPlan {
            purpose,
            root: text(root),
            command,
            log,
            verify: args.verify().to_owned(),
            model: args.model.name().to_owned(),
            jobs: args.jobs(),
            budget_ms: args.budget.map(millis),
            verify_timeout_ms: millis(args.verify_timeout),
            seed: args.seed,
            recovery: args.recovery,
            on: args.on.clone(),
            faults,
        };
        let recorder = CrashRecorder::begin(project.store()?, &plan, project.redactor(), observer);
        Ok(Self { project, args, source, recorder, observer, begun, remote, sandbox, faults })
    }

    /// Ends the loop if `result` is an error.
    pub(super) fn end_if_failed<T>(
        &mut self,
        result: Result<T, CrashTestError>,
    ) -> Result<T, CrashFailure> {
        if result.is_err() {
            let stopped = signals::received().is_some();
            let reason = if stopped { StopReason::Interrupted } else { StopReason::CouldNotTest };
            self.recorder.finish(&reason);
        }
        Ok(result?)
    }

    /// The path of the log, which exists only if there are findings.
    fn log(&self) -> PathBuf {
        match &self.source {
            Source::Log { log, .. } => log.clone(),
            Source::Program { .. } => {
                self.project.logs().join(format!("{}.log", self.recorder.id()))
            }
        }
    }

    /// `program` starts the program again, if calls are made to fail.
    pub(super) fn explore(
        &mut self,
        recording: &Recording,
        places: &SourcePlaces,
        program: Option<Launch>,
    ) -> Result<Exit, CrashFailure> {
        let args = self.args;
        if !changes_anything(recording) {
            let nothing = CrashTestError::NothingWritten(recording.root.clone());
            return self.end_if_failed(Err(nothing));
        }
        let log = self.log();
        let report = self.test(recording, places, program, &log);
        if let (Err(CrashTestError::Cancelled), Source::Program { .. }) = (&report, &self.source) {
            // With a log the states can be checked later without running the program again.
            let kept = self.keep_log(recording, &log);
            self.end_if_failed(kept)?;
            newest::note(self.project, Some(&log));
            term::say(&interrupted_text(&log));
        }
        let report = self.end_if_failed(report)?;
        let kept = self.keep(&report, recording, &log);
        self.end_if_failed(kept)?;
        if let Source::Program { .. } = self.source {
            let kept = !report.is_clean() || report.interrupted.is_some();
            newest::note(self.project, kept.then_some(log.as_path()));
        }
        if let Some((shard, path)) = args.shard.zip(args.bundle.as_deref()) {
            let explored = ExploredShard {
                shard,
                args,
                recording,
                report: &report,
                took: self.begun.elapsed(),
                redactor: self.project.redactor(),
            };
            explored.write(path, &mut self.recorder)?;
        }
        self.recorder.finish(&match (signals::received(), &report) {
            (Some(_), _) => StopReason::Interrupted,
            (None, report) if !report.is_clean() => StopReason::Findings,
            (None, report) if report.lacks_answers() => StopReason::Incomplete,
            (None, report) if report.is_complete() => StopReason::Clean,
            (None, _) => StopReason::Budget,
        });
        let exit = write_report(args, &report, (recording, places), self.begun.elapsed());
        if report.interrupted.is_some() {
            term::say(&interrupted_text(&log));
        }
        exit
    }

    /// Starts the workers and checks every state.
    fn test(
        &mut self,
        recording: &Recording,
        places: &SourcePlaces,
        program: Option<Launch>,
        log: &Path,
    ) -> Result<CrashReport, CrashTestError> {
        let (args, project) = (self.args, self.project);
        let check = project.check(args.verify(), args.verify_timeout, &self.sandbox)?;
        let remote = self.remote.take();
        let here = if remote.is_some() { 1 } else { args.jobs() };
        // A keeper is a fork, which must not inherit the open record.
        let started = self.recorder.while_closed(|| {
            // Started before the mounts over the recorded directory, which the scheduler's programs must not see.
            let remote = remote.map(|remote| remote.explorer(project, args.jobs)).transpose()?;
            let sandbox = project.check_sandbox(&project.here, &self.sandbox);
            let workers = CheckWorkers::start_confined(here, recording, !args.recovery, sandbox)?;
            Ok((workers, remote))
        });
        let (mut workers, mut remote) = started.map_err(CrashTestError::NoWorkers)?;
        let log = log.to_string_lossy();
        let own = std::env::current_exe().map_err(CrashTestError::NoWorkers)?;
        let command = |run: &FaultRun| fault::arguments(&own, run);
        let faults = program.map(|program| FaultLaunch { program, command: &command });
        let test = CrashTest {
            recording,
            places,
            model: args.model,
            check: &check,
            deadline: args.budget.map(|budget| self.begun + budget),
            seed: args.seed,
            recovery: args.recovery,
            faults: faults.as_ref(),
            crashes: self.faults != Some(CrashFaults::Only),
            command: self.source.text(),
            repro: &|id| quote(["retake", "crash", "repro", &log, id]),
            observer: self.observer,
            shard: args.shard,
        };
        let remote = remote.as_mut().map(|remote| &mut **remote as &mut dyn RemoteExplorer);
        test.run(&mut workers, &mut self.recorder, remote)
    }

    fn keep_log(&self, recording: &Recording, log: &Path) -> Result<(), CrashTestError> {
        let logs = self.project.logs();
        let failed = |source| CrashTestError::File { action: "create", path: logs.clone(), source };
        std::fs::create_dir_all(&logs).map_err(failed)?;
        remove_old_logs(&logs);
        write_log(log, recording)
    }

    /// Writes the log and the findings for `repro`. A complete test without findings leaves no files.
    fn keep(
        &self,
        report: &CrashReport,
        recording: &Recording,
        log: &Path,
    ) -> Result<(), CrashTestError> {
        if let Source::Program { .. } = self.source {
            if report.is_clean() && report.interrupted.is_none() {
                return Ok(());
            }
            self.keep_log(recording, log)?;
        }
        for (id, recovery) in report.recoveries.iter().chain(&report.faulted) {
            write_log(&recovery_log(log, id), recovery)?;
        }
        let check = self.project.check(
            self.args.verify(),
            self.args.verify_timeout,
            &SandboxRequest::default(),
        )?;
        let findings = Findings::new(report.model, &check, report.findings.clone());
        if let Source::Log { .. } = self.source
            && keeps_earlier(&findings, report, log)
        {
            return Ok(());
        }
        findings.write(log).map_err(|source| CrashTestError::File {
            action: "write",
            path: Findings::path(log),
            source,
        })
    }
}

/// Whether the findings of an earlier exploration of this log stay: this one found none, but with
/// another check or model, or it was not complete. Says so, and what is replaced otherwise.
fn keeps_earlier(new: &Findings, report: &CrashReport, log: &Path) -> bool {
    // What cannot be read is replaced.
    let Ok(Some(earlier)) = Findings::read(log) else { return false };
    let same = (&earlier.model, &earlier.verify) == (&new.model, &new.verify)
        && (earlier.directory.is_none() || earlier.directory == new.directory);
    if earlier.findings.is_empty() || (same && report.is_complete()) {
        return false;
    }
    let keeps = new.findings.is_empty();
    let verb = if keeps { "are kept" } else { "are replaced" };
    let count = term::count(earlier.findings.len() as u64, "finding");
    term::say(&format!(
        "{}: the {count} of an earlier exploration {verb} (check `{}`, model {})",
        log.display(),
        earlier.verify,
        earlier.model
    ));
    keeps
}

/// How to continue an interrupted test.
fn interrupted_text(log: &Path) -> String {
    let log = log.to_string_lossy();
    let command = quote(["retake", "crash", "explore", &log]);
    format!("the recording is kept: `{command}` checks its states without running the program")
}

/// Removes all but the newest logs, with the files beside them. Names begin with the id of the loop, so
/// they sort by time.
fn remove_old_logs(logs: &Path) {
    let Ok(entries) = std::fs::read_dir(logs) else { return };
    let mut files: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((id, _)) = name.split_once(".log") {
            files.entry(id.to_owned()).or_default().push(entry.path());
        }
    }
    let old = (files.len() + 1).saturating_sub(KEPT_LOGS);
    for path in files.into_values().take(old).flatten() {
        if let Err(error) = std::fs::remove_file(&path) {
            term::say(&format!("{} cannot be removed: {error}", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_logs_go_with_all_that_belongs_to_them() {
        let dir = tempfile::tempdir().unwrap();
        for number in 10..10 + KEPT_LOGS {
            for end in ["log", "log.findings.json", "log.F2.log"] {
                std::fs::write(dir.path().join(format!("{number}.{end}")), "").unwrap();
            }
        }
        std::fs::write(dir.path().join("something else"), "").unwrap();
        remove_old_logs(dir.path());
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        // One less than the limit: the next log makes it complete.
        assert_eq!(left.len(), 3 * (KEPT_LOGS - 1) + 1);
        assert_eq!(left[0], "11.log");
    }
}
