//! The keeper of confined runs: started for a policy, and kept while the policy stays the same.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use retake_engine::{ConfineError, Keeper, KeeperSettings, Variable};
pub use retake_sandbox::enclosing;
use retake_sandbox::{Confinement, Covered, Places, Policy, SharedNetwork};
use retake_types::request::StdinSource;
use retake_types::{
    DroppedPromise, RunRequest, SandboxFailure, SandboxLevel, SandboxMode, SandboxPart,
    SandboxReport, SandboxRequest, StartFailure, text,
};

use crate::context::{RunContext, WorkerNetwork};
use crate::machine;
use crate::nested_runs::NestedRecord;
use crate::prepare::{self, PreparedRun};

/// The keeper that executes a run.
pub struct RunKeeper<'a> {
    pub(crate) keeper: &'a mut Keeper,
    /// The record of a retake inside the sandbox, if the run is confined.
    pub(crate) nested: Option<&'a mut NestedRecord>,
}

/// A keeper without confinement.
impl<'a> From<&'a mut Keeper> for RunKeeper<'a> {
    fn from(keeper: &'a mut Keeper) -> Self {
        Self { keeper, nested: None }
    }
}

/// A keeper and its policy.
pub(crate) struct ConfinedKeeper {
    policy: Arc<Policy>,
    /// The record, hidden from it.
    store: Option<PathBuf>,
    mode: SandboxMode,
    given_input: bool,
    covered: Covered,
    keeper: Keeper,
    nested: NestedRecord,
}

impl ConfinedKeeper {
    pub(crate) fn pid(&self) -> i32 {
        self.keeper.pid()
    }
}

/// Chooses the keeper for a run: the worker's own, or a confined one. `store` is the record, which
/// exists by now and can be hidden.
pub(crate) fn choose<'a>(
    (unconfined, confined): (&'a mut Keeper, &'a mut Option<Box<ConfinedKeeper>>),
    prepared: &mut PreparedRun,
    (store, network): (Option<&Path>, Option<&WorkerNetwork>),
    settings: KeeperSettings,
) -> Result<RunKeeper<'a>, StartFailure> {
    match prepared.request.sandbox.is_on() {
        false => Ok(unconfined.into()),
        true => keeper(confined, prepared, (store, network), settings),
    }
}

/// The keeper for this run, or why there is none. Never returns one with less confinement than
/// requested.
fn keeper<'a>(
    known: &'a mut Option<Box<ConfinedKeeper>>,
    prepared: &mut PreparedRun,
    (store, network): (Option<&Path>, Option<&WorkerNetwork>),
    settings: KeeperSettings,
) -> Result<RunKeeper<'a>, StartFailure> {
    let Some(policy) = prepared.policy.clone() else {
        return Err(StartFailure::NoResources("the run has no policy".to_owned()));
    };
    let mode = prepared.request.sandbox.mode;
    // Landlock has no exception for a given file.
    let given_input =
        prepared.request.stdin != StdinSource::Null && retake_sandbox::landlock_abi() == 0;
    let fits = |known: &ConfinedKeeper| {
        (Arc::ptr_eq(&known.policy, &policy) || known.policy == policy)
            && known.store.as_deref() == store
            && known.mode == mode
            && known.given_input == given_input
            && known.covered.is_unchanged()
    };
    if !known.as_deref().is_some_and(fits) {
        // The earlier keeper ends first, because its temporary files are separate.
        *known = None;
        let whole = match store {
            Some(store) => &Policy::clone(&policy).without_store(store),
            None => &*policy,
        };
        // Examined first, so that a later replacement is detected as a change.
        let covered = Covered::by(whole);
        let sandbox = Sandbox { mode, given_input, directory: Some(directory_inside(prepared)) };
        let keeper = start_in(whole, &sandbox, network, settings)?;
        let store = store.map(Path::to_owned);
        let policy = policy.clone();
        let nested = NestedRecord::default();
        let made = ConfinedKeeper { policy, store, mode, given_input, covered, keeper, nested };
        *known = Some(Box::new(made));
    }
    let known = known.as_mut().expect("just made");
    // Of two equal policies, keep the newer one for the next comparison.
    known.policy = policy;
    let ConfinedKeeper { keeper, nested, .. } = &mut **known;
    if let Some(confinement) = keeper.confinement() {
        set_variables(confinement, prepared)?;
        if confinement.level() == SandboxLevel::Full {
            enter_as_shown(prepared)?;
        }
    }
    Ok(RunKeeper { keeper, nested: Some(nested) })
}

/// A keeper for commands that are not recorded, confined by this policy and without the record. It
/// starts no thread and therefore reports no denials.
pub fn start_keeper(
    request: &SandboxRequest,
    cwd: &Path,
    context: &RunContext,
    settings: KeeperSettings,
) -> Result<Keeper, StartFailure> {
    let home = std::env::home_dir();
    let project = context.project.root.as_deref();
    let places = Places { cwd, project, home: home.as_deref(), program: None };
    let policy = Policy::new(request, &places).map_err(|errors| {
        let reasons = errors.into_iter().map(prepare::policy_refusal);
        StartFailure::Refused(reasons.map(|reason| reason.to_string()).collect())
    })?;
    let policy = match context.project.store() {
        Ok(store) => policy.without_store(store),
        Err(_) => policy,
    };
    let sandbox = Sandbox { mode: request.mode, given_input: false, directory: None };
    start(&policy, &sandbox, Reports::Nothing, (NetworkUse::Own, settings))
}

/// What a sandbox promises for commands in this directory, tested by creating one.
pub fn try_confinement(
    request: &SandboxRequest,
    cwd: &Path,
    context: &RunContext,
) -> Result<SandboxReport, StartFailure> {
    let keeper = start_keeper(request, cwd, context, KeeperSettings::default())?;
    let mut report = keeper.confinement().map(Confinement::report).ok_or_else(|| {
        let (part, errno) = (SandboxPart::Namespaces, libc::EOPNOTSUPP);
        StartFailure::Sandbox(SandboxFailure::Missing { part, errno })
    })?;
    // A record created later would be unprotected.
    let project = context.project.root.as_deref().unwrap_or(cwd);
    let is_inside = context.project.store().is_ok_and(|store| store.starts_with(project));
    let record = DroppedPromise::Record;
    if report.level == SandboxLevel::Landlock && is_inside && !report.dropped.contains(&record) {
        report.dropped.push(record);
    }
    Ok(report)
}

/// What this machine supports, tested by trying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxProbe {
    /// `None` if nothing can be confined.
    pub level: Option<SandboxLevel>,
    pub landlock_abi: u32,
    /// Whether system calls can be filtered.
    pub seccomp: bool,
    /// Whether denials can be reported.
    pub seccomp_notification: bool,
    /// Why the full level is unavailable.
    pub lacking: Option<SandboxFailure>,
}

/// Confines a process as far as possible, and ends it.
pub fn probe() -> SandboxProbe {
    let request = SandboxRequest { mode: SandboxMode::Strict, ..SandboxRequest::default() };
    let temp = std::env::temp_dir();
    let places = Places { cwd: &temp, project: None, home: None, program: None };
    let landlock_abi = retake_sandbox::landlock_abi();
    let [seccomp, seccomp_notification] = retake_sandbox::seccomp_available();
    let found = |level, lacking| SandboxProbe {
        level,
        landlock_abi,
        seccomp,
        seccomp_notification,
        lacking,
    };
    let attempt = |mode| {
        let policy = Policy::new(&request, &places).ok()?;
        let settings = (NetworkUse::Own, KeeperSettings::default());
        let sandbox = Sandbox { mode, given_input: false, directory: None };
        Some(start(&policy, &sandbox, Reports::Nothing, settings))
    };
    let level = |keeper: &Keeper| keeper.confinement().map(Confinement::level);
    let lacking = match attempt(SandboxMode::Strict) {
        Some(Ok(keeper)) => {
            return found(level(&keeper), None);
        }
        Some(Err(StartFailure::Sandbox(failure))) => Some(failure),
        _ => None,
    };
    let level = attempt(SandboxMode::BestEffort).and_then(Result::ok).as_ref().and_then(level);
    found(level, lacking)
}

/// Starts a keeper whose runs share the network of the other workers, if the workers share one.
fn start_in(
    policy: &Policy,
    sandbox: &Sandbox,
    network: Option<&WorkerNetwork>,
    settings: KeeperSettings,
) -> Result<Keeper, StartFailure> {
    let start = |shared: NetworkUse| start(policy, sandbox, Reports::Denials, (shared, settings));
    let Some(network) = network else { return start(NetworkUse::Own) };
    // Two workers that start at once must not create one each.
    let mut known = network.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(made) = &*known
        && let Ok(keeper) = start(NetworkUse::Joined(made.clone()))
    {
        return Ok(keeper);
    }
    let keeper = start(NetworkUse::Shared)?;
    *known = keeper.shared_network().cloned();
    Ok(keeper)
}

/// The network of a sandbox.
#[derive(Clone)]
enum NetworkUse {
    Own,
    /// Its own, which others may join.
    Shared,
    Joined(Arc<SharedNetwork>),
}

/// Whether a sandbox reports denials from inside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reports {
    Denials,
    /// For callers that must not start a thread.
    Nothing,
}

/// The input for creating a sandbox.
struct Sandbox {
    mode: SandboxMode,
    given_input: bool,
    /// The working directory of its first command, by its path inside.
    directory: Option<PathBuf>,
}

fn start(
    policy: &Policy,
    sandbox: &Sandbox,
    reports: Reports,
    (network, settings): (NetworkUse, KeeperSettings),
) -> Result<Keeper, StartFailure> {
    let Sandbox { mode, given_input, directory } = sandbox;
    let (mode, given_input) = (*mode, *given_input);
    let enter = |mut confinement: Confinement| -> Result<Keeper, ConfineError> {
        match &network {
            NetworkUse::Own => {}
            NetworkUse::Shared => confinement.share_network(None),
            NetworkUse::Joined(known) => confinement.share_network(Some(known.clone())),
        }
        if given_input {
            confinement.note_given_input();
        }
        if let Some(directory) = directory {
            confinement.begin_in(directory);
        }
        if reports == Reports::Nothing {
            confinement.without_threads();
        }
        if !confinement.satisfies(mode) {
            let promises = confinement.report().dropped;
            return Err(ConfineError::Sandbox(SandboxFailure::Drops { full: None, promises }));
        }
        Keeper::start_confined(settings, confinement)
    };
    let process = |error: std::io::Error| {
        StartFailure::NoResources(format!("could not start a process: {}", text::plain(&error)))
    };
    // A file system or kernel without overlays lacks them for the next sandbox too.
    static NO_LAYERS: AtomicBool = AtomicBool::new(false);
    let layers = layers_directory().filter(|_| !NO_LAYERS.load(Ordering::Relaxed));
    let full = |layers| Confinement::full(policy, layers).map_err(ConfineError::Sandbox);
    let mut entered = full(layers.as_deref()).and_then(enter);
    if let Err(ConfineError::Sandbox(failure)) = &entered
        && matches!(failure, SandboxFailure::Missing { part: SandboxPart::CacheLayers, .. })
    {
        NO_LAYERS.store(true, Ordering::Relaxed);
        entered = full(None).and_then(enter);
    }
    let full = match entered {
        Ok(keeper) => return Ok(keeper),
        Err(ConfineError::Process(error)) => return Err(process(error)),
        Err(ConfineError::Sandbox(failure)) => failure,
    };
    // An unusable path fails at both levels.
    if mode == SandboxMode::Strict || matches!(full, SandboxFailure::Path { .. }) {
        return Err(StartFailure::Sandbox(full));
    }
    let landlock =
        match Confinement::landlock(policy).map_err(ConfineError::Sandbox).and_then(enter) {
            Ok(keeper) => return Ok(keeper),
            Err(ConfineError::Process(error)) => return Err(process(error)),
            Err(ConfineError::Sandbox(failure)) => failure,
        };
    let (full, landlock) = (Box::new(full), Box::new(landlock));
    Err(StartFailure::Sandbox(SandboxFailure::Neither { full, landlock }))
}

/// The directory with the writable layers of caches; hidden inside.
fn layers_directory() -> Option<PathBuf> {
    Some(machine::user_directory("XDG_DATA_HOME", ".local/share")?.join("retake/sandbox"))
}

/// The working directory of a run, by its path inside.
fn directory_inside(prepared: &PreparedRun) -> PathBuf {
    let directory = prepared.request.directory();
    prepared.request.sandbox.inside(&directory).unwrap_or(directory)
}

/// Starts a run whose directory appears elsewhere inside at that place.
fn enter_as_shown(prepared: &mut PreparedRun) -> Result<(), StartFailure> {
    let Some(inside) = prepared.request.sandbox.inside(&prepared.request.directory()) else {
        return Ok(());
    };
    let set = prepared.command.set_variables([Variable::new("PWD", &inside)]);
    prepared.command.enter_as(inside);
    set.map_err(|reasons| StartFailure::Refused(reasons.iter().map(ToString::to_string).collect()))
}

/// Sets the variables that every process inside gets, unless the request sets them.
fn set_variables(
    confinement: &Confinement,
    prepared: &mut PreparedRun,
) -> Result<(), StartFailure> {
    let RunRequest { environment, .. } = &prepared.request;
    let given = |name: &std::ffi::OsStr| {
        environment.set.iter().any(|(set, _)| set.as_os_str() == name)
            || environment.unset.iter().any(|unset| unset.as_os_str() == name)
    };
    let wanted = confinement.variables().iter().filter(|(name, _)| !given(name));
    let wanted = wanted.map(|(name, value)| Variable::new(name, value));
    prepared
        .command
        .set_variables(wanted)
        .map_err(|reasons| StartFailure::Refused(reasons.iter().map(ToString::to_string).collect()))
}
