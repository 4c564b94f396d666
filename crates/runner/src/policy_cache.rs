//! A short-lived cache of resolved policies: resolving one examines a hundred paths, and a worker
//! may run a thousand commands per second.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use retake_sandbox::{Places, Policy, PolicyError};
use retake_types::SandboxRequest;

/// How long new files and sockets may go unnoticed.
const FRESH: Duration = Duration::from_secs(1);
/// Maximum cached policies; a loop uses one or two.
const KEPT: usize = 8;

#[derive(Clone, Default)]
pub struct PolicyCache(Arc<Mutex<Vec<CachedPolicy>>>);

struct CachedPolicy {
    request: SandboxRequest,
    cwd: PathBuf,
    /// Only one that a sandbox would otherwise hide.
    program: Option<PathBuf>,
    policy: Arc<Policy>,
    resolved: Instant,
}

impl PolicyCache {
    /// The policy of a request; project and home are the same for a whole context.
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
