//! The keeper of confined runs: made for a policy, kept for as long as the policy is the same.

use retake_engine::{ConfineError, Keeper, KeeperSettings};
use retake_sandbox::{Confinement, Places, Policy};
use retake_types::request::StdinSource;
use retake_types::{
    RunRequest, SandboxFailure, SandboxLevel, SandboxMode, SandboxRequest, StartFailure, text,
};

use crate::prepare::PreparedRun;

/// A keeper and what it was made for.
pub(crate) struct ConfinedKeeper {
    policy: Policy,
    mode: SandboxMode,
    given_input: bool,
    keeper: Keeper,
}

/// The keeper that this run may take place on, or why there is none. There is never one that
/// confines less than was asked for.
pub(crate) fn keeper<'a>(
    known: &'a mut Option<ConfinedKeeper>,
    prepared: &mut PreparedRun,
    settings: KeeperSettings,
) -> Result<&'a mut Keeper, StartFailure> {
    let Some(policy) = prepared.policy.clone() else {
        return Err(StartFailure::NoResources("the run has no policy".to_owned()));
    };
    let mode = prepared.request.sandbox.mode;
    let given_input = prepared.request.stdin != StdinSource::Null;
    let fits = |known: &ConfinedKeeper| {
        known.policy == policy && known.mode == mode && known.given_input == given_input
    };
    if !known.as_ref().is_some_and(fits) {
        // The earlier one ends first: its temporary files are not this one's.
        *known = None;
        let keeper = start(&policy, mode, given_input, settings)?;
        *known = Some(ConfinedKeeper { policy, mode, given_input, keeper });
    }
    let keeper = &mut known.as_mut().expect("just made").keeper;
    if let Some(confinement) = keeper.confinement() {
        set_variables(confinement, prepared)?;
    }
    Ok(keeper)
}

/// What this machine can do, found out by doing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxProbe {
    /// `None` where nothing can be confined.
    pub level: Option<SandboxLevel>,
    pub landlock_abi: u32,
    /// What keeps the full level from being had.
    pub lacking: Option<SandboxFailure>,
}

/// Confines a process of its own, as far as possible, and ends it.
pub fn probe() -> SandboxProbe {
    let request = SandboxRequest { mode: SandboxMode::Strict, ..SandboxRequest::default() };
    let temp = std::env::temp_dir();
    let places = Places { cwd: &temp, project: None, home: None, program: None };
    let landlock_abi = retake_sandbox::landlock_abi();
    let attempt = |mode| {
        let policy = Policy::new(&request, &places).ok()?;
        Some(start(&policy, mode, false, KeeperSettings::default()))
    };
    let level = |keeper: &Keeper| keeper.confinement().map(Confinement::level);
    let lacking = match attempt(SandboxMode::Strict) {
        Some(Ok(keeper)) => {
            return SandboxProbe { level: level(&keeper), landlock_abi, lacking: None };
        }
        Some(Err(StartFailure::Sandbox(failure))) => Some(failure),
        _ => None,
    };
    let level = attempt(SandboxMode::BestEffort).and_then(Result::ok).as_ref().and_then(level);
    SandboxProbe { level, landlock_abi, lacking }
}

fn start(
    policy: &Policy,
    mode: SandboxMode,
    given_input: bool,
    settings: KeeperSettings,
) -> Result<Keeper, StartFailure> {
    let enter = |mut confinement: Confinement| -> Result<Keeper, ConfineError> {
        if given_input {
            confinement.note_given_input();
        }
        if !confinement.satisfies(mode) {
            let promises = confinement.report().dropped;
            return Err(ConfineError::Sandbox(SandboxFailure::Drops { full: None, promises }));
        }
        Keeper::start_confined(settings, confinement)
    };
    let process = |error: std::io::Error| {
        StartFailure::NoResources(format!("no process could be made: {}", text::plain(&error)))
    };
    let full = match enter(Confinement::full(policy)) {
        Ok(keeper) => return Ok(keeper),
        Err(ConfineError::Process(error)) => return Err(process(error)),
        Err(ConfineError::Sandbox(failure)) => failure,
    };
    // What is wrong with a path is wrong at either level.
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

/// Sets what every process inside gets, unless the request sets it itself.
fn set_variables(
    confinement: &Confinement,
    prepared: &mut PreparedRun,
) -> Result<(), StartFailure> {
    let RunRequest { environment, .. } = &prepared.request;
    let given = |name: &std::ffi::OsStr| {
        environment.set.iter().any(|(set, _)| set.as_os_str() == name)
            || environment.unset.iter().any(|unset| unset.as_os_str() == name)
    };
    let variables = confinement.variables();
    let wanted = variables.into_iter().filter(|(name, _)| !given(name));
    prepared.command = prepared.command.clone().with_variables(wanted).map_err(|reasons| {
        StartFailure::Refused(reasons.iter().map(ToString::to_string).collect())
    })?;
    Ok(())
}
