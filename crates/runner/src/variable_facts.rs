//! Caches properties of variables that every run needs: in a loop most variables are the same for
//! every run.

use std::cell::RefCell;
use std::os::unix::ffi::OsStrExt;

use retake_engine::{PARENT_VARIABLE, Variable};

use crate::secret_names::looks_secret;

/// Variables that differ between shells and do not affect a command's result.
const FLEETING: [&str; 18] = [
    "_",
    "COLUMNS",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LINES",
    "OLDPWD",
    "PWD",
    "RETAKE_STORE",
    "SHLVL",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "SYSTEMD_EXEC_PID",
    "TERM_SESSION_ID",
    "TMUX_PANE",
    "WINDOWID",
    "XDG_SESSION_ID",
];

/// Three bytes for a name and three for a value.
pub(crate) const HALF: usize = 3;

/// Cached properties of one variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VariableFacts {
    /// Whether its name looks like that of a secret.
    pub(crate) looks_secret: bool,
    /// Whether it differs between shells without affecting a command's result.
    pub(crate) is_fleeting: bool,
    /// Name and value, hashed; zeros if it is fleeting or looks secret.
    pub(crate) hashed: [u8; 2 * HALF],
}

impl VariableFacts {
    pub(crate) fn of(variable: &Variable) -> Self {
        let (name, value) = variable.pair();
        let text = name.to_str();
        let looks_secret = text.is_some_and(looks_secret);
        let is_fleeting = text.is_some_and(is_fleeting);
        let mut hashed = [0; 2 * HALF];
        if !looks_secret && !is_fleeting {
            hashed[..HALF].copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..HALF]);
            hashed[HALF..].copy_from_slice(&blake3::hash(value.as_bytes()).as_bytes()[..HALF]);
        }
        Self { looks_secret, is_fleeting, hashed }
    }
}

/// Whether a variable differs between shells without affecting a command's result.
fn is_fleeting(name: &str) -> bool {
    name == PARENT_VARIABLE || FLEETING.contains(&name)
}

thread_local! {
    /// The variables of the last run by position: a loop passes them in the same order.
    static LAST: RefCell<Vec<(Variable, VariableFacts)>> = RefCell::default();
}

/// The properties of each of these variables.
pub(crate) fn facts(environment: &[Variable]) -> Vec<VariableFacts> {
    LAST.with_borrow_mut(|last| {
        last.truncate(environment.len());
        let known = last.len();
        last.extend(environment[known..].iter().map(|new| (new.clone(), VariableFacts::of(new))));
        for ((variable, facts), now) in last.iter_mut().zip(environment).take(known) {
            if !variable.is_shared_with(now) && variable != now {
                (*variable, *facts) = (now.clone(), VariableFacts::of(now));
            }
        }
        last.iter().map(|(_, facts)| *facts).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cache returns the same as a fresh computation, whatever it was asked before.
    #[test]
    fn cached_facts_equal_fresh_ones() {
        let asked: [&[(&str, &str)]; 6] = [
            &[("PATH", "/bin"), ("API_TOKEN", "one"), ("A", "1")],
            &[("PATH", "/bin"), ("A", "1")],
            &[("PATH", "/sbin"), ("A", "1"), ("PWD", "/"), ("B", "2")],
            &[("A", "2"), ("PATH", "/sbin")],
            &[],
            &[("A", "2"), ("PATH", "/sbin"), ("DB_PASSWORD", "two")],
        ];
        for variables in asked {
            let variables: Vec<_> = variables.iter().map(|pair| (*pair).into()).collect();
            let first: Vec<_> = variables.iter().map(VariableFacts::of).collect();
            assert_eq!(facts(&variables), first, "{variables:?}");
            assert_eq!(facts(&variables), first, "{variables:?}");
        }
    }
}
