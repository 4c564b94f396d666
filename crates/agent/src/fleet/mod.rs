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
mod submodules;
mod tree;
mod trees;

pub use event::{
    FinishedAgent, FinishedFleet, FleetEvent, FleetFrontEnd, OpenAgent, StandIn, TargetCheckout,
};
pub use git::{FleetGitError, MainRepository};
pub use mounts::{MountNamespace, enter_mount_namespace, join_mount_namespace};
pub use overview::{AgentOverlap, AgentOverview};
pub use plan::{
    AgentPhase, AgentReport, FleetNext, FleetPlan, FleetReport, FleetStep, MergeEnd, RestoredAgent,
    TreePhase,
};
pub use prune::{LeftTree, give_up, left_trees, prune, remove_directory, unfinished};
pub use record::{RecordedAgent, RecordedFleet, fleets};
pub use result::{Applied, apply, diff};
pub use run::{AgentPlace, run};
pub use setup::{
    AGENT_VARIABLE, FleetError, FleetRequest, FleetState, PreparedFleet, StartFrom,
    existing_workspace_of, last_fleet, prepare, tries, unfinished_with,
};
pub use tree::TreeMark;
pub use trees::WhyClones;
