//! Confines a process and everything it starts.
//!
//! A [`Policy`] is what was asked for, resolved to paths that exist. A [`Confinement`] is a policy
//! made ready for one of two levels; the engine's keeper enters it before it starts anything, so
//! that every command inherits it. No helper program is needed, and nothing of it outlives the
//! process: mounts, network and temporary files end with the namespaces.
//!
//! Nothing here falls back to no confinement. See `docs/design/sandbox.md`.

mod always_protected;
mod bound_sockets;
mod caches;
mod covered;
mod denials;
mod enter;
mod git_config;
mod git_files;
mod host_rules;
mod landlock;
mod lists;
mod mechanism;
mod network;
mod own_network;
mod path_rules;
mod plan;
mod plan_memory;
mod policy;
mod proc_entries;
mod proxy;
mod real_path;
mod seccomp;
mod secret_places;
mod set_id;
mod step;

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use caches::CacheLayers;
use denials::Judge;
use enter::{FailedStep, part};
use lists::{RECORD_IN_TEMP, RECORD_INSIDE};
use mechanism::{Entered, Filters, Mechanism};
use network::Network;
use own_network::HelperStack;
use plan::Plan;
use plan_memory::{PlanMemory, PlannedEntry};
use retake_types::{
    DroppedPromise, SandboxFailure, SandboxLevel, SandboxMode, SandboxPart, SandboxReport,
};
use seccomp::Sockets;

pub use covered::Covered;
pub use denials::{DenialWatch, WatchedCalls, first_call};
pub use enter::SetupFailure;
pub use git_config::{NamedByGit, entries as git_config_entries};
pub use host_rules::PrivateTemp;
pub use lists::has_protected_name;
pub use network::Listeners;
pub use policy::{Places, Policy, PolicyError};
pub use proxy::{ParentProxyError, Parents};

/// The record to use inside of the full level of a sandbox; `None` outside.
pub fn record_inside() -> Option<PathBuf> {
    let path = PathBuf::from(RECORD_INSIDE);
    path.is_dir().then_some(path)
}

/// The version of Landlock that this kernel has; 0 without it.
pub fn landlock_abi() -> u32 {
    landlock::abi()
}

/// Whether this kernel filters system calls, and whether it can tell another process of them.
pub fn seccomp_available() -> [bool; 2] {
    seccomp::available()
}

/// The variable that tells a process inside how it is confined.
const INSIDE: &str = "RETAKE_SANDBOX";

/// How this process itself is confined by a sandbox of ours, if it is.
pub fn enclosing() -> Option<SandboxLevel> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    // What a sandbox always sets, and nobody can take back.
    let is_set = |line: &str| status.lines().any(|found| found == line);
    if !(is_set("NoNewPrivs:\t1") && is_set("Seccomp:\t2")) {
        return None;
    }
    // Only a sandbox has it; outside nobody but root could make it.
    if record_inside().is_some() {
        return Some(SandboxLevel::Full);
    }
    // Landlock leaves no mark but this one.
    let landlock = SandboxLevel::Landlock;
    std::env::var(INSIDE).is_ok_and(|named| named == landlock.as_str()).then_some(landlock)
}

/// Everything that a process needs to confine itself, made before it exists.
#[derive(Debug)]
pub struct Confinement {
    mechanism: Mechanism,
    /// What of it is denied is reported.
    reports: bool,
    abi: u32,
    dropped: Vec<DroppedPromise>,
    network: Network,
    shared: Shared,
    /// What is to be set for caches that have no layer.
    caches: Vec<(&'static str, PathBuf)>,
    /// What is set for every process inside.
    variables: Vec<(OsString, OsString)>,
    /// The thread that will see what is denied.
    watch: Option<DenialWatch>,
    /// Where the process begins.
    directory: Option<CString>,
}

/// Whether the network of a confinement is also that of others.
#[derive(Clone, Debug, Default)]
enum Shared {
    /// It is its own.
    #[default]
    No,
    /// Others may join it later.
    First,
    /// It is that of another one.
    Joins(Arc<SharedNetwork>),
}

/// The network that several confinements share, and the user namespace that it belongs to. What
/// listens in one of them can be reached from the others.
#[derive(Debug)]
pub struct SharedNetwork {
    user: OwnedFd,
    network: OwnedFd,
}

/// What a process that confined itself hands to its runner.
#[derive(Debug)]
pub struct Handed {
    pub sockets: Listeners,
    /// The root directory as it is inside.
    pub root: OwnedFd,
    /// Where the kernel notifies of calls, if it does. Once it is closed they fail.
    pub listener: Option<OwnedFd>,
    /// The namespaces that others may join.
    pub shared: Option<SharedNetwork>,
}

impl SharedNetwork {
    /// From the descriptors of the namespaces.
    pub fn new([user, network]: [OwnedFd; 2]) -> Self {
        Self { user, network }
    }

    /// The descriptors of the namespaces.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.user.as_raw_fd(), self.network.as_raw_fd()]
    }

    /// Makes the calling process, which has one thread, a member. Allocates nothing.
    pub fn join(&self) -> std::io::Result<()> {
        enter::join_namespace(&self.user, libc::CLONE_NEWUSER)?;
        enter::join_namespace(&self.network, libc::CLONE_NEWNET)
    }
}

impl Confinement {
    /// The full level. Whether the kernel allows it shows only when a process is made for it. `base` is
    /// where the writable layers of caches are kept; without, caches are read-only.
    pub fn full(policy: &Policy, base: Option<&Path>) -> Result<Self, SandboxFailure> {
        // SAFETY: no arguments, no failure.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let memory = PlanMemory::new().map_err(missing(SandboxPart::Mounts))?;
        let mechanism = Mechanism::Namespaces {
            policy: Box::new(policy.clone()),
            base: base.map(Path::to_owned),
            layers: None,
            memory,
            uid_map: format!("{uid} {uid} 1").into_bytes(),
            gid_map: format!("{gid} {gid} 1").into_bytes(),
            stack: HelperStack::new(),
            judge: None,
        };
        Ok(Self {
            mechanism,
            reports: denials::is_possible(),
            abi: landlock::abi(),
            dropped: Vec::new(),
            network: Network::own(policy),
            shared: Shared::No,
            caches: Vec::new(),
            variables: Vec::new(),
            watch: None,
            directory: None,
        })
    }

    /// Makes the plan that a process waits for which was made with [`Self::clone_flags`]; meanwhile that
    /// one makes its network. Gives whether one waits.
    pub fn plan(&mut self) -> std::io::Result<bool> {
        let reports = self.reports;
        let Mechanism::Namespaces { policy, base, layers, memory, .. } = &mut self.mechanism else {
            return Ok(false);
        };
        if layers.is_none()
            && let Some((base, workspace)) = base.as_deref().zip(policy.workspace.as_deref())
            && !policy.caches.is_empty()
        {
            // Caches are a convenience: where no layer can be made, they are read-only.
            let made =
                CacheLayers::new(base, workspace, &policy.caches, policy.home.as_deref()).ok();
            *layers = made.filter(|made| !made.layers.is_empty());
            if layers.is_some() {
                **policy = policy.with_writable_caches(base);
            }
        }
        memory.clear();
        let made = layers.as_ref().map_or(&[][..], |layers| &layers.layers[..]);
        let Plan { steps, slots } = plan::plan(policy, made, memory);
        let Filters { filter, notified } = Filters::new(Sockets::Namespaced, reports);
        memory.publish(PlannedEntry {
            steps: memory.slice(&steps),
            slots,
            filter: memory.slice(&filter),
            notified: memory.slice(&notified),
        })?;
        Ok(true)
    }

    /// Has the process begin in this directory, as it is named inside. Later it would be notified of
    /// that.
    pub fn begin_in(&mut self, directory: &Path) {
        self.directory = CString::new(directory.as_os_str().as_bytes()).ok();
    }

    /// Lets others join its network, or joins the one of another confinement. One that leads to
    /// ports of the machine stays alone: each port can lead there once only.
    pub fn share_network(&mut self, known: Option<Arc<SharedNetwork>>) {
        if self.level() != SandboxLevel::Full || self.network.handed() != 1 {
            return;
        }
        self.shared = known.map_or(Shared::First, Shared::Joins);
    }

    /// The network that it joins.
    pub fn joined_network(&self) -> Option<&Arc<SharedNetwork>> {
        match &self.shared {
            Shared::Joins(known) => Some(known),
            Shared::No | Shared::First => None,
        }
    }

    /// The level of a machine without namespaces.
    pub fn landlock(policy: &Policy) -> Result<Self, SandboxFailure> {
        let policy = &policy.without_files_of_root();
        let abi = landlock::abi();
        if abi == 0 {
            let (part, errno) = (SandboxPart::Landlock, libc::ENOSYS);
            return Err(SandboxFailure::Missing { part, errno });
        }
        let temp = PrivateTemp::new().map_err(missing(SandboxPart::Mounts))?;
        let network = Network::of_machine(policy, abi).map_err(missing(SandboxPart::Loopback))?;
        let ports = network.ports().map_err(missing(SandboxPart::Loopback))?;
        let ruleset = host_rules::ruleset(policy, temp.path(), &ports, abi)
            .map_err(missing(SandboxPart::Landlock))?;
        let sockets = Sockets::Host { unix: policy.sockets, tcp: !ports.is_empty() };
        let reports = denials::is_possible();
        let judge = Arc::new(Judge::landlock(policy, temp.path()));
        let filters = Filters::new(sockets, reports);
        let mechanism = Mechanism::Landlock { ruleset, temp, filters, judge };
        Ok(Self {
            mechanism,
            reports,
            abi,
            dropped: host_rules::dropped(policy, abi),
            network,
            shared: Shared::No,
            caches: Vec::new(),
            variables: Vec::new(),
            watch: None,
            directory: None,
        })
    }

    /// Finds out once for all runs which variables are set inside.
    fn note_variables(&mut self) {
        let temp = self.temp().to_owned();
        let own = [
            ("TMPDIR", temp.clone()),
            ("RETAKE_STORE", self.nested_record()),
            (INSIDE, PathBuf::from(self.level().as_str())),
            // Chromium does not start where it can make no profile.
            ("CHROME_CONFIG_HOME", temp.join(".config")),
        ];
        let own = own.into_iter().chain(std::mem::take(&mut self.caches));
        let own = own.map(|(name, value)| (name.into(), value.into()));
        self.variables = own.chain(self.network.variables()).collect();
    }

    /// Finds out what is set for caches.
    fn note_caches(&mut self) {
        let layered: Vec<&Path> = match &self.mechanism {
            Mechanism::Namespaces { layers: Some(layers), .. } => {
                let caches = layers.layers.iter().flat_map(|layer| &layer.caches);
                caches.map(PathBuf::as_path).collect()
            }
            _ => Vec::new(),
        };
        self.caches = caches::variables(&layered, self.temp());
    }

    pub fn level(&self) -> SandboxLevel {
        match self.mechanism {
            Mechanism::Namespaces { .. } => SandboxLevel::Full,
            Mechanism::Landlock { .. } => SandboxLevel::Landlock,
        }
    }

    /// What is promised, before anything has run.
    pub fn report(&self) -> SandboxReport {
        SandboxReport {
            level: self.level(),
            landlock_abi: self.abi,
            dropped: self.dropped.clone(),
            denied: Vec::new(),
            denied_unlisted: 0,
            left_for_host: None,
            network: Vec::new(),
            network_unlisted: 0,
            reported: None,
        }
    }

    /// Does what can wait until then, while a process confines itself: starts the threads that will
    /// be needed.
    pub fn prepare(&mut self) -> std::io::Result<()> {
        self.note_caches();
        if self.reports {
            self.watch = Some(DenialWatch::start(self.judge())?);
        }
        self.network.prepare()
    }

    /// Watches what a process does that entered this confinement. Fails if its calls are notified
    /// and cannot be answered: each of them would fail.
    pub fn watch(&mut self, listener: OwnedFd, root: OwnedFd) -> std::io::Result<DenialWatch> {
        let mut watch = match self.watch.take() {
            Some(watch) => watch,
            None => DenialWatch::start(self.judge())?,
        };
        watch.begin(listener, root)?;
        Ok(watch)
    }

    /// From now on nothing that is denied is reported, by any confinement: this machine notifies of
    /// calls and does not take the answers.
    pub fn give_up_watching(&mut self) {
        denials::give_up();
        self.report_nothing();
        self.watch = None;
    }

    fn report_nothing(&mut self) {
        self.reports = false;
        if let Mechanism::Landlock { filters, .. } = &mut self.mechanism {
            filters.notified = Vec::new();
        }
    }

    /// What knows which calls are denied. Made when it is needed first, while the process confines itself.
    fn judge(&mut self) -> Arc<Judge> {
        match &mut self.mechanism {
            Mechanism::Namespaces { policy, judge, .. } => {
                judge.get_or_insert_with(|| Arc::new(Judge::full(policy))).clone()
            }
            Mechanism::Landlock { judge, .. } => judge.clone(),
        }
    }

    /// How many sockets the confined process hands out.
    pub fn sockets(&self) -> usize {
        self.network.handed()
    }

    /// Takes the sockets that the confined process handed out.
    pub fn open_network(&mut self, sockets: Vec<OwnedFd>) -> std::io::Result<()> {
        self.network.open(sockets)?;
        self.note_variables();
        Ok(())
    }

    /// From now on there is a run, whose requests to the network are answered.
    pub fn begin_run(&self) {
        self.network.begin_run();
    }

    /// The run is over: nothing of it reaches the network any more. What is promised, and what the
    /// run asked for.
    pub fn end_run(&self) -> SandboxReport {
        let (network, network_unlisted) = self.network.end_run();
        SandboxReport { network, network_unlisted, ..self.report() }
    }

    /// The directory for temporary files, as a process inside names it.
    fn temp(&self) -> &Path {
        match &self.mechanism {
            Mechanism::Namespaces { .. } => Path::new("/tmp"),
            Mechanism::Landlock { temp, .. } => temp.path(),
        }
    }

    /// Where a retake inside keeps its record, as a process inside names it.
    pub fn nested_record(&self) -> PathBuf {
        match &self.mechanism {
            Mechanism::Namespaces { .. } => PathBuf::from(RECORD_INSIDE),
            Mechanism::Landlock { temp, .. } => temp.path().join(RECORD_IN_TEMP),
        }
    }

    /// Whether a retake inside has recorded anything. `root` is the root directory of the inside.
    pub fn has_nested_record(&self, root: BorrowedFd<'_>) -> bool {
        let database = self.nested_record().join("retake.db");
        match self.mechanism {
            Mechanism::Namespaces { .. } => enter::exists_below(root, &database),
            Mechanism::Landlock { .. } => database.symlink_metadata().is_ok(),
        }
    }

    /// Variables that every process inside gets: where temporary files go, and caches that would
    /// otherwise be written where nothing can be. Known once the network is open.
    pub fn variables(&self) -> &[(OsString, OsString)] {
        &self.variables
    }

    /// The flags of the clone that makes the process.
    pub fn clone_flags(&self) -> i32 {
        match self.mechanism {
            // The network is made later, while the mounts are: that takes as long as all of them.
            Mechanism::Namespaces { .. } => {
                libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC
            }
            Mechanism::Landlock { .. } => 0,
        }
    }

    /// Reports nothing that is denied and lets nothing through to the network: both need a thread.
    pub fn without_threads(&mut self) {
        self.report_nothing();
        self.network.close();
    }

    /// Confines the calling process for good, and closes every descriptor above stderr but `kept`
    /// and those that it hands out. `set_up` does what else the process must do first, may use
    /// `needed` for it, and is called while the network is being made; the death of a child must not
    /// be ignored even before. `planned` waits until the runner has made the plan, and says whether it
    /// has. For a process made with [`Self::clone_flags`] and not yet threaded; allocates nothing.
    pub fn enter(
        &mut self,
        (kept, needed): (RawFd, RawFd),
        set_up: impl FnOnce(),
        planned: impl FnOnce() -> bool,
    ) -> Result<Handed, SetupFailure> {
        let Self { mechanism, network, shared, directory, abi, .. } = self;
        let parts = (&*network, &*shared, *abi);
        // Sockets are made before the right to do so at low ports is given up.
        let entered = mechanism.enter(parts, (kept, needed), set_up, planned)?;
        let Entered { ruleset, filter, notified, sockets, shared } = entered;
        enter::drop_privileges().map_err(part(SandboxPart::Capabilities))?;
        if let Some(ruleset) = ruleset {
            landlock::restrict(&ruleset).map_err(part(SandboxPart::Landlock))?;
        }
        let mut open = [kept; lists::MOST_PORTS + 4];
        let handed = shared.as_ref().map_or([kept; 2], SharedNetwork::descriptors);
        let handed = sockets.as_slice().iter().chain(&handed);
        open[1..].iter_mut().zip(handed).for_each(|(place, fd)| *place = *fd);
        open.sort_unstable();
        enter::close_all_but(&open).map_err(part(SandboxPart::Descriptors))?;
        enter::forbid_tracing().map_err(part(SandboxPart::Capabilities))?;
        // Before calls are notified of which there is nobody yet to read.
        let root = enter::open(c"/").map_err(part(SandboxPart::Descriptors))?;
        if let Some(directory) = directory {
            // Where that fails it is tried again by the command that needs it, whose failure it is.
            _ = enter::change_directory(directory);
        }
        let notified = Some(notified).filter(|program| !program.is_empty());
        let listener = notified.and_then(denials::install);
        if listener.is_none() {
            enter::install_filter(filter).map_err(part(SandboxPart::Seccomp))?;
        }
        Ok(Handed { sockets, root, listener, shared })
    }

    /// What a failed step means.
    pub fn explain(&self, failure: SetupFailure) -> SandboxFailure {
        let errno = failure.errno;
        let at = match failure.at {
            FailedStep::Part(part) => return SandboxFailure::Missing { part, errno },
            FailedStep::Planned(at) => at,
        };
        let Mechanism::Namespaces { memory, .. } = &self.mechanism else {
            return SandboxFailure::Missing { part: SandboxPart::Landlock, errno };
        };
        let step = memory.planned().and_then(|planned| planned.steps.get(at));
        let (part, path) = step.map_or((SandboxPart::Mounts, None), step::Step::part);
        // What the kernel does not allow at all is not about one path.
        match path.filter(|_| !matches!(errno, libc::EPERM | libc::ENOSYS)) {
            Some(path) => {
                let path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
                SandboxFailure::Path { path, errno }
            }
            None => SandboxFailure::Missing { part, errno },
        }
    }

    /// Notes that standard input is a file of the runner's. Only Landlock keeps such a descriptor
    /// from being opened again for writing.
    pub fn note_given_input(&mut self) {
        if self.abi == 0 {
            self.dropped.push(DroppedPromise::StdinFile);
        }
    }

    /// Whether this may be used for what was asked.
    pub fn satisfies(&self, mode: SandboxMode) -> bool {
        mode == SandboxMode::BestEffort || self.dropped.is_empty()
    }
}

/// A failure that is about a part of the sandbox.
fn missing(part: SandboxPart) -> impl Fn(std::io::Error) -> SandboxFailure {
    move |error| SandboxFailure::Missing { part, errno: enter::errno_of(&error) }
}
