//! The confinement of checks. The program under test is not confined: it is recorded, so the recorder
//! must be its parent.

use std::io;
use std::path::Path;

use retake_engine::{Keeper, KeeperSettings};
use retake_runner::confined;
use retake_runner::context::RunContext;
use retake_types::{PathGrant, PathRule, SandboxRequest};

/// How checks are confined.
#[derive(Clone, Copy)]
pub struct CheckSandbox<'a> {
    pub request: &'a SandboxRequest,
    /// The working directory of checks.
    pub cwd: &'a Path,
    pub context: &'a RunContext,
}

impl CheckSandbox<'_> {
    /// A keeper of checks that see a state at `seen`, with their acknowledgements in `directory`.
    /// Call it in the mount namespace with the state.
    pub(crate) fn keeper(
        &self,
        seen: &Path,
        directory: &Path,
        settings: KeeperSettings,
    ) -> io::Result<Keeper> {
        let paths = vec![
            PathRule::new(PathGrant::AllowWrite, seen.to_owned()),
            PathRule::new(PathGrant::AllowRead, directory.to_owned()),
        ];
        let own = SandboxRequest { paths, ..SandboxRequest::default() };
        let request = self.request.clone().with_rules(&own);
        confined::start_keeper(&request, self.cwd, self.context, settings)
            .map_err(|failure| io::Error::other(failure.to_string()))
    }
}
