//! A crash test from a recording to its report.

use std::time::Instant;

use retake_crash::model::{Coverage, ExploreOptions, Model};
use retake_crash::operation::{Entry, Recording};
use retake_runner::signals;
use retake_types::loop_record::crash::CrashFinding;

use crate::check::Check;
use crate::check_worker::CheckWorkers;
use crate::error::CrashTestError;
use crate::event::CrashObserver;
use crate::explain;
use crate::exploration::{Exploration, Explored, files_left, late_acks};
use crate::fault_run::FaultLaunch;
use crate::fault_test::{FaultResults, FaultTest};
use crate::loop_recorder::CrashRecorder;
use crate::recovery_crashes::{RecoveryCrashes, RecoveryFinding};
use crate::remote_exploration::RemoteExplorer;
use crate::report::{CrashReport, ReportNote};
use crate::source_places::SourcePlaces;
use crate::state_range::{StateRange, StateShard};
use crate::timeline;

pub struct CrashTest<'a> {
    pub recording: &'a Recording,
    /// The source places of the program's operations.
    pub places: &'a SourcePlaces,
    pub model: Model,
    pub check: &'a Check,
    pub deadline: Option<Instant>,
    /// Selects which pairs of operations are tried if there are too many.
    pub seed: u64,
    /// Whether crashes during recovery are tested, too.
    pub recovery: bool,
    /// How to run the program again for each fault, if calls are made to fail.
    pub faults: Option<&'a FaultLaunch<'a>>,
    /// Whether crash states are checked.
    pub crashes: bool,
    /// The program, as one line.
    pub command: String,
    /// The command that checks the state of a finding again, by the finding's id.
    pub repro: &'a dyn Fn(&str) -> String,
    pub observer: &'a dyn CrashObserver,
    /// Only this shard of the states.
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
            let coverage = exploration.states()?.coverage().clone();
            // A shard is only known after all states were counted.
            if !coverage.cut_short {
                exploration.range = Some(shard.range(coverage.distinct_states()));
            }
        }
        let exploration = exploration;
        let begun = Instant::now();
        exploration.check_uncrashed(&mut workers.workers[0])?;
        let took = begun.elapsed();
        let explored = match remote {
            _ if !self.crashes => not_explored(self.recording),
            Some(_) if recorder.store().is_none() => return Err(CrashTestError::RemoteNeedsRecord),
            Some(remote) => {
                remote.explore(&exploration, recorder.id(), &mut workers.workers[0], took)?
            }
            None => exploration.explore(&mut workers.workers)?,
        };
        if self.crashes {
            recorder.append_states(&explored.coverage);
        }
        let mut findings =
            explain::findings(&exploration, &explored.failing, &mut workers.workers[0])?;
        let clean = self.crashes && findings.is_empty() && explored.failing.is_empty();
        let accepts_nothing = clean && exploration.accepts_nothing(&mut workers.workers[0])?;
        let part = self.shard.zip(exploration.range);
        let mut notes = self.notes(workers, &explored, part);
        let lost = explored.lost.iter().map(|(range, _)| range.states()).sum();
        let mut recoveries = Vec::new();
        let mut during_recovery = 0;
        if let Some(recovery) = recovery {
            during_recovery = recovery.checked();
            if during_recovery > 0 {
                notes.push(ReportNote::DuringRecovery(during_recovery));
            } else if recovery.changes_nothing() {
                notes.push(ReportNote::RecoveryChangesNothing);
            }
            for RecoveryFinding { finding, recording } in recovery.findings() {
                let id = format!("F{}", findings.len() + 1);
                findings.push(CrashFinding { id: id.clone(), ..finding });
                recoveries.push((id, recording));
            }
        }
        if accepts_nothing && findings.is_empty() {
            notes.push(ReportNote::AcceptsNothing);
        }
        let (mut faults, mut faulted) = (None, Vec::new());
        if let Some(launch) = self.faults {
            let tested = self.test_faults(launch, workers)?;
            recorder.append_faults(&tested.tested);
            notes.extend(tested.notes);
            for (finding, recording) in tested.findings {
                let id = format!("F{}", findings.len() + 1);
                findings.push(CrashFinding { id: id.clone(), ..finding });
                faulted.push((id, recording));
            }
            faults = Some(tested.tested);
        }
        notes.extend(same_causes(&findings));
        self.complete_findings(&mut findings, recorder);
        let complete = self.recording.left_running.ended == 0
            && self.recording.outside.behind_links == 0
            && (!self.crashes || explored.complete)
            && faults.as_ref().is_none_or(|tested| tested.complete);
        recorder.append_findings(&findings, explored.verified, complete);
        Ok(CrashReport {
            model: self.model,
            faults,
            crashes: self.crashes,
            left_running: self.recording.left_running,
            outside: self.recording.outside.clone(),
            faulted,
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

    /// Notes about the exploration besides its findings.
    fn notes(
        &self,
        workers: &CheckWorkers,
        explored: &Explored,
        part: Option<(StateShard, StateRange)>,
    ) -> Vec<ReportNote> {
        let other_paths = workers.other_path.iter().chain(&explored.other_paths).cloned();
        let mut notes: Vec<_> = other_paths.map(ReportNote::OtherPath).collect();
        notes.dedup();
        notes.extend(part.map(|(shard, range)| ReportNote::Shard { shard, range }));
        let files = files_left(self.recording);
        notes.extend((files > 0).then_some(ReportNote::RootNotEmpty { files }));
        let outside = &self.recording.outside;
        notes.extend((outside.files > 0).then(|| ReportNote::WritesOutside(outside.clone())));
        let left = self.recording.left_running;
        notes.extend((left.processes > 0).then_some(ReportNote::LeftRunning(left)));
        notes.extend(late_acks(self.recording).map(ReportNote::LateAcknowledgements));
        if !self.places.changed.is_empty() {
            notes.push(ReportNote::SourceChanged(self.places.changed.clone()));
        }
        if self.places.left_out > 0 {
            notes.push(ReportNote::StacksLeftOut(self.places.left_out));
        }
        let lost = explored.lost.iter().cloned();
        notes.extend(lost.map(|(range, failure)| ReportNote::NotChecked { range, failure }));
        notes
    }

    /// Adds facts that need the whole test: a description of each operation, the command to check it again.
    fn complete_findings(&self, findings: &mut [CrashFinding], recorder: &CrashRecorder<'_>) {
        let rows = timeline::rows(self.recording);
        for finding in findings {
            if let Some(fault) = &mut finding.fault {
                fault.said = recorder.without_secrets(&fault.said);
            }
            let mut operations = rows.iter().filter(|row| row.number.is_some());
            let at = (finding.operation as usize).checked_sub(1);
            let row = at.and_then(|at| operations.nth(at));
            finding.operation_text = row.map(|row| row.text.clone()).unwrap_or_default();
            self.places.complete(finding, self.recording);
            finding.repro = (self.repro)(&finding.id);
            finding.output = recorder.without_secrets(&finding.output);
        }
    }

    fn test_faults(
        &self,
        launch: &FaultLaunch<'_>,
        workers: &mut CheckWorkers,
    ) -> Result<FaultResults, CrashTestError> {
        if signals::received().is_some() {
            return Ok(FaultResults::default());
        }
        let test = FaultTest {
            recording: self.recording,
            model: self.model,
            check: self.check,
            deadline: self.deadline,
            seed: self.seed,
            launch,
            observer: self.observer,
        };
        test.run(workers)
    }
}

/// How a check ends distinguishes findings, such as data that is lost from data that is corrupt; their
/// sentences then are the same.
fn same_causes(findings: &[CrashFinding]) -> Vec<ReportNote> {
    let mut by_sentence: Vec<(&str, Vec<(String, String)>)> = Vec::new();
    for CrashFinding { id, sentence, verdict, .. } in findings {
        let one = (id.clone(), verdict.clone());
        match by_sentence.iter_mut().find(|(known, _)| known == sentence) {
            Some((_, ids)) => ids.push(one),
            None => by_sentence.push((sentence, vec![one])),
        }
    }
    by_sentence.retain(|(_, ids)| ids.len() > 1);
    by_sentence.into_iter().map(|(_, ids)| ReportNote::SameCause(ids)).collect()
}

/// Only faults were requested.
fn not_explored(recording: &Recording) -> Explored {
    let is_operation = |entry: &&Entry| matches!(entry, Entry::Operation(_));
    let operations = recording.entries.iter().filter(is_operation).count() as u32;
    Explored { coverage: Coverage { operations, ..Coverage::default() }, ..Explored::default() }
}
