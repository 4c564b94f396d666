//! One crash test on the record: begun before anything runs, ended whatever happens.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use first::operation::Recording;
use retake_store::redact::Redactor;

use super::Trouble;
use super::options::{Exploring, Setting, write_log};
use super::tell::tell;
use crate::cli::Exit;
use crate::crash::chronicle::{Chronicle, Planned};
use crate::crash::finding::Findings;
use crate::crash::report::Report;
use crate::crash::station::Stations;
use crate::crash::trial::Trial;
use crate::crash::untested::Untested;
use crate::matrix::screen::Screen;
use crate::{signals, term};

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
}

impl<'a> Session<'a> {
    pub(super) fn begin(
        setting: &'a Setting,
        exploring: &'a Exploring,
        source: Source,
        redactor: Redactor,
        begun: Instant,
    ) -> Result<Self, Trouble> {
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
            recovery: exploring.recovery,
        };
        let chronicle = Chronicle::begin(setting.store()?, &planned, redactor);
        let screen = Screen::new(false);
        Ok(Self { setting, exploring, source, chronicle, screen, begun })
    }

    /// Ends the loop if this went wrong.
    pub(super) fn noted<T>(&mut self, result: Result<T, Untested>) -> Result<T, Trouble> {
        if result.is_err() {
            let stopped = signals::received().is_some();
            self.chronicle.end(if stopped { "interrupted" } else { "could not test" });
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
        let log = self.log();
        let check = self.setting.check(exploring.verify(), exploring.verify_timeout);
        // Keepers are forks, and must not hold on to the record.
        let stations = self
            .chronicle
            .aside(|| Stations::start(exploring.jobs(), &recording.root))
            .map_err(|error| Untested::Refused(format!("no check can be started: {error}")));
        let mut stations = self.noted(stations)?;
        let trial = Trial {
            recording,
            model: exploring.model,
            check: &check,
            deadline: exploring.budget.map(|budget| self.begun + budget),
            command: match &self.source {
                Source::Program { shown, .. } => shown.clone(),
                Source::Log { log, .. } => log.to_string_lossy().into_owned(),
            },
            log: &log,
            screen: &self.screen,
        };
        let report = trial.run(&mut stations, &mut self.chronicle);
        drop(stations);
        let report = self.noted(report)?;
        let kept = self.keep(&report, recording, &log);
        self.noted(kept)?;
        self.chronicle.end(match (signals::received(), &report) {
            (Some(_), _) => "interrupted",
            (None, Report { findings, .. }) if !findings.is_empty() => "findings",
            (None, Report { complete: true, .. }) => "clean",
            (None, _) => "budget",
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

/// Removes all but the newest logs; their names are in the order of time.
fn forget_old(logs: &Path) {
    let Ok(entries) = std::fs::read_dir(logs) else { return };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    found.sort_unstable();
    let old = found.len().saturating_sub(KEPT_LOGS - 1);
    for log in &found[..old] {
        for path in [log.clone(), Findings::path(log)] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    term::say(&format!("{} cannot be removed: {error}", path.display()));
                }
                _ => {}
            }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
