//! Confines a process and everything it starts.
//!
//! A [`Policy`] is a request, resolved to existing paths. A [`Confinement`] is a policy prepared
//! for one of two levels; the engine's keeper enters it before it starts anything, so that every
//! command inherits it. It needs no helper program, and nothing outlives the process: mounts,
//! network and temporary files end with the namespaces.
//!
//! Nothing here falls back to running unconfined. See `docs/design/sandbox.md`.

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

/// The record to use inside the full level of a sandbox; `None` outside.
pub fn record_inside() -> Option<PathBuf> {
    let path = PathBuf::from(RECORD_INSIDE);
    path.is_dir().then_some(path)
}

/// This kernel's Landlock version; 0 without Landlock.
pub fn landlock_abi() -> u32 {
    landlock::abi()
}

/// Whether this kernel filters system calls, and whether it can notify another process of them.
pub fn seccomp_available() -> [bool; 2] {
    seccomp::available()
}

/// The variable that tells a process inside its confinement.
const INSIDE: &str = "RETAKE_SANDBOX";

/// The level at which a retake sandbox confines this process, if any.
pub fn enclosing() -> Option<SandboxLevel> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    // A sandbox always sets these, irrevocably.
    let is_set = |line: &str| status.lines().any(|found| found == line);
    if !(is_set("NoNewPrivs:\t1") && is_set("Seccomp:\t2")) {
        return None;
    }
    // Only a sandbox has it; outside only root could create it.
    if record_inside().is_some() {
        return Some(SandboxLevel::Full);
    }
    // Landlock leaves no other mark.
    let landlock = SandboxLevel::Landlock;
    std::env::var(INSIDE).is_ok_and(|named| named == landlock.as_str()).then_some(landlock)
}

/// Everything that a process needs to confine itself, prepared in advance.
#[derive(Debug)]
pub struct Confinement {
    mechanism: Mechanism,
    /// Whether denials are reported.
    reports: bool,
    abi: u32,
    dropped: Vec<DroppedPromise>,
    network: Network,
    shared: Shared,
    /// Variables for caches without a layer.
    caches: Vec<(&'static str, PathBuf)>,
    /// Variables of every process inside.
    variables: Vec<(OsString, OsString)>,
    /// The thread that will report denials.
    watch: Option<DenialWatch>,
    /// The initial working directory.
    directory: Option<CString>,
}

/// Whether confinements share a network.
#[derive(Clone, Debug, Default)]
enum Shared {
    /// A private network.
    #[default]
    No,
    /// Others may join it later.
    First,
    /// It joins the network of another.
    Joins(Arc<SharedNetwork>),
}

/// A network shared by several confinements, and its user namespace. A server in one of them can be
/// reached from the others.
#[derive(Debug)]
pub struct SharedNetwork {
    user: OwnedFd,
    network: OwnedFd,
}

/// What a confined process passes to its runner.
#[derive(Debug)]
pub struct Handed {
    pub sockets: Listeners,
    /// The root directory inside.
    pub root: OwnedFd,
    /// The kernel's notifications, if enabled. When it is closed, notified calls fail.
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

    /// Joins the namespaces with the calling, single-threaded process. Allocates nothing.
    pub fn join(&self) -> std::io::Result<()> {
        enter::join_namespace(&self.user, libc::CLONE_NEWUSER)?;
        enter::join_namespace(&self.network, libc::CLONE_NEWNET)
    }
}

impl Confinement {
    /// The full level. Only creating a process for it shows whether the kernel allows it. `base` is
    /// the directory for writable cache layers; without it caches are read-only.
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

    /// Builds the plan that a process created with [`Self::clone_flags`] waits for; that process
    /// creates its network meanwhile. Returns whether a process waits.
    pub fn plan(&mut self) -> std::io::Result<bool> {
        let reports = self.reports;
        let Mechanism::Namespaces { policy, base, layers, memory, .. } = &mut self.mechanism else {
            return Ok(false);
        };
        if layers.is_none()
            && let Some((base, workspace)) = base.as_deref().zip(policy.workspace.as_deref())
            && !policy.caches.is_empty()
        {
            // Caches are optional: if a layer cannot be created, they are read-only.
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

    /// Sets the initial working directory, by its path inside. Changing it later would be a
    /// notified call.
    pub fn begin_in(&mut self, directory: &Path) {
        self.directory = CString::new(directory.as_os_str().as_bytes()).ok();
    }

    /// Lets others join its network, or joins another's. A confinement with open machine ports
    /// stays alone: each port can be forwarded only once.
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

    /// The level for machines without namespaces.
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

    /// Determines the variables for all runs once.
    fn note_variables(&mut self) {
        let temp = self.temp().to_owned();
        let own = [
            ("TMPDIR", temp.clone()),
            ("RETAKE_STORE", self.nested_record()),
            (INSIDE, PathBuf::from(self.level().as_str())),
            // Chromium needs a directory for its profile.
            ("CHROME_CONFIG_HOME", temp.join(".config")),
        ];
        let own = own.into_iter().chain(std::mem::take(&mut self.caches));
        let own = own.map(|(name, value)| (name.into(), value.into()));
        self.variables = own.chain(self.network.variables()).collect();
    }

    /// Determines the variables for caches.
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

    /// The report before anything has run.
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

    /// Work that can be done while a process confines itself: starts the needed threads.
    pub fn prepare(&mut self) -> std::io::Result<()> {
        self.note_caches();
        if self.reports {
            self.watch = Some(DenialWatch::start(self.judge())?);
        }
        self.network.prepare()
    }

    /// Watches the calls of a process in this confinement. Fails if its calls are notified but
    /// cannot be answered, because each of them would fail.
    pub fn watch(&mut self, listener: OwnedFd, root: OwnedFd) -> std::io::Result<DenialWatch> {
        let mut watch = match self.watch.take() {
            Some(watch) => watch,
            None => DenialWatch::start(self.judge())?,
        };
        watch.begin(listener, root)?;
        Ok(watch)
    }

    /// Turns off denial reports of all confinements from now on: this machine notifies of calls but
    /// rejects the answers.
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

    /// Judges which calls are denied. Created on first use, while the process confines itself.
    fn judge(&mut self) -> Arc<Judge> {
        match &mut self.mechanism {
            Mechanism::Namespaces { policy, judge, .. } => {
                judge.get_or_insert_with(|| Arc::new(Judge::full(policy))).clone()
            }
            Mechanism::Landlock { judge, .. } => judge.clone(),
        }
    }

    /// How many sockets the confined process passes out.
    pub fn sockets(&self) -> usize {
        self.network.handed()
    }

    /// Takes the sockets that the confined process passed out.
    pub fn open_network(&mut self, sockets: Vec<OwnedFd>) -> std::io::Result<()> {
        self.network.open(sockets)?;
        self.note_variables();
        Ok(())
    }

    /// Starts a run, whose network requests are answered.
    pub fn begin_run(&self) {
        self.network.begin_run();
    }

    /// Ends the run's network access, and returns the promises and the run's requests.
    pub fn end_run(&self) -> SandboxReport {
        let (network, network_unlisted) = self.network.end_run();
        SandboxReport { network, network_unlisted, ..self.report() }
    }

    /// The directory for temporary files, by its path inside.
    fn temp(&self) -> &Path {
        match &self.mechanism {
            Mechanism::Namespaces { .. } => Path::new("/tmp"),
            Mechanism::Landlock { temp, .. } => temp.path(),
        }
    }

    /// The directory of a nested record, by its path inside.
    pub fn nested_record(&self) -> PathBuf {
        match &self.mechanism {
            Mechanism::Namespaces { .. } => PathBuf::from(RECORD_INSIDE),
            Mechanism::Landlock { temp, .. } => temp.path().join(RECORD_IN_TEMP),
        }
    }

    /// Whether a retake inside has recorded anything. `root` is the root directory inside.
    pub fn has_nested_record(&self, root: BorrowedFd<'_>) -> bool {
        let database = self.nested_record().join("retake.db");
        match self.mechanism {
            Mechanism::Namespaces { .. } => enter::exists_below(root, &database),
            Mechanism::Landlock { .. } => database.symlink_metadata().is_ok(),
        }
    }

    /// Variables of every process inside: the temporary directory, and writable places for caches.
    /// Known once the network is open.
    pub fn variables(&self) -> &[(OsString, OsString)] {
        &self.variables
    }

    /// The flags of the clone that makes the process.
    pub fn clone_flags(&self) -> i32 {
        match self.mechanism {
            // The network is created later, in parallel with the mounts: it takes as long as all of
            // them.
            Mechanism::Namespaces { .. } => {
                libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC
            }
            Mechanism::Landlock { .. } => 0,
        }
    }

    /// Turns off denial reports and network access: both need a thread.
    pub fn without_threads(&mut self) {
        self.report_nothing();
        self.network.close();
    }

    /// Confines the calling process irrevocably, and closes every descriptor above stderr except
    /// `kept` and those it passes out. `set_up` does the process's other preparations, may use
    /// `needed`, and is called while the network is created; SIGCHLD must not be ignored even
    /// before. `planned` waits until the runner has built the plan, and returns whether it has. For
    /// a single-threaded process created with [`Self::clone_flags`]; allocates nothing.
    pub fn enter(
        &mut self,
        (kept, needed): (RawFd, RawFd),
        set_up: impl FnOnce(),
        planned: impl FnOnce() -> bool,
    ) -> Result<Handed, SetupFailure> {
        let Self { mechanism, network, shared, directory, abi, .. } = self;
        let parts = (&*network, &*shared, *abi);
        // Sockets for low ports are created before the capability is dropped.
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
        // Before notifications start, which no thread reads yet.
        let root = enter::open(c"/").map_err(part(SandboxPart::Descriptors))?;
        if let Some(directory) = directory {
            // After a failure the command that needs the directory tries again and reports it.
            _ = enter::change_directory(directory);
        }
        let notified = Some(notified).filter(|program| !program.is_empty());
        let listener = notified.and_then(denials::install);
        if listener.is_none() {
            enter::install_filter(filter).map_err(part(SandboxPart::Seccomp))?;
        }
        Ok(Handed { sockets, root, listener, shared })
    }

    /// The meaning of a failed step.
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
        // An operation that the kernel forbids entirely does not concern a single path.
        match path.filter(|_| !matches!(errno, libc::EPERM | libc::ENOSYS)) {
            Some(path) => {
                let path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
                SandboxFailure::Path { path, errno }
            }
            None => SandboxFailure::Missing { part, errno },
        }
    }

    /// Records that standard input is a file of the runner's. Only Landlock prevents reopening such
    /// a descriptor for writing.
    pub fn note_given_input(&mut self) {
        if self.abi == 0 {
            self.dropped.push(DroppedPromise::StdinFile);
        }
    }

    /// Whether this confinement suffices for the requested mode.
    pub fn satisfies(&self, mode: SandboxMode) -> bool {
        mode == SandboxMode::BestEffort || self.dropped.is_empty()
    }
}

/// A failure that is about a part of the sandbox.
fn missing(part: SandboxPart) -> impl Fn(std::io::Error) -> SandboxFailure {
    move |error| SandboxFailure::Missing { part, errno: enter::errno_of(&error) }
}
