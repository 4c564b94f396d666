//! The report of a crash test: its numbers, its findings, and the sentences that every form of it
//! shares.

use std::fmt;
use std::path::PathBuf;

use retake_crash::model::{Coverage, Model};
use retake_crash::operation::Recording;
use retake_types::loop_record::crash::CrashFinding;
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
    /// States that other machines were to check and did not.
    pub lost: u64,
    /// Of the states in [`CrashReport::verified`].
    pub failed: u64,
    /// The signal that ended the test before it was done.
    pub interrupted: Option<i32>,
    /// States during recovery that were checked.
    pub during_recovery: u64,
    pub findings: Vec<CrashFinding>,
    /// By finding: the recording of the check in which its crash comes.
    pub recoveries: Vec<(String, Recording)>,
    /// What to know besides the findings.
    pub notes: Vec<ReportNote>,
    pub command: String,
    pub verify: String,
    pub root: PathBuf,
}

/// Something to know besides the findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportNote {
    /// Checks did not see the path that was recorded, for this reason.
    OtherPath(String),
    /// This many states during recovery were checked.
    DuringRecovery(u64),
    /// Files that were there before the program ran.
    RootNotEmpty { files: u64 },
    /// The program said everything after it had done everything.
    LateAcknowledgements(u64),
    /// States that another machine was to check.
    NotChecked { range: StateRange, failure: ShareFailure },
    /// Only these states were to be checked.
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
            Self::Shard { shard, range } => write!(
                f,
                "shard {shard} only, with {} from number {}; the other shards check the rest",
                text::count(range.states(), "state"),
                range.from
            ),
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
            Self::NotChecked { range, failure } => {
                write!(f, "states {range} were not checked: {failure}")
            }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted: Option<String>,
    findings: Vec<FindingJson<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FindingJson<'a> {
    id: &'a str,
    sentence: &'a str,
    files: &'a [String],
    lost_operations: &'a [u32],
    states: u64,
    /// `false` if the test was stopped before the cause was found.
    explained: bool,
    /// `false` if it was not checked that the sentence says exactly what makes the check fail.
    proven: bool,
    repro: &'a str,
}

impl CrashReport {
    /// As JSON.
    pub fn json(&self) -> impl Serialize {
        let findings = self.findings.iter().map(|finding| FindingJson {
            id: &finding.id,
            sentence: &finding.sentence,
            files: &finding.files,
            lost_operations: &finding.lost_operations,
            states: finding.states,
            explained: !finding.unexplained,
            proven: finding.proven,
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
            interrupted: self.interrupted.map(signal_name),
            complete: self.complete,
            findings: findings.collect(),
        }
    }

    /// One line that says how it went.
    pub fn verdict(&self) -> String {
        let states = text::count(self.verified, "state");
        let model = self.model.name();
        match self.findings.len() as u64 {
            0 if self.verified == 0 => format!("no state of {model} was checked"),
            0 if self.complete => format!("{states} of {model} checked: every one recovers"),
            0 => format!("{states} of {model} checked: every one of them recovers"),
            count => {
                let findings = text::count(count, "finding");
                let fail = match self.failed {
                    0 => "none of them fails".to_owned(),
                    1 => "1 fails".to_owned(),
                    many => format!("{many} fail"),
                };
                let recoveries = self.findings.iter().filter(|finding| finding.recovery);
                match recoveries.map(|finding| finding.states).sum::<u64>() {
                    0 => format!("{findings} in {states} of {model}: {fail}"),
                    failing => format!(
                        "{findings} in {states} of {model}: {fail}, but {failing} of {} during \
                         recovery",
                        self.during_recovery
                    ),
                }
            }
        }
    }

    /// What was not checked, or not explained.
    pub fn incomplete(&self) -> Option<String> {
        let all = self.coverage.distinct_states();
        let left = all - self.verified.min(all);
        let states = text::count(all, "state");
        let unexplained = self.findings.iter().filter(|finding| finding.unexplained);
        let unexplained: u64 = unexplained.map(|finding| finding.states).sum();
        let mut missing = Vec::new();
        if !self.complete {
            missing.push(format!("{left} of {states} not checked"));
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
