//! A crash test from a recording to its report.

use std::path::{Path, PathBuf};
use std::time::Instant;

use first::model::{Model, Options};
use first::operation::Recording;

use super::chronicle::Chronicle;
use super::explain;
use super::explore::Exploration;
use super::report::Report;
use super::station::{Check, Stations};
use super::untested::Untested;
use crate::matrix::screen::Screen;

pub(crate) struct Trial<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) model: Model,
    pub(crate) check: &'a Check,
    pub(crate) deadline: Option<Instant>,
    /// The program, for people.
    pub(crate) command: String,
    /// Where the log of a test with findings is.
    pub(crate) log: &'a Path,
    pub(crate) screen: &'a Screen,
}

impl Trial<'_> {
    /// Checks every state. The chronicle's record is opened by the caller once the stations are
    /// there.
    pub(crate) fn run(
        &self,
        stations: &mut Stations,
        chronicle: &mut Chronicle,
    ) -> Result<Report, Untested> {
        let exploration = Exploration {
            recording: self.recording,
            model: self.model,
            options: Options::default(),
            check: self.check,
            deadline: self.deadline,
            screen: self.screen,
        };
        exploration.check_uncrashed(&mut stations.stations[0])?;
        let explored = exploration.explore(&mut stations.stations)?;
        chronicle.states(&explored.coverage);
        let repro = |id: &str| {
            let log = self.log.to_string_lossy();
            retake_engine::quote(["retake", "crash", "repro", &log, id])
        };
        let findings =
            explain::findings(&exploration, &explored.failing, &mut stations.stations[0], &repro)?;
        chronicle.finished(&findings, explored.verified, explored.complete);
        Ok(Report {
            model: self.model,
            coverage: explored.coverage,
            verified: explored.verified,
            complete: explored.complete,
            failed: explored.failing.len() as u64,
            findings,
            notes: stations.elsewhere.iter().cloned().collect(),
            command: self.command.clone(),
            verify: self.check.command.clone(),
            root: PathBuf::from(&self.recording.root),
        })
    }
}
