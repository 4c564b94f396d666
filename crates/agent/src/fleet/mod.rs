//! Several agents at once on one repository, each in a clone of its own; their results are merged one
//! after another, and only what passes the gate on the merged tree moves the branch.
//!
//! [`FleetPlan`] decides, [`run`] carries it out. Nothing here writes in the user's checkout or index:
//! results come by fetch into `refs/retake/fleet/`, merges are made without a checkout, and a branch
//! moves only if it is where it was. See `docs/design/fleet.md`.

mod agent_step;
mod event;
mod git;
mod include;
mod layers;
mod merge;
mod merge_step;
mod mounts;
mod overlap;
mod overview;
mod plan;
mod prune;
mod record;
mod result;
mod run;
mod setup;
mod slot;
mod stale_lock;
mod tree;
mod trees;

pub use event::{FinishedAgent, FinishedFleet, FleetEvent, FleetFrontEnd, OpenAgent};
pub use git::{FleetGitError, MainRepository};
pub use mounts::{MountNamespace, enter_mount_namespace, join_mount_namespace};
pub use overview::{AgentOverlap, AgentOverview};
pub use plan::{
    AgentPhase, AgentReport, FleetNext, FleetPlan, FleetReport, FleetStep, MergeEnd, TreePhase,
};
pub use prune::{LeftTree, left_trees, prune, remove_directory};
pub use record::{RecordedAgent, RecordedFleet, fleets};
pub use result::{Applied, apply, diff};
pub use run::{AgentPlace, run};
pub use setup::{
    AGENT_VARIABLE, FleetError, FleetRequest, FleetState, PreparedFleet, StartFrom, last_fleet,
    prepare, tries, workspace_of,
};
pub use tree::TreeMark;
pub use trees::WhyClones;
