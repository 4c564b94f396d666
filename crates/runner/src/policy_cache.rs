//! Resolved policies, for a moment: to resolve one, a hundred paths are looked at, and a worker may
//! run a thousand commands a second.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use retake_sandbox::{Places, Policy, PolicyError};
use retake_types::SandboxRequest;

/// For how long files and sockets that appear are not looked for again.
const FRESH: Duration = Duration::from_secs(1);
/// How many are kept; a loop uses one or two.
const KEPT: usize = 8;

#[derive(Clone, Default)]
pub struct PolicyCache(Arc<Mutex<Vec<CachedPolicy>>>);

struct CachedPolicy {
    request: SandboxRequest,
    cwd: PathBuf,
    /// Only one that a sandbox would not show otherwise.
    program: Option<PathBuf>,
    policy: Arc<Policy>,
    resolved: Instant,
}

impl PolicyCache {
    /// The policy of a request, whose project and home are the same for all of a context.
    pub(crate) fn policy(
        &self,
        request: &SandboxRequest,
        places: &Places<'_>,
    ) -> Result<Arc<Policy>, Vec<PolicyError>> {
        let program = places.program.filter(|program| Policy::replaces(program));
        let mut cached = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        cached.retain(|known| known.resolved.elapsed() < FRESH);
        let same = |known: &&CachedPolicy| {
            known.request == *request
                && known.cwd == places.cwd
                && known.program.as_deref() == program
        };
        if let Some(known) = cached.iter().find(same) {
            return Ok(known.policy.clone());
        }
        let policy = Arc::new(Policy::new(request, places)?);
        if cached.len() == KEPT {
            cached.remove(0);
        }
        cached.push(CachedPolicy {
            request: request.clone(),
            cwd: places.cwd.to_owned(),
            program: program.map(Path::to_owned),
            policy: policy.clone(),
            resolved: Instant::now(),
        });
        Ok(policy)
    }
}
