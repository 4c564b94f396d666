//! A crash test from a recording to its report.

use retake_types::text;
use std::path::{Path, PathBuf};
use std::time::Instant;

use retake_crash::model::{ExploreOptions, Model};
use retake_crash::operation::Recording;

use super::chronicle::Chronicle;
use super::elsewhere::Elsewhere;
use super::explain;
use super::explore::Exploration;
use super::finding::Finding;
use super::relapse::{Relapsed, Relapses};
use super::report::Report;
use super::station::{Check, Stations};
use super::untested::Untested;
use retake_runner::screen::Screen;


pub struct Trial<'a> {
    pub recording: &'a Recording,
    pub model: Model,
    pub check: &'a Check,
    pub deadline: Option<Instant>,
    /// Decides which pairs are looked at where there are too many.
    pub seed: u64,
    /// Whether crashes during recovery are looked at, too.
    pub recovery: bool,
    /// The program, for people.
    pub command: String,
    /// Where the log of a test with findings is.
    pub log: &'a Path,
    pub screen: &'a Screen,
}

impl Trial<'_> {
    /// Checks every state. The chronicle's record is opened by the caller once the stations are
    /// there.
    pub fn run(
        &self,
        stations: &mut Stations,
        chronicle: &mut Chronicle,
        elsewhere: Option<&mut Elsewhere<'_>>,
    ) -> Result<Report, Untested> {
        let options = ExploreOptions { seed: self.seed, ..ExploreOptions::default() };
        let relapses = self
            .recovery
            .then(|| {
                Relapses::new(self.check, &self.recording.root, self.model, options.clone())
                    .map_err(|error| Untested::unchecked(&error))
            })
            .transpose()?;
        let exploration = Exploration {
            recording: self.recording,
            model: self.model,
            options,
            check: self.check,
            deadline: self.deadline,
            relapses: relapses.as_ref(),
            screen: self.screen,
            share: None,
        };
        let begun = Instant::now();
        exploration.check_uncrashed(&mut stations.stations[0])?;
        let took = begun.elapsed();
        let explored = match elsewhere {
            Some(there) => {
                there.explore(&exploration, chronicle, &mut stations.stations[0], took)?
            }
            None => exploration.explore(&mut stations.stations)?,
        };
        chronicle.states(&explored.coverage);
        let repro = |id: &str| {
            let log = self.log.to_string_lossy();
            retake_engine::quote(["retake", "crash", "repro", &log, id])
        };
        let mut findings =
            explain::findings(&exploration, &explored.failing, &mut stations.stations[0], &repro)?;
        let mut notes: Vec<String> = stations.elsewhere.iter().cloned().collect();
        notes.extend(explored.notes);
        notes.dedup();
        let mut recoveries = Vec::new();
        let mut during = 0;
        if let Some(relapses) = relapses {
            during = relapses.checked();
            notes.push(format!("{} during recovery checked, too", text::count(during, "state")));
            for Relapsed { finding, recording } in relapses.findings() {
                let id = format!("F{}", findings.len() + 1);
                findings.push(Finding { repro: repro(&id), id: id.clone(), ..finding });
                recoveries.push((id, recording));
            }
        }
        for finding in &mut findings {
            finding.output = chronicle.without_secrets(&finding.output);
        }
        chronicle.finished(&findings, explored.verified, explored.complete);
        Ok(Report {
            model: self.model,
            coverage: explored.coverage,
            verified: explored.verified,
            complete: explored.complete,
            lost: explored.lost,
            failed: explored.failing.len() as u64,
            during_recovery: during,
            findings,
            notes,
            recoveries,
            command: self.command.clone(),
            verify: self.check.command.clone(),
            root: PathBuf::from(&self.recording.root),
        })
    }
}
