//! What may remain of a recording after a crash. Pure and deterministic, without I/O.
//!
//! A `profile` splits each operation into parts (`micro_op`) and says which part survives only
//! with which others; `pending_ops` holds those that are not durable yet. `replay` applies
//! a recording under a profile up to a crash, `explore` lists the states that a crash may leave,
//! and `explain` determines why some of them fail.

mod allowed_state;
mod explain;
mod explore;
mod micro_op;
mod path_text;
mod pending_ops;
mod profile;
mod replay;
mod state_key;
#[cfg(test)]
mod test_script;
mod tree;

pub use allowed_state::allows;
pub use explain::{
    Circumstance, Explainer, FailureKind, Finding, Proof, ProofAnswer, ProofRole, ProofState,
    path_shape,
};
pub use explore::state_class::{SECTOR, StateClass};
pub use explore::{BadGlob, Coverage, CrashState, CrashStates, ExploreOptions, FirstPass, rebuild};
pub use micro_op::{Part, Torn};
pub use path_text::{path_text, quoted_path};
pub use profile::{Model, UnknownModel};
pub use replay::Point;
pub use state_key::{BadKey, Kept, StateKey};
pub use tree::{FileView, Tree, TreeEntry, TreeEntryKind};
