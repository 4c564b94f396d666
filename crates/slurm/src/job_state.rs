//! The state of a cell without a result, derived from the scheduler's row of its task, and what to do
//! about a cell that will have none.
//!
//! Pure: no process, clock or file. A cell's result is its result file; this module only decides
//! whether one can still be expected.

use crate::slurm_commands::{NO_SHARED_DIR, SHARED_DIR_FULL, TaskRow};

/// The meaning of the scheduler's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    Queued,
    Running {
        node: Option<String>,
    },
    /// It will not run unless it is released.
    Held,
    /// It waits for something that will not happen.
    NeverRuns {
        reason: String,
    },
    /// Its task has ended. A result may not be visible yet.
    Over(JobEnd),
    /// The scheduler does not know it.
    Unknown,
}

/// How a task without a result ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobEnd {
    Cancelled,
    /// The scheduler's own limit, which is later than retake's.
    TimedOut,
    OutOfMemory,
    /// The shared directory had no space for a result. Another attempt would fail, too.
    DirectoryFull,
    /// The machine, the scheduler or the runner failed: the command's outcome is unknown.
    Lost {
        why: String,
    },
}

/// Reasons for waiting that do not go away when other jobs end.
const NEVER_RUNS: [&str; 12] = [
    "PartitionConfig",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "AccountNotAllowed",
    "QOSNotAllowed",
    "AssocMaxCpuPerJobLimit",
    "AssocMaxMemPerJob",
    "QOSMaxCpuPerJobLimit",
    "DependencyNeverSatisfied",
];

impl JobState {
    pub(crate) fn of(row: Option<&TaskRow>) -> Self {
        row.map_or(Self::Unknown, job_state)
    }
}

fn job_state(row: &TaskRow) -> JobState {
    // A state can have a suffix: `CANCELLED by 0`.
    let state = row.state.split([' ', '+']).next().unwrap_or_default();
    let on = || row.node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
    let lost = |why: String| JobState::Over(JobEnd::Lost { why });
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" => {
            let held = row.reason.to_lowercase();
            if held.contains("held") && !held.contains("user") && !held.contains("admin") {
                JobState::Held
            } else if NEVER_RUNS.contains(&row.reason.as_str()) {
                JobState::NeverRuns { reason: row.reason.clone() }
            } else {
                JobState::Queued
            }
        }
        "CONFIGURING" | "RUNNING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING"
        | "STAGE_OUT" | "RESIZING" => JobState::Running { node: row.node.clone() },
        "CANCELLED" | "REVOKED" => JobState::Over(JobEnd::Cancelled),
        "TIMEOUT" | "DEADLINE" => JobState::Over(JobEnd::TimedOut),
        "OUT_OF_MEMORY" => JobState::Over(JobEnd::OutOfMemory),
        "FAILED" if row.status == NO_SHARED_DIR << 8 => {
            lost(format!("the shared directory cannot be seen{}", on()))
        }
        "FAILED" if row.status == i32::from(SHARED_DIR_FULL) << 8 => {
            JobState::Over(JobEnd::DirectoryFull)
        }
        "COMPLETED" => lost(format!("the task ended{} without leaving a result", on())),
        "FAILED" => lost(format!("the runner failed{} ({})", on(), status(row.status))),
        "NODE_FAIL" | "BOOT_FAIL" | "LAUNCH_FAILED" => lost(format!("the node failed{}", on())),
        "PREEMPTED" => lost(format!("it was preempted by another job{}", on())),
        // A state of a later release of Slurm: not known to have ended.
        _ => JobState::Queued,
    }
}

fn status(raw: i32) -> String {
    match (raw >> 8, raw & 0x7f) {
        (0, signal @ 1..=64) => retake_types::signal_name(signal),
        (code, _) => format!("exit {code}"),
    }
}

/// Facts about a cell besides its row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CellHistory {
    /// A machine has started it.
    pub started: bool,
    /// It was in the queue, and others of its submission are still known.
    pub vanished_from_queue: bool,
    /// The submitter cancelled it.
    pub cancelled: bool,
    /// It may be run again although it has begun.
    pub repeatable: bool,
    /// How often it was lost before.
    pub losses: u32,
}

/// What to do about a cell whose task ended, or is unknown, and whose result did not arrive in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    SubmitAgain {
        why: String,
    },
    /// By the submitter.
    Cancelled,
    /// By another user or an administrator.
    CancelledOutside,
    TimedOut,
    OutOfMemory,
    Lost {
        why: String,
        tries: u32,
    },
}

/// Maximum number of submissions of a cell.
pub(crate) const MAX_TRIES: u32 = 3;

pub(crate) fn resolve(end: Option<&JobEnd>, history: CellHistory) -> Resolution {
    let lost = |why: &str| {
        if history.cancelled {
            Resolution::Cancelled
        } else if history.losses + 1 < MAX_TRIES && (history.repeatable || !history.started) {
            Resolution::SubmitAgain { why: why.to_owned() }
        } else {
            Resolution::Lost { why: why.to_owned(), tries: history.losses + 1 }
        }
    };
    match end {
        Some(JobEnd::Cancelled) if history.cancelled => Resolution::Cancelled,
        Some(JobEnd::Cancelled) => Resolution::CancelledOutside,
        Some(JobEnd::TimedOut) => Resolution::TimedOut,
        Some(JobEnd::OutOfMemory) => Resolution::OutOfMemory,
        Some(JobEnd::DirectoryFull) if history.cancelled => Resolution::Cancelled,
        Some(JobEnd::DirectoryFull) => Resolution::Lost {
            why: "the shared directory has no room for its result".to_owned(),
            tries: history.losses + 1,
        },
        Some(JobEnd::Lost { why }) => lost(why),
        // Pending tasks that are cancelled leave no trace.
        None if history.vanished_from_queue && !history.started && !history.cancelled => {
            Resolution::CancelledOutside
        }
        None => lost("the scheduler does not know it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str, reason: &str, status: i32) -> TaskRow {
        TaskRow {
            job: "1".into(),
            state: state.into(),
            reason: reason.into(),
            node: Some("n1".into()),
            status,
        }
    }

    fn of(state: &str, reason: &str, status: i32) -> JobState {
        JobState::of(Some(&row(state, reason, status)))
    }

    #[test]
    fn every_state_has_its_meaning() {
        let running = JobState::Running { node: Some("n1".into()) };
        assert_eq!(of("PENDING", "Resources", 0), JobState::Queued);
        assert_eq!(of("PENDING", "JobHeldUser", 0), JobState::Queued);
        assert_eq!(of("PENDING", "launch failed requeued held", 0), JobState::Held);
        assert_eq!(
            of("PENDING", "PartitionConfig", 0),
            JobState::NeverRuns { reason: "PartitionConfig".into() }
        );
        assert_eq!(of("RUNNING", "None", 0), running);
        assert_eq!(of("COMPLETING", "None", 0), running);
        assert_eq!(of("CANCELLED by 0", "None", 15), JobState::Over(JobEnd::Cancelled));
        assert_eq!(of("TIMEOUT", "TimeLimit", 15), JobState::Over(JobEnd::TimedOut));
        assert_eq!(of("OUT_OF_MEMORY", "None", 0), JobState::Over(JobEnd::OutOfMemory));
        assert_eq!(of("SOMETHING_NEW", "None", 0), JobState::Queued);
        assert_eq!(JobState::of(None), JobState::Unknown);
        assert_eq!(of("FAILED", "None", 98 << 8), JobState::Over(JobEnd::DirectoryFull));
        let why = |state, status| match of(state, "None", status) {
            JobState::Over(JobEnd::Lost { why }) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why("COMPLETED", 0), "the task ended on n1 without leaving a result");
        assert_eq!(why("FAILED", 1792), "the runner failed on n1 (exit 7)");
        assert_eq!(why("FAILED", 11), "the runner failed on n1 (SIGSEGV)");
        assert_eq!(why("FAILED", 97 << 8), "the shared directory cannot be seen on n1");
        assert_eq!(why("NODE_FAIL", 0), "the node failed on n1");
        assert_eq!(why("PREEMPTED", 0), "it was preempted by another job on n1");
    }

    #[test]
    fn lost_runs_are_submitted_again_up_to_a_maximum() {
        let end = JobEnd::Lost { why: "x".into() };
        let known = |started, repeatable, losses| CellHistory {
            started,
            repeatable,
            losses,
            ..CellHistory::default()
        };
        let again = Resolution::SubmitAgain { why: "x".into() };
        let lost = |tries| Resolution::Lost { why: "x".into(), tries };
        assert_eq!(resolve(Some(&end), known(true, true, 0)), again);
        assert_eq!(resolve(Some(&end), known(true, true, 1)), again);
        assert_eq!(resolve(Some(&end), known(true, true, 2)), lost(3));
        // A run that may not be repeated is repeated only if it never began.
        assert_eq!(resolve(Some(&end), known(false, false, 0)), again);
        assert_eq!(resolve(Some(&end), known(true, false, 0)), lost(1));
    }

    #[test]
    fn a_run_lost_to_a_full_directory_is_not_retried() {
        let known = CellHistory { repeatable: true, ..CellHistory::default() };
        let resolved = resolve(Some(&JobEnd::DirectoryFull), known);
        assert!(matches!(resolved, Resolution::Lost { tries: 1, .. }), "{resolved:?}");
        let cancelled = CellHistory { cancelled: true, ..known };
        assert_eq!(resolve(Some(&JobEnd::DirectoryFull), cancelled), Resolution::Cancelled);
    }

    #[test]
    fn own_cancellations_are_distinguished_from_others() {
        let cancelled = CellHistory { cancelled: true, ..CellHistory::default() };
        assert_eq!(resolve(Some(&JobEnd::Cancelled), cancelled), Resolution::Cancelled);
        assert_eq!(
            resolve(Some(&JobEnd::Cancelled), CellHistory::default()),
            Resolution::CancelledOutside
        );
        assert_eq!(resolve(None, cancelled), Resolution::Cancelled);
        assert_eq!(
            resolve(Some(&JobEnd::Lost { why: "x".into() }), cancelled),
            Resolution::Cancelled
        );
        let vanished = CellHistory { vanished_from_queue: true, ..CellHistory::default() };
        assert_eq!(resolve(None, vanished), Resolution::CancelledOutside);
        assert!(matches!(resolve(None, CellHistory::default()), Resolution::SubmitAgain { .. }));
    }
}
