//! The environment of a command: what it inherits, what the request sets, and what retake adds.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::OnceLock;

use retake_engine::{EnvironmentRules, PARENT_VARIABLE, Variable};
use retake_types::{EnvMode, OsText, RefusalReason, RunRequest, is_withheld_variable};

use crate::context::RunContext;
use crate::secret_names::looks_secret;

/// The variable that tells nested runs where the record is.
pub const STORE_VARIABLE: &str = "RETAKE_STORE";

/// All variables of a command.
pub type Environment = Vec<Variable>;

/// Whether two names lead to the same directory; a name through links may be kept.
fn same_directory(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino()));
    one == other || id(one).is_ok_and(|one| id(other).is_ok_and(|other| other == one))
}

/// The environment of the command.
pub fn environment(
    request: &RunRequest,
    context: &RunContext,
    reasons: &mut Vec<RefusalReason>,
) -> Environment {
    let asked = &request.environment;
    let pair =
        |(name, value): &(OsText, OsText)| Variable::new(name.as_os_str(), value.as_os_str());
    let set: Vec<Variable> = asked.set.iter().map(pair).collect();
    let unset: Vec<OsString> = asked.unset.iter().map(|name| name.as_os_str().to_owned()).collect();
    let allow = &context.execution.environment_allow[..];
    let mut rules = EnvironmentRules {
        mode: asked.mode,
        set: &set,
        unset: &unset,
        allow,
        secret: looks_secret,
    };
    let mut environment = match &asked.base {
        None => {
            let confined = request.sandbox.is_on();
            let mut merged = None;
            if asked.mode == EnvMode::Merge {
                // retake's remaining variables pass unchanged.
                merged = Some(own_merged(allow));
                rules.mode = EnvMode::Inherit;
            }
            let own = own_environment().iter().enumerate();
            let own = own.filter(|(at, _)| merged.as_ref().is_none_or(|merged| merged[*at]));
            let is_withheld = |at: usize, name: &OsStr| {
                let is_one_of = |list: &[String]| list.iter().any(|listed| name == listed.as_str());
                is_one_of(&request.sandbox.withheld) || own_withheld()[at] && !is_one_of(allow)
            };
            let given = own.filter(|(at, known)| !(confined && is_withheld(*at, known.name())));
            rules.apply(&mut given.map(|(_, variable)| variable))
        }
        Some(base) => {
            let base: Environment = base.iter().map(pair).collect();
            rules.apply(&mut base.iter())
        }
    };
    for name in &asked.from_host {
        match std::env::var_os(name) {
            Some(value) => environment.push((name, value).into()),
            None => reasons.push(RefusalReason::HostSecretMissing { name: name.clone() }),
        }
    }
    let cwd = request.cwd.as_path();
    // Some programs trust PWD over getcwd(), and retake may have been started elsewhere.
    if let Some(pwd) = environment.iter_mut().find(|known| known.name() == "PWD")
        && !set.iter().any(|set| set.name() == "PWD")
        && !same_directory(Path::new(pwd.value()), cwd)
    {
        *pwd = Variable::new("PWD", cwd);
    }
    if asked.mode != EnvMode::Replace {
        environment.retain(|known| {
            ![PARENT_VARIABLE, STORE_VARIABLE].iter().any(|own| known.name() == *own)
        });
        environment.push((PARENT_VARIABLE, request.id.to_string()).into());
        // On another machine the record is elsewhere.
        if asked.base.is_none()
            && let Ok(store) = context.project.store()
        {
            environment.push((STORE_VARIABLE, store).into());
        }
    }
    environment
}

/// The variables of this process, which never change.
pub(crate) fn own_environment() -> &'static Environment {
    static OWN: OnceLock<Environment> = OnceLock::new();
    OWN.get_or_init(Variable::all_own)
}

/// For each of them, whether it looks secret.
pub(crate) fn own_secrets() -> &'static [bool] {
    static OWN: OnceLock<Vec<bool>> = OnceLock::new();
    OWN.get_or_init(|| of_own_names(looks_secret))
}

/// For each of them, whether it is withheld from confined commands unless allowed.
fn own_withheld() -> &'static [bool] {
    static OWN: OnceLock<Vec<bool>> = OnceLock::new();
    OWN.get_or_init(|| of_own_names(is_withheld_variable))
}

/// Allowed names, and which of retake's variables `merge` then passes on.
type OwnMerged = (Vec<String>, Rc<[bool]>);

thread_local! {
    static MERGED: RefCell<Option<OwnMerged>> = const { RefCell::new(None) };
}

/// Which of them `merge` passes on with these allowed names: the same for every run of a project.
fn own_merged(allow: &[String]) -> Rc<[bool]> {
    let known = MERGED.with_borrow(|known| {
        let (allowed, merged) = known.as_ref()?;
        (allowed == allow).then(|| merged.clone())
    });
    known.unwrap_or_else(|| {
        let (mode, set, unset) = (EnvMode::Merge, &[], &[]);
        let rules = EnvironmentRules { mode, set, unset, allow, secret: looks_secret };
        let passes = |own| !rules.apply(&mut std::iter::once(own)).is_empty();
        let merged: Rc<[bool]> = own_environment().iter().map(passes).collect();
        MERGED.set(Some((allow.to_vec(), merged.clone())));
        merged
    })
}

fn of_own_names(holds: fn(&str) -> bool) -> Vec<bool> {
    let names = own_environment().iter().map(|known| known.name().to_str());
    names.map(|name| name.is_some_and(holds)).collect()
}
