//! Runs an agent in a loop, on the record.
//!
//! An [`AgentTask`] is the fixed part; an [`AgentSession`] holds its workspace and runs commands
//! for it; [`run`] adds a loop to a session: the plan's steps on the runner's loop driver. An
//! agent's claims are trusted only as far as its own flags; no process of it outlives it; its cost
//! is counted while it works.

mod agent_loop;
mod agent_run;
pub mod dry_run;
mod event;
mod follow;
pub mod git_checkpoints;
mod hook_run;
pub mod interactive;
mod iteration;
pub mod iterations_backwards;
mod queue_run;
pub mod recorded_loop;
mod report_run;
pub mod rollback;
mod session;
mod steered_plan;
mod task;
mod task_sandbox;
mod test_lines;
mod tool_tests;
mod verification;

pub use agent_loop::{FinishedLoop, run};
pub use event::{AgentDisplay, AgentEvent, AgentRunError, LiveLine, StoppedLoop, Unrecorded};
pub use follow::{Followed, LoopFollower};
pub use queue_run::{FinishedQueue, QueueEvent, QueueTask, run_queue};
pub use report_run::{ReportError, VerificationReport};
pub use session::{AgentSession, StartError};
pub use task::{AgentTask, OfferServer, RunOptions, ServerOffer, TaskError};
pub use task_sandbox::TaskSandbox;

pub(crate) use task::input;
pub(crate) use verification::run_gate;

use agent_loop::AgentLoop;
