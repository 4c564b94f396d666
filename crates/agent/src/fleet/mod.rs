//! Several agents at once on one repository, each in its own clone; their results are merged one
//! after another, and only a merged tree that passes the gate moves the branch.
//!
//! [`FleetPlan`] decides, [`run`] executes. Nothing here writes to the user's checkout or index:
//! results are fetched into `refs/retake/fleet/`, merges need no checkout, and a branch moves only
//! if it has not moved meanwhile. See `docs/design/fleet.md`.

mod agent_step;
mod earlier;
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
mod shared;
mod slot;
mod stale_lock;
mod submodules;
mod tree;
mod trees;

pub use earlier::{FleetResult, newest_result, unmerged_result};
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
pub use result::{Applied, apply, diff, result_reference};
pub use run::{AgentPlace, run};
pub use setup::{
    AGENT_VARIABLE, FleetError, FleetRequest, FleetState, PreparedFleet, StartFrom,
    existing_workspace_of, last_fleet, prepare, tries, unfinished_with,
};
pub use tree::TreeMark;
pub use trees::WhyClones;
