//! How a process confines itself at one of the two levels, and its inputs.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use retake_types::SandboxPart;

use crate::caches::CacheLayers;
use crate::denials::{self, Judge};
use crate::enter::{self, Setup, SetupFailure, part};
use crate::host_rules::PrivateTemp;
use crate::network::{Listeners, Network};
use crate::own_network::{HelperStack, OwnNetwork};
use crate::plan_memory::{PlanMemory, PlannedEntry};
use crate::policy::Policy;
use crate::seccomp::{self, Sockets};
use crate::{Shared, SharedNetwork, set_id};

/// The filters of system calls.
#[derive(Debug)]
pub(crate) struct Filters {
    pub(crate) filter: Vec<libc::sock_filter>,
    /// The same filter with notifications of deniable calls. Empty if not wanted.
    pub(crate) notified: Vec<libc::sock_filter>,
}

impl Filters {
    pub(crate) fn new(sockets: Sockets, reports: bool) -> Self {
        let mut rules = seccomp::rules(sockets);
        let program = |rules: &[seccomp::Rule]| seccomp::program(&set_id::checked(rules));
        let filter = program(&rules);
        let notified = match reports {
            false => Vec::new(),
            true => {
                rules.extend(denials::rules());
                program(&rules)
            }
        };
        Self { filter, notified }
    }
}

#[derive(Debug)]
pub(crate) enum Mechanism {
    Namespaces {
        /// Boxed, because it is larger than all other fields.
        policy: Box<Policy>,
        /// The directory of writable cache layers.
        base: Option<PathBuf>,
        layers: Option<CacheLayers>,
        /// The plan, once built.
        memory: PlanMemory,
        uid_map: Vec<u8>,
        gid_map: Vec<u8>,
        /// For the process that creates the network in parallel.
        stack: HelperStack,
        judge: Option<Arc<Judge>>,
    },
    Landlock {
        ruleset: OwnedFd,
        temp: PrivateTemp,
        filters: Filters,
        judge: Arc<Judge>,
    },
}

/// What a process still needs after it entered its mechanism.
pub(crate) struct Entered<'a> {
    /// The rules to enforce.
    pub(crate) ruleset: Option<OwnedFd>,
    pub(crate) filter: &'a [libc::sock_filter],
    pub(crate) notified: &'a [libc::sock_filter],
    pub(crate) sockets: Listeners,
    /// The namespaces that others may join.
    pub(crate) shared: Option<SharedNetwork>,
}

impl Mechanism {
    /// See [`crate::Confinement::enter`].
    pub(crate) fn enter(
        &mut self,
        (network, shared, abi): (&Network, &Shared, u32),
        (kept, needed): (RawFd, RawFd),
        set_up: impl FnOnce(),
        planned: impl FnOnce() -> bool,
    ) -> Result<Entered<'_>, SetupFailure> {
        let close = |kept: &[RawFd]| -> Setup {
            enter::close_all_but(kept).map_err(part(SandboxPart::Descriptors))
        };
        match self {
            Self::Namespaces { memory, uid_map, gid_map, stack, .. } => {
                close(&[kept.min(needed), kept.max(needed)])?;
                let joins = matches!(shared, Shared::Joins(_));
                let mut own = OwnNetwork::new(network)?;
                if !joins {
                    own.begin(stack)?;
                }
                set_up();
                enter::map_ids(uid_map, gid_map).map_err(part(SandboxPart::UserMapping))?;
                let user = match shared {
                    Shared::First => Some(own.user_namespace()?),
                    Shared::No | Shared::Joins(_) => None,
                };
                // A dead runner builds no plan.
                let gone = || std::io::Error::from_raw_os_error(libc::EPIPE);
                let entry = planned().then(|| memory.entry()).flatten();
                let (entry, places) = entry.ok_or_else(|| part(SandboxPart::Mounts)(gone()))?;
                let PlannedEntry { steps, filter, notified, .. } = entry;
                let ruleset = enter::carry_out(steps, places, abi)?;
                let (sockets, shared) = match joins {
                    true => (network.listen().map_err(part(SandboxPart::Loopback))?, None),
                    false => {
                        let (network, sockets) = own.enter()?;
                        (sockets, user.map(|user| SharedNetwork { user, network }))
                    }
                };
                Ok(Entered { ruleset, filter, notified, sockets, shared })
            }
            Self::Landlock { ruleset, filters: Filters { filter, notified }, .. } => {
                set_up();
                let fd = ruleset.as_raw_fd();
                close(&[kept.min(fd), kept.max(fd)])?;
                let ruleset = ruleset.try_clone().map_err(part(SandboxPart::Descriptors))?;
                let sockets = network.listen().map_err(part(SandboxPart::Loopback))?;
                Ok(Entered { ruleset: Some(ruleset), filter, notified, sockets, shared: None })
            }
        }
    }
}
