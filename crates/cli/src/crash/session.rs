//! One crash test on the record: begun before anything runs, ended whatever happens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use retake_crash::operation::Recording;
use retake_types::StopReason;

use super::Trouble;
use super::options::{Exploring, Setting, write_log};
use super::tell::tell;
use crate::Exit;
use crate::Failure;
use crate::term;
use retake_crash_driver::chronicle::Chronicle;
use retake_crash_driver::chronicle::Planned;
use retake_crash_driver::finding::Findings;
use retake_crash_driver::finding::recovery_log;
use retake_crash_driver::report::Report;
use retake_crash_driver::station::Stations;
use retake_crash_driver::trial::Trial;
use retake_crash_driver::untested::Untested;
use retake_crash_driver::untested::changed;
use retake_runner::screen::Screen;
use retake_runner::signals;
use retake_slurm::crash::Elsewhere;
use retake_slurm::shared::Shared;
use retake_slurm::slurm::Target;

/// How many logs of tests with findings are kept.
const KEPT_LOGS: usize = 20;

/// What is tested.
pub(super) enum Source {
    Program { shown: String, root: PathBuf },
    Log { log: PathBuf, root: PathBuf },
}

pub(super) struct Session<'a> {
    setting: &'a Setting,
    exploring: &'a Exploring,
    source: Source,
    pub(super) chronicle: Chronicle,
    screen: Screen,
    begun: Instant,
    /// Where states are checked, if not here.
    on: Option<(Shared, Target)>,
}

impl<'a> Session<'a> {
    pub(super) fn begin(
        setting: &'a Setting,
        exploring: &'a Exploring,
        source: Source,
        begun: Instant,
    ) -> Result<Self, Trouble> {
        let on = exploring.on.as_ref().map(|on| elsewhere(on, setting)).transpose()?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let (purpose, root, command, log) = match &source {
            Source::Program { shown, root } => ("run", root, Some(shown.clone()), None),
            Source::Log { log, root } => ("explore", root, None, Some(text(log))),
        };
        let planned = Planned {
            purpose: purpose.to_owned(),
            root: text(root),
            command,
            log,
            verify: exploring.verify().to_owned(),
            model: exploring.model.name().to_owned(),
            jobs: exploring.jobs(),
            budget_ms: exploring.budget.map(millis),
            verify_timeout_ms: millis(exploring.verify_timeout),
            seed: exploring.seed,
            recovery: exploring.recovery,
            on: exploring.on.clone(),
        };
        let chronicle = Chronicle::begin(setting.store()?, &planned, setting.redactor());
        let screen = Screen::new(false);
        Ok(Self { setting, exploring, source, chronicle, screen, begun, on })
    }

    /// Ends the loop if this went wrong.
    pub(super) fn noted<T>(&mut self, result: Result<T, Untested>) -> Result<T, Trouble> {
        if result.is_err() {
            let stopped = signals::received().is_some();
            let reason = if stopped { StopReason::Interrupted } else { StopReason::CouldNotTest };
            self.chronicle.end(&reason);
        }
        Ok(result?)
    }

    /// Where the log is, or goes if there are findings.
    fn log(&self) -> PathBuf {
        match &self.source {
            Source::Log { log, .. } => log.clone(),
            Source::Program { .. } => {
                self.setting.logs().join(format!("{}.log", self.chronicle.id))
            }
        }
    }

    pub(super) fn explore(&mut self, recording: &Recording) -> Result<Exit, Trouble> {
        let exploring = self.exploring;
        if !changed(recording) {
            return self.noted(Err(Untested::Nothing(recording.root.clone())));
        }
        let log = self.log();
        let check = self.setting.check(exploring.verify(), exploring.verify_timeout);
        let on = self.on.take();
        let here = if on.is_some() { 1 } else { exploring.jobs() };
        let setting = self.setting;
        let (config, store) = (&setting.config, &setting.place.store);
        // Keepers are forks, and must not hold on to the record.
        let started = self.chronicle.aside(|| {
            let there = |(shared, target)| {
                Elsewhere::new(shared, target, config, store.clone(), exploring.jobs)
            };
            // The scheduler's programs know nothing of what covers the recorded directory.
            let there = on.map(there).transpose()?;
            Ok((Stations::start(here, &recording.root, !exploring.recovery)?, there))
        });
        let started = started.map_err(|error: std::io::Error| {
            Untested::Refused(format!("no check can be started: {error}"))
        });
        let (mut stations, mut there) = self.noted(started)?;
        let trial = Trial {
            recording,
            model: exploring.model,
            check: &check,
            seed: exploring.seed,
            recovery: exploring.recovery,
            deadline: exploring.budget.map(|budget| self.begun + budget),
            command: match &self.source {
                Source::Program { shown, .. } => shown.clone(),
                Source::Log { log, .. } => log.to_string_lossy().into_owned(),
            },
            log: &log,
            screen: &self.screen,
        };
        let report = trial.run(&mut stations, &mut self.chronicle, there.as_mut());
        drop((stations, there));
        let report = self.noted(report)?;
        let kept = self.keep(&report, recording, &log);
        self.noted(kept)?;
        self.chronicle.end(&match (signals::received(), &report) {
            (Some(_), _) => StopReason::Interrupted,
            (None, Report { findings, .. }) if !findings.is_empty() => StopReason::Findings,
            (None, Report { complete: true, .. }) => StopReason::Clean,
            (None, Report { lost: 1.., .. }) => StopReason::Incomplete,
            (None, _) => StopReason::Budget,
        });
        tell(exploring, &report, recording, self.begun.elapsed())
    }

    /// The log and the findings, for `repro`. A test without findings leaves nothing.
    fn keep(&self, report: &Report, recording: &Recording, log: &Path) -> Result<(), Untested> {
        if let Source::Program { .. } = self.source {
            if report.findings.is_empty() {
                return Ok(());
            }
            let logs = self.setting.logs();
            let failed = |source| Untested::File { action: "make", path: logs.clone(), source };
            std::fs::create_dir_all(&logs).map_err(failed)?;
            forget_old(&logs);
            write_log(log, recording)?;
        }
        for (id, recovery) in &report.recoveries {
            write_log(&recovery_log(log, id), recovery)?;
        }
        let findings = Findings::new(
            report.model,
            &report.verify,
            millis(self.exploring.verify_timeout),
            report.findings.clone(),
        );
        findings.write(log).map_err(|source| Untested::File {
            action: "write",
            path: Findings::path(log),
            source,
        })
    }
}

/// What `--on` asks for, if it can be had.
fn elsewhere(on: &str, setting: &Setting) -> Result<(Shared, Target), Failure> {
    let target = Target::of(on, &setting.config).map_err(Failure::Usage)?;
    if !setting.config.truth("execution.audit.enabled") {
        let why =
            "what runs elsewhere is collected by the record, and execution.audit.enabled is false";
        return Err(Failure::Usage(why.to_owned()));
    }
    let shared = Shared::of(&setting.config).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok((shared, target))
}

/// Removes all but the newest logs with what belongs to them. Their names begin with the id of the
/// loop, which is in the order of time.
fn forget_old(logs: &Path) {
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
        forget_old(dir.path());
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        // One is about to come.
        assert_eq!(left.len(), 3 * (KEPT_LOGS - 1) + 1);
        assert_eq!(left[0], "11.log");
    }
}
