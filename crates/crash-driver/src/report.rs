//! The report of a crash test: its numbers, its findings, and the sentences that all its forms
//! share.

use std::fmt;
use std::path::PathBuf;

use retake_crash::model::{Coverage, Model};
use retake_crash::operation::{LeftRunning, OutsideWrites, Recording};
use retake_types::loop_record::crash::{CrashFault, CrashFinding, OperationPlace, TestedFaults};
use retake_types::{signal_name, text};
use serde::Serialize;

use crate::share_failure::ShareFailure;
use crate::state_range::{StateRange, StateShard};

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct CrashReport {
    pub model: Model,
    pub coverage: Coverage,
    /// Distinct states that were checked.
    pub verified: u64,
    /// Whether all of them were.
    pub complete: bool,
    /// States assigned to other machines that were not checked.
    pub lost: u64,
    /// Of the states in [`CrashReport::verified`].
    pub failed: u64,
    /// The signal that ended the test early.
    pub interrupted: Option<i32>,
    /// States during recovery that were checked.
    pub during_recovery: u64,
    /// Calls that were made to fail, if requested.
    pub faults: Option<TestedFaults>,
    /// Whether crash states were requested.
    pub crashes: bool,
    /// Processes that outlived the program's first one when it was recorded.
    pub left_running: LeftRunning,
    /// Files outside of the directory that the program wrote to.
    pub outside: OutsideWrites,
    pub findings: Vec<CrashFinding>,
    /// By finding: the recording of the check during which its crash happens.
    pub recoveries: Vec<(String, Recording)>,
    /// By finding: the recording of the run in which a call failed.
    pub faulted: Vec<(String, Recording)>,
    /// Notes besides the findings.
    pub notes: Vec<ReportNote>,
    pub command: String,
    pub verify: String,
    pub root: PathBuf,
}

/// A note besides the findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportNote {
    /// Checks did not see the recorded path, for this reason.
    OtherPath(String),
    /// This many states during recovery were checked.
    DuringRecovery(u64),
    /// No check that was recorded changed its directory.
    RecoveryChangesNothing,
    /// The program wrote to files outside of the directory.
    WritesOutside(OutsideWrites),
    /// The check also accepts a directory without data.
    AcceptsNothing,
    /// Findings of one cause: after the same loss the check ends in these ways, by finding.
    SameCause(Vec<(String, String)>),
    /// Files that existed before the program ran.
    RootNotEmpty { files: u64 },
    /// All acknowledgements came after the last operation.
    LateAcknowledgements(u64),
    /// Processes outlived the program's first one.
    LeftRunning(LeftRunning),
    /// States that another machine was to check.
    NotChecked { range: StateRange, failure: ShareFailure },
    /// No call was made to fail, for this reason.
    FaultsNotTried(String),
    /// Without faults the program does not survive a power loss at its end.
    FaultsWithoutPowerLoss,
    /// Calls that a further run of the program did not make.
    FaultsNotReached(u64),
    /// Runs that did not end, or could not be recorded.
    FaultsNotChecked { runs: u64, why: String },
    /// Faults after which a power loss fails as it does without them.
    FailsWithoutFault(u64),
    /// The program reported success and left other files than without the fault; the check passes.
    FaultsIgnored { faults: u64, first: String },
    /// Programs and libraries that have changed since the recording.
    SourceChanged(Vec<String>),
    /// Operations whose call stack was not kept.
    StacksLeftOut(u64),
    /// Only these states were checked.
    Shard { shard: StateShard, range: StateRange },
}

impl fmt::Display for ReportNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherPath(reason) => write!(
                f,
                "{reason}: states were checked in other directories, named by FIRST_WORK_DIR"
            ),
            Self::DuringRecovery(states) => {
                write!(f, "{} during recovery checked, too", text::count(*states, "state"))
            }
            Self::RecoveryChangesNothing => {
                f.write_str("the check changed nothing, so there is no recovery to interrupt")
            }
            Self::Shard { shard, range } => write!(
                f,
                "shard {shard} only, with {} from number {}; the other shards check the rest",
                text::count(range.states(), "state"),
                range.from
            ),
            Self::SourceChanged(files) => write!(
                f,
                "changed since the recording, so that its lines are not known: {}",
                files.join(", ")
            ),
            Self::StacksLeftOut(operations) => write!(
                f,
                "{} without a place in the program: their call stacks are too many to keep",
                text::count(*operations, "operation")
            ),
            Self::WritesOutside(OutsideWrites { paths, files, behind_links }) => {
                let named: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                let more = match files.saturating_sub(paths.len() as u64) {
                    0 => String::new(),
                    more => format!(" and {}", text::count(more, "more file")),
                };
                let link = match behind_links {
                    0 => "",
                    _ => ", through a symbolic link in it",
                };
                let their = if *files == 1 { "its" } else { "their" };
                write!(
                    f,
                    "the program also wrote {}{more}, outside --root{link}; {their} loss is not tested",
                    named.join(", ")
                )
            }
            Self::AcceptsNothing => {
                f.write_str("the check also accepts an empty directory: can it fail?")
            }
            Self::SameCause(findings) => {
                let named = findings.iter().map(|(id, verdict)| format!("{id} ({verdict})"));
                write!(
                    f,
                    "{} have the same cause, and what prevents one prevents all: the check ends \
                     differently",
                    named.collect::<Vec<_>>().join(", ")
                )
            }
            Self::RootNotEmpty { files: 1 } => {
                write!(f, "the root was not empty: 1 file counts as durable")
            }
            Self::RootNotEmpty { files } => {
                write!(f, "the root was not empty: {files} files count as durable")
            }
            Self::LateAcknowledgements(acks) => write!(
                f,
                "all {acks} acknowledgements came after the last operation, so that no crash is \
                 checked against them: if the program buffers its output, flush it after each line"
            ),
            Self::LeftRunning(LeftRunning { processes, ended: 0 }) => write!(
                f,
                "{} continued after the program's first process had ended; everything was recorded",
                text::count(u64::from(*processes), "process")
            ),
            Self::LeftRunning(LeftRunning { ended: 1, .. }) => write!(
                f,
                "1 process was still running after the program's first process had ended, and was \
                 terminated: what it would have written later is not part of this test; let the program \
                 wait for it or stop it"
            ),
            Self::LeftRunning(LeftRunning { ended, .. }) => write!(
                f,
                "{ended} processes were still running after the program's first process had ended, \
                 and were terminated: what they would have written later is not part of this test; let the \
                 program wait for them or stop them"
            ),
            Self::NotChecked { range, failure } => {
                write!(f, "states {range} were not checked: {failure}")
            }
            Self::FaultsNotTried(why) => write!(f, "no call was made to fail: {why}"),
            Self::FaultsWithoutPowerLoss => write!(
                f,
                "the program loses data in a power loss without any fault, too, so no power loss after \
                 a fault was tested: `retake crash` without --faults finds the cause; then test the faults again"
            ),
            Self::FaultsNotReached(faults) => write!(
                f,
                "{} not tried: the program did not make the call again; it does not do the same each \
                 time",
                text::count(*faults, "fault")
            ),
            Self::FaultsNotChecked { runs, why } => write!(
                f,
                "{} with a fault could not be checked; the first: {why}",
                text::count(*runs, "run")
            ),
            Self::FailsWithoutFault(faults) => write!(
                f,
                "after {} a power loss loses data as it does without the fault: `retake crash` without \
                 --faults finds the cause",
                text::count(*faults, "fault")
            ),
            Self::FaultsIgnored { faults: 1, first } => write!(
                f,
                "{first}, and the program says what it says without the fault and leaves other files; \
                 the check accepts them: is that intended?"
            ),
            Self::FaultsIgnored { faults, first } => write!(
                f,
                "after {faults} faults the program says what it says without them and leaves other \
                 files; the check accepts them: is that intended? The first: {first}"
            ),
        }
    }
}

/// The JSON form of a report.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportJson<'a> {
    model: &'a str,
    operations: u32,
    points: u64,
    states: u64,
    distinct: u64,
    verified: u64,
    failing: u64,
    complete: bool,
    /// Processes that were still running after the program's first one and were terminated: what they
    /// would have written later is not tested.
    #[serde(skip_serializing_if = "is_zero")]
    processes_ended: u32,
    /// Files outside of the directory that the program wrote to, some by name: their loss is not tested.
    #[serde(skip_serializing_if = "Option::is_none")]
    outside: Option<OutsideJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    faults: Option<&'a TestedFaults>,
    findings: Vec<FindingJson<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OutsideJson {
    paths: Vec<String>,
    files: u64,
    /// How many of them a symbolic link in the directory leads to.
    behind_links: u64,
}

impl OutsideJson {
    fn of(outside: &OutsideWrites) -> Option<Self> {
        let paths = outside.paths.iter().map(|path| path.to_string_lossy().into_owned());
        (outside.files > 0).then(|| Self {
            paths: paths.collect(),
            files: outside.files,
            behind_links: outside.behind_links,
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FindingJson<'a> {
    id: &'a str,
    sentence: &'a str,
    /// How the check failed, such as `exited with 1`.
    verdict: &'a str,
    files: &'a [String],
    lost_operations: &'a [u32],
    states: u64,
    /// `false` if the test was stopped before the cause was found.
    explained: bool,
    /// `false` if it was not verified that the sentence says exactly what makes the check fail.
    proven: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a CrashFault>,
    /// The place in the program.
    #[serde(skip_serializing_if = "str::is_empty")]
    source_sentence: &'a str,
    #[serde(skip_serializing_if = "<[OperationPlace]>::is_empty")]
    places: &'a [OperationPlace],
    repro: &'a str,
}

impl CrashReport {
    /// As JSON.
    pub fn json(&self) -> impl Serialize {
        let findings = self.findings.iter().map(|finding| FindingJson {
            id: &finding.id,
            sentence: &finding.sentence,
            verdict: &finding.verdict,
            files: &finding.files,
            lost_operations: &finding.lost_operations,
            states: finding.states,
            explained: !finding.unexplained,
            proven: finding.proven,
            fault: finding.fault.as_ref(),
            source_sentence: &finding.source_sentence,
            places: &finding.places,
            repro: &finding.repro,
        });
        ReportJson {
            model: self.model.name(),
            operations: self.coverage.operations,
            points: self.coverage.points,
            states: self.coverage.states(),
            distinct: self.coverage.distinct_states(),
            verified: self.verified,
            failing: self.failed,
            processes_ended: self.left_running.ended,
            outside: OutsideJson::of(&self.outside),
            interrupted: self.interrupted.map(signal_name),
            complete: self.is_complete(),
            faults: self.faults.as_ref(),
            findings: findings.collect(),
        }
    }

    /// Whether everything that was requested was done.
    pub fn is_complete(&self) -> bool {
        self.left_running.ended == 0
            && self.outside.behind_links == 0
            && (!self.crashes || self.complete)
            && self.faults.as_ref().is_none_or(|tested| tested.complete)
    }

    /// Whether nothing that was checked failed.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.failed == 0
    }

    /// Whether something that should have been checked could not be: states on another machine, a run with a
    /// fault, or all of them, later writes of a terminated process, or files behind a symbolic link; or
    /// nothing was checked but the first state.
    pub fn lacks_answers(&self) -> bool {
        let faults = |tested: &TestedFaults| {
            tested.not_checked > 0 || (tested.tried == 0 && !tested.complete)
        };
        let nothing = self.crashes && !self.complete && self.verified <= 1;
        nothing
            || self.lost > 0
            || self.left_running.ended > 0
            || self.outside.behind_links > 0
            || self.faults.as_ref().is_some_and(faults)
    }

    /// The result in one line.
    pub fn verdict(&self) -> String {
        let mut verdicts = Vec::new();
        if self.crashes {
            verdicts.push(self.crash_verdict());
        }
        verdicts.extend(self.faults.as_ref().map(|tested| self.fault_verdict(tested)));
        verdicts.join("; ")
    }

    fn fault_verdict(&self, tested: &TestedFaults) -> String {
        let checked = tested.tried - tested.not_reached - tested.not_checked;
        let faults = text::count(checked, "fault");
        let findings = self.findings.iter().filter(|finding| finding.fault.is_some()).count();
        let all = tested.complete && checked == tested.tried && self.left_running.ended == 0;
        match findings as u64 {
            0 if checked == 0 => "no fault was tried".to_owned(),
            0 if self.notes.contains(&ReportNote::FaultsWithoutPowerLoss) => {
                format!("{faults} tried: after each the check accepts what the program left")
            }
            0 if all => format!("{faults} tried: the program handles every one"),
            0 => format!("{faults} tried: the program handles every one of them"),
            count => {
                let findings = text::count(count, "finding");
                format!("{findings} in {faults}: {}", fail(tested.failing))
            }
        }
    }

    fn crash_verdict(&self) -> String {
        let states = text::count(self.verified, "state");
        let model = self.model.name();
        let crashes = self.findings.iter().filter(|finding| finding.fault.is_none()).count();
        match crashes as u64 {
            0 if self.verified == 0 => format!("no state of {model} was checked"),
            0 if self.failed > 0 => format!("{states} of {model} checked: {}", fail(self.failed)),
            0 if self.left_running.ended > 0 => format!(
                "{states} of {model} checked: every one of them recovers, but the program was not \
                 recorded to its end"
            ),
            0 if self.outside.behind_links > 0 => format!(
                "{states} of {model} checked: every one of them recovers, but data behind a symbolic \
                 link was not tested"
            ),
            0 if self.complete => format!("{states} of {model} checked: every one recovers"),
            0 => format!("{states} of {model} checked: every one of them recovers"),
            count => {
                let findings = text::count(count, "finding");
                let recoveries = self.findings.iter().filter(|finding| finding.recovery);
                let recoveries = match recoveries.map(|finding| finding.states).sum::<u64>() {
                    0 => None,
                    failing => Some(format!(
                        "{failing} of {} during recovery {}",
                        text::count(self.during_recovery, "crash"),
                        if failing == 1 { "does not" } else { "do not" }
                    )),
                };
                match (recoveries, self.failed) {
                    (None, 0) => format!("{findings} in {states} of {model}"),
                    (None, failed) => {
                        format!("{findings} in {states} of {model}: {}", fail(failed))
                    }
                    (Some(recoveries), 0) if self.verified > 1 && self.is_complete() => {
                        format!("all {states} of {model} recover; {findings}: {recoveries}")
                    }
                    (Some(recoveries), 0) => format!(
                        "{states} of {model} checked: every one of them recovers; {findings}: \
                         {recoveries}"
                    ),
                    (Some(recoveries), failed) => format!(
                        "{findings} in {states} of {model}: {}; {recoveries} recover",
                        fail(failed)
                    ),
                }
            }
        }
    }

    /// How many faults there are and how many were tried.
    pub fn fault_coverage(&self) -> Option<String> {
        let tested = self.faults.as_ref()?;
        let left_out = tested.faults - tested.planned.min(tested.faults);
        let mut text = format!(
            "{} on files, {} to fail, {} tried",
            text::count(tested.calls, "call"),
            text::count(tested.faults, "way"),
            tested.tried
        );
        if left_out > 0 {
            text.push_str(&format!(
                "; left out: {left_out} of calls that repeat, of which {} of a kind are tried",
                crate::fault_plan::EACH
            ));
        }
        Some(text)
    }

    /// What was not checked, or not explained.
    pub fn incomplete(&self) -> Option<String> {
        let all = self.coverage.distinct_states();
        let left = all - self.verified.min(all);
        let states = text::count(all, "state");
        let unexplained = self.findings.iter().filter(|finding| finding.unexplained);
        let unexplained: u64 = unexplained.map(|finding| finding.states).sum();
        let mut missing = Vec::new();
        if self.crashes && self.coverage.cut_short {
            let looked = text::count(u64::from(self.coverage.operations), "operation");
            missing.push(format!("only the first {looked} looked at for states, none checked"));
        } else if self.crashes && !self.complete {
            missing.push(format!("{left} of {states} not checked"));
        }
        if let Some(tested) = self.faults.as_ref().filter(|tested| !tested.complete) {
            let left = tested.planned - tested.tried.min(tested.planned);
            missing.push(match tested.planned {
                0 => "no fault tried".to_owned(),
                planned => format!("{left} of {} not tried", text::count(planned, "fault")),
            });
        }
        if self.left_running.ended > 0 {
            let processes = text::count(u64::from(self.left_running.ended), "process");
            missing.push(format!("{processes} not recorded to the end"));
        }
        if self.outside.behind_links > 0 {
            let files = text::count(self.outside.behind_links, "file");
            missing.push(format!("{files} behind a symbolic link not tested"));
        }
        if unexplained > 0 {
            missing.push(format!("{} not explained", text::count(unexplained, "failing state")));
        }
        if missing.is_empty() {
            return None;
        }
        let why =
            self.interrupted.map(|signal| format!("interrupted by {}, ", signal_name(signal)));
        Some(format!("{}not complete: {}", why.unwrap_or_default(), missing.join(", ")))
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// `1 fails`, `2 fail`.
fn fail(count: u64) -> String {
    if count == 1 { "1 fails".to_owned() } else { format!("{count} fail") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_verdict_says_that_a_state_recovers_which_failed() {
        let report = |failed, complete| CrashReport {
            model: Model::Kill,
            coverage: Coverage::default(),
            verified: 3,
            complete,
            lost: 0,
            failed,
            interrupted: None,
            during_recovery: 0,
            faults: None,
            crashes: true,
            left_running: LeftRunning::default(),
            outside: OutsideWrites::default(),
            findings: Vec::new(),
            recoveries: Vec::new(),
            faulted: Vec::new(),
            notes: Vec::new(),
            command: String::new(),
            verify: String::new(),
            root: PathBuf::new(),
        };
        assert_eq!(report(0, true).verdict(), "3 states of kill checked: every one recovers");
        for complete in [true, false] {
            assert_eq!(report(2, complete).verdict(), "3 states of kill checked: 2 fail");
            assert!(!report(2, complete).is_clean());
        }
        assert!(report(0, false).is_clean());
        let one = CrashReport { verified: 1, ..report(0, false) };
        assert!(one.lacks_answers() && !report(0, false).lacks_answers());
        let outside = OutsideWrites { files: 1, behind_links: 1, ..OutsideWrites::default() };
        let linked = CrashReport { outside, ..report(0, true) };
        assert!(linked.lacks_answers() && !linked.is_complete());
    }
}
