//! A crash test from a recording to its report.

use std::time::Instant;

use retake_crash::model::{ExploreOptions, Model};
use retake_crash::operation::Recording;
use retake_runner::signals;
use retake_types::loop_record::crash::CrashFinding;

use crate::check::Check;
use crate::check_worker::CheckWorkers;
use crate::error::CrashTestError;
use crate::event::CrashObserver;
use crate::explain;
use crate::exploration::{Exploration, files_before, late_acks};
use crate::loop_recorder::CrashRecorder;
use crate::recovery_crashes::{RecoveryCrashes, RecoveryFinding};
use crate::remote_exploration::RemoteExplorer;
use crate::report::{CrashReport, ReportNote};
use crate::state_range::StateShard;
use crate::timeline;

pub struct CrashTest<'a> {
    pub recording: &'a Recording,
    pub model: Model,
    pub check: &'a Check,
    pub deadline: Option<Instant>,
    /// Decides which pairs of operations are tried where there are too many.
    pub seed: u64,
    /// Whether crashes during recovery are tested, too.
    pub recovery: bool,
    /// The program, as one line.
    pub command: String,
    /// The command that checks the state of a finding again, made from the finding's id.
    pub repro: &'a dyn Fn(&str) -> String,
    pub observer: &'a dyn CrashObserver,
    /// Only this part of the states.
    pub shard: Option<StateShard>,
}

impl CrashTest<'_> {
    /// Checks every state, with these workers or on other machines.
    pub fn run(
        &self,
        workers: &mut CheckWorkers,
        recorder: &mut CrashRecorder<'_>,
        remote: Option<&mut dyn RemoteExplorer>,
    ) -> Result<CrashReport, CrashTestError> {
        let options = ExploreOptions { seed: self.seed, ..ExploreOptions::default() };
        let recovery =
            self.recovery.then(|| RecoveryCrashes::new(self.check, self.model, options.clone()));
        let mut exploration = Exploration {
            recording: self.recording,
            model: self.model,
            options,
            check: self.check,
            deadline: self.deadline,
            recovery: recovery.as_ref(),
            observer: self.observer,
            range: None,
        };
        if let Some(shard) = self.shard {
            let total = exploration.states()?.coverage().distinct_states();
            exploration.range = Some(shard.range(total));
        }
        let exploration = exploration;
        let begun = Instant::now();
        exploration.check_uncrashed(&mut workers.workers[0])?;
        let took = begun.elapsed();
        let explored = match remote {
            Some(_) if recorder.store().is_none() => return Err(CrashTestError::RemoteNeedsRecord),
            Some(remote) => {
                remote.explore(&exploration, recorder.id(), &mut workers.workers[0], took)?
            }
            None => exploration.explore(&mut workers.workers)?,
        };
        recorder.append_states(&explored.coverage);
        let mut findings =
            explain::findings(&exploration, &explored.failing, &mut workers.workers[0])?;
        let other_paths = workers.other_path.iter().chain(&explored.other_paths).cloned();
        let mut notes: Vec<_> = other_paths.map(ReportNote::OtherPath).collect();
        notes.dedup();
        let part = self.shard.zip(exploration.range);
        notes.extend(part.map(|(shard, range)| ReportNote::Shard { shard, range }));
        let files = files_before(self.recording);
        notes.extend((files > 0).then_some(ReportNote::RootNotEmpty { files }));
        notes.extend(late_acks(self.recording).map(ReportNote::LateAcknowledgements));
        let lost = explored.lost.iter().map(|(range, _)| range.states()).sum();
        notes.extend(
            explored
                .lost
                .into_iter()
                .map(|(range, failure)| ReportNote::NotChecked { range, failure }),
        );
        let mut recoveries = Vec::new();
        let mut during_recovery = 0;
        if let Some(recovery) = recovery {
            during_recovery = recovery.checked();
            notes.push(ReportNote::DuringRecovery(during_recovery));
            for RecoveryFinding { finding, recording } in recovery.findings() {
                let id = format!("F{}", findings.len() + 1);
                findings.push(CrashFinding { id: id.clone(), ..finding });
                recoveries.push((id, recording));
            }
        }
        let rows = timeline::rows(self.recording);
        for finding in &mut findings {
            let mut operations = rows.iter().filter(|row| row.number.is_some());
            let at = (finding.operation as usize).checked_sub(1);
            let row = at.and_then(|at| operations.nth(at));
            finding.operation_text = row.map(|row| row.text.clone()).unwrap_or_default();
            finding.repro = (self.repro)(&finding.id);
            finding.output = recorder.without_secrets(&finding.output);
        }
        recorder.append_findings(&findings, explored.verified, explored.complete);
        Ok(CrashReport {
            model: self.model,
            coverage: explored.coverage,
            verified: explored.verified,
            complete: explored.complete,
            lost,
            failed: explored.failing.len() as u64,
            interrupted: signals::received(),
            during_recovery,
            findings,
            notes,
            recoveries,
            command: self.command.clone(),
            verify: self.check.command().to_owned(),
            root: self.recording.root.clone(),
        })
    }
}
