//! What to think of a cell that has no result, given what the scheduler says of its task.
//!
//! Pure: no process, clock or file. The result of a cell is its result file; this only decides
//! whether one can still be expected.

use super::slurm::{BLIND, Row};

/// What is to be thought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Queued,
    Running {
        node: Option<String>,
    },
    /// It will not run unless someone lets go of it.
    Held,
    /// It waits for something that will not come, if that stays so.
    Hopeless {
        reason: String,
    },
    /// Its task is over. A result may still be on its way.
    Over(End),
    /// The scheduler says nothing of it.
    Unknown,
}

/// How a task ended that left no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Cancelled,
    /// The scheduler's own limit, which is later than ours.
    TimedOut,
    OutOfMemory,
    /// The machine, the scheduler or the runner failed: nothing is known of the command.
    Lost {
        why: String,
    },
}

/// Reasons to wait that no other job's end removes.
const HOPELESS: [&str; 12] = [
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

/// What the scheduler's row says.
pub fn verdict(row: Option<&Row>) -> Verdict {
    let Some(row) = row else { return Verdict::Unknown };
    // A state can have remarks: `CANCELLED by 0`.
    let state = row.state.split([' ', '+']).next().unwrap_or_default();
    let on = || row.node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
    let lost = |why: String| Verdict::Over(End::Lost { why });
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" => {
            let held = row.reason.to_lowercase();
            if held.contains("held") && !held.contains("user") && !held.contains("admin") {
                Verdict::Held
            } else if HOPELESS.contains(&row.reason.as_str()) {
                Verdict::Hopeless { reason: row.reason.clone() }
            } else {
                Verdict::Queued
            }
        }
        "CONFIGURING" | "RUNNING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING"
        | "STAGE_OUT" | "RESIZING" => Verdict::Running { node: row.node.clone() },
        "CANCELLED" | "REVOKED" => Verdict::Over(End::Cancelled),
        "TIMEOUT" | "DEADLINE" => Verdict::Over(End::TimedOut),
        "OUT_OF_MEMORY" => Verdict::Over(End::OutOfMemory),
        "FAILED" if row.status == BLIND << 8 => {
            lost(format!("the shared directory cannot be seen{}", on()))
        }
        "COMPLETED" => lost(format!("the task ended{} without leaving a result", on())),
        "FAILED" => lost(format!("the runner failed{} ({})", on(), status(row.status))),
        "NODE_FAIL" | "BOOT_FAIL" | "LAUNCH_FAILED" => lost(format!("the node failed{}", on())),
        "PREEMPTED" => lost(format!("it had to make way for another job{}", on())),
        // Of a later release: whatever it is, it is not over as far as we know.
        _ => Verdict::Queued,
    }
}

fn status(raw: i32) -> String {
    match (raw >> 8, raw & 0x7f) {
        (0, signal @ 1..=64) => retake_types::signal_name(signal),
        (code, _) => format!("exit {code}"),
    }
}

/// What is known of a cell beside its row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// A machine has begun with it.
    pub began: bool,
    /// We saw it wait in the queue, and others of its submission are still known.
    pub vanished_from_queue: bool,
    /// We asked for its end.
    pub unwanted: bool,
    /// It may be run once more although it has begun.
    pub repeatable: bool,
    /// How often it was lost before.
    pub losses: u32,
}

/// What to do about a cell whose task is over, or unknown, and whose result did not come in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    Again {
        why: String,
    },
    /// We asked for it.
    Cancelled,
    /// Somebody else did.
    CancelledOutside,
    TimedOut,
    OutOfMemory,
    Lost {
        why: String,
        tries: u32,
    },
}

/// How often a cell is submitted in all.
pub const TRIES: u32 = 3;

pub fn settle(end: Option<&End>, known: Known) -> Settled {
    let lost = |why: &str| {
        if known.unwanted {
            Settled::Cancelled
        } else if known.losses + 1 < TRIES && (known.repeatable || !known.began) {
            Settled::Again { why: why.to_owned() }
        } else {
            Settled::Lost { why: why.to_owned(), tries: known.losses + 1 }
        }
    };
    match end {
        Some(End::Cancelled) if known.unwanted => Settled::Cancelled,
        Some(End::Cancelled) => Settled::CancelledOutside,
        Some(End::TimedOut) => Settled::TimedOut,
        Some(End::OutOfMemory) => Settled::OutOfMemory,
        Some(End::Lost { why }) => lost(why),
        // Tasks that are cancelled before they begin leave no trace.
        None if known.vanished_from_queue && !known.began && !known.unwanted => {
            Settled::CancelledOutside
        }
        None => lost("the scheduler knows nothing of it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str, reason: &str, status: i32) -> Row {
        Row {
            job: "1".into(),
            state: state.into(),
            reason: reason.into(),
            node: Some("n1".into()),
            status,
        }
    }

    fn of(state: &str, reason: &str, status: i32) -> Verdict {
        verdict(Some(&row(state, reason, status)))
    }

    #[test]
    fn every_state_has_its_meaning() {
        let running = Verdict::Running { node: Some("n1".into()) };
        assert_eq!(of("PENDING", "Resources", 0), Verdict::Queued);
        assert_eq!(of("PENDING", "JobHeldUser", 0), Verdict::Queued);
        assert_eq!(of("PENDING", "launch failed requeued held", 0), Verdict::Held);
        assert_eq!(
            of("PENDING", "PartitionConfig", 0),
            Verdict::Hopeless { reason: "PartitionConfig".into() }
        );
        assert_eq!(of("RUNNING", "None", 0), running);
        assert_eq!(of("COMPLETING", "None", 0), running);
        assert_eq!(of("CANCELLED by 0", "None", 15), Verdict::Over(End::Cancelled));
        assert_eq!(of("TIMEOUT", "TimeLimit", 15), Verdict::Over(End::TimedOut));
        assert_eq!(of("OUT_OF_MEMORY", "None", 0), Verdict::Over(End::OutOfMemory));
        assert_eq!(of("SOMETHING_NEW", "None", 0), Verdict::Queued);
        assert_eq!(verdict(None), Verdict::Unknown);
        let why = |state, status| match of(state, "None", status) {
            Verdict::Over(End::Lost { why }) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why("COMPLETED", 0), "the task ended on n1 without leaving a result");
        assert_eq!(why("FAILED", 1792), "the runner failed on n1 (exit 7)");
        assert_eq!(why("FAILED", 11), "the runner failed on n1 (SIGSEGV)");
        assert_eq!(why("FAILED", 97 << 8), "the shared directory cannot be seen on n1");
        assert_eq!(why("NODE_FAIL", 0), "the node failed on n1");
        assert_eq!(why("PREEMPTED", 0), "it had to make way for another job on n1");
    }

    #[test]
    fn what_failed_beneath_a_command_is_tried_again_within_a_cap() {
        let end = End::Lost { why: "x".into() };
        let known =
            |began, repeatable, losses| Known { began, repeatable, losses, ..Known::default() };
        let again = Settled::Again { why: "x".into() };
        let lost = |tries| Settled::Lost { why: "x".into(), tries };
        assert_eq!(settle(Some(&end), known(true, true, 0)), again);
        assert_eq!(settle(Some(&end), known(true, true, 1)), again);
        assert_eq!(settle(Some(&end), known(true, true, 2)), lost(3));
        // What may not be repeated is repeated only if it never began.
        assert_eq!(settle(Some(&end), known(false, false, 0)), again);
        assert_eq!(settle(Some(&end), known(true, false, 0)), lost(1));
    }

    #[test]
    fn who_cancelled_is_told_apart() {
        let unwanted = Known { unwanted: true, ..Known::default() };
        assert_eq!(settle(Some(&End::Cancelled), unwanted), Settled::Cancelled);
        assert_eq!(settle(Some(&End::Cancelled), Known::default()), Settled::CancelledOutside);
        assert_eq!(settle(None, unwanted), Settled::Cancelled);
        assert_eq!(settle(Some(&End::Lost { why: "x".into() }), unwanted), Settled::Cancelled);
        let vanished = Known { vanished_from_queue: true, ..Known::default() };
        assert_eq!(settle(None, vanished), Settled::CancelledOutside);
        assert!(matches!(settle(None, Known::default()), Settled::Again { .. }));
    }
}
