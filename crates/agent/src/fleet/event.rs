//! What users see of a fleet while it runs and at its end. A front end writes the text.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retake_types::LoopId;
use retake_types::loop_record::agent::Spent;
use retake_types::loop_record::fleet::{CollectedWork, FleetAgent, FleetOutcome};

use super::plan::FleetPlan;
use super::run::AgentPlace;
use crate::control::ControlError;
use crate::driver::{AgentDisplay, AgentTask, StartError};
use crate::plan::Rules;
use crate::queue::{QueueStopReason, TaskReport};

#[derive(Debug)]
pub enum FleetEvent<'a> {
    /// The fleet continues after its process died or was interrupted; with what it had used by then.
    Continued {
        interrupted: bool,
        spent: Spent,
        time: Duration,
    },
    AgentStarted {
        name: &'a str,
        attempt: u32,
    },
    AgentEnded {
        name: &'a str,
        report: &'a TaskReport,
    },
    /// The task is complete, and the result of an earlier fleet is used, which was not merged.
    EarlierResult {
        name: &'a str,
        /// `None` if that fleet was abandoned.
        outcome: Option<FleetOutcome>,
    },
    Merging {
        name: &'a str,
    },
    /// The gate runs; on the tree merged with the target branch, or without one on the agent's own.
    Verifying {
        name: &'a str,
        merged: bool,
    },
    /// A conflict goes back to its agent.
    HandedBack {
        name: &'a str,
        paths: &'a [String],
    },
    Settled {
        name: &'a str,
        outcome: FleetOutcome,
        branch: Option<&'a str>,
        why: Option<&'a str>,
        work: Option<&'a CollectedWork>,
    },
    TreeKept {
        name: &'a str,
        tree: &'a Path,
        why: &'a str,
    },
    /// Two agents have changed the same files.
    Overlap {
        names: [&'a str; 2],
        paths: &'a [PathBuf],
    },
    /// Time has passed, or something has changed.
    Tick {
        plan: &'a FleetPlan,
        spent: Spent,
    },
    /// A request could not be delivered to an agent.
    NotReached {
        name: &'a str,
        error: &'a ControlError,
    },
    NotRecorded(&'a retake_store::Error),
    /// A restart will not know how much of the time is used.
    TimeNotKept(&'a std::io::Error),
}

/// Opens the task of an agent; `None` if the task is complete already.
pub type OpenAgent<'a> =
    dyn Fn(&AgentPlace<'_>) -> Result<Option<(AgentTask, Rules)>, String> + Sync + 'a;

/// What a fleet needs from its front end.
pub struct FleetFrontEnd<'a> {
    pub event: &'a (dyn Fn(FleetEvent<'_>) + Sync),
    /// The display of one agent.
    pub display: &'a (dyn Fn(&FleetAgent) -> Arc<dyn AgentDisplay> + Sync),
    pub open: &'a OpenAgent<'a>,
    pub start_error: &'a (dyn Fn(&StartError) -> String + Sync),
}

/// A finished fleet, or one that a signal ended.
#[derive(Debug)]
pub struct FinishedFleet {
    pub id: LoopId,
    pub agents: Vec<FinishedAgent>,
    /// Why no further agent started; `None` if all did.
    pub reason: Option<QueueStopReason>,
    /// Whether the next run continues it.
    pub interrupted: bool,
    /// Whether the agents are attempts at one task.
    pub best_of: bool,
    /// Whether one of several attempts was chosen.
    pub chosen: bool,
    pub spent: Spent,
    pub target: Option<String>,
    /// The further options to repeat when the run is continued.
    pub options: Vec<String>,
    /// Contains what could not be merged into the target, because that was checked out.
    pub stand_in: Option<StandIn>,
}

/// A branch that replaces a checked-out target.
#[derive(Debug)]
pub struct StandIn {
    pub branch: String,
    /// Where the target is checked out at the end.
    pub checkout: TargetCheckout,
}

#[derive(Debug, PartialEq, Eq)]
pub enum TargetCheckout {
    /// The checkout in which the agents were started.
    Here,
    There(PathBuf),
    Nowhere,
}

#[derive(Debug)]
pub struct FinishedAgent {
    pub agent: FleetAgent,
    /// `None` if it did not finish.
    pub outcome: Option<FleetOutcome>,
    pub branch: Option<String>,
    pub why: Option<String>,
    pub work: Option<CollectedWork>,
    /// Its tree, if that stays.
    pub tree: Option<PathBuf>,
}
